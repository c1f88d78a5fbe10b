"""Verdicts: exactly one per identifier, whatever the order and repetition of post-backs."""

from __future__ import annotations

import json
import shutil
import sqlite3
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from sendoff.audience.build import Audience
from sendoff.audience.identifiers import Identifiers, integers, strings
from sendoff.audience.segmentation import Segment
from sendoff.campaign import Campaign, Variation
from sendoff.figures import ANOMALIES, WHY_UNKNOWABLE, LaunchStats
from sendoff.ledger import Claim, Decision, Ledger, SuppressionChange
from sendoff.ledger.post_backs.aggregates import AggregatedRun
from sendoff.ledger.storage.schema import dispatch_totals
from sendoff.postbacks.aggregation import aggregate
from sendoff.postbacks.reconcile import is_settled, reconcile_launch, until_sent
from sendoff.report import as_text, describe_launch
from sendoff.service.postbacks import PostBack
from sendoff.states import Accepted, InDoubt, NotProcessed, Outcome, Refused, Resolution, Verdict

from ...examples import examples
from ...factories import EMAIL, KEY, LEASE, NOW, PERIOD, claimed, make_launch, send, store
from ...leases import end_leases, expire

PUSH = Campaign.model_validate(
    {
        "title": "Spring",
        "message": {"title": "Hello", "text": "It is spring"},
        "channels": {"android_push": {}, "web_push": {"browsers": ["chrome", "safari"]}},
    }
)
RECURRING = {
    "kind": "recurring",
    "time": "18:00",
    "time_zone": "UTC",
    "start": "2026-03-02",
    "end": "never",
}
# 1 to 4 are on Chrome, 5 to 8 on Android, 9 and 10 have no platform, and 4 has both.
PLATFORMS = {"chrome": [1, 2, 3, 4], "android": [4, 5, 6, 7, 8]}


def launch(
    ledger: Ledger,
    *,
    campaign: Campaign = PUSH,
    members: Identifiers | None = None,
    identified_by: str = "device_id",
    platforms: dict[str, list[int]] | None = None,
    segment_size: int = 100,
    segments: Sequence[Segment] | None = None,
    dropped: Mapping[str, int] | None = None,
    outcomes: Sequence[Outcome] = (Accepted(200, 17),),
    **more: Any,
) -> list[str]:
    """Freeze a launch of the ten, record these outcomes, and return the dispatch keys."""
    identifiers = members or integers(range(1, 11))
    make_launch(
        ledger,
        segments=segments or [Segment(segment) for segment in identifiers.slices(segment_size)],
        audience=Audience(
            identified_by=identified_by,
            identifiers=identifiers,
            rows=len(identifiers) + sum((dropped or {}).values()),
            dropped=dropped or {},
            groups={
                "platform": {
                    name: integers(who)
                    for name, who in (PLATFORMS if platforms is None else platforms).items()
                }
            }
            if identifiers.kind == "integer"
            else {},
        ),
        campaign=campaign,
        sends_at=_sends_at(campaign),
        **more,
    )
    return sent(ledger, outcomes)


def broadcast(
    ledger: Ledger, *, campaign: Campaign = EMAIL, outcomes: Sequence[Outcome] = (Accepted(200, 17),)
) -> str:
    """Freeze a launch whose recipients the service chooses, record this outcome, and return the dispatch key."""
    make_launch(ledger, campaign=campaign, sends_at=_sends_at(campaign))
    (key,) = sent(ledger, outcomes)
    return key


def sent(ledger: Ledger, outcomes: Sequence[Outcome]) -> list[str]:
    send(ledger, KEY, *outcomes)
    return [dispatch.dispatch_key for dispatch in ledger.dispatch_queries.of_launch(KEY)]


def _sends_at(campaign: Campaign) -> datetime | None:
    sends_at = campaign.send.sends_at()
    return sends_at and max(NOW, sends_at)


def event(
    key: str, kind: str, device: int, *, campaign: int = 17, at: datetime = NOW, second: int = 0
) -> PostBack:
    body = {"time": 1772442000 + second, "device": {"id": device}, "campaign": {"id": campaign}}
    return PostBack.received(kind, key, at, json.dumps(body).encode())


def verdict_of(ledger: Ledger, identifier: int) -> str:
    (verdict,) = [name for name, who in ledger.verdicts.sets(KEY).items() if identifier in who]
    return verdict


@pytest.mark.rule("6/no_deliveries", "6/web_deliveries", side="client")
@pytest.mark.promise("honest/verdict")
def test_every_verdict_says_what_is_known(ledger: Ledger) -> None:
    (key,) = launch(ledger)
    store(
        ledger,
        event(key, "delivery", 1),
        event(key, "delivery", 2),
        event(key, "open", 2),
        event(key, "open", 5),
    )
    figures = reconcile_launch(ledger, KEY, now=NOW)
    assert figures.verdicts == {
        "engaged": 2,
        "delivered": 1,
        "missing": 1,
        "unknowable": 6,
        "in_doubt": 0,
        "not_sent": 0,
    }
    assert verdict_of(ledger, 1) == "delivered"
    assert verdict_of(ledger, 2) == "engaged"
    assert verdict_of(ledger, 3) == "missing"  # Chrome reports deliveries
    assert verdict_of(ledger, 4) == "unknowable"  # Chrome or Android, it is unknown which
    assert verdict_of(ledger, 5) == "engaged"  # an open without a delivery
    assert verdict_of(ledger, 6) == "unknowable"  # Android reports none
    assert verdict_of(ledger, 9) == "unknowable"  # no platform


@pytest.mark.parametrize(
    ("outcome", "verdict"),
    [
        (Refused(400, "no"), "not_sent"),
        (NotProcessed("no connection"), "not_sent"),
        (InDoubt("no answer"), "in_doubt"),
        (Accepted(200, 17), "unknowable"),
    ],
)
def test_the_silent_are_judged_by_what_became_of_their_request(
    ledger: Ledger, outcome: Outcome, verdict: str
) -> None:
    launch(ledger, platforms={}, outcomes=[outcome])
    assert reconcile_launch(ledger, KEY).verdicts[verdict] == 10


def test_what_waits_is_not_sent(ledger: Ledger) -> None:
    launch(ledger, outcomes=[])
    assert reconcile_launch(ledger, KEY).verdicts["not_sent"] == 10


@pytest.mark.rule("6/no_deliveries", side="client")
@pytest.mark.promise("honest/unknowable")
def test_without_platforms_silence_on_push_is_unknowable(ledger: Ledger) -> None:
    launch(ledger, platforms={})
    assert reconcile_launch(ledger, KEY).verdicts["unknowable"] == 10


def test_without_platforms_silence_on_email_is_missing(ledger: Ledger) -> None:
    launch(ledger, platforms={}, campaign=EMAIL)
    assert reconcile_launch(ledger, KEY).verdicts["missing"] == 10


def test_where_no_deliveries_are_asked_for_none_is_missing(ledger: Ledger) -> None:
    campaign = EMAIL.model_copy(
        update={"post_backs": EMAIL.post_backs.model_copy(update={"kinds": ("open",)})}
    )
    launch(ledger, platforms={}, campaign=campaign)
    assert reconcile_launch(ledger, KEY).verdicts["unknowable"] == 10


def test_identifiers_that_no_post_back_names_are_unknowable(ledger: Ledger) -> None:
    (key,) = launch(ledger, campaign=EMAIL, members=strings(["a", "b"]), identified_by="external_id")
    store(ledger, event(key, "delivery", 1))
    figures = reconcile_launch(ledger, KEY)
    assert figures.verdicts["unknowable"] == 2
    assert figures.unknowable_because == {"not named": 2}
    assert figures.post_backs == {"delivery": 1, "open": 0}


def test_users_are_matched_by_the_user_id_of_a_post_back(ledger: Ledger) -> None:
    (key,) = launch(ledger, campaign=EMAIL, members=strings(["ann", "bob"]), identified_by="user_id")
    body = b'{"time": 1, "device": {"id": 5}, "profile": {"user_id": "ann"}, "campaign": {"id": 17}}'
    store(ledger, PostBack.received("open", key, NOW, body))
    assert reconcile_launch(ledger, KEY).verdicts["engaged"] == 1


def test_anomalies_are_counted_and_decide_nothing(ledger: Ledger) -> None:
    (key,) = launch(ledger)
    store(
        ledger,
        event(key, "delivery", 99),  # unexpected
        event(key, "open", 1, campaign=18),  # forged
        PostBack.received("open", key, NOW, b"{"),  # unreadable
        event(key, "delivery", 1),
        event(key, "delivery", 1),  # duplicate
    )
    figures = reconcile_launch(ledger, KEY)
    assert figures.anomalies == {"unexpected": 1, "forged": 1, "late": 0, "duplicate": 1, "unreadable": 1}
    assert figures.verdicts["delivered"] == 1
    assert figures.verdicts["engaged"] == 0
    assert figures.post_backs == {"delivery": 3, "open": 2}


@pytest.mark.promise("lost/kept")
def test_a_late_post_back_is_counted_and_still_decides(ledger: Ledger) -> None:
    (key,) = launch(ledger)
    ledger.launches.settle(KEY, NOW)
    store(ledger, event(key, "open", 1, at=NOW + timedelta(seconds=1)))
    figures = reconcile_launch(ledger, KEY)
    assert figures.anomalies["late"] == 1
    assert figures.verdicts["engaged"] == 1


def test_a_post_back_is_evidence_for_a_dispatch_in_doubt(ledger: Ledger) -> None:
    (key,) = launch(ledger, outcomes=[InDoubt("no answer")])
    store(ledger, event(key, "open", 1))
    reconcile_launch(ledger, KEY)
    (dispatch,) = ledger.dispatch_queries.of_launch(KEY)
    assert dispatch.state == "accepted"
    assert verdict_of(ledger, 3) == "missing"


def test_evidence_that_was_folded_before_the_doubt_still_counts(ledger: Ledger) -> None:
    (key,) = launch(ledger, outcomes=[])
    claim = claimed(ledger)
    store(ledger, event(key, "open", 1))
    aggregate(ledger)
    ledger.dispatches.record(claim, InDoubt("no answer"), NOW)
    reconcile_launch(ledger, KEY)
    assert ledger.dispatch_queries.states(KEY) == {"accepted": 1}


@pytest.mark.parametrize("is_sent_again", [False, True], ids=["refused", "planned again"])
def test_a_doubt_that_a_late_refusal_of_its_attempt_clears_is_not_sent(
    ledger: Ledger, is_sent_again: bool
) -> None:
    (key,) = launch(ledger, outcomes=[])
    claim = claimed(ledger)
    assert expire(ledger, KEY, NOW + 2 * LEASE) == 1
    if is_sent_again:
        assert ledger.doubts.resolve(key, Resolution.RESEND, "ann", "again", NOW + 2 * LEASE)
    assert reconcile_launch(ledger, KEY, now=NOW + 2 * LEASE).verdicts["in_doubt"] == 10
    ledger.dispatches.record(claim, Refused(400, "no"), NOW + 2 * LEASE)
    figures = reconcile_launch(ledger, KEY, now=NOW + 2 * LEASE)
    assert (figures.verdicts["not_sent"], figures.verdicts["in_doubt"]) == (10, 0)


@pytest.mark.parametrize(
    "outcome", [Refused(400, "no"), NotProcessed("down")], ids=["refused", "not processed"]
)
def test_a_write_off_whose_request_was_certainly_not_processed_is_not_sent(
    ledger: Ledger, outcome: Outcome
) -> None:
    (key,) = launch(ledger, outcomes=[])
    claim = claimed(ledger)
    assert expire(ledger, KEY, NOW + 2 * LEASE) == 1
    assert ledger.doubts.resolve(key, Resolution.WRITE_OFF, "ann", "enough", NOW + 2 * LEASE)
    assert reconcile_launch(ledger, KEY, now=NOW + 2 * LEASE).verdicts["in_doubt"] == 10
    ledger.dispatches.record(claim, outcome, NOW + 2 * LEASE)
    figures = reconcile_launch(ledger, KEY, now=NOW + 2 * LEASE)
    assert (figures.verdicts["not_sent"], figures.verdicts["in_doubt"]) == (10, 0)
    assert ledger.dispatch_queries.states(KEY) == {"written_off": 1}


@pytest.mark.parametrize(
    "outcome", [Refused(400, "no"), NotProcessed("down")], ids=["refused", "not processed"]
)
def test_who_was_left_out_after_a_request_that_was_not_processed_is_not_sent(
    ledger: Ledger, outcome: Outcome
) -> None:
    (key,) = launch(ledger, outcomes=[])
    claim = claimed(ledger)
    later = NOW + 2 * LEASE
    assert expire(ledger, KEY, later) == 1
    assert ledger.doubts.resolve(key, Resolution.RESEND, "ann", "again", later)
    ledger.suppressions.add(SuppressionChange("everything", "device_id", "ann", "ann", "asked"), ["1"], later)
    send(ledger, KEY, Accepted(200, 17), at=later, worker="other")
    assert reconcile_launch(ledger, KEY, now=later).verdicts["in_doubt"] == 1
    ledger.dispatches.record(claim, outcome, later)
    figures = reconcile_launch(ledger, KEY, now=later)
    assert (figures.verdicts["not_sent"], figures.verdicts["in_doubt"]) == (1, 0)


def test_an_answer_that_comes_after_the_evidence_still_tells_the_campaign(ledger: Ledger) -> None:
    (key,) = launch(ledger, outcomes=[])
    claim = claimed(ledger)
    store(ledger, event(key, "open", 1))
    expire(ledger, KEY, NOW + 2 * LEASE)
    aggregate(ledger)
    ledger.dispatches.record(claim, Accepted(200, 17), NOW + 2 * LEASE)
    assert ledger.dispatch_queries.of_launch(KEY)[0].campaign_id == 17


@pytest.mark.promise("private/forged")
def test_a_stranger_is_no_evidence(ledger: Ledger) -> None:
    (key,) = launch(ledger, outcomes=[InDoubt("no answer")])
    store(ledger, event(key, "open", 99))
    reconcile_launch(ledger, KEY)
    assert ledger.dispatch_queries.states(KEY) == {"in_doubt": 1}


def test_post_backs_of_an_unknown_dispatch_stop_nothing(ledger: Ledger) -> None:
    (key,) = launch(ledger)
    store(ledger, event("f" * 32, "open", 1), event(key, "open", 2))
    assert reconcile_launch(ledger, KEY).verdicts["engaged"] == 1


@pytest.mark.promise("lost/aggregated")
def test_folding_twice_adds_nothing(ledger: Ledger) -> None:
    (key,) = launch(ledger)
    store(ledger, event(key, "open", 1))
    assert aggregate(ledger) == 1
    assert aggregate(ledger) == 0
    assert reconcile_launch(ledger, KEY).post_backs["open"] == 1


def test_the_timeline_counts_by_minute(ledger: Ledger) -> None:
    (key,) = launch(ledger)
    later = NOW + timedelta(minutes=2)
    store(ledger, event(key, "delivery", 1), event(key, "open", 1, at=later), event(key, "open", 2, at=later))
    assert list(reconcile_launch(ledger, KEY).timeline) == [(NOW, 1, 0), (later, 0, 2)]


@pytest.mark.code_decides
def test_the_timeline_of_the_first_waves_leaves_out_the_later_ones(ledger: Ledger) -> None:
    waves = [Segment(integers([wave]), wave=wave) for wave in (1, 2, 3)]
    key = make_launch(ledger, segments=waves, campaign=EMAIL).launch_key
    for wave in (1, 2, 3):
        (sent,) = send(ledger, key, Accepted(200, 17))
        store(ledger, event(sent, "delivery", wave, at=NOW + timedelta(minutes=wave)))
        ledger.audit_log.decide(Decision(key, "wave", "sendoff", None, NOW))
    aggregate(ledger, now=NOW)
    for up_to_wave in (1, 2, 3):
        points = ledger.aggregates.timeline(key, up_to_wave=up_to_wave)
        expected = [(NOW + timedelta(minutes=wave), 1, 0) for wave in range(1, up_to_wave + 1)]
        assert list(points) == expected
    assert len(ledger.aggregates.timeline(key)) == 3


def test_figures_come_back_from_the_ledger_as_they_were(ledger: Ledger) -> None:
    (key,) = launch(ledger)
    store(ledger, event(key, "open", 1))
    figures = reconcile_launch(ledger, KEY, now=NOW)
    assert ledger.verdicts.figures(KEY).to_json() == figures.to_json()


def test_only_launches_with_news_are_changed(ledger: Ledger) -> None:
    (key,) = launch(ledger)
    assert ledger.verdicts.stale() == []
    store(ledger, event(key, "open", 1))
    aggregate(ledger)
    assert ledger.verdicts.stale() == [KEY]
    reconcile_launch(ledger, KEY)
    reconcile_launch(ledger, KEY)  # the first report is always made again
    assert ledger.verdicts.stale() == []


def _recorded(outcome: Outcome) -> Callable[[Ledger, Claim], object]:
    return lambda ledger, held: ledger.dispatches.record(held, outcome, NOW)


def _recorded_with_the_next_claim(ledger: Ledger, held: Claim) -> object:
    return ledger.dispatches.record_and_claim(held, Accepted(200, 18), NOW, worker="w", lease=LEASE)


def _given_back(ledger: Ledger, held: Claim) -> object:
    return ledger.dispatches.give_back(held.launch_key, "w", NOW)


@pytest.mark.parametrize(
    "end",
    [
        _recorded(Accepted(200, 18)),
        _recorded(Refused(400, "no")),
        _recorded(InDoubt("no answer")),
        _recorded(NotProcessed("no connection")),
        _recorded_with_the_next_claim,
        _given_back,
    ],
    ids=["accepted", "refused", "in doubt", "not processed", "record and claim", "given back"],
)
def test_an_outcome_after_the_first_report_is_news(
    ledger: Ledger, end: Callable[[Ledger, Claim], object]
) -> None:
    launch(ledger, segment_size=5)
    held = claimed(ledger)
    for _ in range(2):  # the first report is always made again
        reconcile_launch(ledger, KEY, now=NOW)
    assert ledger.verdicts.stale(NOW) == []
    end(ledger, held)
    assert ledger.verdicts.stale(NOW) == [KEY]
    reconcile_launch(ledger, KEY, now=NOW)
    assert ledger.verdicts.stale(NOW) == []


def test_a_late_refusal_of_a_dispatch_that_somebody_had_sent_again_is_news(ledger: Ledger) -> None:
    """It moves no dispatch, but clears its doubt."""
    (key,) = launch(ledger, outcomes=[])
    held = claimed(ledger)
    later = NOW + 2 * LEASE
    expire(ledger, KEY, later)
    assert ledger.doubts.resolve(key, Resolution.RESEND, "ann", "again", later)
    for _ in range(2):
        reconcile_launch(ledger, KEY, now=later)
    assert ledger.verdicts.stale(later) == []
    ledger.dispatches.record(held, Refused(400, "no"), later)
    assert ledger.verdicts.stale(later) == [KEY]


def test_a_launch_is_settled_when_nothing_came_for_a_while(ledger: Ledger) -> None:
    (key,) = launch(ledger)
    minute = timedelta(minutes=1)
    store(ledger, event(key, "open", 1, at=NOW + minute))
    assert not is_settled(ledger, KEY, quiet_for=minute, now=NOW + minute)
    other = make_launch(ledger, [1], name="other").launch_key
    for minutes in (2, 3):  # it stays settled since the first time
        assert is_settled(ledger, KEY, quiet_for=minute, now=NOW + minutes * minute)
        assert ledger.launches.get(KEY).settled_at == NOW + 2 * minute
    assert ledger.launches.get(other).settled_at is None


def test_a_launch_is_settled_when_everybody_engaged(ledger: Ledger) -> None:
    (key,) = launch(ledger)
    store(ledger, *[event(key, "open", device) for device in range(1, 11)])
    assert is_settled(ledger, KEY, quiet_for=timedelta(days=1), now=NOW)


@pytest.mark.code_decides
def test_a_launch_is_waited_for_until_the_service_has_sent_it(ledger: Ledger) -> None:
    before = datetime.now(UTC)
    sends_at = before + timedelta(days=1)
    make_launch(ledger, [1], sends_at=sends_at)
    found = until_sent(ledger, KEY)
    assert sends_at - datetime.now(UTC) <= found <= sends_at - before
    for name, at in (("sent", before), ("recurring", None)):
        assert until_sent(ledger, make_launch(ledger, [1], name=name, sends_at=at).launch_key) == timedelta()


def test_a_dead_workers_dispatch_does_not_keep_a_launch_open(ledger: Ledger) -> None:
    launch(ledger, outcomes=[])
    ledger.dispatches.claim(KEY, worker="dead", now=NOW, lease=LEASE)
    assert not is_settled(ledger, KEY, quiet_for=timedelta(0), now=NOW)
    end_leases(ledger)
    assert is_settled(ledger, KEY, quiet_for=timedelta(0), now=NOW)
    assert reconcile_launch(ledger, KEY).verdicts["in_doubt"] == 10


def at_six(campaign: Campaign, zone: str) -> Campaign:
    send = {"kind": "once", "time": "18:00", "time_zone": zone, "date": "2026-03-02"}
    return Campaign.frozen(json.dumps(campaign.model_dump(mode="json", exclude_none=True) | {"send": send}))


@pytest.mark.parametrize(
    ("zone", "sent_at"),
    [
        ("Europe/Dublin", datetime(2026, 3, 2, 18, tzinfo=UTC)),
        (
            "user",
            datetime(2026, 3, 3, 6, tzinfo=UTC),
        ),  # each recipient's own zone; the last one is west of Hawaii
    ],
)
@pytest.mark.promise("honest/unknowable")
def test_before_the_service_sends_silence_says_nothing(ledger: Ledger, zone: str, sent_at: datetime) -> None:
    launch(ledger, platforms={}, campaign=at_six(EMAIL, zone))
    quiet, moment = timedelta(minutes=15), timedelta(seconds=1)
    assert not is_settled(ledger, KEY, quiet_for=quiet, now=sent_at + quiet - moment)
    assert reconcile_launch(ledger, KEY, now=sent_at - moment).verdicts["unknowable"] == 10
    assert is_settled(ledger, KEY, quiet_for=quiet, now=sent_at + quiet)
    assert reconcile_launch(ledger, KEY, now=sent_at + quiet).verdicts["missing"] == 10


def test_what_is_sent_again_and_again_is_never_missing_and_never_late(ledger: Ledger) -> None:
    launch(ledger, platforms={}, campaign=again_and_again(EMAIL))
    assert is_settled(ledger, KEY, quiet_for=timedelta(0), now=NOW)
    assert ledger.launches.get(KEY).settled_at is None
    figures = reconcile_launch(ledger, KEY, now=NOW)
    assert figures.verdicts["unknowable"] == 10
    assert figures.is_recurring


def again_and_again(campaign: Campaign) -> Campaign:
    made = Campaign.model_validate(campaign.model_dump(exclude_none=True) | {"send": RECURRING})
    return made.resolved(PERIOD.end)


@pytest.mark.parametrize(("campaign", "duplicates"), [(EMAIL, 2), (again_and_again(EMAIL), 0)])
@pytest.mark.promise("honest/verdict")
def test_what_comes_again_is_a_duplicate_only_where_it_is_sent_once(
    ledger: Ledger, campaign: Campaign, duplicates: int
) -> None:
    (key,) = launch(ledger, platforms={}, campaign=campaign)
    store(ledger, *[event(key, "delivery", 1, second=day) for day in range(3)])
    figures = reconcile_launch(ledger, KEY)
    assert figures.anomalies["duplicate"] == duplicates
    assert figures.verdicts["delivered"] == 1
    assert figures.post_backs == {"delivery": 3, "open": 0}


def test_of_people_whom_the_service_chose_those_are_known_who_were_heard_of(ledger: Ledger) -> None:
    key = broadcast(ledger)
    anonymous = b'{"time": 1, "profile": {"user_id": "ann"}, "campaign": {"id": 17}}'
    store(
        ledger,
        event(key, "delivery", 1),
        event(key, "delivery", 2),
        event(key, "open", 2),
        event(key, "open", 2**62),
        event(key, "delivery", 1),  # duplicate
        event(key, "delivery", 3, campaign=18),  # forged
        PostBack.received("open", key, NOW, b"{"),  # unreadable
        PostBack.received("open", key, NOW, anonymous),  # unreadable: it names no device
    )
    figures = reconcile_launch(ledger, KEY)
    assert figures.is_chosen_by_service
    assert (figures.rows, figures.audience) == (0, 3)
    assert figures.verdicts == dict.fromkeys(Verdict, 0) | {"engaged": 2, "delivered": 1}
    assert (figures.unaccounted_rows, figures.unaccounted_identifiers) == (0, 0)
    assert figures.reached == (3, None)
    assert figures.anomalies == {"unexpected": 0, "forged": 1, "late": 0, "duplicate": 1, "unreadable": 2}
    sets = ledger.verdicts.sets(KEY)
    assert sets["engaged"] == integers([2, 2**62])
    assert sets["delivered"] == integers([1])
    assert ledger.verdicts.figures(KEY).to_json() == figures.to_json()


@pytest.mark.parametrize("outcome", [Refused(400, "no"), NotProcessed("no connection"), InDoubt("reset")])
def test_of_people_whom_the_service_chose_a_request_says_nothing(ledger: Ledger, outcome: Outcome) -> None:
    broadcast(ledger, outcomes=[outcome])
    figures = reconcile_launch(ledger, KEY)
    assert figures.audience == sum(figures.verdicts.values()) == 0
    assert figures.not_sent_because == {}
    assert sum(figures.dispatches.values()) == 1


def test_somebody_whom_the_service_chose_is_evidence(ledger: Ledger) -> None:
    key = broadcast(ledger, outcomes=[InDoubt("no answer")])
    store(ledger, event(key, "open", 5))
    assert reconcile_launch(ledger, KEY).dispatches == {"accepted": 1}


def test_a_launch_to_people_of_the_services_choice_is_never_complete(ledger: Ledger) -> None:
    key = broadcast(ledger)
    minute = timedelta(minutes=1)
    assert not is_settled(ledger, KEY, quiet_for=minute, now=NOW)
    store(ledger, event(key, "open", 1))
    assert not is_settled(ledger, KEY, quiet_for=minute, now=NOW)
    assert is_settled(ledger, KEY, quiet_for=minute, now=NOW + minute)
    store(ledger, event(key, "open", 2, at=NOW + 2 * minute))
    figures = reconcile_launch(ledger, KEY)
    assert (figures.anomalies["late"], figures.verdicts["engaged"]) == (1, 2)


@pytest.mark.promise("honest/rows")
def test_everybody_who_is_not_sent_to_is_so_for_one_reason(ledger: Ledger) -> None:
    segments = [Segment(integers(who)) for who in ([1, 2], [3, 4, 5], [6])]
    left_out = {"holdout": integers([7, 8, 9, 10]), "cap": integers([50])}
    outcomes = [Accepted(200, 17), Refused(400, "no")]
    (key, *_) = launch(ledger, segments=segments, suppressed=left_out, outcomes=outcomes)
    store(ledger, event(key, "open", 1))
    figures = reconcile_launch(ledger, KEY)
    assert figures.verdicts["not_sent"] == 8
    assert figures.not_sent_because == {"held out": 4, "refused": 3, "not requested": 1}
    assert figures.unaccounted_identifiers == 0
    assert verdict_of(ledger, 7) == "not_sent"
    assert ledger.launches.suppressed(KEY) == left_out


def test_reasons_of_dropping_keep_their_order(ledger: Ledger) -> None:
    dropped = {"null": 1, "gave it back": 2, "cap": 3, "priority": 4, "size_limit": 5}
    launch(ledger, dropped=dropped)
    reconcile_launch(ledger, KEY)
    figures = ledger.verdicts.figures(KEY)
    assert list(figures.dropped.items()) == list(dropped.items())
    assert figures.unaccounted_rows == 0


@pytest.mark.parametrize(
    ("state", "decision", "reason"),
    [
        ("held", None, "launch held"),
        ("held", "rejected", "launch rejected"),
        ("released", "stopped", "launch stopped"),
        ("released", None, "not requested"),
    ],
)
def test_a_launch_that_is_not_released_names_that_as_the_reason(
    ledger: Ledger, state: str, decision: str | None, reason: str
) -> None:
    launch(ledger, outcomes=[], state=state)
    if decision:
        ledger.audit_log.decide(Decision(KEY, decision, "ann", None, NOW))
    figures = reconcile_launch(ledger, KEY)
    assert figures.state == (decision or state)
    assert figures.not_sent_because == {reason: 10}


@pytest.mark.parametrize(("decision", "is_over"), [("held", False), ("stopped", True)])
def test_nothing_is_waited_for_of_a_launch_that_was_stopped(
    ledger: Ledger, decision: str, is_over: bool
) -> None:
    launch(ledger, segment_size=5)
    ledger.audit_log.decide(Decision(KEY, decision, "ann", None, NOW))
    assert is_settled(ledger, KEY, quiet_for=timedelta(0), now=NOW) is is_over


def test_verdicts_are_counted_by_variant(ledger: Ledger) -> None:
    shares = [("new", [1, 2, 3]), ("old", [4, 5]), ("new", [6])]
    new, old, more = launch(
        ledger,
        campaign=EMAIL,
        platforms={},
        segments=[Segment(integers(who), Variation(variant=name)) for name, who in shares],
        suppressed={"holdout": integers([7, 8, 9, 10])},
        outcomes=[Accepted(200, 17)] * 3,
    )
    store(ledger, event(new, "open", 1), event(old, "delivery", 4), event(more, "open", 6))
    figures = reconcile_launch(ledger, KEY)
    nobody = dict.fromkeys(Verdict, 0)
    assert figures.by_variant == {
        "new": nobody | {"engaged": 2, "missing": 2},
        "old": nobody | {"delivered": 1, "missing": 1},
    }
    assert figures.not_sent_because == {"held out": 4}


def test_without_variants_nothing_is_counted_by_them(ledger: Ledger) -> None:
    launch(ledger)
    figures = reconcile_launch(ledger, KEY)
    assert figures.by_variant == {}
    assert not figures.is_recurring
    assert not figures.is_chosen_by_service


@pytest.mark.parametrize(("browsers", "verdict"), [(["chrome"], "missing"), (["safari"], "unknowable")])
def test_silence_is_judged_by_the_channels_of_every_variant(
    ledger: Ledger, browsers: list[str], verdict: str
) -> None:
    push = {
        "title": "Spring",
        "message": {"title": "Hello", "text": "It is spring", "url": "https://a.example"},
    }
    other = {"percent": 50, "channels": {"web_push": {"browsers": browsers}}}
    campaign = Campaign.model_validate(
        {
            **push,
            "channels": {"web_push": {"browsers": ["chrome"]}},
            "variants": {"a": {"percent": 50}, "b": other},
        }
    )
    launch(ledger, platforms={}, campaign=campaign)
    assert reconcile_launch(ledger, KEY).verdicts[verdict] == 10


@pytest.mark.parametrize("campaign_id", [17, 18])
@pytest.mark.promise("honest/unknowable")
def test_nobody_is_missing_where_a_post_back_could_not_be_read(ledger: Ledger, campaign_id: int) -> None:
    (key,) = launch(ledger, platforms={}, campaign=EMAIL)
    strange = (
        PostBack.received("delivery", key, NOW, b"{")
        if campaign_id == 17
        else event(key, "delivery", 1, campaign=18)
    )
    store(ledger, strange)
    assert reconcile_launch(ledger, KEY).verdicts["unknowable"] == 10


@pytest.mark.parametrize("outcome", [Accepted(200, 17), InDoubt("no answer")])
@pytest.mark.parametrize(
    ("identified_by", "body"),
    [
        ("device_id", {"device": {"id": None}, "profile": {"user_id": "ann"}}),
        ("user_id", {"device": {"id": 5}, "profile": {"user_id": None}}),
    ],
)
@pytest.mark.promise("honest/unknowable")
def test_a_post_back_that_does_not_say_which_recipient_may_be_anyones_and_proves_acceptance(
    ledger: Ledger, identified_by: str, body: dict[str, Any], outcome: Outcome
) -> None:
    members = strings(["ann", "bob"]) if identified_by == "user_id" else integers([1, 2])
    (key,) = launch(
        ledger, members=members, identified_by=identified_by, campaign=EMAIL, platforms={}, outcomes=[outcome]
    )
    store(ledger, PostBack.received("open", key, NOW, json.dumps(body).encode()))
    figures = reconcile_launch(ledger, KEY, now=NOW)
    assert (figures.verdicts["missing"], figures.dispatches) == (2, {"accepted": 1})
    store(ledger, *2 * [PostBack.received("delivery", key, NOW, json.dumps(body).encode())])
    figures = reconcile_launch(ledger, KEY, now=NOW)
    assert figures.unknowable_because == {"post-back not understood": 2}
    assert (figures.verdicts["missing"], figures.reached) == (0, (0, 2))
    assert figures.anomalies == dict.fromkeys(ANOMALIES, 0) | {"unreadable": 3}


@pytest.mark.parametrize("how", ["unreadable", "forged"])
@pytest.mark.promise("honest/unknowable")
def test_what_came_to_the_address_for_opens_hides_no_delivery(ledger: Ledger, how: str) -> None:
    (key,) = launch(ledger, platforms={}, campaign=EMAIL)
    strange = (
        PostBack.received("open", key, NOW, b"{")
        if how == "unreadable"
        else event(key, "open", 1, campaign=18)
    )
    store(ledger, strange, event(key, "delivery", 2))
    figures = reconcile_launch(ledger, KEY, now=NOW)
    assert (figures.verdicts["missing"], figures.verdicts["delivered"]) == (9, 1)
    assert figures.anomalies[how] == 1
    assert set(figures.anomalies) == set(ANOMALIES)


def test_a_post_back_of_before_whose_address_was_not_noted_may_hide_a_delivery(ledger: Ledger) -> None:
    (key,) = launch(ledger, platforms={}, campaign=EMAIL)
    store(ledger, PostBack.received("open", key, NOW, b"{"))
    aggregate(ledger)
    with ledger._database.write() as db:
        db.execute(sa.update(dispatch_totals).values(anomalies={"unreadable": 1}))
    assert reconcile_launch(ledger, KEY, now=NOW).verdicts["unknowable"] == 10


@pytest.mark.parametrize("how", ["unreadable", "forged"])
@pytest.mark.promise("honest/unknowable")
def test_each_of_the_unknowable_has_the_real_reason(ledger: Ledger, how: str) -> None:
    (key,) = launch(ledger)
    strange = (
        PostBack.received("delivery", key, NOW, b"{")
        if how == "unreadable"
        else event(key, "delivery", 1, campaign=18)
    )
    store(ledger, strange, event(key, "delivery", 2))
    figures = reconcile_launch(ledger, KEY, now=NOW)
    assert figures.unknowable_because == {
        "post-back not understood": 2,  # 1 and 3 are on Chrome
        "unreliable platform": 5,
        "unknown platform": 2,
    }
    text = " ".join(as_text(describe_launch(figures)).split())
    assert (
        "2 unknowable: accepted, then silent where silence proves nothing: a post-back of the same request was "
        "unreadable, or named another campaign (sent twice, or forged), and may have been the delivery."
        in text
    )
    assert (
        "5 unknowable: accepted, then silent where silence proves nothing (android 5). Deliveries by" in text
    )
    assert (
        "2 unknowable: accepted, then silent where silence proves nothing: the audience query returned no"
        in text
    )
    because = [ledger.launches.recipient(KEY, identifier).verdict_because for identifier in (1, 4, 5, 9, 2)]
    assert because == [
        "post-back not understood",
        "unreliable platform",
        "unreliable platform",
        "unknown platform",
        None,
    ]
    assert ledger.launches.recipient(KEY, 3).sentence == (
        "sent, and it cannot be known whether it arrived: a post-back of the same request was unreadable, or named "
        "another campaign (sent twice, or forged), and may have been the delivery"
    )
    assert ledger.launches.recipient(KEY, 2).sentence == "got it: delivered"


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"send": RECURRING}, "sent again"),
        (
            {"send": {"kind": "once", "time": "18:00", "time_zone": "UTC", "date": "2026-03-02"}},
            "not sent yet",
        ),
        ({"post_backs": {"kinds": ["open"]}}, "not asked for"),
    ],
)
def test_what_makes_a_whole_launch_unknowable_is_its_only_reason(
    ledger: Ledger, changes: dict[str, Any], reason: str
) -> None:
    launch(ledger, campaign=Campaign.model_validate(EMAIL.model_dump(exclude_unset=True) | changes))
    figures = reconcile_launch(ledger, KEY, now=NOW)
    assert figures.unknowable_because == {reason: figures.verdicts["unknowable"]} == {reason: 10}
    assert ledger.launches.recipient(KEY, 5).verdict_because == reason
    assert WHY_UNKNOWABLE[reason] in " ".join(as_text(describe_launch(figures)).split())


def test_a_fold_that_another_process_overtakes_goes_on_behind_it(ledger: Ledger) -> None:
    (key,) = launch(ledger, platforms={}, campaign=EMAIL)
    store(ledger, *[event(key, "delivery", device) for device in range(1, 11)])
    aggregates, overtaken = ledger.aggregates, []
    store_run = aggregates.store_run

    def overtake(mine: AggregatedRun) -> bool:
        if not overtaken:
            overtaken.append(mine)
            aggregates.store_run = store_run  # type: ignore[method-assign]
            aggregate(ledger, run=1)  # the other process is a little ahead
        return store_run(mine)

    aggregates.store_run = overtake  # type: ignore[method-assign]
    assert reconcile_launch(ledger, KEY).verdicts["delivered"] == 10
    assert ledger.post_backs.pending() == []


def test_a_launch_with_a_waiting_dispatch_is_not_settled(ledger: Ledger) -> None:
    launch(ledger, outcomes=[])
    assert not is_settled(ledger, KEY, quiet_for=timedelta(0), now=NOW + timedelta(days=1))


_EVENTS = st.lists(
    st.tuples(
        st.integers(0, 3),  # dispatch
        st.sampled_from(["delivery", "open"]),
        st.integers(1, 12),  # device: 11 and 12 are strangers
        st.sampled_from([17, 17, 17, 18]),  # campaign: 18 is forged
    ),
    max_size=40,
)


@pytest.mark.proof
@given(events=_EVENTS, data=st.data())
@settings(
    max_examples=examples(25), suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None
)
@pytest.mark.promise("honest/verdict")
def test_order_repetition_and_splitting_change_no_verdict(
    tmp_path: Path, migrated_file: Path, events: list[tuple[int, str, int, int]], data: st.DataObject
) -> None:
    repeated = events + data.draw(st.lists(st.sampled_from(events), max_size=10) if events else st.just([]))
    shuffled = data.draw(st.permutations(repeated))
    cut = data.draw(st.integers(0, len(shuffled)))
    plain = _figures_after(tmp_path, migrated_file, [events])
    parts = [shuffled[:cut], shuffled[cut:]]
    other = _figures_after(tmp_path, migrated_file, parts, run=data.draw(st.integers(1, 7)))
    assert other.verdicts == plain.verdicts
    assert other.by_platform == plain.by_platform
    assert other.unknowable_because == plain.unknowable_because
    assert sum(plain.unknowable_because.values()) == plain.verdicts["unknowable"]
    assert plain.unaccounted_identifiers == other.unaccounted_identifiers == 0
    assert set(plain.verdicts) == set(Verdict)
    assert other.anomalies["duplicate"] >= plain.anomalies["duplicate"]


@given(events=_EVENTS, strange=st.lists(st.integers(0, 3), min_size=1, max_size=5))
@settings(
    max_examples=examples(25), suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None
)
@pytest.mark.promise("honest/verdict")
def test_no_forgery_at_the_address_for_opens_changes_a_verdict(
    tmp_path: Path, migrated_file: Path, events: list[tuple[int, str, int, int]], strange: list[int]
) -> None:
    forged = [(which, "open", 1, 18) for which in strange if which not in (1, 2)]  # those have no campaign ID
    plain = _figures_after(tmp_path, migrated_file, [events])
    other = _figures_after(tmp_path, migrated_file, [events + forged])
    assert other.verdicts == plain.verdicts
    assert other.unknowable_because == plain.unknowable_because
    assert other.anomalies["forged"] == plain.anomalies["forged"] + len(forged)


def _figures_after(
    folder: Path, migrated: Path, parts: list[list[tuple[int, str, int, int]]], run: int = 1000
) -> LaunchStats:
    for file in folder.glob("property.db*"):
        file.unlink()
    ledger = Ledger(f"sqlite:///{shutil.copy(migrated, folder / 'property.db')}")
    try:
        outcomes = [Accepted(200, 17), InDoubt("no answer"), Refused(400, "no"), Accepted(200, 17)]
        keys = launch(ledger, segment_size=3, outcomes=outcomes)
        for part in parts:
            store(
                ledger, *[event(keys[which], kind, device, campaign=to) for which, kind, device, to in part]
            )
            aggregate(ledger, run=run)
        return reconcile_launch(ledger, KEY, now=NOW)
    finally:
        ledger.close()


def test_a_launch_is_changed_once_the_service_has_sent(ledger: Ledger) -> None:
    launch(ledger, platforms={}, campaign=at_six(EMAIL, "UTC"))
    six, moment = datetime(2026, 3, 2, 18, tzinfo=UTC), timedelta(seconds=1)
    for _ in range(2):
        reconcile_launch(ledger, KEY, now=six - 2 * moment)
    assert ledger.verdicts.stale(six - moment) == []
    assert ledger.verdicts.stale(six) == [KEY]
    reconcile_launch(ledger, KEY, now=six)
    assert ledger.verdicts.stale(six) == []


def test_the_first_report_of_a_launch_is_made_again(ledger: Ledger) -> None:
    launch(ledger)
    reconcile_launch(ledger, KEY, now=NOW)
    assert ledger.verdicts.stale(NOW) == [KEY]
    reconcile_launch(ledger, KEY, now=NOW)
    assert ledger.verdicts.stale(NOW) == []


class Meanwhile:
    """A request in flight or in doubt, and its change while the first report is being made."""

    def __init__(self, ledger: Ledger, how: str) -> None:
        self._ledger, self._how = ledger, how
        taken = claimed(ledger)
        self._claim = taken
        if how != "in flight":
            assert expire(ledger, KEY, NOW + 2 * LEASE) == 1

    def __call__(self) -> None:
        if self._how == "a person decides":
            key = self._claim.dispatch_key
            assert self._ledger.doubts.resolve(key, Resolution.WRITE_OFF, "ann", "seen", NOW)
        elif self._how == "the launch is stopped":
            assert self._ledger.audit_log.decide(Decision(KEY, "stopped", "ann", None, NOW))
        else:
            self._ledger.dispatches.record(self._claim, Accepted(200, 17), NOW)


@pytest.mark.parametrize(
    "reader", ["dispatch_queries.frozen_segments", "aggregates.timeline", "verdicts.store"]
)
@pytest.mark.parametrize("how", ["in flight", "a late answer", "a person decides", "the launch is stopped"])
def test_what_happens_while_the_first_report_is_made_is_shown_by_the_second(
    ledger: Ledger, how: str, reader: str
) -> None:
    launch(ledger, segment_size=5, platforms={}, campaign=EMAIL, outcomes=[Accepted(200, 17)])
    happen = Meanwhile(ledger, how)
    part = getattr(ledger, reader.split(".", maxsplit=1)[0])
    read = getattr(part, reader.split(".")[1])

    def read_late(*given: Any, **more: Any) -> Any:
        delattr(part, read.__name__)
        if reader != "dispatch_queries.frozen_segments":
            happen()
            return read(*given, **more)
        found = list(read(*given, **more))
        happen()
        return found

    setattr(part, read.__name__, read_late)
    first = reconcile_launch(ledger, KEY, now=NOW)
    assert first.verdicts["in_doubt"] == 5
    assert first.dispatches == {"accepted": 1, "in_flight" if how == "in flight" else "in_doubt": 1}
    assert ledger.verdicts.stale(NOW) == [KEY]
    second = reconcile_launch(ledger, KEY, now=NOW)
    assert second.state == ("stopped" if how == "the launch is stopped" else "released")
    assert second.dispatches == ledger.dispatch_queries.states(KEY)
    assert ledger.verdicts.stale(NOW) == []


def test_of_two_processes_that_make_the_first_report_none_hides_what_happened(ledger: Ledger) -> None:
    launch(ledger, segment_size=5, platforms={}, campaign=EMAIL, outcomes=[Accepted(200, 17)])
    happen = Meanwhile(ledger, "in flight")
    timeline = ledger.aggregates.timeline

    def overtaken(launch_key: str) -> list[tuple[datetime, int, int]]:
        ledger.aggregates.timeline = timeline  # type: ignore[method-assign]
        happen()
        reconcile_launch(ledger, KEY, now=NOW)  # the other process began later
        return timeline(launch_key)

    ledger.aggregates.timeline = overtaken  # type: ignore[method-assign]
    assert reconcile_launch(ledger, KEY, now=NOW).dispatches == {"accepted": 1, "in_flight": 1}
    assert ledger.verdicts.stale(NOW) == [KEY]
    assert reconcile_launch(ledger, KEY, now=NOW).dispatches == {"accepted": 2}
    assert ledger.verdicts.stale(NOW) == []


_HAPPENINGS = st.lists(
    st.one_of(
        st.tuples(
            st.just("came"), st.integers(0, 2), st.integers(1, 11)
        ),  # dispatch, device: 11 is a stranger
        st.tuples(st.just("decided"), st.sampled_from(["held", "released", "stopped"]), st.just(0)),
        st.tuples(
            st.just("requested"),
            st.sampled_from([Accepted(200, 17), Refused(400, "no"), NotProcessed("later"), InDoubt("reset")]),
            st.just(0),
        ),
        st.tuples(st.just("crashed"), st.just(0), st.just(0)),
        st.tuples(st.just("resolved"), st.sampled_from(list(Resolution)), st.integers(0, 2)),
        st.tuples(st.just("reconciled"), st.just(0), st.just(0)),
        st.tuples(st.just("waited"), st.just(0), st.just(0)),
    ),
    max_size=15,
)


@given(happenings=_HAPPENINGS)
@settings(
    max_examples=examples(40), suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None
)
def test_launches_are_changed_where_their_report_would_differ_and_where_something_happened(
    tmp_path: Path, migrated_file: Path, happenings: list[tuple[str, Any, int]]
) -> None:
    for old in tmp_path.glob("*.db*"):
        old.unlink()
    ledger = Ledger(f"sqlite:///{shutil.copy(migrated_file, tmp_path / 'property.db')}")
    now = NOW
    try:
        outcomes = [Accepted(200, 17), InDoubt("no answer")]
        keys = launch(ledger, platforms={}, campaign=at_six(EMAIL, "UTC"), segment_size=4, outcomes=outcomes)
        reconcile_launch(ledger, KEY, now=now)
        reconcile_launch(ledger, KEY, now=now)  # the first report is always made again
        happened = False
        for what, which, device in happenings:
            if what == "reconciled":
                reconcile_launch(ledger, KEY, now=now)
                happened = False
            elif what == "waited":
                happened |= now < datetime(2026, 3, 2, 18, tzinfo=UTC) <= now + timedelta(hours=5)
                now += timedelta(hours=5)
            else:
                happened |= _happens(ledger, keys, what, which, device, now)
            is_changed = ledger.verdicts.stale(now) == [KEY]
            assert is_changed == happened
            if not is_changed:
                assert _would_be(ledger, tmp_path, now) == replace(ledger.verdicts.figures(KEY), as_of=NOW)
    finally:
        ledger.close()


def _happens(ledger: Ledger, keys: Sequence[str], what: str, which: Any, device: int, now: datetime) -> bool:
    """Do one step to the launch, and return whether it was possible."""
    if what == "came":
        store(ledger, event(keys[which], "open", device, at=now))
        return aggregate(ledger, now=now) == 1
    if what == "decided":
        return ledger.audit_log.decide(Decision(KEY, which, "ann", None, now))
    if what == "resolved":
        return ledger.doubts.resolve(keys[device], which, "ann", "why not", now)
    taken = ledger.dispatches.claim(KEY, worker="w", now=now, lease=LEASE)
    if what == "crashed":
        return expire(ledger, KEY, now + 2 * LEASE) > 0
    if taken is not None:
        ledger.dispatches.record(taken, which, now)
    return taken is not None


def _would_be(ledger: Ledger, folder: Path, now: datetime) -> LaunchStats:
    """Return the report that would be made now, without changing the ledger."""
    with sqlite3.connect(folder / "property.db") as source, sqlite3.connect(folder / "copy.db") as target:
        source.backup(target)
    source.close()
    target.close()
    copy = Ledger(f"sqlite:///{folder / 'copy.db'}")
    try:
        reconcile_launch(copy, KEY, now=now)
        return replace(copy.verdicts.figures(KEY), as_of=NOW)
    finally:
        copy.close()


def test_tables_in_a_warehouse_are_old_if_the_report_is_newer(ledger: Ledger) -> None:
    make_launch(ledger, [1, 2])
    send(ledger, KEY, Accepted(200, 17))
    hour = timedelta(hours=1)
    reconcile_launch(ledger, KEY, now=NOW)
    assert ledger.verdicts.with_old_tables(NOW + hour) == []  # they were never written
    ledger.verdicts.note_tables(KEY, NOW)
    assert ledger.verdicts.with_old_tables(NOW + hour) == []
    reconcile_launch(ledger, KEY, now=NOW + hour)
    assert ledger.verdicts.with_old_tables(NOW) == []
    assert ledger.verdicts.with_old_tables(NOW + hour) == [KEY]
