"""What is wrong with a ledger's database: the cause in one sentence, and whether a person must change something.

A connection that PostgreSQL's client could not make has no SQLSTATE: only its text says why, and it is recognised in
English. None of that text is repeated. Host, user and database are named as the ledger's URL names them. Its password
and its options are not shown.
"""

from __future__ import annotations

import os
import re
import sqlite3
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import sqlalchemy as sa
from sqlalchemy import exc

from sendoff.errors import LedgerUnavailableError, UnusableLedgerError

LedgerProblem = LedgerUnavailableError | UnusableLedgerError

NO_TABLES = "the ledger has no tables, or old ones; run: sendoff migrate"
_FORBIDDEN = "the ledger's user may not do this; its rights are those of: sendoff grants"
_URL = "the ledger's URL or connection"

# What a person must change, as PostgreSQL's client or server says it. Of several servers, one that refuses decides.
_UNUSABLE: tuple[tuple[str, str], ...] = (
    (
        r'database "[^"]*" does not exist',
        f"{{server}} has no database {{database}}; create it, or correct the database in {_URL}",
    ),
    (
        r'role "[^"]*" does not exist',
        f"{{server}} has no user {{user}}; create it, or correct the user in {_URL}",
    ),
    (
        r'role "[^"]*" is not permitted to log in',
        f"the user {{user}} may not log in to {{server}}; ALTER ROLE it to LOGIN, or correct the user in {_URL}",
    ),
    (
        r"no password supplied",
        f"{{server}} wants a password for the user {{user}}; add it to {_URL}",
    ),
    (
        r"authentication failed",
        (
            f"{{server}} refuses the password of the user {{user}}; correct it in {_URL}, "
            "with its special characters percent-encoded"
        ),
    ),
    (
        r"pg_hba\.conf",
        (
            f"pg_hba.conf of {{server}} does not let the user {{user}} into the database {{database}} from this "
            f"machine; add a line there, or correct {_URL} (it may need sslmode=require)"
        ),
    ),
    (
        r"permission denied for database",
        "the user {user} may not connect to the database {database}; its rights are those of: sendoff grants",
    ),
    (
        r"does not support SSL|certificate|private key file",
        f"no trusted TLS connection to {{server}}; correct sslmode, sslrootcert, sslcert and sslkey in {_URL}",
    ),
    (
        r"invalid connection option|invalid (?:integer |port |\w+ )?(?:value|number)|missing \"=\"",
        f"an option in {_URL} is not one of PostgreSQL's, or has a wrong value; correct what follows its question mark",
    ),
)
# What may pass by itself.
_AWAY: tuple[tuple[str, str], ...] = (
    (r"starting up|shutting down|not yet accepting|in recovery mode", "{server} is starting or stopping"),
    (
        r"too many (?:clients|connections)|remaining connection slots",
        "{server} has no connection left; run fewer workers, or raise its max_connections",
    ),
    (
        r"read-only|hot standby",
        f"{{server}} takes no writes; name the primary in {_URL}, or wait until it is one",
    ),
    (
        r"refused|No such file or directory",
        f"nothing answers at {{server}}; is the database running, and are host and port right in {_URL}?",
    ),
    (
        r"translate host name|resolve host|\[Errno -\d+\]|[Nn]ame or service not known",
        f"the host of {{server}} is not known; is it right in {_URL}?",
    ),
    (
        r"timeout expired|timed out|No route to host|unreachable",
        (
            f"{{server}} is out of reach or too slow; are host and port right in {_URL}, and does a firewall let "
            "this machine through?"
        ),
    ),
)
_SERVER_SAYS: dict[str, str] = {
    "25006": "{server} takes no writes at the moment",
    "53100": "the disk of {server} is full",
    "53300": "{server} has no connection left; run fewer workers, or raise its max_connections",
}
_IS_OLD = re.compile("no such (table|column)|table .* has no column")  # as SQLite says it


@dataclass(frozen=True, slots=True)
class Place:
    """The names in a ledger's URL that an error may show."""

    server: str
    database: str
    user: str
    file: str | None

    @classmethod
    def of(cls, url: sa.URL) -> Place:
        """Read the names of a URL."""
        hosts = [url.host or "", *url.normalized_query.get("host", ())]
        host = ", ".join(filter(None, hosts)) or "the local server"
        server = f"{host}:{url.port or 5432}" if url.host else host
        is_file = url.get_backend_name() == "sqlite"
        return cls(
            server,
            url.database or "of the user's name",
            url.username or "of this process",
            _file(url) if is_file else None,
        )


def _file(url: sa.URL) -> str:
    return (url.database or ":memory:").removeprefix("file:")


def problem_of(error: BaseException, place: Place, *, tables: str = NO_TABLES) -> LedgerProblem:
    """Return what to raise for an error of the ledger's database driver; ``tables`` is said of tables that do not fit.

    The result carries nothing of the error's own text.
    """
    if isinstance(error, exc.TimeoutError):
        return LedgerUnavailableError(
            "every connection of this process to the ledger was in use for too long"
        )
    original = getattr(error, "orig", None) or error
    if isinstance(original, sqlite3.Error):
        return _of_sqlite(original, place, tables)
    state, text = getattr(original, "sqlstate", None), str(original)
    if not state or state == "00000":
        return _of_connecting(text, place) or _unnamed(error)
    if state == "42501":
        return UnusableLedgerError(_FORBIDDEN)
    if state.startswith(("42", "3F")):  # a table, a column or a schema
        return UnusableLedgerError(tables)
    if sentence := _SERVER_SAYS.get(state):
        return LedgerUnavailableError(_ledger(sentence, place))
    return _of_connecting(text, place, known=("28", "3D", "57P03"), state=state) or _unnamed(error)


def _of_connecting(
    text: str, place: Place, *, known: tuple[str, ...] = ("",), state: str = ""
) -> LedgerProblem | None:
    if not state.startswith(known):
        return None
    for pattern, sentence in _UNUSABLE:
        if re.search(pattern, text):
            return UnusableLedgerError(_ledger(sentence, place))
    for pattern, sentence in _AWAY:
        if re.search(pattern, text):
            return LedgerUnavailableError(_ledger(sentence, place))
    return None


def _of_sqlite(error: sqlite3.Error, place: Place, tables: str) -> LedgerProblem:
    name, file = getattr(error, "sqlite_errorname", ""), place.file or ""
    if _IS_OLD.match(str(error)):
        return UnusableLedgerError(tables)
    if name.startswith("SQLITE_CANTOPEN") and (why := _why_not_open(file)):
        return UnusableLedgerError(f"the ledger {file} cannot be opened: {why}")
    if name.startswith("SQLITE_READONLY"):
        return UnusableLedgerError(
            f"the ledger {file} cannot be written; give this user the right to write the file and its folder"
        )
    if name.startswith("SQLITE_NOTADB"):
        return UnusableLedgerError(f"{file} is not an SQLite database; is the path of the ledger right?")
    if name.startswith("SQLITE_CORRUPT"):
        return UnusableLedgerError(
            f"the ledger {file} is damaged; stop all that use it, and restore a backup"
        )
    if name.startswith(("SQLITE_BUSY", "SQLITE_LOCKED")):
        return LedgerUnavailableError(f"the ledger {file} is locked: another process holds it for long")
    if name.startswith("SQLITE_FULL"):
        return LedgerUnavailableError(f"the disk of the ledger {file} is full; make room on it")
    return _unnamed(error)


def _why_not_open(file: str) -> str | None:
    path = Path(file.partition("?")[0])
    if not path.parent.is_dir():
        return f"there is no folder {path.parent}; make it, or correct the path"
    if path.is_dir():
        return "it is a folder; name a file in it"
    if path.exists() and not os.access(path, os.R_OK | os.W_OK):
        return "this user may not read and write the file; change its owner or mode"
    if not os.access(path.parent, os.W_OK | os.X_OK):
        return f"this user may not write the folder {path.parent}; change its owner or mode"
    return None


def _ledger(sentence: str, place: Place) -> str:
    names: dict[str, Any] = {"server": place.server, "database": place.database, "user": place.user}
    return f"the ledger cannot be reached: {sentence.format(**names)}"


def _unnamed(error: BaseException) -> LedgerUnavailableError:
    return LedgerUnavailableError(f"the ledger database did not answer ({type(error).__name__})")
