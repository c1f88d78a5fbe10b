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
from sendoff.ledger.storage.schema import erasure_state, metadata

from ..databases import new_database
from ..examples import PROFILE

settings.load_profile(PROFILE)

# The packages whose tests depend on the database; elsewhere, PostgreSQL only repeats the result of SQLite.
DATABASE_DECIDES = ("ledger", "postbacks", "warehouse")


def pytest_itemcollected(item: pytest.Item) -> None:
    """Mark tests on PostgreSQL that do not depend on the database for `make proof` only."""
    parameters = (
        item.callspec.params if isinstance(item, pytest.Function) and hasattr(item, "callspec") else {}
    )
    database_decides = item.path.parent.name in DATABASE_DECIDES and not item.get_closest_marker(
        "code_decides"
    )
    if parameters.get("ledger") == "postgresql" and not database_decides:
        item.add_marker("proof")


@pytest.fixture(scope="session", autouse=True)
def _no_process_waits_for_a_lock() -> Iterator[None]:
    """Go on at once after each transaction of a series on SQLite, because no receiver waits for its turn."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("sendoff.ledger.storage.database._SHARE", 1)
        yield


@pytest.fixture(scope="session")
def migrated_template(new_postgres_database: str) -> str:
    """The URL of a PostgreSQL database with the tables of the ledger; copying it is faster than migrating."""
    with closing(Ledger(new_postgres_database)) as ledger:
        ledger.migrate()
    return new_postgres_database


@pytest.fixture(scope="session")
def migrated_postgres(postgres_server: str, migrated_template: str) -> Iterator[str]:
    """The URL of a migrated PostgreSQL database, which the tests use in turn."""
    with new_database(postgres_server, template=migrated_template) as url:
        yield url


@pytest.fixture(params=["sqlite", "postgresql"])
def ledger(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Ledger]:
    """An empty, migrated ledger."""
    if request.param == "sqlite":
        file = shutil.copy(request.getfixturevalue("migrated_file"), tmp_path / "ledger.db")
        with closing(Ledger(f"sqlite:///{file}")) as ledger:
            yield ledger
    else:
        yield request.getfixturevalue("postgres_ledger")


@pytest.fixture
def postgres_ledger(migrated_postgres: str, migrated_engine: sa.Engine) -> Iterator[Ledger]:
    """An empty, migrated ledger on PostgreSQL. A test that changes its tables may not use it."""
    with closing(Ledger(migrated_postgres)) as ledger:
        yield ledger
    _empty(migrated_engine)


@pytest.fixture(scope="module")
def migrated_engine(migrated_postgres: str) -> Iterator[sa.Engine]:
    """A connection that empties the tables after each test; opening one takes as long as emptying them."""
    engine = sa.create_engine(migrated_postgres, pool_pre_ping=True)  # some tests end all connections
    yield engine
    engine.dispose()


# These statements are faster than truncating tables of few rows.
_FILLED = sa.text(
    " UNION ALL ".join(f"SELECT '{name}' WHERE EXISTS (SELECT 1 FROM {name})" for name in metadata.tables)
)
_DELETE = {table.name: table.delete() for table in reversed(metadata.sorted_tables)} | {
    erasure_state.name: sa.update(erasure_state).values(version=0)  # a migrated ledger has its row
}
_FIRST_NUMBERS = sa.text("SELECT setval(oid, 1, false) FROM pg_class WHERE relkind = 'S'")


def _empty(engine: sa.Engine) -> None:
    """Delete all rows, and restart the numbers."""
    with engine.begin() as db:
        filled = set(db.scalars(_FILLED))
        for name, delete in _DELETE.items():
            if name in filled:
                db.execute(delete)
        db.execute(_FIRST_NUMBERS)
