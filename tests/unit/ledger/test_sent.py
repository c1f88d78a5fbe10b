"""The recipients of launches, and the status of one identifier."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from datetime import datetime
from functools import partial
from threading import Event
from time import monotonic, sleep
from typing import Any

import pytest
import sqlalchemy as sa

from sendoff.audience.build import Audience
from sendoff.audience.identifiers import Identifiers, empty, integers, strings
from sendoff.audience.segmentation import Segment
from sendoff.campaign import Variation
from sendoff.errors import AudienceError, ConflictError, NotFoundError
from sendoff.ledger import Decision, Ledger
from sendoff.ledger.launches.launch_record import LaunchRecord
from sendoff.ledger.launches.recipient import RecipientStatus
from sendoff.ledger.storage.schema import verdicts
from sendoff.postbacks.reconcile import reconcile_launch
from sendoff.report import as_text, describe_launch
from sendoff.states import (
    Accepted,
    Arm,
    DispatchState,
    InDoubt,
    LaunchState,
    Refused,
    Resolution,
    Verdict,
)

from ...factories import KEY, LEASE, NOW, make_launch, post_back, send, store
from ...leases import expire


def freeze(
    ledger: Ledger,
    campaign: str = "spring",
    *,
    segments: list[Segment] | None = None,
    left_out: dict[str, Identifiers] | None = None,
    connection: str = "service",
    state: str = "released",
    sends_at: datetime | None = NOW,
    seen: int | None = None,
    resend: int = 0,
    decisions: Sequence[Decision] = (),
) -> LaunchRecord:
    parts = segments or [Segment(integers([1, 2])), Segment(integers([3, 4]))]
    people = parts[0].identifiers or empty("integer")
    return make_launch(
        ledger,
        segments=parts,
        audience=None
        if parts[0].identifiers is None
        else Audience("device_id" if people.kind == "integer" else "user_id", people, 9, {}, {}),
        name=campaign,
        connection=connection,
        resend=resend,
        sends_at=sends_at,
        state=state,
        suppressed=left_out,
        known_launches=seen,
        decisions=decisions,
    )


def accepted() -> Accepted:
    return Accepted(status=200, campaign_id=1)


def refused() -> Refused:
    return Refused(400, "no")


# Recipients of a launch


def test_planned_requests_count_because_they_may_still_be_sent(ledger: Ledger) -> None:
    for state in ("released", "held"):
        launch = freeze(ledger, state, state=state)
        assert ledger.launches.sent(launch.launch_key) == integers([1, 2, 3, 4])


def test_who_was_refused_does_not_count_and_who_is_in_doubt_does(ledger: Ledger) -> None:
    launch = freeze(ledger, segments=[Segment(integers([n])) for n in (1, 2, 3, 4)])
    send(ledger, launch.launch_key, accepted(), refused(), InDoubt("reset"))
    assert ledger.dispatches.claim(launch.launch_key, worker="w", now=NOW, lease=LEASE)  # and one in flight
    assert ledger.launches.sent(launch.launch_key) == integers([1, 3, 4])


def test_who_may_have_got_an_earlier_request_counts_whatever_became_of_the_next_one(ledger: Ledger) -> None:
    launch = freeze(ledger, segments=[Segment(integers([n])) for n in (1, 2, 3)])
    for again in send(ledger, launch.launch_key, InDoubt("reset"), InDoubt("reset")):
        assert ledger.doubts.resolve(again, Resolution.RESEND, "ann", "again", NOW)
    send(ledger, launch.launch_key, refused())
    assert ledger.audit_log.decide(Decision(launch.launch_key, "stopped", "ann", None, NOW))
    assert ledger.launches.sent(launch.launch_key) == integers([1, 2])


@pytest.mark.parametrize("kind", ["stopped", "rejected"])
def test_of_a_launch_that_ended_early_only_what_was_sent_counts(ledger: Ledger, kind: str) -> None:
    launch = freeze(ledger)
    send(ledger, launch.launch_key, accepted())
    if kind == "rejected":
        ledger.audit_log.decide(Decision(launch.launch_key, "held", "ann", None, NOW))
    assert ledger.audit_log.decide(Decision(launch.launch_key, kind, "ann", None, NOW))
    assert ledger.launches.sent(launch.launch_key) == integers([1, 2])
    assert [each.campaign for each in ledger.launches.sending("service", NOW - LEASE)] == ["spring"]


def test_a_launch_of_which_nothing_is_sent_is_not_among_those_that_send(ledger: Ledger) -> None:
    rejected = freeze(ledger, "rejected", state="held")
    ledger.audit_log.decide(Decision(rejected.launch_key, "rejected", "ann", None, NOW))
    send(ledger, freeze(ledger, "refused").launch_key, refused(), refused())
    assert ledger.launches.sending("service", NOW - LEASE) == []
    assert ledger.launches.sent(rejected.launch_key) == empty("integer")


def test_launches_that_send_after_a_moment_are_given_earliest_first(ledger: Ledger) -> None:
    freeze(ledger, "late", sends_at=NOW + LEASE)
    freeze(ledger, "early", sends_at=NOW - 2 * LEASE)
    freeze(ledger, "edge", sends_at=NOW - LEASE)  # exactly at the moment, so not after it
    freeze(ledger, "now")
    freeze(ledger, "elsewhere", connection="other")
    found = [each.campaign for each in ledger.launches.sending("service", NOW - LEASE)]
    assert found == ["now", "late"]


def test_what_is_sent_again_and_again_is_among_those_that_send(ledger: Ledger) -> None:
    freeze(ledger, "weekly", sends_at=None)
    assert [each.sends_at for each in ledger.launches.sending("service", NOW)] == [None]


def test_whom_the_service_chooses_are_nobody_that_is_known(ledger: Ledger) -> None:
    launch = freeze(ledger, segments=[Segment(None)])
    assert ledger.launches.sent(launch.launch_key) == empty("integer")
    assert [each.is_chosen_by_service for each in ledger.launches.sending("service", NOW - LEASE)] == [True]


@pytest.mark.parametrize("ledger", ["sqlite"], indirect=True)
def test_twice_as_many_segments_are_read_in_twice_as_many_steps(ledger: Ledger) -> None:
    """The database counts its steps: no segment is compared with every dispatch."""
    keys = [
        freeze(ledger, f"of {size}", segments=[Segment(integers([n])) for n in range(1, size + 1)]).launch_key
        for size in (300, 600)
    ]
    for read in (
        ledger.launches.sent,
        ledger.launches.audience,
        partial(ledger.launches.recipient, identifier=2**62),
    ):
        few, many = (steps(ledger, partial(read, key)) for key in keys)
        assert 0 < many < 3 * few


def steps(ledger: Ledger, call: Callable[[], object]) -> int:
    """Count the steps of SQLite's virtual machine that a call takes, in tens."""
    taken = 0

    def count() -> int:
        nonlocal taken
        taken += 1
        return 0

    with ledger._database._engine.connect() as db:
        file = db.connection.driver_connection
    file.set_progress_handler(count, 10)  # the pool has only this connection, so the call uses it
    call()
    file.set_progress_handler(None, 0)
    return taken


# Launches made in the meantime


def test_nothing_is_stored_where_another_launch_was_made_in_the_meantime(ledger: Ledger) -> None:
    assert ledger.launches.count("service") == 0
    freeze(ledger, "first", seen=0)
    with pytest.raises(ConflictError):
        freeze(ledger, "second", seen=0)
    assert [each.campaign for each in ledger.launches.search()] == ["first"]
    freeze(ledger, "second", seen=1)
    freeze(ledger, "third")  # its suppression does not depend on other launches
    assert ledger.launches.count("service") == 3


class Slow(list[Segment]):
    """Segments whose storing blocks until the test sets ``go_on``."""

    def __init__(self, *segments: Segment) -> None:
        super().__init__(segments)
        self.is_stored, self.go_on = Event(), Event()

    def __iter__(self) -> Iterator[Segment]:
        self.is_stored.set()
        assert self.go_on.wait(600)
        return super().__iter__()


def test_a_launch_that_is_being_stored_is_waited_for_by_others_of_its_connection_alone(
    ledger: Ledger,
) -> None:
    """Only PostgreSQL runs writing transactions in parallel; SQLite admits one at a time."""
    engine = ledger._database._engine
    if engine.dialect.name == "sqlite":
        return
    running = freeze(ledger, "running").launch_key
    slow = Slow(Segment(integers([1, 2])))
    with ThreadPoolExecutor(4) as threads:
        first = threads.submit(freeze, ledger, "first", segments=slow, seen=1)
        assert slow.is_stored.wait(120)
        second = threads.submit(freeze, ledger, "second", seen=1)
        try:
            deadline = monotonic() + 120
            while not _somebody_waits(engine):
                assert monotonic() < deadline, "it did not wait"
                sleep(0.01)
            stop = partial(ledger.audit_log.decide, Decision(running, "stopped", "ann", "over", NOW))
            assert threads.submit(stop).result(timeout=120)
            elsewhere = threads.submit(freeze, ledger, "elsewhere", connection="other", seen=0)
            assert elsewhere.result(timeout=120).campaign == "elsewhere"
        finally:
            slow.go_on.set()
        assert first.result(timeout=120).campaign == "first"
        with pytest.raises(ConflictError):
            second.result(timeout=120)


def _somebody_waits(engine: sa.Engine) -> bool:
    waiting = (
        "SELECT count(*) FROM pg_locks JOIN pg_database ON pg_database.oid = database "
        "WHERE datname = current_database() AND NOT granted"
    )
    with engine.connect() as db:
        return bool(db.scalar(sa.text(waiting)))


def test_launches_of_another_connection_reach_nobody_of_this_one(ledger: Ledger) -> None:
    freeze(ledger, "first", connection="other")
    freeze(ledger, "second", seen=0)
    assert ledger.launches.count("service") == 1


def test_a_launch_and_the_decision_that_made_it_are_stored_together(ledger: Ledger) -> None:
    launch = freeze(ledger)
    again = Decision(launch.launch_key, "resend", "ann", "the link was broken", NOW)
    freeze(ledger, resend=1, decisions=[again])
    assert ledger.audit_log.of_launch(launch.launch_key) == [again]
    with pytest.raises(ConflictError):
        freeze(ledger, resend=2, decisions=[again], seen=0)
    assert len(ledger.audit_log.of_launch(launch.launch_key)) == 1


# The status of one identifier


def test_why_says_by_which_reason_somebody_was_left_out(ledger: Ledger) -> None:
    left_out = {"cap": integers([7]), "holdout": integers([8])}
    key = freeze(ledger, left_out=left_out).launch_key
    assert (
        ledger.launches.recipient(key, 7).sentence
        == "left out: they already get as many messages as the cap allows"
    )
    assert ledger.launches.recipient(key, 8).sentence == "left out: control group"
    assert ledger.launches.recipient(key, "7").reason == "cap"
    assert (ledger.launches.recipient(key, 9).is_named, ledger.launches.recipient(key, 8).is_named) == (
        False,
        True,
    )
    assert "query did not return it" in ledger.launches.recipient(key, 9).sentence


def test_why_says_the_segment_and_what_became_of_its_request(ledger: Ledger) -> None:
    parts = [Segment(integers([n])) for n in (1, 2, 3, 4)]
    parts.append(Segment(integers([5]), Variation("fr", "red", "Europe/Paris"), wave=2))
    launch = freeze(ledger, segments=parts)
    send(ledger, launch.launch_key, accepted(), refused(), InDoubt("reset"))
    assert ledger.dispatches.claim(launch.launch_key, worker="w", now=NOW, lease=LEASE)
    found = [ledger.launches.recipient(launch.launch_key, n) for n in (1, 2, 3, 4, 5)]
    variation = "variant red, language fr, zone Europe/Paris"
    assert [(each.sentence, each.details, each.is_sent) for each in found] == [
        ("sent, and not reported on yet", "segment 1, wave 1, request accepted", True),
        ("not sent: the service refused the request", "segment 2, wave 1, request refused", False),
        (
            "may have been sent: the service gave no clear answer",
            "segment 3, wave 1, request in doubt",
            False,
        ),
        (
            "may have been sent: the request is in progress",
            "segment 4, wave 1, request in flight",
            False,
        ),
        ("not sent yet: its turn comes later", f"segment 5, {variation}, wave 2, request planned", False),
    ]
    ledger.audit_log.decide(Decision(launch.launch_key, "stopped", "ann", None, NOW))
    assert ledger.launches.recipient(launch.launch_key, 5).sentence == "not sent: the launch was stopped"


def test_why_knows_of_an_earlier_request_in_doubt(ledger: Ledger) -> None:
    launch = freeze(ledger, segments=[Segment(integers([n])) for n in (1, 2)])
    key, why = launch.launch_key, ("ann", "again", NOW)
    for again in send(ledger, key, InDoubt("reset"), InDoubt("reset")):
        assert ledger.doubts.resolve(again, Resolution.RESEND, *why)
    send(ledger, key, refused())
    for who, state in ((1, "refused"), (2, "planned")):
        found = ledger.launches.recipient(key, who)
        assert (
            found.sentence
            == "may have been sent: it is not clear whether the service processed an earlier request"
        )
        assert found.details == f"segment {who}, wave 1, request {state}"
        assert not found.is_waiting


def test_why_knows_of_a_post_back_that_contradicts_a_refusal(ledger: Ledger) -> None:
    launch = freeze(ledger, segments=[Segment(integers([n])) for n in (1, 2)])
    contradicted, _ = send(ledger, launch.launch_key, refused(), refused())
    store(ledger, post_back(contradicted, "delivery", 9))
    figures = reconcile_launch(ledger, launch.launch_key)
    assert [ledger.launches.recipient(launch.launch_key, who).sentence for who in (1, 2)] == [
        "may have been sent: the service refused the request, but a post-back came from it",
        "not sent: the service refused the request",
    ]
    said = " ".join(as_text(describe_launch(figures)).split())
    assert "1 in doubt: the service refused their request, although a post-back came" in said


def test_why_knows_that_a_request_that_was_written_off_was_not_processed(ledger: Ledger) -> None:
    launch = freeze(ledger)
    claim = ledger.dispatches.claim(launch.launch_key, worker="w", now=NOW, lease=LEASE)
    assert claim
    assert expire(ledger, launch.launch_key, NOW)
    assert ledger.doubts.resolve(claim.dispatch_key, Resolution.WRITE_OFF, "ann", "enough", NOW)
    assert ledger.launches.recipient(launch.launch_key, 1).sentence.startswith("may have been sent")
    ledger.dispatches.record(claim, refused(), NOW)
    sentence = ledger.launches.recipient(launch.launch_key, 1).sentence
    assert sentence == "not sent: the service did not process the request, as was found out later"


PLANNED = RecipientStatus(KEY, LaunchState.RELEASED, segment=1, wave=1, dispatch=DispatchState.PLANNED)


@pytest.mark.parametrize(
    ("fields", "is_waiting"),
    [
        ({}, True),
        ({"dispatch": None}, True),
        ({"verdict": Verdict.NOT_SENT}, True),  # a report may be older than its turn
        ({"verdict": Verdict.DELIVERED}, False),
        ({"verdict": Verdict.UNKNOWABLE}, False),
        ({"is_doubted": True}, False),
        ({"dispatch": DispatchState.ACCEPTED}, False),
        ({"dispatch": DispatchState.SUPPRESSED}, False),
        ({"segment": None}, False),
        *(({"launch_state": state}, False) for state in LaunchState if state != LaunchState.RELEASED),
    ],
)
def test_a_recipient_waits_while_the_launch_may_send_and_its_request_was_not_begun(
    fields: dict[str, Any], is_waiting: bool
) -> None:
    assert replace(PLANNED, **fields).is_waiting is is_waiting


@pytest.mark.parametrize(
    ("dispatch", "verdict", "is_sent", "is_received"),
    [
        ("planned", None, False, False),
        ("accepted", None, True, False),
        ("accepted", "missing", True, False),
        ("accepted", "unknowable", True, False),
        ("refused", "delivered", True, True),
        ("in_doubt", "engaged", True, True),
        ("in_doubt", "unknowable", False, False),
        ("planned", "not_sent", False, False),
    ],
)
def test_a_request_was_sent_if_the_service_accepted_it_or_a_report_proves_it(
    dispatch: str, verdict: str | None, is_sent: bool, is_received: bool
) -> None:
    found = replace(
        PLANNED, dispatch=DispatchState(dispatch), verdict=None if verdict is None else Verdict(verdict)
    )
    assert (found.is_sent, found.is_received) == (is_sent, is_received)


CLEARED = "not sent: the service did not process the request, as was found out later"
DOUBTED = "may have been sent: it is not clear whether the service processed an earlier request"
TURN = "not sent yet: its turn comes later"
WINNER = "not sent yet: it gets the variant that wins in the test share, which is not decided yet"
UNSEEN = "the campaign's query did not return it in a usable row"


@pytest.mark.parametrize(
    ("fields", "sentence"),
    [
        ({}, TURN),
        ({"dispatch": None}, TURN),
        ({"awaits_winner": True}, WINNER),
        ({"awaits_winner": True, "dispatch": "accepted"}, "sent, and not reported on yet"),
        ({"awaits_winner": True, "launch_state": "held"}, "not sent yet: the launch waits for a person"),
        ({"is_doubted": True}, DOUBTED),
        ({"is_doubted": True, "dispatch": "refused"}, DOUBTED),
        (
            {"is_doubted": True, "is_contradicted": True, "dispatch": "refused"},
            "may have been sent: the service refused the request, but a post-back came from it",
        ),
        ({"dispatch": "refused"}, "not sent: the service refused the request"),
        ({"is_doubted": True, "dispatch": "in_flight"}, "may have been sent: the request is in progress"),
        ({"dispatch": "written_off"}, CLEARED),
        (
            {"is_doubted": True, "dispatch": "written_off"},
            "may have been sent: the service gave no clear answer, and it was not sent again",
        ),
        (
            {"dispatch": "suppressed", "withheld_because": "engaged"},
            "not sent: opened or clicked an earlier message before the request was due",
        ),
        (
            {"withheld_because": "delivered"},  # planned again, and later claims leave it out too
            "not sent: got an earlier message before the request was due",
        ),
        (
            {"dispatch": "suppressed"},
            "not sent: on the suppression list when the request was due",
        ),
        (
            {"dispatch": "accepted", "withheld_because": "engaged"},
            "sent, and not reported on yet",
        ),
        ({"verdict": "not_sent"}, TURN),
        ({"verdict": "missing"}, "sent, but no delivery was reported"),
        ({"verdict": "engaged", "is_suspect": True}, "got it: opened or clicked, probably by a machine"),
        ({"segment": None}, f"not selected: {UNSEEN}"),
        ({"segment": None, "may_be_erased": True}, f"not known: {UNSEEN}, or it was erased"),
        ({"segment": None, "is_known": False}, "not known: the service chooses the people of this launch"),
        ({"segment": None, "reason": "holdout"}, "left out: control group"),
        ({"segment": None, "reason": "no_minors"}, "left out by rule: no_minors"),
        ({"deleted": "its recipients were deleted"}, "not known: its recipients were deleted"),
    ],
)
def test_why_has_a_sentence_for_each_status(fields: dict[str, Any], sentence: str) -> None:
    kinds: dict[str, Any] = {
        "dispatch": DispatchState,
        "verdict": Verdict,
        "withheld_because": Verdict,
        "launch_state": LaunchState,
    }
    typed = {
        name: kinds[name](value) if name in kinds and value is not None else value
        for name, value in fields.items()
    }
    assert replace(PLANNED, **typed).sentence == sentence


@pytest.mark.parametrize(
    ("arm", "hour", "shown"),
    [
        (None, None, "segment 1, wave 1, request planned"),
        (None, 7, "segment 1, wave 1, request planned"),
        (Arm.OWN_HOUR, 7, "segment 1, own hour 07:00, wave 1, request planned"),
        (Arm.EXPLORE, 20, "segment 1, explored hour 20:00, wave 1, request planned"),
        (Arm.CONTROL, None, "segment 1, control: at once, wave 1, request planned"),
    ],
)
def test_the_details_name_the_hour_of_an_experiment(arm: Arm | None, hour: int | None, shown: str) -> None:
    found = replace(PLANNED, arm=arm, hour=hour)
    assert (found.details, str(found)) == (shown, f"{TURN} ({shown})")
    assert str(replace(found, segment=None)) == f"not selected: {UNSEEN}"


def test_why_says_the_verdict_once_there_is_one(ledger: Ledger) -> None:
    launch = freeze(ledger)
    send(ledger, launch.launch_key, accepted())
    row = {"launch_key": launch.launch_key, "size": 1, "identifiers": integers([2]).to_bytes()}
    with ledger._database.write() as db:
        db.execute(sa.insert(verdicts), {**row, "verdict": "delivered"})
    assert ledger.launches.recipient(launch.launch_key, 2).verdict == "delivered"
    assert ledger.launches.recipient(launch.launch_key, 2).sentence == "got it: delivered"


def test_why_knows_texts_and_refuses_what_can_be_nobody(ledger: Ledger) -> None:
    by_user = freeze(ledger, "users", segments=[Segment(strings(["007"]))])
    assert ledger.launches.recipient(by_user.launch_key, "007").segment == 1
    assert ledger.launches.recipient(by_user.launch_key, "7").segment is None
    by_device = freeze(ledger, "devices")
    for nobody in ("ann4711", "1_0", "²", "-1", str(2**63)):
        with pytest.raises(
            AudienceError, match="identifies recipients by device_id, as whole numbers"
        ) as error:
            ledger.launches.recipient(by_device.launch_key, nobody)
        assert nobody not in str(error.value)
    with pytest.raises(NotFoundError):
        ledger.launches.recipient("0" * 32, 1)


def test_why_says_that_nobody_knows_whom_the_service_chooses(ledger: Ledger) -> None:
    launch = freeze(ledger, segments=[Segment(None)])
    assert ledger.launches.recipient(launch.launch_key, 1).sentence.startswith("not known: ")
    assert ledger.launches.recipient(launch.launch_key, 1).to_json()["is_known"] is False


def test_why_says_what_a_post_back_says_of_those_whom_the_service_chooses(ledger: Ledger) -> None:
    key = freeze(ledger, segments=[Segment(None)]).launch_key
    (dispatch,) = send(ledger, key, Accepted(200, 17))
    store(ledger, post_back(dispatch, "open", 1), post_back(dispatch, "delivery", 2))
    reconcile_launch(ledger, key, now=NOW)
    opened, delivered, silent = (ledger.launches.recipient(key, who) for who in (1, 2, 3))
    assert str(opened) == "got it: opened or clicked"
    assert str(delivered) == "got it: delivered"
    assert str(silent) == "not known: the service chooses the people of this launch"
    for found, is_known in ((opened, True), (delivered, True), (silent, False)):
        assert (found.is_known, found.is_named, found.is_received) == (is_known,) * 3
