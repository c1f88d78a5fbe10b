"""Databricks as a warehouse: its connector against a small server that speaks its protocol."""

from __future__ import annotations

import json
import logging
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa

from sendoff.errors import QueryError
from sendoff.warehouse import Fields, address_of, read
from sendoff.warehouse.databases.databricks import client_options, url_of
from sendoff.warehouse.query import Query, database_message

from ...databricks_server import PATH, SECRET, SIGNATURE, TOKEN, Databricks, databricks_server
from .reading import FAILING, audience, end_task_while, traced_refusal

pytestmark = pytest.mark.proof

INSTALL = "needs Databricks' connector: pip install -c constraints.txt databricks-sql-connector"
URL = f"databricks://token:dapi%2F1@shop.example/sales/public?http_path={PATH}"


@pytest.fixture
def databricks(tmp_path: Path) -> Iterator[tuple[Databricks, str]]:
    pytest.importorskip("databricks.sql", reason=INSTALL)
    with databricks_server(tmp_path) as server:
        yield server


@pytest.mark.parametrize("way", ["inline", "in files"])
def test_rows_of_many_parts_are_an_audience(databricks: tuple[Databricks, str], way: str) -> None:
    _, url = databricks
    made = audience(
        url,
        "SELECT range + 1 AS device_id, ['ios', 'android'][1 + range % 2] AS platform "
        f"FROM range(25000) -- {way}",
        batch_rows=4_000,
    )
    assert list(made.identifiers) == list(range(1, 25_001))
    assert {name: len(ids) for name, ids in made.groups["platform"].items()} == {
        "ios": 12_500,
        "android": 12_500,
    }


@pytest.mark.parametrize("way", ["inline", "in files"])
def test_a_query_without_rows_still_gives_its_columns(databricks: tuple[Databricks, str], way: str) -> None:
    _, url = databricks
    with read(url, f"SELECT range AS device_id FROM range(0) -- {way}") as batches:
        assert [(batch.num_rows, batch.schema.names) for batch in batches] == [(0, ["device_id"])]


def test_only_as_many_rows_as_a_batch_has_are_read_ahead(databricks: tuple[Databricks, str]) -> None:
    server, url = databricks
    with read(url, "SELECT range AS device_id FROM range(1000000)", batch_rows=1_000) as batches:
        assert next(batches).num_rows == 1_000
        assert server.queries[-1].fetched < 10_000
    assert server.queries[-1].state == "CLOSED"


def test_values_are_parameters_of_the_query(databricks: tuple[Databricks, str]) -> None:
    server, url = databricks
    parameters = {
        "period_end": datetime(2026, 3, 1, 10, 30, tzinfo=UTC),
        "who": "o'clock\\' OR 1=1 --",
        "least": 2**40,
    }
    sql = "SELECT epoch(:period_end) AS a, :who AS b, '50% ?' AS c, :least AS d"
    with read(url, sql, parameters=parameters) as batches:
        [row] = [row for batch in batches for row in batch.to_pylist()]
    assert row == {
        "a": parameters["period_end"].timestamp(),
        "b": parameters["who"],
        "c": "50% ?",
        "d": 2**40,
    }
    assert server.queries[-1].sql.strip() == "SELECT epoch(?) AS a, ? AS b, '50% ?' AS c, ? AS d"


def test_a_session_is_in_utc_and_in_its_schema_and_reports_nothing(
    databricks: tuple[Databricks, str],
) -> None:
    server, url = databricks
    configuration = json.dumps({"ansi_mode": "true"})
    url = sa.make_url(url).update_query_dict({"session_configuration": configuration}).render_as_string(False)
    assert audience(url, "SELECT 1 AS device_id").identifiers
    assert [query.sql.strip() for query in server.queries] == [
        "SET TIME ZONE 'UTC'",
        "SELECT 1 AS device_id",
    ]
    [session] = server.sessions
    assert (session.initialNamespace.catalogName, session.initialNamespace.schemaName) == ("sales", "public")
    assert session.configuration["ansi_mode"] == "true"
    assert server.reports == []


# Logging in


@pytest.mark.parametrize("secret", [SECRET, "another"])
def test_a_service_principal_gets_a_token(databricks: tuple[Databricks, str], secret: str) -> None:
    server, url = databricks
    url = sa.make_url(url).set(username="principal", password=secret).render_as_string(hide_password=False)
    if secret == SECRET:
        assert audience(url, "SELECT 1 AS device_id").identifiers
        assert len(server.logins) == 1
    else:
        said = traced_refusal(url, "SELECT 1 AS device_id")
        assert "the login of the service principal was refused (401)" in said
        assert secret not in said


@pytest.mark.promise("private/secrets")
def test_a_wrong_token_is_refused_and_not_told(
    databricks: tuple[Databricks, str], caplog: pytest.LogCaptureFixture
) -> None:
    _, url = databricks
    said = traced_refusal(url.replace(TOKEN, "dapi-wrong"), "SELECT 1 AS device_id")
    assert "Invalid access token" in said
    assert "dapi-wrong" not in said + caplog.text


# The end of a query


def test_a_task_that_is_ended_ends_its_query(databricks: tuple[Databricks, str]) -> None:
    server, url = databricks
    end_task_while(lambda: len(server.queries) > 1, url, "SELECT 'a slow one' AS external_id")
    assert server.queries[-1].state == "CANCELED"


# Errors


def test_the_error_of_a_function_is_told_without_data(databricks: tuple[Databricks, str]) -> None:
    said = traced_refusal(databricks[1], FAILING)
    assert "no consent of …" in said
    assert "musterman" not in said


@pytest.mark.promise("private/secrets")
def test_no_data_is_in_an_error_or_a_log(
    databricks: tuple[Databricks, str], caplog: pytest.LogCaptureFixture
) -> None:
    _, url = databricks
    caplog.set_level(logging.WARNING)
    word = "plan" + "ted"
    said = traced_refusal(url, "SELECT CAST(:who AS BIGINT) AS device_id", parameters={"who": word})
    assert "Could not convert string" in said
    assert word not in said + caplog.text


@pytest.mark.promise("private/secrets")
@pytest.mark.parametrize("are_gone", [True, False])
def test_the_signature_of_a_file_is_not_told(
    databricks: tuple[Databricks, str], caplog: pytest.LogCaptureFixture, are_gone: bool
) -> None:
    server, url = databricks
    caplog.set_level(logging.INFO)
    server.files_are_gone = are_gone
    sql = "SELECT range AS device_id FROM range(3) -- in files"
    if are_gone:
        assert SIGNATURE not in traced_refusal(url, sql)
    else:
        audience(url, sql)
        assert f"https://{server.address}/files/" in caplog.text
    assert SIGNATURE not in caplog.text


@pytest.mark.promise("private/secrets")
def test_the_signature_of_a_file_is_not_in_an_error() -> None:
    error = OSError(f"Max retries exceeded with url: /files/1{SIGNATURE} (Caused by nothing)")
    query = Query("SELECT 1", {}, 1, sa.make_url(URL))
    assert database_message(error, query) == (
        "the warehouse said: Max retries exceeded with url: /files/1?… (Caused by nothing)"
    )


def test_a_mistake_is_told_with_its_names(databricks: tuple[Databricks, str]) -> None:
    _, url = databricks
    assert '"nosuch" not found' in traced_refusal(url, "SELECT nosuch FROM range(3)")


# URLs and connections


def test_a_url_becomes_options_of_the_connector() -> None:
    found = client_options(address_of(URL))
    assert {name: found[name] for name in ("server_hostname", "_port", "http_path", "catalog", "schema")} == {
        "server_hostname": "shop.example",
        "_port": 443,
        "http_path": PATH,
        "catalog": "sales",
        "schema": "public",
    }
    assert client_options(address_of(f"databricks://token:x@h//public?http_path={PATH}"))["catalog"] is None


@pytest.mark.parametrize(
    ("url", "message"),
    [
        ("databricks://token:pa55word@h/sales", "needs a host, a token and http_path"),
        ("databricks://h/sales?http_path=/x", "needs a host, a token and http_path"),
        ("databricks://token:pa55word@h?http_paht=/x", "has http_paht. Use http_path"),
        ("databricks://token:pa55word@h?http_path=/x&session_configuration=[]", "not a JSON object"),
    ],
)
def test_a_wrong_url_is_told_without_the_token(url: str, message: str) -> None:
    with pytest.raises(QueryError) as caught:
        client_options(sa.make_url(url))
    assert message in str(caught.value)
    assert "pa55word" not in str(caught.value)


def test_an_airflow_connection_becomes_a_url() -> None:
    def url(login: str | None = None, password: str | None = None, **extra: Any) -> sa.URL | None:
        return url_of(
            Fields("https://shop.example/", None, login, password, "public", {"http_path": PATH, **extra})
        )

    plain = sa.URL.create(
        "databricks", "token", "d/1", "shop.example", None, "/public", query={"http_path": PATH}
    )
    assert url(token="d/1") == url(password="d/1") == plain
    assert client_options(address_of(plain.render_as_string(hide_password=False)))["schema"] == "public"
    assert url(token="d/1", catalog="sales") == plain.set(database="sales/public")
    assert url("id", "d/1", service_principal_oauth=True) == plain.set(username="id")
    assert url(token="d/1", session_configuration={"a": 1}) == plain.update_query_dict(
        {"session_configuration": '{"a": 1}'}
    )
    assert [url("ann", "d/1"), url(), url(azure_tenant_id="t", token="d/1")] == [None, None, None]
