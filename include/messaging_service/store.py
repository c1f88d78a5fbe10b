"""The service's tables, and the transactions that read and write them.

Moments are seconds since 1970, as floating point. SQLite in WAL mode unless the URL says otherwise.
"""

from __future__ import annotations

import os
import sqlite3
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from sqlalchemy import (
    JSON,
    BigInteger,
    Boolean,
    Column,
    Connection,
    Float,
    ForeignKey,
    Index,
    Integer,
    LargeBinary,
    MetaData,
    Table,
    Text,
    create_engine,
    event,
    func,
    select,
)
from sqlalchemy.dialects import postgresql, sqlite
from sqlalchemy.engine import URL, make_url
from sqlalchemy.exc import OperationalError

METADATA = MetaData()
_LONGEST_WAIT = 20.0
_TABLES_ARE_MADE = 7_365_110
# SQLite counts up only what it calls INTEGER, which holds 64 bits there.
_Id = BigInteger().with_variant(Integer, "sqlite")

apps = Table(
    "apps",
    METADATA,
    Column("id", _Id, primary_key=True),
    Column("name", Text, nullable=False, unique=True),
    Column("token", Text, nullable=False, unique=True),
    Column("time_zone", Text, nullable=False),
    Column("created_at", Float, nullable=False),
)

client_ids = Table(
    "client_ids",
    METADATA,
    Column("client_id", Text, primary_key=True),
    Column("name", Text, nullable=False),
    Column("type", Text, nullable=False),
    Column("secret_digest", Text),
    Column("key", Text),
    Column("scopes", JSON, nullable=False),
    Column("expires_at", Float),
    Column("created_at", Float, nullable=False),
)

access_tokens = Table(
    "access_tokens",
    METADATA,
    Column("digest", Text, primary_key=True),
    Column("client_id", Text, ForeignKey("client_ids.client_id"), nullable=False),
    Column("expires_at", Float, nullable=False),
)

spent_assertions = Table(
    "spent_assertions",
    METADATA,
    Column("client_id", Text, ForeignKey("client_ids.client_id"), primary_key=True),
    Column("jti", Text, primary_key=True),
)

devices = Table(
    "devices",
    METADATA,
    Column("device_id", BigInteger, primary_key=True, autoincrement=False),
    Column("platform", Text, nullable=False),
    Column("profile_id", BigInteger),
    Column("user_id", Text),
    Column("language", Text),
    Column("time_zone", Text),
    Column("external_id", Text, index=True),
    Column("token", Text, index=True),
    Column("uuid", Text, index=True),
    Column("email", Text, index=True),
    Column("mobile_number", Text),
    Column("attributes", JSON, nullable=False),
    Index("devices_user", "user_id"),
    Index("devices_profile", "profile_id"),
)

campaigns = Table(
    "campaigns",
    METADATA,
    Column("id", _Id, primary_key=True),
    Column("app_id", _Id, ForeignKey("apps.id")),
    Column("client_id", Text, ForeignKey("client_ids.client_id")),
    Column("title", Text, nullable=False),
    Column("trigger", Integer, nullable=False),
    Column("send_type", Integer, nullable=False),
    Column("content", LargeBinary, nullable=False),
    Column("warnings", JSON, nullable=False),
    Column("created_at", Float, nullable=False),
    Column("stopped_at", Float),
    sqlite_autoincrement=True,  # an id is never used again
)

# One sending of a campaign: a campaign has one at its moment, a template one for each execution.
runs = Table(
    "runs",
    METADATA,
    Column("id", _Id, primary_key=True),
    Column("campaign_id", _Id, ForeignKey("campaigns.id"), nullable=False, index=True),
    Column("number", Integer, nullable=False),
    Column("overrides", LargeBinary),
    Column("webhook_delivery", Text),
    Column("webhook_open", Text),
    Column("due_at", Float, nullable=False),
    Column("state", Text, nullable=False),
    Column("reached", BigInteger, nullable=False, default=0),
    Column("claimed_by", Text),
    Column("unknown", JSON),
    Index("runs_due", "state", "due_at"),
    sqlite_autoincrement=True,  # an id is never used again
)

sends = Table(
    "sends",
    METADATA,
    Column("id", _Id, primary_key=True),
    Column("campaign_id", _Id, nullable=False),
    Column("run_id", _Id, nullable=False),
    Column("device_id", BigInteger, nullable=False),
    Column("platform", Text, nullable=False),
    Column("message_type", Integer),
    Column("sent_at", Float, nullable=False),
    Column("delivered_at", Float),
    Column("opened_at", Float),
    Column("removed_at", Float),  # when an inbox message leaves the inbox
    Column("error", Text),
    Index("sends_campaign", "campaign_id", "device_id"),
    Index("sends_device", "device_id"),
)

post_backs = Table(
    "post_backs",
    METADATA,
    Column("id", _Id, primary_key=True),
    Column("run_id", _Id, nullable=False),
    Column("send_id", _Id, nullable=False),
    Column("kind", Text, nullable=False),
    Column("body", LargeBinary, nullable=False),
    Column("state", Text, nullable=False),
    Column("due_at", Float, nullable=False),
    Column("attempts", Integer, nullable=False, default=0),
    Column("answer", Text),
    Column("claimed_by", Text),
    Column("faults", JSON),
    Index("post_backs_due", "state", "due_at"),
    Index("post_backs_run", "run_id"),
)

requests = Table(
    "requests",
    METADATA,
    Column("id", _Id, primary_key=True),
    Column("received_at", Float, nullable=False),
    Column("method", Text, nullable=False),
    Column("path", Text, nullable=False),
    Column("status", Integer, nullable=False),
    Column("client_id", Text),
    Column("campaign_id", _Id),
    Column("body", JSON),
    Column("answer", JSON),
    Column("warnings", JSON, nullable=False),
    Column("took", Float, nullable=False),
    Column("fault", Text),
    Index("requests_campaign", "campaign_id"),
)

# Forms of the pages that were sent, so that reloading an answer does nothing.
spent_forms = Table(
    "spent_forms",
    METADATA,
    Column("form", Text, primary_key=True),
    Column("spent_at", Float, nullable=False),
)

# The deliveries processes that live, and when each showed it.
workers = Table(
    "workers",
    METADATA,
    Column("name", Text, primary_key=True),
    Column("seen_at", Float, nullable=False),
)

# The highest number that was given away under a name.
numbers = Table(
    "numbers",
    METADATA,
    Column("name", Text, primary_key=True),
    Column("last", BigInteger, nullable=False),
)

faults = Table(
    "faults",
    METADATA,
    Column("id", _Id, primary_key=True),
    Column("kind", Text, nullable=False),
    Column("at", JSON, nullable=False),
    Column("probability", Float),
    Column("remaining", Integer),
    Column("happened", Integer, nullable=False, default=0),
    Column("after", Boolean, nullable=False),
    Column("seconds", Float),
    Column("retry_after", Integer),
    sqlite_autoincrement=True,  # an id is never used again
)

# Calls of webhook messages (section 2.7); ``request`` is what is sent.
webhook_calls = Table(
    "webhook_calls",
    METADATA,
    Column("id", _Id, primary_key=True),
    Column("send_id", _Id, nullable=False),
    Column("run_id", _Id, nullable=False),
    Column("request", JSON, nullable=False),
    Column("state", Text, nullable=False),
    Column("due_at", Float, nullable=False),
    Column("answer", Text),
    Column("claimed_by", Text),
    Index("webhook_calls_due", "state", "due_at"),
)

segments = Table(
    "segments",
    METADATA,
    Column("id", _Id, primary_key=True),
    Column("title", Text, nullable=False),
    Column("conditions", JSON, nullable=False),
    Column("created_at", Float, nullable=False),
    sqlite_autoincrement=True,
)

locations = Table(
    "locations",
    METADATA,
    Column("id", _Id, primary_key=True),
    Column("title", Text, nullable=False),
    Column("created_at", Float, nullable=False),
    sqlite_autoincrement=True,
)

# What devices did: entered or left a location, or hit an event. ``person`` is whose device it is.
hits = Table(
    "hits",
    METADATA,
    Column("id", _Id, primary_key=True),
    Column("kind", Text, nullable=False),  # enter, exit, event
    Column("name", Text, nullable=False),  # the location's id, or the event's name
    Column("device_id", BigInteger),
    Column("person", Text, nullable=False),
    Column("value", JSON),
    Column("at", Float, nullable=False),
    Index("hits_person", "person", "kind", "name"),
)

# A campaign that a hit has triggered for a person; the limits of section 2.10 count these.
firings = Table(
    "firings",
    METADATA,
    Column("id", _Id, primary_key=True),
    Column("campaign_id", _Id, nullable=False),
    Column("run_id", _Id, nullable=False),
    Column("hit_id", _Id, nullable=False),
    Column("person", Text, nullable=False),
    Column("location_id", _Id),
    Column("at", Float, nullable=False),
    Index("firings_campaign", "campaign_id", "person"),
)

# Each advance of the clock: what it showed before, and by how many seconds it was advanced.
clock_jumps = Table(
    "clock_jumps",
    METADATA,
    Column("id", _Id, primary_key=True),
    Column("at", Float, nullable=False),
    Column("seconds", Float, nullable=False),
)


class Store:
    """The database of one service, at an SQLAlchemy URL; its tables are made where they are missing."""

    def __init__(self, url: str) -> None:
        _make_private(make_url(url))
        self.engine = create_engine(url, pool_size=8, max_overflow=8)
        self.is_sqlite = self.engine.dialect.name == "sqlite"
        if self.is_sqlite:
            event.listen(self.engine, "connect", _prepare_sqlite)
            event.listen(self.engine, "begin", _begin_sqlite)
        with self.write() as connection:
            if not self.is_sqlite:  # several processes may start at once
                connection.execute(select(func.pg_advisory_xact_lock(_TABLES_ARE_MADE)))
            METADATA.create_all(connection)

    @contextmanager
    def read(self) -> Iterator[Connection]:
        """Open a transaction that only reads."""
        with self.engine.connect() as connection, connection.begin():
            yield connection

    @contextmanager
    def write(self) -> Iterator[Connection]:
        """Open a transaction that writes; on SQLite it waits here for the one before, never in the middle."""
        with self.engine.connect().execution_options(writes=True) as connection, connection.begin():
            yield connection

    def close(self) -> None:
        """Close every connection."""
        self.engine.dispose()


def shown(url: str) -> str:
    """Return a database's URL without its password and without its options, which may hold another."""
    return make_url(url).set(query={}).render_as_string(hide_password=True)


def _make_private(url: URL) -> None:
    """Make an SQLite file with mode 0600, or take the rights of everybody else from one that is there."""
    name = url.database or ":memory:"
    if url.get_backend_name() != "sqlite" or name.startswith((":", "file:")):
        return
    try:
        os.close(os.open(name, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600))
    except FileExistsError:
        for file in (Path(name), Path(f"{name}-wal"), Path(f"{name}-shm")):
            with suppress(OSError):  # it is not there, or belongs to another user
                file.chmod(file.stat().st_mode & 0o770)
    except OSError:  # SQLite says why
        return


def _prepare_sqlite(connection: Any, _record: object) -> None:
    connection.isolation_level = None
    wait = f"busy_timeout = {_LONGEST_WAIT * 1_000:.0f}"
    for pragma in (wait, "journal_mode = WAL", "synchronous = NORMAL", "foreign_keys = ON"):
        connection.execute(f"PRAGMA {pragma}")


def _begin_sqlite(connection: Connection) -> None:
    if not connection.get_execution_options().get("writes", False):
        connection.exec_driver_sql("BEGIN")
        return
    # SQLite waits in ever longer steps, in which a request can miss its turn again and again while a campaign is
    # sent; short steps find the moment between two transactions.
    execute = connection.connection.driver_connection.execute  # type: ignore[union-attr]
    deadline = time.monotonic() + _LONGEST_WAIT
    execute("PRAGMA busy_timeout = 2")
    while True:
        try:
            execute("BEGIN IMMEDIATE")
            break
        except sqlite3.OperationalError as error:
            if error.sqlite_errorcode & 0xFF != sqlite3.SQLITE_BUSY or time.monotonic() > deadline:
                raise OperationalError("BEGIN IMMEDIATE", None, error) from None
    execute(f"PRAGMA busy_timeout = {_LONGEST_WAIT * 1_000:.0f}")


def upsert(connection: Connection, table: Table, rows: Sequence[Mapping[str, Any]]) -> None:
    """Insert the rows, each in the place of the row with its primary key if there is one."""
    insert = (sqlite if connection.dialect.name == "sqlite" else postgresql).insert(table)
    keys = [column.name for column in table.primary_key]
    replacement = {c.name: insert.excluded[c.name] for c in table.columns if c.name not in keys}
    connection.execute(insert.on_conflict_do_update(index_elements=keys, set_=replacement), list(rows))
