"""Write verdicts to a table of a warehouse. All rows of the launch are replaced, or none.

.. code-block:: text

    postgresql, sqlite ... ADBC's bulk ingest, in one transaction
    duckdb ............... DuckDB's own Arrow reader, in one transaction
    engine ............... INSERTs of some rows at a time, in one transaction if the database has transactions

The table is created if it does not exist. Its primary key is the launch and the identifier, so that two writers at the
same time cannot insert a person twice.
"""

from __future__ import annotations

import importlib
import re
from collections.abc import Callable, Sequence
from contextlib import ExitStack, closing
from pathlib import Path
from typing import Any

import pyarrow as pa
import sqlalchemy as sa
from sqlalchemy.dialects import postgresql, sqlite
from sqlalchemy.schema import CreateTable

from sendoff.errors import QueryError, SettingsError
from sendoff.report.export import VerdictRows
from sendoff.warehouse import Query, Source, adbc_driver, address_of, attempt, is_sqlite_file, open_connection

_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,62}", re.ASCII)
_ROWS_AT_ONCE = 5_000
_POSTGRESQL: sa.Dialect = postgresql.dialect()  # type: ignore[no-untyped-call]
_SQLITE: sa.Dialect = sqlite.dialect()
_KEY_LENGTH = 64
_LONGEST_TEXT = 512  # of an identifier, for databases that need a limit for text in a key


def write_table(verdicts: VerdictRows, source: Source, table: str, *, only: str | None = None) -> int:
    """Replace the rows of a launch in a table and return the number of new rows.

    ``table`` is ``name`` or ``schema.name``. ``only``: write the rows of this verdict alone. Raise SettingsError for
    an invalid table name or a warehouse that cannot be written to, QueryError with the database's message, and
    WarehouseUnavailableError.
    """
    url = address_of(source)
    made = _table(table, verdicts)
    rows = _CountedRows(verdicts, only)
    query = Query(f"{made.fullname} {verdicts.launch.identified_by}", {}, 1, url)
    with ExitStack() as stack:
        _way(source, url)(query, source, made, rows, stack)
    return rows.count


class _CountedRows:
    """Rows that are counted while they are read, with dictionaries decoded to text."""

    def __init__(self, verdicts: VerdictRows, only: str | None) -> None:
        self.launch_key = verdicts.launch.launch_key
        self.schema = pa.schema([_plain(each) for each in verdicts.schema])
        self.count = 0
        self._verdicts, self._only = verdicts, only

    def reader(self) -> pa.RecordBatchReader:
        return pa.RecordBatchReader.from_batches(self.schema, self._batches())

    def _batches(self) -> Any:
        for batch in self._verdicts.batches(self._only):
            self.count += batch.num_rows
            yield batch.cast(self.schema)


def _plain(column: pa.Field) -> pa.Field:
    shared = pa.types.is_dictionary(column.type)
    return pa.field(column.name, pa.string() if shared else column.type)


_Way = Callable[[Query, Any, sa.Table, _CountedRows, ExitStack], None]


def _way(source: Source, url: sa.URL) -> _Way:
    backend = url.get_backend_name()
    if isinstance(source, sa.Engine):
        return _by_engine
    if isinstance(source, str):
        if backend == "duckdb":
            return _by_duckdb
        if backend == "postgresql" and adbc_driver("postgresql"):
            return _by_adbc
        if is_sqlite_file(url) and adbc_driver("sqlite"):
            return _by_adbc
        if backend != "snowflake":
            return _by_engine
    raise SettingsError(
        f"Verdicts cannot be written to this warehouse ({backend}). Use PostgreSQL, SQLite, DuckDB, or a database that "
        "SQLAlchemy supports."
    )


def _table(name: str, verdicts: VerdictRows) -> sa.Table:
    parts = name.split(".")
    if len(parts) > 2 or not all(map(_NAME.fullmatch, parts)):
        raise SettingsError(
            f"{name!r} is not a valid table name. Use NAME or SCHEMA.NAME with letters, digits and _, at most 63 each."
        )
    schema = parts[0] if len(parts) == 2 else None
    return sa.Table(
        parts[-1], sa.MetaData(), *(_sql_column(each, verdicts) for each in verdicts.schema), schema=schema
    )


def _sql_column(column: pa.Field, verdicts: VerdictRows) -> sa.Column[Any]:
    is_key = column.name in ("launch_key", verdicts.launch.identified_by)
    return sa.Column(
        column.name,
        _sql_type(
            column.type, _LONGEST_TEXT if column.name == verdicts.launch.identified_by else _KEY_LENGTH
        ),
        primary_key=is_key,
        autoincrement=False,
        nullable=column.nullable,
    )


def _sql_type(type_: pa.DataType, length: int) -> sa.types.TypeEngine[Any]:
    if pa.types.is_timestamp(type_):
        return sa.DateTime(timezone=True)
    if pa.types.is_boolean(type_):
        return sa.Boolean()
    if pa.types.is_integer(type_):
        return sa.BigInteger() if type_ == pa.int64() else sa.Integer()
    unlimited = sa.Text()
    return unlimited.with_variant(sa.String(length), "mysql", "mariadb", "mssql", "oracle")


def _statements(table: sa.Table, launch_key: str, dialect: sa.Dialect) -> Sequence[str]:
    gone = sa.delete(table).where(table.c.launch_key == launch_key)
    literal = gone.compile(dialect=dialect, compile_kwargs={"literal_binds": True})
    return str(CreateTable(table, if_not_exists=True).compile(dialect=dialect)), str(literal)


def _by_adbc(query: Query, _: Source, table: sa.Table, rows: _CountedRows, stack: ExitStack) -> None:
    backend = query.url.get_backend_name()
    driver = adbc_driver(backend)
    assert driver is not None
    uri = query.url.set(drivername=backend).render_as_string(hide_password=False)
    if backend == "sqlite":
        uri = _file(query.url, "SQLite")
    dialect: sa.Dialect = _POSTGRESQL if backend == "postgresql" else _SQLITE
    connection = stack.enter_context(open_connection(lambda: driver.connect(uri), query))
    cursor = stack.enter_context(connection.cursor())

    def write() -> None:
        for statement in _statements(table, rows.launch_key, dialect):
            cursor.execute(statement)
        cursor.adbc_ingest(table.name, rows.reader(), mode="append", db_schema_name=table.schema)
        connection.commit()

    attempt(write, query)


def _by_duckdb(query: Query, _: Source, table: sa.Table, rows: _CountedRows, stack: ExitStack) -> None:
    file = _file(query.url, "DuckDB")
    duckdb: Any = attempt(lambda: importlib.import_module("duckdb"), query)
    connection = stack.enter_context(closing(attempt(lambda: duckdb.connect(file), query, duckdb.Error)))
    columns = ", ".join(rows.schema.names)

    def write() -> None:
        connection.execute("BEGIN")
        for statement in _statements(table, rows.launch_key, _POSTGRESQL):
            connection.execute(statement)
        connection.register("sendoff_verdicts", rows.reader())
        connection.execute(f"INSERT INTO {table.fullname} ({columns}) SELECT {columns} FROM sendoff_verdicts")  # noqa: S608
        connection.execute("COMMIT")

    attempt(write, query, duckdb.Error)


def _by_engine(query: Query, source: Source, table: sa.Table, rows: _CountedRows, stack: ExitStack) -> None:
    engine = source if isinstance(source, sa.Engine) else _engine(query, stack)

    def write() -> None:
        with engine.begin() as connection:
            table.create(connection, checkfirst=True)
            connection.execute(sa.delete(table).where(table.c.launch_key == rows.launch_key))
            for batch in rows.reader():
                for start in range(0, batch.num_rows, _ROWS_AT_ONCE):
                    some = batch.slice(start, _ROWS_AT_ONCE).to_pylist()
                    connection.execute(sa.insert(table), some)

    attempt(write, query)


def _engine(query: Query, stack: ExitStack) -> sa.Engine:
    url = query.url
    if url.drivername == "postgresql":
        url = url.set(drivername="postgresql+psycopg")
    engine = attempt(lambda: sa.create_engine(url, hide_parameters=True), query)
    stack.callback(engine.dispose)
    return engine


def _file(url: sa.URL, kind: str) -> str:
    file = url.database or ":memory:"
    if not Path(file).is_file():
        raise QueryError(f"There is no {kind} database at {file}.")
    return file
