"""Write verdicts to a table of a warehouse, which holds one kind of identifier."""

from __future__ import annotations

import pyarrow as pa
import sqlalchemy as sa

from sendoff.report.export import VerdictRows
from sendoff.report.table_writer import NewRows, replace_rows, sql_column, table_name
from sendoff.warehouse import Source

_KEY_LENGTH = 64
LONGEST_IDENTIFIER = 512
"""The longest text that identifies a person, for databases that need a limit for text in a key."""


def write_table(verdicts: VerdictRows, source: Source, table: str) -> int:
    """Replace the rows of a launch in a table and return the number of new rows.

    ``table`` is ``name`` or ``schema.name``. Raise SettingsError for an invalid table name, and the errors of
    :func:`sendoff.report.table_writer.replace_rows`.
    """
    schema, name = table_name(table)
    identified_by = verdicts.launch.identified_by
    plain = pa.schema([_plain(each) for each in verdicts.schema])
    columns = [
        sql_column(
            each,
            LONGEST_IDENTIFIER if each.name == identified_by else _KEY_LENGTH,
            is_key=each.name in ("launch_key", identified_by),
        )
        for each in plain
    ]
    made = sa.Table(name, sa.MetaData(), *columns, schema=schema)
    rows = NewRows(made, plain, lambda: (batch.cast(plain) for batch in verdicts.batches()))
    replace_rows(source, verdicts.launch.launch_key, [rows], known=identified_by)
    return verdicts.read.total()


def _plain(column: pa.Field) -> pa.Field:
    """Return a column with its dictionary decoded to text."""
    type_ = pa.string() if pa.types.is_dictionary(column.type) else column.type
    return pa.field(column.name, type_, nullable=column.nullable)
