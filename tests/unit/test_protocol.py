"""The protocol of a dispatch as a state machine: any number of workers, in any order, dying anywhere.

The service is a set of accepted requests here. That is the model that the ledger is held against, and all that a
service can do to the protocol: take a request or not, and let the answer arrive or not.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from itertools import count
from typing import Literal

import pytest
import sqlalchemy as sa
from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from sendoff.audience import Audience
from sendoff.campaign import Campaign
from sendoff.dispatch import LEASE
from sendoff.fold import fold
from sendoff.identifiers import integers
from sendoff.ledger import Claim, Ledger
from sendoff.ledger.dispatches import Dispatches
from sendoff.ledger.tables import attempts, dispatches, outcomes
from sendoff.outcome import Accepted, InDoubt, NotProcessed, Outcome, Refused
from sendoff.period import Period, launch_key
from sendoff.postbacks import PostBack
from sendoff.segments import Segment

START = datetime(2026, 3, 2, 9, tzinfo=UTC)
PERIOD = Period(datetime(2026, 3, 1, tzinfo=UTC), datetime(2026, 3, 2, tzinfo=UTC))
PUSH = Campaign.model_validate(
    {
        "title": "Spring",
        "message": {"title": "Hello", "text": "It is spring"},
        "channels": {"android_push": {}},
    }
)
WORKERS = st.integers(0, 2)
WAYS: tuple[Literal["resend", "write_off"], ...] = ("resend", "write_off")
DISPATCHES = 3
PEOPLE = 2  # of each dispatch

# What becomes of a request: whether the service took it, and what the worker then knows.
TAKEN: dict[str, Outcome] = {
    "answered": Accepted(200, None),
    "answer lost": InDoubt("no answer"),
    "500 after": InDoubt("HTTP 500"),
}
NOT_TAKEN: dict[str, Outcome] = {
    "refused": Refused(400, "no"),
    "not processed": NotProcessed("patience", asks_patience=True),
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

_launches = count(1)


@dataclass
class Hand:
    """What one worker holds: a claim, and the outcome of its request once it was made."""

    claim: Claim
    outcome: Outcome | None = None
    is_recorded: bool = False


class Protocol(RuleBasedStateMachine):
    """Workers, time, post-backs and people, on one launch of three dispatches."""

    ledger: Ledger  # set by ``machine_on``

    def __init__(self) -> None:
        super().__init__()
        self.resend = next(_launches)
        self.key = launch_key("service", "spring", PERIOD, self.resend)
        self.now = START
        self.hands: dict[int, Hand] = {}
        self.accepted: list[tuple[str, int]] = []  # by the service: dispatch key and attempt
        self.made: dict[tuple[str, int], str] = {}  # each request, and how it ended
        self.recorded: set[tuple[str, int]] = set()
        self.resent: set[str] = set()  # by a person
        self.written_off: set[str] = set()
        self.receiver = self.ledger.post_backs.register_receiver("test", self.now)
        self.stored = 0
        self.freeze(1)
        self.frozen = self.people()
        self.before = self.states()
        self.appended = (0, 0)

    # What happens

    @rule(first=st.integers(2, 50))
    def freeze_again(self, first: int) -> None:
        """A retry comes to the same key, with the people that the query gives by now."""
        self.freeze(first)
        assert self.people() == self.frozen

    @rule(worker=WORKERS, ahead=st.integers(-10, 10))
    def claim(self, worker: int, ahead: int) -> None:
        """A worker takes the next dispatch, by a clock that may be wrong."""
        if worker not in self.hands:
            now = self.now + timedelta(minutes=ahead)
            claim = self.ledger.dispatches.claim(self.key, worker=str(worker), now=now, lease=LEASE)
            if claim is not None:
                self.hands[worker] = Hand(claim)

    @precondition(lambda self: any(hand.outcome is None for hand in self.hands.values()))
    @rule(data=st.data(), end=st.sampled_from(sorted(ENDS)))
    def request(self, data: st.DataObject, end: str) -> None:
        """A worker makes its request; the service takes it or not, and the worker learns that or not."""
        hand = self.some(data, lambda hand: hand.outcome is None)
        request = hand.claim.dispatch_key, hand.claim.attempt
        assert request not in self.made, "one attempt, one request"
        self.made[request] = end
        if end in TAKEN:
            self.accepted.append(request)
        hand.outcome = ENDS[end]

    @precondition(lambda self: any(hand.outcome for hand in self.hands.values()))
    @rule(data=st.data())
    def record(self, data: st.DataObject) -> None:
        """A worker records what it knows; it may do so again, as after a commit whose answer was lost."""
        hand = self.some(data, lambda hand: hand.outcome is not None)
        assert hand.outcome is not None
        self.ledger.dispatches.record(hand.claim, hand.outcome, self.now)
        self.recorded.add((hand.claim.dispatch_key, hand.claim.attempt))
        hand.is_recorded = True

    @precondition(lambda self: any(hand.is_recorded for hand in self.hands.values()))
    @rule(data=st.data())
    def go_on(self, data: st.DataObject) -> None:
        """A worker is done with a dispatch."""
        hand = self.some(data, lambda hand: hand.is_recorded)
        self.hands = {worker: each for worker, each in self.hands.items() if each is not hand}

    @rule(worker=WORKERS)
    def crash(self, worker: int) -> None:
        """A worker dies, wherever it is."""
        self.hands.pop(worker, None)

    @rule(minutes=st.integers(1, 20))
    def wait(self, minutes: int) -> None:
        """Time passes."""
        self.now += timedelta(minutes=minutes)

    @rule(ahead=st.integers(-30, 30))
    def expire(self, ahead: int) -> None:
        """Somebody looks for dead workers, by a clock that may be wrong."""
        self.ledger.dispatches.expire_leases(self.key, self.now + timedelta(minutes=ahead))

    @precondition(lambda self: self.accepted)
    @rule(data=st.data(), kind=st.sampled_from(["delivery", "open"]))
    def post_back(self, data: st.DataObject, kind: str) -> None:
        """Somebody whom an accepted request was for is heard of; perhaps not for the first time."""
        key, _ = data.draw(st.sampled_from(self.accepted))
        device = data.draw(st.sampled_from(self.frozen[key]))
        body = b'{"time": 1772355600, "device": {"id": %d}}' % device
        self.stored += 1
        post_back = PostBack.received(kind, key, self.now, body)
        self.ledger.post_backs.store(self.receiver, [(self.stored, post_back)])

    @rule()
    def fold(self) -> None:
        """What came back is folded, and resolves doubts."""
        fold(self.ledger, now=self.now)

    @precondition(lambda self: "in_doubt" in self.before.values())
    @rule(data=st.data(), how=st.sampled_from(WAYS))
    def resolve(self, data: st.DataObject, how: Literal["resend", "write_off"]) -> None:
        """A person decides what becomes of a dispatch in doubt."""
        doubted = sorted(key for key, state in self.before.items() if state == "in_doubt")
        key = data.draw(st.sampled_from(doubted))
        assert self.ledger.dispatches.resolve(key, how, "ann", "twice is better than never", self.now)
        (self.resent if how == "resend" else self.written_off).add(key)

    # What must hold, after every step

    @invariant()
    def the_protocol_holds(self) -> None:
        states = self.states()
        self.nobody_is_sent_to_twice()
        self.nothing_is_planned_that_may_have_been_sent(states)
        self.what_is_known_to_be_accepted_is_accepted(states)
        self.what_may_have_been_sent_is_in_flight_or_in_doubt(states)
        self.nothing_is_accepted_that_was_not(states)
        self.states_move_only_as_they_may(states)
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
            decided = key in self.resent | self.written_off
            if self.made[key, attempt] == "answered" and (key, attempt) in self.recorded and not decided:
                assert states[key] == "accepted"

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
        moved = {(self.before[key], state) for key, state in states.items() if state != self.before[key]}
        assert moved <= MOVES
        self.before = states

    def what_was_tried_is_appended_and_never_taken_away(self) -> None:
        tried, became = self.appended
        self.appended = self.rows(attempts), self.rows(outcomes)
        assert self.appended >= (tried, became)
        assert self.appended[1] >= became
        claims = sum(each.attempt for each in self.ledger.dispatches.of_launch(self.key))
        assert self.appended[0] == claims

    # Helpers

    def freeze(self, first: int) -> None:
        identifiers = integers(range(first, first + DISPATCHES * PEOPLE))
        audience = Audience("device_id", identifiers, len(identifiers), {}, {}, identifiers.fingerprint())
        self.ledger.launches.freeze(
            self.key,
            connection="service",
            campaign="spring",
            period=PERIOD,
            resend=self.resend,
            definition=PUSH.model_dump_json(),
            audience=audience,
            segments=(Segment(segment) for segment in identifiers.slices(PEOPLE)),
            now=self.now,
            state="released",
            sends_at=self.now,
        )

    def people(self) -> dict[str, list[int]]:
        return {
            dispatch.dispatch_key: [int(each) for each in people]
            for dispatch, people in self.ledger.dispatches.segments(self.key)
        }

    def states(self) -> Mapping[str, str]:
        return {each.dispatch_key: each.state for each in self.ledger.dispatches.of_launch(self.key)}

    def of(self, key: str) -> list[tuple[str, int]]:
        return [request for request in self.made if request[0] == key]

    def some(self, data: st.DataObject, which: Callable[[Hand], bool]) -> Hand:
        workers = sorted(worker for worker, hand in self.hands.items() if which(hand))
        return self.hands[data.draw(st.sampled_from(workers))]

    def rows(self, table: sa.Table) -> int:
        query = sa.select(sa.func.count()).where(table.c.dispatch_key.in_(list(self.frozen)))
        with self.ledger._database.read() as connection:
            return connection.scalar(query) or 0


def run(ledger: Ledger, examples: int) -> None:
    machine = type("ProtocolOnALedger", (Protocol,), {"ledger": ledger})
    run_state_machine_as_test(
        machine,
        settings=settings(
            max_examples=examples,
            stateful_step_count=40,
            deadline=None,
            derandomize=True,
            database=None,
            report_multiple_bugs=False,
            phases=[Phase.generate],
            suppress_health_check=list(HealthCheck),
        ),
    )


def test_the_protocol_holds_whatever_happens_in_whatever_order(ledger: Ledger) -> None:
    run(ledger, examples=20 if ledger.name.startswith("sqlite") else 6)


def record_hopefully(self: Dispatches, claim: Claim, outcome: Outcome, now: datetime) -> None:
    record(self, claim, NotProcessed("no answer") if isinstance(outcome, InDoubt) else outcome, now)


def forget_claims(self: Dispatches, launch_key: str, now: datetime) -> int:
    with self._database.write() as connection:
        return connection.execute(
            sa.update(dispatches)
            .where(dispatches.c.launch_key == launch_key, dispatches.c.lease_until < now)
            .values(state="planned", lease_until=None)
        ).rowcount


record = Dispatches.record


@pytest.mark.parametrize("ledger", ["sqlite"], indirect=True)
@pytest.mark.parametrize(
    ("name", "wrong"),
    [("record", record_hopefully), ("expire_leases", forget_claims)],
)
def test_a_wrong_protocol_is_found_out(
    ledger: Ledger, monkeypatch: pytest.MonkeyPatch, name: str, wrong: object
) -> None:
    monkeypatch.setattr(Dispatches, name, wrong)
    with pytest.raises(AssertionError):
        run(ledger, examples=100)
