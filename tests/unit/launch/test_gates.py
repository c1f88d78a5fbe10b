"""Gates: the actual and allowed values of each gate, and the errors of closed ones."""

from __future__ import annotations

import sqlite3
from collections.abc import Mapping
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from sendoff.audience.build import Audience
from sendoff.audience.identifiers import integers
from sendoff.audience.segmentation import Segment
from sendoff.campaign import Campaign, CampaignFolder, Period, Variation
from sendoff.dispatch.policy import SendPolicy
from sendoff.errors import GateError, LateError
from sendoff.launch.gates import GateInputs, GateResult, check_gates, due_time, raise_if_closed
from sendoff.launch.plan import LaunchOptions, prepare_launch
from sendoff.ledger import Decision, Ledger, NewLaunch
from sendoff.ledger.launches.launch_record import LaunchRecord
from sendoff.states import Accepted, DecisionKind

from ...factories import NOW, PERIOD, claimed, make_warehouse

PREVIOUS = LaunchRecord(
    launch_key="k" * 32,
    connection="service",
    campaign="spring",
    period=PERIOD,
    resend=0,
    definition="{}",
    created_at=NOW,
    settled_at=None,
    state="released",
    wave=1,
    due_at=None,
    sends_at=NOW,
    revision=0,
    is_chosen_by_service=False,
    identified_by="device_id",
    kind="integer",
    rows=100,
    audience=100,
    dropped={},
    segments=1,
)
QUERY = "query"


def campaign(**fields: Any) -> Campaign:
    values = {
        "title": "Spring",
        "message": {"title": "Hello", "text": "It is spring"},
        "channels": {"android_push": {}},
        **fields,
    }
    return Campaign.model_validate(values).resolved(PERIOD.end)


def audience(size: int, *, rows: int | None = None, **dropped: int) -> Audience:
    identifiers = integers(range(1, size + 1))
    return Audience("device_id", identifiers, rows or size, dropped, {})


def gate(
    name: str,
    gates: Mapping[str, Any],
    *,
    size: int | None = 120,
    people: Audience | None = None,
    segments: list[Segment] | None = None,
    previous: LaunchRecord | None = PREVIOUS,
    due_at: datetime | None = None,
    now: datetime = NOW,
    send_late: bool = False,
    **fields: Any,
) -> GateResult:
    """Return the result of one gate for a launch with ``size`` recipients; None: the service chooses them."""
    whom = people or (audience(size) if size is not None else None)
    results = check_gates(
        GateInputs(
            campaign=campaign(gates=gates, **fields),
            audience=whom,
            segments=segments or [Segment(whom.identifiers if whom else None)],
            previous=previous,
            due_at=due_at,
            period_end=PERIOD.end,
            now=now,
            send_late=send_late,
        )
    )
    (result,) = [each for each in results if each.name == name]
    return result


@pytest.mark.parametrize(
    ("name", "gates", "size", "is_open", "actual", "allowed"),
    [
        ("least", {}, 1, True, "1 device", "at least 1"),
        ("least", {"least": 1200}, 1199, False, "1,199 devices", "at least 1,200"),
        ("least", {"least": 1200}, 1200, True, "1,200 devices", "at least 1,200"),
        ("most", {"most": 1200}, 1201, False, "1,201 devices", "at most 1,200"),
        ("most", {"most": 1200}, 1200, True, "1,200 devices", "at most 1,200"),
        ("least", {}, None, True, "people chosen by the service", "at least 1"),  # their number is unknown
    ],
)  # fmt: skip
def test_the_number_of_people_has_a_least_and_a_most(
    name: str, gates: Mapping[str, Any], size: int | None, is_open: bool, actual: str, allowed: str
) -> None:
    assert gate(name, gates, size=size) == GateResult(name, is_open, actual, allowed)


@pytest.mark.parametrize(
    ("size", "is_open", "actual"),
    [
        (120, True, "an audience of 120, 20.0 % more than the 100 of the last launch"),
        (80, True, "an audience of 80, 20.0 % fewer than the 100 of the last launch"),
        (121, False, "an audience of 121, 21.0 % more than the 100 of the last launch"),
        (79, False, "an audience of 79, 21.0 % fewer than the 100 of the last launch"),
    ],
)
def test_the_change_is_that_of_the_audience_against_the_last_one(
    size: int, is_open: bool, actual: str
) -> None:
    seen = gate("change", {"change": 20}, size=size)
    assert (seen.is_open, seen.actual) == (is_open, actual)
    assert seen.allowed == "at most 20 % more or fewer than in the last launch"


@pytest.mark.parametrize("previous", [None, replace(PREVIOUS, audience=0)])
def test_a_first_launch_changes_nothing(previous: LaunchRecord | None) -> None:
    seen = gate("change", {"change": 20}, previous=previous)
    assert (seen.is_open, seen.actual) == (True, "an audience of 120, and no launch before")


def test_people_who_are_held_out_count_for_the_change_but_not_for_the_most() -> None:
    whom = audience(100)
    sent = [Segment(integers(range(1, 91)))]
    assert gate("change", {"change": 5}, people=whom, segments=sent).is_open
    assert gate("most", {"most": 90}, people=whom, segments=sent).is_open


@pytest.mark.parametrize(("null", "is_open"), [(6, True), (7, False)])
def test_rows_without_a_usable_identifier_have_a_most_and_duplicates_do_not_count(
    null: int, is_open: bool
) -> None:
    whom = audience(100, rows=200, null=null, invalid=4, duplicate=90)
    seen = gate("unusable", {"unusable": 5}, people=whom)
    share = (null + 4) / 2
    assert seen == GateResult(
        "unusable",
        is_open,
        f"{null + 4} of 200 rows ({share:.1f} %) null or invalid",
        "at most 5 % of the rows",
    )


def test_without_unusable_rows_their_share_is_zero() -> None:
    assert gate("unusable", {"unusable": 5}).actual == "0 of 120 rows (0.0 %) null or invalid"


HOURS = {"lateness": {"length": 2, "unit": "hours"}}


ONE_DAY_LATER = NOW + timedelta(days=1)
SCHEDULED = {"schedule": "0 9 * * *"}
ONCE = {"send": {"kind": "once", "time": "18:30", "time_zone": "UTC"}}


@pytest.mark.parametrize(
    ("gates", "fields", "scheduled_at", "due_at"),
    [
        ({}, SCHEDULED, None, PERIOD.end),
        ({}, {**SCHEDULED, **ONCE}, None, None),  # see the gate send
        ({}, {}, None, None),  # without a schedule, a person started it
        ({"lateness": None}, SCHEDULED, None, None),
        (HOURS, SCHEDULED, None, PERIOD.end),
        (HOURS, {**SCHEDULED, **ONCE}, None, PERIOD.end),
        (HOURS, {}, None, NOW),
        # the schedule of a DAG that a team wrote
        ({}, {}, PERIOD.end, PERIOD.end),
        ({}, ONCE, PERIOD.end, None),
        ({"lateness": None}, {}, PERIOD.end, None),
        (HOURS, {}, PERIOD.end, PERIOD.end),
    ],
)
def test_lateness_counts_from_the_end_of_a_schedules_period(
    gates: Mapping[str, Any],
    fields: Mapping[str, Any],
    scheduled_at: datetime | None,
    due_at: datetime | None,
) -> None:
    assert due_time(campaign(gates=gates, **fields), PERIOD, NOW, scheduled_at) == due_at


@pytest.mark.parametrize(
    ("late", "is_open", "words"),
    [
        (timedelta(days=1), True, "1 day"),
        (timedelta(days=1, hours=15, seconds=61), False, "1 day 15 h"),
    ],
)
def test_what_a_schedule_sends_at_once_may_be_one_day_late(
    late: timedelta, is_open: bool, words: str
) -> None:
    found = gate("lateness", {}, due_at=PERIOD.end, now=PERIOD.end + late, **SCHEDULED)
    assert (found.is_open, found.allowed) == (is_open, "at most 1 day")
    assert found.actual == f"{words} after it was due"


def test_what_is_sent_late_on_purpose_says_so_and_is_not_stopped_later(
    ledger: Ledger, warehouse: str
) -> None:
    launch = prepared(ledger, warehouse, HOURS, due_at=NOW - timedelta(hours=3), send_late=True)
    (decision,) = ledger.audit_log.of_launch(launch.launch_key)
    actual = {each["name"]: each["actual"] for each in (decision.detail or {})["gates"]}
    assert actual["lateness"] == "3 h after it was due, sent late on purpose"
    assert not SendPolicy(ledger, launch.launch_key).is_too_late(ONE_DAY_LATER)


@pytest.mark.parametrize(("gates", "is_stopped"), [({}, False), (HOURS, True)])
def test_only_a_lateness_of_the_file_stops_a_launch_that_waits(
    ledger: Ledger, warehouse: str, gates: Mapping[str, Any], is_stopped: bool
) -> None:
    launch = prepared(ledger, warehouse, gates, due_at=NOW)
    assert SendPolicy(ledger, launch.launch_key).is_too_late(ONE_DAY_LATER + timedelta(days=1)) is is_stopped


def test_a_launch_that_is_too_late_asks_no_warehouse(ledger: Ledger) -> None:
    with pytest.raises(LateError, match=r"gates.lateness: .*; to send it anyway, turn on Send late"):
        prepared(ledger, "sqlite:////nowhere/at/all.db", HOURS, due_at=NOW - timedelta(hours=3))


@pytest.mark.parametrize(
    ("due_at", "is_open", "actual"),
    [
        (NOW - timedelta(hours=2), True, "2 h after it was due"),
        (NOW - timedelta(hours=2, seconds=1), False, "2 h 1 s after it was due"),
        (NOW + timedelta(hours=9), True, "not late"),
        (None, True, "no due time"),  # by hand
    ],
)
def test_a_launch_may_be_so_late(due_at: datetime | None, is_open: bool, actual: str) -> None:
    assert gate("lateness", HOURS, due_at=due_at) == GateResult(
        "lateness", is_open, actual, "at most 2 hours"
    )
    on_purpose = gate("lateness", HOURS, due_at=due_at, send_late=True)
    assert on_purpose.is_open
    assert on_purpose.actual == (actual if is_open else f"{actual}, sent late on purpose")


def test_a_launch_that_is_too_late_when_its_window_opens_is_too_late_now() -> None:
    late = {**HOURS, "window": {"earliest": "11:01", "latest": "20:00", "time_zone": "UTC"}}
    assert gate("lateness", late, due_at=NOW) == GateResult(
        "lateness", False, "2 h 1 min after it was due, when it may first send", "at most 2 hours"
    )
    in_time = {**late, "window": {**late["window"], "earliest": "11:00"}}
    assert gate("lateness", in_time, due_at=NOW).actual == "not late"
    on_purpose = gate("lateness", late, due_at=NOW, send_late=True)
    assert on_purpose.is_open
    assert on_purpose.actual == "2 h 1 min after it was due, when it may first send, sent late on purpose"
    by_default = {"window": late["window"]}  # the default stops no launch that waits
    friday = PERIOD.end + timedelta(days=1)
    assert gate("lateness", by_default, due_at=PERIOD.end, now=friday, **SCHEDULED).is_open


def window(zone: str = "Europe/Dublin", earliest: str = "10:00", latest: str = "20:00") -> dict[str, Any]:
    default = {"default_time_zone": "Europe/Dublin"} if zone == QUERY else {}
    return {"earliest": earliest, "latest": latest, "time_zone": zone, **default}


@pytest.mark.parametrize(
    ("earliest", "zone", "actual"),
    [
        ("09:00", "Europe/Dublin", "open now"),
        ("09:01", "Europe/Dublin", "closed now; the launch waits until 2026-03-02 09:01 in Europe/Dublin"),
        ("09:01", "Asia/Tokyo", "open now"),  # 18:00 there
    ],
)
def test_what_is_sent_at_once_waits_for_the_window(earliest: str, zone: str, actual: str) -> None:
    seen = gate("window", {"window": window(zone, earliest)})
    assert (seen.is_open, seen.actual) == (True, actual)
    assert seen.allowed == f"{earliest} to 20:00 in {zone}"


def test_a_window_of_each_person_says_how_many_zones_wait() -> None:
    parts = [
        Segment(integers([n]), Variation(time_zone=zone))
        for n, zone in enumerate(["Europe/Dublin", "Asia/Tokyo", "America/New_York"], start=1)
    ]
    seen = gate("window", {"window": window(QUERY)}, people=audience(3), segments=parts)
    assert seen == GateResult(
        "window",
        True,
        "closed now in 2 of 3 time zones; the launch waits until 2026-03-02 10:00 in America/New_York",
        "10:00 to 20:00 in each person's time zone",
    )
    seen = gate("window", {"window": window(QUERY)}, people=audience(2), segments=parts[:2])
    assert seen.actual.startswith("closed now in 1 of 2 time zones; the launch waits until 2026-03-02 10:00")


DAYS = {"start": "2026-03-02", "end": "never"}


def once(time: str, zone: str = "Europe/Dublin", **more: Any) -> dict[str, Any]:
    return {"kind": "once", "time": time, "time_zone": zone, **more}


@pytest.mark.parametrize(
    ("send", "zone", "is_open", "actual"),
    [
        (once("20:00"), "Europe/Dublin", True, "sending at 20:00"),
        (once("20:01"), "Europe/Dublin", False, "sending at 20:01"),
        (once("18:30"), "Europe/Paris", True, "sending at 19:30"),
        (once("19:30"), "Europe/Paris", False, "sending at 20:30"),
        (once("19:30"), QUERY, True, "sending at 19:30"),
        # each recipient's own time is compared as it is, in any zone of the window
        (once("20:00", "user"), "Asia/Tokyo", True, "sending at 20:00"),
        (once("20:01", "user"), "Asia/Tokyo", False, "sending at 20:01"),
        (
            {"kind": "recurring", "time": "06:00", "time_zone": "Europe/Dublin", **DAYS},
            "Europe/Dublin", False, "sending at 06:00",
        ),
        (
            {
                "kind": "triggered", "time_zone": "Europe/Dublin", **DAYS, "trigger": {"kind": "api"},
                "window": {"earliest": "10:00", "latest": "21:00"},
            },
            "Europe/Dublin", False, "sending at 21:00",
        ),
    ],
)  # fmt: skip
def test_a_moment_of_sending_lies_in_the_window(
    send: dict[str, Any], zone: str, is_open: bool, actual: str
) -> None:
    seen = gate("window", {"window": window(zone)}, send=send)
    assert (seen.is_open, seen.actual) == (is_open, actual)


def triggered(zone: str, earliest: str = "00:00", latest: str = "23:59", **more: Any) -> dict[str, Any]:
    hours = {"earliest": earliest, "latest": latest}
    return {
        "kind": "triggered",
        "time_zone": zone,
        **DAYS,
        "trigger": {"kind": "api"},
        "window": hours,
        **more,
    }


@pytest.mark.parametrize(
    ("send", "gates", "is_open", "actual"),
    [
        # both ends are within the window, but not the night between them
        (triggered("UTC"), window("Asia/Tokyo", "08:00", "21:00"), False, "sending at 00:00, 23:59"),
        (triggered("UTC", "00:00", "12:00"), window("Asia/Tokyo", "08:00", "21:00"), True, "sending at 09:00, 21:00"),
        (triggered("UTC", "12:00", "23:30"), window("Asia/Tokyo", "08:00", "21:00"), False, "sending at 00:00, 23:59"),
        (triggered("UTC"), window("Asia/Tokyo", "00:00", "23:59"), True, "sending at 00:00, 08:59, 09:00"),
        (triggered("Asia/Tokyo"), window("Asia/Tokyo", "00:00", "23:59"), True, "sending at 00:00, 23:59"),
        (triggered("Asia/Tokyo"), window("Asia/Tokyo", "08:00", "21:00"), False, "sending at 00:00, 23:59"),
        # past midnight in summer
        (triggered("UTC", "08:00", "22:30"), window("Europe/Rome", "08:00", "23:59"), False, "sending at 00:00, 00:30"),
    ],
)  # fmt: skip
def test_a_triggered_campaign_may_send_only_within_the_window_all_the_time(
    send: dict[str, Any], gates: dict[str, Any], is_open: bool, actual: str
) -> None:
    seen = gate("window", {"window": gates}, send=send)
    assert (seen.is_open, seen.actual) == (is_open, actual)


def recurring(time: str, zone: str, start: str, end: str, **more: Any) -> dict[str, Any]:
    return {"kind": "recurring", "time": time, "time_zone": zone, "start": start, "end": end, **more}


@pytest.mark.parametrize(
    ("send", "is_open", "actual"),
    [
        (recurring("20:30", "UTC", "2026-03-02", "never"), False, "sending at 22:30"),
        (recurring("20:30", "UTC", "2026-03-02", "2026-03-29"), False, "sending at 22:30"),
        (recurring("20:30", "UTC", "2026-03-02", "2026-03-28"), True, "sending at 21:30"),
        (recurring("19:30", "UTC", "2026-03-02", "never"), True, "sending at 20:30, 21:30"),
        (recurring("21:45", "Europe/Berlin", "2026-03-02", "never"), True, "sending at 21:45"),
        # five hours in most of March, six in the rest of the year
        (recurring("15:45", "America/New_York", "2026-03-02", "never"), True, "sending at 20:45, 21:45"),
        (recurring("16:00", "America/New_York", "2026-03-09", "2026-03-27"), True, "sending at 21:00"),
        (recurring("16:00", "America/New_York", "2026-03-09", "never"), False, "sending at 22:00"),
        (triggered("UTC", "10:00", "20:30"), False, "sending at 22:30"),
        # the clocks change on Sunday, 29 March
        (recurring("20:30", "UTC", "2026-03-28", "2026-03-30", days=["saturday"]), True, "sending at 21:30"),
        (recurring("20:30", "UTC", "2026-03-28", "2026-03-30", days=["monday"]), False, "sending at 22:30"),
        (recurring("20:30", "UTC", "2026-03-28", "2026-03-30", days=["friday"]), True, "sending at no time"),
    ],
)
def test_what_is_sent_again_and_again_stays_in_the_window_when_clocks_change(
    send: dict[str, Any], is_open: bool, actual: str
) -> None:
    seen = gate("window", {"window": window("Europe/Berlin", "10:00", "21:45")}, send=send)
    assert (seen.is_open, seen.actual) == (is_open, actual)


def test_a_time_that_the_clocks_skip_counts_as_the_time_when_the_service_sends() -> None:
    night = window("Europe/Berlin", "02:00", "02:59")
    seen = gate(
        "window", {"window": night}, send=recurring("02:30", "Europe/Berlin", "2026-03-28", "2026-03-30")
    )
    assert (seen.is_open, seen.actual) == (False, "sending at 03:30")


def test_every_zone_of_the_query_sends_within_the_window_of_one() -> None:
    parts = [
        Segment(integers([1]), Variation(time_zone="Europe/Dublin")),
        Segment(integers([2]), Variation(time_zone="America/New_York")),
    ]
    send = once("19:00", QUERY, default_time_zone="Europe/Dublin")
    seen = gate("window", {"window": window()}, people=audience(2), segments=parts, send=send)
    assert (seen.is_open, seen.actual) == (False, "sending at 00:00")
    own = gate("window", {"window": window(QUERY)}, people=audience(2), segments=parts, send=send)
    assert (own.is_open, own.actual) == (True, "sending at 19:00")


def test_a_window_and_rules_that_are_never_open_together_close_a_gate() -> None:
    rules = {"quiet_hours": {"earliest": "08:00", "latest": "20:00"}, "default_time_zone": "UTC"}
    seen = gate("rules", {"window": window("UTC", "21:00", "23:00")}, rules=rules)
    assert (seen.is_open, seen.actual) == (False, "never open together with gates.window")


def test_a_spread_says_its_waves() -> None:
    parts = [Segment(integers(range(1, 3)), wave=1), Segment(integers(range(3, 13)), wave=2)]
    parts.append(Segment(integers(range(13, 101)), wave=3))
    seen = gate("rollout", {"rollout": {"missing": 5}}, people=audience(100), segments=parts)
    assert seen == GateResult(
        "rollout",
        True,
        "waves of 2, 10, 88 people",
        "1 %, 10 %, then the rest, 30 minutes apart, with at most 1 % of requests refused and 5 % of people missing",
    )
    daily = gate(
        "rollout", {"rollout": {"wait": {"length": 1, "unit": "days"}}}, people=audience(100), segments=parts
    )
    assert ", then the rest, 1 day apart, " in daily.allowed


def test_limits_of_rates_are_shown_and_never_closed_before_sending() -> None:
    limits = {"refused": 5, "missing": 20, "after": {"length": 1, "unit": "hours"}}
    seen = gate("hold_above", {"hold_above": limits})
    assert seen == GateResult(
        "hold_above", True, "checked while it sends", "at most 5 % refused, 20 % missing after 1 hour"
    )
    seen = gate("hold_above", {"hold_above": {"opt_outs": 0.5}})
    assert seen.allowed == "at most 0.5 % opting out"


@pytest.mark.parametrize(("hour", "is_open"), [(18, True), (19, False)])
def test_a_moment_of_sending_that_is_over_closes_a_gate_that_nobody_set(hour: int, is_open: bool) -> None:
    now = datetime(2026, 3, 2, hour, 30, tzinfo=UTC)
    seen = gate("send", {}, send=once("18:30"), now=now)
    assert seen.is_open is is_open
    assert seen.allowed == f"a sending time after 2026-03-02 {hour}:30 UTC"


def test_of_many_zones_none_may_be_over() -> None:
    zones = ["America/New_York", "Asia/Tokyo"]
    parts = [Segment(integers([n]), Variation(time_zone=zone)) for n, zone in enumerate(zones, start=1)]
    send = once("18:30", QUERY, default_time_zone="UTC")
    seen = gate("send", {}, people=audience(2), segments=parts, send=send, now=NOW + timedelta(hours=1))
    assert (seen.is_open, seen.actual) == (
        False,
        "the first sending time, 2026-03-02 18:30 in Asia/Tokyo, has passed",
    )
    assert seen.words == seen.actual  # why there is no launch, on the pages


def test_a_launch_of_nobody_is_stopped_by_the_least_alone() -> None:
    send = once("18:30", QUERY, default_time_zone="Europe/Dublin")
    results = check_gates(
        GateInputs(
            campaign=campaign(gates={"window": window(QUERY)}, send=send),
            audience=replace(audience(2), groups={"platform": {"email": integers([1, 2])}}),
            segments=[],  # both are left out, for one reason or another
            previous=None,
            due_at=None,
            period_end=PERIOD.end,
            now=NOW,
        )
    )
    assert results == (GateResult("least", False, "0 devices", "at least 1"),)


OPEN = GateResult("least", True, "5 people", "at least 1")
MOST = GateResult("most", False, "61,234 people", "at most 50,000")
LATE = GateResult("lateness", False, "3 h after it was due", "at most 2 hours")
OVER = GateResult("send", False, "a moment", "a later one")


def test_open_gates_raise_nothing() -> None:
    raise_if_closed("spring", [OPEN])


@pytest.mark.parametrize(
    ("results", "kind", "said"),
    [
        ([OPEN, MOST], GateError, "gates.most: 61,234 people (allowed: at most 50,000)"),
        ([MOST, OVER], LateError, "(allowed: at most 50,000); send: a moment (allowed: a later one)"),
        (
            [MOST, LATE],
            LateError,
            "50,000); gates.lateness: 3 h after it was due (allowed: at most",
        ),
    ],
)
@pytest.mark.promise("hands/gates")
def test_an_error_names_every_closed_gate(
    results: list[GateResult], kind: type[Exception], said: str
) -> None:
    with pytest.raises(kind, match="campaign spring: nothing was sent: ") as caught:
        raise_if_closed("spring", results)
    assert said in str(caught.value)
    assert "5 people" not in str(caught.value)


PUSHED = ("android_push", "ios_push")


def platforms_gate(
    channels: tuple[str, ...], platforms: Mapping[str, list[int]], sent_to: list[int]
) -> GateResult | None:
    people = audience(4)
    groups = {"platform": {name: integers(members) for name, members in platforms.items()}}
    results = check_gates(
        GateInputs(
            campaign=campaign(channels=dict.fromkeys(channels)),
            audience=replace(people, groups=groups),
            segments=[Segment(integers(sent_to))],
            previous=None,
            due_at=None,
            period_end=PERIOD.end,
            now=NOW,
        )
    )
    return next((each for each in results if each.name == "channels"), None)


@pytest.mark.parametrize(
    ("channels", "platforms", "sent_to", "is_open"),
    [
        (PUSHED, {"email": [1, 2, 3, 4]}, [1, 2, 3, 4], False),
        (PUSHED, {"email": [1, 2], "chrome": [3, 4]}, [1, 2, 3, 4], False),
        (PUSHED, {"email": [1, 2, 3], "ios": [4]}, [1, 2, 3, 4], True),
        (PUSHED, {"email": [1, 2, 3], "ios": [4]}, [1, 2, 3], False),  # the reachable recipient is held out
        (PUSHED, {"email": [1, 2, 3, 4], "ios": [4]}, [1, 2, 3, 4], True),  # one person with two devices
        (PUSHED, {"email": [1, 2, 3]}, [1, 2, 3, 4], True),  # 4 has no platform, and may be on any
        (PUSHED, {"kiosk": [1, 2, 3, 4]}, [1, 2, 3, 4], True),  # not in the service's document
        ((*PUSHED, "inbox"), {"email": [1, 2, 3, 4]}, [1, 2, 3, 4], None),  # an inbox may reach anyone
        (PUSHED, {}, [1, 2, 3, 4], None),  # the query has no platforms
    ],
)
@pytest.mark.promise("hands/gates")
def test_a_launch_that_no_channel_brings_to_anybody_is_stopped(
    channels: tuple[str, ...], platforms: Mapping[str, list[int]], sent_to: list[int], is_open: bool | None
) -> None:
    found = platforms_gate(channels, platforms, sent_to)
    assert (found.is_open if found else None) is is_open


def test_the_gate_of_channels_names_the_platforms_and_its_field() -> None:
    found = platforms_gate(PUSHED, {"email": [1, 2], "chrome": [3, 4]}, [1, 2, 3, 4])
    assert (
        str(found)
        == "channels: devices on chrome (2), email (2) (allowed: at least one device on android, ios)"
    )


@pytest.fixture
def warehouse(tmp_path: Path) -> str:
    rows = [(n,) for n in (1, 2, 3, 4, 5, None)]
    return make_warehouse(tmp_path / "warehouse.db", "devices (device_id INTEGER)", rows)


def prepared(ledger: Ledger, warehouse: str, gates: Mapping[str, Any], **how: Any) -> LaunchRecord:
    folder = CampaignFolder("spring", campaign(gates=gates), "SELECT device_id FROM devices", Path("spring"))
    period = how.pop("period", PERIOD)
    return prepare_launch(
        ledger, folder, period=period, warehouses=lambda _: warehouse, options=LaunchOptions(**how), now=NOW
    )


def test_what_the_gates_said_is_in_the_ledger_and_names_nobody(ledger: Ledger, warehouse: str) -> None:
    launch = prepared(ledger, warehouse, {"most": 5})
    (decision,) = ledger.audit_log.of_launch(launch.launch_key)
    assert (decision.kind, decision.who, decision.decided_at) == ("gates", "sendoff", NOW)
    assert decision.detail == {
        "gates": [
            {"name": "least", "is_open": True, "actual": "5 devices", "allowed": "at least 1"},
            {"name": "most", "is_open": True, "actual": "5 devices", "allowed": "at most 5"},
        ]
    }
    prepared(ledger, warehouse, {"most": 5})  # like a retried task
    assert len(ledger.audit_log.of_launch(launch.launch_key)) == 1


@pytest.mark.parametrize(
    ("gates", "how", "kind"),
    [
        ({"least": 6}, {}, GateError),
        ({"most": 4}, {}, GateError),
        ({"unusable": 10}, {}, GateError),
        (HOURS, {"due_at": NOW - timedelta(hours=3)}, LateError),
    ],
)
@pytest.mark.promise("hands/gates")
def test_behind_a_closed_gate_nothing_is_frozen(
    ledger: Ledger, warehouse: str, gates: Mapping[str, Any], how: dict[str, Any], kind: type[Exception]
) -> None:
    with pytest.raises(kind, match="nothing was sent"):
        prepared(ledger, warehouse, gates, **how)
    assert ledger.launches.search() == []


def test_the_change_is_against_the_launch_of_the_period_before(ledger: Ledger, warehouse: str) -> None:
    prepared(ledger, warehouse, {"change": 20})
    tomorrow = Period(PERIOD.end, PERIOD.end + timedelta(days=1))
    with sqlite3.connect(warehouse.removeprefix("sqlite:///")) as db:
        db.executemany("INSERT INTO devices VALUES (?)", [(6,), (7,)])
    db.close()
    with pytest.raises(GateError, match=r"gates.change: an audience of 7, 40.0 % more than the 5"):
        prepared(ledger, warehouse, {"change": 20}, period=tomorrow)


def test_the_change_does_not_count_a_size_limit(ledger: Ledger, warehouse: str) -> None:
    periods = [Period(PERIOD.start + timedelta(days=n), PERIOD.end + timedelta(days=n)) for n in range(4)]
    prepared(ledger, warehouse, {"change": 20}, period=periods[0])
    test = prepared(ledger, warehouse, {"change": 20}, period=periods[1], size_limit=2)
    assert test.audience == 2
    whole = prepared(ledger, warehouse, {"change": 20}, period=periods[2])
    said = {
        launch.launch_key: ledger.audit_log.of_launch(launch.launch_key)[0].detail for launch in (test, whole)
    }
    seen = {
        key: next(gate["actual"] for gate in (detail or {})["gates"] if gate["name"] == "change")
        for key, detail in said.items()
    }
    assert seen == {
        test.launch_key: "an audience of 5 (before the size limit), 0.0 % more than the 5 of the last launch",
        whole.launch_key: "an audience of 5, 0.0 % more than the 5 (before the size limit) of the last launch",
    }
    fewer = CampaignFolder(
        "spring",
        campaign(gates={"change": 10}),
        "SELECT device_id FROM devices WHERE device_id < 5",
        Path("spring"),
    )
    with pytest.raises(GateError, match=r"an audience of 4 \(before the size limit\), 20.0 % fewer"):
        prepare_launch(
            ledger,
            fewer,
            period=periods[3],
            warehouses=lambda _: warehouse,
            options=LaunchOptions(size_limit=3),
            now=NOW,
        )


def test_the_change_is_not_against_what_was_rejected_or_stopped_before_it_was_sent(
    ledger: Ledger, warehouse: str
) -> None:
    periods = [Period(PERIOD.start + timedelta(days=n), PERIOD.end + timedelta(days=n)) for n in range(5)]

    def last() -> LaunchRecord | None:
        return ledger.launches.previous("sendoff_default", "spring", periods[4])

    def decide(launch: LaunchRecord, kind: str) -> None:
        assert ledger.audit_log.decide(Decision(launch.launch_key, kind, "ann", None, NOW))

    first, sent, unsent, rejected = (prepared(ledger, warehouse, {}, period=each) for each in periods[:4])
    assert last() == rejected
    decide(rejected, "held")
    decide(rejected, "rejected")
    assert last() == unsent
    decide(unsent, "stopped")
    assert last() == sent
    claim = claimed(ledger, sent.launch_key)
    ledger.dispatches.record(claim, Accepted(200, 1), NOW)
    decide(sent, "stopped")
    assert (found := last()) is not None
    assert found.launch_key == sent.launch_key  # it has recipients
    assert first != found


def of_day(
    ledger: Ledger,
    warehouse: str,
    start: datetime,
    days: float = 1,
    resend: int = 0,
    name: str = "spring",
    **fields: Any,
) -> LaunchRecord:
    """Prepare a launch that a schedule would make for some days."""
    folder = CampaignFolder(
        name, campaign(**{"schedule": "0 0 * * *"} | fields), "SELECT device_id FROM devices", Path()
    )
    return prepare_launch(
        ledger,
        folder,
        period=Period(start, start + timedelta(days=days)),
        warehouses=lambda _: warehouse,
        options=LaunchOptions(resend=resend, reason="asked to" if resend else None),
        now=NOW,
    )


@pytest.mark.parametrize(
    ("start", "days"),
    [
        (PERIOD.start + timedelta(hours=1), 1),  # 0 1 * * * instead of 0 0 * * *
        (PERIOD.start - timedelta(hours=1), 1),
        (PERIOD.end - timedelta(days=7), 7),  # weekly instead of daily
        (PERIOD.start + timedelta(hours=8), 0.25),
    ],
)
def test_a_period_that_was_sent_in_part_before_the_schedule_changed_is_skipped(
    ledger: Ledger, warehouse: str, start: datetime, days: float
) -> None:
    sent = of_day(ledger, warehouse, PERIOD.start)
    with pytest.raises(LateError, match=rf"period: overlaps the period {PERIOD.key}.*add a resend number"):
        of_day(ledger, "sqlite:///no/such/warehouse.db", start, days)
    assert [launch.launch_key for launch in ledger.launches.search()] == [sent.launch_key]
    (skipped,) = ledger.not_launched.newest()
    assert skipped.why == "this period, or a part of it, was sent already"
    assert of_day(ledger, warehouse, start, days, resend=1).audience == 5


def test_periods_side_by_side_of_other_campaigns_and_without_a_schedule_do_not_overlap(
    ledger: Ledger, warehouse: str
) -> None:
    of_day(ledger, warehouse, PERIOD.start)
    of_day(ledger, warehouse, PERIOD.start)  # a retry
    of_day(ledger, warehouse, PERIOD.end)
    of_day(ledger, warehouse, PERIOD.start - timedelta(days=1))
    week = PERIOD.end - timedelta(days=7)
    of_day(ledger, warehouse, week, 7, connection="another")
    of_day(ledger, warehouse, week, 7, schedule=None)
    assert len(ledger.launches.search()) == 5


def test_a_campaign_that_leaves_out_its_own_recipients_may_change_its_schedule(
    ledger: Ledger, warehouse: str
) -> None:
    of_day(ledger, warehouse, PERIOD.start)
    with sqlite3.connect(warehouse.removeprefix("sqlite:///")) as db:
        db.execute("INSERT INTO devices VALUES (6)")
    db.close()
    own = {"exclude": [{"kind": "campaign", "name": "spring", "days": 7}]}
    assert of_day(ledger, warehouse, PERIOD.end - timedelta(days=7), 7, audience=own).audience == 1


def test_a_launch_that_was_never_sent_does_not_take_its_period(ledger: Ledger, warehouse: str) -> None:
    unsent = of_day(ledger, warehouse, PERIOD.start)
    ledger.audit_log.decide(Decision(unsent.launch_key, DecisionKind.STOPPED, "ann", None, NOW))
    assert of_day(ledger, warehouse, PERIOD.end - timedelta(days=7), 7).audience == 5


@pytest.mark.parametrize("schedule", ["0 0 * * *", None])
def test_a_period_that_was_sent_under_an_earlier_name_is_skipped(
    ledger: Ledger, warehouse: str, schedule: str | None
) -> None:
    of_day(ledger, warehouse, PERIOD.start, schedule=schedule)
    renamed: dict[str, Any] = {"name": "summer", "schedule": schedule, "formerly": ["winter", "spring"]}
    with pytest.raises(LateError, match=rf"overlaps the period {PERIOD.key}, which has a launch of spring"):
        of_day(ledger, "sqlite:///no/such/warehouse.db", PERIOD.start, **renamed)
    assert of_day(ledger, warehouse, PERIOD.start, resend=1, **renamed).audience == 5
    assert of_day(ledger, warehouse, PERIOD.end, **renamed).audience == 5
    another: dict[str, Any] = {**renamed, "name": "autumn", "formerly": ()}
    assert of_day(ledger, warehouse, PERIOD.start, **another).audience == 5


def test_only_with_a_schedule_does_a_part_of_a_period_under_an_earlier_name_count(
    ledger: Ledger, warehouse: str
) -> None:
    of_day(ledger, warehouse, PERIOD.start)
    renamed: dict[str, Any] = {"name": "summer", "formerly": ["spring"]}
    with pytest.raises(LateError, match="period"):
        of_day(ledger, warehouse, PERIOD.end - timedelta(days=7), 7, **renamed)
    rolling = of_day(ledger, warehouse, PERIOD.end - timedelta(days=7), 7, schedule=None, **renamed)
    assert rolling.audience == 5


@pytest.mark.parametrize("excluded", ["spring", "summer"])
def test_a_campaign_that_leaves_out_its_own_recipients_also_leaves_out_those_of_its_earlier_name(
    ledger: Ledger, warehouse: str, excluded: str
) -> None:
    of_day(ledger, warehouse, PERIOD.start)
    with sqlite3.connect(warehouse.removeprefix("sqlite:///")) as db:
        db.execute("INSERT INTO devices VALUES (6)")
    db.close()
    own = {"exclude": [{"kind": "campaign", "name": excluded, "days": 7}]}
    renamed: dict[str, Any] = {"name": "summer", "formerly": ["spring"], "audience": own}
    with pytest.raises(LateError, match="period"):
        of_day(ledger, warehouse, PERIOD.start, **renamed)
    assert of_day(ledger, warehouse, PERIOD.end, **renamed).audience == 1


@pytest.mark.parametrize("renamed", [False, True])
def test_two_launches_for_one_period_that_are_planned_at_the_same_time_are_not_both_frozen(
    ledger: Ledger, warehouse: str, monkeypatch: pytest.MonkeyPatch, renamed: bool
) -> None:
    freeze, others = ledger.launches.freeze, iter([True, False])

    def after_another(launch: NewLaunch) -> LaunchRecord:
        if next(others):
            of_day(ledger, warehouse, PERIOD.start)
        return freeze(launch)

    monkeypatch.setattr(ledger.launches, "freeze", after_another)
    fields: dict[str, Any] = {"name": "summer", "formerly": ["spring"]} if renamed else {}
    with pytest.raises(LateError, match="a launch of spring"):
        of_day(ledger, warehouse, PERIOD.start + timedelta(hours=0 if renamed else 1), **fields)
    assert len(ledger.launches.search()) == 1


def test_an_exclusion_of_own_recipients_counts_only_if_it_reaches_over_the_period(
    ledger: Ledger, warehouse: str
) -> None:
    of_day(ledger, warehouse, PERIOD.end - timedelta(days=30), 30)
    own = {"exclude": [{"kind": "campaign", "name": "spring", "days": 1}]}
    with pytest.raises(LateError, match="period"):
        of_day(ledger, warehouse, PERIOD.end - timedelta(days=28), 30, audience=own)


def test_recipients_with_other_identifiers_are_not_left_out_so_their_period_counts(
    ledger: Ledger, warehouse: str
) -> None:
    of_day(ledger, warehouse, PERIOD.start)
    own = {"exclude": [{"kind": "campaign", "name": "spring", "days": 7}]}
    folder = CampaignFolder(
        "spring",
        campaign(schedule="0 1 * * *", audience=own),
        "SELECT 'a' || device_id AS external_id FROM devices",
        Path(),
    )
    with pytest.raises(LateError, match="period"):
        prepare_launch(
            ledger,
            folder,
            period=Period(PERIOD.start + timedelta(hours=1), PERIOD.end + timedelta(hours=1)),
            warehouses=lambda _: warehouse,
            now=NOW,
        )


def test_a_campaign_does_not_give_way_to_its_earlier_name(ledger: Ledger, warehouse: str) -> None:
    rank = {"priority": {"group": "all", "rank": 1}}
    of_day(ledger, warehouse, PERIOD.start, audience=rank)
    assert (
        of_day(ledger, warehouse, PERIOD.end, name="summer", formerly=["spring"], audience=rank).audience == 5
    )
