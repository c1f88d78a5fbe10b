"""Queries against real databases, through each way of reading them."""

from __future__ import annotations

import re
import sqlite3
import sys
import traceback
from collections.abc import Iterator, Sequence
from contextlib import closing
from datetime import UTC, datetime, timedelta, timezone
from decimal import Decimal
from pathlib import Path
from typing import Any

import psycopg
import pyarrow as pa
import pytest
import sqlalchemy as sa
from sqlalchemy.pool import NullPool

from sendoff.audience.build import build_audience
from sendoff.errors import AudienceError, QueryError, WarehouseUnavailableError
from sendoff.warehouse import Cursors, Source, read
from sendoff.warehouse.query import Query, database_message
from sendoff.warehouse.rows import batches_of_rows

END = datetime(2026, 3, 1, 12, 30, tzinfo=timezone(timedelta(hours=2)))


@pytest.fixture
def database(tmp_path: Path) -> Path:
    return tmp_path / "ware house.db"


@pytest.fixture
def sqlite(database: Path) -> str:
    with sqlite3.connect(database) as db:
        db.execute("CREATE TABLE devices (device_id, platform, seen)")
        db.executemany(
            "INSERT INTO devices VALUES (?, ?, ?)",
            [(n, ("android", "ios", None)[n % 3], f"2026-03-0{n % 9 + 1} 00:00:00") for n in range(1, 1_001)],
        )
    db.close()
    return f"sqlite:///{database}"


WAYS = (
    "sqlite",
    "sqlite through sqlalchemy",
    "postgresql",
    "postgresql through sqlalchemy",
    "postgresql through cursors",
    "duckdb",
    "clickhouse",
    "mariadb",
)


@pytest.fixture(params=WAYS)
def source(request: pytest.FixtureRequest, tmp_path: Path, sqlite: str) -> Iterator[Source]:
    """Each way to read the same 1,000 rows."""
    url = sqlite
    if request.param == "duckdb":
        yield _duckdb(tmp_path / "ware house.duckdb")
        return
    if request.param == "mariadb":
        yield _mariadb(request.getfixturevalue("mariadb_url"))
        return
    if request.param == "clickhouse":
        yield _clickhouse(request.getfixturevalue("clickhouse_url"))
        return
    if request.param.startswith("postgresql"):
        url = request.getfixturevalue("postgres_url")
        _fill(url)
    if request.param.endswith("sqlalchemy"):
        engine = sa.create_engine(url, poolclass=NullPool)
        yield engine
        engine.dispose()
    elif request.param.endswith("cursors"):
        yield cursors_of(url)
    else:
        yield url


def cursors_of(url: str) -> Cursors:
    address = sa.make_url(url)
    uri = address.set(drivername="postgresql").render_as_string(hide_password=False)
    return Cursors(lambda: psycopg.connect(uri), "%s", address)


def _duckdb(file: Path) -> str:
    try:
        import duckdb
    except ImportError:
        pytest.skip("needs DuckDB: pip install '.[duckdb]'")
    with duckdb.connect(str(file)) as db:
        db.execute(
            "CREATE TABLE devices AS SELECT n AS device_id, [NULL, 'android', 'ios'][1 + (n + 1) % 3] AS platform, "
            "TIMESTAMPTZ '2026-03-01 00:00:00Z' + to_days((n % 9)::INTEGER) AS seen FROM range(1, 1001) t(n)"
        )
    return f"duckdb:///{file}"


def _mariadb(url: str) -> str:
    import pymysql

    at = sa.make_url(url)
    with closing(
        pymysql.connect(
            host=at.host, port=at.port, user=at.username, password=str(at.password), database=at.database
        )
    ) as server:
        server.query("DROP TABLE IF EXISTS devices")
        server.query(
            "CREATE TABLE devices AS SELECT CAST(seq AS SIGNED) AS device_id, "
            "ELT(1 + (seq + 1) % 3, NULL, 'android', 'ios') AS platform, "
            "TIMESTAMP '2026-03-01 00:00:00' + INTERVAL seq % 9 DAY AS seen FROM seq_1_to_1000"
        )
        server.commit()
    return url


def _clickhouse(url: str) -> str:
    import clickhouse_connect

    at = sa.make_url(url)
    client = clickhouse_connect.get_client(
        host=at.host, port=at.port, username=at.username, password=str(at.password)
    )
    client.command("DROP TABLE IF EXISTS devices")
    client.command(
        "CREATE TABLE devices ENGINE = MergeTree ORDER BY device_id AS SELECT toInt64(number + 1) AS device_id, "
        "[NULL, 'android', 'ios'][1 + (device_id + 1) % 3] AS platform, "
        "toDateTime('2026-03-01 00:00:00', 'UTC') + toIntervalDay(device_id % 9) AS seen FROM numbers(1000)"
    )
    client.close()
    return url


def _fill(url: str) -> None:
    engine = sa.create_engine(url, poolclass=NullPool)
    with engine.begin() as db:
        db.execute(
            sa.text("CREATE TABLE IF NOT EXISTS devices (device_id bigint, platform text, seen timestamptz)")
        )
        db.execute(sa.text("TRUNCATE devices"))
        db.execute(
            sa.text(
                "INSERT INTO devices SELECT n, (ARRAY[NULL, 'android', 'ios'])[1 + (n + 1) % 3], "
                "timestamptz '2026-03-01 00:00:00Z' + n % 9 * interval '1 day' FROM generate_series(1, 1000) n"
            )
        )
    engine.dispose()


def rows(source: Source, sql: str, **options: Any) -> list[dict[str, Any]]:
    with read(source, sql, **options) as batches:
        return [row for batch in batches for row in batch.to_pylist()]


def is_mariadb(source: Source) -> bool:
    return isinstance(source, str) and source.startswith("mariadb:")


def casts(source: Source) -> tuple[str, str]:
    """Return the types of texts and whole numbers in casts."""
    return ("CHAR", "SIGNED") if is_mariadb(source) else ("TEXT", "BIGINT")


def refusal(source: Source, sql: str, **options: Any) -> str:
    with pytest.raises((QueryError, AudienceError)) as caught:
        rows(source, sql, **options)
    assert caught.value.__context__ is None or "the warehouse said" in str(caught.value.__context__)
    return str(caught.value)


def test_each_way_gives_the_same_rows(source: Source) -> None:
    found = rows(source, "SELECT device_id, platform FROM devices ORDER BY device_id")
    assert found == [{"device_id": n, "platform": ("android", "ios", None)[n % 3]} for n in range(1, 1_001)]


def test_each_way_gives_the_same_audience(source: Source) -> None:
    with read(
        source, "SELECT device_id, platform FROM devices WHERE device_id <= 9", batch_rows=2
    ) as batches:
        made = build_audience(batches)
    assert list(made.identifiers) == list(range(1, 10))
    assert {name: list(ids) for name, ids in made.groups["platform"].items()} == {
        "android": [3, 6, 9],
        "ios": [1, 4, 7],
    }


def test_rows_come_in_many_batches(source: Source) -> None:
    with read(source, "SELECT device_id FROM devices", batch_rows=100) as batches:
        sizes = [batch.num_rows for batch in batches]
    assert sum(sizes) == 1_000
    assert max(sizes) <= 200


def test_a_query_without_rows_still_gives_its_columns(source: Source) -> None:
    with read(source, "SELECT device_id, platform FROM devices WHERE device_id < 0") as batches:
        [only] = batches
    assert (only.num_rows, only.schema.names) == (0, ["device_id", "platform"])


def test_times_of_a_period_are_compared_in_utc(source: Source) -> None:
    sql = "SELECT count(*) AS n FROM devices WHERE seen >= :period_start AND seen < :period_end"
    midnight = datetime(2026, 3, 2, 2, tzinfo=timezone(timedelta(hours=2)))
    parameters = {"period_start": midnight, "period_end": midnight + timedelta(days=1), "unused": 1}
    assert rows(source, sql, parameters=parameters) == [{"n": 112}]


@pytest.mark.parametrize(
    "value", ["plain", "o'clock", "back\\slash' --", "a\\:b:c:", ":period_end", "", 7, -7]
)
def test_a_parameter_arrives_as_it_is(source: Source, value: str | int) -> None:
    text, number = casts(source)
    cast = text if isinstance(value, str) else number
    assert rows(source, f"SELECT CAST(:value AS {cast}) AS given", parameters={"value": value}) == [
        {"given": value}
    ]


def test_a_colon_in_a_text_or_a_comment_is_no_parameter(source: Source) -> None:
    sql = "SELECT ':value' AS a, ':smile: 12:30 it''s :x' AS b, /* :y */ :value AS c, '\\:' AS d -- :z"
    found = {"a": ":value", "b": ":smile: 12:30 it's :x", "c": 5, "d": ":" if is_mariadb(source) else "\\:"}
    assert rows(source, sql, parameters={"value": 5}) == [found]


def test_a_parameter_may_be_named_often_and_in_a_comment(source: Source) -> None:
    text, _ = casts(source)
    once, twice = f"CAST(:value AS {text}) = 'x'", f"CAST(:value AS {text}) <> 'y'"
    sql = f"SELECT 1 AS n -- up to :value\nWHERE {once} AND {twice} -- the end"
    assert rows(source, sql, parameters={"value": "x"}) == [{"n": 1}]


@pytest.mark.parametrize("end", [";", " ;\n", "\n-- a comment"])
def test_a_query_may_end_in_many_ways(source: Source, end: str) -> None:
    assert rows(source, f"SELECT 5 AS n{end}") == [{"n": 5}]


def test_an_unknown_parameter_is_named_beside_the_known_ones(source: Source) -> None:
    message = refusal(source, "SELECT :perod_end", parameters={"period_end": END, "period_start": END})
    assert "uses :perod_end, but its parameters are :period_end, :period_start" in message


def test_a_datetime_without_a_time_zone_is_refused(source: Source) -> None:
    naive = END.replace(tzinfo=None)
    assert "without a time zone" in refusal(source, "SELECT :period_end", parameters={"period_end": naive})


@pytest.mark.parametrize(
    ("sql", "kept"),
    [
        ("SELECT nosuch FROM devices", "nosuch"),
        ("SELECT device_id FROM nosuch", "nosuch"),
        ("SELECT device_id\nFROM devices\nWHER true", "syntax"),
    ],
)
def test_an_error_of_the_query_is_shown_with_its_names(source: Source, sql: str, kept: str) -> None:
    assert kept in refusal(source, sql).lower()


@pytest.mark.parametrize("sql", [" ;\n", "-- later", "-- later\n;", "/* later */"])
def test_an_empty_query_is_refused(source: Source, sql: str) -> None:
    assert refusal(source, sql) == "the query is empty"


@pytest.mark.parametrize(
    "sql",
    [
        "DELETE FROM devices RETURNING device_id",
        "INSERT INTO devices (device_id) VALUES (1) RETURNING device_id",
        "DROP TABLE devices",
    ],
)
def test_a_query_cannot_write(source: Source, sql: str) -> None:
    refusal(source, sql)
    assert rows(source, "SELECT count(*) AS n FROM devices") == [{"n": 1_000}]


def test_a_reader_may_stop_in_the_middle(source: Source) -> None:
    with read(source, "SELECT device_id FROM devices", batch_rows=10) as batches:
        assert next(batches).num_rows
    assert len(rows(source, "SELECT device_id FROM devices")) == 1_000


def test_an_error_of_the_reader_is_not_taken_for_one_of_the_query(source: Source) -> None:
    def store(batches: Iterator[pa.RecordBatch]) -> None:
        next(batches)
        raise OSError("disk full")

    with pytest.raises(OSError, match="disk"), read(source, "SELECT device_id FROM devices") as batches:
        store(batches)


# PostgreSQL alone


@pytest.fixture(params=["adbc", "sqlalchemy"])
def postgres(request: pytest.FixtureRequest, postgres_url: str) -> Iterator[str | sa.Engine]:
    if request.param == "adbc":
        yield postgres_url
        return
    engine = sa.create_engine(postgres_url, poolclass=NullPool)
    yield engine
    engine.dispose()


def test_the_line_of_a_mistake_is_told(postgres: str | sa.Engine) -> None:
    told = refusal(postgres, "\nSELECT 'ann@a.example' AS n\nFROM  nosuch, x")
    assert told.endswith('relation "nosuch" does not exist (line 3, column 7: FROM  nosuch, x)')


def test_where_a_parameter_moved_a_mistake_its_line_is_told_alone(postgres: str | sa.Engine) -> None:
    told = refusal(postgres, "SELECT 1 AS n\nWHERE :a = 5 AND nosuch = 3", parameters={"a": 100})
    assert told.endswith("(line 2: WHERE :a = 5 AND nosuch = 3)")


@pytest.mark.parametrize("kind", ["adbc", "sqlalchemy", "cursors"])
def test_a_parameter_that_is_cast_is_put_in(postgres_url: str, kind: str) -> None:
    engine = sa.create_engine(postgres_url, poolclass=NullPool)
    source = {"adbc": postgres_url, "sqlalchemy": engine, "cursors": cursors_of(postgres_url)}[kind]
    sql = "SELECT CAST(:period_end::date AS text) AS day, $$:period_end$$ AS word, :a::text::int AS n"
    assert rows(source, sql, parameters={"period_end": END, "a": "7"}) == [
        {"day": f"{END.astimezone(UTC):%Y-%m-%d}", "word": ":period_end", "n": 7}
    ]
    engine.dispose()


@pytest.mark.parametrize("kind", ["engine", "cursors"])
def test_a_statement_that_gives_no_result_is_told(kind: str) -> None:
    """As SELECT with INTO and a variable does on MySQL; here, a database rewrites the query."""
    if kind == "engine":
        engine = sa.create_engine("sqlite://")
        rewrite = sa.event.listens_for(engine, "before_cursor_execute", retval=True)
        rewrite(lambda *told: ("PRAGMA shrink_memory" if "SELECT" in told[2] else told[2], told[3]))
        source: Source = engine
    else:
        source = Cursors(
            lambda: sqlite3.connect(":memory:", factory=_Rewriting), "?", sa.make_url("any://host")
        )
    assert "the statement returned no result" in refusal(source, "SELECT 1 AS device_id")


class _Rewriting(sqlite3.Connection):
    def cursor(self, *_: Any) -> Any:
        return super().cursor(_RewritingCursor)


class _RewritingCursor(sqlite3.Cursor):
    def execute(self, *_: Any) -> Any:
        return super().execute("PRAGMA shrink_memory")


def test_data_of_a_row_is_never_in_an_error(postgres: str | sa.Engine) -> None:
    # The value comes from a row of the last batch, and is not in the query.
    mail = """CASE n WHEN 900 THEN reverse('moc.elpmaxe@nna') WHEN 901 THEN reverse('aes"n"htron') ELSE n::text END"""
    for number, leak in ((900, "ann"), (901, "north"), (901, "sea")):
        sql = f"SELECT CAST({mail} AS bigint) AS device_id FROM generate_series({number}, 1000) n"
        message = refusal(postgres, sql, batch_rows=50)
        assert "invalid input syntax for type bigint" in message
        assert leak not in message


def test_data_is_never_in_the_error_of_a_function_of_the_warehouse(
    postgres: str | sa.Engine, postgres_url: str
) -> None:
    with sa.create_engine(postgres_url, poolclass=NullPool).begin() as db:
        for name, more in (("plain", ""), ("coded", "USING ERRCODE = '22023'")):
            db.exec_driver_sql(
                f"CREATE OR REPLACE FUNCTION {name}(name text) RETURNS bigint LANGUAGE plpgsql AS "
                f"$$ BEGIN RAISE EXCEPTION 'no device for customer %%', name {more}; END $$"
            )
    for name in ("plain", "coded"):
        message = refusal(postgres, f"SELECT {name}(reverse('nnamretsum')) AS device_id")
        assert "no … for … …" in message


def test_a_parameter_is_never_in_an_error(postgres: str | sa.Engine) -> None:
    message = refusal(postgres, "SELECT CAST(:value AS bigint) AS n", parameters={"value": "s3cret-12345"})
    assert "invalid input syntax" in message
    assert "s3cret" not in message
    assert "12345" not in message


def test_a_number_of_a_row_is_never_in_an_error(postgres: str | sa.Engine) -> None:
    message = refusal(postgres, "SELECT CAST(repeat('9', 30) AS bigint) AS n")
    assert "999" not in message.replace("'9'", "")


@pytest.mark.parametrize(
    ("value", "cast"),
    [("1.5", "NUMERIC"), ("0f0f0f0f-0f0f-4f0f-8f0f-0f0f0f0f0f0f", "UUID"), ("x", "TEXT"), ("1", "FLOAT")],
)
def test_types_that_are_no_whole_numbers_are_refused_with_the_cure(
    postgres: str | sa.Engine, value: str, cast: str
) -> None:
    with (
        pytest.raises(AudienceError, match=r"row 1 .* CAST\(device_id AS BIGINT\) AS device_id"),
        read(postgres, f"SELECT '{value}'::{cast} AS device_id") as batches,
    ):
        build_audience(batches)


@pytest.mark.parametrize("type_", ["smallint", "integer", "bigint", "text", "varchar(9)"])
def test_types_that_identify_people_in_postgresql(postgres: str | sa.Engine, type_: str) -> None:
    column = "external_id" if type_ in ("text", "varchar(9)") else "device_id"
    with read(postgres, f"SELECT CAST(n AS {type_}) AS {column} FROM generate_series(1, 5) n") as batches:
        made = build_audience(batches)
    assert [str(each) for each in made.identifiers] == ["1", "2", "3", "4", "5"]


def test_text_after_a_column_that_began_with_nulls_is_read(postgres: str | sa.Engine) -> None:
    sql = "SELECT CASE WHEN n > 500 THEN 'id' || n END AS external_id FROM generate_series(1, 1000) n"
    with read(postgres, sql, batch_rows=50) as batches:
        made = build_audience(batches)
    assert (len(made.identifiers), made.dropped["null"]) == (500, 500)


def test_two_statements_are_refused(postgres: str | sa.Engine) -> None:
    refusal(postgres, "SELECT 1 AS n; SELECT 2 AS n")


def test_the_url_may_be_written_as_airflow_writes_it(postgres_url: str) -> None:
    assert rows(postgres_url.replace("postgresql+psycopg://", "postgres://"), "SELECT 1 AS n") == [{"n": 1}]


def test_without_its_driver_postgresql_is_read_through_sqlalchemy(
    postgres_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "adbc_driver_postgresql.dbapi", None)
    for url in (postgres_url, postgres_url.replace("+psycopg", "")):
        assert rows(url, "SELECT 1 AS n") == [{"n": 1}]


@pytest.mark.parametrize("through", ["adbc", "sqlalchemy"])
@pytest.mark.promise("private/secrets")
def test_a_password_is_in_no_error(postgres_url: str, through: str, monkeypatch: pytest.MonkeyPatch) -> None:
    if through == "sqlalchemy":
        monkeypatch.setitem(sys.modules, "adbc_driver_postgresql.dbapi", None)
    wrong = sa.make_url(postgres_url).set(username="nobody_here", password="pa55word")
    with pytest.raises(QueryError) as caught:
        rows(wrong.render_as_string(hide_password=False), "SELECT 1 AS n")
    assert "nobody_here" in str(caught.value)
    assert "pa55word" not in "".join(traceback.format_exception(caught.value))


def test_a_secret_among_the_options_of_an_address_is_in_no_error() -> None:
    url = sa.make_url("snowflake://ann@account/shop?token=planted&warehouse=small")
    told = database_message(OSError("planted was refused by small"), Query("SELECT 1", {}, 1, url))
    assert told == "the warehouse said: … was refused by small"


# No server


@pytest.mark.parametrize(
    ("url", "message"),
    [
        ("not a url", "needs a URL"),
        ("nosuchdatabase://ann:pa55word@host/none", "nosuchdatabase"),
        ("mysql+mysqldb://ann:pa55word@host/none", "needs the Python package MySQLdb"),
        (
            "sqlite:///nowhere/none.db",
            f"no SQLite database at {Path.cwd()}/nowhere/none.db; correct the path",
        ),
    ],
)
def test_a_warehouse_that_cannot_be_reached_is_told_without_the_password(url: str, message: str) -> None:
    found = refusal(url, "SELECT 1 AS n")
    assert message in found
    assert "pa55word" not in found


@pytest.mark.parametrize("through", ["adbc", "sqlalchemy"])
def test_where_nothing_answers_it_may_be_tried_again(
    through: str, free_port: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    if through == "sqlalchemy":
        monkeypatch.setitem(sys.modules, "adbc_driver_postgresql.dbapi", None)
    url = f"postgresql://ann:pa55word@127.0.0.1:{free_port}/none"
    with pytest.raises(WarehouseUnavailableError, match="Connection refused") as caught:
        rows(url, "SELECT 1 AS n")
    assert "pa55word" not in "".join(traceback.format_exception(caught.value))


# SQLite, whose columns may contain any type


def fill(database: Path, values: Sequence[Any]) -> str:
    with sqlite3.connect(database) as db:
        db.execute("CREATE TABLE answer (device_id)")
        db.executemany("INSERT INTO answer VALUES (?)", [(value,) for value in values])
    db.close()
    return f"sqlite:///{database}"


many = list(range(1, 501))


@pytest.mark.parametrize(
    ("values", "row", "held"),
    [
        (
            [1, "ann@example.com", 3],
            2,
            "text",
        ),  # in the first batch, where the driver converts all values to text
        ([1, "2", 3], 2, "text"),
        ([1, 2.5], 1, "a number that may have a fraction"),
        ([2.0, 1], 1, "a number that may have a fraction"),
        ([1, 2.5, "x"], 2, "a fraction"),
        ([1.5, "x"], 2, "text"),
        ([2**53 + 1, 2.5], 2, "a fraction"),  # a double would lose its last digit
        ([2.5, -(2**53) - 1], 2, "whole number"),
        ([*many, "ann@example.com", *many], 501, "text"),  # long after the driver has chosen the type
        ([*many, 2.5], 501, "a fraction"),
        ([*many, b"ann"], 501, "bytes"),
        ([None] * 500 + [*many, "ann@example.com"], 1_001, "text"),  # after a first batch without a type
        (["ann@example.com", *many], 1, "text"),
        (["1", "2"], 1, "text"),
        ([1.0, 2.0], 1, "a number that may have a fraction"),
        ([b"ann"], 1, "binary"),
    ],
)
@pytest.mark.parametrize("through", ["adbc", "sqlalchemy"])
def test_what_is_no_whole_number_in_sqlite_is_told_with_its_row(
    database: Path, values: list[Any], row: int, held: str, through: str
) -> None:
    source = fill(database, values)
    engine = sa.create_engine(source, poolclass=NullPool)
    with (
        pytest.raises(AudienceError) as caught,
        read(
            source if through == "adbc" else engine, "SELECT device_id FROM answer", batch_rows=100
        ) as batches,
    ):
        build_audience(batches)
    message = str(caught.value)
    assert "device_id" in message
    assert re.search(rf"{held} in row {row}\b|row {row} has {held}", message)
    assert "CAST(device_id AS BIGINT)" in message
    assert "ann" not in "".join(traceback.format_exception(caught.value))


def test_the_row_is_that_of_the_result_and_not_of_the_table(database: Path) -> None:
    source = fill(database, [*many, "x"])
    message = refusal(
        source, "SELECT device_id FROM answer WHERE device_id > 490 ORDER BY rowid", batch_rows=5
    )
    assert "and text in row 11" in message


def test_the_cast_that_is_recommended_mends_the_query(database: Path) -> None:
    source = fill(database, [1, "2", "ann", None])
    with read(source, "SELECT CAST(device_id AS BIGINT) AS device_id FROM answer") as batches:
        made = build_audience(batches)
    assert (list(made.identifiers), dict(made.dropped)) == ([1, 2], {"null": 1, "invalid": 1, "duplicate": 0})


def test_a_column_that_begins_with_nulls_is_read_in_its_own_type(database: Path) -> None:
    source = fill(database, [None] * 500 + [f"id {n}" for n in many])
    with read(source, "SELECT device_id AS external_id FROM answer", batch_rows=100) as batches:
        made = build_audience(batches)
    assert (len(made.identifiers), made.dropped["null"]) == (500, 500)


@pytest.mark.parametrize("through", ["adbc", "sqlalchemy"])
def test_whole_numbers_among_numbers_with_a_fraction_are_doubles_in_sqlite(
    database: Path, through: str
) -> None:
    values = [None, 3, 2.5, None, 2**53, *many, 0.5]
    source = fill(database, values)
    engine = sa.create_engine(source, poolclass=NullPool)
    sql = "SELECT device_id AS value FROM answer"
    with read(source if through == "adbc" else engine, sql, batch_rows=100) as batches:
        found = [batch.column("value") for batch in batches]
    assert {column.type for column in found} == {pa.float64()}
    assert [value for column in found for value in column.to_pylist()] == values


def test_a_fraction_after_a_batch_of_whole_numbers_names_the_cast_that_keeps_it(database: Path) -> None:
    source = fill(database, [*many, 2.5])
    message = refusal(source, "SELECT device_id FROM answer", batch_rows=100)
    assert "a number with a fraction in row 501" in message
    assert "CAST(device_id AS DOUBLE PRECISION) for numbers with a fraction" in message
    kept = rows(source, "SELECT CAST(device_id AS DOUBLE PRECISION) AS n FROM answer", batch_rows=100)
    assert [row["n"] for row in kept] == [*many, 2.5]


def test_texts_that_look_like_numbers_stay_texts(database: Path) -> None:
    source = fill(database, ["007", "7", "7.0"])
    with read(source, "SELECT device_id AS external_id FROM answer") as batches:
        assert list(build_audience(batches).identifiers) == ["007", "7", "7.0"]


@pytest.mark.parametrize("value", [Decimal("Infinity"), 2**64, object()])
def test_a_value_that_arrow_cannot_hold_is_an_error_with_its_column(value: object) -> None:
    given = iter([[(value,)], []])
    with pytest.raises(AudienceError, match=r"column spent contains values .* CAST\(spent AS TEXT\)"):
        list(batches_of_rows(["spent"], lambda: next(given)))


def test_an_engine_in_memory_is_read_and_stays_writable() -> None:
    engine = sa.create_engine("sqlite://", poolclass=sa.pool.StaticPool)
    with engine.begin() as db:
        db.execute(sa.text("CREATE TABLE devices AS SELECT 5 AS device_id"))
    assert rows(engine, "SELECT device_id FROM devices") == [{"device_id": 5}]
    refusal(engine, "DELETE FROM devices")
    with engine.begin() as db:
        db.execute(sa.text("INSERT INTO devices VALUES (6)"))
    assert len(rows(engine, "SELECT device_id FROM devices")) == 2
    engine.dispose()


def test_reading_a_missing_sqlite_database_makes_none(tmp_path: Path) -> None:
    refusal(f"sqlite:///{tmp_path}/none.db", "SELECT 1 AS n")
    assert list(tmp_path.iterdir()) == []


def test_a_file_that_is_no_database_is_told(tmp_path: Path) -> None:
    (tmp_path / "devices.csv").write_text("device_id\n" * 1_000)
    assert "not a database" in refusal(f"sqlite:///{tmp_path}/devices.csv", "SELECT device_id FROM devices")


def test_whole_seconds_reach_sqlite_as_it_writes_them_itself(sqlite: str) -> None:
    sql = "SELECT :period_end AS ours, datetime('2026-03-01 10:30:00') AS theirs"
    [row] = rows(sqlite, sql, parameters={"period_end": END})
    assert row["ours"] == row["theirs"]


def test_batches_are_arrow_batches(sqlite: str) -> None:
    with read(sqlite, "SELECT device_id FROM devices") as batches:
        assert {type(batch) for batch in batches} == {pa.RecordBatch}


def test_now_is_a_usable_parameter(sqlite: str) -> None:
    assert rows(sqlite, "SELECT :now > '2020' AS later", parameters={"now": datetime.now(UTC)}) == [
        {"later": 1}
    ]
