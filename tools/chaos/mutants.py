"""Mutants: protocols that are wrong on purpose. The same counting must find something with each of them."""

from __future__ import annotations

import copy
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import uuid4

import sqlalchemy as sa

from sendoff.audience import split
from sendoff.audience.identifiers import Identifiers, empty
from sendoff.campaign import Decide, Period, launch_key, request_launch_key
from sendoff.comparison import leader_of
from sendoff.dispatch import policy
from sendoff.dispatch.worker import LEASE, _WorkerPool
from sendoff.errors import NotYetError
from sendoff.launch import own_hours, own_request, plan
from sendoff.launch.own_request import NewRequest
from sendoff.ledger import DailyLimit, Decision, LaunchRecord, Ledger, SuppressionChange
from sendoff.ledger.control import daily_limits
from sendoff.ledger.erasure import erasure_steps
from sendoff.ledger.erasure.erasures import Erasures
from sendoff.ledger.launches.launches import Launches
from sendoff.ledger.post_backs.aggregates import AggregatedRun, Aggregates
from sendoff.ledger.requests import dispatches as dispatches_module
from sendoff.ledger.requests.claims import Claim
from sendoff.ledger.requests.dispatch_queries import DispatchQueries
from sendoff.ledger.requests.dispatches import Dispatches
from sendoff.ledger.requests.doubts import Doubts
from sendoff.ledger.storage.database import Database
from sendoff.ledger.storage.ledger_time import LedgerTime
from sendoff.ledger.storage.schema import attempts, dispatches, erasure_queue, launches, receivers
from sendoff.ledger.suppression import suppressions
from sendoff.ledger.suppression.active_suppressions import ActiveSuppressions
from sendoff.ledger.suppression.active_verdicts import ActiveVerdicts
from sendoff.postbacks import reconcile_launch
from sendoff.states import Accepted, DecisionKind, DispatchState, InDoubt, NotProcessed, Outcome, Verdict

_LINES_BETWEEN = 1_000  # more than the aggregation of one post-back has

_count_recipients = daily_limits.count_recipients
_prepare_request = own_request.prepare_request
_claim = Dispatches.claim
_record = Dispatches.record
_record_and_claim = Dispatches.record_and_claim
_own = suppressions._own
_expire_leases = Doubts.expire_leases
_store_run = Aggregates.store_run
_advance = Erasures.advance
_send_claim = _WorkerPool._send_claim


def intent_after_request() -> None:
    """Pick a planned dispatch without marking it, send it, and write the intent and the outcome afterwards."""
    Dispatches.claim = _look  # type: ignore[method-assign]
    Dispatches.record = _record_both  # type: ignore[method-assign]
    Dispatches.record_and_claim = _record_both  # type: ignore[method-assign]


def _look(self: Dispatches, launch_key: str, *, now: datetime, **_: Any) -> Claim | None:
    queries = DispatchQueries(self._database)
    planned = [
        dispatch for dispatch in queries.of_launch(launch_key) if dispatch.state == DispatchState.PLANNED
    ]
    if not planned:
        return None
    dispatch = planned[0]
    content = queries.segment(launch_key, dispatch.segment)
    return Claim(dispatch.dispatch_key, launch_key, dispatch.segment, dispatch.attempt + 1, content, now)


def _record_both(self: Dispatches, claim: Claim, outcome: Outcome, now: datetime, **_: Any) -> None:
    with self._database.write() as db:
        db.execute(
            sa.update(dispatches)
            .where(dispatches.c.dispatch_key == claim.dispatch_key)
            .values(state=DispatchState.IN_FLIGHT, attempt=claim.attempt, lease_until=now + LEASE)
        )
        intent = {"number": claim.attempt, "worker": "late", "started_at": now}
        insert = self._database.insert_or_ignore(attempts)
        db.execute(insert, {"dispatch_key": claim.dispatch_key, **intent})
    _record(self, claim, outcome, now)


def doubt_sent_again() -> None:
    """Treat a request without an answer as not made, and plan it again."""
    Dispatches.record = _record_hopefully  # type: ignore[method-assign]


def _record_hopefully(self: Dispatches, claim: Claim, outcome: Outcome, now: datetime) -> None:
    if isinstance(outcome, InDoubt):
        outcome = NotProcessed(outcome.reason)
    _record(self, claim, outcome, now)


def dead_sent_again() -> None:
    """Treat a silent worker as one that sent nothing, and plan its dispatch again."""
    Doubts.expire_leases = _plan_again  # type: ignore[assignment,method-assign]


def _plan_again(self: Doubts, launch_key: str | None, _now: datetime) -> int:
    with self._database.write() as db:
        expired = db.execute(
            sa.update(dispatches)
            .where(
                dispatches.c.launch_key == launch_key,
                dispatches.c.state == DispatchState.IN_FLIGHT,
                dispatches.c.lease_until < LedgerTime(),
            )
            .values(state=DispatchState.PLANNED, lease_until=None)
        )
    return expired.rowcount


def lease_by_the_workers_clock() -> None:
    """Treat a worker as dead if its lease has ended by the clock of the process that checks."""
    Dispatches.claim = _claim_by_own_clock  # type: ignore[method-assign]
    Dispatches.record_and_claim = _record_and_claim_by_own_clock  # type: ignore[method-assign]
    Doubts.expire_leases = _expire_by_own_clock  # type: ignore[method-assign]


def _claim_by_own_clock(
    self: Dispatches, launch_key: str, *, now: datetime, lease: timedelta, **how: Any
) -> Claim | None:
    claim = _claim(self, launch_key, now=now, lease=lease, **how)
    _lease_by_own_clock(self, claim, now + lease)
    return claim


def _record_and_claim_by_own_clock(
    self: Dispatches, claim: Claim, outcome: Accepted, now: datetime, *, lease: timedelta, **how: Any
) -> Claim | None:
    following = _record_and_claim(self, claim, outcome, now, lease=lease, **how)
    _lease_by_own_clock(self, following, now + lease)
    return following


def _lease_by_own_clock(self: Dispatches, claim: Claim | None, until: datetime) -> None:
    if claim is not None:
        with self._database.write() as db:
            db.execute(
                sa.update(dispatches)
                .where(dispatches.c.dispatch_key == claim.dispatch_key)
                .values(lease_until=until)
            )


def _expire_by_own_clock(self: Doubts, launch_key: str | None, now: datetime) -> int:
    over = datetime.now(UTC) - timedelta(seconds=1)
    with self._database.write() as db:
        db.execute(
            sa.update(dispatches)
            .where(
                dispatches.c.launch_key == launch_key,
                dispatches.c.state == DispatchState.IN_FLIGHT,
                dispatches.c.lease_until < now,
            )
            .values(lease_until=over)
        )
    return _expire_leases(self, launch_key, now)


def claim_not_committed() -> None:
    """Send the request of the next dispatch, but roll back the transaction that claimed it."""
    Dispatches.record_and_claim = _record_and_roll_back  # type: ignore[method-assign]


class _Uncommitted(Database):
    """A ledger's database that commits nothing."""

    def __init__(self, database: Database) -> None:
        vars(self).update(vars(database))
        self.can_combine = False  # so that everything is in a transaction of write

    @contextmanager
    def write(self) -> Iterator[sa.Connection]:
        with super().write() as db:
            yield db
            db.rollback()


def _record_and_roll_back(
    self: Dispatches, claim: Claim, outcome: Accepted, now: datetime, **how: Any
) -> Any:
    uncommitted = copy.copy(self)
    uncommitted._database = _Uncommitted(self._database)
    following = _record_and_claim(uncommitted, claim, outcome, now, **how)
    _record(self, claim, outcome, now)
    return following


def mark_before_events() -> None:
    """Move a receiver's mark when post-backs are fetched, before their totals are stored."""
    Aggregates.store_run = _mark_first  # type: ignore[method-assign]


def _mark_first(self: Aggregates, run: AggregatedRun) -> bool:
    moved = []
    with self._database.write() as db:
        for receiver, after, up_to in run.runs:
            mark = sa.update(receivers).where(
                receivers.c.receiver == receiver, receivers.c.aggregated_to == after
            )
            moved.append(db.execute(mark.values(aggregated_to=up_to)).rowcount)
    for _ in range(_LINES_BETWEEN):  # lines at which many of the killed processes die
        pass
    return all(moved) and _store_run(self, replace(run, runs=()))


def key_of_a_notebook() -> None:
    """Derive another launch key in this process than in others."""
    plan.launch_key = _key_of_a_notebook  # type: ignore[attr-defined]


def _key_of_a_notebook(connection: str, campaign: str, period: Period, resend: int = 0) -> str:
    return another_key(launch_key(connection, campaign, period, resend))


def another_key(key: str) -> str:
    """Return the key that a notebook derives for a launch, if its protocol is wrong."""
    return key[::-1]


def request_key_with_the_attempt() -> None:
    """Derive the key of a request of your own also from the worker, if another worker froze the request before."""
    own_request.prepare_request = _prepare_again


def _prepare_again(ledger: Ledger, request: NewRequest, **how: Any) -> LaunchRecord:
    key = request_launch_key(request.connection, request.name, request.request_key)
    if ledger.launches.find(key) is not None:
        request = replace(request, request_key=f"{request.request_key} attempt {os.getpid()}")
    return _prepare_request(ledger, request, **how)


def counted_after_the_request() -> None:
    """Check the daily limit before a request, and count its recipients with its outcome."""
    daily_limits.count_recipients = _check_only
    dispatches_module.count_recipients = _check_only  # type: ignore[attr-defined]
    Dispatches.record = _record_and_count  # type: ignore[method-assign]


def _check_only(database: Database, db: sa.Connection, limit: DailyLimit, recipients: int) -> None:
    with db.begin_nested() as counted:
        _count_recipients(database, db, limit, recipients)
        counted.rollback()


def _record_and_count(self: Dispatches, claim: Claim, outcome: Outcome, now: datetime) -> None:
    _record(self, replace(claim, is_limited=False), outcome, now)
    if claim.is_limited and not isinstance(outcome, NotProcessed):
        connection = sa.select(launches.c.connection).where(launches.c.launch_key == claim.launch_key)
        with self._database.write() as db:
            wide = DailyLimit(db.scalar(connection) or "", claim.claimed_at.date(), most=10**9)
            _count_recipients(self._database, db, wide, len(claim.content))


def asked_only_when_frozen() -> None:
    """Ask the suppression list when a launch is frozen, and not again when a request is claimed."""
    ActiveSuppressions.among = _nobody  # type: ignore[assignment,method-assign]


def _nobody(_: ActiveSuppressions, __: Any, ___: str, people: Identifiers, *____: Any) -> Identifiers:
    return empty(people.kind)


def verdicts_only_when_frozen() -> None:
    """Ask the verdicts in another launch when a launch is frozen, and not again when a request is claimed."""
    ActiveVerdicts.among = _none  # type: ignore[assignment,method-assign]


def _none(*_: Any) -> dict[Verdict, Identifiers]:
    return {}


def replaced_whatever_the_source() -> None:
    """Replace the entries of every source in the suppression list, in place of those of one."""
    suppressions._own = _of_every_source


def _of_every_source(change: SuppressionChange) -> tuple[sa.ColumnElement[bool], ...]:
    return _own(replace(change, source=None))


def queue_emptied_early() -> None:
    """Delete the identifiers of an erasure once the launches are done, before the results and post-backs."""
    Erasures.advance = _advance_and_forget  # type: ignore[method-assign]


def _advance_and_forget(self: Erasures, request: int, now: datetime) -> bool:
    is_left = _advance(self, request, now)
    if self.get(request).step != "launches":
        with self._database.write() as db:
            db.execute(sa.delete(erasure_queue).where(erasure_queue.c.request == request))
    return is_left


def blocks_skipped() -> None:
    """Erase people from sets and lists, and leave them in the blocks of post-backs."""
    erasure_steps.scrub = _leave  # type: ignore[assignment,attr-defined]


def _leave(_: sa.Connection, __: int, ___: Any) -> None: ...


def judged_at_each_claim() -> None:
    """Open the rest without storing a winner, and judge the test share again at each claim of the rest."""
    policy.decide_winner = _open_undecided  # type: ignore[attr-defined]
    _WorkerPool._send_claim = _judge_and_send  # type: ignore[method-assign]


def _open_undecided(ledger: Ledger, launch: LaunchRecord, decide: Decide, *, now: datetime) -> None:
    newest = ledger.dispatch_queries.newest_request(launch.launch_key, up_to_wave=1)
    if newest and now < (until := newest + decide.after.timedelta()):
        raise NotYetError("the winner is not decided yet", until)
    decision = Decision(launch.launch_key, DecisionKind.WAVE, "sendoff", "the time is over", now)
    ledger.audit_log.decide(decision, wave=launch.wave)


def _judge_and_send(self: _WorkerPool, claim: Claim, worker: str) -> Claim | None:
    decide, variation = self.policy.campaign.decide, claim.content.variation
    if decide and variation.variant is None:
        leader = leader_of(self.ledger, reconcile_launch(self.ledger, claim.launch_key, now=self.now()))
        judged = replace(variation, variant=leader.variant or decide.otherwise)
        claim = replace(claim, content=replace(claim.content, variation=judged))
    return _send_claim(self, claim, worker)


def planned_counts_as_unsent() -> None:
    """Take the recipients of requests that are still to be made for people who got nothing."""
    Launches.sent = _no_one_yet  # type: ignore[method-assign]


def _no_one_yet(self: Launches, launch_key: str) -> Identifiers:
    return empty(self.get(launch_key).kind)


def own_hours_ignored() -> None:
    """Send to everyone at once, whatever the hour."""
    policy.closed_until = lambda *_: {}  # type: ignore[attr-defined]


def control_group_drawn_anew() -> None:
    """Divide the recipients by chance in each process that plans."""
    own_hours.split = _split_by_chance  # type: ignore[attr-defined]


def _split_by_chance(identifiers: Identifiers, salt: str, percents: Sequence[float]) -> list[Identifiers]:
    return split(identifiers, f"{salt} {uuid4().hex}", percents)


MUTANTS: Mapping[str, Callable[[], None]] = {
    "intent after request": intent_after_request,
    "doubt sent again": doubt_sent_again,
    "dead sent again": dead_sent_again,
    "lease by the worker's clock": lease_by_the_workers_clock,
    "claim not committed": claim_not_committed,
    "mark before events": mark_before_events,
    "key of a notebook": key_of_a_notebook,
    "request key with the attempt": request_key_with_the_attempt,
    "counted after the request": counted_after_the_request,
    "asked only when frozen": asked_only_when_frozen,
    "verdicts only when frozen": verdicts_only_when_frozen,
    "replaced whatever the source": replaced_whatever_the_source,
    "planned counts as unsent": planned_counts_as_unsent,
    "queue emptied early": queue_emptied_early,
    "blocks skipped": blocks_skipped,
    "judged at each claim": judged_at_each_claim,
    "own hours ignored": own_hours_ignored,
    "control group drawn anew": control_group_drawn_anew,
}


def apply(name: str | None) -> None:
    """Replace the protocol with a wrong one in this process."""
    if name is not None:
        MUTANTS[name]()
