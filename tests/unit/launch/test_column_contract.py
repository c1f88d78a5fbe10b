"""``audience.columns``: what the query's columns must contain, checked while the rows stream."""

from __future__ import annotations

import logging
import sqlite3
from datetime import UTC, date, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

import duckdb
import pandas as pd
import pyarrow as pa
import pytest
from pydantic import ValidationError

from sendoff.audience import checked_columns
from sendoff.campaign import AudienceColumn, Campaign, CampaignFolder, campaign_from, load_campaign
from sendoff.errors import AudienceError, CampaignError
from sendoff.launch.plan import plan_launch, prepare_launch
from sendoff.ledger import Ledger

from ...factories import PERIOD

SQL = "SELECT device_id, country, first_name FROM people"
SECRET = "Ms Example"


def campaign(columns: dict[str, Any], **audience: Any) -> Campaign:
    return Campaign.model_validate(
        {
            "title": "Spring",
            "message": {"title": "Hello", "text": "It is spring"},
            "channels": {"android_push": {}},
            "audience": {"columns": columns, **audience},
        }
    )


@pytest.fixture(params=["sqlite", "duckdb"])
def warehouse(tmp_path: Path, request: pytest.FixtureRequest) -> str:
    """Ten people: two without a first name, and one with another country."""
    file = tmp_path / "warehouse.db"
    rows = [(n, "IE" if n else "XX", None if n < 2 else SECRET) for n in range(10)]
    db = sqlite3.connect(file) if request.param == "sqlite" else duckdb.connect(str(file))
    db.execute("CREATE TABLE people (device_id BIGINT, country TEXT, first_name TEXT)")
    db.executemany("INSERT INTO people VALUES (?, ?, ?)", rows)
    db.commit()
    db.close()
    return f"{request.param}:///{file}"


def problem(warehouse: str, columns: dict[str, Any], sql: str = SQL) -> str:
    folder = CampaignFolder("spring", campaign(columns), sql, Path("spring"))
    with pytest.raises(AudienceError) as error:
        plan_launch(None, folder, period=PERIOD, warehouses=lambda _: warehouse, now=PERIOD.end)
    assert SECRET not in str(error.value)
    assert "XX" not in str(error.value)
    return str(error.value).removeprefix("campaign spring: audience.sql: ")


@pytest.mark.parametrize(
    ("columns", "text"),
    [
        (
            {"country": {"values": ["IE", "GB"]}},
            "column country must be one of IE, GB, but 1 of 10 rows have another value",
        ),
        (
            {"first_name": {"required": 90}},
            "column first_name must have a value in 90 % of the rows, but 2 of 10 rows have none",
        ),
        (
            {"first_name": {"required": 100}},
            "column first_name must have a value in every row, but 2 of 10 rows have none",
        ),
        (
            {"Country": {"type": "integer"}},
            "column Country must have the type integer, but 10 of 10 rows have text",
        ),
        (
            {"first_nam": {"type": "text"}},
            "the query has no column first_nam, which audience.columns expects (did you mean 'first_name'?)",
        ),
        (
            {"country": {"values": ["IE"]}, "first_name": {"type": "text", "required": 81}},
            (
                "column country must be one of IE, but 1 of 10 rows have another value; "
                "column first_name must have a value in 81 % of the rows, but 2 of 10 rows have none"
            ),
        ),
    ],
)
def test_rows_that_break_the_contract_are_counted(warehouse: str, columns: dict[str, Any], text: str) -> None:
    assert problem(warehouse, columns) == text


def test_a_promise_about_a_column_that_is_there_twice_is_refused(warehouse: str) -> None:
    joined = "SELECT a.device_id, a.country, b.country FROM people AS a JOIN people AS b ON b.device_id < a.device_id"
    text = problem(warehouse, {"Country": {"values": ["IE"]}}, joined)
    assert text == "the query has the column Country more than once"


def test_nothing_is_frozen_and_the_reason_is_kept(
    warehouse: str, ledger: Ledger, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    broken = CampaignFolder("spring", campaign({"country": {"values": ["IE"]}}), SQL, Path("spring"))
    with pytest.raises(AudienceError):
        prepare_launch(ledger, broken, period=PERIOD, warehouses=lambda _: warehouse, now=PERIOD.end)
    assert ledger.launches.count("sendoff_default") == 0
    assert SECRET not in caplog.text
    reasons = [each.why for each in ledger.not_launched.newest()]
    assert reasons == ["its query does not return what audience.columns expects"]
    kept = {"country": {"type": "text", "values": ["IE", "XX"]}, "FIRST_NAME": {"required": 80}}
    folder = CampaignFolder("spring", campaign(kept), SQL, Path("spring"))
    launch = prepare_launch(ledger, folder, period=PERIOD, warehouses=lambda _: warehouse, now=PERIOD.end)
    assert launch.audience == 9  # the device 0 is invalid


def batches(**columns: Any) -> list[pa.RecordBatch]:
    whole = pa.record_batch({"device_id": pa.array(range(4)), **columns})
    return [whole.slice(0, 1), whole.slice(1, 0), whole.slice(1)]


@pytest.mark.parametrize(
    ("type_", "values"),
    [
        ("boolean", [True, None, False, True]),
        ("date", [date(2026, 3, 1), None, None, date(2026, 3, 2)]),
        ("integer", [1, 2, None, 2**62]),
        ("number", [1, 2, 3, 4]),
        ("number", [1.5, None, 2.5, 3.0]),
        ("number", [Decimal("1.50")] * 4),
        ("text", [None, "b", "c", "d"]),
        ("timestamp", [datetime(2026, 3, 1, tzinfo=UTC)] * 4),
    ],
)
def test_each_type_accepts_its_own_columns_and_refuses_others(type_: str, values: list[Any]) -> None:
    given = batches(column=pa.array(values))
    assert list(checked_columns(given, {"column": AudienceColumn.model_validate({"type": type_})})) == given
    other = "text" if type_ != "text" else "number"
    count = sum(value is not None for value in values)
    with pytest.raises(AudienceError, match=rf"must have the type {other}, but {count} of 4 rows have"):
        list(checked_columns(given, {"column": AudienceColumn.model_validate({"type": other})}))


def test_accepted_values_can_be_numbers_and_booleans_and_dictionaries() -> None:
    given = batches(
        n=pa.array([1, 2, 3, None]),
        b=pa.array([True, True, False, None]),
        t=pa.array(["x", "y", "x", None]).dictionary_encode(),
        nothing=pa.nulls(4),
        parts=pa.array([[1], [2], [3], None]),
    )
    list(
        checked_columns(
            given, {"n": AudienceColumn(values=(1, 2, 3)), "nothing": AudienceColumn(type="text")}
        )
    )
    for name, value, count in (("n", 1, 2), ("b", True, 1), ("t", "x", 1), ("parts", "1", 3)):
        with pytest.raises(AudienceError, match=f"but {count} of 4 rows have another value"):
            list(checked_columns(given, {name: AudienceColumn(values=(value,))}))


def test_no_rows_break_no_promise() -> None:
    empty = [pa.record_batch({"n": pa.array([], pa.int64())})]
    assert list(checked_columns(empty, {"n": AudienceColumn(type="integer", required=100)})) == empty


def test_a_campaign_from_python_checks_a_data_frame() -> None:
    frame = pd.DataFrame({"device_id": [1, 2], "country": ["IE", "XX"]})
    folder = campaign_from(campaign({"country": {"values": ["IE"]}}), "spring", frame)
    with pytest.raises(AudienceError, match="must be one of IE, but 1 of 2 rows"):
        plan_launch(None, folder, period=PERIOD, warehouses=lambda _: "sqlite://", now=PERIOD.end)


@pytest.mark.parametrize(
    "column",
    [
        {},
        {"type": "integer", "values": ["1"]},
        {"type": "integer", "values": [1, "2"]},
        {"type": "date", "values": ["2026-03-01"]},
        {"type": "uuid"},
    ],
)
def test_a_contract_that_says_nothing_or_contradicts_itself_is_refused(column: dict[str, Any]) -> None:
    with pytest.raises(ValidationError):
        campaign({"country": column})


def test_a_file_and_its_defaults_state_columns_and_a_norwegian_is_no_boolean(tmp_path: Path) -> None:
    folder = tmp_path / "spring"
    folder.mkdir()
    (folder / "audience.sql").write_text(SQL)
    text = "title: Spring\nmessage: {title: Hello, text: Words}\nchannels: {android_push: }\n"
    (folder / "campaign.yaml").write_text(text)
    (tmp_path / "defaults.yaml").write_text("audience: {columns: {country: {values: [NO, IE]}}}\n")
    loaded = load_campaign(folder).campaign
    assert loaded.audience.columns["country"].texts == ("NO", "IE")
    assert Campaign.model_validate_json(loaded.model_dump_json()).audience == loaded.audience
    broadcast = f"{text}targeting: {{kind: broadcast}}\n"
    (folder / "campaign.yaml").write_text(broadcast)
    (folder / "audience.sql").unlink()
    assert load_campaign(folder).campaign.audience.columns == {}
    (folder / "campaign.yaml").write_text(broadcast + "audience: {columns: {country: {required: true}}}\n")
    with pytest.raises(CampaignError, match=r"found columns with targeting\.kind: broadcast"):
        load_campaign(folder)
