"""Sending at own hours: the usual hour of each recipient, the arms, and when a request may be made."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime, timedelta
from typing import Any

import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sendoff.audience import DEFAULT_VARIATION, Segment, segments_of
from sendoff.audience.identifiers import Identifiers, integers, strings, union
from sendoff.campaign import Campaign, Slot, campaign_from, check_campaign
from sendoff.errors import CampaignError
from sendoff.launch import closed_until, lateness, preview_launch
from sendoff.launch.own_hours import HoursOfLaunch, _nearest, allowed_hours, hours_by_words, usual_hours
from sendoff.launch.plan import prepare_launch
from sendoff.ledger import Ledger, SegmentSize
from sendoff.postbacks.aggregation import aggregate
from sendoff.report import as_text, describe_preview
from sendoff.states import Arm

from ...factories import NOW, PERIOD, make_accepted, make_audience, make_campaign, post_back, store

OWN_HOURS = {"kind": "now", "own_hours": {}}


def at_own_hours(**fields: Any) -> Campaign:
    return make_campaign(**{"send": OWN_HOURS, "connection": "service", **fields})


def test_a_tenth_explores_and_half_is_sent_at_once_by_default() -> None:
    own_hours = at_own_hours().own_hours
    assert own_hours
    assert (own_hours.explore, own_hours.control) == (10, 50)


def test_hours_are_told_in_their_order_after_those_who_get_the_message_at_once() -> None:
    people = ((5, 1, Arm.EXPLORE), (3, 0, Arm.OWN_HOUR), (2, None, None))
    sizes = [SegmentSize(DEFAULT_VARIATION, 0, *each) for each in people]
    assert list(hours_by_words(sizes).items()) == [
        ("at once, no hour known", 2),
        ("00:00, own hour", 3),
        ("01:00, random hour", 5),
    ]


def usual(people: range, *launches: Mapping[int, Any]) -> dict[int, list[int]]:
    """Return the usual hours of people by launches, the newest first."""
    opened = [{hour: integers(who) for hour, who in launch.items()} for launch in launches]
    return {hour: list(map(int, who)) for hour, who in usual_hours(integers(people), opened).items()}


def test_the_usual_hour_is_the_newest_one_that_occurs_in_two_launches() -> None:
    assert usual(range(1, 2), {9: [1]}, {18: [1]}, {18: [1]}, {9: [1]}, {9: [1]}) == {18: [1]}


def test_without_two_equal_hours_the_newest_counts() -> None:
    assert usual(range(1, 4), {9: [1]}, {18: [1, 2]}, {20: [2, 8]}) == {9: [1], 18: [2]}


def test_of_two_opens_in_one_launch_the_first_hour_of_the_day_counts() -> None:
    assert usual(range(1, 2), {7: [1], 21: [1]}) == {7: [1]}


@given(
    st.lists(
        st.dictionaries(st.integers(0, 23), st.frozensets(st.integers(1, 30), min_size=1), max_size=4),
        max_size=5,
    )
)
def test_everyone_has_at_most_one_usual_hour_at_which_they_opened(launches: list[dict[int, Any]]) -> None:
    found = usual(range(1, 21), *launches)
    opened = {who for launch in launches for some in launch.values() for who in some if who <= 20}
    assert sorted(who for some in found.values() for who in some) == sorted(opened)
    for hour, some in found.items():
        assert all(any(who in launch.get(hour, ()) for launch in launches) for who in some)


@given(
    st.integers(1, 300),
    st.floats(0, 50),
    st.floats(1, 99),
    st.sampled_from(
        [
            {},
            {
                "gates": {
                    "window": {
                        "earliest": "08:30",
                        "latest": "20:00",
                        "time_zone": "query",
                        "default_time_zone": "Europe/Dublin",
                    }
                }
            },
        ]
    ),
    st.sampled_from([(), ("a", "b")]),
    st.integers(1, 50),
)
def test_every_recipient_is_in_exactly_one_segment(
    people: int, explore: float, control: float, gates: dict[str, Any], variants: tuple[str, ...], size: int
) -> None:
    campaign = at_own_hours(
        send={"kind": "now", "own_hours": {"explore": explore, "control": control}},
        segment_size=size,
        variants={name: {"percent": 50} for name in variants},
        **gates,
    )
    everyone = integers(range(1, people + 1))
    known = {hour: integers(range(hour + 1, people + 1, 30)) for hour in range(24)}
    hours = HoursOfLaunch(campaign, everyone, known, salt="launch", now=NOW)
    zones = {"time_zone": {"Asia/Kolkata": integers(range(1, people + 1, 3))}}
    audience = make_audience(everyone, groups=zones)
    segments = list(segments_of(campaign, audience, name="spring", hours=hours))
    assert sum(map(len, segments)) == people
    assert union("integer", (part.identifiers for part in segments if part.identifiers)) == everyone
    assert all(0 < len(part) <= size for part in segments)
    for part in segments:
        assert (part.hour is None) == (part.arm in (None, Arm.CONTROL))
        if gates and part.hour is not None:
            assert 9 <= part.hour <= 20


def arms_of(segments: list[Segment]) -> dict[Arm | None, Identifiers]:
    """Return the recipients by arm."""
    return {
        arm: union("integer", (part.identifiers for part in segments if part.arm == arm and part.identifiers))
        for arm in (None, *Arm)
    }


def cut(campaign: Campaign, known: Mapping[int, Identifiers], salt: str) -> dict[Arm | None, Identifiers]:
    people = integers(range(1, 10_001))
    hours = HoursOfLaunch(campaign, people, known, salt=salt, now=NOW)
    return arms_of(list(segments_of(campaign, make_audience(people), hours=hours)))


def test_the_arms_follow_from_the_launch_and_have_their_shares() -> None:
    known = {18: integers(range(1, 8_001))}
    arms, again, other = (cut(at_own_hours(), known, salt) for salt in ("one", "one", "two"))
    assert arms == again
    assert arms[Arm.CONTROL] != other[Arm.CONTROL]
    assert abs(len(arms[Arm.EXPLORE]) - 1_000) < 120
    assert abs(len(arms[Arm.CONTROL]) - len(arms[Arm.OWN_HOUR])) < 350
    assert abs(len(arms[None]) - 1_800) < 150
    assert len(arms[None] & known[18]) == 0


def test_who_is_in_the_control_group_does_not_depend_on_the_hours() -> None:
    """Opens that arrive between two attempts to plan move no one from one group to the other."""
    few, more = (cut(at_own_hours(), {18: integers(range(1, end))}, "one") for end in (4_000, 8_000))
    assert few[Arm.CONTROL] - more[Arm.CONTROL] == integers([])
    assert len(few[Arm.OWN_HOUR] & more[Arm.CONTROL]) == 0


def test_an_hour_outside_of_the_window_becomes_the_nearest_one_inside() -> None:
    window = {"earliest": "08:30", "latest": "20:00", "time_zone": "America/New_York"}
    campaign = at_own_hours(gates={"window": window})
    assert allowed_hours(campaign, None, NOW) == list(range(9, 20))  # hour 20 is open for a minute only
    people = integers(range(1, 4))
    known = {3: integers([1]), 11: integers([2]), 23: integers([3])}  # 22:00, 06:00 and 18:00 in New York
    settings = {"kind": "now", "own_hours": {"explore": 0, "control": 1}}
    hours = HoursOfLaunch(
        campaign.model_copy(update={"send": at_own_hours(send=settings).send}),
        people,
        known,
        salt="x",
        now=NOW,
    )
    found = {timed.hour: list(timed.identifiers or ()) for timed in hours(None) if timed.arm == Arm.OWN_HOUR}
    assert found == {19: [1], 9: [2], 18: [3]}


@pytest.mark.parametrize(
    ("hour", "allowed", "nearest"),
    [
        (9, [8, 9, 10], 9),
        (3, [1, 5], 1),  # of two, the earlier one
        (23, [1, 20], 1),
        (22, [1, 20], 20),
        (0, [3, 22], 22),
        (1, [4, 22], 4),
    ],
)
def test_the_nearest_hour_is_that_on_the_clock(hour: int, allowed: list[int], nearest: int) -> None:
    assert _nearest(hour, allowed) == nearest


def test_the_rules_for_all_campaigns_allow_hours_too() -> None:
    rules = {"quiet_hours": {"earliest": "08:30", "latest": "20:00"}, "default_time_zone": "UTC"}
    assert allowed_hours(at_own_hours(rules=rules), None, NOW) == list(range(9, 20))
    short = {"quiet_hours": {"earliest": "08:45", "latest": "09:30"}, "default_time_zone": "UTC"}
    assert allowed_hours(at_own_hours(rules=short), None, NOW) == [9]  # no whole hour is open
    assert allowed_hours(at_own_hours(), None, NOW) == list(range(24))


def test_each_hour_is_explored_with_as_many() -> None:
    campaign = at_own_hours(send={"kind": "now", "own_hours": {"explore": 50}})
    hours = HoursOfLaunch(campaign, integers(range(1, 100_001)), {}, salt="x", now=NOW)
    sizes = {each.hour: len(each.identifiers or ()) for each in hours(None) if each.arm == Arm.EXPLORE}
    assert sizes.keys() == set(range(24))
    assert all(abs(size - 50_000 / 24) < 250 for size in sizes.values())  # more than five standard deviations


@pytest.mark.parametrize(
    ("slot", "opens"),
    [
        (None, None),
        ("Europe/Dublin", None),
        ("@09", None),
        ("@18", NOW + timedelta(hours=9)),
        ("@08", NOW + timedelta(hours=23)),
        ("Asia/Kolkata@14", None),  # 09:00 UTC is 14:30 there
        ("Asia/Kolkata@15", NOW + timedelta(minutes=30)),
    ],
)
def test_a_request_waits_for_the_hour_of_its_recipients(slot: str | None, opens: datetime | None) -> None:
    found = closed_until(at_own_hours(), [slot], PERIOD.end, NOW)
    assert found == ({} if opens is None else {slot: opens})


@pytest.mark.parametrize(
    ("slot", "opens"),
    [
        ("America/New_York@01", "2026-03-08T06:00Z"),
        ("America/New_York@02", "2026-03-08T07:00Z"),  # clocks show 3:00
        ("America/New_York@03", "2026-03-08T07:00Z"),
    ],
)
def test_an_hour_that_the_clocks_skip_comes_when_they_do(slot: str, opens: str) -> None:
    """Otherwise, its recipients would wait for almost two days, and a launch might be too late for them."""
    now, opens_at = datetime.fromisoformat("2026-03-07T14:00Z"), datetime.fromisoformat(opens)
    assert closed_until(at_own_hours(), [slot], PERIOD.end, now) == {slot: opens_at}
    for passed in (timedelta(), timedelta(minutes=59)):
        assert closed_until(at_own_hours(), [slot], PERIOD.end, opens_at + passed) == {}
    assert closed_until(at_own_hours(), [slot], PERIOD.end, opens_at + timedelta(hours=1)) != {}


@pytest.mark.parametrize("now", ["2026-11-01T05:10Z", "2026-11-01T06:10Z"])
def test_an_hour_that_comes_twice_is_open_both_times(now: str) -> None:
    assert (
        closed_until(at_own_hours(), ["America/New_York@01"], PERIOD.end, datetime.fromisoformat(now)) == {}
    )


def test_an_hour_and_the_window_must_both_be_open() -> None:
    window = {"earliest": "09:30", "latest": "20:00", "time_zone": "UTC"}
    campaign = at_own_hours(gates={"window": window})
    half_past = NOW + timedelta(minutes=30)
    assert closed_until(campaign, ["@09"], PERIOD.end, NOW) == {"@09": half_past}
    assert closed_until(campaign, ["@09"], PERIOD.end, half_past) == {}
    assert closed_until(campaign, ["@09"], PERIOD.end, NOW + timedelta(hours=1)) == {
        "@09": half_past + timedelta(days=1)
    }


def test_an_hour_that_is_never_allowed_any_more_does_not_wait_for_ever() -> None:
    """A clock change can move the hour of a running launch out of its window."""
    window = {"earliest": "09:30", "latest": "20:00", "time_zone": "UTC"}
    found = closed_until(at_own_hours(gates={"window": window}), ["@07"], PERIOD.end, NOW)
    assert found == {"@07": NOW + timedelta(minutes=30)}


@given(st.none() | st.sampled_from(["Europe/Dublin", "Etc/GMT+5"]), st.none() | st.integers(0, 23))
def test_the_text_of_a_slot_can_be_read_again(zone: str | None, hour: int | None) -> None:
    assert Slot.of(str(Slot(zone, hour))) == Slot(zone, hour)


@pytest.mark.parametrize(
    ("fields", "problem"),
    [
        ({"targeting": {"kind": "broadcast"}}, "targeting.kind: query"),
        (
            {
                "variants": {"a": {"percent": 50}, "b": {"percent": 50}},
                "decide": {"share": 20, "after": {"length": 2, "unit": "hours"}, "otherwise": "a"},
            },
            "both own_hours and decide",
        ),
    ],
)
def test_a_campaign_that_cannot_have_own_hours_is_refused(fields: dict[str, Any], problem: str) -> None:
    with pytest.raises(CampaignError, match=problem):
        check_campaign(at_own_hours(**fields))


def prepare(ledger: Ledger, people: range, column: str = "device_id", **fields: Any) -> str:
    """Freeze a launch at own hours, and return its key."""
    names = [n if column == "device_id" else f"person {n}" for n in people]
    folder = campaign_from(at_own_hours(**fields), "autumn", pd.DataFrame({column: names}))
    return prepare_launch(ledger, folder, period=PERIOD, warehouses=_no_warehouse, now=NOW).launch_key


def _no_warehouse(name: str) -> str:
    raise AssertionError(name)


def frozen(ledger: Ledger, key: str) -> dict[tuple[Arm | None, int | None], list[int]]:
    """Return the recipients of a frozen launch by arm and hour."""
    arms = ledger.dispatch_queries.arms(key)
    hours = {each.segment: each.hour for each in ledger.dispatch_queries.requests(key)}
    found: dict[tuple[Arm | None, int | None], list[int]] = {}
    for dispatch, people in ledger.dispatch_queries.segments(key):
        found.setdefault((arms.get(dispatch.segment), hours[dispatch.segment]), []).extend(map(int, people))
    return found


def test_opens_of_earlier_launches_of_the_connection_decide(ledger: Ledger) -> None:
    for number, (hour, connection) in enumerate([(18, "service"), (7, "other")]):
        key = make_accepted(ledger, range(1, 101), name=f"spring{number}", connection=connection)
        at = NOW.replace(hour=hour)
        store(ledger, *(post_back(key, "open", who, at=at) for who in range(1, 41)))
    aggregate(ledger)
    key = prepare(ledger, range(1, 101), send={"kind": "now", "own_hours": {"explore": 0}})
    found = frozen(ledger, key)
    assert found.keys() == {(None, None), (Arm.CONTROL, None), (Arm.OWN_HOUR, 18)}
    assert sorted(found[Arm.CONTROL, None] + found[Arm.OWN_HOUR, 18]) == list(range(1, 41))
    assert found[None, None] == list(range(41, 101))
    preview = preview_launch(ledger, key)
    assert preview.own_hours == {
        "at once, no hour known": 60,
        "at once, control group": len(found[Arm.CONTROL, None]),
        "18:00, own hour": len(found[Arm.OWN_HOUR, 18]),
    }
    assert "18:00, own hour" in as_text(describe_preview(preview))


def test_a_machine_teaches_no_hour(ledger: Ledger) -> None:
    key = make_accepted(ledger, range(1, 11))
    store(ledger, *(post_back(key, kind, who) for who in range(1, 11) for kind in ("delivery", "open")))
    aggregate(ledger)
    assert list(ledger.aggregates.hours_of_opens("service", "device_id", "integer", NOW)) == []


def test_hours_add_up_over_runs_and_are_forgotten_in_time(ledger: Ledger) -> None:
    key = make_accepted(ledger, range(1, 11))
    for who, minute in ((1, 10), (2, 20), (1, 70)):
        store(ledger, post_back(key, "open", who, at=NOW + timedelta(minutes=minute)))
        aggregate(ledger)
    (opened,) = ledger.aggregates.hours_of_opens("service", "device_id", "integer", NOW)
    assert {hour: list(who) for hour, who in opened.items()} == {9: [1, 2], 10: [1]}
    later = NOW + timedelta(seconds=1)
    assert list(ledger.aggregates.hours_of_opens("service", "device_id", "integer", later)) == []
    assert list(ledger.aggregates.hours_of_opens("service", "user_id", "string", NOW)) == []


def test_texts_have_hours_too(ledger: Ledger) -> None:
    make = ["person 1", "person 2"]
    from_texts = make_accepted(ledger, strings(make))
    store(ledger, post_back(from_texts, "open", "person 2", at=NOW.replace(hour=20)))
    aggregate(ledger)
    template = {"message": None, "channels": {}, "template": {"id": 7, "channels": ["email"]}}
    send = {"kind": "now", "own_hours": {"explore": 0, "control": 1}}
    key = prepare(ledger, range(1, 3), "user_id", send=send, **template)
    assert {part[2:] for part in ledger.dispatch_queries.segment_sizes(key)} == {
        (1, None, None),
        (1, 20, Arm.OWN_HOUR),
    }


def test_identifiers_that_post_backs_lack_have_no_hours(ledger: Ledger) -> None:
    with pytest.raises(CampaignError, match="post-backs do not carry device_token"):
        prepare(ledger, range(1, 3), "device_token")


def test_a_launch_may_be_late_by_a_day_more(ledger: Ledger) -> None:
    campaign = at_own_hours(gates={"lateness": {"length": 1, "unit": "hours"}})
    hour = campaign.gates.lateness
    assert hour is not None
    assert campaign.own_hours_take == timedelta(days=1)
    due = NOW - timedelta(hours=25)
    assert lateness(hour, due, NOW, campaign.own_hours_take).is_open
    late = lateness(hour, due, NOW + timedelta(minutes=1), campaign.own_hours_take)
    assert not late.is_open
    assert late.allowed == "at most 1 hour, and 1 day for the recipients' own hours"
    waves = at_own_hours(gates={"rollout": {"shares": [1, 10]}})
    assert waves.own_hours_take == timedelta(days=3)
