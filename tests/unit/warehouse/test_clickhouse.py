"""ClickHouse as a warehouse: its client, against ClickHouse's engine behind ClickHouse's HTTP interface."""

from __future__ import annotations

import json
import logging
import signal
import traceback
from datetime import UTC, datetime
from typing import Any

import pytest
import sqlalchemy as sa

from sendoff.errors import QueryError, WarehouseUnavailableError
from sendoff.warehouse import Fields, address_of, read
from sendoff.warehouse.databases.clickhouse import client_options, url_of
from sendoff.warehouse.query import Query

from ...waiting import until
from .reading import audience, end_task_while, growth, refusal

pytestmark = pytest.mark.proof

URL = "clickhouse://ann:pa55%2Fword@shop.example/sales?secure=true&max_execution_time=60"
SLOW = "SELECT sum(number) AS device_id FROM numbers(1000000000000) WHERE 'a slow one' <> ''"
ENDLESS = "SELECT number AS device_id FROM numbers(1000000000000) WHERE 'an endless one' <> ''"


class Shop:
    """A ClickHouse server, as its administrator sees it."""

    def __init__(self, url: str) -> None:
        import clickhouse_connect

        self.url = url
        at = sa.make_url(url)
        self._client = clickhouse_connect.get_client(
            host=at.host, port=at.port, username=at.username, password=str(at.password)
        )

    def run(self, *statements: str) -> Any:
        return [self._client.command(statement) for statement in statements][-1]

    def running(self, words: str) -> int:
        """Return how many queries run that have these words. This query has them in reverse."""
        sql = f"SELECT count() FROM system.processes WHERE position(query, reverse('{words[::-1]}')) > 0"
        return int(self.run(sql))


@pytest.fixture
def shop(clickhouse_url: str) -> Shop:
    return Shop(clickhouse_url)


# Types


@pytest.mark.parametrize(
    ("type_", "values", "found"),
    [
        ("Int64", "(1), (3), (3)", [1, 3]),
        ("Nullable(Int64)", "(1), (NULL), (3)", [1, 3]),
        ("UInt8", "(1), (255)", [1, 255]),
        ("UInt64", "(1), (9223372036854775807)", [1, 2**63 - 1]),
        ("Decimal(18, 0)", "(1), (7)", [1, 7]),
        ("Nullable(Decimal(38, 0))", "(1), (NULL)", [1]),
    ],
)
def test_whole_numbers_of_every_width_identify_people(
    shop: Shop, type_: str, values: str, found: list[int]
) -> None:
    shop.run(
        "DROP TABLE IF EXISTS numbered",
        f"CREATE TABLE numbered (device_id {type_}) ENGINE = Memory",
        f"INSERT INTO numbered VALUES {values}",
    )
    made = audience(shop.url, "SELECT device_id FROM numbered")
    assert list(made.identifiers) == found
    assert made.dropped["null"] == values.count("NULL")


@pytest.mark.parametrize(
    "type_", ["String", "LowCardinality(String)", "Nullable(String)", "LowCardinality(Nullable(String))"]
)
def test_texts_of_every_type_identify_people(shop: Shop, type_: str) -> None:
    value = f"CAST(concat('user ', toString(number)) AS {type_})"
    made = audience(shop.url, f"SELECT {value} AS external_id FROM numbers(3)")
    assert len(made.identifiers) == 3


@pytest.mark.parametrize("value", ["toFloat64(1)", "toDecimal64(1, 2)"])
def test_other_numbers_are_refused_with_the_cast_that_mends_it(shop: Shop, value: str) -> None:
    said = refusal(shop.url, f"SELECT {value} AS device_id")
    assert "CAST(device_id AS BIGINT)" in said
    assert list(audience(shop.url, f"SELECT CAST({value} AS BIGINT) AS device_id").identifiers) == [1]


@pytest.mark.parametrize(
    ("value", "text"),
    [
        ("CAST('ann' AS Enum8('ann' = 1))", "ann"),
        ("CAST(NULL AS Nullable(Enum16('ann' = 1)))", None),
        ("toUUID('61f0c404-5cb3-11e7-907b-a6006ad3dba0')", "61f0c404-5cb3-11e7-907b-a6006ad3dba0"),
        ("toIPv4('192.0.2.1')", "192.0.2.1"),
        ("toDateTime('2026-03-01 12:00:00', 'UTC')", datetime(2026, 3, 1, 12, tzinfo=UTC)),
        ("CAST(NULL AS Nullable(DateTime))", None),
    ],
)
def test_a_type_that_arrow_has_only_as_a_number_is_not_read_as_one(shop: Shop, value: str, text: Any) -> None:
    with read(shop.url, f"SELECT {value} AS `a\\`b`, 'it''s' AS c -- a comment") as batches:
        assert [row for batch in batches for row in batch.to_pylist()] == [{"a`b": text, "c": "it's"}]


def test_a_text_of_a_fixed_length_is_refused_with_the_cast_that_mends_it(shop: Shop) -> None:
    value = "toFixedString('ann', 3)"
    assert "CAST(external_id AS TEXT)" in refusal(shop.url, f"SELECT {value} AS external_id")
    assert len(audience(shop.url, f"SELECT CAST({value} AS TEXT) AS external_id").identifiers) == 1


# The period


def test_moments_and_texts_are_written_as_clickhouse_reads_them(shop: Shop) -> None:
    parameters = {"period_end": datetime(2026, 3, 1, 10, 30, tzinfo=UTC), "who": "o'clock\\"}
    query = Query("SELECT :period_end AS a, :who AS b", parameters, 1, address_of(URL))
    expected = "SELECT toDateTime64('2026-03-01 10:30:00.000000', 6, 'UTC') AS a, 'o''clock\\\\' AS b"
    assert query.with_literals().strip() == expected
    sql = "SELECT toUnixTimestamp(:period_end) AS a, :who AS b, toString(toDateTime(0)) AS c"
    with read(shop.url, sql, parameters=parameters) as batches:
        [row] = [row for batch in batches for row in batch.to_pylist()]
    assert row == {
        "a": int(parameters["period_end"].timestamp()),
        "b": parameters["who"],
        "c": "1970-01-01 00:00:00",
    }


# Memory


def test_a_large_result_is_read_in_small_batches(shop: Shop) -> None:
    with read(shop.url, "SELECT number AS device_id FROM numbers(1000000)") as batches:
        rows = [batch.num_rows for batch in batches]
    assert sum(rows) == 1_000_000
    assert max(rows) <= 65_536


def test_memory_does_not_grow_with_the_rows(shop: Shop) -> None:
    sql = "SELECT number AS device_id, toString(number) AS platform FROM numbers(20000000)"
    rows, kib = growth(shop.url, sql)
    assert rows > 19_000_000
    assert kib < 50_000  # the rows would be some 400 MB


# The end of a query


def test_a_reader_that_stops_ends_the_query(shop: Shop) -> None:
    with read(shop.url, ENDLESS) as batches:
        next(batches)
        assert shop.running("an endless one") == 1
    until(lambda: shop.running("an endless one") == 0)


@pytest.mark.parametrize("way", [signal.SIGTERM, signal.SIGKILL])
@pytest.mark.parametrize(("sql", "words"), [(SLOW, "a slow one"), (ENDLESS, "an endless one")])
def test_a_query_ends_with_the_process_that_asked_it(
    shop: Shop, way: signal.Signals, sql: str, words: str
) -> None:
    end_task_while(lambda: shop.running(words) == 1, shop.url, sql, way)
    until(lambda: shop.running(words) == 0)


# Errors


def test_a_mistake_is_told_with_its_names(shop: Shop) -> None:
    assert "`nosuch`" in refusal(shop.url, "SELECT nosuch AS device_id FROM numbers(1)")
    assert "(line 3, col 6)" in refusal(shop.url, "SELECT number\nFROM numbers(3)\nWHER true AND 1 = 1")


@pytest.mark.promise("private/secrets")
def test_no_data_is_in_an_error_or_a_log(shop: Shop, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    planted = "concat('pl', 'anted', '@example.com')"
    at_once = f"SELECT toInt64({planted}) AS device_id"
    later = (
        f"SELECT toInt64(if(number = 90, {planted}, toString(number))) AS device_id, sleepEachRow(0.001) AS pause "
        "FROM numbers(100)"
    )
    for sql, options in ((at_once, {}), (later, {"batch_rows": 10})):
        with pytest.raises(QueryError, match="Cannot parse string") as caught:
            audience(shop.url, sql, **options)
        assert "planted" not in "".join(traceback.format_exception(caught.value))
    with pytest.raises(QueryError) as caught:
        audience(
            shop.url,
            "SELECT nosuch FROM numbers(3) WHERE toString(number) = :who",
            parameters={"who": "planted"},
        )
    assert "planted" not in "".join(traceback.format_exception(caught.value)) + caplog.text


@pytest.mark.promise("private/secrets")
def test_a_password_is_in_no_error_or_log(shop: Shop, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    wrong = shop.url.replace("pa55word", "wr0ng-word")
    with pytest.raises(QueryError, match="Authentication failed") as caught:
        audience(wrong, "SELECT 1 AS device_id")
    assert not isinstance(caught.value, WarehouseUnavailableError)
    assert "wr0ng-word" not in "".join(traceback.format_exception(caught.value)) + caplog.text


def test_an_answer_that_ends_too_early_is_not_taken_for_all_rows(shop: Shop) -> None:
    with pytest.raises(QueryError, match="closed before the last row"):
        audience(
            shop.url,
            "SELECT number AS device_id, sleepEachRow(0.001) AS cut FROM numbers(1000)",
            batch_rows=10,
        )


def test_a_setting_of_the_url_reaches_the_server(shop: Shop) -> None:
    for name in ("max_threads", "ch_max_threads"):
        found = audience(f"{shop.url}?{name}=3", "SELECT toInt64(getSetting('max_threads')) AS device_id")
        assert list(found.identifiers) == [3]
    assert "'max_thread'" in refusal(f"{shop.url}?max_thread=3", "SELECT 1 AS device_id")


# Rights


@pytest.mark.parametrize("user", ["ann", "reader"])
def test_a_query_cannot_write(shop: Shop, user: str) -> None:
    url = shop.url.replace("ann:", f"{user}:")
    sql = "SELECT toInt64(number + 1) AS device_id FROM numbers(3)"
    assert list(audience(url, sql).identifiers) == [1, 2, 3]
    assert "readonly" in refusal(url, f"{sql} SETTINGS readonly = 0")


def test_a_query_may_have_settings(shop: Shop) -> None:
    found = audience(shop.url, "SELECT number + 1 AS device_id FROM numbers(3) SETTINGS max_threads = 1")
    assert list(found.identifiers) == [1, 2, 3]


# URLs and connections


def test_a_url_becomes_options_of_the_client() -> None:
    found = client_options(address_of(URL))
    assert {name: found[name] for name in ("host", "port", "username", "password", "database", "secure")} == {
        "host": "shop.example",
        "port": None,
        "username": "ann",
        "password": "pa55/word",
        "database": "sales",
        "secure": "true",
    }
    assert found["settings"] == {"max_execution_time": "60"}
    assert client_options(address_of(URL.replace("clickhouse:", "clickhousedb:"))) == found


def test_every_option_is_one_of_the_client() -> None:
    from inspect import signature

    from clickhouse_connect.driver import create_client
    from clickhouse_connect.driver.httpclient import HttpClient

    from sendoff.warehouse.databases.clickhouse import OPTIONS

    known = {*signature(create_client).parameters, *signature(HttpClient).parameters}
    assert {*OPTIONS, *client_options(address_of(URL))} <= known


def fields(extra: dict[str, Any], **others: Any) -> Fields:
    given = {"host": "shop.example", "port": None, "login": "ann", "password": "p%/w", "schema": "sales"}
    return Fields(**{**given, **others}, extra=extra)


@pytest.mark.parametrize(
    ("extra", "query"),
    [
        ({}, {}),
        ({"secure": True, "verify": False}, {"secure": "true", "verify": "false"}),
        ({"connect_timeout": 5, "client_name": None, "compress": ""}, {"connect_timeout": "5"}),
        ({"session_settings": {"max_execution_time": 60}}, {"ch_max_execution_time": "60"}),
        ({"session_settings": json.dumps({"max_threads": 2})}, {"ch_max_threads": "2"}),
        ({"session_settings": {"use_query_cache": True}}, {"ch_use_query_cache": "true"}),
        (
            {"session_settings": {"additional_table_filters": {"sales": "size > 3"}}},
            {"ch_additional_table_filters": "{'sales': 'size > 3'}"},
        ),
        ({"client_kwargs": {"ca_cert": "/ca.pem"}}, {"ca_cert": "/ca.pem"}),
    ],
)
def test_an_airflow_connection_becomes_a_url(extra: dict[str, Any], query: dict[str, str]) -> None:
    url = url_of(fields(extra))
    assert url is not None
    assert url.set(query={}) == sa.URL.create("clickhouse", "ann", "p%/w", "shop.example", None, "sales")
    assert url.query == query
    assert address_of(url.render_as_string(hide_password=False)) == url


@pytest.mark.parametrize(
    "extra",
    [
        {"client_kwargs": {"pool_mgr": "x"}},
        {"session_settings": "{"},
        {"session_settings": [1]},
        {"proxy": "x"},
    ],
)
def test_a_connection_that_says_more_is_for_its_hook(extra: dict[str, Any]) -> None:
    assert url_of(fields(extra)) is None
