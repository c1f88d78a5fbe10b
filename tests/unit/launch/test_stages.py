"""The state of launches as people see it."""

from __future__ import annotations

import json
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
import sqlalchemy as sa

from sendoff.audience.identifiers import integers
from sendoff.audience.segmentation import Segment
from sendoff.campaign import Variation
from sendoff.dispatch.control import pause, pause_all, reject, release, stop
from sendoff.dispatch.policy import SendPolicy
from sendoff.errors import NotYetError
from sendoff.launch.stages import (
    Outlook,
    Standing,
    has_begun,
    has_gone_out,
    outlook_of,
    standings,
)
from sendoff.ledger import Decision, Ledger, Selection
from sendoff.ledger.storage.schema import launches as launches_table
from sendoff.postbacks.reconcile import is_settled, reconcile_launch
from sendoff.states import Accepted, InDoubt, Refused, Resolution, Stage

from ...factories import KEY, NOW, claimed, make_campaign, make_launch, send

YES, NO, DOUBT = Accepted(200, 17), Refused(400, "no"), InDoubt("HTTP 500")
STUCK_AFTER = timedelta(minutes=15)
LATER = NOW + STUCK_AFTER


def standing(ledger: Ledger, now: datetime = NOW, works: bool | None = None) -> Standing:
    """Return the state of the launch. ``works``: what Airflow knows about it, if anything."""
    known = {} if works is None else {KEY: works}
    return standings(ledger, Selection(["spring"]), works=lambda _: known, now=now)[KEY]


def stage(ledger: Ledger, now: datetime = NOW, works: bool | None = None) -> Stage:
    return standing(ledger, now, works).stage


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        (lambda ledger: None, Stage.SENDING),
        (lambda ledger: pause(ledger, KEY, "ann", "wait"), Stage.PAUSED),
        (lambda ledger: pause_all(ledger, "ann", "wait"), Stage.PAUSED),
        (lambda ledger: pause_all(ledger, "ann", "wait", connection="service"), Stage.PAUSED),
        (lambda ledger: pause_all(ledger, "ann", "wait", connection="other"), Stage.SENDING),
        (lambda ledger: stop(ledger, KEY, "ann", "no"), Stage.STOPPED),
        (
            lambda ledger: ledger.audit_log.decide(Decision(KEY, "held", "sendoff", "3 refused", NOW)),
            Stage.WAITING_FOR_DECISION,
        ),
        (lambda ledger: send(ledger, KEY, YES, NO), Stage.WAITING_FOR_RESPONSES),
        (lambda ledger: send(ledger, KEY, DOUBT, DOUBT), Stage.WAITING_FOR_RESPONSES),
        (lambda ledger: send(ledger, KEY, NO, NO), Stage.REFUSED),
        (
            lambda ledger: (send(ledger, KEY, YES, NO), pause_all(ledger, "ann", "x")),
            Stage.WAITING_FOR_RESPONSES,
        ),
    ],
)
def test_each_state_of_the_ledger_has_a_state_that_people_understand(
    ledger: Ledger, change: Callable[[Ledger], object], expected: Stage
) -> None:
    make_launch(ledger, [1, 2], size=1)
    change(ledger)
    assert stage(ledger) == expected


def test_a_launch_is_not_refused_if_an_earlier_attempt_is_in_doubt(ledger: Ledger) -> None:
    make_launch(ledger, [1])
    (dispatch,) = send(ledger, KEY, DOUBT)
    assert ledger.doubts.resolve(dispatch, Resolution.RESEND, "ann", "again", NOW)
    found = standing(ledger)
    assert (found.stage, has_begun(found.known), has_gone_out(found.known)) == (Stage.SENDING, True, True)
    assert stage(ledger, LATER) == Stage.STUCK  # it is still to be sent
    send(ledger, KEY, NO)
    assert stage(ledger) == Stage.WAITING_FOR_RESPONSES
    assert has_gone_out(standing(ledger).known)


def test_a_launch_is_refused_if_its_only_request_was_written_off_and_not_processed(ledger: Ledger) -> None:
    make_launch(ledger, [1])
    claim = claimed(ledger)
    ledger.dispatches.record(claim, DOUBT, NOW)
    assert ledger.doubts.resolve(claim.dispatch_key, Resolution.WRITE_OFF, "ann", "enough", NOW)
    assert stage(ledger) == Stage.WAITING_FOR_RESPONSES
    ledger.dispatches.record(claim, NO, NOW)
    assert stage(ledger) == Stage.REFUSED
    assert has_begun(standing(ledger).known)


def test_a_held_launch_waits_for_approval_until_it_is_rejected(ledger: Ledger) -> None:
    make_launch(ledger, [1, 2], state="held")
    assert stage(ledger, NOW + timedelta(days=9)) == Stage.WAITING_FOR_APPROVAL
    reject(ledger, KEY, "ann", "no")
    assert stage(ledger) == Stage.REJECTED


def test_a_launch_is_stuck_if_nothing_works_on_it(ledger: Ledger) -> None:
    make_launch(ledger, [1, 2, 3], size=1)
    assert stage(ledger, LATER - timedelta(seconds=1)) == Stage.SENDING
    assert stage(ledger, LATER) == Stage.STUCK
    assert stage(ledger, LATER, works=True) == Stage.SENDING  # Airflow knows better
    assert stage(ledger, NOW, works=False) == Stage.STUCK
    send(ledger, KEY, YES, at=LATER)
    assert stage(ledger, LATER) == Stage.SENDING
    assert stage(ledger, LATER + STUCK_AFTER) == Stage.STUCK
    ledger.audit_log.decide(Decision(KEY, "paused", "ann", "wait", LATER))
    ledger.audit_log.decide(Decision(KEY, "resumed", "ann", "go", LATER + STUCK_AFTER))
    assert stage(ledger, LATER + STUCK_AFTER) == Stage.SENDING
    send(ledger, KEY, None)  # a worker makes a request
    assert stage(ledger, LATER + timedelta(days=1), works=False) == Stage.SENDING


def test_a_launch_whose_worker_died_is_stuck(ledger: Ledger) -> None:
    make_launch(ledger, [1])
    assert ledger.dispatches.claim(KEY, worker="w", now=NOW, lease=timedelta(seconds=-1))
    assert stage(ledger, LATER) == Stage.STUCK


def test_a_launch_that_waits_for_its_window_is_scheduled(ledger: Ledger) -> None:
    window = {"earliest": "10:00", "latest": "20:00", "time_zone": "UTC"}
    make_launch(ledger, [1, 2], size=1, campaign=make_campaign(gates={"window": window}))
    opens_at = NOW.replace(hour=10)
    assert standing(ledger, NOW) == standing(ledger, NOW, works=True) == Standing(Stage.SCHEDULED, opens_at)
    assert stage(ledger, NOW, works=False) == Stage.STUCK  # nothing will send it then
    assert stage(ledger, opens_at + STUCK_AFTER) == Stage.STUCK


def test_a_launch_is_scheduled_only_while_each_open_zone_waits(ledger: Ledger) -> None:
    window = {"earliest": "10:00", "latest": "20:00", "time_zone": "query", "default_time_zone": "UTC"}
    zones = ("UTC", "Europe/Helsinki")  # 09:00 and 11:00
    parts = [Segment(integers([n]), Variation(time_zone=zone)) for n, zone in enumerate(zones, 1)]
    make_launch(ledger, segments=parts, campaign=make_campaign(gates={"window": window}))
    assert stage(ledger, NOW, works=False) == Stage.STUCK
    assert stage(ledger, NOW, works=True) == Stage.SENDING
    claim = ledger.dispatches.claim(
        KEY, worker="w", now=NOW, lease=timedelta(minutes=1), closed_zones=["UTC"]
    )
    assert claim is not None
    ledger.dispatches.record(claim, YES, NOW)
    assert standing(ledger, NOW, works=True) == Standing(Stage.SCHEDULED, NOW.replace(hour=10))


def test_a_launch_continues_when_its_first_zone_opens(ledger: Ledger) -> None:
    window = {"earliest": "10:00", "latest": "20:00", "time_zone": "query", "default_time_zone": "UTC"}
    zones = ("America/New_York", "UTC")  # 04:00 and 09:00
    parts = [Segment(integers([n]), Variation(time_zone=zone)) for n, zone in enumerate(zones, 1)]
    make_launch(ledger, segments=parts, campaign=make_campaign(gates={"window": window}))
    assert standing(ledger) == Standing(Stage.SCHEDULED, NOW.replace(hour=10))


def test_a_launch_that_waits_for_the_opens_of_its_test_share_is_scheduled(ledger: Ledger) -> None:
    decide = {"share": 20, "after": {"length": 2, "unit": "hours"}, "otherwise": "a"}
    campaign = make_campaign(variants={"a": {"percent": 50}, "b": {"percent": 50}}, decide=decide)
    parts = [Segment(integers([n]), Variation(variant=name), wave=1) for n, name in enumerate("ab", 1)]
    make_launch(ledger, segments=[*parts, Segment(integers([3]), wave=2)], campaign=campaign)
    send(ledger, KEY, YES, YES)
    assert standing(ledger, LATER) == Standing(Stage.SCHEDULED, NOW + timedelta(hours=2))


def test_a_launch_that_waits_for_its_next_wave_is_scheduled(ledger: Ledger) -> None:
    parts = [Segment(integers([1]), wave=1), Segment(integers([2]), wave=2)]
    make_launch(ledger, segments=parts)
    send(ledger, KEY, YES)
    opens_at = NOW + timedelta(minutes=30)
    assert standing(ledger, LATER) == Standing(Stage.SCHEDULED, opens_at)
    assert stage(ledger, opens_at) == Stage.STUCK


def test_the_next_wave_waits_from_the_last_answer_also_after_a_pause_or_a_release(ledger: Ledger) -> None:
    make_launch(ledger, segments=[Segment(integers([1]), wave=1), Segment(integers([2]), wave=2)])
    claim = claimed(ledger)
    ledger.dispatches.record(claim, YES, NOW + timedelta(minutes=1))
    opens_at = NOW + timedelta(minutes=31)
    for kind in ("paused", "resumed"):
        assert ledger.audit_log.decide(Decision(KEY, kind, "ann", "a look", NOW + timedelta(minutes=5)))
    assert standing(ledger, LATER) == Standing(Stage.SCHEDULED, opens_at)
    assert outlook_of(ledger, ledger.launches.get(KEY), LATER) == Outlook(opens_at, is_too_late=False)
    assert ledger.audit_log.decide(Decision(KEY, "held", "sendoff", "3 requests were refused", LATER))
    assert outlook_of(ledger, ledger.launches.get(KEY), LATER) == Outlook(opens_at, is_too_late=False)
    release(ledger, KEY, "ann", "mended", now=LATER)
    assert standing(ledger, LATER) == Standing(Stage.SCHEDULED, opens_at)
    with pytest.raises(NotYetError) as early:
        SendPolicy(ledger, KEY).has_more(LATER)
    assert early.value.until == opens_at


def test_the_next_wave_follows_at_once_if_a_person_released_the_launch_that_the_wave_held(
    ledger: Ledger,
) -> None:
    make_launch(ledger, segments=[Segment(integers([1]), wave=1), Segment(integers([2]), wave=2)])
    held = Decision(KEY, "held", "sendoff", "1 of 1 requests in doubt", LATER, {"wave": 1})
    assert ledger.audit_log.decide(held, wave=1)
    release(ledger, KEY, "ann", "looked at", now=LATER)
    send(ledger, KEY, YES)
    assert stage(ledger, LATER) == Stage.SENDING
    assert outlook_of(ledger, ledger.launches.get(KEY), LATER) == Outlook(None, is_too_late=False)
    assert SendPolicy(ledger, KEY).has_more(LATER)
    assert ledger.launches.get(KEY).wave == 2


def test_the_next_wave_also_waits_for_the_send_window(ledger: Ledger) -> None:
    window = {"earliest": "08:00", "latest": "09:10", "time_zone": "UTC"}
    campaign = make_campaign(gates={"window": window})
    parts = [Segment(integers([1]), wave=1), Segment(integers([2]), wave=2)]
    make_launch(ledger, segments=parts, campaign=campaign)
    send(ledger, KEY, YES)
    tomorrow = NOW + timedelta(hours=23)
    assert standing(ledger, NOW) == standing(ledger, LATER) == Standing(Stage.SCHEDULED, tomorrow)
    assert standing(ledger, NOW + timedelta(hours=2)) == Standing(Stage.SCHEDULED, tomorrow)
    assert outlook_of(ledger, ledger.launches.get(KEY), NOW) == Outlook(tomorrow, is_too_late=False)


@pytest.mark.parametrize("by", ["itself", "person"])
def test_a_launch_of_two_waves_goes_out_in_parts_and_may_wait_for_a_choice(ledger: Ledger, by: str) -> None:
    decide = {"share": 20, "after": {"length": 30, "unit": "minutes"}, "otherwise": "a", "by": by}
    halves = {name: {"percent": 50} for name in "ab"}
    parts = [Segment(integers([n]), wave=wave) for n, wave in ((1, 1), (2, 2))]
    make_launch(ledger, segments=parts, campaign=make_campaign(decide=decide, variants=halves))
    asks = by == "person"
    whole = Outlook(None, is_too_late=False, is_in_parts=True, awaits_choice=asks)
    assert outlook_of(ledger, ledger.launches.get(KEY), NOW) == whole
    send(ledger, KEY, YES)
    rest = Outlook(NOW + timedelta(minutes=30), is_too_late=False, awaits_choice=asks)
    assert outlook_of(ledger, ledger.launches.get(KEY), NOW) == rest


def test_a_launch_whose_time_zones_open_one_after_the_other_goes_out_in_parts(ledger: Ledger) -> None:
    window = {"earliest": "08:00", "latest": "20:00", "time_zone": "query", "default_time_zone": "UTC"}
    parts = [
        Segment(integers([n]), Variation(time_zone=zone))
        for n, zone in enumerate(("UTC", "America/New_York"), 1)
    ]
    make_launch(ledger, segments=parts, campaign=make_campaign(gates={"window": window}))
    in_parts = Outlook(None, is_too_late=False, is_in_parts=True)
    assert outlook_of(ledger, ledger.launches.get(KEY), NOW) == in_parts
    at_once = Outlook(None, is_too_late=False)
    assert outlook_of(ledger, ledger.launches.get(KEY), NOW + timedelta(hours=8)) == at_once


def test_a_launch_that_is_later_than_its_campaign_allows_is_too_late(ledger: Ledger) -> None:
    campaign = make_campaign(gates={"lateness": {"length": 3, "unit": "hours"}})
    make_launch(ledger, [1], campaign=campaign, due_at=NOW)
    launch = ledger.launches.get(KEY)
    assert not outlook_of(ledger, launch, NOW + timedelta(hours=3)).is_too_late
    assert outlook_of(ledger, launch, NOW + timedelta(hours=3, seconds=1)).is_too_late
    assert outlook_of(ledger, launch, NOW + timedelta(hours=4)).is_too_late


@pytest.mark.parametrize(
    ("fields", "due_at"),
    [
        ({"push_expiry": {"until": {"time": "23:30", "time_zone": "UTC", "date": "2026-03-02"}}}, None),
        ({"gates": {"lateness": {"length": 6, "unit": "hours"}}}, NOW.replace(hour=21)),
    ],
)
def test_a_launch_that_may_only_send_when_it_is_too_late_is_too_late(
    ledger: Ledger, fields: dict[str, Any], due_at: datetime | None
) -> None:
    window = {"earliest": "09:00", "latest": "20:00", "time_zone": "UTC"}
    campaign = make_campaign(**{**fields, "gates": {**fields.get("gates", {}), "window": window}})
    launch = make_launch(ledger, [1], campaign=campaign, due_at=due_at)
    opens_at = NOW + timedelta(days=1)
    assert outlook_of(ledger, launch, NOW.replace(hour=21)) == Outlook(opens_at, is_too_late=True)
    assert outlook_of(ledger, launch, NOW.replace(hour=19)) == Outlook(None, is_too_late=False)


def test_a_launch_is_too_late_only_if_its_time_has_passed_in_every_zone(ledger: Ledger) -> None:
    once = {"kind": "once", "date": "2026-03-02", "time": "18:30", "time_zone": "query"}
    zones = ("Asia/Tokyo", "UTC")  # 09:30 and 18:30 UTC
    parts = [Segment(integers([n]), Variation(time_zone=zone)) for n, zone in enumerate(zones, 1)]
    campaign = make_campaign(send={**once, "default_time_zone": "UTC"})
    make_launch(ledger, segments=parts, campaign=campaign, sends_at=NOW.replace(hour=18, minute=30))
    launch = ledger.launches.get(KEY)
    assert not outlook_of(ledger, launch, NOW.replace(hour=12)).is_too_late
    assert outlook_of(ledger, launch, NOW.replace(hour=19)).is_too_late


def test_a_launch_that_the_service_holds_is_scheduled_until_the_service_sends_it(ledger: Ledger) -> None:
    tomorrow = NOW + timedelta(days=1)
    make_launch(ledger, [1], sends_at=tomorrow)
    send(ledger, KEY, YES)
    assert standing(ledger) == Standing(Stage.SCHEDULED, tomorrow)
    assert stage(ledger, tomorrow) == Stage.WAITING_FOR_RESPONSES


def test_a_launch_is_reported_when_its_responses_stopped_coming(ledger: Ledger) -> None:
    make_launch(ledger, [1])
    send(ledger, KEY, YES)
    reconcile_launch(ledger, KEY, now=NOW)
    assert stage(ledger) == Stage.WAITING_FOR_RESPONSES
    assert stage(ledger, NOW + timedelta(days=1)) == Stage.REPORTED  # nothing may have waited
    assert is_settled(ledger, KEY, quiet_for=timedelta(minutes=15), now=LATER)
    assert stage(ledger) == Stage.REPORTED


def test_a_launch_that_was_sent_long_after_it_was_made_is_not_reported_at_once(ledger: Ledger) -> None:
    make_launch(ledger, [1])
    monday = NOW + timedelta(days=3)
    send(ledger, KEY, YES, at=monday)
    reconcile_launch(ledger, KEY, now=monday)
    assert stage(ledger, monday + timedelta(hours=23)) == Stage.WAITING_FOR_RESPONSES
    assert stage(ledger, monday + timedelta(days=1)) == Stage.REPORTED


RECURRING = {"kind": "recurring", "time": "18:00", "time_zone": "UTC"}
TRIGGERED = {
    "kind": "triggered",
    "time_zone": "user",
    "window": {"earliest": "09:00"},
    "trigger": {"kind": "event", "name": "signed_up"},
}


@pytest.mark.parametrize(
    ("repeats", "first", "end"),
    [
        (
            {**RECURRING, "start": "2026-03-09", "end": "2026-03-15", "days": ["tuesday"]},
            datetime(2026, 3, 10, 18, tzinfo=UTC),
            datetime(2026, 3, 16, tzinfo=UTC),
        ),
        (
            {**TRIGGERED, "start": "2026-03-10", "end": "2026-03-12"},
            datetime(2026, 3, 9, 19, tzinfo=UTC),  # 09:00 fourteen hours east
            datetime(2026, 3, 13, 12, tzinfo=UTC),
        ),
    ],
)
def test_a_repeated_launch_is_reported_only_after_its_last_day(
    ledger: Ledger, repeats: dict[str, Any], first: datetime, end: datetime
) -> None:
    make_launch(ledger, [1], campaign=make_campaign(send=repeats), sends_at=None)
    send(ledger, KEY, YES)
    reconcile_launch(ledger, KEY, now=NOW)
    assert is_settled(ledger, KEY, quiet_for=timedelta(0), now=NOW)
    assert standing(ledger) == Standing(Stage.SCHEDULED, first)
    assert stage(ledger, first) == Stage.WAITING_FOR_RESPONSES
    assert stage(ledger, end + timedelta(hours=23)) == Stage.WAITING_FOR_RESPONSES
    assert stage(ledger, end + timedelta(days=1)) == Stage.REPORTED


@pytest.mark.parametrize(
    ("repeats", "first"),
    [
        ({**RECURRING, "time": "09:00"}, NOW),
        ({**RECURRING, "time": "08:00", "days": ["monday"]}, datetime(2026, 3, 9, 8, tzinfo=UTC)),
        ({**RECURRING, "time": "08:00", "time_zone": "Asia/Tokyo"}, datetime(2026, 3, 2, 23, tzinfo=UTC)),
        ({**RECURRING, "time_zone": "user"}, NOW),  # 18:00 has passed in the first zones on Earth only
        ({**TRIGGERED, "time_zone": "UTC", "window": {"earliest": "08:00", "latest": "20:00"}}, NOW),
        ({**TRIGGERED, "time_zone": "UTC", "window": {"earliest": "10:00"}}, NOW + timedelta(hours=1)),
        ({**RECURRING, "time": "08:00", "end": "2026-03-02"}, None),
    ],
)
def test_a_repeated_launch_begins_with_the_first_message_after_its_first_request(
    ledger: Ledger, repeats: dict[str, Any], first: datetime | None
) -> None:
    send_part = {"start": "2026-03-02", "end": "never", **repeats}
    parts = [Segment(integers([n])) for n in (1, 2)]
    make_launch(ledger, segments=parts, campaign=make_campaign(send=send_part), sends_at=None)
    assert standing(ledger).first_at is None
    send(ledger, KEY, YES)
    assert (standing(ledger).first_at, stage(ledger)) == (first, Stage.SENDING)
    send(ledger, KEY, YES, at=NOW + timedelta(days=30))
    assert standing(ledger).first_at == first
    before = (first or NOW) - timedelta(minutes=1)
    assert (stage(ledger, before) == Stage.SCHEDULED) == (first is not None)


def test_a_repeated_launch_without_an_end_is_never_reported(ledger: Ledger) -> None:
    repeats = {**RECURRING, "start": "2026-03-01", "end": "never"}
    make_launch(ledger, [1], campaign=make_campaign(send=repeats), sends_at=None)
    send(ledger, KEY, YES)
    reconcile_launch(ledger, KEY, now=NOW)
    assert stage(ledger, NOW + timedelta(days=999)) == Stage.WAITING_FOR_RESPONSES


@pytest.mark.parametrize("schedule", [{"kind": "now"}, {**RECURRING, "kind": "of another version"}])
def test_a_repeated_launch_whose_end_is_unknown_is_reported_with_its_first_report(
    ledger: Ledger, schedule: dict[str, Any]
) -> None:
    make_launch(ledger, [1], sends_at=None)
    send(ledger, KEY, YES)
    assert stage(ledger) == Stage.WAITING_FOR_RESPONSES
    reconcile_launch(ledger, KEY, now=NOW)
    definition = json.dumps({**json.loads(ledger.launches.get(KEY).definition), "send": schedule})
    with ledger.launch_counts._database.write() as db:
        db.execute(sa.update(launches_table).values(definition=definition))
    assert stage(ledger) == Stage.REPORTED


def test_each_state_has_a_label_in_words() -> None:
    assert [each.label for each in Stage if "_" in each.label] == []
    assert Stage.WAITING_FOR_DECISION.label == "waiting for a decision"


@pytest.mark.parametrize(
    ("requests", "begun"),
    [
        ({"planned": 2}, False),
        ({"planned": 1, "suppressed": 1}, False),  # no one has got it
        ({"suppressed": 2}, False),
        ({"refused": 1}, True),
        ({"planned": 1, "in_flight": 1}, True),
        ({"accepted": 2}, True),
    ],
)
def test_a_launch_has_begun_if_a_request_with_recipients_has(requests: dict[str, int], begun: bool) -> None:
    assert has_begun(requests) is begun


@pytest.mark.parametrize(
    ("states", "has_gone"),
    [
        ([], False),
        (["planned", "refused", "suppressed", "not_processed"], False),
        (["planned"], False),
        (["planned", "accepted"], True),
        (["in_doubt"], True),
        (["sending"], True),
        (["written_off"], True),
    ],
)
def test_a_launch_has_gone_out_once_a_request_may_have_reached_recipients(
    states: list[str], has_gone: bool
) -> None:
    assert has_gone_out(states) == has_gone
