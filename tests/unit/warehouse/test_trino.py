"""Trino as a warehouse: its client against a small server that speaks its protocol."""

from __future__ import annotations

import json
import logging
import traceback
from collections.abc import Iterator
from datetime import UTC, datetime
from typing import Any

import pytest
import sqlalchemy as sa

from sendoff.errors import QueryError
from sendoff.warehouse import Fields, address_of, read
from sendoff.warehouse.databases.trino import OPTIONS, client_options, url_of
from sendoff.warehouse.query import Query

from ...trino_server import Trino, trino_server
from .reading import FAILING, audience, end_task_while, traced_refusal

pytestmark = pytest.mark.proof


@pytest.fixture
def trino() -> Iterator[str]:
    pytest.importorskip("trino", reason="needs Trino's client: pip install -c constraints.txt trino")
    with trino_server() as url:
        yield url


def test_rows_of_many_pages_are_an_audience(trino: str) -> None:
    made = audience(
        trino, "SELECT range + 1 AS device_id, ['ios', 'android'][1 + range % 2] AS platform FROM range(5000)"
    )
    assert list(made.identifiers) == list(range(1, 5_001))
    assert {name: len(ids) for name, ids in made.groups["platform"].items()} == {
        "ios": 2_500,
        "android": 2_500,
    }


def test_a_query_without_rows_still_gives_its_columns(trino: str) -> None:
    with read(trino, "SELECT range AS device_id FROM range(0)") as batches:
        assert [batch.schema.names for batch in batches] == [["device_id"]]


def test_moments_and_texts_are_written_as_trino_reads_them() -> None:
    parameters = {"period_end": datetime(2026, 3, 1, 10, 30, tzinfo=UTC), "who": "o'clock\\"}
    query = Query("SELECT :period_end AS a, :who AS b", parameters, 1, sa.make_url("trino://db/x"))
    expected = "SELECT TIMESTAMP '2026-03-01 10:30:00.000000 UTC' AS a, 'o''clock\\' AS b"
    assert query.with_literals().strip() == expected


def test_the_client_says_who_asks_and_where(trino: str) -> None:
    properties = json.dumps({"query_max_run_time": "10m"})
    url = sa.make_url(trino).update_query_dict({"client_tags": "a,b", "session_properties": properties})
    assert audience(url.render_as_string(hide_password=False), "SELECT 1 AS device_id").identifiers
    said = Trino.headers_seen
    assert {
        name: said[f"x-trino-{name}"] for name in ("user", "catalog", "schema", "source", "time-zone")
    } == {
        "user": "ann",
        "catalog": "sales",
        "schema": "public",
        "source": "sendoff",
        "time-zone": "UTC",
    }
    assert (said["x-trino-client-tags"], said["x-trino-session"]) == ("a,b", "query_max_run_time=10m")


# The end of a query


def test_a_reader_that_stops_ends_the_query(trino: str) -> None:
    with read(trino, "SELECT range AS device_id FROM range(1000000)", batch_rows=1_000) as batches:
        next(batches)
    [query] = Trino.queries.values()
    assert query.state == "CANCELLED"


def test_a_task_that_is_ended_ends_its_query(trino: str) -> None:
    end_task_while(lambda: Trino.queries, trino, "SELECT 'a slow one' AS external_id")
    [query] = Trino.queries.values()
    assert query.state == "CANCELLED"


# Errors


def test_the_error_of_a_function_is_told_without_data(trino: str) -> None:
    said = traced_refusal(trino, FAILING)
    assert "no consent of …" in said
    assert "musterman" not in said


@pytest.mark.promise("private/secrets")
def test_no_data_is_in_an_error_or_a_log(trino: str, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.WARNING)
    word = "plan" + "ted"
    with pytest.raises(QueryError, match="Could not convert string") as caught:
        audience(trino, "SELECT CAST(:who AS BIGINT) AS device_id", parameters={"who": word})
    assert word not in "".join(traceback.format_exception(caught.value)) + caplog.text


def test_a_mistake_is_told_with_its_names(trino: str) -> None:
    with pytest.raises(QueryError, match='"nosuch" not found'):
        audience(trino, "SELECT nosuch FROM range(3)")


# URLs and connections


def test_a_url_becomes_options_of_the_client() -> None:
    pytest.importorskip("trino", reason="needs Trino's client: pip install -c constraints.txt trino")
    from inspect import signature

    from trino.dbapi import Connection

    found = client_options(address_of("trino://ann:pa55%2Fword@db:8443/sales/public?verify=/ca.pem"))
    assert {*OPTIONS, *found} <= set(signature(Connection).parameters)
    assert (found["http_scheme"], found["verify"], found["port"]) == ("https", "/ca.pem", 8443)
    with pytest.raises(QueryError) as caught:
        audience("trino://ann:pa55word@db:8443/sales?http_scheme=http", "SELECT 1 AS device_id")
    assert "pa55word" not in str(caught.value)


@pytest.mark.parametrize(
    ("url", "message"),
    [
        ("trino:///sales", "has no host"),
        ("trino://ann:pa55word@db/sales?verfy=x", "has verfy. Use http_scheme"),
        ("trino://ann:pa55word@db/sales?session_properties=x", "not a JSON object"),
    ],
)
def test_a_wrong_url_is_told_without_the_password(url: str, message: str) -> None:
    with pytest.raises(QueryError) as caught:
        client_options(sa.make_url(url))
    assert message in str(caught.value)
    assert "pa55word" not in str(caught.value)


def test_an_airflow_connection_becomes_a_url() -> None:
    def url(password: str | None = None, **extra: Any) -> sa.URL | None:
        return url_of(Fields("db", 8443, "ann", password, "public", extra))

    plain = sa.URL.create("trino", "ann", None, "db", 8443, "hive/public")
    assert url() == plain
    assert url("p%/w", protocol="https", catalog="sales", client_tags=["a", "b"]) == plain.set(
        password="p%/w", database="sales/public", query={"http_scheme": "https", "client_tags": "a,b"}
    )
    assert url(verify=False, session_properties={"a": 1}) == plain.set(
        query={"verify": "false", "session_properties": '{"a": 1}'}
    )
    assert [url("p"), url(auth="jwt", jwt__token="t"), url(roles={"a": "b"})] == [None, None, None]
