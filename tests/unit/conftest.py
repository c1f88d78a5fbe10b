"""A migrated ledger on each database that the tests can reach."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from uuid import uuid4

import pytest
import sqlalchemy as sa

from sendoff.ledger import Ledger


@pytest.fixture(params=["sqlite", "postgresql"])
def ledger(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Ledger]:
    """An empty, migrated ledger."""
    if request.param == "sqlite":
        ledger = Ledger(f"sqlite:///{tmp_path / 'ledger.db'}")
        ledger.migrate()
        yield ledger
        ledger.close()
        return
    url = request.getfixturevalue("postgres_url")
    schema = f"ledger_{uuid4().hex[:8]}"
    admin = sa.create_engine(url)
    with admin.begin() as connection:
        connection.execute(sa.schema.CreateSchema(schema))
    ledger = Ledger(f"{url}?options=-csearch_path%3D{schema}")
    ledger.migrate()
    yield ledger
    ledger.close()
    with admin.begin() as connection:
        connection.execute(sa.schema.DropSchema(schema, cascade=True))
    admin.dispose()
