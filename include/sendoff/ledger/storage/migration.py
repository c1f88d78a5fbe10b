"""The tables of a ledger: which revision they have, whether some are missing, and the upgrade to the newest."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from functools import lru_cache
from pathlib import Path

import sqlalchemy as sa

from sendoff.errors import UnusableLedgerError
from sendoff.ledger.storage.private_files import make_private
from sendoff.ledger.storage.schema import launches, metadata

_MIGRATIONS = Path(__file__).with_name("migrations")
_NOT_OURS = "this database belongs to another application; give the ledger a database of its own"
_MIGRATION_LOCK = 0x53454E44  # any number that nothing else in the database uses as a lock


def prepare_file(file: Path, name: str) -> None:
    """Create the SQLite file of a ledger if there is none. Raise UnusableLedgerError if it has other tables."""
    if not file.exists():
        make_private(file)
    if _has_other_tables(file):  # before the ledger connects, which changes the file
        raise UnusableLedgerError(f"{name}: {_NOT_OURS}")


def upgrade(db: sa.Connection, name: str) -> None:
    """Bring the tables of a database to the newest revision, in the transaction of the connection.

    ``name``: of the database, for errors. Raise UnusableLedgerError if it cannot be a ledger of this version.
    """
    # Imported here, because most commands and tasks migrate nothing, and start sooner without it.
    from alembic import command
    from alembic.config import Config
    from alembic.migration import MigrationContext
    from alembic.util import CommandError

    if db.dialect.name == "postgresql":
        _prepare_postgresql(db, name)
    config = Config()
    config.set_main_option("script_location", str(_MIGRATIONS))
    config.attributes["connection"] = db
    revisions = MigrationContext.configure(db).get_current_heads()
    # Every application that uses Alembic has its table of revisions. A schema of PostgreSQL may have tables of
    # an extension, such as PostGIS.
    if revisions and not sa.inspect(db).has_table(launches.name):
        raise UnusableLedgerError(f"{name}: {_NOT_OURS}")
    try:
        command.upgrade(config, "head")
    except CommandError:
        if known_revisions().issuperset(revisions):
            raise
        raise UnusableLedgerError(made_by_newer(", ".join(revisions))) from None
    if missing := missing_columns(db):
        raise UnusableLedgerError(
            f"{name}: the ledger lacks {', '.join(missing)}. If an earlier checkout of Sendoff made it, "
            "use a new database. Otherwise, restore a backup"
        )


def _prepare_postgresql(db: sa.Connection, name: str) -> None:
    """Wait for other migrations. Raise UnusableLedgerError if the database cannot store every text."""
    for limit in ("statement_timeout", "lock_timeout"):  # rewriting a large table takes longer
        db.exec_driver_sql(f"SET LOCAL {limit} = 0")
    db.execute(sa.select(sa.func.pg_advisory_xact_lock(_MIGRATION_LOCK)))
    if (encoding := db.exec_driver_sql("SHOW server_encoding").scalar()) != "UTF8":
        raise UnusableLedgerError(
            f"{name}: the encoding of this database is {encoding}, which cannot store every text. "
            "Create one with ENCODING 'UTF8'"
        )


@lru_cache(maxsize=1)
def known_revisions() -> frozenset[str]:
    """Return the table revisions that this version of Sendoff knows."""
    return frozenset(path.name.partition("_")[0] for path in (_MIGRATIONS / "versions").glob("[0-9]*_*.py"))


def _has_other_tables(file: Path) -> bool:
    """Check whether an SQLite file has tables, but not those of a ledger. One that cannot be read has none."""
    try:
        with closing(sqlite3.connect(f"{file.absolute().as_uri()}?mode=ro", uri=True)) as db:
            names = {name for (name,) in db.execute("SELECT name FROM sqlite_master WHERE type = 'table'")}
    except sqlite3.Error:
        return False
    return bool(names) and launches.name not in names


def missing_columns(db: sa.Connection) -> list[str]:
    """Return the tables, and the columns of the others as TABLE.COLUMN, that a database does not have."""
    read = sa.inspect(db).get_multi_columns(filter_names=[*metadata.tables])
    found = {name: {column["name"] for column in columns} for (_, name), columns in read.items()}
    tables = metadata.tables
    return [
        *(name for name in tables if name not in found),
        *(
            str(each)
            for name in tables
            if name in found
            for each in tables[name].c
            if each.name not in found[name]
        ),
    ]


def made_by_newer(revision: str) -> str:
    """Return the error of a ledger whose tables have a revision that this version of Sendoff does not know."""
    return (
        f"this ledger was made by a newer Sendoff (its tables have revision {revision}; this version knows up to "
        f"{max(known_revisions())}). Use that version, or restore the backup from before the upgrade. "
        "If another application uses this database, give the ledger a database of its own"
    )
