"""The ledger, the receiver and the warehouse, as connections or settings name them."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest
from airflow.sdk import Connection
from sqlalchemy import make_url

from sendoff.errors import SettingsError
from sendoff.ledger import Ledger
from sendoff_airflow.stores import (
    LedgerHook,
    ReceiverHook,
    addresses,
    database_url,
    ledger,
    warehouse,
)

SECRET = "s" * 32
URL = "postgresql+psycopg://ann:open-sesame@db.example.com/sendoff"


def test_the_ledger_is_the_url_in_its_connection(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path / 'ledger.db'}"
    _connection(monkeypatch, "sendoff_ledger", conn_type="sendoff_ledger", password=url)
    monkeypatch.setenv("SENDOFF_LEDGER_URL", "sqlite:////elsewhere.db")
    assert LedgerHook().url() == url
    with closing(ledger()) as book:
        book.migrate()
        book.ping()


def test_the_ledger_is_the_setting_where_there_is_no_connection(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SENDOFF_LEDGER_URL", URL)
    assert LedgerHook().url() == URL


def test_there_is_no_ledger_by_default() -> None:
    with pytest.raises(SettingsError, match="add the connection sendoff_ledger, or set SENDOFF_LEDGER_URL"):
        ledger()


def test_a_ledger_connection_without_a_url_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    _connection(monkeypatch, "sendoff_ledger", conn_type="sendoff_ledger")
    with pytest.raises(SettingsError, match=r"sendoff_ledger: the database URL \(password field\) is empty"):
        ledger()


def test_a_wrong_ledger_url_is_not_repeated_in_the_error(monkeypatch: pytest.MonkeyPatch) -> None:
    _connection(monkeypatch, "sendoff_ledger", conn_type="sendoff_ledger", password="open-sesame")
    working, message = LedgerHook().test_connection()
    assert not working
    assert "the ledger URL cannot be used" in message
    assert "open-sesame" not in message


def test_the_test_button_tells_a_ledger_without_tables_from_a_sound_one(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    url = f"sqlite:///{tmp_path / 'ledger.db'}"
    _connection(monkeypatch, "sendoff_ledger", conn_type="sendoff_ledger", password=url)
    assert LedgerHook().test_connection() == (
        False,
        "the ledger has no tables, or old ones; run: sendoff migrate",
    )
    with closing(Ledger(url)) as book:
        book.migrate()
    assert LedgerHook().test_connection() == (True, "The ledger can be read and written.")


def test_addresses_are_signed_with_the_first_secret_of_the_connection(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    _connection(
        monkeypatch,
        "sendoff_receiver",
        conn_type="sendoff_receiver",
        host="https://events.example.com/",
        password=f"{'n' * 32}, {SECRET}",
    )
    monkeypatch.setenv("SENDOFF_PUBLIC_URL", "https://elsewhere.example.com")
    signed = addresses()
    assert signed.public_url == "https://events.example.com"
    assert list(signed.secrets) == ["n" * 32, SECRET]
    working, message = ReceiverHook().test_connection()
    assert working
    assert SECRET not in message


def test_addresses_come_from_the_settings_where_there_is_no_connection(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("SENDOFF_PUBLIC_URL", "https://events.example.com")
    monkeypatch.setenv("SENDOFF_POST_BACK_SECRETS", SECRET)
    assert addresses().public_url == "https://events.example.com"


@pytest.mark.parametrize(
    ("fields", "problem"),
    [
        ({"password": SECRET}, "the public URL (host field) is empty"),
        ({"host": "https://events.example.com"}, "the secret (password field) is empty"),
        ({"host": "https://events.example.com", "password": " , "}, "the secret (password field) is empty"),
        ({"host": "https://events.example.com", "password": "too-short"}, "32 characters or more"),
        ({"host": "events.example.com", "password": SECRET}, "starts with https://"),
        ({"host": "https://u:p@events.example.com", "password": SECRET}, "no user, password"),
    ],
)
def test_a_wrong_field_of_the_receiver_is_named(
    monkeypatch: pytest.MonkeyPatch, fields: dict[str, str], problem: str
) -> None:
    _connection(monkeypatch, "sendoff_receiver", conn_type="sendoff_receiver", **fields)
    working, message = ReceiverHook().test_connection()
    assert not working
    assert problem in message
    assert "too-short" not in message


@pytest.mark.parametrize(
    ("uri", "url"),
    [
        (
            "postgres://ann:p%40ss@db.example.com:5433/shop",
            "postgresql+psycopg://ann:p%40ss@db.example.com:5433/shop",
        ),
        (
            "postgres://ann@db.example.com/shop?sslmode=verify-full&cursor=dictcursor",
            "postgresql+psycopg://ann@db.example.com/shop?sslmode=verify-full",
        ),
        ("sqlite:////data/shop.db", "sqlite:////data/shop.db"),
        ("sqlite://shop.db", "sqlite:///shop.db"),
    ],
)
def test_a_database_connection_becomes_a_url(uri: str, url: str) -> None:
    found = database_url(Connection(conn_id="w", uri=uri))
    assert make_url(found) == make_url(url)


def test_a_sqlite_connection_may_have_its_path_in_the_host(monkeypatch: pytest.MonkeyPatch) -> None:
    _connection(monkeypatch, "w", conn_type="sqlite", host="/data/shop.db")
    assert warehouse("w") == "sqlite:////data/shop.db"


@pytest.mark.parametrize(
    ("fields", "problem"),
    [
        (None, "there is no connection w, which the campaign names as its warehouse"),
        ({"conn_type": "postgres"}, "connection w: the host is empty"),
        ({"conn_type": "sqlite"}, "the path of the database (host field) is empty"),
        # HttpHook is a hook, but none that can be queried; of "oracle" the provider is not installed
        ({"conn_type": "http", "host": "x"}, "type http cannot be queried"),
        ({"conn_type": "oracle", "host": "x"}, "type oracle cannot be queried"),
    ],
)
def test_an_unusable_warehouse_is_named(
    monkeypatch: pytest.MonkeyPatch, fields: dict[str, str] | None, problem: str
) -> None:
    if fields is not None:
        _connection(monkeypatch, "w", **fields)
    with pytest.raises(SettingsError) as raised:
        warehouse("w")
    assert problem in str(raised.value)


def test_a_ledger_connection_of_another_kind_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    _connection(monkeypatch, "sendoff_ledger", conn_type="http", host="x", password="open-sesame")
    with pytest.raises(
        SettingsError, match="type http is none of postgres, postgresql, sendoff_ledger, sqlite"
    ):
        ledger()


def test_extras_that_are_no_json_object_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    _connection(monkeypatch, "w", conn_type="postgres", host="x", extra='["open-sesame"]')
    with pytest.raises(SettingsError, match=r"connection w: the extra fields are not a JSON object$"):
        warehouse("w")


@pytest.fixture(autouse=True)
def _nothing_is_set(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    for name in ("SENDOFF_LEDGER_URL", "SENDOFF_PUBLIC_URL", "SENDOFF_POST_BACK_SECRETS"):
        monkeypatch.delenv(name, raising=False)
    return


def _connection(monkeypatch: pytest.MonkeyPatch, conn_id: str, **fields: str) -> None:
    monkeypatch.setenv(f"AIRFLOW_CONN_{conn_id.upper()}", json.dumps(fields))
