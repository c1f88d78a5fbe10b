"""The gates of a campaign against the real service, checked against its record of recipients."""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from sendoff.audience.identifiers import integers
from sendoff.audience.segmentation import Segment
from sendoff.campaign import DeploymentRules, Variation
from sendoff.dispatch.checks import check_all_sent
from sendoff.dispatch.control import release
from sendoff.dispatch.request import ServiceConnection
from sendoff.dispatch.worker import SendResult, send_launch
from sendoff.errors import GateError, NotYetError
from sendoff.ledger import Ledger
from sendoff.postbacks.reconcile import reconcile_launch

from ..factories import KEY, NOW
from . import sending
from .sending import fault, sent_to, too_early, work_at

service, connection = sending.service, sending.connection  # fixtures

HALF_AN_HOUR = timedelta(minutes=30)
EVERYBODY = list(range(1, 101))
WAVES = [
    Segment(integers([1]), wave=1),
    *(Segment(integers([n, n + 1, n + 2]), wave=2) for n in (2, 5, 8)),
    *(Segment(integers(range(n, n + 10)), wave=3) for n in range(11, 101, 10)),
]
ROLLOUT = {"rollout": {"shares": [1, 10], "wait": {"length": 30, "unit": "minutes"}, "refused": 1}}


def freeze(ledger: Ledger, gates: dict[str, Any], segments: Sequence[Segment] = WAVES, **more: Any) -> None:
    sending.freeze(ledger, segments, gates=gates, **more)


def decided(ledger: Ledger) -> list[tuple[str, str]]:
    return [(each.kind, each.who) for each in ledger.audit_log.of_launch(KEY)]


def test_a_spread_that_goes_well_reaches_everybody_once(
    service: Any, ledger: Ledger, connection: ServiceConnection
) -> None:
    freeze(ledger, ROLLOUT)
    assert too_early(ledger, connection, NOW) == NOW + HALF_AN_HOUR
    assert sent_to(service) == [1]
    assert too_early(ledger, connection, NOW + HALF_AN_HOUR - timedelta(seconds=1)) == NOW + HALF_AN_HOUR
    assert sent_to(service) == [1]
    assert too_early(ledger, connection, NOW + HALF_AN_HOUR) == NOW + 2 * HALF_AN_HOUR
    assert sent_to(service) == EVERYBODY[:10]
    assert work_at(ledger, connection, NOW + 2 * HALF_AN_HOUR) == SendResult(accepted=9)
    assert sent_to(service) == EVERYBODY
    assert decided(ledger) == [("wave", "sendoff")] * 2
    check_all_sent(ledger, KEY)


@pytest.mark.parametrize("kind", ["403", "500"])  # refused; or in doubt, which counts as refused
@pytest.mark.promise("hands/failures")
def test_a_first_wave_that_goes_badly_holds_the_launch_until_a_person_releases_it(
    service: Any, ledger: Ledger, connection: ServiceConnection, kind: str
) -> None:
    freeze(ledger, ROLLOUT)
    fault(service, kind, 1)
    later = too_early(ledger, connection, NOW)
    for _ in range(2):  # a second call changes nothing
        with pytest.raises(GateError, match=r"is held: after wave 1: 1 of 1 requests"):
            work_at(ledger, connection, later)
    assert sent_to(service) == []
    assert decided(ledger) == [("held", "sendoff")]
    release(ledger, KEY, "ann", "one broken address")
    latest = too_early(ledger, connection, later)
    assert sent_to(service) == EVERYBODY[1:10]
    # The gates of later waves ignore requests that a person has approved.
    assert work_at(ledger, connection, latest) == SendResult(accepted=9)
    assert sent_to(service) == EVERYBODY[1:]
    assert decided(ledger) == [
        ("held", "sendoff"),
        ("released", "ann"),
        ("wave", "sendoff"),
        ("wave", "sendoff"),
    ]


def test_a_later_wave_is_judged_as_the_first_is(
    service: Any, ledger: Ledger, connection: ServiceConnection
) -> None:
    freeze(ledger, ROLLOUT)
    later = too_early(ledger, connection, NOW)
    fault(service, "403", 2)
    latest = too_early(ledger, connection, later)
    with pytest.raises(GateError, match=r"after wave 2: 2 of 4 requests .*50.0 %"):
        work_at(ledger, connection, latest)
    assert sent_to(service) == [1, 8, 9, 10]


def test_workers_at_once_open_each_wave_once(
    service: Any, ledger: Ledger, connection: ServiceConnection
) -> None:
    freeze(ledger, ROLLOUT)
    moment, rounds = NOW, 0
    results: list[SendResult] = []
    while ledger.dispatch_queries.states(KEY).get("planned"):
        at = moment

        def attempt(_: int, at: datetime = at) -> SendResult | datetime:
            try:
                return work_at(ledger, connection, at)
            except NotYetError as error:
                return error.until

        with ThreadPoolExecutor(4) as pool:
            ends = list(pool.map(attempt, range(4)))
        results += [end for end in ends if isinstance(end, SendResult)]
        moment = max((end for end in ends if isinstance(end, datetime)), default=moment)
        rounds += 1
        assert rounds < 10
    assert moment == NOW + 2 * HALF_AN_HOUR
    assert sent_to(service) == EVERYBODY
    assert decided(ledger) == [("wave", "sendoff")] * 2


def window(zone: str, **more: str) -> dict[str, Any]:
    return {"window": {"earliest": "10:00", "latest": "20:00", "time_zone": zone, **more}}


def test_nothing_is_sent_while_the_window_is_closed(
    service: Any, ledger: Ledger, connection: ServiceConnection
) -> None:
    freeze(ledger, window("Europe/Dublin"), WAVES[:1])
    assert too_early(ledger, connection, NOW) == NOW + timedelta(hours=1)
    assert sent_to(service) == []
    assert work_at(ledger, connection, NOW + timedelta(hours=1)) == SendResult(accepted=1)
    assert sent_to(service) == [1]


def test_everybody_is_sent_to_within_the_window_of_their_own_zone(
    service: Any, ledger: Ledger, connection: ServiceConnection
) -> None:
    zones = ["America/New_York", "Asia/Tokyo", "Europe/Dublin"]
    parts = [Segment(integers([n]), Variation(time_zone=zone)) for n, zone in enumerate(zones, start=1)]
    freeze(ledger, window("query", default_time_zone="UTC"), parts)
    assert too_early(ledger, connection, NOW) == NOW + timedelta(hours=1)
    assert sent_to(service) == [2]
    assert too_early(ledger, connection, NOW + timedelta(hours=1)) == NOW + timedelta(hours=6)
    assert sent_to(service) == [2, 3]
    assert work_at(ledger, connection, NOW + timedelta(hours=6)) == SendResult(accepted=1)
    assert sent_to(service) == [1, 2, 3]


def rules(**fields: Any) -> DeploymentRules:
    return DeploymentRules.model_validate(fields)


def test_a_launch_waits_for_the_hours_and_days_of_all_campaigns_and_continues(
    service: Any, ledger: Ledger, connection: ServiceConnection
) -> None:
    """NOW is Monday, 2 March 2026, at 9 UTC."""
    zones = ["America/New_York", "Asia/Tokyo", "Europe/Dublin"]
    parts = [Segment(integers([n]), Variation(time_zone=zone)) for n, zone in enumerate(zones, start=1)]
    night = rules(
        quiet_hours={"earliest": "10:00", "latest": "20:00"},
        days=["tuesday", "wednesday"],
        default_time_zone="UTC",
    )
    freeze(ledger, {}, parts, rules=night)
    tuesday = datetime(2026, 3, 3, tzinfo=UTC)
    assert too_early(ledger, connection, NOW) == tuesday + timedelta(hours=1)  # 10:00 in Tokyo
    assert sent_to(service) == []
    assert too_early(ledger, connection, tuesday + timedelta(hours=1)) == tuesday + timedelta(hours=10)
    assert sent_to(service) == [2]
    assert too_early(ledger, connection, tuesday + timedelta(hours=10)) == tuesday + timedelta(hours=15)
    assert work_at(ledger, connection, tuesday + timedelta(hours=15)) == SendResult(accepted=1)
    assert sent_to(service) == [1, 2, 3]


def test_a_transactional_launch_does_not_wait(
    service: Any, ledger: Ledger, connection: ServiceConnection
) -> None:
    never_now = rules(days=["sunday"], default_time_zone="UTC")
    freeze(ledger, {}, WAVES[:1], rules=never_now, transactional="a receipt")
    assert work_at(ledger, connection, NOW) == SendResult(accepted=1)
    assert sent_to(service) == [1]


def test_a_launch_sends_as_many_a_day_as_a_new_sender_may(
    service: Any, ledger: Ledger, connection: ServiceConnection
) -> None:
    warm_up = {"connection": "service", "start": "2026-03-02", "first_day": 35, "growth": 1.5, "most": 52}
    freeze(
        ledger,
        {},
        [replace(part, wave=1) for part in WAVES],
        connection="service",
        rules=rules(warm_up=[warm_up]),
    )
    midnight = datetime(2026, 3, 3, tzinfo=UTC)
    assert too_early(ledger, connection, NOW) == midnight
    assert sent_to(service) == EVERYBODY[:30]
    assert too_early(ledger, connection, NOW + timedelta(hours=1)) == midnight
    assert too_early(ledger, connection, midnight) == midnight + timedelta(days=1)
    assert sent_to(service) == EVERYBODY[:80]
    assert work_at(ledger, connection, midnight + timedelta(days=1)) == SendResult(accepted=2)
    assert sent_to(service) == EVERYBODY
    assert [
        ledger.daily_limits.recipients_on("service", midnight.date() + timedelta(days=n)) for n in (-1, 0, 1)
    ] == [
        30,
        50,
        20,
    ]


def test_a_thread_that_meets_the_limit_leaves_the_claims_of_others_alone(
    service: Any, ledger: Ledger, connection: ServiceConnection
) -> None:
    warm_up = {"connection": "service", "start": "2026-03-02", "first_day": 2, "growth": 1, "most": 2}
    freeze(
        ledger,
        {},
        [Segment(integers([number])) for number in (1, 2, 3)],
        connection="service",
        rules=rules(warm_up=[warm_up]),
    )
    # The second request waits a moment for the rate, and meanwhile the third claim meets the limit.
    too_early(ledger, replace(connection, requests_at_once=3, rate=4.0), NOW)
    assert len(sent_to(service)) == 2
    assert ledger.daily_limits.recipients_on("service", NOW.date()) == 2


def test_a_request_that_was_not_processed_leaves_room_for_others(
    service: Any, ledger: Ledger, connection: ServiceConnection
) -> None:
    warm_up = {"connection": "service", "start": "2026-03-02", "first_day": 10, "growth": 1, "most": 10}
    freeze(ledger, {}, WAVES[4:5], connection="service", rules=rules(warm_up=[warm_up]))
    fault(service, "429", 1)
    too_early(ledger, connection, NOW)
    assert ledger.daily_limits.recipients_on("service", NOW.date()) == 0
    work_at(ledger, connection, NOW + timedelta(minutes=10))
    assert sent_to(service) == list(range(11, 21))
    assert ledger.daily_limits.recipients_on("service", NOW.date()) == 10


def assert_not_sent(ledger: Ledger, why: str, *, people: int) -> None:
    (decision,) = ledger.audit_log.of_launch(KEY)
    assert (decision.kind, decision.who) == ("stopped", "sendoff")
    assert why in str(decision.why)
    assert reconcile_launch(ledger, KEY).verdicts["not_sent"] == people
    check_all_sent(ledger, KEY)


HOURS = {"lateness": {"length": 2, "unit": "hours"}}


@pytest.mark.promise("hands/late")
def test_what_is_too_late_is_not_sent_and_is_reported(
    service: Any, ledger: Ledger, connection: ServiceConnection
) -> None:
    freeze(ledger, HOURS, due_at=NOW)
    late = NOW + timedelta(hours=2, seconds=1)
    assert work_at(ledger, connection, late) == SendResult()
    assert work_at(ledger, connection, late) == SendResult()
    assert sent_to(service) == []
    assert_not_sent(ledger, "gates.lateness: 2 h 1 s after it was due (allowed: at most 2 hours)", people=100)


@pytest.mark.promise("hands/late")
def test_what_becomes_too_late_on_the_way_is_sent_no_further(
    service: Any, ledger: Ledger, connection: ServiceConnection
) -> None:
    freeze(ledger, HOURS, [replace(segment, wave=1) for segment in WAVES], due_at=NOW)
    moments = iter([NOW] * 6)  # the clock is read before and after each request
    assert (
        send_launch(ledger, KEY, connection, now=lambda: next(moments, NOW + timedelta(hours=3))).accepted
        < 13
    )
    made = len(sent_to(service))
    assert 0 < made < 100
    assert_not_sent(ledger, "gates.lateness", people=100 - made)


def test_a_launch_that_was_made_in_time_is_not_stopped_afterwards(
    service: Any, ledger: Ledger, connection: ServiceConnection
) -> None:
    freeze(ledger, HOURS, WAVES[:1], due_at=NOW)
    assert work_at(ledger, connection, NOW) == SendResult(accepted=1)
    assert work_at(ledger, connection, NOW + timedelta(days=1)) == SendResult()
    assert ledger.launches.get(KEY).state == "released"
    assert sent_to(service) == [1]


def test_what_was_to_be_sent_at_a_moment_that_is_over_is_not_requested(
    service: Any, ledger: Ledger, connection: ServiceConnection
) -> None:
    evening = {"kind": "once", "time": "18:30", "time_zone": "Europe/Dublin"}
    freeze(ledger, {}, [Segment(integers([1])), Segment(integers([2, 3]))], send=evening)
    assert work_at(ledger, connection, NOW + timedelta(hours=9, minutes=31)) == SendResult()
    assert sent_to(service) == []
    assert_not_sent(ledger, "the time of sending has passed, and 2 requests are not sent", people=3)


@pytest.mark.promise("hands/late")
@pytest.mark.parametrize(
    "fields",
    [
        {"push_expiry": {"until": {"time": "18:30", "time_zone": "Europe/Dublin"}}},
        {
            "send": {
                "kind": "recurring",
                "time": "08:00",
                "time_zone": "UTC",
                "start": "2026-03-01",
                "end": "2026-03-01",
            }
        },
    ],
)
def test_what_ends_while_a_launch_waits_is_not_requested_after_its_end(
    service: Any, ledger: Ledger, connection: ServiceConnection, fields: dict[str, Any]
) -> None:
    freeze(ledger, {}, [Segment(integers([1])), Segment(integers([2, 3]))], **fields)
    assert work_at(ledger, connection, NOW + timedelta(hours=9, minutes=31)) == SendResult()
    assert sent_to(service) == []
    assert_not_sent(ledger, "the messages have ended, and 2 requests are not sent", people=3)


def test_of_many_zones_those_whose_moment_lies_ahead_are_requested(
    service: Any, ledger: Ledger, connection: ServiceConnection
) -> None:
    # The service refuses times in the past, so these are ahead of the real clock.
    tomorrow = (datetime.now(UTC) + timedelta(days=2)).date()
    evening = {"kind": "once", "time": "18:30", "time_zone": "query", "default_time_zone": "UTC"}
    zones = ["America/New_York", "Asia/Tokyo"]
    parts = [Segment(integers([n]), Variation(time_zone=zone)) for n, zone in enumerate(zones, start=1)]
    freeze(ledger, {}, parts, send={**evening, "date": f"{tomorrow}"})
    between = datetime(tomorrow.year, tomorrow.month, tomorrow.day, 12, tzinfo=UTC)  # 21:00 in Tokyo
    assert work_at(ledger, connection, between) == SendResult(accepted=1)
    assert ledger.dispatch_queries.states(KEY) == {"accepted": 1, "planned": 1}
    assert service.admin("campaigns")["total"] == 1
    assert_not_sent(ledger, "the time of sending has passed, and 1 requests", people=1)
