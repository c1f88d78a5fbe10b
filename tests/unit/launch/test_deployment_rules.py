"""Rules for all campaigns when a launch is planned: who is left out, its gates, and the size of its requests."""

from __future__ import annotations

from datetime import UTC, date, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from sendoff import connect
from sendoff.audience.identifiers import integers
from sendoff.campaign import Campaign, CampaignFolder, DeploymentRules, Period
from sendoff.errors import GateError, LateError
from sendoff.launch import preview_campaign, send_times_of
from sendoff.launch.gates import GateResult
from sendoff.launch.plan import Plan, plan_launch, prepare_launch
from sendoff.ledger import DailyLimit, Ledger
from sendoff.states import Accepted

from ...factories import LEASE, NOW, PERIOD, claimed, make_campaign, make_launch, make_warehouse

SQL = "SELECT device_id, time_zone FROM devices"
WARM_UP = {"connection": "sendoff_default", "start": "2026-03-02", "first_day": 30, "growth": 2, "most": 100}
WINDOW = {"earliest": "08:00", "latest": "21:00", "time_zone": "UTC"}
NIGHT = {"quiet_hours": {"earliest": "10:00", "latest": "20:00"}, "default_time_zone": "UTC"}  # NOW is at 9


@pytest.fixture
def warehouse(tmp_path: Path) -> str:
    zones = ("Europe/Dublin", "Asia/Tokyo", None)
    rows = [(n, zones[n % 3]) for n in range(1, 91)]
    return make_warehouse(tmp_path / "warehouse.db", "devices (device_id INTEGER, time_zone TEXT)", rows)


def folder(rules: dict[str, Any], sql: str = SQL, **fields: Any) -> CampaignFolder:
    campaign = make_campaign(**{"post_backs": {"kinds": []}, **fields}).replace(
        rules=DeploymentRules.model_validate(rules)
    )
    return CampaignFolder("spring", campaign, sql, Path())


def plan(warehouse: str, given: CampaignFolder, ledger: Ledger | None = None) -> Plan:
    return plan_launch(ledger, given, period=PERIOD, warehouses=lambda _: warehouse, now=NOW)


def gate(made: Plan, name: str) -> GateResult:
    (found,) = (each for each in made.gates if each.name == name)
    return found


@pytest.mark.parametrize(
    ("gates", "rules", "said"),
    [
        ({}, {}, ""),
        ({"window": WINDOW}, {}, ", which waits for the send window"),
        ({}, NIGHT, ", which waits for the hours and days that the rules allow"),
        (
            {"window": WINDOW},
            NIGHT,
            ", which waits for the send window and for the hours and days that the rules allow",
        ),
    ],
)
def test_people_read_what_a_launch_that_sends_at_once_waits_for(
    gates: dict[str, Any], rules: dict[str, Any], said: str
) -> None:
    times = send_times_of(folder(rules, gates=gates).campaign, [], PERIOD.end)
    assert times.words == f"at once, as soon as the service accepts a request{said}"


def test_exclusions_and_caps_of_the_rules_apply_besides_those_of_the_campaign(
    warehouse: str, ledger: Ledger
) -> None:
    for name, people in (("own", [1, 2]), ("all", [2, 3])):
        ledger.uploaded_lists.store(name, "device_id", integers(people), "ann", NOW)
    other = make_launch(ledger, range(4, 7), connection="sendoff_default", name="autumn")
    made = claimed(ledger, other.launch_key)
    ledger.dispatches.record(made, Accepted(200, 1), NOW)
    rules = {"exclude": [{"kind": "list", "name": "all"}], "cap": {"messages": 1, "days": 7}}
    own = {"exclude": [{"kind": "list", "name": "own"}], "cap": {"messages": 9, "days": 1}}
    found = plan(warehouse, folder(rules, audience=own), ledger).suppressed
    assert {reason: list(people) for reason, people in found.items() if len(people)} == {
        "list own": [1, 2],
        "list all": [3],
        "cap": [4, 5, 6],
    }
    transactional = plan(warehouse, folder(rules, audience=own, transactional="a receipt"), ledger)
    assert {reason for reason, people in transactional.suppressed.items() if len(people)} == {"list own"}
    assert gate(transactional, "rules").actual == "not applied, transactional: a receipt"


def test_each_zone_is_sent_separately_if_the_query_knows_it(warehouse: str) -> None:
    made = plan(warehouse, folder(NIGHT))
    assert {segment.variation.time_zone for segment in made.segments} == {
        "Europe/Dublin",
        "Asia/Tokyo",
        "UTC",
    }
    assert gate(made, "rules").actual == (
        "closed now in 2 of 3 time zones; the launch waits until 2026-03-02 10:00 in UTC"
    )
    (segment,) = plan(warehouse, folder(NIGHT, "SELECT device_id FROM devices")).segments
    assert segment.variation.time_zone is None
    (segment,) = plan(warehouse, folder(NIGHT, transactional="a receipt")).segments
    assert len(segment) == 90


@pytest.mark.parametrize(
    ("send", "actual"),
    [
        ({"time": "08:30"}, "08:30 is in the quiet hours, before 10:00 or after 20:00 in Europe/Dublin"),
        ({"time": "10:30"}, "19:30"),
        ({"time": "13:30"}, "22:30 is in the quiet hours, before 10:00 or after 20:00 in Asia/Tokyo"),
    ],
)
def test_a_fixed_time_outside_of_the_rules_closes_the_gate(
    warehouse: str, ledger: Ledger, send: dict[str, str], actual: str
) -> None:
    given = folder(NIGHT, send={"kind": "once", "time_zone": "UTC", "date": "2026-03-03", **send})
    made = gate(plan(warehouse, given), "rules")
    assert made.is_open == (actual == "19:30")
    if not made.is_open:
        assert made.actual == f"forbidden, because {actual}"
        with pytest.raises(GateError, match="rules: forbidden, because"):
            prepare_launch(ledger, given, period=PERIOD, warehouses=lambda _: warehouse, now=NOW)


def test_requests_are_a_tenth_of_the_daily_limit_and_the_preview_says_how_long_it_takes(
    warehouse: str, ledger: Ledger
) -> None:
    given = folder({"warm_up": [WARM_UP]}, transactional="a receipt")
    made = plan(warehouse, given, ledger)
    assert {len(segment) for segment in made.segments} == {3}
    assert gate(made, "warm_up") == GateResult(
        "warm_up",
        True,
        "30 of 90 today, the rest over 1 day",
        "at most 30 on 2026-03-02 (UTC) over all campaigns, growing to 100",
    )
    other = make_launch(ledger, range(1000, 1020), name="autumn", connection="sendoff_default")
    limit = DailyLimit("sendoff_default", date(2026, 3, 2), 30)
    assert ledger.dispatches.claim(other.launch_key, worker="w", now=NOW, lease=LEASE, limit=limit)
    preview = preview_campaign(given, period=PERIOD, warehouses=lambda _: warehouse, ledger=ledger, now=NOW)
    assert "10 of 90 today, the rest over 2 days" in {each.actual for each in preview.gates}
    assert (preview.requests, preview.segment_size) == (30, 3)


def test_the_library_holds_its_campaigns_to_the_rules_of_the_file_that_it_is_given(
    tmp_path: Path, warehouse: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "rules.yaml"
    file.write_text("rules: {days: [monday], default_time_zone: UTC}\n")
    with connect(f"sqlite:///{tmp_path / 'a.db'}", warehouse=warehouse, defaults=file) as app:
        app.migrate()
        launch = app.prepare(make_campaign(), name="spring", audience=SQL, period="2026-03-01")
        frozen = Campaign.frozen(app._connections.ledger.launches.get(launch.key).definition)
        assert frozen.rules.days == ("monday",)
    monkeypatch.setenv("SENDOFF_DEFAULTS", str(file))
    with connect(f"sqlite:///{tmp_path / 'b.db'}", warehouse=warehouse) as app:
        app.migrate()
        preview = app.preview(make_campaign(), name="spring", audience=SQL, period="2026-03-01")
        assert "rules" in [each["name"] for each in preview.to_json()["gates"]]


@pytest.mark.parametrize(("day", "is_sent"), [(7, True), (8, False), (9, True)])  # Saturday to Monday
def test_a_message_that_ends_in_the_evening_is_late_only_on_a_day_without_sending(
    warehouse: str, day: int, is_sent: bool
) -> None:
    rules = {
        "days": ["monday", "tuesday", "wednesday", "thursday", "friday", "saturday"],
        "default_time_zone": "UTC",
    }
    given = folder(
        rules, "SELECT device_id FROM devices", push_expiry={"until": {"time": "22:00", "time_zone": "UTC"}}
    )
    now = datetime(2026, 3, day, 9, tzinfo=UTC)
    period = Period(now - timedelta(days=1), now)

    def look() -> Plan:
        return plan_launch(None, given, period=period, warehouses=lambda _: warehouse, now=now)

    if is_sent:
        assert look().segments
    else:
        with pytest.raises(LateError, match="the end at 2026-03-08 22:00 UTC is before messages are sent"):
            look()
