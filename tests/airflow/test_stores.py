"""The ledger, the receiver and the warehouse, from connections or settings."""

from __future__ import annotations

import json
import sqlite3
import sys
import traceback
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from airflow.providers.common.sql.hooks.sql import DbApiHook
from airflow.sdk import Connection
from sqlalchemy import Engine, make_url

from sendoff.audience.build import build_audience
from sendoff.errors import QueryError, SettingsError, WarehouseUnavailableError
from sendoff.ledger import Ledger
from sendoff.postbacks import forget
from sendoff.warehouse import Cursors, read
from sendoff.warehouse.databases.snowflake import driver_options
from sendoff_airflow.hooks.connections import database_url
from sendoff_airflow.hooks.ledger import LedgerHook, open_ledger
from sendoff_airflow.hooks.receiver import ReceiverHook, post_back_signer
from sendoff_airflow.hooks.warehouse import warehouse_source

from ..factories import make_warehouse

SECRET = "s" * 32
URL = "postgresql+psycopg://ann:open-sesame@db.example.com/sendoff"


def test_the_ledger_is_the_url_in_its_connection(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path / 'ledger.db'}"
    _connection(monkeypatch, "sendoff_ledger", conn_type="sendoff_ledger", password=url)
    monkeypatch.setenv("SENDOFF_LEDGER_URL", "sqlite:////elsewhere.db")
    assert LedgerHook().url() == url
    with closing(open_ledger()) as ledger:
        ledger.migrate()
        ledger.ping()


def test_the_ledger_is_the_setting_where_there_is_no_connection(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SENDOFF_LEDGER_URL", URL)
    assert LedgerHook().url() == URL


def test_there_is_no_ledger_by_default() -> None:
    with pytest.raises(SettingsError, match="add the connection sendoff_ledger, or set SENDOFF_LEDGER_URL"):
        open_ledger()


def test_a_ledger_connection_without_a_url_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    _connection(monkeypatch, "sendoff_ledger", conn_type="sendoff_ledger")
    with pytest.raises(SettingsError, match=r"sendoff_ledger: the database URL \(password field\) is empty"):
        open_ledger()


def test_a_wrong_ledger_url_is_not_repeated_in_the_error(monkeypatch: pytest.MonkeyPatch) -> None:
    _connection(monkeypatch, "sendoff_ledger", conn_type="sendoff_ledger", password="open-sesame")
    working, message = LedgerHook().test_connection()
    assert not working
    assert "the connection sendoff_ledger) cannot be used" in message
    assert "open-sesame" not in message


def test_the_test_button_tells_a_ledger_without_tables_from_a_sound_one(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    url = f"sqlite:///{tmp_path / 'ledger.db'}"
    (tmp_path / "ledger.db").touch()
    _connection(monkeypatch, "sendoff_ledger", conn_type="sendoff_ledger", password=url)
    assert LedgerHook().test_connection() == (
        False,
        "the ledger has no tables, or old ones; run: sendoff migrate",
    )
    with closing(Ledger(url)) as ledger:
        ledger.migrate()
    assert LedgerHook().test_connection() == (True, "The ledger can be read and written.")


def test_the_test_button_tells_that_erased_people_would_not_be_recognised(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    url = f"sqlite:///{tmp_path / 'ledger.db'}"
    with closing(Ledger(url, erasure_secret="e" * 32)) as ledger:
        ledger.migrate()
        forget(ledger, [2], identified_by="device_id", who="ann", reason="a letter")
    _connection(monkeypatch, "sendoff_ledger", conn_type="sendoff_ledger", password=url)
    working, message = LedgerHook().test_connection()
    assert (working, "SENDOFF_ERASURE_SECRET is not set" in message) == (False, True)
    extra = json.dumps({"erasure_secret": "e" * 32})
    _connection(monkeypatch, "sendoff_ledger", conn_type="sendoff_ledger", password=url, extra=extra)
    assert LedgerHook().test_connection()[0]


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
    signed = post_back_signer()
    assert signed.public_url == "https://events.example.com"
    assert list(signed.secrets) == ["n" * 32, SECRET]
    working, message = ReceiverHook().test_connection()
    assert working
    assert SECRET not in message
    fields = {"conn_type": "sendoff_receiver", "host": "http://10.0.0.5", "password": SECRET}
    _connection(monkeypatch, "sendoff_receiver", **fields, port=8090)
    assert post_back_signer().public_url == "http://10.0.0.5:8090"


def test_addresses_come_from_the_settings_where_there_is_no_connection(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("SENDOFF_PUBLIC_URL", "https://events.example.com")
    monkeypatch.setenv("SENDOFF_POST_BACK_SECRETS", SECRET)
    assert post_back_signer().public_url == "https://events.example.com"
    monkeypatch.delenv("SENDOFF_PUBLIC_URL")
    with pytest.raises(
        SettingsError, match=r"^there is no connection sendoff_receiver; add it in Airflow, or .*URL"
    ):
        post_back_signer()


@pytest.mark.parametrize(
    ("fields", "problem"),
    [
        ({"password": SECRET}, "the public URL (host field) is empty"),
        ({"host": "https://events.example.com"}, "the secret (password field) is empty"),
        ({"host": "https://events.example.com", "password": " , "}, "the secret (password field) is empty"),
        ({"host": "https://events.example.com", "password": "too-short"}, "32 characters or more"),
        ({"host": "events.example.com", "password": SECRET}, "must start with https://"),
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
        (
            "postgres://ann:p@%2Fvar%2Frun%2Fpostgresql:5433/shop",
            "postgresql+psycopg://ann:p@:5433/shop?host=/var/run/postgresql",
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
    assert warehouse_source("w") == "sqlite:////data/shop.db"


@pytest.mark.parametrize(
    ("fields", "problem"),
    [
        (None, "there is no connection w, which is named as a warehouse; add it in Airflow"),
        ({"conn_type": "postgres"}, "connection w: the host is empty"),
        ({"conn_type": "sqlite"}, "the path of the database (host field) is empty"),
        # HttpHook has no SQL, and the provider for "oracle" is not installed
        ({"conn_type": "http", "host": "x"}, "type http cannot be queried"),
        ({"conn_type": "oracle", "host": "x"}, "type oracle cannot be queried"),
        # Airflow stores this type for a connection whose provider was not installed when it was added
        ({"conn_type": "generic", "host": "x"}, "connection w: type generic cannot be queried"),
        ({"conn_type": "generic", "host": "x"}, "apache-airflow-providers-postgres"),
        ({"conn_type": "email", "host": "x"}, "connection w: type email cannot be queried"),
    ],
)
def test_an_unusable_warehouse_is_named(
    monkeypatch: pytest.MonkeyPatch, fields: dict[str, str] | None, problem: str
) -> None:
    if fields is not None:
        _connection(monkeypatch, "w", **fields)
    with pytest.raises(SettingsError) as raised:
        warehouse_source("w")
    assert problem in str(raised.value)


def test_a_duckdb_connection_is_its_file(monkeypatch: pytest.MonkeyPatch) -> None:
    _connection(monkeypatch, "w", conn_type="duckdb", host="/data/shop.duckdb")
    assert warehouse_source("w") == "duckdb:////data/shop.duckdb"


def test_a_duckdb_connection_that_says_more_is_for_its_hook(monkeypatch: pytest.MonkeyPatch) -> None:
    _connection(monkeypatch, "w", conn_type="duckdb", host="x.duckdb", extra='{"extensions": ["httpfs"]}')
    with pytest.raises(SettingsError, match="type duckdb cannot be queried"):  # its provider is not installed
        warehouse_source("w")


def test_a_snowflake_connection_becomes_the_options_of_its_driver(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip(
        "adbc_driver_snowflake", reason="needs Snowflake's driver: pip install '.[snowflake]'"
    )
    extra = {"account": "org-shop", "database": "sales", "warehouse": "small", "role": "reader", "region": ""}
    fields = {"login": "ann", "password": "p%40/ss", "schema": "public", "extra": json.dumps(extra)}
    _connection(monkeypatch, "w", conn_type="snowflake", **fields)
    found = warehouse_source("w")
    assert isinstance(found, str)
    options = driver_options(make_url(found))
    assert (options["username"], options["password"]) == ("ann", "p%40/ss")
    assert {name.rpartition(".")[2]: value for name, value in options.items() if ".sql." in name} == {
        "account": "org-shop",
        "auth_type": "auth_snowflake",
        "db": "sales",
        "schema": "public",
        "warehouse": "small",
        "role": "reader",
        "use_high_precision": "false",
        "login_timeout": "10s",
        "disable_telemetry": "true",
    }


@pytest.mark.parametrize(
    "extra",
    [
        {"account": "org-shop", "session_parameters": {"QUERY_TAG": "sendoff"}},
        {"account": "org-shop", "private_key_content": "open-sesame"},
        {"database": "sales"},
    ],
)
def test_a_snowflake_connection_that_says_more_is_for_its_hook(
    monkeypatch: pytest.MonkeyPatch, extra: dict[str, Any]
) -> None:
    _connection(monkeypatch, "w", conn_type="snowflake", login="ann", extra=json.dumps(extra))
    with pytest.raises(SettingsError, match="type snowflake cannot be queried") as raised:
        warehouse_source("w")
    assert "open-sesame" not in str(raised.value)


def test_a_clickhouse_connection_is_read_by_sendoff(
    monkeypatch: pytest.MonkeyPatch, clickhouse_url: str
) -> None:
    server = make_url(clickhouse_url)
    _connection(
        monkeypatch,
        "w",
        conn_type="clickhouse",
        host="127.0.0.1",
        port=server.port,
        login=server.username,
        password=str(server.password),
        schema="default",
        extra='{"secure": false, "session_settings": {"max_threads": 3}}',
    )
    found = warehouse_source("w")
    assert isinstance(found, str)
    with read(found, "SELECT toInt64(getSetting('max_threads')) AS device_id") as batches:
        assert list(build_audience(batches).identifiers) == [3]


def test_a_clickhouse_connection_without_the_driver_names_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "clickhouse_connect", None)
    _connection(monkeypatch, "w", conn_type="clickhouse", host="shop.example", password="open-sesame")
    with pytest.raises(SettingsError, match=r"airflow-provider-sendoff\[clickhouse\]") as raised:
        warehouse_source("w")
    assert "open-sesame" not in str(raised.value)


def test_a_redshift_connection_is_read_by_sendoff(monkeypatch: pytest.MonkeyPatch) -> None:
    fields = {"login": "ann", "password": "p%/w", "host": "shop.example", "schema": "sales"}
    _connection(monkeypatch, "w", conn_type="redshift", extra='{"sslmode": "verify-ca"}', **fields)
    assert warehouse_source("w") == "redshift://ann:p%25%2Fw@shop.example/sales?sslmode=verify-ca"


def test_a_redshift_connection_with_iam_is_for_its_hook(monkeypatch: pytest.MonkeyPatch) -> None:
    _connection(monkeypatch, "w", conn_type="redshift", host="shop.example", extra='{"iam": true}')
    with pytest.raises(SettingsError, match="type redshift cannot be queried"):
        warehouse_source("w")


def test_a_databricks_connection_is_read_by_sendoff(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("databricks.sql", reason="needs Databricks' connector: pip install '.[databricks]'")
    fields = {"password": "d/1", "host": "shop.example", "schema": "public"}
    _connection(monkeypatch, "w", conn_type="databricks", extra='{"http_path": "/w"}', **fields)
    assert warehouse_source("w") == "databricks://token:d%2F1@shop.example//public?http_path=%2Fw"


@pytest.mark.parametrize("type_", ["google_cloud_platform", "gcpbigquery"])
def test_a_google_connection_is_read_by_sendoff(monkeypatch: pytest.MonkeyPatch, type_: str) -> None:
    pytest.importorskip(
        "google.cloud.bigquery_storage", reason="needs BigQuery's clients: pip install '.[bigquery]'"
    )
    extra = '{"project": "shop", "key_path": "/key.json", "num_retries": 5}'
    _connection(monkeypatch, "w", conn_type=type_, extra=extra)
    assert warehouse_source("w") == "bigquery://shop?key_path=%2Fkey.json"


class ShopHook(DbApiHook):
    """A provider's hook for a database without a SQLAlchemy dialect."""

    conn_name_attr = "shop_conn_id"
    conn_type = "shop"
    placeholder = "?"

    def get_conn(self) -> sqlite3.Connection:
        return sqlite3.connect(self.get_connection(self.get_conn_id()).host)


class DialectHook(ShopHook):
    """The same, for a database with a SQLAlchemy dialect."""

    @property
    def sqlalchemy_url(self) -> Any:
        return make_url(f"sqlite:///{self.get_connection(self.get_conn_id()).host}")


@pytest.fixture
def shop(tmp_path: Path) -> str:
    rows = [(n, "ios") for n in range(1, 1_001)]
    make_warehouse(tmp_path / "shop.db", "devices (device_id INTEGER, platform TEXT)", rows)
    return str(tmp_path / "shop.db")


@pytest.mark.parametrize(("hook", "kind"), [(ShopHook, Cursors), (DialectHook, Engine)])
def test_whatever_has_a_hook_of_sql_is_a_warehouse(
    monkeypatch: pytest.MonkeyPatch, shop: str, hook: type[DbApiHook], kind: type
) -> None:
    _connection(monkeypatch, "w", conn_type="shop", host=shop, password="open-sesame")
    monkeypatch.setattr(Connection, "get_hook", lambda self: hook(shop_conn_id=self.conn_id))
    found = warehouse_source("w")
    assert isinstance(found, kind)
    assert "open-sesame" not in repr(found)
    sql = "SELECT device_id, platform FROM devices WHERE device_id <= :most AND '%' <> :most -- :none?"
    with read(found, sql, parameters={"most": 900}, batch_rows=100) as batches:
        audience = build_audience(batches)
    assert list(audience.identifiers) == list(range(1, 901))
    with read(found, "SELECT device_id FROM devices WHERE device_id % 2 = 0") as batches:
        assert build_audience(batches).rows == 500


@pytest.mark.parametrize(
    ("sql", "message"),
    [
        ("SELECT nosuch FROM devices", "the warehouse said: no such column: nosuch"),
        ("SELECT :unknown FROM devices", "uses :unknown, but its parameters are none"),
        ("DELETE FROM devices", "begins with DELETE"),
        ("SELECT 1 AS device_id; DELETE FROM devices", "more than one statement"),
    ],
)
def test_a_wrong_query_through_a_hook_is_told(
    monkeypatch: pytest.MonkeyPatch, shop: str, sql: str, message: str
) -> None:
    _connection(monkeypatch, "w", conn_type="shop", host=shop)
    monkeypatch.setattr(Connection, "get_hook", lambda self: ShopHook(shop_conn_id=self.conn_id))
    with pytest.raises(QueryError, match=message), read(warehouse_source("w"), sql) as batches:
        build_audience(batches)


def test_a_hook_that_cannot_connect_is_told_without_its_password(
    monkeypatch: pytest.MonkeyPatch, free_port: int
) -> None:
    class Down(ShopHook):
        def get_conn(self) -> sqlite3.Connection:
            raise RuntimeError("cannot connect with open-sesame")

    fields = {"host": "127.0.0.1", "port": free_port, "password": "open-sesame"}
    monkeypatch.setenv("AIRFLOW_CONN_W", json.dumps({"conn_type": "shop", **fields}))
    monkeypatch.setattr(Connection, "get_hook", lambda self: Down(shop_conn_id=self.conn_id))
    with (
        pytest.raises(WarehouseUnavailableError, match="cannot connect with …") as raised,
        read(warehouse_source("w"), "SELECT 1 AS device_id"),
    ):
        pass
    assert "open-sesame" not in "".join(traceback.format_exception(raised.value))


def test_a_hook_whose_mark_is_unknown_is_told(monkeypatch: pytest.MonkeyPatch, shop: str) -> None:
    class Numbered(ShopHook):
        placeholder = ":1"

    _connection(monkeypatch, "w", conn_type="shop", host=shop)
    monkeypatch.setattr(Connection, "get_hook", lambda self: Numbered(shop_conn_id=self.conn_id))
    with (
        pytest.raises(QueryError, match="placeholder is :1"),
        read(warehouse_source("w"), "SELECT 1"),
    ):
        pass


def test_a_ledger_connection_of_another_kind_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    _connection(monkeypatch, "sendoff_ledger", conn_type="http", host="x", password="open-sesame")
    with pytest.raises(
        SettingsError, match="type http is none of postgres, postgresql, sendoff_ledger, sqlite"
    ):
        open_ledger()


def test_extras_that_are_no_json_object_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    _connection(monkeypatch, "w", conn_type="postgres", host="x", extra='["open-sesame"]')
    with pytest.raises(SettingsError, match=r"connection w: the extra fields are not a JSON object$"):
        warehouse_source("w")


@pytest.fixture(autouse=True)
def _nothing_is_set(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    for name in ("SENDOFF_LEDGER_URL", "SENDOFF_PUBLIC_URL", "SENDOFF_POST_BACK_SECRETS"):
        monkeypatch.delenv(name, raising=False)
    return


def _connection(monkeypatch: pytest.MonkeyPatch, conn_id: str, **fields: Any) -> None:
    monkeypatch.setenv(f"AIRFLOW_CONN_{conn_id.upper()}", json.dumps(fields))
