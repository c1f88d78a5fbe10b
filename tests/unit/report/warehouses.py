"""Warehouses to write results to."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import duckdb
import pytest
import sqlalchemy as sa

KINDS = ["sqlite", "duckdb", "postgresql", "sqlite engine", "postgresql engine"]


@contextmanager
def new_warehouse(request: pytest.FixtureRequest, folder: Path, postgres_url: str) -> Iterator[Any]:
    """Make a warehouse of the kind that is the request's parameter, and provide its URL or engine."""
    backend, _, is_engine = request.param.partition(" ")
    if backend == "postgresql":
        url = request.getfixturevalue(postgres_url)
    elif backend == "sqlite":
        url = f"sqlite:///{folder / 'shop.db'}"
        sqlite3.connect(folder / "shop.db").execute("CREATE TABLE t (x)").connection.close()
    else:
        url = f"duckdb:///{folder / 'shop.duckdb'}"
        duckdb.connect(str(folder / "shop.duckdb")).close()
    if not is_engine:
        yield url
        return
    engine = sa.create_engine(url)
    yield engine
    engine.dispose()


def asked(source: Any, query: str) -> list[tuple[Any, ...]]:
    """Return the rows of a statement, as the owner of the warehouse sees them."""
    if str(source).startswith("duckdb"):
        with closing(duckdb.connect(str(source).removeprefix("duckdb:///"))) as connection:
            return connection.execute(query).fetchall()
    engine = sa.create_engine(source) if isinstance(source, str) else source
    with engine.begin() as db:
        rows = db.execute(sa.text(query))
        found = [tuple(row) for row in rows] if rows.returns_rows else []
    engine.dispose()
    return found
