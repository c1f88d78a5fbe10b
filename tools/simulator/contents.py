"""Which tables of a ledger name a person: every value of every table is decoded and searched."""

from __future__ import annotations

import sqlite3
from dataclasses import astuple
from typing import Any

from sendoff.audience import read_template_values
from sendoff.audience.identifiers import from_bytes
from sendoff.ledger.post_backs.blocks import BlockSelection
from sendoff.ledger.storage.schema import metadata

_SETS = {"identifiers", "delivered", "engaged", "suspects"}


def tables_naming(db: sqlite3.Connection, person: int) -> list[str]:
    """Return the names of the tables that name a person."""
    return [table for table in sorted(metadata.tables) if _names(db, table, person)]


def _names(db: sqlite3.Connection, table: str, person: int) -> bool:
    rows = db.execute(f"SELECT * FROM {table}")  # noqa: S608 (the name of a table of ours)
    columns = [column[0] for column in rows.description]
    return any(
        _is_named(value, column, person)
        for row in (dict(zip(columns, values, strict=True)) for values in rows)
        for column, value in (_post_backs(row) if table == "post_backs" else row.items())
    )


def _post_backs(row: dict[str, Any]) -> list[tuple[str, Any]]:
    part = BlockSelection(row["receiver"], row["first"], row["block"], None)
    return [("", value) for post_back in part.post_backs() for value in astuple(post_back)]


def _is_named(value: Any, column: str, person: int) -> bool:
    if isinstance(value, bytes) and column in _SETS:
        return person in set(map(int, from_bytes("integer", value)))
    if isinstance(value, bytes) and column == "template_values":
        return any(str(person) in own.values() for own in read_template_values(value))
    if isinstance(value, bytes):
        return str(person).encode() in value
    return str(person) in str(value)
