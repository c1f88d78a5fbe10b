"""Claims: a worker takes the next planned dispatch of a launch, with the recipients who may get its request now.

:mod:`~sendoff.ledger.requests.next_dispatch` finds it.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from typing import Any, NamedTuple

import sqlalchemy as sa

from sendoff.audience import Segment
from sendoff.audience.identifiers import Identifiers, from_bytes, union
from sendoff.campaign import Variation
from sendoff.ledger.requests.doubts import is_still_doubted
from sendoff.ledger.requests.evidence import accept_by_evidence, outcome_row
from sendoff.ledger.requests.next_dispatch import claim_statement, next_planned, open_zones
from sendoff.ledger.storage.database import Database
from sendoff.ledger.storage.revisions import bump_revision_if_reported
from sendoff.ledger.storage.schema import (
    attempts,
    audiences,
    dispatches,
    launches,
    outcomes,
    segments,
    suppression_state,
    withheld,
)
from sendoff.ledger.suppression.active_suppressions import STATE, ActiveSuppressions
from sendoff.ledger.suppression.active_verdicts import SOURCES_REVISION, ActiveVerdicts
from sendoff.ledger.suppression.withheld import SUPPRESSED
from sendoff.service.wire import NOTHING, without_recipients
from sendoff.states import DispatchState, NotProcessed


@dataclass(frozen=True, slots=True)
class Claim:
    """The right to send one dispatch once, with its content. The intent to send it is already committed."""

    dispatch_key: str
    launch_key: str
    segment: int
    attempt: int
    content: Segment  # its recipients, without those to leave out now, and what they get
    claimed_at: datetime
    not_before: datetime | None = None  # the moment that the rate limit reserved for it
    is_limited: bool = False  # its recipients count against a daily limit


@dataclass(frozen=True, slots=True)
class ClaimRequest:
    """A worker's request for a claim, with its lease.

    ``ready_by``: no claim is made if the service asked to wait until later than this. ``alone``: no other worker uses
    the same name, and this worker holds at most one claim at a time.
    """

    launch_key: str
    worker: str
    now: datetime
    lease: timedelta
    closed_zones: Collection[str | None]  # None is recipients without a time zone
    ready_by: datetime
    suppressions: ActiveSuppressions
    verdicts: ActiveVerdicts
    alone: bool = False

    def execute(self, db: sa.Connection) -> Claim | None:
        """Move the next dispatch to ``in_flight`` and append the intent to send it. Return None if there is none.

        Recipients who are suppressed by now, or whose verdict in another launch leaves them out, are left out and
        recorded. A dispatch without remaining recipients is closed instead of claimed. The move is a compare-and-set.
        If a worker that is alone already holds a claim, it gets that claim again: it made the claim earlier and did not
        learn of it. A dispatch that already has evidence is accepted instead of claimed.
        """
        values = self.values()
        if self.alone:
            row = db.execute(_CLAIM_UNLESS_HOLDING_ONE, values).first()
            if row is None and (held := attempt_held_by(db, self.launch_key, self.worker)):
                content = _read_content(db, self.launch_key, held.segment)
                claim = self._fill(db, held, held.started_at, content, is_held=True)
                # Its moment of the rate limit is not stored, but was near when it was claimed.
                if claim and self.ready_by > self.now:
                    claim = replace(claim, not_before=held.started_at + (self.ready_by - self.now))
                return claim
        else:
            row = db.execute(_CLAIM, values).first()
        return self._complete(db, values, row or _claim_in_any_zone(db, values))

    def values(self) -> dict[str, Any]:
        """Return the parameters of the statements that claim."""
        return {
            "launch": self.launch_key,
            "name": self.worker,
            "lease": self.lease.total_seconds(),
            "closed": [zone or "" for zone in self.closed_zones],
            "ready_by": self.ready_by,
        }

    def complete(self, database: Database, row: Any) -> Claim | None:
        """Return the claim that a statement has committed, with its content, or None if it made none.

        Recipients to leave out are recorded in another transaction, which locks the dispatch and reads its segment
        again, because an erasure may have changed both meanwhile. If the worker dies before it, the dispatch is in
        doubt, as after any claim, although no request was sent.
        """
        if row.dispatch_key is None:
            return None
        content = _content(row)
        people = content.segment.identifiers
        if content.segment.body != NOTHING and (  # otherwise it cannot be made, and the dispatch is closed
            people is None
            or (
                len(people)  # otherwise all were erased, and the dispatch is closed
                and self.suppressions.has_none_of(self.launch_key, people, content.state, self.now)
                and self.verdicts.has_none_of(self.launch_key, people, content.sources_revision)
            )
        ):
            claim: Claim | None = self._claim(row, content.segment, self.now)
        else:
            with database.write() as db:
                if not db.execute(_LOCK_OWN, {"of": row.dispatch_key, "by": row.attempt}).first():
                    return None
                content = _read_content(db, self.launch_key, row.segment)
                claim = self._fill(db, row, self.now, content)
                if claim is None:
                    db.execute(_NO_INTENT, {"of": row.dispatch_key, "by": row.attempt})
        slot = getattr(row, "slot", None)
        return replace(claim, not_before=slot.astimezone(UTC)) if claim and slot else claim

    def _complete(self, db: sa.Connection, values: dict[str, Any], row: sa.Row[Any] | None) -> Claim | None:
        """Return the first claim with something to send, from a claimed dispatch on, and append its intent."""
        while (row := self._skip_proven(db, values, row)) is not None:
            if claim := self._fill(db, row, self.now, _read_content(db, self.launch_key, row.segment)):
                intent = {"number": row.attempt, "worker": self.worker, "started_at": self.now}
                db.execute(_INTENT, {"dispatch_key": row.dispatch_key, **intent})
                return claim
            row = self._next(db, values)
        return None

    def _next(self, db: sa.Connection, values: dict[str, Any]) -> sa.Row[Any] | None:
        return db.execute(_CLAIM, values).first() or _claim_in_any_zone(db, values)

    def _fill(
        self, db: sa.Connection, row: Any, claimed_at: datetime, content: _Content, *, is_held: bool = False
    ) -> Claim | None:
        """Return the claim of a row, and record the recipients that it leaves out.

        Return None if these are all, or if a request that someone wrote cannot be made without them.
        ``is_held``: the worker made the claim earlier and did not learn of it.
        """
        segment = content.segment
        gone = self._left_out(db, content)
        if is_held or gone:
            db.execute(_LEAVE_NOBODY_OUT, {"of": row.dispatch_key, "by": row.attempt})
        for reason, people in gone.items():
            key = {"dispatch_key": row.dispatch_key, "attempt": row.attempt, "reason": reason}
            db.execute(_LEAVE_OUT, {**key, "size": len(people), "identifiers": people.to_bytes()})
        if gone and segment.identifiers is not None:
            segment = _without(segment, segment.identifiers, union(segment.identifiers.kind, gone.values()))
        if segment.body == NOTHING or (segment.identifiers is not None and not len(segment.identifiers)):
            self._close(db, row, is_held=is_held)
            return None
        return self._claim(row, segment, claimed_at)

    def _claim(self, row: Any, segment: Segment, claimed_at: datetime) -> Claim:
        return Claim(row.dispatch_key, self.launch_key, row.segment, row.attempt, segment, claimed_at)

    def _left_out(self, db: sa.Connection, content: _Content) -> dict[str, Identifiers]:
        """Return the recipients of a segment to leave out now, each under one reason."""
        people = content.segment.identifiers
        if people is None:
            return {}
        found: dict[str, Identifiers] = {}
        suppressed = self.suppressions.among(db, self.launch_key, people, content.state, self.now)
        if len(suppressed):
            found[SUPPRESSED], people = suppressed, people - suppressed
        by_verdict = self.verdicts.among(db, self.launch_key, people, content.sources_revision)
        return found | {verdict.value: gone for verdict, gone in by_verdict.items()}

    def _close(self, db: sa.Connection, row: Any, *, is_held: bool) -> None:
        """Close a dispatch without a request, because all its recipients are left out.

        It counts as written off if an earlier attempt is in doubt, so that the doubt stays.
        """
        if is_held:
            db.execute(
                sa.insert(outcomes), outcome_row(row.dispatch_key, row.attempt, _NOBODY_LEFT, self.now)
            )
        db.execute(_CLOSE, {"of": row.dispatch_key, "made": row.attempt if is_held else row.attempt - 1})
        bump_revision_if_reported(db, [self.launch_key])

    def _skip_proven(
        self, db: sa.Connection, values: dict[str, Any], row: sa.Row[Any] | None
    ) -> sa.Row[Any] | None:
        """Return the first claimed dispatch without evidence, accepting those before it that have some."""
        while row is not None and row.has_evidence:
            db.execute(_UNCLAIM, {"of": row.dispatch_key})
            # Unpacking raises ValueError if nothing moved, since the same row would come next forever.
            (_,) = accept_by_evidence(db, [row.dispatch_key], self.now)
            bump_revision_if_reported(db, [self.launch_key])
            row = self._next(db, values)
        return row


def attempt_held_by(db: sa.Connection, launch_key: str, worker: str) -> sa.Row[Any] | None:
    """Return the dispatch and the attempt that a worker with a unique name holds, or None."""
    return db.execute(_HELD, {"launch": launch_key, "name": worker}).first()


def segment_of(db: sa.Connection, launch_key: str, number: int) -> Segment:
    """Return one segment of a launch, as it was frozen."""
    return _read_content(db, launch_key, number).segment


class _Content(NamedTuple):
    """One segment of a launch, with the version of the suppression list and of its sources at the same moment."""

    segment: Segment
    state: tuple[int, str]
    sources_revision: int


def _read_content(db: sa.Connection, launch_key: str, number: int) -> _Content:
    return _content(db.execute(_SEGMENT, {"launch": launch_key, "number_of_it": number}).one())


def _content(row: Any) -> _Content:
    identifiers = None if row.identifiers is None else from_bytes(row.kind, row.identifiers)
    variation = Variation(row.language, row.variant, row.time_zone)
    segment = Segment(identifiers, variation, row.wave, row.template_values, row.body)
    return _Content(segment, (row.list_version, row.list_stamp), row.sources_revision)


def _without(segment: Segment, recipients: Identifiers, gone: Identifiers) -> Segment:
    body = segment.body and without_recipients(segment.body, recipients, gone)
    return replace(segment.without(gone), body=body)


def _claim_in_any_zone(db: sa.Connection, values: dict[str, Any]) -> sa.Row[Any] | None:
    """Try one zone after the other: other workers may be claiming the last dispatches of the first zone right now."""
    for zone in db.scalars(_OPEN_ZONES, values).all():
        if row := db.execute(_CLAIM_IN_ZONE, {**values, "zone": zone}).first():
            return row
    return None


VARIANT: sa.Label[str | None] = sa.func.coalesce(
    segments.c.variant,
    sa.select(launches.c.winner).where(launches.c.launch_key == segments.c.launch_key).scalar_subquery(),
).label("variant")
"""The variant of a segment: its own, or the winner of its launch. None if there is none, or it is not decided yet."""

_OPEN_ZONES = open_zones(lambda zone: zone.not_in(sa.bindparam("closed", expanding=True)))
_CLAIM = claim_statement(next_planned(_OPEN_ZONES.limit(1).scalar_subquery()))
_CLAIM_IN_ZONE = claim_statement(next_planned(sa.bindparam("zone")))

_in_hand = dispatches.alias("in_hand")
_IS_IN_HAND = sa.and_(
    _in_hand.c.launch_key == sa.bindparam("launch"),
    _in_hand.c.state == DispatchState.IN_FLIGHT,
    _in_hand.c.worker == sa.bindparam("name"),
)
_CLAIM_UNLESS_HOLDING_ONE = _CLAIM.where(sa.not_(sa.exists(sa.select(_in_hand.c.segment).where(_IS_IN_HAND))))
_HELD: sa.Select[Any] = (
    sa.select(_in_hand.c.dispatch_key, _in_hand.c.segment, _in_hand.c.attempt, attempts.c.started_at)
    .join(
        attempts,
        sa.and_(attempts.c.dispatch_key == _in_hand.c.dispatch_key, attempts.c.number == _in_hand.c.attempt),
    )
    .where(_IS_IN_HAND)
)
_UNCLAIM = (
    sa.update(dispatches)
    .where(dispatches.c.dispatch_key == sa.bindparam("of"))
    .values(state=DispatchState.PLANNED, lease_until=None, attempt=dispatches.c.attempt - 1)
)
_INTENT = sa.insert(attempts)
_LOCK_OWN = (
    sa.select(dispatches.c.attempt)
    .where(
        dispatches.c.dispatch_key == sa.bindparam("of"),
        dispatches.c.attempt == sa.bindparam("by"),
        dispatches.c.state == DispatchState.IN_FLIGHT,
    )
    .with_for_update()
)
_NO_INTENT = sa.delete(attempts).where(
    attempts.c.dispatch_key == sa.bindparam("of"), attempts.c.number == sa.bindparam("by")
)
_LEAVE_OUT = sa.insert(withheld)
_LEAVE_NOBODY_OUT = sa.delete(withheld).where(
    withheld.c.dispatch_key == sa.bindparam("of"), withheld.c.attempt == sa.bindparam("by")
)
_NOBODY_LEFT = NotProcessed("all its recipients were left out before the request was sent")
_CLOSE = (
    sa.update(dispatches)
    .where(dispatches.c.dispatch_key == sa.bindparam("of"))
    .values(
        state=sa.case(
            (is_still_doubted(sa.bindparam("of")), DispatchState.WRITTEN_OFF),
            else_=DispatchState.SUPPRESSED,
        ),
        lease_until=None,
        attempt=sa.bindparam("made"),
    )
)
_SEGMENT: sa.Select[Any] = (
    sa.select(
        audiences.c.kind,
        *(column for column in segments.c if column.name != "variant"),
        VARIANT,
        *STATE,
        SOURCES_REVISION,
    )
    .join(audiences, audiences.c.launch_key == segments.c.launch_key)
    .outerjoin(suppression_state, sa.true())
    .where(segments.c.launch_key == sa.bindparam("launch"), segments.c.number == sa.bindparam("number_of_it"))
)
