"""Generate docs/reference/ledger.md and docs/pictures/ledger.svg from SQLAlchemy's metadata of the ledger."""

from __future__ import annotations

from sqlalchemy import CheckConstraint, Column, Table
from sqlalchemy.dialects import postgresql

from sendoff.ledger.storage import schema
from sendoff.ledger.storage.schema import UtcDateTime, metadata
from tools.reference.drawing import Box, drawn
from tools.reference.markdown import code, prose, table

_HEAD = """\
# The ledger's tables

The tables are the same on SQLite and PostgreSQL. The types shown are those of PostgreSQL, and a *moment* is an aware
time in UTC. `sendoff migrate` creates the tables, and `sendoff grants` prints the rights that each process needs. Only
`sendoff.ledger` reads or writes them. Take figures from `sendoff report --json` or `sendoff metrics`, because tables
change between versions.

![The tables and their foreign keys](../pictures/ledger.svg)

An arrow points from a table to the one that its foreign key refers to. `post_backs`, `parked_post_backs`,
`dispatch_totals` and `open_hours` have no foreign keys: a post-back is kept even if the ledger does not have its
dispatch. `decisions` has none either, because a decision may apply to all launches.
"""
_DIALECT = postgresql.dialect()  # type: ignore[no-untyped-call]


def page() -> str:
    """Write the page."""
    return "\n\n".join([_HEAD.rstrip(), _introduction(), *map(_section, every_table())]) + "\n"


def picture() -> str:
    """Draw the tables with their foreign keys."""
    boxes = [Box(each.name, tuple(column.name for column in each.primary_key)) for each in every_table()]
    keys = {each.name: {key.column.table.name for key in each.foreign_keys} for each in every_table()}
    return drawn(
        boxes, keys, "The tables of the ledger", "Each table with its primary key; arrows are foreign keys."
    )


def every_table() -> list[Table]:
    """Return the tables in the order of their module."""
    return list(metadata.tables.values())


def _introduction() -> str:
    return prose((schema.__doc__ or "").rpartition("\n\n")[2])


def _section(each: Table) -> str:
    parts = [f"## {each.name}"]
    if each.comment:
        parts.append(f"{each.comment[0].upper()}{each.comment[1:]}.")
    parts.append(table(["Column", "Type", "Null", "Key", "Meaning"], map(_row, each.columns)))
    parts += [line for line in (_indexes(each), _checks(each)) if line]
    return "\n\n".join(parts)


def _row(column: Column[object]) -> list[str]:
    kind = "moment" if isinstance(column.type, UtcDateTime) else column.type.compile(dialect=_DIALECT)
    keys = ["primary"] * column.primary_key
    keys += [f"[{key.column.table.name}](#{key.column.table.name})" for key in column.foreign_keys]
    return [code(column.name), kind, "yes" if column.nullable else "", ", ".join(keys), column.comment or ""]


def _indexes(each: Table) -> str:
    shown = []
    for index in sorted(each.indexes, key=lambda index: str(index.name)):
        where = index.dialect_options["postgresql"]["where"]
        columns = ", ".join(code(column.name) for column in index.columns)
        shown.append(f"{columns} where {code(where)}" if where is not None else columns)
    return f"Indexes: {'; '.join(shown)}." if shown else ""


def _checks(each: Table) -> str:
    found = [str(rule.sqltext) for rule in each.constraints if isinstance(rule, CheckConstraint)]
    return f"Checked by the database: {'; '.join(map(code, sorted(found)))}." if found else ""
