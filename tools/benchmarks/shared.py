"""What several benchmarks use: databases on PostgreSQL and SQLite, and the memory of a process."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from uuid import uuid4

import sqlalchemy as sa

SERVER = os.environ.get("SENDOFF_TEST_POSTGRES_URL", "postgresql+psycopg://postgres@127.0.0.1:5432/postgres")


@contextmanager
def postgres_database(template: str = "template0") -> Iterator[str]:
    """Yield the URL of a new database, optionally a copy of another, and drop it at the end."""
    name = f"sendoff_bench_{uuid4().hex[:12]}"
    engine = sa.create_engine(
        SERVER, isolation_level="AUTOCOMMIT", poolclass=sa.NullPool, connect_args={"connect_timeout": 3}
    )
    with engine.connect() as db:
        db.execute(sa.text(f"CREATE DATABASE {name} TEMPLATE {template}"))
    try:
        url = sa.make_url(SERVER).set(drivername="postgresql+psycopg", database=name)
        yield url.render_as_string(hide_password=False)
    finally:
        with engine.connect() as db:
            db.execute(sa.text(f"DROP DATABASE {name} WITH (FORCE)"))


@contextmanager
def postgres_ledger() -> Iterator[str]:
    with postgres_database() as url:
        yield migrated(url)


@contextmanager
def sqlite_ledger() -> Iterator[str]:
    with tempfile.TemporaryDirectory() as folder:
        yield migrated(f"sqlite:///{Path(folder) / 'ledger.db'}")


def migrated(url: str) -> str:
    from sendoff.ledger import Ledger  # not above: it would count as memory of the readers that are compared

    ledger = Ledger(url)
    ledger.migrate()
    ledger.close()
    return url


def peak_memory(process: int | str = "self") -> float:
    """Return the peak memory of a process in MiB. On Linux, ru_maxrss would begin with the parent's."""
    status = Path(f"/proc/{process}/status").read_text()
    return int(status.partition("VmHWM:")[2].split()[0]) / 1_024
