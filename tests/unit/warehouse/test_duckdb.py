"""DuckDB as a warehouse: its types, its errors, and its protection against writing."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pyarrow as pa
import pytest

from sendoff.errors import AudienceError, QueryError
from sendoff.warehouse import read

from .reading import FAILING, audience, refusal

duckdb = pytest.importorskip("duckdb", reason="needs DuckDB: pip install '.[duckdb]'")
pytestmark = pytest.mark.proof

HUGE = 2**64 + 1


@pytest.fixture
def shop(tmp_path: Path) -> Path:
    return tmp_path / "shop.duckdb"


def fill(shop: Path, *statements: str) -> str:
    with duckdb.connect(str(shop)) as db:
        for statement in statements:
            db.execute(statement)
    return f"duckdb:///{shop}"


@pytest.mark.parametrize(
    ("type_", "values", "found"),
    [
        ("BIGINT", "(1), (NULL), (3), (3)", [1, 3]),
        ("UTINYINT", "(1), (255)", [1, 255]),
        ("UBIGINT", "(1), (9223372036854775807)", [1, 2**63 - 1]),
        ("HUGEINT", "(1), (NULL), (9223372036854775807)", [1, 2**63 - 1]),
        ("UHUGEINT", "(1), (7)", [1, 7]),
        ("DECIMAL(38, 0)", "(1), (7)", [1, 7]),
        ("DECIMAL(9, 0)", "(1), (7)", [1, 7]),
    ],
)
def test_whole_numbers_of_every_width_identify_people(
    shop: Path, type_: str, values: str, found: list[int]
) -> None:
    url = fill(shop, f"CREATE TABLE devices (device_id {type_})", f"INSERT INTO devices VALUES {values}")
    made = audience(url, "SELECT device_id FROM devices")
    assert list(made.identifiers) == found
    assert made.dropped["null"] == values.count("NULL")


def test_a_wide_column_and_a_narrow_one_give_the_same_audience(shop: Path) -> None:
    url = fill(shop, "CREATE TABLE devices AS SELECT n AS device_id FROM range(1, 100001) t(n)")
    wide = audience(url, "SELECT device_id::HUGEINT AS device_id FROM devices", batch_rows=1_000)
    assert wide.fingerprint == audience(url, "SELECT device_id FROM devices").fingerprint


@pytest.mark.parametrize(
    ("value", "type_", "message"),
    [
        # numbers of more than 64 bits are not identifiers, and must not be cut off
        (f"{HUGE}", "HUGEINT", r"must contain whole numbers, .* CAST\(device_id AS BIGINT\)"),
        (f"-{HUGE}", "HUGEINT", "must contain whole numbers"),
        ("1.5", "DECIMAL(9, 1)", "must contain whole numbers"),
        ("1", "DOUBLE", "a number that may have a fraction"),
        ("'1'", "VARCHAR", "has text"),
        ("'0f0f0f0f-0f0f-4f0f-8f0f-0f0f0f0f0f0f'", "UUID", "has text"),
    ],
)
def test_what_is_no_whole_number_is_refused(shop: Path, value: str, type_: str, message: str) -> None:
    url = fill(shop, f"CREATE TABLE devices AS SELECT {value}::{type_} AS device_id")
    with pytest.raises(AudienceError, match=message):
        audience(url, "SELECT device_id FROM devices")


def test_numbers_of_128_bits_are_not_cut_where_they_are_texts(shop: Path) -> None:
    url = fill(shop, f"CREATE TABLE users AS SELECT {HUGE}::HUGEINT AS external_id")
    assert "must contain text" in refusal(url, "SELECT external_id FROM users")
    cast = audience(url, "SELECT external_id::TEXT AS external_id FROM users")
    assert list(cast.identifiers) == [str(HUGE)]


@pytest.mark.parametrize("type_", ["VARCHAR", "ENUM ('a', 'ö')", "UUID"])
def test_texts_identify_people(shop: Path, type_: str) -> None:
    values = ["a", "ö"] if type_ != "UUID" else ["0f0f0f0f-0f0f-4f0f-8f0f-0f0f0f0f0f0f"]
    url = fill(
        shop,
        f"CREATE TABLE users (external_id {type_})",
        "INSERT INTO users VALUES (NULL)",
        *(f"INSERT INTO users VALUES ('{value}')" for value in values),
    )
    made = audience(url, "SELECT external_id FROM users")
    assert (list(made.identifiers), made.dropped["null"]) == (values, 1)


def test_groups_come_from_texts_and_enums(shop: Path) -> None:
    url = fill(
        shop,
        "CREATE TABLE devices (device_id BIGINT, platform ENUM ('ios', 'android'), language VARCHAR)",
        "INSERT INTO devices VALUES (1, 'ios', 'de'), (2, 'android', NULL)",
    )
    made = audience(url, "SELECT * FROM devices")
    found = {name: {value: list(ids) for value, ids in each.items()} for name, each in made.groups.items()}
    assert found == {"platform": {"android": [2], "ios": [1]}, "language": {"de": [1]}}


def test_nothing_but_nulls_is_an_empty_audience(shop: Path) -> None:
    made = audience(fill(shop, "CREATE TABLE t AS SELECT 1 AS n"), "SELECT NULL AS device_id FROM t")
    assert (len(made.identifiers), made.dropped["null"]) == (0, 1)


def test_an_empty_result_keeps_its_columns_and_their_types(shop: Path) -> None:
    url = fill(shop, "CREATE TABLE devices (device_id HUGEINT, platform VARCHAR)")
    with read(url, "SELECT * FROM devices") as batches:
        [only] = batches
    assert only.num_rows == 0
    assert only.schema.field("device_id").type == pa.int64()


@pytest.mark.parametrize(
    ("sql", "message"),
    [
        ("SELECT nosuch FROM devices", 'column "nosuch" not found'),
        ("SELECT device_id\nFROM devices\nWHER true", r"syntax error at or near .*"),
        ("SELECT CAST(name AS BIGINT) AS device_id FROM devices", "Could not convert string … to INT64"),
        ("SELECT CAST(1e30 * device_id AS BIGINT) AS device_id FROM devices", "out of range"),
    ],
)
def test_a_wrong_query_is_told_without_data(shop: Path, sql: str, message: str) -> None:
    url = fill(shop, "CREATE TABLE devices AS SELECT 5 AS device_id, 'ann@example.com' AS name")
    with pytest.raises(QueryError, match=message) as caught:
        audience(url, sql)
    assert "ann" not in str(caught.value)


@pytest.mark.parametrize(
    "sql", [FAILING, "SELECT regexp_replace('a', reverse('nnamretsum('), 'b') AS external_id"]
)
def test_the_error_of_a_function_is_told_without_data(shop: Path, sql: str) -> None:
    said = refusal(fill(shop), sql)
    assert "Invalid Input Error: " in said
    assert "musterman" not in said


def test_what_is_wrong_with_a_subquery_is_told(shop: Path) -> None:
    said = refusal(fill(shop), "SELECT (SELECT unnest([1, 2])) AS device_id")
    assert "More than one row returned by a subquery used as an expression" in said


def test_an_error_in_the_middle_is_told_without_data(shop: Path) -> None:
    url = fill(shop, "CREATE TABLE devices AS SELECT n FROM range(1000000) t(n)")
    late = "SELECT CASE WHEN n < 900000 THEN n ELSE CAST('an' || 'na' || n AS BIGINT) END AS device_id FROM devices"
    message = refusal(url, late)
    assert "Could not convert string" in message
    assert "anna" not in message


@pytest.mark.parametrize(
    "sql",
    [
        "DELETE FROM devices",
        "WITH gone AS (DELETE FROM devices RETURNING device_id) SELECT device_id FROM gone",
        "CREATE TABLE other AS SELECT 1 AS device_id",
        "COPY devices TO 'devices.csv'",
        "ATTACH 'other.duckdb'",
        "SELECT 1 AS device_id; DELETE FROM devices",
    ],
)
def test_nothing_is_written(shop: Path, tmp_path: Path, sql: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    url = fill(shop, "CREATE TABLE devices AS SELECT 5 AS device_id")
    before = shop.read_bytes()
    refusal(url, sql)
    assert (list(tmp_path.iterdir()), shop.read_bytes()) == ([shop], before)


def test_what_reads_it_may_read_beside_others_that_do(shop: Path) -> None:
    url = fill(shop, "CREATE TABLE devices AS SELECT 5 AS device_id")
    with (
        read(url, "SELECT device_id FROM devices") as one,
        read(url, "SELECT device_id + 1 AS device_id FROM devices") as other,
    ):
        assert [batch.column(0).to_pylist() for batches in (one, other) for batch in batches] == [[5], [6]]


def test_a_file_that_somebody_writes_cannot_be_read_until_they_are_done(shop: Path) -> None:
    url = fill(shop, "CREATE TABLE devices AS SELECT 5 AS device_id")
    writing = f"import duckdb; c = duckdb.connect({str(shop)!r}); print(flush=True); input()"
    line = [sys.executable, "-c", writing]
    with subprocess.Popen(line, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as writer:
        assert writer.stdout is not None
        writer.stdout.readline()
        assert "lock" in refusal(url, "SELECT device_id FROM devices")
        writer.communicate(b"\n")
    assert audience(url, "SELECT device_id FROM devices").rows == 1


def test_no_table_is_found_in_this_process(shop: Path) -> None:
    devices = pa.table({"device_id": [1]})
    url = fill(shop, "CREATE TABLE t AS SELECT 1 AS n")
    assert "devices does not exist" in refusal(url, "SELECT device_id FROM devices")
    assert devices.num_rows == 1


@pytest.mark.parametrize("url", ["duckdb:///nowhere/none.duckdb", "duckdb://", "duckdb:///:memory:"])
def test_a_missing_file_is_told_and_not_made(
    url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert f"there is no DuckDB database at {tmp_path}/" in refusal(url, "SELECT 1 AS device_id")
    assert list(tmp_path.iterdir()) == []


def test_a_file_that_is_no_database_is_told(tmp_path: Path) -> None:
    (tmp_path / "devices.duckdb").write_text("device_id\n" * 1_000)
    assert "not a valid DuckDB database" in refusal(
        f"duckdb:///{tmp_path}/devices.duckdb", "SELECT 1 AS device_id"
    )


def test_times_without_a_zone_are_in_utc(shop: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TZ", "Asia/Tokyo")
    url = fill(shop, "CREATE TABLE t AS SELECT TIMESTAMP '2026-03-01 00:00:00' AS seen")
    sql = "SELECT 1 AS device_id FROM t WHERE seen::TIMESTAMPTZ = TIMESTAMPTZ '2026-03-01 00:00:00Z'"
    assert audience(url, sql).rows == 1


@pytest.mark.proof
def test_memory_does_not_grow_with_the_rows(shop: Path, tmp_path: Path) -> None:
    url = fill(shop, "CREATE TABLE t AS SELECT 1 AS n")
    # The peak is read from /proc, because getrusage also counts the process that this one was forked from. The program
    # is in a file, because DuckDB otherwise takes Python for interactive, and shows progress after two seconds.
    reading = f"""
import pathlib, sys
from sendoff.warehouse import read
sql = "SELECT n AS device_id, 'user ' || n AS external_id FROM range(" + sys.argv[1] + ") t(n)"
with read({url!r}, sql) as batches:
    assert sum(batch.num_rows for batch in batches) == int(sys.argv[1])
print(pathlib.Path("/proc/self/status").read_text().partition("VmHWM:")[2].split()[0])
"""
    script = tmp_path / "reading.py"
    script.write_text(reading)
    few, many = (
        int(subprocess.run([sys.executable, script, rows], check=True, capture_output=True).stdout)
        for rows in ("100000", "5000000")
    )
    assert many - few < 50 * 1024  # KiB; the rows are 150 MiB


def test_a_query_reaches_no_other_file_unless_the_url_allows_it(shop: Path, tmp_path: Path) -> None:
    url = fill(shop, "CREATE TABLE t AS SELECT 1 AS n")
    (tmp_path / "other.txt").write_text("a secret of the worker")
    sql = f"SELECT content AS external_id FROM read_text('{tmp_path / 'other.txt'}')"
    said = refusal(url, sql)
    assert "secret of the worker" not in said
    assert "Permission Error" in said
    assert audience(f"{url}?enable_external_access=true", sql).rows == 1
