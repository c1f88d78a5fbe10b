"""A migrated ledger on each database that the tests can reach; examples that are the same in every run."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
import sqlalchemy as sa
from hypothesis import HealthCheck, settings

from sendoff.ledger import Ledger
from sendoff.ledger.schema import metadata

# Neither the speed of the machine nor chance decides a test. New examples are looked for with
# HYPOTHESIS_PROFILE=search.
settings.register_profile(
    "same", deadline=None, derandomize=True, suppress_health_check=[HealthCheck.too_slow], print_blob=True
)
settings.register_profile("search", settings.get_profile("same"), derandomize=False, max_examples=1_000)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "same"))


@pytest.fixture(scope="session")
def migrated_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A SQLite file with the tables of the ledger, to be copied: that is faster than migrating."""
    file = tmp_path_factory.mktemp("migrated") / "ledger.db"
    ledger = Ledger(f"sqlite:///{file}")
    ledger.migrate()
    ledger.close()  # the last connection puts everything into the one file
    return file


@pytest.fixture(scope="module")
def migrated_postgres(postgres_url: str) -> str:
    """The URL of a PostgreSQL database with the tables of the ledger, which the tests of a module use in turn."""
    ledger = Ledger(postgres_url)
    ledger.migrate()
    ledger.close()
    return postgres_url


@pytest.fixture(params=["sqlite", "postgresql"])
def ledger(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Ledger]:
    """An empty, migrated ledger."""
    if request.param == "sqlite":
        file = shutil.copy(request.getfixturevalue("migrated_file"), tmp_path / "ledger.db")
        ledger = Ledger(f"sqlite:///{file}")
        yield ledger
        ledger.close()
        return
    url = request.getfixturevalue("migrated_postgres")
    ledger = Ledger(url)
    yield ledger
    ledger.close()
    _empty(url)


def _empty(url: str) -> None:
    engine = sa.create_engine(url)
    tables = ", ".join(metadata.tables)
    with engine.begin() as connection:
        connection.execute(sa.text(f"TRUNCATE {tables} RESTART IDENTITY CASCADE"))
    engine.dispose()
