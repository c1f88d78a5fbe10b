"""Replace the rows of a launch in tables of a warehouse, in one transaction: all rows in all tables, or none.

.. code-block:: text

    postgresql, sqlite ... ADBC's bulk ingest
    duckdb ............... DuckDB's own Arrow reader
    engine ............... INSERTs of some rows at a time; in one transaction if the database has transactions

A table is created if it does not exist. Its primary key begins with the launch, so that two writers at the same time
cannot insert a row twice.
"""

from __future__ import annotations

import importlib
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack, closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import sqlalchemy as sa
from sqlalchemy.dialects import mysql, postgresql, sqlite
from sqlalchemy.schema import CreateTable

from sendoff.errors import ConflictError, QueryError, SendoffError, SettingsError
from sendoff.warehouse import (
    Query,
    Source,
    adbc_driver,
    address_of,
    attempt,
    is_sqlite_file,
    open_connection,
    writing_engine,
)

_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,62}", re.ASCII)
_ROWS_AT_ONCE = 5_000
_POSTGRESQL: sa.Dialect = postgresql.dialect()  # type: ignore[no-untyped-call]
_SQLITE: sa.Dialect = sqlite.dialect()
_TIME = pa.timestamp("us", "UTC")
_NO_RIGHTS = ("42501", "3F000", "25006")  # SQLSTATE: no privilege, no such schema, a read-only transaction
_OTHER_WRITER = (
    "23505",
    "40001",
    "40P01",
)  # SQLSTATE: the key exists already, serialization failure, deadlock


@dataclass(frozen=True, slots=True)
class NewRows:
    """The new rows of a launch in one table. The table has a column ``launch_key``, and the columns of ``schema``."""

    table: sa.Table
    schema: pa.Schema
    batches: Callable[[], Iterator[pa.RecordBatch]]


def table_name(name: str) -> tuple[str | None, str]:
    """Split ``NAME`` or ``SCHEMA.NAME`` into schema and name. Raise SettingsError if it is neither."""
    parts = name.split(".")
    if len(parts) > 2 or not all(map(_NAME.fullmatch, parts)):
        raise SettingsError(
            f"{name!r} is not a valid table name. Use NAME or SCHEMA.NAME with letters, digits and _, at most 63 each."
        )
    return (parts[0] if len(parts) == 2 else None), parts[-1]


def sql_column(column: pa.Field, longest: int | None = None, *, is_key: bool = False) -> sa.Column[Any]:
    """Return the column of a table for a column of Arrow.

    ``longest``: the number of characters, for databases that need a limit for text in a key.
    """
    type_ = _sql_type(column.type, longest)
    return sa.Column(column.name, type_, primary_key=is_key, autoincrement=False, nullable=column.nullable)


def _sql_type(type_: pa.DataType, longest: int | None) -> sa.types.TypeEngine[Any]:
    if pa.types.is_timestamp(type_):
        return sa.DateTime(timezone=True)
    if pa.types.is_boolean(type_):
        return sa.Boolean()
    if pa.types.is_floating(type_):
        return sa.Double()
    if pa.types.is_integer(type_):
        return sa.BigInteger() if type_ == pa.int64() else sa.Integer()
    unlimited = sa.Text()
    if longest is None:
        return unlimited
    # Elsewhere, identifiers that differ in case or accents would be one.
    exact = mysql.VARCHAR(longest, charset="utf8mb4", collation="utf8mb4_bin")
    return unlimited.with_variant(exact, "mysql", "mariadb").with_variant(
        sa.String(longest), "mssql", "oracle"
    )


def replace_rows(source: Source, launch_key: str, parts: Sequence[NewRows], *, known: str = "") -> None:
    """Replace the rows of a launch in tables of a warehouse.

    ``known``: words that an error may quote, such as the names of columns. Raise SettingsError if the warehouse cannot
    be written to, or if the user lacks rights there; the message has the statements that grant them. Raise
    ConflictError if another process writes the same launch, QueryError if a table lacks columns, or with the database's
    message otherwise, and WarehouseUnavailableError.
    """
    url = address_of(source)
    names = " ".join(part.table.fullname for part in parts)
    work = _Work(Query(f"{names} {known}", {}, 1, url), launch_key, parts)
    way = _way(source, url)
    try:
        with ExitStack() as stack:
            way(work, source, stack)
        return
    except QueryError as error:
        found = work.problem_with_rows or _explained(error, work)
    raise found


class _Work:
    """What a way of writing needs, and what became of it.

    ``problem_with_rows``: the error that the rows themselves raised, which drivers would hide in one of their own.
    ``state``: the SQLSTATE of the database's error.
    """

    def __init__(self, query: Query, launch_key: str, parts: Sequence[NewRows]) -> None:
        self.query = query
        self.launch_key = launch_key
        self.parts = parts
        self.problem_with_rows: SendoffError | None = None
        self.state: str | None = None

    def reader(self, part: NewRows) -> pa.RecordBatchReader:
        return pa.RecordBatchReader.from_batches(part.schema, self._batches(part))

    def _batches(self, part: NewRows) -> Iterator[pa.RecordBatch]:
        try:
            yield from part.batches()
        except SendoffError as error:
            self.problem_with_rows = error
            raise

    def attempt(self, step: Callable[[], None], *further: type[Exception]) -> None:
        def noted() -> None:
            try:
                step()
            except Exception as error:
                of_driver = getattr(error, "orig", None) or error
                self.state = getattr(of_driver, "sqlstate", None) or getattr(of_driver, "pgcode", None)
                raise

        attempt(noted, self.query, *further)

    def statements(self, table: sa.Table, dialect: sa.Dialect) -> tuple[str, str, str]:
        """Return statements that create a table if there is none, show its columns, and delete the launch's rows."""
        gone = sa.delete(table).where(table.c.launch_key == self.launch_key)
        literal = gone.compile(dialect=dialect, compile_kwargs={"literal_binds": True})
        made, shown = CreateTable(table, if_not_exists=True), _columns(table)
        return str(made.compile(dialect=dialect)), str(shown.compile(dialect=dialect)), str(literal)


def _columns(table: sa.Table) -> sa.Select[Any]:
    """Return a query that has the columns of the table in the warehouse, and no rows."""
    return sa.select(sa.text("*")).select_from(table).where(sa.false())


def _check_columns(table: sa.Table, names: Iterable[str]) -> None:
    """Raise QueryError if a table with these columns was made for something else, or by an earlier version."""
    found = {name.lower() for name in names}
    missing = [column.name for column in table.columns if column.name not in found]
    if missing:
        noun = "column" if len(missing) == 1 else "columns"
        raise QueryError(
            f"the table {table.fullname} exists already and lacks the {noun} {', '.join(missing)}. Use another table "
            "or schema, or drop this table if nothing needs it. Its rows are unchanged"
        )


def _explained(error: QueryError, work: _Work) -> SendoffError:
    if work.state in _OTHER_WRITER:
        return ConflictError(
            f"Another process writes the rows of launch {work.launch_key} to the warehouse. Try again."
        )
    if work.state not in _NO_RIGHTS:
        return error
    tables = [part.table for part in work.parts]
    names = ", ".join(table.fullname for table in tables)
    schema, role = tables[0].schema or "public", work.query.url.username or "the role"
    return SettingsError(
        f"The results cannot be written to the warehouse. {str(error)[:1].upper()}{str(error)[1:]}. Run these "
        f"statements as the owner of the database: CREATE SCHEMA IF NOT EXISTS {schema}; "
        f"GRANT USAGE, CREATE ON SCHEMA {schema} TO {role}. If another role owns the tables, also run: "
        f"GRANT SELECT, INSERT, DELETE ON {names} TO {role}"
    )


_Way = Callable[[_Work, Any, ExitStack], None]


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
        if backend not in ("snowflake", "clickhouse"):
            return _by_engine
    raise SettingsError(
        f"Sendoff cannot write to this warehouse ({backend}). Use PostgreSQL, SQLite, DuckDB, or a database that "
        "SQLAlchemy supports."
    )


def _by_adbc(work: _Work, _: Source, stack: ExitStack) -> None:
    query = work.query
    backend = query.url.get_backend_name()
    is_postgresql = backend == "postgresql"
    driver = adbc_driver(backend)
    assert driver is not None
    uri = query.url.set(drivername=backend).render_as_string(hide_password=False)
    if not is_postgresql:
        uri = _file(query.url, "SQLite")
    dialect = _POSTGRESQL if is_postgresql else _SQLITE
    connection = stack.enter_context(open_connection(lambda: driver.connect(uri), query))
    cursor = stack.enter_context(connection.cursor())

    def write() -> None:
        for part in work.parts:
            table = part.table
            create, show, delete = work.statements(table, dialect)
            # PostgreSQL asks for the right to create tables even if the table exists.
            if not is_postgresql or _is_missing(cursor, table):
                cursor.execute(create)
            cursor.execute(show)
            _check_columns(table, [column[0] for column in cursor.description])
            cursor.execute(delete)
            schema = {"db_schema_name" if is_postgresql else "catalog_name": table.schema}
            rows = work.reader(part) if is_postgresql else _with_texts(work.reader(part))
            cursor.adbc_ingest(table.name, rows, mode="append", **schema)
        connection.commit()

    work.attempt(write)


def _with_texts(rows: pa.RecordBatchReader) -> pa.RecordBatchReader:
    """Return rows with their times as texts in UTC, as SQLite compares them with ``:period_start``."""
    schema = pa.schema([each.with_type(pa.string()) if each.type == _TIME else each for each in rows.schema])

    def text(times: pa.Array) -> pa.Array:
        return pc.replace_substring(times.cast(pa.timestamp("us")).cast(pa.string()), ".000000", "")

    def batches() -> Iterator[pa.RecordBatch]:
        for batch in rows:
            columns = [text(column) if column.type == _TIME else column for column in batch.columns]
            yield pa.record_batch(columns, schema=schema)

    return pa.RecordBatchReader.from_batches(schema, batches())


def _is_missing(cursor: Any, table: sa.Table) -> bool:
    cursor.execute(f"SELECT to_regclass('{_POSTGRESQL.identifier_preparer.format_table(table)}') IS NULL")
    return bool(cursor.fetchone()[0])


def _by_duckdb(work: _Work, _: Source, stack: ExitStack) -> None:
    query, file = work.query, _file(work.query.url, "DuckDB")
    duckdb: Any = attempt(lambda: importlib.import_module("duckdb"), query)
    connection = stack.enter_context(closing(attempt(lambda: duckdb.connect(file), query, duckdb.Error)))

    def write() -> None:
        connection.execute("BEGIN")
        for part in work.parts:
            create, show, delete = work.statements(part.table, _POSTGRESQL)
            connection.execute(create)
            _check_columns(part.table, [column[0] for column in connection.execute(show).description])
            connection.execute(delete)
            name = _POSTGRESQL.identifier_preparer.format_table(part.table)
            columns = ", ".join(part.schema.names)
            connection.register("sendoff_rows", work.reader(part))
            connection.execute(f"INSERT INTO {name} ({columns}) SELECT {columns} FROM sendoff_rows")  # noqa: S608
        connection.execute("COMMIT")

    work.attempt(write, duckdb.Error)


def _by_engine(work: _Work, source: Source, stack: ExitStack) -> None:
    engine = source if isinstance(source, sa.Engine) else writing_engine(work.query, stack)

    def write() -> None:
        with engine.begin() as connection:
            for part in work.parts:  # before the first row: some databases commit when they create a table
                part.table.create(connection, checkfirst=True)
                _check_columns(part.table, connection.execute(_columns(part.table)).keys())
            for part in work.parts:
                connection.execute(sa.delete(part.table).where(part.table.c.launch_key == work.launch_key))
                for batch in work.reader(part):
                    for start in range(0, batch.num_rows, _ROWS_AT_ONCE):
                        some = batch.slice(start, _ROWS_AT_ONCE).to_pylist()
                        connection.execute(sa.insert(part.table), some)

    work.attempt(write)


def _file(url: sa.URL, kind: str) -> str:
    file = url.database or ":memory:"
    if not Path(file).is_file():
        raise QueryError(f"There is no {kind} database at {file}. Create it, or correct the path.")
    return file
