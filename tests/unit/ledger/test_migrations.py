"""Migrations create exactly the tables of the schema, and only `sendoff migrate` creates a ledger."""

from __future__ import annotations

import re
import sqlite3
from collections.abc import Callable, Iterator
from contextlib import closing
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING
from uuid import uuid4

import pytest
import sqlalchemy as sa
from alembic.autogenerate import compare_metadata
from alembic.migration import MigrationContext

from sendoff.audience.identifiers import integers
from sendoff.errors import UnusableLedgerError
from sendoff.ledger import Ledger
from sendoff.ledger.storage.schema import metadata

from ...databases import connected, new_database
from ...factories import NOW

if TYPE_CHECKING:
    from tests.conftest import Command


@pytest.mark.promise("lost/migrated")
def test_the_migrations_make_exactly_the_tables(ledger: Ledger) -> None:
    with ledger._database.read() as db:
        context = MigrationContext.configure(db, opts={"compare_type": True, "include_name": _is_ours})
        assert compare_metadata(context, metadata) == []


def _is_ours(name: str | None, kind: str, _: object) -> bool:
    return kind != "table" or name in metadata.tables  # skips partitions


def test_a_new_ledger_on_postgresql_has_partitions_for_a_week(ledger: Ledger) -> None:
    is_partitioned = ledger.name.startswith("postgresql")
    assert ledger.retention.ahead(datetime.now(UTC)) in (
        (6, 5) if is_partitioned else (None,)
    )  # midnight may pass


def test_postgresql_compresses_only_what_is_not_compressed_yet(ledger: Ledger) -> None:
    if ledger.name.startswith("sqlite"):
        pytest.skip("SQLite compresses nothing")
    query = (
        "SELECT attrelid::regclass::text, attname FROM pg_attribute JOIN pg_class ON pg_class.oid = attrelid "
        "WHERE relnamespace = current_schema()::regnamespace AND relkind IN ('r', 'p') "
        "AND atttypid = 'bytea'::regtype AND attstorage <> 'e'"
    )
    with ledger._database.read() as db:
        assert [tuple(row) for row in db.execute(sa.text(query))] == [("segments", "body")]


@pytest.mark.promise("lost/migrated")
def test_migrating_again_changes_nothing(ledger: Ledger) -> None:
    ledger.uploaded_lists.store("staff", "device_id", integers([1, 2]), "ann", NOW)
    ledger.migrate()
    assert ledger.uploaded_lists.get("staff")[1] == integers([1, 2])


def test_a_ledger_of_a_newer_version_says_so(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    url = f"sqlite:///{tmp_path / 'ledger.db'}"
    with closing(Ledger(url)) as ledger:
        ledger.migrate()
        ledger.uploaded_lists.store("staff", "device_id", integers([1, 2]), "ann", NOW)
        with ledger._database.write() as db:
            db.execute(sa.text("UPDATE alembic_version SET version_num = '0999'"))
        newer = "made by a newer Sendoff .its tables have revision 0999; this version knows up to 0"
        with pytest.raises(UnusableLedgerError, match=newer):
            ledger.migrate()
    caplog.clear()
    with closing(Ledger(url)) as ledger:
        assert ledger.uploaded_lists.get("staff")[1] == integers([1, 2])
        [message] = caplog.messages
        assert re.search(newer, message)
        with ledger._database.write() as db:
            db.execute(sa.text("ALTER TABLE uploaded_lists RENAME TO other_lists"))
        for ask in (ledger.uploaded_lists.all, ledger.check):
            with pytest.raises(UnusableLedgerError, match=newer):
                ask()


@pytest.fixture(params=["sqlite", "postgresql"])
def new_url(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[str]:
    if request.param == "sqlite":
        yield f"sqlite:///{tmp_path / 'new.db'}"
        return
    with new_database(request.getfixturevalue("postgres_server")) as url:
        yield url


@pytest.mark.parametrize(
    "revisions", [["0001"], ["e42d9fcd10d9"], ["1", "2"]], ids=["as ours", "other", "branches"]
)
def test_the_database_of_another_application_is_not_migrated(new_url: str, revisions: list[str]) -> None:
    """Alembic has one table for its revision, whichever application uses it."""
    engine = sa.create_engine(new_url)
    with engine.begin() as db:
        db.execute(sa.text("CREATE TABLE alembic_version (version_num VARCHAR(32) PRIMARY KEY)"))
        for revision in revisions:
            db.execute(sa.text(f"INSERT INTO alembic_version VALUES ('{revision}')"))
    with closing(Ledger(new_url)) as ledger:
        with pytest.raises(UnusableLedgerError) as caught:
            ledger.migrate()
        assert str(caught.value) == (
            f"{ledger.name}: this database belongs to another application; give the ledger a database of its own"
        )
    assert sa.inspect(engine).get_table_names() == ["alembic_version"]
    engine.dispose()


def test_a_file_of_another_application_gets_no_tables_and_keeps_its_mode(tmp_path: Path) -> None:
    """A person may give the URL of a warehouse by mistake."""
    file = tmp_path / "shop.db"
    with closing(sqlite3.connect(file)) as db, db:
        db.execute("CREATE TABLE devices (device_id INTEGER)")
    file.chmod(0o644)
    before = file.read_bytes()
    with (
        closing(Ledger(f"sqlite:///{file}")) as ledger,
        pytest.raises(UnusableLedgerError, match="give the ledger a database of its own"),
    ):
        ledger.migrate()
    assert file.read_bytes() == before
    assert file.stat().st_mode & 0o777 == 0o644


def test_a_database_that_cannot_store_every_text_gets_no_ledger(postgres_server: str) -> None:
    name = f"sendoff_test_{uuid4().hex[:12]}"
    url = sa.make_url(postgres_server).set(database=name).render_as_string(hide_password=False)
    with connected(postgres_server) as engine, engine.connect() as db:
        options = "ENCODING 'LATIN1' LC_COLLATE 'C' LC_CTYPE 'C' TEMPLATE template0"
        db.execute(sa.text(f"CREATE DATABASE {name} {options}"))
        try:
            with (
                closing(Ledger(url)) as ledger,
                pytest.raises(UnusableLedgerError, match="the encoding of this database is LATIN1"),
            ):
                ledger.migrate()
        finally:
            db.execute(sa.text(f"DROP DATABASE {name} WITH (FORCE)"))


@pytest.mark.parametrize(
    ("change", "lacks"),
    [
        ("DROP TABLE suppressed", "suppressed"),
        ("ALTER TABLE launches DROP COLUMN winner", "launches.winner"),
    ],
)
def test_a_ledger_that_lacks_a_table_or_a_column_is_not_up_to_date(
    new_url: str, change: str, lacks: str
) -> None:
    """The first migration of an earlier checkout had the same revision, but other tables."""
    with closing(Ledger(new_url)) as ledger:
        ledger.migrate()
        with ledger._database.write() as db:
            db.execute(sa.text(change))
        with pytest.raises(UnusableLedgerError, match="has no tables, or old ones; run: sendoff migrate"):
            ledger.check()
        with pytest.raises(UnusableLedgerError) as caught:
            ledger.migrate()
        assert str(caught.value) == (
            f"{ledger.name}: the ledger lacks {lacks}. If an earlier checkout of Sendoff made it, use a new "
            "database. Otherwise, restore a backup"
        )


@pytest.mark.parametrize("ask", [Ledger.ping, lambda ledger: ledger.launches.search("0")])
@pytest.mark.parametrize("is_relative", [False, True])
def test_a_mistyped_path_is_no_new_ledger(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, ask: Callable[[Ledger], object], is_relative: bool
) -> None:
    """The error has the whole path, because a relative one depends on the folder of the process."""
    path = tmp_path / "never.db"
    monkeypatch.chdir(tmp_path)
    with closing(Ledger(f"sqlite:///{path.name if is_relative else path}")) as ledger:
        for _ in range(2):
            with pytest.raises(UnusableLedgerError) as error:
                ask(ledger)
            assert str(error.value) == (
                f"there is no ledger at {path}. Check the path, or run this to create one: sendoff migrate"
            )
        assert list(tmp_path.iterdir()) == []
        ledger.migrate()
        ask(ledger)


def test_the_command_makes_no_ledger_by_the_way(tmp_path: Path, sendoff: Command) -> None:
    done = sendoff("report", "--ledger", f"sqlite:///{tmp_path / 'never.db'}")
    assert done.returncode == 1
    path = tmp_path / "never.db"
    assert (
        f"there is no ledger at {path}. Check the path, or run this to create one: sendoff migrate"
        in done.stderr
    )
    assert list(tmp_path.iterdir()) == []
