"""MySQL and MariaDB as warehouses, against a real MariaDB server."""

from __future__ import annotations

import logging
import signal
import traceback
from collections.abc import Iterator
from contextlib import closing
from datetime import UTC, datetime
from typing import Any

import pytest
import sqlalchemy as sa

from sendoff.errors import QueryError, WarehouseUnavailableError
from sendoff.warehouse import Fields, address_of, driver_of_type, read
from sendoff.warehouse.databases.mysql import OPTIONS, accepts, driver_options

from ...waiting import until
from .reading import audience, end_task_while, growth, refusal

pytestmark = pytest.mark.proof

SLOW = "SELECT seq AS device_id FROM seq_1_to_3 WHERE sleep(600) = 0 OR 'a slow one' = ''"
ENDLESS = "SELECT a.seq AS device_id FROM seq_1_to_1000000 a, seq_1_to_1000000 b WHERE 'an endless one' <> ''"


class Shop:
    """A MariaDB database, as its administrator sees it."""

    def __init__(self, url: str) -> None:
        self.url = url
        self.opened: Any = __import__("pymysql").connect(**driver_options(sa.make_url(url)), autocommit=True)

    def run(self, *statements: str) -> Any:
        with self.opened.cursor() as cursor:
            for statement in statements:
                cursor.execute(statement)
            return cursor.fetchone()

    def running(self, words: str) -> int:
        """Return how many queries run that have these words. This query has them in reverse."""
        (found,) = self.run(
            "SELECT count(*) FROM information_schema.processlist "
            f"WHERE info LIKE concat('%', reverse('{words[::-1]}'), '%')"
        )
        return int(found)


@pytest.fixture
def shop(mariadb_url: str) -> Iterator[Shop]:
    found = Shop(mariadb_url)
    with closing(found.opened):
        yield found


@pytest.mark.parametrize("type_", ["TINYINT", "INT UNSIGNED", "BIGINT", "BIGINT UNSIGNED"])
def test_whole_numbers_of_every_width_identify_people(shop: Shop, type_: str) -> None:
    shop.run("DROP TABLE IF EXISTS numbered", f"CREATE TABLE numbered (device_id {type_})")
    shop.run("INSERT INTO numbered VALUES (1), (NULL), (3), (3)")
    made = audience(shop.url, "SELECT device_id FROM numbered")
    assert (list(made.identifiers), made.dropped["null"]) == ([1, 3], 1)


@pytest.mark.parametrize("type_", ["VARCHAR(9)", "CHAR(9)", "TEXT", "ENUM('anna')"])
def test_texts_of_every_type_identify_people(shop: Shop, type_: str) -> None:
    shop.run("DROP TABLE IF EXISTS named", f"CREATE TABLE named (external_id {type_})")
    shop.run("INSERT INTO named VALUES ('anna')")
    assert len(audience(shop.url, "SELECT external_id FROM named").identifiers) == 1


@pytest.mark.parametrize("value", ["0.5", "1e0", "x'41'", "DATE '2026-03-01'"])
def test_other_types_are_refused(shop: Shop, value: str) -> None:
    assert "device_id" in refusal(shop.url, f"SELECT {value} AS device_id")


def test_the_period_is_in_utc_and_texts_arrive_as_they_are(shop: Shop) -> None:
    parameters = {"period_end": datetime(2026, 3, 1, 10, 30, tzinfo=UTC), "who": "o'clock\\ %s 100%"}
    sql = (
        "SELECT unix_timestamp(:period_end) AS a, :who AS b, '50%' AS c, CAST(from_unixtime(0) AS CHAR) AS d"
    )
    with read(shop.url, sql, parameters=parameters) as batches:
        [row] = [row for batch in batches for row in batch.to_pylist()]
    assert int(row["a"]) == int(parameters["period_end"].timestamp())
    assert (row["b"], row["c"], row["d"]) == (parameters["who"], "50%", "1970-01-01 00:00:00")


def test_memory_does_not_grow_with_the_rows(shop: Shop) -> None:
    sql = "SELECT seq AS device_id, concat('platform ', seq) AS platform FROM seq_1_to_1000000"
    rows, kib = growth(shop.url, sql)
    assert rows > 900_000
    assert kib < 60_000  # two batches of Python objects; all rows would be several hundred MB


def test_a_reader_that_stops_ends_the_query(shop: Shop) -> None:
    with read(shop.url, ENDLESS) as batches:
        next(batches)
        assert shop.running("an endless one") == 1
    until(lambda: shop.running("an endless one") == 0)


# MariaDB notices that a killed client is gone when it sends the next rows.
@pytest.mark.parametrize(
    ("sql", "words", "way"),
    [
        (SLOW, "a slow one", signal.SIGTERM),
        (ENDLESS, "an endless one", signal.SIGTERM),
        (ENDLESS, "an endless one", signal.SIGKILL),
    ],
)
def test_a_query_ends_with_the_process_that_asked_it(
    shop: Shop, sql: str, words: str, way: signal.Signals
) -> None:
    end_task_while(lambda: shop.running(words) == 1, shop.url, sql, way)
    until(lambda: shop.running(words) == 0)


@pytest.mark.promise("private/secrets")
def test_no_data_and_no_password_is_in_an_error_or_a_log(
    shop: Shop, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    told, word = "", "plan" + "ted"
    wrong = shop.url.replace("pa55word", "wr0ng-word")
    mistake = "SELECT nosuch FROM seq_1_to_3 WHERE seq = :who"
    value = "SELECT updatexml(1, concat('~', reverse(:who)), 1) AS n"
    for sql, who in ((mistake, word), (value, word[::-1])):
        with pytest.raises(QueryError) as caught:
            audience(shop.url, sql, parameters={"who": who})
        told += "".join(traceback.format_exception(caught.value))
    assert "XPATH syntax error" in told
    with pytest.raises(QueryError, match="Access denied") as caught:
        audience(wrong, "SELECT 1 AS device_id")
    assert not isinstance(caught.value, WarehouseUnavailableError)
    told += "".join(traceback.format_exception(caught.value)) + caplog.text
    assert "planted" not in told
    assert "wr0ng-word" not in told


def test_a_query_cannot_write(shop: Shop) -> None:
    shop.run(
        "CREATE TABLE IF NOT EXISTS written (n INT)",
        "CREATE OR REPLACE FUNCTION writes() RETURNS INT BEGIN INSERT INTO written VALUES (1); RETURN 1; END",
    )
    assert "READ ONLY transaction" in refusal(shop.url, "SELECT writes() AS device_id")
    assert shop.run("SELECT count(*) FROM written") == (0,)


def test_both_names_of_the_database_and_of_the_driver_are_read(shop: Shop) -> None:
    for name in ("mysql", "mariadb", "mysql+pymysql"):
        assert list(audience(shop.url.replace("mariadb", name, 1), "SELECT 7 AS device_id").identifiers) == [
            7
        ]
    assert not accepts(address_of("mysql+mysqldb://ann@db/shop"))


def test_every_option_is_one_of_the_driver() -> None:
    from inspect import signature

    from pymysql.connections import Connection

    url = address_of("mysql://ann:pa55%2Fword@db/shop?ssl_ca=/ca.pem&ssl_verify_cert=true")
    found = driver_options(url)
    assert {*found, *OPTIONS} <= set(signature(Connection).parameters)
    assert (found["password"], found["port"], found["ssl_ca"]) == ("pa55/word", 3306, "/ca.pem")
    assert found["ssl_verify_cert"] is True
    with pytest.raises(QueryError, match=r"has ssl_caa\. Use unix_socket") as caught:
        driver_options(address_of("mysql://ann:pa55word@db/shop?ssl_caa=x"))
    assert "pa55word" not in str(caught.value)


@pytest.mark.parametrize("name", ["mysql", "mariadb"])
def test_an_airflow_connection_becomes_a_url(name: str) -> None:
    driver = driver_of_type(name)
    assert driver is not None

    def url(**extra: Any) -> sa.URL | None:
        return driver.url_of(Fields("db", 3307, "ann", "p%/w", "shop", extra))

    plain = sa.URL.create(name, "ann", "p%/w", "db", 3307, "shop")
    assert url() == url(cursor="sscursor", client="mysqlclient") == plain
    assert url(ssl={"ca": "/ca.pem"}, charset="utf8mb4") == plain.set(
        query={"ssl_ca": "/ca.pem", "charset": "utf8mb4"}
    )
    assert [url(iam=True), url(ssl="{}"), url(ssl_mode="REQUIRED")] == [None, None, None]
