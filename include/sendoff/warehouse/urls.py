"""URLs of warehouses, and a check whether their servers can be reached."""

from __future__ import annotations

import json
import re
import socket
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import quote, urlsplit
from urllib.request import getproxies

import sqlalchemy as sa

from sendoff.errors import QueryError

LIBPQ_TIMEOUTS = {
    "connect_timeout": "10",  # seconds, for each address of the server's name
    "tcp_user_timeout": "30000",  # milliseconds that sent data may stay unacknowledged
    "keepalives_idle": "15",  # seconds without traffic before the first probe
    "keepalives_interval": "5",  # seconds between probes
    "keepalives_count": "3",  # lost probes before the connection is closed
}
"""Options of libpq that detect a lost server within half a minute; the system's own limits are hours."""

CONNECT_SECONDS = 10
"""Time-out for opening a connection."""

# A password, which ends at the first @, and another @ before the options. They may begin inside the password.
_TWO_ATS = re.compile("[^:/]*://[^:/]*:[^@]*@(?:[^?]*|[^=]*)@")
_OF_LIBPQ = ("psycopg", "psycopg2")  # drivers that pass their options on to libpq, as the ADBC driver does
_SPELLINGS = {
    "postgres": "postgresql",
    "clickhousedb": "clickhouse",
}  # of Airflow, and of a SQLAlchemy dialect
_PORTS = {
    "postgresql": 5432,
    "redshift": 5439,
    "mysql": 3306,
    "mariadb": 3306,
    "mssql": 1433,
    "oracle": 1521,
    "trino": 8080,
    "databricks": 443,
}


@dataclass(frozen=True, slots=True)
class Fields:
    """The fields of a connection in Airflow."""

    host: str | None
    port: int | None
    login: str | None
    password: str | None = field(repr=False)
    schema: str | None
    extra: Mapping[str, Any] = field(repr=False)

    @property
    def filled_in(self) -> dict[str, Any]:
        """Return the extras that have a value. Airflow's form also stores others."""
        return {name: value for name, value in self.extra.items() if value not in (None, "")}

    def url(self, backend: str, options: Mapping[str, Any], **others: Any) -> sa.URL:
        """Return the URL of the connection with some options. ``others``: parts that differ from the fields."""
        own = {"username": self.login, "password": self.password, "host": self.host, "port": self.port}
        parts = {**own, "database": self.schema, **others}
        return sa.URL.create(backend, **parts, query={name: _text(value) for name, value in options.items()})

    def within(self, catalog: str | None) -> str | None:
        """Return a catalog with the schema of the connection, as the database of a URL."""
        return f"{catalog or ''}/{self.schema}" if self.schema else catalog


def _text(value: Any) -> str:
    """Return an extra of a connection as an option of a URL."""
    if isinstance(value, list):
        return ",".join(map(str, value))
    return json.dumps(value) if isinstance(value, dict | bool) else str(value)


def has_two_ats(text: str) -> bool:
    """Check whether a URL has an @ behind the one that ends its password.

    Errors would show the part between them, which may belong to the password, as the host.
    """
    return _TWO_ATS.match(text) is not None


def parse_url(text: str) -> sa.URL:
    """Parse a URL, and add time-outs for PostgreSQL. Raise QueryError if the text is not a URL."""
    if has_two_ats(text):
        raise QueryError("the warehouse's URL has more than one @; write an @ in its password as %40")
    try:
        url = sa.make_url(text)
    except (sa.exc.ArgumentError, ValueError):
        url = None
    if url is None:  # raised here, because the original error may contain the password
        raise QueryError("the warehouse needs a URL, such as postgresql://user@host/database")
    if usual := _SPELLINGS.get(url.get_backend_name()):
        url = url.set(drivername=usual)
    if url.get_backend_name() == "postgresql" and url.get_driver_name() in _OF_LIBPQ:
        url = url.update_query_dict({**LIBPQ_TIMEOUTS, **url.query})
    return url


def is_sqlite_file(url: sa.URL) -> bool:
    """Check whether a URL is just an SQLite file, without further options."""
    name = url.database or ":memory:"
    return url.get_backend_name() == "sqlite" and not url.query and not name.startswith((":", "file:"))


def is_plain(url: sa.URL) -> bool:
    """Check whether a URL names none of the drivers of SQLAlchemy, which it does after a plus sign."""
    return "+" not in url.drivername


def check_options(url: sa.URL, title: str, options: Collection[str]) -> None:
    """Raise QueryError if a URL has a parameter that is none of the options."""
    if unknown := sorted(url.query.keys() - set(options)):
        raise QueryError(f"the URL of {title} has {', '.join(unknown)}. Use {', '.join(options)}")


def json_option(url: sa.URL, title: str, name: str) -> dict[str, Any]:
    """Return the JSON object of an option, which may be missing. Raise QueryError if it is something else."""
    found = json_object(str(url.query.get(name, "{}")))
    if found is None:
        raise QueryError(f"{name} in the URL of {title} is not a JSON object")
    return found


def json_object(value: Any) -> dict[str, Any] | None:
    """Return a JSON object that is given itself or as text, or None for anything else."""
    try:
        found = json.loads(value) if isinstance(value, str) else value
    except ValueError:
        return None
    return found if isinstance(found, dict) else None


def read_only_uri(url: sa.URL) -> str:
    """Return the URI for SQLite to open a file read-only."""
    return f"file:{quote(url.database or '')}?mode=ro"


def is_silent(url: sa.URL) -> bool:
    """Check whether no server answers at a database's address; one that refuses the login does answer."""
    try:
        _knock(url)
    except OSError:
        return True
    except ValueError:  # an option of the URL is no port
        return False
    return False


def probe(url: sa.URL) -> None:
    """Raise OSError if no server answers, unless requests go through a proxy.

    For clients that would repeat their first request for many minutes.
    """
    if not {"https", "all"} & getproxies().keys():
        _knock(url)


def _knock(url: sa.URL) -> None:
    host, port = url.host, url.port or _PORTS.get(url.get_backend_name())
    if url.get_backend_name() == "snowflake":  # its URL has the account in place of the host
        host = str(url.query.get("host", f"{host}.snowflakecomputing.com"))
        port = int(str(url.query.get("port", 443)))
    if url.get_backend_name() == "bigquery":  # its URL has the project in place of the host
        endpoint = urlsplit(str(url.query.get("api_endpoint", "https://bigquery.googleapis.com")))
        host, port = endpoint.hostname, endpoint.port or 443
    if url.drivername == "clickhouse" and port is None:
        port = 8443 if url.query.get("secure") == "true" else 8123
    if host and port is not None and not host.startswith("/"):
        socket.create_connection((host, port), timeout=CONNECT_SECONDS).close()
