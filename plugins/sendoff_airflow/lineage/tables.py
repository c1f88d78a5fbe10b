"""Find the tables that a query reads, and name them by OpenLineage's conventions."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from airflow.sdk import Connection

TableName = tuple[str, str, str]
"""Database, schema and name of a table. Parts that the query does not name are empty."""

_PORTS = {"clickhouse": 8123, "postgres": 5432, "redshift": 5439}
_DIALECTS = {
    "postgresql": "postgres",
    "mssql": "tsql",
    "gcpbigquery": "bigquery",
    "google_cloud_platform": "bigquery",
}
_FILES = ("sqlite", "duckdb")
_WITH_PUBLIC = ("postgres", "redshift")
# A name of a table has two parts: the database is what others call the schema.
_WITHOUT_SCHEMAS = ("clickhouse",)


class UnknownTablesError(ValueError):
    """The tables of a query cannot be determined. The text says why, and quotes nothing of the query."""


@dataclass(frozen=True)
class Warehouse:
    """A database by OpenLineage's naming conventions."""

    namespace: str
    dialect: str
    database: str | None
    schema: str | None
    is_upper: bool = False

    def name_of(self, table: TableName) -> str:
        """Return the full name of a table of this database."""
        database, schema, name = table
        full = ".".join(filter(None, (database or self.database, schema or self.schema, name)))
        return full.upper() if self.is_upper else full


def warehouse_of(connection: Connection) -> Warehouse:
    """Return a database under the name that its provider uses, so that the lineage connects, or else a derived name."""
    return _as_its_provider_says(connection) or _as_its_connection_says(connection)


def tables_of(sql: str, dialect: str) -> list[TableName]:
    """Return the tables that a query reads, each as database, schema and name. Parts it does not name are empty.

    Raise UnknownTablesError if they cannot be determined. This uses sqlglot, because the provider's own parser misses
    the tables of a common table expression.
    """
    try:
        import sqlglot
        from sqlglot import exp
        from sqlglot.errors import SqlglotError
        from sqlglot.optimizer.scope import traverse_scope
    except ImportError:
        raise UnknownTablesError("its tables are not known: sqlglot is not installed") from None
    try:
        parsed = sqlglot.parse_one(sql, dialect=sqlglot.Dialect.get(dialect))
        sources = [source for scope in traverse_scope(parsed) for source in scope.sources.values()]
    except SqlglotError as error:
        places = getattr(error, "errors", None) or [{}]
        where = f" at line {places[0]['line']}, column {places[0]['col']}" if "line" in places[0] else ""
        raise UnknownTablesError(f"its tables are not known: the query could not be read{where}") from None
    if not isinstance(parsed, exp.Query):
        raise UnknownTablesError("its tables are not known: it is not a query")
    names = [(source.catalog, source.db, source.name) for source in sources if isinstance(source, exp.Table)]
    return sorted({name for name in names if name[-1]})  # a table function has no name


def _as_its_provider_says(connection: Connection) -> Warehouse | None:
    from sendoff_airflow.hooks.warehouse import sql_hook

    try:
        hook = sql_hook(connection)
        known, schema = hook.get_openlineage_database_info(connection), hook.get_openlineage_default_schema()
    except Exception:  # some hooks query their database for this, and raise whatever its driver raises
        return None
    if known is None:
        return None
    return Warehouse(
        f"{known.scheme}://{known.authority}" if known.authority else known.scheme,
        hook.get_openlineage_database_dialect(connection),
        known.database,
        schema,
        known.is_uppercase_names,
    )


def _as_its_connection_says(connection: Connection) -> Warehouse:
    kind = connection.conn_type or "database"
    scheme = "postgres" if kind == "postgresql" else kind
    dialect = _DIALECTS.get(kind, kind)
    if scheme in _FILES:
        file = Path(connection.host or connection.schema or scheme).name
        return Warehouse(f"{scheme}://{file}", dialect, None, "main")
    if scheme == "snowflake":
        return _snowflake(connection)
    if scheme in _WITHOUT_SCHEMAS:
        database, schema = None, connection.schema
    else:
        database, schema = connection.schema, "public" if scheme in _WITH_PUBLIC else None
    port = connection.port or _PORTS.get(scheme)
    host = connection.host or connection.conn_id
    return Warehouse(
        f"{scheme}://{host}:{port}" if port else f"{scheme}://{host}",
        dialect,
        database,
        schema,
    )


def _snowflake(connection: Connection) -> Warehouse:
    from sendoff_airflow.hooks.connections import extras

    known = extras(connection)
    account = known.get("account") or connection.host or connection.conn_id
    database, schema = known.get("database"), connection.schema or "PUBLIC"
    return Warehouse(f"snowflake://{account}", "snowflake", database, schema, is_upper=True)
