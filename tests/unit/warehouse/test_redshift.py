"""Redshift as a warehouse: its driver against PostgreSQL, behind a proxy that greets as Redshift does."""

from __future__ import annotations

import logging
import traceback
from collections.abc import Iterator
from datetime import UTC, datetime
from typing import Any

import psycopg
import pytest
import sqlalchemy as sa
from psycopg.conninfo import make_conninfo

from sendoff.errors import QueryError
from sendoff.warehouse import Fields, address_of, read
from sendoff.warehouse.databases.redshift import OPTIONS, driver_options, url_of
from sendoff.warehouse.drivers import driver_of

from ...redshift_server import Redshift, redshift_server
from ...waiting import until
from .reading import audience, end_task_while, growth, refusal

pytestmark = pytest.mark.proof

BEGIN = ["BEGIN READ ONLY", "SET timezone TO 'UTC'"]
SLOW = "SELECT n AS device_id FROM generate_series(1, 3) n, pg_sleep(600) WHERE 'a lasting one' <> ''"
ENDLESS = "SELECT generate_series(1, 1000000000) AS device_id WHERE 'an unending one' <> ''"
RUNNING = (
    "SELECT count(*) FROM pg_stat_activity "
    "WHERE datname = current_database() AND state = 'active' AND query LIKE %s AND pid <> pg_backend_pid()"
)


@pytest.fixture
def redshift(postgres_url: str) -> Iterator[Redshift]:
    with redshift_server(postgres_url) as server:
        yield server


def running(redshift: Redshift, words: str) -> int:
    uri = redshift.upstream.set(drivername="postgresql").render_as_string(hide_password=False)
    with psycopg.connect(uri) as db:
        row = db.execute(RUNNING, [f"%{words}%"]).fetchone()
    assert row is not None
    return int(row[0])


def test_rows_of_several_batches_are_an_audience(redshift: Redshift) -> None:
    sql = """
        SELECT n AS device_id, CASE n % 2 WHEN 0 THEN 'ios' ELSE 'android' END AS platform
        FROM generate_series(1, 5000) n
    """
    made = audience(redshift.url, sql, batch_rows=1_000)
    assert list(made.identifiers) == list(range(1, 5_001))
    assert {name: len(ids) for name, ids in made.groups["platform"].items()} == {
        "ios": 2_500,
        "android": 2_500,
    }


@pytest.mark.parametrize("type_", ["smallint", "integer", "bigint", "varchar(9)", "char(1)"])
def test_numbers_and_texts_identify_people(redshift: Redshift, type_: str) -> None:
    name = "external_id" if "char" in type_ else "device_id"
    made = audience(
        redshift.url, f"SELECT v::{type_} AS {name} FROM (SELECT '7' AS v UNION ALL SELECT NULL) x"
    )
    assert (len(made.identifiers), made.dropped["null"]) == (1, 1)


@pytest.mark.parametrize("value", ["0.5", "1::float8", "7::numeric", "DATE '2026-03-01'"])
def test_other_types_are_refused(redshift: Redshift, value: str) -> None:
    assert "device_id" in refusal(redshift.url, f"SELECT {value} AS device_id")


def test_only_statements_that_redshift_has_are_run(redshift: Redshift) -> None:
    assert audience(redshift.url, "SELECT 1 AS device_id").identifiers
    assert [each.strip() for each in redshift.statements] == [*BEGIN, "SELECT 1 AS device_id"]
    assert redshift.options["application_name"] == "sendoff"
    assert redshift.options["client_encoding"] == "UTF8"


def test_a_query_without_rows_still_gives_its_columns(redshift: Redshift) -> None:
    sql = "WITH x AS (SELECT 1 AS device_id) SELECT device_id FROM x WHERE device_id = :part -- none"
    with read(redshift.url, sql, partitions=1) as batches:
        assert [(batch.num_rows, batch.schema.names) for batch in batches] == [(0, ["device_id"])]


def test_the_period_is_in_utc_and_texts_arrive_as_they_are(redshift: Redshift) -> None:
    parameters = {"period_end": datetime(2026, 3, 1, 10, 30, tzinfo=UTC), "who": "o'clock\\ %s 100%"}
    sql = (
        "SELECT :period_end = TIMESTAMP '2026-03-01 10:30:00' AS a, :who AS b, '50%' AS c, 'é'::varchar AS d"
    )
    with read(redshift.url, sql, parameters=parameters) as batches:
        [row] = [row for batch in batches for row in batch.to_pylist()]
    assert row == {"a": True, "b": parameters["who"], "c": "50%", "d": "é"}


def test_a_query_cannot_write(redshift: Redshift) -> None:
    assert "read-only transaction" in refusal(redshift.url, "SELECT 1 AS device_id INTO written")


# The end of a query


def test_memory_does_not_grow_with_the_rows(redshift: Redshift) -> None:
    sql = "SELECT n AS device_id, 'platform ' || n AS platform FROM generate_series(1, 1000000) n"
    rows, kib = growth(redshift.url, sql)
    assert rows > 900_000
    assert kib < 60_000  # two batches of Python objects; all rows would be several hundred MB


def test_a_reader_that_stops_ends_the_query(redshift: Redshift) -> None:
    with read(redshift.url, ENDLESS) as batches:
        next(batches)
        assert running(redshift, "an unending one") == 1
    assert redshift.cancelled
    until(lambda: running(redshift, "an unending one") == 0)


@pytest.mark.parametrize(("sql", "words"), [(SLOW, "a lasting one"), (ENDLESS, "an unending one")])
def test_a_task_that_is_ended_ends_its_query(redshift: Redshift, sql: str, words: str) -> None:
    end_task_while(lambda: running(redshift, words) == 1, redshift.url, sql)
    until(lambda: running(redshift, words) == 0)


# Errors


@pytest.mark.promise("private/secrets")
def test_no_data_is_in_an_error_or_a_log(redshift: Redshift, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.WARNING)
    word = "plan" + "ted"
    with pytest.raises(QueryError, match="invalid input syntax") as caught:
        audience(redshift.url, "SELECT CAST(:who AS BIGINT) AS device_id", parameters={"who": word})
    assert word not in "".join(traceback.format_exception(caught.value)) + caplog.text


def test_a_mistake_is_told_with_its_names_and_place(redshift: Redshift) -> None:
    assert refusal(redshift.url, "SELECT nosuch") == (
        'the warehouse said: column "nosuch" does not exist (line 1, column 8: SELECT nosuch)'
    )


@pytest.mark.promise("private/secrets")
def test_a_password_is_not_sent_to_a_server_without_encryption(redshift: Redshift) -> None:
    url = sa.make_url(redshift.url).set(query={}).render_as_string(hide_password=False)
    assert "does not support SSL" in refusal(url, "SELECT 1 AS device_id")
    assert not redshift.options


# URLs and connections


def test_a_url_becomes_options_of_the_driver() -> None:
    found = driver_options(address_of("redshift://ann:pa55%2Fword@db/sales?sslrootcert=/ca.pem"))
    assert {name: found[name] for name in ("host", "port", "user", "password", "dbname")} == {
        "host": "db",
        "port": 5439,
        "user": "ann",
        "password": "pa55/word",
        "dbname": "sales",
    }
    assert (found["sslmode"], found["sslrootcert"]) == ("verify-full", "/ca.pem")
    assert make_conninfo(**found, **{name: "1" for name in OPTIONS if name not in found})  # knows them all


@pytest.mark.parametrize(
    ("url", "message"),
    [
        ("redshift:///sales", "has no host"),
        ("redshift://ann:pa55word@db/sales?sslmod=x", "has sslmod. Use sslmode"),
    ],
)
def test_a_wrong_url_is_told_without_the_password(url: str, message: str) -> None:
    with pytest.raises(QueryError) as caught:
        driver_options(sa.make_url(url))
    assert message in str(caught.value)
    assert "pa55word" not in str(caught.value)


def test_a_url_with_a_dialect_is_for_sqlalchemy() -> None:
    assert driver_of(sa.make_url("redshift+psycopg2://ann@db/sales")) is None


def test_an_airflow_connection_becomes_a_url() -> None:
    def url(**extra: Any) -> sa.URL | None:
        return url_of(Fields("db", None, "ann", "p%/w", "sales", extra))

    plain = sa.URL.create("redshift", "ann", "p%/w", "db", None, "sales")
    assert url() == url(ssl=True) == plain
    assert url(sslmode="verify-ca", timeout=5) == plain.set(
        query={"sslmode": "verify-ca", "connect_timeout": "5"}
    )
    assert url(ssl=False) == plain.set(query={"sslmode": "disable"})
    assert [url(iam=True, cluster_identifier="c"), url(is_serverless=True)] == [None, None]
    assert url_of(Fields(None, None, "ann", None, "sales", {})) is None
