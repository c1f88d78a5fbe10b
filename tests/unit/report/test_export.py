"""Exports of verdicts to files and tables: each person once, or nothing at all."""

from __future__ import annotations

import stat
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any
from uuid import uuid4

import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet as pq
import pytest

from sendoff.audience.identifiers import Identifiers, integers, strings, union
from sendoff.audience.segmentation import Segment
from sendoff.campaign import Campaign, Variation
from sendoff.errors import NotFoundError, PermanentError, QueryError, SettingsError
from sendoff.ledger import Ledger, SuppressionChange
from sendoff.postbacks.reconcile import reconcile_launch
from sendoff.report.export import VerdictRows, verdict_named, write_file
from sendoff.report.export_table import write_table
from sendoff.states import Accepted, Arm, DecisionKind, InDoubt, Refused, Resolution, Verdict

from ...factories import KEY, NOW, make_launch, post_back, send, store
from .warehouses import KINDS, asked, new_warehouse

EMAIL = {"from_address": 1, "subject": "Hello", "text": "It is spring"}
SHARES = {
    "red": {"percent": 50, "channels": {"email": EMAIL}},
    "blue": {"percent": 50, "channels": {"email": {**EMAIL, "subject": "Spring"}}},
}
CAMPAIGN = Campaign.model_validate({"title": "Spring", "channels": {"email": EMAIL}, "variants": SHARES})


RED, BLUE = Variation(variant="red"), Variation(variant="blue")
SEGMENTS = [Segment(integers(range(1, 41)), RED), Segment(integers(range(41, 81)), BLUE)]
HELD_OUT = integers(range(81, 91))


def launch(
    ledger: Ledger,
    segments: Sequence[Segment] = SEGMENTS,
    held_out: Identifiers = HELD_OUT,
    opened: Sequence[int | str] = (1, 2, 3),
    only: Verdict | None = None,
) -> VerdictRows:
    """Freeze and reconcile a launch. Its last request is refused, and some people of its first one opened."""
    people = union(held_out.kind, [held_out, *(each.identifiers for each in segments if each.identifiers)])
    suppressed = {"holdout": held_out, "cap": people - people}
    make_launch(ledger, people, segments=segments, campaign=CAMPAIGN, suppressed=suppressed)
    send(ledger, KEY, *[Accepted(200, 17)] * (len(segments) - 1), Refused(400, "no"))
    first = ledger.dispatch_queries.of_launch(KEY)[0].dispatch_key
    store(ledger, *(post_back(first, "open", who) for who in opened))
    reconcile_launch(ledger, KEY, now=NOW)
    return VerdictRows.of(ledger, KEY, only)


def rows_of(verdicts: VerdictRows) -> list[dict[str, Any]]:
    return [row for batch in verdicts.batches() for row in batch.to_pylist()]


def test_everybody_has_one_row_with_what_became_of_them(ledger: Ledger) -> None:
    rows = rows_of(launch(ledger))
    assert sorted(row["device_id"] for row in rows) == list(range(1, 91))
    by_id = {row["device_id"]: row for row in rows}
    same = {"launch_key": KEY, "language": None, "time_zone": None, "as_of": NOW, "hour": None, "arm": None}
    red = {"variant": "red", "segment": 1, "wave": 1, "request": "accepted", "held_out": False}
    assert by_id[2] == {**same, **red, "device_id": 2, "verdict": "engaged"}
    assert by_id[4] == {**same, **red, "device_id": 4, "verdict": "missing"}
    blue = {"variant": "blue", "segment": 2, "wave": 1, "request": "refused", "held_out": False}
    assert by_id[41] == {**same, **blue, "device_id": 41, "verdict": "not_sent"}
    nothing = {"variant": None, "segment": None, "wave": None, "request": None, "held_out": True}
    assert by_id[81] == {**same, **nothing, "device_id": 81, "verdict": "not_sent"}


def test_an_export_is_in_the_audit_log_with_counts_and_without_identifiers(ledger: Ledger) -> None:
    launch(ledger)
    rows_of(VerdictRows.of(ledger, KEY))
    before = ledger.audit_log.of_launch(KEY)
    found = VerdictRows.of(ledger, KEY, Verdict.ENGAGED, who="ann")
    assert ledger.audit_log.of_launch(KEY) == before
    next(iter(found.batches()))  # a reader may take no more
    [export] = ledger.audit_log.of_launch(KEY)[len(before) :]
    assert (export.kind, export.who, export.why) == (DecisionKind.EXPORTED, "ann", None)
    assert export.detail == {"verdict": "engaged", "people": 3}
    assert abs(datetime.now(UTC) - export.decided_at) < timedelta(minutes=5)


def test_whoever_a_request_left_out_has_a_row(ledger: Ledger) -> None:
    make_launch(ledger, integers(range(1, 7)), size=3, campaign=CAMPAIGN)
    (doubted,) = send(ledger, KEY, InDoubt("no answer"))
    ledger.suppressions.add(SuppressionChange("everything", "device_id", "csv", "ann"), [1, 4], NOW)
    assert ledger.doubts.resolve(doubted, Resolution.RESEND, "ann", "again", NOW)
    send(ledger, KEY, Accepted(200, 17), Accepted(200, 18))
    reconcile_launch(ledger, KEY, now=NOW)
    rows = {row["device_id"]: row for row in rows_of(VerdictRows.of(ledger, KEY))}
    assert {who: (row["verdict"], row["request"]) for who, row in rows.items()} == {
        1: ("in_doubt", "in_doubt"),  # the request in doubt did not leave it out
        4: ("not_sent", "suppressed"),
        **dict.fromkeys((2, 3, 5, 6), ("missing", "accepted")),
    }
    for who, row in rows.items():
        status = ledger.launches.recipient(KEY, who)
        assert (status.verdict, status.dispatch) == (row["verdict"], row["request"])
    assert ledger.launches.recipient(KEY, 1).sentence.startswith("may have been sent")


def test_the_hour_and_the_arm_of_a_recipient_are_given(ledger: Ledger) -> None:
    segments = [
        Segment(integers([1]), RED),
        Segment(integers([2]), RED, arm=Arm.CONTROL),
        Segment(integers([3]), RED, hour=18, arm=Arm.OWN_HOUR),
        Segment(integers([4]), RED, hour=7, arm=Arm.EXPLORE),
    ]
    rows = rows_of(launch(ledger, segments))
    assert {row["device_id"]: (row["hour"], row["arm"]) for row in rows if not row["held_out"]} == {
        1: (None, None),
        2: (None, "control"),
        3: (18, "own_hour"),
        4: (7, "explore"),
    }
    found = [ledger.launches.recipient(KEY, who) for who in range(1, 5)]
    assert [each.details.partition("red, ")[2].partition(", wave")[0] for each in found[1:]] == [
        "control: at once",
        "own hour 18:00",
        "explored hour 07:00",
    ]
    assert found[0].details == "segment 1, variant red, wave 1, request accepted"
    assert [(each.to_json()["hour"], each.to_json()["arm"]) for each in found[2:]] == [
        (18, "own_hour"),
        (7, "explore"),
    ]


def test_one_verdict_alone_is_given(ledger: Ledger) -> None:
    verdicts = launch(ledger, only=Verdict.ENGAGED)
    assert [row["device_id"] for row in rows_of(verdicts)] == [1, 2, 3]
    assert verdicts.read == verdicts.expected == {"engaged": 3}
    (empty,) = VerdictRows.of(ledger, KEY, Verdict.IN_DOUBT).batches()
    assert empty.num_rows == 0
    assert empty.schema == verdicts.schema


def test_a_verdict_has_its_name_with_or_without_spaces() -> None:
    assert verdict_named("in doubt", "verdict") is verdict_named("in_doubt", "verdict") is Verdict.IN_DOUBT
    with pytest.raises(SettingsError, match="verdict: 'mising' is not a verdict"):
        verdict_named("mising", "verdict")


def test_people_named_by_texts_are_found_in_segments_that_overlap_in_order(ledger: Ledger) -> None:
    names = [f"{letter}{number:03}" for number in range(200) for letter in ("a", "\u00e9", "\U0001f600")]
    red, blue = strings(names[::2]), strings(names[1::2])
    verdicts = launch(
        ledger, [Segment(red, RED), Segment(blue, BLUE)], strings(["zz"]), ["a000", "\u00e9009"]
    )
    rows = rows_of(verdicts)
    assert sorted(row["user_id"] for row in rows) == sorted([*names, "zz"])
    assert {row["user_id"] for row in rows if row["verdict"] == "engaged"} == {"a000", "\u00e9009"}
    assert Counter(row["verdict"] for row in rows) == {"engaged": 2, "missing": 298, "not_sent": 301}


def test_of_people_whom_the_service_chose_those_heard_of_are_given(ledger: Ledger) -> None:
    definition = Campaign.model_validate(
        {"title": "Spring", "channels": {"email": EMAIL}, "targeting": {"kind": "broadcast"}}
    )
    make_launch(ledger, campaign=definition)
    (key,) = send(ledger, KEY, Accepted(200, 17))
    store(ledger, post_back(key, "open", 5), post_back(key, "open", 9))
    reconcile_launch(ledger, KEY, now=NOW)
    rows = rows_of(VerdictRows.of(ledger, KEY))
    assert [(row["device_id"], row["verdict"], row["segment"]) for row in rows] == [
        (5, "engaged", 1),
        (9, "engaged", 1),
    ]


def test_verdicts_that_do_not_add_up_are_not_written(ledger: Ledger, tmp_path: Path) -> None:
    verdicts = launch(ledger)
    wrong = replace(verdicts, figures=replace(verdicts.figures, verdicts={"engaged": 4}))
    with pytest.raises(PermanentError, match="DO NOT ADD UP"):
        write_file(wrong, tmp_path / "verdicts.parquet")
    assert list(tmp_path.glob("*verdicts*")) == []


def test_a_launch_that_was_not_reconciled_has_no_verdicts(ledger: Ledger) -> None:
    with pytest.raises(NotFoundError):
        VerdictRows.of(ledger, KEY)


def test_a_parquet_file_keeps_the_types(ledger: Ledger, tmp_path: Path) -> None:
    file = tmp_path / "verdicts.parquet"
    assert write_file(launch(ledger), file) == 90
    table = pq.read_table(file)
    assert table.schema.field("device_id").type == pa.int64()
    assert table.schema.field("as_of").type == pa.timestamp("us", "UTC")
    found = Counter(table["verdict"].to_pylist())
    assert found == {"engaged": 3, "missing": 37, "not_sent": 50}


def test_a_csv_file_has_a_header_and_a_row_each(ledger: Ledger, tmp_path: Path) -> None:
    file = tmp_path / "verdicts.csv"
    assert write_file(launch(ledger, only=Verdict.ENGAGED), file) == 3
    assert pyarrow.csv.read_csv(file)["device_id"].to_pylist() == [1, 2, 3]
    assert file.read_text().splitlines()[0].startswith('"launch_key","device_id","verdict"')


def test_nobody_else_may_read_the_file(ledger: Ledger, tmp_path: Path) -> None:
    file = tmp_path / "verdicts.csv"
    write_file(launch(ledger), file)
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    assert [each.name for each in tmp_path.iterdir() if "verdicts" in each.name] == ["verdicts.csv"]


def test_a_file_that_is_there_stays_unless_it_is_to_be_replaced(ledger: Ledger, tmp_path: Path) -> None:
    verdicts, file = launch(ledger), tmp_path / "verdicts.csv"
    file.write_text("mine")
    with pytest.raises(SettingsError, match="already exists"):
        write_file(verdicts, file)
    assert file.read_text() == "mine"
    write_file(verdicts, file, replace=True)
    assert len(file.read_text().splitlines()) == 91


@pytest.mark.parametrize(
    ("name", "problem"),
    [("verdicts.xlsx", "must end in .parquet or .csv"), ("no/verdicts.csv", "cannot be written")],
)
def test_a_file_that_cannot_be_written_is_told(
    ledger: Ledger, tmp_path: Path, name: str, problem: str
) -> None:
    with pytest.raises(SettingsError, match=problem):
        write_file(launch(ledger), tmp_path / name)


def test_rows_come_in_large_batches_however_small_the_segments(ledger: Ledger, tmp_path: Path) -> None:
    segments = [Segment(part, RED) for part in integers(range(1, 2_001)).slices(10)]
    verdicts = launch(ledger, segments, integers([5_000]))
    assert [batch.num_rows for batch in verdicts.batches()] == [2_001]
    write_file(verdicts, tmp_path / "verdicts.parquet")
    assert pq.ParquetFile(tmp_path / "verdicts.parquet").num_row_groups == 1


@pytest.fixture(params=KINDS)
def warehouse(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Any]:
    """A warehouse to write to, as a URL or an engine."""
    with new_warehouse(request, tmp_path, "postgres_url") as source:
        yield source


@pytest.fixture
def table() -> str:
    return f"verdicts_{uuid4().hex[:8]}"


def test_a_table_is_made_and_the_rows_of_a_launch_are_replaced(
    ledger: Ledger, warehouse: Any, table: str
) -> None:
    verdicts = launch(ledger)
    assert write_table(verdicts, warehouse, table) == 90
    asked(warehouse, f"UPDATE {table} SET launch_key = 'another' WHERE device_id <= 5")
    assert write_table(verdicts, warehouse, table) == 90
    counted = f"SELECT launch_key, verdict, count(*) FROM {table} GROUP BY 1, 2 ORDER BY 1, 2"
    assert sorted(asked(warehouse, counted)) == sorted(
        [
            (KEY, "engaged", 3),
            (KEY, "missing", 37),
            (KEY, "not_sent", 50),
            ("another", "engaged", 3),
            ("another", "missing", 2),
        ]
    )
    first = f"SELECT variant, segment, wave, request FROM {table} WHERE device_id = 41"
    assert asked(warehouse, first) == [("blue", 2, 1, "refused")]
    held_out = f"SELECT count(*) FROM {table} WHERE held_out AND variant IS NULL AND segment IS NULL"
    assert asked(warehouse, held_out) == [(10,)]


def test_a_failure_leaves_the_table_as_it_was(ledger: Ledger, warehouse: Any, table: str) -> None:
    verdicts = launch(ledger)
    write_table(verdicts, warehouse, table)
    wrong = replace(verdicts, figures=replace(verdicts.figures, verdicts={"engaged": 4}))
    with pytest.raises((PermanentError, QueryError)):
        write_table(wrong, warehouse, table)
    assert asked(warehouse, f"SELECT count(*) FROM {table}") == [(90,)]


@pytest.mark.parametrize(
    ("columns", "lacks"),
    [
        (
            "device_id, name",
            "columns launch_key, verdict, variant, language, time_zone, segment, wave, hour, arm, ",
        ),
        (
            "Launch_Key, device_id, verdict, variant, language, time_zone, segment, wave, hour, arm, request, held_out",
            "column as_of. Use another",
        ),
    ],
)
def test_a_table_that_lacks_columns_is_left_as_it_is(
    ledger: Ledger, warehouse: Any, table: str, columns: str, lacks: str
) -> None:
    verdicts = launch(ledger)
    asked(warehouse, f"CREATE TABLE {table} ({columns.replace(',', ' TEXT,')} TEXT)")
    asked(warehouse, f"INSERT INTO {table} (device_id) VALUES ('7')")
    with pytest.raises(QueryError, match=f"^the table {table} exists already and lacks the {lacks}"):
        write_table(verdicts, warehouse, table)
    assert asked(warehouse, f"SELECT device_id FROM {table}") == [("7",)]


@pytest.mark.parametrize("table", ["", "a.b.c", "verdicts; DROP TABLE x", 'a"b', "1a"])
def test_a_table_must_have_a_plain_name(ledger: Ledger, table: str) -> None:
    with pytest.raises(SettingsError, match="Use NAME or SCHEMA"):
        write_table(launch(ledger), "sqlite:///x.db", table)


@pytest.mark.parametrize(
    ("url", "error", "problem"),
    [
        (
            "sqlite:////nosuch/x.db",
            QueryError,
            r"There is no SQLite database .* Create it, or correct the path",
        ),
        (
            "duckdb:////nosuch/x.db",
            QueryError,
            r"There is no DuckDB database .* Create it, or correct the path",
        ),
        ("snowflake://a/b", SettingsError, "cannot write to this warehouse"),
        ("clickhouse://a/b", SettingsError, "cannot write to this warehouse"),
    ],
)
def test_a_warehouse_that_takes_nothing_is_told(
    ledger: Ledger, url: str, error: type[Exception], problem: str
) -> None:
    with pytest.raises(error, match=problem):
        write_table(launch(ledger), url, "verdicts")
