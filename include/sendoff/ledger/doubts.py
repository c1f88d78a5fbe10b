"""Doubts in the ledger: how a dispatch goes into doubt, what is known of it, and what settles it.

A worker that was silent beyond its lease leaves one, as does an outcome that nobody knows. It ends as ``accepted`` by
evidence, and as ``planned`` or ``written_off`` where a person, or the campaign, says so.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Literal

import sqlalchemy as sa

from sendoff.errors import NotFoundError
from sendoff.ledger.audit_log import Decision, append_decision
from sendoff.ledger.database import Database, LedgerTime
from sendoff.ledger.evidence import accept_by_earlier_outcome, accept_by_evidence, evidence_row, outcome_row
from sendoff.ledger.schema import (
    IN_FLIGHT,
    decisions,
    dispatch_totals,
    dispatches,
    launches,
    outcomes,
    segments,
)
from sendoff.ledger.verdicts import bump_revision_if_reported, bump_revision_of_dispatch
from sendoff.outcome import InDoubt
from sendoff.states import DispatchState, LaunchState, OutcomeKind

_RESOLVED = {"resend": DispatchState.PLANNED, "write_off": DispatchState.WRITTEN_OFF}
_CLEARED = (OutcomeKind.REFUSED, OutcomeKind.NOT_PROCESSED)  # which end the doubt about an attempt
_WORKER_DEAD = "the worker stopped before it recorded an outcome"

OF_SEGMENT = sa.and_(
    segments.c.launch_key == dispatches.c.launch_key, segments.c.number == dispatches.c.segment
)
"""Joins dispatches to their segments."""
IS_IN_DOUBT = dispatches.c.state == sa.literal_column("'in_doubt'")
"""Keeps dispatches in doubt; as a literal, by which SQLite finds them in the index of them."""


@dataclass(frozen=True, slots=True)
class Doubt:
    """A dispatch of which nobody knows whether it was processed, with what is known of it."""

    dispatch_key: str
    launch_key: str
    campaign: str
    segment: int
    people: int  # 0 where the service chooses them
    attempt: int
    since: datetime
    reason: str | None
    post_backs: int  # that prove nothing: unreadable, or of others


@dataclass(frozen=True, slots=True)
class PendingResend:
    """A dispatch that was in doubt and is planned again, so that its next request is not made yet."""

    dispatch_key: str
    launch_key: str
    campaign: str
    state: LaunchState
    segment: int
    people: int  # 0 where the service chooses them


class Doubts:
    """The dispatches of a ledger that are in doubt, or were."""

    def __init__(self, database: Database) -> None:
        self._database = database

    def resolve(
        self,
        dispatch_key: str,
        how: Literal["resend", "write_off"],
        who: str,
        why: str,
        now: datetime,
        *,
        doubts: int | None = None,
    ) -> bool:
        """Plan a dispatch in doubt again, or write it off, and keep the decision; False where that is not possible.

        It is not where the dispatch is not in doubt, or no more because something came back from it, nor, to plan it,
        where its launch is over. ``doubts``: only if so many of its attempts went into doubt. Raises NotFoundError for
        a dispatch that the ledger does not hold.
        """
        change = sa.update(dispatches).where(
            dispatches.c.dispatch_key == dispatch_key, dispatches.c.state == DispatchState.IN_DOUBT
        )
        if how == "resend":
            change = change.where(_OF_UNFINISHED)
        if doubts is not None:
            change = change.where(_doubts(dispatch_key) == doubts)
        moved = change.values(state=_RESOLVED[how]).returning(dispatches.c.launch_key, dispatches.c.segment)
        with self._database.write() as db:
            if accept_by_evidence(db, [dispatch_key], now):
                bump_revision_of_dispatch(db, dispatch_key)
                return False
            row = db.execute(moved).first()
            if row is None:
                _check_there(db, dispatch_key)
                return False
            detail = {"dispatch": dispatch_key, "segment": row.segment}
            append_decision(db, Decision(row.launch_key, f"{how}_dispatch", who, why, now, detail))
            bump_revision_of_dispatch(db, dispatch_key)
        return True

    def accept(self, dispatch_key: str, campaign_id: int, reason: str, now: datetime) -> bool:
        """Take a dispatch for accepted by evidence that the service itself shows; False where it is already.

        Whoever looked it up saw it in doubt, and evidence stands over what a person did meanwhile. Only a later attempt
        that is in flight goes on; whatever becomes of that, the dispatch is accepted when it ends.
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
            db.execute(sa.insert(outcomes), evidence_row(dispatch_key, attempt, reason, now))
            bump_revision_of_dispatch(db, dispatch_key)
        return True

    def open(self, launch_key: str | None = None) -> list[Doubt]:
        """Return the dispatches in doubt, of one launch or of all, oldest first."""
        doubtful = sa.and_(
            outcomes.c.dispatch_key == dispatches.c.dispatch_key, outcomes.c.kind == OutcomeKind.IN_DOUBT
        )
        newest = sa.select(sa.func.max(outcomes.c.id)).where(doubtful).correlate(dispatches).scalar_subquery()
        query = (
            sa.select(
                dispatches.c.dispatch_key,
                dispatches.c.launch_key,
                launches.c.campaign,
                dispatches.c.segment,
                segments.c.size,
                dispatches.c.attempt,
                outcomes.c.recorded_at,
                outcomes.c.reason,
                sa.func.coalesce(dispatch_totals.c.deliveries + dispatch_totals.c.opens, 0),
            )
            .join(launches, launches.c.launch_key == dispatches.c.launch_key)
            .join(segments, OF_SEGMENT)
            .join(outcomes, sa.and_(doubtful, outcomes.c.id == newest))
            .outerjoin(dispatch_totals, dispatch_totals.c.dispatch_key == dispatches.c.dispatch_key)
            .where(IS_IN_DOUBT)
            .order_by(outcomes.c.recorded_at, dispatches.c.launch_key, dispatches.c.segment)
        )
        if launch_key is not None:
            query = query.where(dispatches.c.launch_key == launch_key)
        with self._database.read() as db:
            return [Doubt(*row) for row in db.execute(query)]

    def pending_resends(self, launch_key: str | None = None) -> list[PendingResend]:
        """Return the dispatches in doubt that somebody had planned again and nobody has sent since, by segment.

        Of one launch or of all, without those that are rejected or stopped.
        """
        resent = sa.select(decisions.c.launch_key).where(decisions.c.kind == "resend_dispatch")
        query = (
            sa.select(
                dispatches.c.dispatch_key,
                dispatches.c.launch_key,
                launches.c.campaign,
                launches.c.state,
                dispatches.c.segment,
                segments.c.size,
            )
            .join(launches, launches.c.launch_key == dispatches.c.launch_key)
            .join(segments, OF_SEGMENT)
            .where(
                dispatches.c.launch_key.in_(resent if launch_key is None else [launch_key]),
                dispatches.c.state == DispatchState.PLANNED,
                _OF_UNFINISHED,
                sa.exists().where(
                    outcomes.c.dispatch_key == dispatches.c.dispatch_key,
                    outcomes.c.kind == OutcomeKind.IN_DOUBT,
                    sa.not_(recorded_later(*_CLEARED)),
                ),
            )
            .order_by(dispatches.c.launch_key, dispatches.c.segment)
        )
        with self._database.read() as db:
            return [PendingResend(*row) for row in db.execute(query)]

    def with_earlier_doubt(self, launch_key: str) -> frozenset[str]:
        """Return the keys of dispatches that are not in doubt any more, but whose earlier attempt still is.

        Those are planned again, or were refused when they were sent again.
        """
        clear = outcomes.alias("clear")
        query = (
            sa.select(dispatches.c.dispatch_key)
            .join(outcomes, outcomes.c.dispatch_key == dispatches.c.dispatch_key)
            .outerjoin(
                clear,
                sa.and_(
                    clear.c.dispatch_key == outcomes.c.dispatch_key,
                    clear.c.attempt == outcomes.c.attempt,
                    clear.c.kind.in_(_CLEARED),
                ),
            )
            .where(
                dispatches.c.launch_key == launch_key,
                dispatches.c.state.in_((DispatchState.PLANNED, DispatchState.REFUSED)),
                outcomes.c.kind == OutcomeKind.IN_DOUBT,
                clear.c.id.is_(None),
            )
        )
        with self._database.read() as db:
            return frozenset(db.scalars(query))

    def expire_leases(self, launch_key: str | None, now: datetime) -> int:
        """Put every dispatch of a launch, or of all, whose worker was silent beyond its lease into doubt.

        Return their number. A dispatch of which an earlier attempt is known to be accepted is accepted instead. The
        ledger's clock judges the leases; ``now`` is when they are noticed, by the caller's clock.
        """
        is_of_launch = sa.true() if launch_key is None else dispatches.c.launch_key == launch_key
        with self._database.write() as db:
            expired = db.execute(
                sa.update(dispatches)
                .where(
                    is_of_launch,
                    IN_FLIGHT if launch_key is None else dispatches.c.state == DispatchState.IN_FLIGHT,
                    dispatches.c.lease_until < LedgerTime(),
                )
                .values(state=DispatchState.IN_DOUBT, lease_until=None)
                .returning(dispatches.c.dispatch_key, dispatches.c.attempt, dispatches.c.launch_key)
            ).all()
            if expired:
                dead = InDoubt(_WORKER_DEAD)
                rows = [outcome_row(row.dispatch_key, row.attempt, dead, now) for row in expired]
                db.execute(sa.insert(outcomes), rows)
                accept_by_earlier_outcome(db, [row.dispatch_key for row in expired], now)
                bump_revision_if_reported(db, (row.launch_key for row in expired))
        return len(expired)

    def next_expiry(self, launch_key: str) -> timedelta | None:
        """Return how long the ledger waits for the first worker that is sending a launch; None if no worker is."""
        query = sa.select(sa.func.min(dispatches.c.lease_until), LedgerTime()).where(
            dispatches.c.launch_key == launch_key, dispatches.c.state == DispatchState.IN_FLIGHT
        )
        with self._database.read() as db:
            expiry, now = db.execute(query).one()
        return None if expiry is None else max(timedelta(0), expiry - now)


def recorded_later(*kinds: str) -> sa.Exists:
    """Check whether something of the same attempt was recorded after an outcome."""
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


_OF_UNFINISHED = dispatches.c.launch_key.in_(
    sa.select(launches.c.launch_key).where(
        launches.c.state.in_([state for state in LaunchState if not state.is_final])
    )
)


def _doubts(dispatch_key: str) -> sa.ScalarSelect[int]:
    """Count the attempts of a dispatch that are in doubt, or were before evidence came."""
    return (
        sa.select(sa.func.count(sa.distinct(outcomes.c.attempt)))
        .where(
            outcomes.c.dispatch_key == dispatch_key,
            outcomes.c.kind == OutcomeKind.IN_DOUBT,
            sa.not_(recorded_later(*_CLEARED)),
        )
        .scalar_subquery()
    )


def _check_there(db: sa.Connection, dispatch_key: str) -> None:
    known = sa.select(dispatches.c.dispatch_key).where(dispatches.c.dispatch_key == dispatch_key)
    if db.scalar(known) is None:
        raise NotFoundError(f"the ledger holds no dispatch {dispatch_key}")
