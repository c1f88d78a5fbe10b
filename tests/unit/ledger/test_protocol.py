"""The protocol of a dispatch as a state machine: several workers act in any order and may die at any step.

Here the service is only a set of accepted requests, and the ledger is compared with it. The service can accept a
request or not, and its reply can arrive or not. Nothing else that a service does matters to the protocol.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from itertools import count
from typing import Any

import pytest
import sqlalchemy as sa
from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from sendoff.audience.build import Audience
from sendoff.audience.identifiers import integers
from sendoff.audience.segmentation import Segment
from sendoff.campaign import launch_key
from sendoff.dispatch.worker import LEASE
from sendoff.ledger import Claim, Ledger
from sendoff.ledger.requests import doubts
from sendoff.ledger.requests.claims import ClaimRequest
from sendoff.ledger.requests.dispatches import Dispatches
from sendoff.ledger.requests.doubts import Doubts
from sendoff.ledger.storage.ledger_time import LedgerTime
from sendoff.ledger.storage.schema import attempts, dispatches, metadata, outcomes
from sendoff.postbacks.aggregation import aggregate
from sendoff.service.postbacks import PostBack
from sendoff.states import Accepted, InDoubt, NotProcessed, Outcome, Refused, Resolution

from ...examples import examples
from ...factories import PERIOD, PUSH, make_launch
from ...leases import end_leases

START = datetime(2026, 3, 2, 9, tzinfo=UTC)
WORKERS_AT_MOST = 3
WORKERS = st.integers(0, WORKERS_AT_MOST - 1)
WAYS: tuple[Resolution, ...] = tuple(Resolution)
DISPATCHES = 3
PEOPLE = 2  # per dispatch

# How a request ends: whether the service accepted it, and the outcome that the worker sees.
TAKEN: dict[str, Outcome] = {
    "answered": Accepted(200, None),
    "answer lost": InDoubt("no answer"),
    "500 after": InDoubt("HTTP 500"),
}
NOT_TAKEN: dict[str, Outcome] = {
    "refused": Refused(400, "no"),
    "not processed": NotProcessed("patience", is_rate_limited=True),
    "request lost": InDoubt("reset"),
}
ENDS = {**TAKEN, **NOT_TAKEN}

MOVES = {
    ("planned", "in_flight"),
    ("in_flight", "accepted"),
    ("in_flight", "refused"),
    ("in_flight", "planned"),
    ("in_flight", "in_doubt"),
    ("in_doubt", "accepted"),
    ("in_doubt", "refused"),
    ("in_doubt", "planned"),
    ("in_doubt", "written_off"),
    ("written_off", "accepted"),
}
LATE = {  # the reply, or evidence, came after a person decided to resend it
    ("planned", "accepted"),
    ("refused", "accepted"),
}


@dataclass
class Hand:
    """A worker's claim, and the outcome of its request after the request was sent.

    ``unseen``: the next claim from ``record_and_claim``, if the reply to that commit was lost; the worker repeats it.
    """

    claim: Claim
    outcome: Outcome | None = None
    is_recorded: bool = False
    has_to_ask_again: bool = False
    unseen: Claim | None = None

    @property
    def has_answer(self) -> bool:
        return isinstance(self.outcome, Accepted)

    @property
    def may_record(self) -> bool:
        return self.outcome is not None and not self.has_to_ask_again


class Protocol(RuleBasedStateMachine):
    """Workers, time, post-backs, and decisions for one launch of three dispatches."""

    ledger: Ledger  # set by ``machine_on``

    def __init__(self) -> None:
        super().__init__()
        self.key = launch_key("service", "spring", PERIOD)
        self.now = START
        self.hands: dict[int, Hand] = {}
        self.lives: Counter[int] = Counter()  # per worker; after a crash it comes back under another name
        self.accepted: list[tuple[str, int]] = []  # accepted by the service: dispatch key and attempt
        self.made: dict[tuple[str, int], str] = {}  # each request that was sent, and how it ended
        self.recorded: set[tuple[str, int]] = set()
        self.resent: set[str] = set()  # by a person
        self.written_off: set[str] = set()
        self.is_aggregation_dead = (
            False  # the last aggregation died after storing evidence, before resolving doubts
        )
        self.receiver = self.ledger.post_backs.register_receiver("test", self.now)
        self.stored = 0
        self.freeze(1)
        self.frozen = self.people()
        self.before = self.states()
        self.appended = (0, 0)

    def teardown(self) -> None:
        """Empty the ledger, so that no example depends on the ones before it."""
        with self.ledger._database.write() as db:
            for table in reversed(metadata.sorted_tables):
                db.execute(sa.delete(table))

    # Steps

    @initialize(resent=st.integers(0, DISPATCHES - 1))
    def begin(self, resent: int) -> None:
        """Begin with some dispatches that were accepted without a reply and that a person resends."""
        for worker in range(resent):
            self.claim(worker, ahead=0)
            self.make(self.hands[worker], "answer lost")
        for worker in range(resent):
            claim = self.hands.pop(worker).claim
            self.ledger.dispatches.record(claim, TAKEN["answer lost"], self.now)
            self.recorded.add((claim.dispatch_key, claim.attempt))
            assert self.ledger.doubts.resolve(claim.dispatch_key, Resolution.RESEND, "ann", "again", self.now)
            self.resent.add(claim.dispatch_key)
        self.before = self.states()

    @rule(first=st.integers(2, 50))
    def freeze_again(self, first: int) -> None:
        """A retry freezes the same key again, with the query's newer result."""
        self.freeze(first)
        assert self.people() == self.frozen

    @rule(worker=WORKERS, ahead=st.integers(-10, 10))
    def claim(self, worker: int, ahead: int) -> None:
        """A worker claims the next dispatch; its clock may be wrong."""
        if worker not in self.hands:
            now = self.now + timedelta(minutes=ahead)
            name = self.name_of(worker)
            evident = self.evident()
            claim = self.ledger.dispatches.claim(self.key, worker=name, now=now, lease=LEASE)
            if claim is not None:
                assert claim.dispatch_key not in evident, "a dispatch with evidence in the ledger was claimed"
                self.hands[worker] = Hand(claim)

    @precondition(lambda self: any(hand.outcome is None for hand in self.hands.values()))
    @rule(data=st.data(), end=st.sampled_from(sorted(ENDS)))
    def request(self, data: st.DataObject, end: str) -> None:
        """A worker sends its request. The service may accept it, and the worker may learn of that."""
        self.make(self.some(data, lambda hand: hand.outcome is None), end)

    def make(self, hand: Hand, end: str) -> None:
        request = hand.claim.dispatch_key, hand.claim.attempt
        assert request not in self.made, "one attempt, one request"
        self.made[request] = end
        if end in TAKEN:
            self.accepted.append(request)
        hand.outcome = ENDS[end]

    @rule(worker=WORKERS)
    def send(self, worker: int) -> None:
        """A worker claims the next dispatch, and the service accepts its request and replies."""
        self.claim(worker, ahead=0)
        if (hand := self.hands.get(worker)) and hand.outcome is None:
            self.make(hand, "answered")

    @precondition(lambda self: any(hand.has_answer for hand in self.hands.values()))
    @rule(data=st.data(), ahead=st.integers(-10, 10), is_answered=st.booleans(), tries=st.integers(1, 3))
    def record_and_claim(self, data: st.DataObject, ahead: int, is_answered: bool, tries: int) -> None:
        """A worker records an acceptance and claims the next dispatch; replies to its commits may be lost."""
        worker = self.whose(data, lambda hand: hand.has_answer)
        hand = self.hands[worker]
        for _ in range(tries):
            self.ask(worker, hand, self.now + timedelta(minutes=ahead))
        if is_answered:
            following = Hand(hand.unseen) if hand.unseen else Hand(hand.claim, hand.outcome, is_recorded=True)
            self.hands[worker] = following

    def ask(self, worker: int, hand: Hand, now: datetime) -> None:
        assert isinstance(hand.outcome, Accepted)
        unseen = hand.unseen if hand.unseen and self.is_in_flight(hand.unseen) else None
        evident = self.evident()
        following = self.ledger.dispatches.record_and_claim(
            hand.claim, hand.outcome, now, worker=self.name_of(worker), lease=LEASE
        )
        assert unseen in (None, following), "repeating it must return the earlier claim, with its time"
        assert following in (None, unseen) or following.dispatch_key not in evident
        hand.has_to_ask_again, hand.unseen = True, following
        self.recorded.add((hand.claim.dispatch_key, hand.claim.attempt))

    @precondition(lambda self: any(hand.may_record for hand in self.hands.values()))
    @rule(data=st.data())
    def record(self, data: st.DataObject) -> None:
        """A worker records its outcome, perhaps again, as after a commit whose reply was lost."""
        hand = self.some(data, lambda hand: hand.may_record)
        assert hand.outcome is not None
        self.ledger.dispatches.record(hand.claim, hand.outcome, self.now)
        self.recorded.add((hand.claim.dispatch_key, hand.claim.attempt))
        hand.is_recorded = True

    @precondition(lambda self: any(hand.is_recorded for hand in self.hands.values()))
    @rule(data=st.data())
    def go_on(self, data: st.DataObject) -> None:
        """A worker finishes with a dispatch."""
        hand = self.some(data, lambda hand: hand.is_recorded)
        self.hands = {worker: each for worker, each in self.hands.items() if each is not hand}

    @rule(worker=WORKERS)
    def crash(self, worker: int) -> None:
        """A worker dies at any step."""
        self.hands.pop(worker, None)
        self.lives[worker] += 1

    @rule(minutes=st.integers(1, 20))
    def wait(self, minutes: int) -> None:
        """Time passes."""
        self.now += timedelta(minutes=minutes)

    @rule(ahead=st.integers(-30, 30), are_over=st.booleans())
    def expire(self, ahead: int, are_over: bool) -> None:
        """A process expires the leases of dead workers; its clock may be wrong."""
        if are_over:
            end_leases(self.ledger)
        expired = self.ledger.doubts.expire_leases(self.key, self.now + timedelta(minutes=ahead))
        assert are_over or expired == 0

    @precondition(lambda self: self.accepted)
    @rule(data=st.data(), kind=st.sampled_from(["delivery", "open"]))
    def post_back(self, data: st.DataObject, kind: str) -> None:
        """A recipient of an accepted request responds, perhaps not for the first time."""
        key, _ = data.draw(st.sampled_from(self.accepted))
        self.hear(data, key, kind)

    def hear(self, data: st.DataObject, key: str, kind: str) -> None:
        device = data.draw(st.sampled_from(self.frozen[key]))
        body = b'{"time": 1772355600, "device": {"id": %d}}' % device
        self.stored += 1
        post_back = PostBack.received(kind, key, self.now, body)
        self.ledger.post_backs.store(self.receiver, [(self.stored, post_back)])

    @rule()
    def aggregate(self) -> None:
        """Post-backs are aggregated, and doubts are resolved."""
        aggregate(self.ledger, now=self.now)
        self.is_aggregation_dead = False

    @precondition(lambda self: self.taken_and("planned", "in_doubt"))
    @rule(data=st.data())
    def aggregate_and_die(self, data: st.DataObject) -> None:
        """The aggregation dies after evidence is stored and before doubts are resolved."""
        key = data.draw(st.sampled_from(self.taken_and("planned", "in_doubt")))
        self.hear(data, key, "open")
        self.is_aggregation_dead = True
        after = count(1)
        while key not in self.evident():
            with dying(self.ledger, next(after)):
                aggregate(self.ledger, now=self.now)

    @precondition(lambda self: self.taken_and("in_flight"))
    @rule(data=st.data(), is_listed=st.booleans())
    def prove_while_in_flight(self, data: st.DataObject, is_listed: bool) -> None:
        """Evidence of an earlier attempt arrives while a later one is in flight."""
        key = data.draw(st.sampled_from(self.taken_and("in_flight")))
        if is_listed:
            assert self.ledger.doubts.accept(key, 17, "the service lists it", self.now)
        else:
            self.hear(data, key, "delivery")
            self.aggregate()

    @precondition(lambda self: self.taken_and("planned", "in_doubt", "refused", "written_off"))
    @rule(data=st.data())
    def find_listed(self, data: st.DataObject) -> None:
        """A look-up of a doubt finds the request, whatever happened to the dispatch meanwhile."""
        key = data.draw(st.sampled_from(self.taken_and("planned", "in_doubt", "refused", "written_off")))
        assert self.ledger.doubts.accept(key, 17, "the service lists it", self.now)

    @precondition(lambda self: "in_doubt" in self.before.values())
    @rule(data=st.data(), how=st.sampled_from(WAYS))
    def resolve(self, data: st.DataObject, how: Resolution) -> None:
        """A person resolves a dispatch in doubt."""
        doubted = [key for key, state in self.before.items() if state == "in_doubt"]
        key = data.draw(st.sampled_from(doubted))
        has_evidence = key in self.evident()
        is_resolved = self.ledger.doubts.resolve(key, how, "ann", "twice is better than never", self.now)
        assert is_resolved is not has_evidence
        if is_resolved:
            (self.resent if how is Resolution.RESEND else self.written_off).add(key)

    # Invariants

    @invariant()
    def the_protocol_holds(self) -> None:
        states = self.states()
        self.nobody_is_sent_to_twice()
        self.nothing_is_planned_that_may_have_been_sent(states)
        self.what_is_known_to_be_accepted_is_accepted(states)
        self.what_somebody_was_heard_of_is_not_sent_again(states)
        self.what_may_have_been_sent_is_in_flight_or_in_doubt(states)
        self.nothing_is_accepted_that_was_not(states)
        self.states_move_only_as_they_may(states)
        self.whoever_lives_knows_what_it_has_in_flight()
        self.what_was_tried_is_appended_and_never_taken_away()

    def nobody_is_sent_to_twice(self) -> None:
        keys = [key for key, _ in self.accepted if key not in self.resent]
        assert len(keys) == len(set(keys))

    def nothing_is_planned_that_may_have_been_sent(self, states: Mapping[str, str]) -> None:
        for key, state in states.items():
            if state == "planned" and key not in self.resent:
                assert {self.made.get(request) for request in self.of(key)} <= {"not processed"}

    def what_is_known_to_be_accepted_is_accepted(self, states: Mapping[str, str]) -> None:
        for key, attempt in self.accepted:
            if self.made[key, attempt] == "answered" and (key, attempt) in self.recorded:
                goes_on = {"in_flight"} if key in self.resent else set()  # a later attempt that began earlier
                assert states[key] in {"accepted"} | goes_on

    def what_somebody_was_heard_of_is_not_sent_again(self, states: Mapping[str, str]) -> None:
        if not self.is_aggregation_dead:
            assert {states[key] for key in self.evident()} <= {"accepted", "in_flight", "refused"}

    def what_may_have_been_sent_is_in_flight_or_in_doubt(self, states: Mapping[str, str]) -> None:
        for key in states.keys() - self.resent:
            unknown = [
                request
                for request in self.of(key)
                if request not in self.recorded or isinstance(ENDS[self.made[request]], InDoubt)
            ]
            if unknown:
                proved = {"accepted"} if any(request in self.accepted for request in unknown) else set()
                assert states[key] in {"in_flight", "in_doubt", "written_off"} | proved

    def nothing_is_accepted_that_was_not(self, states: Mapping[str, str]) -> None:
        taken = {key for key, _ in self.accepted}
        assert {key for key, state in states.items() if state == "accepted"} <= taken

    def states_move_only_as_they_may(self, states: Mapping[str, str]) -> None:
        moved = {key: (self.before[key], state) for key, state in states.items() if state != self.before[key]}
        for key, move in moved.items():
            assert move in (MOVES | LATE if key in self.resent else MOVES)
        self.before = states

    def whoever_lives_knows_what_it_has_in_flight(self) -> None:
        known = {
            (self.name_of(worker), claim.dispatch_key, claim.attempt)
            for worker, hand in self.hands.items()
            for claim in (hand.claim, hand.unseen)
            if claim is not None
        }
        living = {self.name_of(worker) for worker in range(WORKERS_AT_MOST)}
        assert {held for held in self.in_flight() if held[0] in living} <= known

    def what_was_tried_is_appended_and_never_taken_away(self) -> None:
        tried, became = self.appended
        self.appended = self.rows(attempts), self.rows(outcomes)
        assert self.appended >= (tried, became)
        assert self.appended[1] >= became
        claims = sum(each.attempt for each in self.ledger.dispatch_queries.of_launch(self.key))
        assert self.appended[0] == claims

    # Helpers

    def freeze(self, first: int) -> None:
        identifiers = integers(range(first, first + DISPATCHES * PEOPLE))
        audience = Audience("device_id", identifiers, len(identifiers), {}, {})
        make_launch(
            self.ledger,
            segments=(Segment(segment) for segment in identifiers.slices(PEOPLE)),
            audience=audience,
            campaign=PUSH,
            launch_key=self.key,
            created_at=self.now,
            sends_at=self.now,
        )

    def people(self) -> dict[str, list[int]]:
        return {
            dispatch.dispatch_key: [int(each) for each in people]
            for dispatch, people in self.ledger.dispatch_queries.segments(self.key)
        }

    def states(self) -> Mapping[str, str]:
        return {each.dispatch_key: each.state for each in self.ledger.dispatch_queries.of_launch(self.key)}

    def evident(self) -> set[str]:
        """Return the dispatches that have evidence in the ledger."""
        returned = self.ledger.aggregates.totals(self.key)
        return {key for key, part in returned.items() if part.is_evidence}

    def taken_and(self, *states: str) -> list[str]:
        """Return dispatches in some states with a finished attempt that the service accepted."""
        doubted = {key for key, attempt in self.accepted if (key, attempt) in self.ended()}
        return [key for key in self.frozen if key in doubted and self.before[key] in states]

    def ended(self) -> set[tuple[str, int]]:
        """Return all requests except those of attempts in flight."""
        in_flight = {(key, attempt) for _, key, attempt in self.in_flight()}
        return self.made.keys() - in_flight

    def of(self, key: str) -> list[tuple[str, int]]:
        return [request for request in self.made if request[0] == key]

    def name_of(self, worker: int) -> str:
        return f"worker {worker}, life {self.lives[worker]}"

    def in_flight(self) -> set[tuple[str, str, int]]:
        query = sa.select(dispatches.c.worker, dispatches.c.dispatch_key, dispatches.c.attempt).where(
            dispatches.c.launch_key == self.key, dispatches.c.state == "in_flight"
        )
        with self.ledger._database.read() as db:
            return {(row.worker, row.dispatch_key, row.attempt) for row in db.execute(query)}

    def is_in_flight(self, claim: Claim) -> bool:
        return (claim.dispatch_key, claim.attempt) in {(key, attempt) for _, key, attempt in self.in_flight()}

    def whose(self, data: st.DataObject, which: Callable[[Hand], bool]) -> int:
        workers = sorted(worker for worker, hand in self.hands.items() if which(hand))
        return data.draw(st.sampled_from(workers))

    def some(self, data: st.DataObject, which: Callable[[Hand], bool]) -> Hand:
        return self.hands[self.whose(data, which)]

    def rows(self, table: sa.Table) -> int:
        query = sa.select(sa.func.count()).where(table.c.dispatch_key.in_(list(self.frozen)))
        with self.ledger._database.read() as db:
            return db.scalar(query) or 0


@contextmanager
def dying(ledger: Ledger, after: int) -> Iterator[None]:
    """Make the ledger's connection number ``after`` fail, as if the process died."""
    left = count(after, -1)

    def die(_: sa.Connection) -> None:
        if not next(left):
            raise ConnectionAbortedError("the process died")

    engine = ledger._database._engine
    sa.event.listen(engine, "engine_connect", die)
    try:
        with suppress(ConnectionAbortedError):
            yield
    finally:
        sa.event.remove(engine, "engine_connect", die)


def run(ledger: Ledger, most: int, steps: int = 40) -> None:
    machine = type("ProtocolOnALedger", (Protocol,), {"ledger": ledger})
    run_state_machine_as_test(
        machine,
        settings=settings(
            max_examples=most,
            stateful_step_count=steps,
            deadline=None,
            derandomize=True,
            database=None,
            report_multiple_bugs=False,
            phases=[Phase.generate],
            suppress_health_check=list(HealthCheck),
        ),
    )


@pytest.mark.hypothesis
@pytest.mark.promise("twice/once")
def test_the_protocol_holds_whatever_happens_in_whatever_order(ledger: Ledger) -> None:
    run(ledger, examples(20 if ledger.name.startswith("sqlite") else 6))


def record_hopefully(self: Dispatches, claim: Claim, outcome: Outcome, now: datetime) -> None:
    record(self, claim, NotProcessed("no answer") if isinstance(outcome, InDoubt) else outcome, now)


def forget_claims(self: Doubts, launch_key: str, now: datetime) -> int:
    with self._database.write() as db:
        return db.execute(
            sa.update(dispatches)
            .where(dispatches.c.launch_key == launch_key, dispatches.c.lease_until < LedgerTime())
            .values(state="planned", lease_until=None)
        ).rowcount


def claim_another(
    self: Dispatches, claim: Claim, outcome: Accepted, now: datetime, *, worker: str, lease: timedelta
) -> Claim | None:
    record(self, claim, outcome, now)
    return self.claim(claim.launch_key, worker=worker, now=now, lease=lease)


def claim_what_is_unrecorded(
    self: Dispatches, claim: Claim, outcome: Accepted, now: datetime, **how: Any
) -> Claim | None:
    return self.claim(claim.launch_key, now=now, **how)


def overlook_evidence(_link: sa.Connection, _keys: object, _now: datetime) -> list[object]:
    return []


def claim_in_spite_of_evidence(
    _: ClaimRequest, _link: sa.Connection, _values: dict[str, Any], taken: sa.Row[Any] | None
) -> sa.Row[Any] | None:
    return taken


record = Dispatches.record


@pytest.mark.proof
@pytest.mark.parametrize("ledger", ["sqlite"], indirect=True)
@pytest.mark.parametrize(
    ("where", "name", "wrong", "steps"),
    [
        (Dispatches, "record", record_hopefully, 25),
        (Doubts, "expire_leases", forget_claims, 25),
        (Dispatches, "record_and_claim", claim_another, 25),
        (Dispatches, "record_and_claim", claim_what_is_unrecorded, 25),
        (doubts, "accept_by_evidence", overlook_evidence, 45),
        (ClaimRequest, "_skip_proven", claim_in_spite_of_evidence, 25),
    ],
)
@pytest.mark.promise("twice/proof")
def test_a_wrong_protocol_is_found_out(
    ledger: Ledger, monkeypatch: pytest.MonkeyPatch, where: object, name: str, wrong: object, steps: int
) -> None:
    monkeypatch.setattr(where, name, wrong)
    with pytest.raises(AssertionError):
        run(ledger, 3_000, steps)  # stops at the first example that fails; most failures need few steps
