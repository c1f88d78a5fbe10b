"""A migrated ledger on each available database, and examples that are the same in every run."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest
import sqlalchemy as sa
from hypothesis import settings

from sendoff.ledger import Ledger
from sendoff.ledger.schema import metadata

from ..examples import PROFILE

settings.load_profile(PROFILE)

# The packages whose tests depend on the database; elsewhere, PostgreSQL only repeats the result of SQLite.
DATABASE_DECIDES = ("ledger", "postbacks", "warehouse")


def pytest_itemcollected(item: pytest.Item) -> None:
    """Mark tests on PostgreSQL that do not depend on the database for `make proof` only."""
    parameters = (
        item.callspec.params if isinstance(item, pytest.Function) and hasattr(item, "callspec") else {}
    )
    if parameters.get("ledger") == "postgresql" and item.path.parent.name not in DATABASE_DECIDES:
        item.add_marker("proof")


@pytest.fixture(scope="session")
def migrated_postgres(new_postgres_database: str) -> str:
    """The URL of a PostgreSQL database with the tables of the ledger, which the tests use in turn."""
    with closing(Ledger(new_postgres_database)) as ledger:
        ledger.migrate()
    return new_postgres_database


@pytest.fixture(params=["sqlite", "postgresql"])
def ledger(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Ledger]:
    """An empty, migrated ledger."""
    if request.param == "sqlite":
        file = shutil.copy(request.getfixturevalue("migrated_file"), tmp_path / "ledger.db")
        with closing(Ledger(f"sqlite:///{file}")) as ledger:
            yield ledger
        return
    url = request.getfixturevalue("migrated_postgres")
    with closing(Ledger(url)) as ledger:
        yield ledger
    _empty(url)


def _empty(url: str) -> None:
    """Delete all rows, which is faster than truncating tables of few rows, and restart the numbers."""
    engine = sa.create_engine(url)
    filled = " UNION ALL ".join(
        f"SELECT '{name}' WHERE EXISTS (SELECT 1 FROM {name})" for name in metadata.tables
    )
    with engine.begin() as db:
        names = set(db.scalars(sa.text(filled)))
        for table in reversed(metadata.sorted_tables):
            if table.name in names:
                db.execute(table.delete())
        db.execute(sa.text("SELECT setval(oid, 1, false) FROM pg_class WHERE relkind = 'S'"))
    engine.dispose()
