"""Errors of the ledger name their cause, and only temporary ones are retried."""

from __future__ import annotations

import secrets
import socket
import sqlite3
import struct
import threading
import traceback
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path

import pytest
import sqlalchemy as sa

from sendoff.cli import main
from sendoff.errors import LedgerUnavailableError, PermanentError, SettingsError, UnusableLedgerError
from sendoff.ledger import Ledger, SuppressionChange
from sendoff.ledger.storage.bulk import by_adbc, driver
from sendoff.ledger.storage.problems import LedgerAddress, problem_of
from sendoff.ledger.storage.schema import launches

from ...commands import clear_settings
from ...factories import NOW

PASSWORD = "hunter2-is-secret"


def ping(url: sa.URL | str) -> Exception:
    """Return the error that a ledger with this URL raises, and check that it does not show the password."""
    text = url if isinstance(url, str) else url.render_as_string(hide_password=False)
    with (
        pytest.raises((UnusableLedgerError, LedgerUnavailableError)) as caught,
        closing(Ledger(text)) as ledger,
    ):
        ledger.ping()
    assert PASSWORD not in str(caught.value)
    return caught.value


@pytest.fixture
def server(postgres_server: str) -> sa.URL:
    return sa.make_url(postgres_server).set(password=PASSWORD)


@pytest.mark.parametrize("scheme", ["postgres", "postgresql", "postgresql+psycopg"])
def test_a_ledger_on_postgresql_has_any_of_its_usual_schemes(migrated_postgres: str, scheme: str) -> None:
    url = migrated_postgres.replace("postgresql+psycopg", scheme)
    assert url.startswith(f"{scheme}://")
    with closing(Ledger(url)) as ledger:
        assert ledger.launches.search() == []


def test_a_missing_database_is_named_and_permanent(server: sa.URL) -> None:
    error = ping(server.set(database="never_made"))
    assert isinstance(error, UnusableLedgerError)
    assert str(error) == (
        f"the ledger cannot be reached: {server.host}:{server.port or 5432} has no database never_made; "
        "create it, or correct the database in the ledger's URL or connection"
    )


def test_an_unknown_user_is_named_and_permanent(server: sa.URL) -> None:
    error = ping(server.set(username="nobody_at_all"))
    assert isinstance(error, UnusableLedgerError)
    assert "has no user nobody_at_all; create it, or correct the user in" in str(error)


def test_tables_that_are_missing_are_permanent_with_the_command_that_makes_them(postgres_url: str) -> None:
    error = ping(postgres_url)
    assert isinstance(error, UnusableLedgerError)
    assert str(error) == "the ledger has no tables, or old ones; run: sendoff migrate"


def test_a_port_where_nothing_answers_is_named_and_may_pass(free_port: int) -> None:
    error = ping(f"postgresql://sendoff:{PASSWORD}@127.0.0.1:{free_port}/ledger")
    assert isinstance(error, LedgerUnavailableError)
    assert f"nothing answers at 127.0.0.1:{free_port}; check that the database is running" in str(error)


def test_an_unknown_host_is_named_and_may_pass() -> None:
    error = ping(f"postgresql://sendoff:{PASSWORD}@nowhere.invalid/ledger")
    assert isinstance(error, LedgerUnavailableError)
    assert "the host of nowhere.invalid:5432 is unknown" in str(error)


def test_an_option_that_does_not_exist_is_permanent(server: sa.URL) -> None:
    error = ping(server.update_query_dict({"sslmodus": PASSWORD}))
    assert isinstance(error, UnusableLedgerError)
    assert "an option in the ledger's URL or connection" in str(error)


def test_a_server_without_tls_is_permanent_where_the_url_wants_it(server: sa.URL, told: Telling) -> None:
    error = ping(told("", "").update_query_dict({"sslmode": "require"}))
    assert isinstance(error, UnusableLedgerError)
    assert "no trusted TLS connection" in str(error)


Telling = Callable[..., sa.URL]


@pytest.fixture
def told() -> Iterator[Telling]:
    """A server that speaks PostgreSQL's protocol and refuses every client with a SQLSTATE and a text."""
    listening = socket.create_server(("127.0.0.1", 0))
    said: list[bytes] = []

    def serve() -> None:
        while True:
            try:
                connection, _ = listening.accept()
            except OSError:
                return
            with connection:
                (size,) = struct.unpack("!i", connection.recv(4))
                if size == 8:  # the client asks for TLS
                    connection.recv(4)
                    connection.sendall(b"N")
                    size = struct.unpack("!i", connection.recv(4) or struct.pack("!i", 4))[0]
                connection.recv(size - 4)
                connection.sendall(said[0])

    def tell(state: str, text: str) -> sa.URL:
        fields = b"".join(
            kind + value.encode() + b"\0" for kind, value in ((b"S", "FATAL"), (b"C", state), (b"M", text))
        )
        said.append(b"E" + struct.pack("!i", len(fields) + 5) + fields + b"\0")
        port = listening.getsockname()[1]
        return sa.make_url(f"postgresql://ann:{PASSWORD}@127.0.0.1:{port}/ledger")

    thread = threading.Thread(target=serve, daemon=True)
    thread.start()
    yield tell
    listening.shutdown(socket.SHUT_RDWR)
    listening.close()
    thread.join()


@pytest.mark.parametrize(
    ("state", "text", "is_permanent", "said"),
    [
        (
            "28P01",
            'password authentication failed for user "ann"',
            True,
            "rejected the password of the user ann",
        ),
        ("28000", 'role "ann" is not permitted to log in', True, "the user ann may not log in"),
        (
            "28000",
            'no pg_hba.conf entry for host "10.0.0.7", user "ann", database "ledger", no encryption',
            True,
            "pg_hba.conf on 127.0.0.1",
        ),
        (
            "42501",
            'permission denied for database "ledger"',
            True,
            "an administrator must run, with these names: GRANT CONNECT ON DATABASE ... TO ...",
        ),
        (
            "55000",
            'database "ledger" is not currently accepting connections',
            False,
            "lets no one connect; an administrator must run, with its name: ALTER DATABASE ... ALLOW_CONNECTIONS true",
        ),
        ("57P03", "the database system is starting up", False, "is starting or stopping"),
        ("53300", "sorry, too many clients already", False, "has no free connection"),
        ("XX000", "something else", False, "the ledger's database ledger on 127.0.0.1:"),
    ],
)
@pytest.mark.parametrize("way", ["statements", "large reads"])
def test_why_a_server_refuses_is_named(
    told: Telling, way: str, state: str, text: str, is_permanent: bool, said: str
) -> None:
    url = told(state, text)
    if way == "statements":
        error = ping(url)
    elif (adbc := driver()) is None:
        pytest.skip("there is no driver for large reads")
    else:
        address = url.set(drivername="postgresql").render_as_string(hide_password=False)
        with (
            pytest.raises((UnusableLedgerError, LedgerUnavailableError)) as caught,
            by_adbc(adbc, address, LedgerAddress.of(url), sa.select(launches.c.launch_key)),
        ):
            pass
        error = caught.value
    assert isinstance(error, PermanentError) == is_permanent
    assert said in str(error)
    assert PASSWORD not in str(error)
    assert text not in "".join(traceback.format_exception(error))


POOLED = "use pool_mode=session, or PgBouncer 1.21 or newer with max_prepared_statements above 0"
NEEDS_TWO = 'bind message supplies 1 parameters, but prepared statement "_pg3_0" requires 2'


@pytest.mark.parametrize(
    ("state", "text", "is_permanent", "said"),
    [
        ("42P05", "", True, POOLED),
        ("26000", "", True, POOLED),
        ("08P01", NEEDS_TWO, True, POOLED),
        ("08P01", "server conn crashed?", False, "reported SQLSTATE 08P01"),  # in the words of PgBouncer
        ("42P01", "", True, "the ledger has no tables, or old ones; run: sendoff migrate"),
        ("42703", "", True, "the ledger has no tables, or old ones; run: sendoff migrate"),
        ("42601", "", True, "reported SQLSTATE 42601"),
        ("XX001", "", True, "is damaged; stop all processes that use it, and restore a backup"),
        ("XX002", "", True, "is damaged; stop all processes that use it, and restore a backup"),
        ("55P03", "", False, "another session holds a lock for too long; find it in pg_stat_activity"),
        ("57014", "", False, "a statement took longer than statement_timeout, or someone cancelled it"),
        ("40P01", "", False, "because of a deadlock"),
        ("53200", "", False, "has no free memory"),
        ("57P01", "", False, "ended the connection"),
        ("25P03", "", False, "for longer than idle_in_transaction_session_timeout"),
        ("58030", "", False, "reported SQLSTATE 58030"),
    ],
)
def test_the_cause_of_an_error_follows_from_its_sqlstate_in_every_language(
    postgres_url: str, state: str, text: str, is_permanent: bool, said: str
) -> None:
    words = text or f"ein Fehler in {PASSWORD}"
    statement = f"DO $$ BEGIN RAISE EXCEPTION '{words}' USING ERRCODE = '{state}'; END $$"
    url = sa.make_url(postgres_url)
    with (
        closing(Ledger(postgres_url)) as ledger,
        pytest.raises((UnusableLedgerError, LedgerUnavailableError)) as caught,
        ledger._database.read() as db,
    ):
        db.exec_driver_sql(statement)
    assert isinstance(caught.value, PermanentError) == is_permanent
    assert said in str(caught.value)
    if "SQLSTATE" in said:
        assert f"database {url.database} on {url.host}:{url.port or 5432}" in str(caught.value)
    assert PASSWORD not in str(caught.value)


def test_a_server_of_another_language_is_named_with_the_setting_that_it_needs(told: Telling) -> None:
    url = told("3D000", "Datenbank »ledger« existiert nicht")
    assert str(ping(url)) == (
        f"the ledger's database ledger on 127.0.0.1:{url.port} did not answer (OperationalError). Its log may "
        "have the cause. If it answers in another language than English, set its lc_messages to C: the cause is then "
        "named here"
    )


@pytest.mark.parametrize("behind", ["", "/9", "?9", ":9", "=9"])
def test_a_password_with_an_at_sign_is_asked_to_be_encoded_and_not_shown(behind: str) -> None:
    with pytest.raises(SettingsError, match="write an @ in its password as %40") as caught:
        Ledger(f"postgresql://ann:x@{PASSWORD}{behind}@db/ledger")
    assert PASSWORD not in str(caught.value)


@pytest.mark.parametrize("url", ["postgresql://ann@db:many/ledger", "postgresql://ann:x@y:z@db/ledger"])
def test_a_port_that_is_no_number_is_an_error_of_the_url(url: str) -> None:
    with pytest.raises(SettingsError):
        Ledger(url)


def test_a_value_that_no_index_has_room_for_is_permanent(migrated_postgres: str) -> None:
    """PostgreSQL calls it an operational error."""
    change = SuppressionChange("account", "user_id", secrets.token_hex(4_000), "ada")
    with closing(Ledger(migrated_postgres)) as ledger, pytest.raises(UnusableLedgerError) as caught:
        ledger.suppressions.add(change, ["ann"], NOW)
    assert str(caught.value) == (
        "a name or a value is too long for an index of the ledger's database; use a shorter one"
    )


# SQLite


@pytest.mark.parametrize("is_relative", [False, True])
def test_a_folder_that_does_not_exist_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_relative: bool
) -> None:
    monkeypatch.chdir(tmp_path)
    path = "no/ledger.db" if is_relative else f"{tmp_path}/no/ledger.db"
    with closing(Ledger(f"sqlite:///{path}")) as ledger:
        with pytest.raises(UnusableLedgerError) as caught:
            ledger.migrate()
        assert str(caught.value) == (
            f"the ledger {tmp_path}/no/ledger.db cannot be opened: there is no folder {tmp_path}/no; "
            "create it, or correct the path"
        )


def test_a_folder_in_the_place_of_the_file_is_named(tmp_path: Path) -> None:
    error = ping(f"sqlite:///{tmp_path}")
    assert isinstance(error, UnusableLedgerError)
    assert "it is a folder; name a file in it" in str(error)


def test_a_file_that_is_no_database_is_named(tmp_path: Path) -> None:
    (tmp_path / "ledger.db").write_bytes(b"a letter to somebody" * 100)
    error = ping(f"sqlite:///{tmp_path / 'ledger.db'}")
    assert isinstance(error, UnusableLedgerError)
    assert "is not an SQLite database" in str(error)


def test_an_empty_database_asks_to_be_migrated(tmp_path: Path) -> None:
    sqlite3.connect(tmp_path / "ledger.db").close()
    (tmp_path / "ledger.db").touch()
    error = ping(f"sqlite:///{tmp_path / 'ledger.db'}")
    assert isinstance(error, UnusableLedgerError)
    assert str(error) == "the ledger has no tables, or old ones; run: sendoff migrate"


def test_a_file_that_cannot_be_written_is_named(migrated_file: Path) -> None:
    error = ping(f"sqlite:///file:{migrated_file}?mode=ro&uri=true")
    assert isinstance(error, UnusableLedgerError)
    assert "cannot be written; give this user write access" in str(error)


def test_a_file_that_another_process_holds_may_be_free_later(
    tmp_path: Path, migrated_file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sendoff.ledger.storage.engines._BUSY_SECONDS", 0.1)
    file = tmp_path / "ledger.db"
    file.write_bytes(migrated_file.read_bytes())
    with closing(sqlite3.connect(file, isolation_level=None)) as holder:
        holder.execute("BEGIN IMMEDIATE")
        error = ping(f"sqlite:///{file}")
    assert isinstance(error, LedgerUnavailableError)
    assert "is locked: another process has held it" in str(error)


# The receiver


@pytest.mark.parametrize(
    "url", ["sqlite://", "sqlite:///", "sqlite:///:memory:", "sqlite:///file::memory:?uri=true"]
)
def test_a_ledger_that_no_file_keeps_is_refused(url: str) -> None:
    with pytest.raises(SettingsError, match=r"SENDOFF_LEDGER_URL.* names no file"):
        Ledger(url)


@pytest.mark.parametrize("name", ["SQLITE_FULL", "SQLITE_IOERR_SHMSIZE"])
def test_a_full_disk_is_named_and_may_pass(name: str) -> None:
    error = sqlite3.OperationalError("disk I/O error")
    error.sqlite_errorname = name
    found = problem_of(error, LedgerAddress.of(sa.make_url("sqlite:////data/ledger.db")))
    assert isinstance(found, LedgerUnavailableError)
    assert str(found) == "the disk of the ledger /data/ledger.db is full; free some space"


@pytest.mark.parametrize("backend", ["sqlite", "postgresql"])
def test_a_receiver_on_a_ledger_without_tables_says_what_to_run_and_exits(
    request: pytest.FixtureRequest,
    tmp_path: Path,
    free_port: int,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    backend: str,
) -> None:
    if backend == "sqlite":
        (tmp_path / "ledger.db").touch()
        url = f"sqlite:///{tmp_path / 'ledger.db'}"
    else:
        url = request.getfixturevalue("postgres_url")
    clear_settings(monkeypatch)
    monkeypatch.setenv("SENDOFF_LEDGER_URL", url)
    monkeypatch.setenv("SENDOFF_PUBLIC_URL", "http://127.0.0.1")
    monkeypatch.setenv("SENDOFF_POST_BACK_SECRETS", "x" * 32)
    monkeypatch.setattr("sys.argv", ["sendoff", "receiver", "--port", str(free_port)])
    with pytest.raises(SystemExit) as end:
        main()
    assert end.value.code == 1
    assert "the ledger has no tables, or old ones; run: sendoff migrate" in capsys.readouterr().err
