"""Doubts in the ledger: dispatches whose outcome is unknown, and what settles them.

A dispatch goes into doubt when its worker does not report before the lease ends, or when the outcome of its request is
unknown. It becomes ``accepted`` through evidence, and ``planned`` or ``written_off`` if a person or the campaign
decides so.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

import sqlalchemy as sa

from sendoff.errors import NotFoundError
from sendoff.ledger.control.audit_log import Decision, append_decision
from sendoff.ledger.requests.evidence import (
    Evidence,
    accept_by_earlier_outcome,
    accept_by_evidence,
    outcome_row,
)
from sendoff.ledger.storage.database import LedgerPart
from sendoff.ledger.storage.joins import OF_SEGMENT
from sendoff.ledger.storage.ledger_time import LedgerTime
from sendoff.ledger.storage.revisions import bump_revision_if_reported, bump_revision_of_dispatch
from sendoff.ledger.storage.schema import (
    IN_FLIGHT,
    decisions,
    dispatch_totals,
    dispatches,
    launches,
    outcomes,
    segments,
)
from sendoff.ledger.suppression.withheld import REMAINING
from sendoff.states import LIVING, DecisionKind, DispatchState, InDoubt, LaunchState, OutcomeKind, Resolution

_RESOLVED = {
    Resolution.RESEND: (DispatchState.PLANNED, DecisionKind.RESEND_DISPATCH),
    Resolution.WRITE_OFF: (DispatchState.WRITTEN_OFF, DecisionKind.WRITE_OFF_DISPATCH),
}
_CLEARED = (OutcomeKind.REFUSED, OutcomeKind.NOT_PROCESSED)  # these end the doubt about an attempt
_WORKER_DEAD = "the worker stopped before it recorded an outcome"


@dataclass(frozen=True, slots=True)
class Doubt:
    """A dispatch in doubt, with what the ledger knows about it."""

    dispatch_key: str
    launch_key: str
    campaign: str
    segment: int
    people: int  # 0 if the service chooses them
    attempt: int
    since: datetime
    reason: str | None
    post_backs: int  # none of them is evidence: unreadable, or from other recipients


@dataclass(frozen=True, slots=True)
class PendingResend:
    """A dispatch that was in doubt and is planned again, and whose next request has not been sent yet."""

    dispatch_key: str
    launch_key: str
    campaign: str
    state: LaunchState
    segment: int
    people: int  # 0 if the service chooses them
    is_own_request: bool  # someone wrote the request, so no DAG of a campaign sends it


class Doubts(LedgerPart):
    """The dispatches of a ledger that are or were in doubt."""

    def resolve(
        self,
        dispatch_key: str,
        how: Resolution,
        who: str,
        why: str,
        now: datetime,
        *,
        doubts: int | None = None,
    ) -> bool:
        """Plan a dispatch in doubt again or write it off, and append the decision. Return whether that was possible.

        It is not possible if the dispatch is not in doubt, if evidence has just settled it, or, for a resend, if its
        launch has ended. ``doubts``: do it only if exactly this many of its attempts went into doubt. Raise
        NotFoundError if the ledger does not have the dispatch.
        """
        change = sa.update(dispatches).where(
            dispatches.c.dispatch_key == dispatch_key, dispatches.c.state == DispatchState.IN_DOUBT
        )
        state, kind = _RESOLVED[how]
        if how is Resolution.RESEND:
            change = change.where(_OF_UNFINISHED)
        if doubts is not None:
            change = change.where(_attempts_in_doubt == doubts)
        moved = change.values(state=state).returning(dispatches.c.launch_key, dispatches.c.segment)
        with self._database.write() as db:
            if accept_by_evidence(db, [dispatch_key], now):
                bump_revision_of_dispatch(db, dispatch_key)
                return False
            row = db.execute(moved, {"dispatch": dispatch_key}).first()
            if row is None:
                _check_there(db, dispatch_key)
                return False
            detail = {"dispatch": dispatch_key, "segment": row.segment}
            append_decision(db, Decision(row.launch_key, kind, who, why, now, detail))
            bump_revision_of_dispatch(db, dispatch_key)
        return True

    def accept(self, dispatch_key: str, campaign_id: int, reason: str, now: datetime) -> bool:
        """Accept a dispatch on evidence from the service itself. Return False if it is already accepted.

        The caller looked it up because it was in doubt, and evidence overrides a decision that a person made meanwhile.
        A later attempt in flight goes on; the dispatch is accepted when that attempt ends, whatever its outcome.
        """
        goes_on = dispatches.c.state == DispatchState.IN_FLIGHT
        change = (
            sa.update(dispatches)
            .where(dispatches.c.dispatch_key == dispatch_key, dispatches.c.state != DispatchState.ACCEPTED)
            .values(
                state=sa.case((goes_on, dispatches.c.state), else_=DispatchState.ACCEPTED),
                campaign_id=campaign_id,
            )
            .returning(dispatches.c.attempt)
        )
        with self._database.write() as db:
            attempt = db.scalar(change)
            if attempt is None:
                return False
            db.execute(sa.insert(outcomes), outcome_row(dispatch_key, attempt, Evidence(reason), now))
            bump_revision_of_dispatch(db, dispatch_key)
        return True

    def open(self, launch_key: str | None = None) -> list[Doubt]:
        """Return the dispatches in doubt, of one launch or of all, oldest first."""
        query = _OPEN if launch_key is None else _OPEN_OF_LAUNCH
        return [Doubt(*row) for row in self._database.rows(query, {"launch": launch_key})]

    def pending_resends(self, launch_key: str | None = None) -> list[PendingResend]:
        """Return the dispatches in doubt that were planned again and have not been sent since, ordered by segment.

        ``launch_key``: only of this launch, not of all. Rejected and stopped launches are left out.
        """
        resent = sa.select(decisions.c.launch_key).where(decisions.c.kind == DecisionKind.RESEND_DISPATCH)
        query = (
            sa.select(
                dispatches.c.dispatch_key,
                dispatches.c.launch_key,
                launches.c.campaign,
                launches.c.state,
                dispatches.c.segment,
                REMAINING,
                segments.c.body.is_not(None),
            )
            .join(launches, launches.c.launch_key == dispatches.c.launch_key)
            .join(segments, OF_SEGMENT)
            .where(
                dispatches.c.launch_key.in_(resent if launch_key is None else [launch_key]),
                dispatches.c.state == DispatchState.PLANNED,
                _OF_UNFINISHED,
                is_still_doubted(dispatches.c.dispatch_key),
            )
            .order_by(dispatches.c.launch_key, dispatches.c.segment)
        )
        return [PendingResend(*row) for row in self._database.rows(query)]

    def known_states(self, launch_key: str) -> dict[str, str]:
        """Return the ``KNOWN_STATE`` of each dispatch of a launch that differs from its state, by key."""
        return dict(self._database.rows(_KNOWN_OTHERWISE, {"launch": launch_key}))

    def expire_leases(self, launch_key: str | None, now: datetime) -> int:
        """Put the dispatches of one launch or of all into doubt if their lease has ended, and return their number.

        A dispatch with an earlier accepted attempt is accepted instead. Leases are compared with the ledger's clock;
        ``now`` is the time to record, by the caller's clock.
        """
        expire = _EXPIRE if launch_key is None else _EXPIRE_OF_LAUNCH
        with self._database.write() as db:
            expired = db.execute(expire, {"launch": launch_key}).all()
            if expired:
                dead = InDoubt(_WORKER_DEAD)
                rows = [outcome_row(row.dispatch_key, row.attempt, dead, now) for row in expired]
                db.execute(sa.insert(outcomes), rows)
                accept_by_earlier_outcome(db, [row.dispatch_key for row in expired], now)
                bump_revision_if_reported(db, (row.launch_key for row in expired))
        return len(expired)

    def next_expiry(self, launch_key: str) -> timedelta | None:
        """Return the time until the first lease of a launch ends; None if no worker is sending it."""
        expiry, now = self._database.one(_NEXT_EXPIRY, {"launch": launch_key})
        return None if expiry is None else max(timedelta(0), expiry - now)


def recorded_later(*kinds: str) -> sa.Exists:
    """Return the condition that a later outcome of one of these kinds exists for the same attempt."""
    later = outcomes.alias("later")
    return (
        sa.exists()
        .where(
            later.c.dispatch_key == outcomes.c.dispatch_key,
            later.c.attempt == outcomes.c.attempt,
            later.c.kind.in_(kinds),
            later.c.id > outcomes.c.id,
        )
        .correlate(outcomes)
    )


def _not_cleared(dispatch_key: Any) -> sa.ColumnElement[bool]:
    """Return the condition that an outcome is a doubt about a dispatch that was not cleared since."""
    return sa.and_(
        outcomes.c.dispatch_key == dispatch_key,
        outcomes.c.kind == OutcomeKind.IN_DOUBT,
        sa.not_(recorded_later(*_CLEARED)),
    )


def is_still_doubted(dispatch_key: Any) -> sa.Exists:
    """Return the condition that an attempt of a dispatch went into doubt and was not cleared since."""
    return sa.exists().where(_not_cleared(dispatch_key))


def may_be_processed(dispatch_key: Any) -> sa.ColumnElement[bool]:
    """Return the condition that an attempt of a dispatch is still in doubt, or that a post-back came from it.

    A post-back that is no evidence counts too, because no one may get a message twice.
    """
    totals = dispatch_totals.alias("received")
    has_post_backs = (totals.c.dispatch_key == dispatch_key, totals.c.deliveries + totals.c.opens > 0)
    return sa.or_(is_still_doubted(dispatch_key), sa.exists().where(*has_post_backs))


_HAS_LEFT_DOUBT = sa.and_(
    dispatches.c.state.in_((DispatchState.PLANNED, DispatchState.REFUSED)),
    may_be_processed(dispatches.c.dispatch_key),
)
_WAS_CLEARED = sa.and_(
    dispatches.c.state == DispatchState.WRITTEN_OFF, sa.not_(may_be_processed(dispatches.c.dispatch_key))
)
_known_state = sa.case(
    (_HAS_LEFT_DOUBT, DispatchState.IN_DOUBT),
    (_WAS_CLEARED, OutcomeKind.NOT_PROCESSED),
    else_=dispatches.c.state,
)
KNOWN_STATE = sa.type_coerce(_known_state, sa.String).label("known")
"""The known result of a dispatch.

It is the state, but *in doubt* also if the dispatch is planned or refused while an earlier attempt is in doubt, or has
post-backs. A ledger that was restored from a backup may not know of the attempt that they came from. It is *not
processed* if the dispatch was written off and a worker has recorded since that the service processed none of its
attempts.
"""

_OF_LAUNCH = dispatches.c.launch_key == sa.bindparam("launch")
_DOUBTFUL = sa.and_(
    outcomes.c.dispatch_key == dispatches.c.dispatch_key, outcomes.c.kind == OutcomeKind.IN_DOUBT
)
_newest_doubt = sa.select(sa.func.max(outcomes.c.id)).where(_DOUBTFUL).correlate(dispatches).scalar_subquery()
_OPEN: sa.Select[Any] = (
    sa.select(
        dispatches.c.dispatch_key,
        dispatches.c.launch_key,
        launches.c.campaign,
        dispatches.c.segment,
        REMAINING,
        dispatches.c.attempt,
        outcomes.c.recorded_at,
        outcomes.c.reason,
        sa.func.coalesce(dispatch_totals.c.deliveries + dispatch_totals.c.opens, 0),
    )
    .join(launches, launches.c.launch_key == dispatches.c.launch_key)
    .join(segments, OF_SEGMENT)
    .join(outcomes, sa.and_(_DOUBTFUL, outcomes.c.id == _newest_doubt))
    .outerjoin(dispatch_totals, dispatch_totals.c.dispatch_key == dispatches.c.dispatch_key)
    .where(dispatches.c.state == DispatchState.IN_DOUBT)
    .order_by(outcomes.c.recorded_at, dispatches.c.launch_key, dispatches.c.segment)
)
_OPEN_OF_LAUNCH = _OPEN.where(_OF_LAUNCH)
_KNOWN_OTHERWISE = sa.select(dispatches.c.dispatch_key, KNOWN_STATE).where(
    _OF_LAUNCH, sa.or_(_HAS_LEFT_DOUBT, _WAS_CLEARED)
)
_EXPIRED = (
    sa.update(dispatches)
    .where(dispatches.c.lease_until < LedgerTime())
    .values(state=DispatchState.IN_DOUBT, lease_until=None)
    .returning(dispatches.c.dispatch_key, dispatches.c.attempt, dispatches.c.launch_key)
)
_EXPIRE = _EXPIRED.where(IN_FLIGHT)
_OF_LAUNCH_IN_FLIGHT = (_OF_LAUNCH, dispatches.c.state == DispatchState.IN_FLIGHT)
_EXPIRE_OF_LAUNCH = _EXPIRED.where(*_OF_LAUNCH_IN_FLIGHT)
_NEXT_EXPIRY = sa.select(sa.func.min(dispatches.c.lease_until), LedgerTime()).where(*_OF_LAUNCH_IN_FLIGHT)
# How many attempts of a dispatch are in doubt, or were before evidence came.
_attempts_in_doubt = (
    sa.select(sa.func.count(sa.distinct(outcomes.c.attempt)))
    .where(_not_cleared(sa.bindparam("dispatch")))
    .scalar_subquery()
)
_OF_UNFINISHED = dispatches.c.launch_key.in_(
    sa.select(launches.c.launch_key).where(launches.c.state.in_(LIVING))
)


def _check_there(db: sa.Connection, dispatch_key: str) -> None:
    known = sa.select(dispatches.c.dispatch_key).where(dispatches.c.dispatch_key == dispatch_key)
    if db.scalar(known) is None:
        raise NotFoundError(f"the ledger holds no dispatch {dispatch_key}")
