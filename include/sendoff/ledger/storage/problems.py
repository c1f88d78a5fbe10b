"""Problems with the ledger's database: the cause in one sentence, and whether someone must change something.

If PostgreSQL's client cannot connect, the error has no SQLSTATE. Only its English text shows the cause, and that text
is never repeated. A server with another language in ``lc_messages`` therefore hides the cause. Messages name the host,
user, and database of the ledger's URL, never its password or options.
"""

from __future__ import annotations

import os
import re
import sqlite3
from dataclasses import dataclass
from pathlib import Path

import sqlalchemy as sa
from sqlalchemy import exc

from sendoff.campaign import storable
from sendoff.errors import LedgerUnavailableError, SettingsError, UnusableLedgerError

LedgerProblem = LedgerUnavailableError | UnusableLedgerError

NO_TABLES = "the ledger has no tables, or old ones; run: sendoff migrate"
_FORBIDDEN = (
    "the ledger's user lacks the rights for this; grant them with the output of: sendoff grants. Only the owner of the "
    "tables may migrate them and delete old post-backs (sendoff migrate, sendoff maintain)"
)
_TOO_LONG = "a name or a value is too long for an index of the ledger's database; use a shorter one"
_URL = "the ledger's URL or connection"
_ENDED = "{server} ended the connection, as it does when it stops; if this repeats, its log names the reason"

# Errors that someone must fix, in the words of PostgreSQL's client or server. If any of several servers reports one, it
# decides.
_UNUSABLE = {
    r'database "[^"]*" does not exist': (
        "{server} has no database {database}; create it, or correct the database in {url}"
    ),
    r'role "[^"]*" does not exist': "{server} has no user {user}; create it, or correct the user in {url}",
    r'role "[^"]*" is not permitted to log in': (
        "the user {user} may not log in to {server}; give the user LOGIN, or correct the user in {url}"
    ),
    "no password supplied": "{server} asks for a password of the user {user}; add it to {url}",
    "authentication failed": (
        "{server} rejected the password of the user {user}; correct it in {url}, and percent-encode its "
        "special characters"
    ),
    r"pg_hba\.conf": (
        "pg_hba.conf on {server} does not allow the user {user} to connect to the database {database} from "
        "this machine; add a line there, or correct {url} (it may need sslmode=require)"
    ),
    "permission denied for database": (
        "the user {user} may not connect to the database {database}; an administrator must run, with these names: "
        "GRANT CONNECT ON DATABASE ... TO ..."
    ),
    "does not support SSL|certificate|private key file": (
        "no trusted TLS connection to {server}; check sslmode, sslrootcert, sslcert and sslkey in {url}"
    ),
    r'invalid connection option|invalid (?:integer |port |\w+ )?(?:value|number)|missing "="': (
        "PostgreSQL does not accept an option in {url}; correct the part after the question mark"
    ),
}
# Errors that may pass without a change.
_AWAY = {
    "starting up|shutting down|not yet accepting|in recovery mode": "{server} is starting or stopping",
    "not currently accepting connections": (
        "the database {database} on {server} lets no one connect; an administrator must run, with its name: "
        "ALTER DATABASE ... ALLOW_CONNECTIONS true"
    ),
    "too many (?:clients|connections)|remaining connection slots": (
        "{server} has no free connection; run fewer workers, or raise max_connections"
    ),
    "read-only|hot standby": (
        "{server} is read-only; name the primary in {url}, or wait until this server becomes one"
    ),
    "refused|No such file or directory": (
        "nothing answers at {server}; check that the database is running, and the host and port in {url}"
    ),
    r"translate host name|resolve host|\[Errno -\d+\]|[Nn]ame or service not known": (
        "the host of {server} is unknown; check it in {url}"
    ),
    "timeout expired|timed out|No route to host|unreachable": (
        "{server} is unreachable or too slow; check the host and port in {url}, and any firewall between "
        "this machine and the server"
    ),
    "server closed the connection|connection (?:is|has been) (?:lost|closed)": _ENDED,
    "reset by peer|Broken pipe|EOF detected": _ENDED,
}
_OLD_TABLES = ("42P01", "42703", "3F000", "42883")  # no such table, column, schema or function
_POOLED = (
    "a pool shares connections to {server} between its clients, so prepared statements get lost; use "
    "pool_mode=session, or PgBouncer 1.21 or newer with max_prepared_statements above 0"
)
_DAMAGED = (
    "the database {database} on {server} is damaged; stop all processes that use it, and restore a backup"
)
# By SQLSTATE: errors that someone must fix, and errors that may pass without a change.
_UNUSABLE_STATES: dict[str, str] = {
    **dict.fromkeys(("42P05", "26000"), _POOLED),
    **dict.fromkeys(("XX001", "XX002"), _DAMAGED),
}
_AWAY_STATES: dict[str, str] = {
    "25006": "{server} is read-only at the moment",
    "25P03": (
        "this process left a transaction open for longer than idle_in_transaction_session_timeout; raise the limit "
        "in {url} if this machine is slow"
    ),
    "40P01": (
        "{server} ended a transaction because of a deadlock; if this repeats, its log names the other session"
    ),
    "53100": "the disk of {server} is full",
    "53200": "{server} has no free memory; run fewer workers, or give the server more memory",
    "53300": "{server} has no free connection; run fewer workers, or raise max_connections",
    "55P03": "another session holds a lock for too long; find it in pg_stat_activity on {server}, and end it",
    "57014": (
        "a statement took longer than statement_timeout, or someone cancelled it; raise the limit in {url} if it "
        "is too short"
    ),
    "57P01": _ENDED,
    "57P02": _ENDED,
}
_IS_OLD = re.compile("no such (table|column)|table .* has no column")  # SQLite's words for old tables


@dataclass(frozen=True, slots=True)
class LedgerAddress:
    """The parts of a ledger's URL that an error may show."""

    server: str
    database: str
    user: str
    file: str | None

    @classmethod
    def of(cls, url: sa.URL) -> LedgerAddress:
        """Take the parts from a URL."""
        hosts = [url.host, *url.normalized_query.get("host", ())]
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
    name = (url.database or ":memory:").removeprefix("file:")
    return name if name.startswith(":") else str(Path(name).absolute())


def check_texts(**texts: str | None) -> None:
    """Raise SettingsError, with the name of the text, if one has a character that databases refuse."""
    for name, text in texts.items():
        if text is not None and storable(text) != text:
            raise SettingsError(
                f"the {name} has a character that the ledger cannot store, such as NUL. Remove the character"
            )


def problem_of(error: BaseException, place: LedgerAddress, *, tables: str = NO_TABLES) -> LedgerProblem:
    """Return what to raise for a driver error; ``tables``: the message if the tables do not fit.

    The returned error contains nothing of the driver's text.
    """
    if isinstance(error, exc.TimeoutError):
        return LedgerUnavailableError(
            "all of this process's connections to the ledger were in use for too long"
        )
    original = getattr(error, "orig", None) or error
    if isinstance(original, sqlite3.Error):
        return _of_sqlite(original, place, tables)
    state, text = getattr(original, "sqlstate", None), str(original)
    if not state or state == "00000":
        return _of_connecting(text, place) or _unnamed(error, place)
    if state == "42501":
        return UnusableLedgerError(_FORBIDDEN)
    if state.startswith("54"):
        return UnusableLedgerError(_TOO_LONG)
    if state in _OLD_TABLES:
        return UnusableLedgerError(tables)
    if state == "08P01" and "prepared statement" in text:  # other errors with this state may pass
        state = "26000"
    if sentence := _UNUSABLE_STATES.get(state):
        return UnusableLedgerError(_ledger(sentence, place, "used"))
    if sentence := _AWAY_STATES.get(state):
        return LedgerUnavailableError(_ledger(sentence, place, "used at the moment"))
    known = _of_connecting(text, place, known=("28", "3D", "57P03"), state=state)
    return known or _unnamed(error, place, state)


def _of_connecting(
    text: str, place: LedgerAddress, *, known: tuple[str, ...] = ("",), state: str = ""
) -> LedgerProblem | None:
    if not state.startswith(known):
        return None
    for pattern, sentence in _UNUSABLE.items():
        if re.search(pattern, text):
            return UnusableLedgerError(_ledger(sentence, place))
    for pattern, sentence in _AWAY.items():
        if re.search(pattern, text):
            return LedgerUnavailableError(_ledger(sentence, place))
    return None


def _of_sqlite(error: sqlite3.Error, place: LedgerAddress, tables: str) -> LedgerProblem:
    name, file = getattr(error, "sqlite_errorname", ""), place.file or ""
    if _IS_OLD.match(str(error)):
        return UnusableLedgerError(tables)
    if name.startswith("SQLITE_CANTOPEN") and (why := _why_not_open(file)):
        return UnusableLedgerError(f"the ledger {file} cannot be opened: {why}")
    if name.startswith("SQLITE_READONLY"):
        return UnusableLedgerError(
            f"the ledger {file} cannot be written; give this user write access to the file and its folder"
        )
    if name.startswith("SQLITE_NOTADB"):
        return UnusableLedgerError(f"{file} is not an SQLite database; check the path of the ledger")
    if name.startswith("SQLITE_CORRUPT"):
        return UnusableLedgerError(
            f"the ledger {file} is damaged; stop all processes that use it, and restore a backup"
        )
    if name.startswith(("SQLITE_BUSY", "SQLITE_LOCKED")):
        return LedgerUnavailableError(
            f"the ledger {file} is locked: another process has held it for too long"
        )
    if name in ("SQLITE_FULL", "SQLITE_IOERR_SHMSIZE"):  # the second one: no room for the -shm file
        return LedgerUnavailableError(f"the disk of the ledger {file} is full; free some space")
    return LedgerUnavailableError(f"the ledger {file} cannot be used ({name or type(error).__name__})")


def _why_not_open(file: str) -> str | None:
    path = Path(file.partition("?")[0])
    if not path.parent.is_dir():
        return f"there is no folder {path.parent}; create it, or correct the path"
    if path.is_dir():
        return "it is a folder; name a file in it"
    if path.exists() and not os.access(path, os.R_OK | os.W_OK):
        return "this user may not read and write the file; change its owner or mode"
    if not os.access(path.parent, os.W_OK | os.X_OK):
        return f"this user may not write the folder {path.parent}; change its owner or mode"
    return None


def _ledger(sentence: str, place: LedgerAddress, how: str = "reached") -> str:
    names = {"server": place.server, "database": place.database, "user": place.user}
    return f"the ledger cannot be {how}: {sentence.format(**names, url=_URL)}"


def _unnamed(error: BaseException, place: LedgerAddress, state: str = "") -> LedgerProblem:
    of = f"the ledger's database {place.database} on {place.server}"
    if not state:
        return LedgerUnavailableError(
            f"{of} did not answer ({type(error).__name__}). Its log may have the cause. If it answers in another "
            "language than English, set its lc_messages to C: the cause is then named here"
        )
    kind = UnusableLedgerError if state.startswith("42") else LedgerUnavailableError
    return kind(
        f"{of} reported SQLSTATE {state} ({type(error).__name__}). The log of the server has the details"
    )
