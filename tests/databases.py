"""PostgreSQL databases for one test, one module or one process."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from uuid import uuid4

from sqlalchemy import Engine, create_engine, make_url, text


@contextmanager
def new_database(server: str, template: str | None = None) -> Iterator[str]:
    """Create a database, empty or a copy of the one at the URL ``template``, and drop it at the end."""
    name = f"sendoff_test_{uuid4().hex[:12]}"
    copied = make_url(template).database if template else "template0"
    with connected(server) as engine, engine.connect() as db:
        db.execute(text(f"CREATE DATABASE {name} TEMPLATE {copied}"))
        db.execute(
            text(f"ALTER DATABASE {name} SET synchronous_commit = off")
        )  # no test simulates a power failure
        try:
            yield make_url(server).set(database=name).render_as_string(hide_password=False)
        finally:
            db.execute(text(f"DROP DATABASE {name} WITH (FORCE)"))


@contextmanager
def connected(url: str) -> Iterator[Engine]:
    """Provide an engine for statements outside of transactions, and close its connections at the end."""
    engine = create_engine(url, isolation_level="AUTOCOMMIT", connect_args={"connect_timeout": 60})
    try:
        yield engine
    finally:
        engine.dispose()
