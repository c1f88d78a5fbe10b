"""The suppression list from Python: what names recipients, and what comes back."""

from __future__ import annotations

import re
from collections.abc import Iterator
from datetime import UTC, date, datetime, timedelta, timezone
from pathlib import Path
from typing import Any

import pandas as pd
import polars as pl
import pyarrow as pa
import pytest
from pyarrow import parquet

import sendoff
from sendoff import App, AudienceError, SettingsError
from sendoff.audience.identifiers import integers
from sendoff.errors import GateError
from sendoff.launch.suppression_list import end_of, recipients_of, replace_suppressions
from sendoff.ledger import SuppressionChange

FRAME = pd.DataFrame({"device_id": [7, 9, 9], "since": ["a", "b", "c"]})
DICTIONARIES = [{"device_id": 7}, {"device_id": 9}]


@pytest.fixture
def app(migrated_url: str) -> Iterator[App]:
    with sendoff.connect(ledger=migrated_url) as app:
        yield app


def members(app: App, scope: str = "account", column: str = "device_id") -> list[int | str]:
    kind: Any = "integer" if column == "device_id" else "string"
    found = app._connections.ledger.suppressions.active(column, kind, [scope], datetime.now(UTC))
    return list(found)


@pytest.mark.parametrize(
    "given",
    [
        FRAME,
        pa.Table.from_pandas(FRAME),
        pl.LazyFrame({"device_id": [7, 9, 9]}),
        DICTIONARIES,
        Path("people.csv"),
        Path("people.parquet"),
        [7, 9],
        {"7", "9"},
        FRAME["device_id"],
        FRAME["device_id"].to_numpy(),
        range(7, 10, 2),
    ],
    ids=lambda given: type(given).__name__,
)
def test_everything_that_names_recipients_is_read(
    app: App, given: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    FRAME.to_csv("people.csv", index=False)
    parquet.write_table(pa.Table.from_pandas(FRAME), "people.parquet")
    is_named = given is DICTIONARIES or isinstance(given, Path | pd.DataFrame | pa.Table | pl.LazyFrame)
    column = None if is_named else "device_id"
    assert app.suppress(given, identified_by=column, reason="moved") == 2
    assert members(app) == [7, 9]
    assert app.suppress(given, identified_by="device_id", reason="moved") == 0
    assert app.unsuppress(given, identified_by="device_id", reason="back") == 2
    assert members(app) == []


@pytest.mark.parametrize(
    "until",
    [
        date(2099, 1, 31),
        "2099-01-31",
        "2099-01-31T00:00",
        datetime(2099, 1, 31, 5, tzinfo=timezone(timedelta(hours=5))),
        "2099-01-31T05:00+05:00",
    ],
)
def test_an_end_without_a_time_zone_is_in_utc(until: Any) -> None:
    assert end_of(until, datetime(2026, 1, 1, tzinfo=UTC)) == datetime(2099, 1, 31, tzinfo=UTC)


def test_an_end_that_is_a_naive_datetime_is_refused(app: App) -> None:
    with pytest.raises(SettingsError, match="the end 2099-01-31T09:00:00 has no time zone"):
        app.suppress(FRAME, reason="moved", until=datetime(2099, 1, 31, 9))  # noqa: DTZ001
    assert members(app) == []


@pytest.mark.parametrize(
    ("wrong", "problem"),
    [
        ({"reason": None}, "the reason is blank"),
        ({"source": None}, "source: found a NoneType. Use a text"),
        ({"source": " "}, "the source is blank"),
        ({"source": "opt-out"}, "only Sendoff adds entries of the source opt-out"),
        ({"until": 5}, "found a int as the end. Use a date"),
        ({"everything": "false"}, "everything: 'false' is not a boolean. Use True or False"),
        ({"everything": 1}, "everything: 1 is not a boolean. Use True or False"),
    ],
)
def test_an_argument_of_another_type_is_refused(app: App, wrong: dict[str, Any], problem: str) -> None:
    with pytest.raises(SettingsError, match=problem):
        app.suppress(FRAME, **{"reason": "moved", **wrong})
    assert members(app) == []
    if not wrong.keys() & {"source", "until"}:
        with pytest.raises(SettingsError, match=problem):
            app.unsuppress(FRAME, **{"reason": "moved", **wrong})


def test_a_list_that_would_lose_too_many_entries_is_not_replaced(app: App) -> None:
    ledger, crm = app._connections.ledger, SuppressionChange("account", "device_id", "crm", "ada")
    assert replace_suppressions(ledger, crm, integers(range(1, 11))).added == 10
    with pytest.raises(GateError, match="3 of the 10 entries from crm would be removed"):
        replace_suppressions(ledger, crm, integers(range(4, 11)))
    assert replace_suppressions(ledger, crm, integers(range(3, 11))).removed == 2
    assert members(app) == [*range(3, 11)]


def test_the_sizes_of_the_list_are_a_frame(app: App) -> None:
    app.suppress(["ann"], identified_by="user_id", channel="email", reason="bounce", source="crm")
    app.suppress(FRAME, reason="moved", until=date(2099, 1, 31))
    app.suppress([8], identified_by="device_id", topic="news", reason="no news")
    app.suppress([8], identified_by="device_id", everything=True, reason="complained")
    found = app.suppressions()
    assert (len(found), repr(found)) == (5, "<suppression list: 5 entries>")
    assert found.to_pandas().to_dict("split")["data"] == [
        ["account", "device_id", "python", 2],
        ["channel:email", "user_id", "crm", 1],
        ["everything", "device_id", "python", 1],
        ["topic:news", "device_id", "python", 1],
    ]
    assert app.unsuppress([8], identified_by="device_id", reason="x") == 0  # of another scope
    assert len(app.suppressions()) == 5
    entries = app.suppression_entries()
    assert pa.table(entries).num_rows == len(entries.to_pandas()) == 5
    assert "ann" not in repr(entries)
    assert app.suppression_entries("crm").to_pandas()["identifier"].tolist() == ["ann"]


@pytest.mark.parametrize(
    ("given", "more", "said"),
    [
        ([{"device_id": 7}, {"id": 4711}], {}, "the list: row 2 has other keys than row 1"),
        ([7], {}, "the column of the identifiers is missing. Add identified_by"),
        ("4711", {"identified_by": "device_id"}, "found str as recipients"),
        (4711, {"identified_by": "device_id"}, "found int as recipients"),
        ({"user_id": ["4711"]}, {"identified_by": "user_id"}, "found dict as recipients"),
        ([7, 4711.5], {"identified_by": "device_id"}, "identifier 2 of 2 is of the type float. Use texts"),
        ([7, "u4711"], {"identified_by": "device_id"}, "identifier 2 of 2 is not a whole number"),
        (pd.Series([4711, None]), {"identified_by": "user_id"}, "identifier 1 of 2 is of the type float"),
        (["4711", None], {"identified_by": "user_id"}, "identifier 2 of 2 is of the type NoneType"),
        ([b"4711"], {"identified_by": "user_id"}, "identifier 1 of 1 is of the type bytes"),
        ([" "], {"identified_by": "user_id"}, "identifier 1 of 1 is empty"),
        (FRAME, {"identified_by": "user_id"}, "found the column device_id, but identified_by is user_id"),
        (FRAME[["since"]], {}, "no identifier column"),
        (Path("nowhere.csv"), {"identified_by": "device_id"}, "nowhere.csv: the file does not exist"),
    ],
)
def test_what_names_no_recipients_is_an_error_without_identifiers(
    app: App, given: Any, more: dict[str, Any], said: str
) -> None:
    with pytest.raises(AudienceError, match=re.escape(said)) as error:
        app.suppress(given, reason="x", **more)
    assert "4711" not in str(error.value)
    assert len(app.suppressions()) == 0


def test_wrong_arguments_change_nothing(app: App) -> None:
    for more in ({"topic": "a", "everything": True}, {"channel": "fax"}, {"until": date(2020, 1, 1)}):
        with pytest.raises(SettingsError):
            app.suppress([7], identified_by="device_id", reason="x", **more)  # type: ignore[arg-type]
    assert len(app.suppressions()) == 0


def test_rows_that_name_no_recipient_are_counted() -> None:
    named = recipients_of(pd.DataFrame({"device_id": pd.array([7, None, 9, -1, 0, None], "Int64")}))
    assert (list(named.identifiers), named.skipped) == ([7, 9], 4)
    assert recipients_of(FRAME).skipped == 0
