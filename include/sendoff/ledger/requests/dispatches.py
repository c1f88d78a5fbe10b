"""Dispatches in the ledger: claims before each request, and outcomes after it.

``planned -> in_flight -> accepted | refused | in_doubt``, or back to ``planned`` if the request was certainly not
processed. A dispatch in doubt becomes ``accepted`` through evidence. It becomes ``planned`` or ``written_off`` if a
person or the campaign decides so. :mod:`~sendoff.ledger.requests.dispatch_queries` reads dispatches.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace
from datetime import datetime, timedelta
from time import monotonic
from typing import Any

import sqlalchemy as sa

from sendoff.errors import RateLimitedLocallyError
from sendoff.ledger.control.daily_limits import DailyLimit, count_recipients, take_back
from sendoff.ledger.control.rate_limits import LOOKAHEAD, interval, reserve
from sendoff.ledger.requests.claims import Claim, ClaimRequest, attempt_held_by
from sendoff.ledger.requests.evidence import IS_REPORTED, accept_by_earlier_outcome, outcome_row
from sendoff.ledger.requests.record_and_claim import RECORD_AND_CLAIM, RECORD_AND_CLAIM_AT_RATE
from sendoff.ledger.storage.database import Database, LedgerPart
from sendoff.ledger.storage.revisions import bump_revision_of_dispatch
from sendoff.ledger.storage.schema import dispatches, launches, outcomes
from sendoff.ledger.suppression.active_suppressions import ActiveSuppressions
from sendoff.ledger.suppression.active_verdicts import ActiveVerdicts
from sendoff.states import Accepted, DispatchState, NotProcessed, Outcome, OutcomeKind

LONGEST_WAIT = 1.0
"""Seconds after which a claim is given back. PostgreSQL reads all rows as of the start of its statement, except those
that the statement waited for. So after a wait for another transaction, the claim may miss an opt-out, a pause or an
erasure."""

_NOT_LEARNED = NotProcessed("the worker did not learn of its claim in time")
_STATE_AFTER = {
    OutcomeKind.ACCEPTED: DispatchState.ACCEPTED,
    OutcomeKind.REFUSED: DispatchState.REFUSED,
    OutcomeKind.NOT_PROCESSED: DispatchState.PLANNED,
    OutcomeKind.IN_DOUBT: DispatchState.IN_DOUBT,
}


class Dispatches(LedgerPart):
    """Changes of dispatches: claims and recorded outcomes."""

    def __init__(self, database: Database) -> None:
        super().__init__(database)
        self._suppressions = ActiveSuppressions()
        self._verdicts = ActiveVerdicts()

    def claim(  # noqa: PLR0913 - all named, most with defaults
        self,
        launch_key: str,
        *,
        worker: str,
        now: datetime,
        lease: timedelta,
        closed_zones: Collection[str | None] = (),
        rate: float | None = None,
        limit: DailyLimit | None = None,
    ) -> Claim | None:
        """Take the next planned dispatch of a launch and commit the intent to send it, or return None.

        Also return None while the launch is not released, a pause applies, or the service asked to wait. Waves that are
        not open and the time zones in ``closed_zones`` are skipped; None there is recipients without a time zone. The
        move to ``in_flight`` is a compare-and-set: only one worker gets each dispatch. The claim is without recipients
        who are on the suppression list by now, or whose verdict in another launch leaves them out. Dispatches without
        remaining recipients are closed.

        ``rate`` is the number of requests per second that all workers of the connection share. With it, the claim
        carries the earliest moment for its request. If that moment is not near, claim nothing and raise
        RateLimitedLocallyError.

        ``limit`` is the daily limit that all launches of the connection share. If the rest of the day has no room for
        the next request, claim nothing and raise NotYetError with the next UTC midnight.
        """
        ready_by = now if rate is None else now + LOOKAHEAD
        for asked in (self._suppressions, self._verdicts):
            if not asked.knows(launch_key):  # read a long list before the transaction that writes
                with self._database.read() as db:
                    asked.load(db, launch_key)
        with self._database.write() as db:
            request = ClaimRequest(
                launch_key, worker, now, lease, closed_zones, ready_by, self._suppressions, self._verdicts
            )
            claim = request.execute(db)
            if claim is not None and limit is not None:  # the error rolls the claim back
                count_recipients(self._database, db, limit, len(claim.content))
                claim = replace(claim, is_limited=True)
            if claim is None or rate is None:
                return claim
            return replace(claim, not_before=self._slot(db, launch_key, rate, now))

    def give_back(self, launch_key: str, worker: str, now: datetime, *, is_limited: bool = False) -> None:
        """Put the dispatch back to ``planned`` that a worker claimed without learning of it. No request was sent.

        ``is_limited``: its recipients count against a daily limit.

        ``worker`` must be a name that no other worker uses, and its worker must hold no other claim.
        """
        with self._database.write() as db:
            if claim := attempt_held_by(db, launch_key, worker):
                _record(db, claim, _NOT_LEARNED, now)
                if is_limited:
                    take_back(db, claim.dispatch_key, claim.attempt)

    def _slot(self, db: sa.Connection, launch_key: str, rate: float, now: datetime) -> datetime:
        name: str = db.execute(_CONNECTION, {"launch": launch_key}).scalar_one()
        slot = reserve(self._database, db, name, rate, now)
        if slot > now + LOOKAHEAD:  # other workers took the near moments; the error rolls the claim back
            raise RateLimitedLocallyError(
                f"the rate limit of the connection {name} is {rate:g} requests per second", slot
            )
        return slot

    def record(self, claim: Claim, outcome: Outcome, now: datetime) -> None:
        """Append the outcome of an attempt and move its dispatch accordingly.

        A dispatch that went into doubt because its lease ended still takes the outcome of the same attempt. *Accepted*
        always wins, whichever attempt reports it. A later attempt in flight goes on, and the dispatch is accepted when
        that attempt ends, whatever its own outcome. Any other outcome moves nothing if a later attempt or a person has
        moved the dispatch. Repeating a record is harmless.
        """
        with self._database.write() as db:
            is_its_attempt = _record(db, claim, outcome, now)
            # The daily limit comes last, as in a claim: two transactions that lock in another order would deadlock.
            if claim.is_limited and is_its_attempt and isinstance(outcome, NotProcessed):
                take_back(db, claim.dispatch_key, claim.attempt)

    def record_and_claim(  # noqa: PLR0913 - all named, most with defaults
        self,
        claim: Claim,
        outcome: Accepted,
        now: datetime,
        *,
        worker: str,
        lease: timedelta,
        closed_zones: Collection[str | None] = (),
        rate: float | None = None,
    ) -> Claim | None:
        """Record that a request was accepted and take the next dispatch of its launch, in one transaction.

        It works like :meth:`record` followed by :meth:`claim`, but a rate limit does not raise: it claims nothing if
        no moment is near. Other claims may be missed too, so None does not mean that nothing is planned. ``worker``
        must be a name that no other worker uses, and its worker must hold no other claim. If the reply to the commit
        was lost, the worker can repeat the call and gets the same claim again, with its original time. Nothing is
        claimed if a later attempt has moved the dispatch, or if the database took longer than LONGEST_WAIT.
        """
        ready_by = now if rate is None else now + LOOKAHEAD
        request = ClaimRequest(
            claim.launch_key,
            worker,
            now,
            lease,
            closed_zones,
            ready_by,
            self._suppressions,
            self._verdicts,
            alone=True,
        )
        if self._database.can_combine:
            start = monotonic()
            if row := _record_and_claim(self._database, request, claim, outcome, rate):
                if row.dispatch_key is None or monotonic() - start < LONGEST_WAIT:
                    return request.complete(self._database, row)
                self.give_back(claim.launch_key, worker, now)
                return None
        with self._database.write() as db:
            # This update also waits for an earlier try of the same worker that the database is still committing.
            is_its_attempt = _record(db, claim, outcome, now)
            if not is_its_attempt:
                return None
            return request.execute(db) if rate is None else self._claim_if_near(db, request, rate)

    def _claim_if_near(self, db: sa.Connection, request: ClaimRequest, rate: float) -> Claim | None:
        """Claim within a transaction that has recorded an outcome, which stays if no moment is near."""
        try:
            with db.begin_nested():
                claim = request.execute(db)
                if claim is None or claim.not_before is not None:  # the latter: it reserved its moment before
                    return claim
                return replace(claim, not_before=self._slot(db, request.launch_key, rate, request.now))
        except RateLimitedLocallyError:
            return None


_CONNECTION = sa.select(launches.c.connection).where(launches.c.launch_key == sa.bindparam("launch"))
_MOVE = (
    sa.update(dispatches)
    .where(
        dispatches.c.dispatch_key == sa.bindparam("of"),
        dispatches.c.attempt == sa.bindparam("by"),
        dispatches.c.state.in_((DispatchState.IN_FLIGHT, DispatchState.IN_DOUBT)),
    )
    .values(state=sa.bindparam("after"), lease_until=None)
    .returning(dispatches.c.attempt, IS_REPORTED.label("is_reported"))
)
# *Accepted* also wins over evidence or a decision that came before the reply. A later attempt in flight goes on, and
# finds this outcome when it ends.
_GOES_ON = sa.and_(dispatches.c.state == DispatchState.IN_FLIGHT, dispatches.c.attempt != sa.bindparam("by"))
_NUMBER: sa.BindParameter[int | None] = sa.bindparam("number", type_=sa.BigInteger)
_MOVE_ACCEPTED = (
    sa.update(dispatches)
    .where(dispatches.c.dispatch_key == sa.bindparam("of"))
    .values(
        state=sa.case((_GOES_ON, dispatches.c.state), else_=DispatchState.ACCEPTED),
        lease_until=sa.case((_GOES_ON, dispatches.c.lease_until), else_=None),
        campaign_id=sa.case(
            (dispatches.c.attempt == sa.bindparam("by"), sa.func.coalesce(_NUMBER, dispatches.c.campaign_id)),
            else_=sa.func.coalesce(dispatches.c.campaign_id, _NUMBER),
        ),
    )
    .returning(dispatches.c.attempt, IS_REPORTED.label("is_reported"))
)
_OUTCOME = sa.insert(outcomes)


def _record_and_claim(
    database: Database, request: ClaimRequest, claim: Claim, outcome: Accepted, rate: float | None
) -> Any:
    """Execute the combined statement. Return None if it did nothing, since something has moved the dispatch."""
    record = {
        "of": claim.dispatch_key,
        "by": claim.attempt,
        "status": outcome.status,
        "campaign": outcome.campaign_id,
        "now": request.now,
    }
    values = {**request.values(), **record}
    if rate is None:
        return database.execute_alone(RECORD_AND_CLAIM, values)
    return database.execute_alone(RECORD_AND_CLAIM_AT_RATE, {**values, "step": interval(rate)})


def _record(db: sa.Connection, claim: Claim | sa.Row[Any], outcome: Outcome, now: datetime) -> bool:
    """Append an outcome and move its dispatch. Return whether the dispatch still has this attempt."""
    values = {"of": claim.dispatch_key, "by": claim.attempt}
    if isinstance(outcome, Accepted):
        moved = db.execute(_MOVE_ACCEPTED, {**values, "number": outcome.campaign_id}).first()
    else:
        moved = db.execute(_MOVE, {**values, "after": _STATE_AFTER[outcome.kind]}).first()
    db.execute(_OUTCOME, outcome_row(claim.dispatch_key, claim.attempt, outcome, now))
    if not isinstance(outcome, Accepted):
        accept_by_earlier_outcome(db, [claim.dispatch_key], now)
    if moved is None or moved.is_reported:  # last, because the workers of a launch with a report wait here
        bump_revision_of_dispatch(db, claim.dispatch_key)
    return moved is not None and moved.attempt == claim.attempt
