"""Generate docs/reference/result-tables.md from the tables of results."""

from __future__ import annotations

from sqlalchemy.dialects import postgresql

from sendoff.report import RESULT_TABLES
from sendoff.report.result_tables import ResultColumn, ResultTable
from sendoff.report.table_writer import sql_column
from tools.reference.markdown import code, table

_HEAD = """\
# Result tables

A campaign with `report.tables` [writes its results](../how-to/results-in-the-warehouse.md) into these tables of the
warehouse. The types are those of PostgreSQL. `sendoff schema --dbt SCHEMA` prints the same columns as a source file for
dbt.
"""
_DIALECT = postgresql.dialect()  # type: ignore[no-untyped-call]


def page() -> str:
    """Write the page."""
    return "\n\n".join([_HEAD.rstrip(), *map(_section, RESULT_TABLES)]) + "\n"


def _section(each: ResultTable) -> str:
    rows = [_row(column, each) for column in each.columns]
    return f"## {each.name}\n\n{each.description}.\n\n{table(['Column', 'Type', 'Null', 'Key', 'Meaning'], rows)}"


def _row(column: ResultColumn, of: ResultTable) -> list[str]:
    values = f": {', '.join(map(code, column.values))}" if column.values else ""
    return [
        code(column.name),
        sql_column(of.schema.field(column.name)).type.compile(dialect=_DIALECT).lower(),
        "yes" if column.is_optional else "",
        "yes" if column.is_key else "",
        column.description + values,
    ]
