"""Aggregates: the totals of each dispatch's post-backs, stored in the transaction that moves the receiver's mark.

Post-backs that cannot be counted yet are parked in the same transaction and aggregated later.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from datetime import datetime
from itertools import groupby
from operator import itemgetter
from typing import Any, NamedTuple

import sqlalchemy as sa

from sendoff.audience.identifiers import Identifiers, Kind, from_bytes, union
from sendoff.figures import TimelinePoint
from sendoff.ledger.post_backs.post_backs import Parked, PendingRun
from sendoff.ledger.post_backs.scrub import scrub
from sendoff.ledger.post_backs.totals import (
    TOTALS,
    DispatchTotals,
    lock_totals,
    stored_totals,
    totals_of,
    totals_row,
)
from sendoff.ledger.requests.evidence import accept_by_evidence
from sendoff.ledger.storage.bulk import chunked, streamed
from sendoff.ledger.storage.database import LedgerPart
from sendoff.ledger.storage.erasure_state import is_current
from sendoff.ledger.storage.joins import SENT_TO
from sendoff.ledger.storage.ledger_time import LedgerTime
from sendoff.ledger.storage.revisions import bump_revision
from sendoff.ledger.storage.schema import (
    DOUBTFUL,
    audiences,
    dispatch_totals,
    dispatches,
    launches,
    open_hours,
    outcomes,
    parked_post_backs,
    receivers,
    timeline,
)
from sendoff.states import DispatchState, OutcomeKind

_SEGMENTS_AT_ONCE = 200  # read at a time


@dataclass(frozen=True, slots=True)
class DispatchContext:
    """The facts about a dispatch that its post-backs are checked against."""

    launch_key: str
    wave: int
    campaign_id: int | None  # None also if an earlier attempt may have created a campaign with another ID
    awaits_reply: bool  # a request is in flight, and its reply may contain the campaign ID
    identified_by: str
    kind: Kind
    settled_at: datetime | None
    is_deleted: bool = False  # its launch's recipients were deleted, so nothing is counted any more


class Newest(NamedTuple):
    """When the newest post-back of a launch was received, and how many of its post-backs are of each kind."""

    received_at: datetime | None
    deliveries: int
    opens: int


@dataclass(frozen=True, slots=True)
class Orphans:
    """Counts of post-backs with valid addresses whose dispatches the ledger does not have."""

    post_backs: int
    dispatches: int
    newest_at: datetime | None


@dataclass(frozen=True, slots=True)
class AggregatedRun:
    """The totals of runs of post-backs, to be stored in one transaction."""

    runs: Sequence[PendingRun]  # one per receiver; none if they were parked
    totals: Iterable[Mapping[str, DispatchTotals]]  # batches of: dispatch key -> totals to add
    launches: Collection[str]  # launches that the run adds to
    # (launch key, wave, minute) -> deliveries, opens
    minutes: Mapping[tuple[str, int, datetime], tuple[int, int]]
    parked: Sequence[Parked] = ()
    # By receiver: numbers that name erased people.
    erased: Mapping[int, Collection[int]] = field(default_factory=dict)
    erasures: int | None = None  # the version of the erasures when the run was read


class Aggregates(LedgerPart):
    """The aggregated post-backs of a ledger's dispatches."""

    def identified_by(self) -> list[str]:
        """Return the distinct identifier columns that the launches' queries used."""
        return self._database.scalars(_IDENTIFIED_BY)

    def contexts(self, dispatch_keys: Iterable[str]) -> dict[str, DispatchContext]:
        """Return the context of each dispatch key that the ledger knows."""
        with self._database.read() as db:
            return {
                row.dispatch_key: DispatchContext(
                    launch_key=row.launch_key,
                    wave=row.wave,
                    campaign_id=None if row.is_ambiguous else row.campaign_id,
                    awaits_reply=not row.is_ambiguous and row.is_leased,
                    identified_by=row.identified_by,
                    kind=row.kind,
                    settled_at=row.settled_at,
                    is_deleted=row.recipients_deleted_before is not None,
                )
                for keys in chunked(dispatch_keys)
                for row in db.execute(_CONTEXT.where(dispatches.c.dispatch_key.in_(keys)))
            }

    def sent_to(self, dispatch_keys: Iterable[str]) -> Iterator[tuple[str, Identifiers | None]]:
        """Yield each dispatch key with its recipients, read lazily; None if the service chose them."""
        with self._database.read() as db:
            for keys in chunked(dispatch_keys, _SEGMENTS_AT_ONCE):
                for key, kind, blob in db.execute(SENT_TO.where(dispatches.c.dispatch_key.in_(keys))):
                    yield key, None if blob is None else from_bytes(kind, blob)

    def parked(self) -> list[Parked]:
        """Return the parked post-backs whose dispatches the ledger now has."""
        return [Parked(**row._mapping) for row in self._database.rows(_PARKED)]

    def orphans(self) -> Orphans:
        """Count the parked post-backs whose dispatches the ledger does not have."""
        query = (
            sa.select(
                sa.func.coalesce(sa.func.sum(parked_post_backs.c.post_backs), 0),
                sa.func.count(sa.distinct(parked_post_backs.c.dispatch_key)),
                sa.func.max(parked_post_backs.c.newest_at),
            )
            .outerjoin(dispatches, dispatches.c.dispatch_key == parked_post_backs.c.dispatch_key)
            .where(dispatches.c.dispatch_key.is_(None))
        )
        count, keys, newest_at = self._database.one(query)
        return Orphans(int(count), keys, newest_at)

    def store_run(self, run: AggregatedRun) -> bool:
        """Add a run to the totals and move the marks of its receivers, in one transaction.

        If another process aggregated a part of it first, or people were erased since the run was read, change nothing
        and return False.
        """
        moves = [
            sa.update(receivers)
            .where(receivers.c.receiver == receiver, receivers.c.aggregated_to == after)
            .values(aggregated_to=up_to)
            for receiver, after, up_to in run.runs
        ]
        return self._store(run, moves)

    def store_parked(self, parked: Sequence[Parked], run: AggregatedRun) -> bool:
        """Add a run of parked post-backs to the totals and unpark them, in one transaction.

        If another process aggregated any of them first, or people were erased since the run was read, change nothing
        and return False.
        """
        unparked = [
            sa.delete(parked_post_backs).where(
                parked_post_backs.c.receiver == post_backs.receiver,
                parked_post_backs.c.first == post_backs.first,
            )
            for post_backs in parked
        ]
        return self._store(run, unparked)

    def _store(self, run: AggregatedRun, changes: Iterable[sa.Update | sa.Delete]) -> bool:
        """Add a run to the totals, unless people were erased since it was read, or a change finds no row any more."""
        with self._database.write() as db:
            lock_totals(db)
            if not is_current(db, run.erasures):
                return False
            for change in changes:
                if not db.execute(change).rowcount:
                    db.rollback()
                    return False
            self._add(db, run)
            if run.parked:
                db.execute(sa.insert(parked_post_backs), [asdict(post_backs) for post_backs in run.parked])
        return True

    def _add(self, db: sa.Connection, run: AggregatedRun) -> None:
        for receiver, numbers in sorted(run.erased.items()):
            scrub(db, receiver, numbers)
        for batch in run.totals:
            stored = stored_totals(db, batch)
            rows = [
                totals_row(key, stored[key] | new if key in stored else new) for key, new in batch.items()
            ]
            db.execute(self._database.insert_or_replace(dispatch_totals), rows)
            if hours := _hour_rows(db, batch):
                db.execute(self._database.insert_or_replace(open_hours), hours)
        minutes = [
            {"launch_key": launch, "wave": wave, "minute": minute, "deliveries": deliveries, "opens": opens}
            for (launch, wave, minute), (deliveries, opens) in run.minutes.items()
        ]
        if minutes:
            db.execute(self._database.insert_or_increment(timeline, "deliveries", "opens"), minutes)
        bump_revision(db, run.launches)

    def resolve_doubts(self, now: datetime) -> int:
        """Accept every dispatch in doubt that has evidence, and return their number.

        Evidence also overrides a person who wrote the dispatch off, or planned it again if it has not been sent since.
        """
        keys = self._database.scalars(_EVIDENT)
        # Usually there are none. Then nothing is written, so receivers do not wait.
        return sum(self._resolve(some, now) for some in chunked(keys))

    def _resolve(self, keys: Collection[str], now: datetime) -> int:
        with self._database.write() as db:
            resolved = accept_by_evidence(db, keys, now)
            bump_revision(db, (row.launch_key for row in resolved))
        return len(resolved)

    def totals(self, launch_key: str) -> dict[str, DispatchTotals]:
        """Return the totals of each dispatch of a launch that has a post-back."""
        return dict(self.iter_totals(launch_key))

    def iter_totals(self, launch_key: str) -> Iterator[tuple[str, DispatchTotals]]:
        """Yield the same totals as :meth:`totals` lazily, in the order of segments.

        That is also the order of most text identifiers.
        """
        with self._database.read() as db:
            for row in db.execute(_TOTALS, {"launch": launch_key}):
                yield row.dispatch_key, totals_of(row)

    def newest(self, launch_key: str) -> Newest:
        """Return when the newest post-back of a launch was received, and the numbers of deliveries and opens.

        This reads one row per request, and no identifiers.
        """
        newest_at, deliveries, opens = self._database.one(_NEWEST, {"launch": launch_key})
        return Newest(newest_at, int(deliveries), int(opens))

    def hours_of_opens(
        self, connection: str, identified_by: str, kind: Kind, since: datetime
    ) -> Iterator[dict[int, Identifiers]]:
        """Yield who opened at which hour of the day in UTC, for each launch of a connection, the newest first.

        ``since``: only launches made since then. Launches whose recipients have other identifiers, or were deleted,
        are left out.
        """
        newest_first = (
            sa.select(launches.c.launch_key)
            .join(audiences, audiences.c.launch_key == launches.c.launch_key)
            .where(
                launches.c.connection == connection,
                launches.c.created_at >= since,
                launches.c.recipients_deleted_before.is_(None),
                audiences.c.identified_by == identified_by,
                audiences.c.kind == kind,
            )
            .order_by(launches.c.created_at.desc(), launches.c.launch_key)
        )
        with self._database.read() as db:
            for launch_key in db.scalars(newest_first).all():
                with db.execute(_OPEN_HOURS, {"launch": launch_key}) as rows:
                    opened = {
                        hour: union(kind, (from_bytes(kind, blob) for _, blob in some))
                        for hour, some in groupby(rows, itemgetter(0))
                    }
                if opened:
                    yield opened

    def timeline(self, launch_key: str, *, up_to_wave: int | None = None) -> list[TimelinePoint]:
        """Return the post-backs of a launch, or of its first waves, by minute of reception, in order of time."""
        counts = (sa.func.sum(each) for each in (timeline.c.deliveries, timeline.c.opens))
        query = (
            sa.select(timeline.c.minute, *counts)
            .where(timeline.c.launch_key == launch_key)
            .group_by(timeline.c.minute)
            .order_by(timeline.c.minute)
        )
        if up_to_wave is not None:
            query = query.where(timeline.c.wave <= up_to_wave)
        return [
            TimelinePoint(minute, int(deliveries), int(opens))
            for minute, deliveries, opens in self._database.rows(query)
        ]


_IDENTIFIED_BY = sa.select(audiences.c.identified_by).distinct()
_OF_LAUNCH = dispatches.c.launch_key == sa.bindparam("launch")
_TOTALS = streamed(TOTALS.where(_OF_LAUNCH).order_by(dispatches.c.segment), 100)
_NEWEST = (
    sa.select(
        sa.func.max(dispatch_totals.c.newest_at),
        sa.func.coalesce(sa.func.sum(dispatch_totals.c.deliveries), 0),
        sa.func.coalesce(sa.func.sum(dispatch_totals.c.opens), 0),
    )
    .join(dispatches, dispatches.c.dispatch_key == dispatch_totals.c.dispatch_key)
    .where(_OF_LAUNCH)
)
_OPEN_HOURS = streamed(
    sa.select(open_hours.c.hour, open_hours.c.identifiers)
    .join(dispatches, dispatches.c.dispatch_key == open_hours.c.dispatch_key)
    .where(_OF_LAUNCH)
    .order_by(open_hours.c.hour),
    100,
)
_PARKED = sa.select(parked_post_backs).join(
    dispatches, dispatches.c.dispatch_key == parked_post_backs.c.dispatch_key
)
_EVIDENT = (
    sa.select(dispatches.c.dispatch_key)
    .join(dispatch_totals, dispatch_totals.c.dispatch_key == dispatches.c.dispatch_key)
    .where(DOUBTFUL, dispatch_totals.c.is_evidence)
)
_EARLIER_DOUBT = sa.exists().where(
    outcomes.c.dispatch_key == dispatches.c.dispatch_key,
    outcomes.c.kind == OutcomeKind.IN_DOUBT,
    outcomes.c.attempt < dispatches.c.attempt,
)

_IS_LEASED = sa.and_(dispatches.c.state == DispatchState.IN_FLIGHT, dispatches.c.lease_until >= LedgerTime())

_CONTEXT = (
    sa.select(
        dispatches.c.dispatch_key,
        dispatches.c.launch_key,
        dispatches.c.wave,
        dispatches.c.campaign_id,
        _IS_LEASED.label("is_leased"),
        _EARLIER_DOUBT.label("is_ambiguous"),
        audiences.c.identified_by,
        audiences.c.kind,
        launches.c.settled_at,
        launches.c.recipients_deleted_before,
    )
    .join(launches, launches.c.launch_key == dispatches.c.launch_key)
    .join(audiences, audiences.c.launch_key == dispatches.c.launch_key)
)


def _hour_rows(db: sa.Connection, totals: Mapping[str, DispatchTotals]) -> list[dict[str, Any]]:
    """Return the rows of ``open_hours`` that new totals change, with the recipients that are stored already."""
    new = {(key, hour): people for key, each in totals.items() for hour, people in each.hours.items()}
    if not new:
        return []
    query = sa.select(open_hours).where(
        open_hours.c.dispatch_key.in_({key for key, _ in new}),
        open_hours.c.hour.in_({hour for _, hour in new}),
    )
    for row in db.execute(query):
        if (people := new.get((row.dispatch_key, row.hour))) is not None:
            new[row.dispatch_key, row.hour] = people | from_bytes(people.kind, row.identifiers)
    return [
        {"dispatch_key": key, "hour": hour, "identifiers": people.to_bytes()}
        for (key, hour), people in new.items()
    ]
