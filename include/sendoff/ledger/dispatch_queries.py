"""How launches stand: the states of their dispatches, what became of the newest, and whom each is for.

Nothing is moved here: that is in :mod:`~sendoff.ledger.dispatches`.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import NamedTuple

import sqlalchemy as sa

from sendoff.audience import Segment
from sendoff.audience.identifiers import Identifiers, empty, from_bytes
from sendoff.campaign import Variation
from sendoff.ledger.claims import segment_of
from sendoff.ledger.database import Database
from sendoff.ledger.doubts import OF_SEGMENT, recorded_later
from sendoff.ledger.schema import audiences, dispatch_totals, dispatches, outcomes, segments
from sendoff.states import DispatchState, OutcomeKind


@dataclass(frozen=True, slots=True)
class Dispatch:
    """One request of a launch, as the ledger knows it."""

    dispatch_key: str
    segment: int
    state: DispatchState
    attempt: int
    campaign_id: int | None


@dataclass(frozen=True, slots=True)
class RecentOutcomes:
    """What became of the newest requests of a launch; of those in doubt, which still are."""

    requests: int
    refused: int
    in_doubt: int


@dataclass(frozen=True, slots=True)
class Progress:
    """How many dispatches of one wave and one time zone of a launch are in one state."""

    wave: int
    time_zone: str | None
    state: DispatchState
    dispatches: int


@dataclass(frozen=True, slots=True)
class AttemptRecord:
    """What was recorded of one attempt: its outcome, or evidence that came later."""

    attempt: int
    kind: OutcomeKind
    status: int | None  # of the answer over HTTP, where one was read
    reason: str | None
    recorded_at: datetime


@dataclass(frozen=True, slots=True)
class Request:
    """One request of a launch, what its people get, and what became of it."""

    dispatch_key: str
    segment: int
    wave: int
    time_zone: str | None
    language: str | None
    variant: str | None
    people: int  # 0 where the service chooses them
    state: DispatchState
    attempt: int  # 0 before the first
    campaign_id: int | None
    deliveries: int
    opens: int
    recorded: Sequence[AttemptRecord]  # oldest first

    @property
    def doubts(self) -> int:
        """How many of its attempts went into doubt, and were not said later to be refused or not processed."""
        return len(doubtful(self.recorded))


def doubtful(recorded: Iterable[AttemptRecord]) -> frozenset[int]:
    """Return the numbers of the attempts of which nobody knows, or knew, whether they were processed."""
    numbers: set[int] = set()
    for record in recorded:
        if record.kind == OutcomeKind.IN_DOUBT:
            numbers.add(record.attempt)
        elif record.kind in (OutcomeKind.REFUSED, OutcomeKind.NOT_PROCESSED):
            numbers.discard(record.attempt)
    return frozenset(numbers)


class SegmentSize(NamedTuple):
    """What one segment of a launch is, and how many people it has."""

    variation: Variation
    wave: int
    people: int


class DispatchQueries:
    """Reads the dispatches of a ledger and moves none: that is in :class:`~sendoff.ledger.dispatches.Dispatches`."""

    def __init__(self, database: Database) -> None:
        self._database = database

    def recent_outcomes(self, launch_key: str, newest: int, since: datetime | None) -> RecentOutcomes:
        """Count what became of the newest so many requests of a launch, of those after a moment.

        Each counts once, as what was recorded of it last: a doubt about a worker that was silent may end in an answer.
        """
        kinds = (OutcomeKind.ACCEPTED, OutcomeKind.REFUSED, OutcomeKind.IN_DOUBT)
        query = (
            sa.select(outcomes.c.kind, dispatches.c.state)
            .join(dispatches, dispatches.c.dispatch_key == outcomes.c.dispatch_key)
            .where(
                dispatches.c.launch_key == launch_key,
                outcomes.c.kind.in_(kinds),
                sa.not_(recorded_later(*kinds, OutcomeKind.NOT_PROCESSED)),
            )
            .order_by(outcomes.c.id.desc())
            .limit(newest)
        )
        if since is not None:
            query = query.where(outcomes.c.recorded_at > since)
        with self._database.read() as db:
            rows = [tuple(row) for row in db.execute(query)]
        refused = sum(kind == OutcomeKind.REFUSED for kind, _ in rows)
        return RecentOutcomes(len(rows), refused, rows.count((OutcomeKind.IN_DOUBT, DispatchState.IN_DOUBT)))

    def of_launch(self, launch_key: str) -> list[Dispatch]:
        """Return the dispatches of a launch in the order of their segments."""
        query = sa.select(*_DISPATCH)
        with self._database.read() as db:
            rows = db.execute(
                query.where(dispatches.c.launch_key == launch_key).order_by(dispatches.c.segment)
            )
            return [Dispatch(*row) for row in rows]

    def states(self, launch_key: str) -> dict[str, int]:
        """Count the dispatches of a launch by state; states without any are left out."""
        query = (
            sa.select(dispatches.c.state, sa.func.count().label("size"))
            .where(dispatches.c.launch_key == launch_key)
            .group_by(dispatches.c.state)
        )
        with self._database.read() as db:
            return {row.state: row.size for row in db.execute(query)}

    def progress(self, launch_key: str) -> list[Progress]:
        """Count the dispatches of a launch by wave, time zone and state; what is empty is left out."""
        columns = (dispatches.c.wave, dispatches.c.time_zone, dispatches.c.state)
        query = (
            sa.select(*columns, sa.func.count())
            .where(dispatches.c.launch_key == launch_key)
            .group_by(*columns)
        )
        with self._database.read() as db:
            return [
                Progress(wave, zone or None, state, count) for wave, zone, state, count in db.execute(query)
            ]

    def accepted(self, launch_key: str, waves: Collection[int]) -> Iterator[Identifiers]:
        """Yield the identifiers of each accepted dispatch of some waves of a launch, read as they are used."""
        query = (
            sa.select(audiences.c.kind, segments.c.identifiers)
            .join(audiences, audiences.c.launch_key == segments.c.launch_key)
            .join(dispatches, OF_SEGMENT)
            .where(
                segments.c.launch_key == launch_key,
                segments.c.wave.in_(waves),
                segments.c.identifiers.is_not(None),
                dispatches.c.state == DispatchState.ACCEPTED,
            )
        )
        with self._database.read() as db:
            streamed = db.execution_options(stream_results=True, max_row_buffer=100)
            for kind, blob in streamed.execute(query):
                yield from_bytes(kind, blob)

    def refused(self, launch_key: str, since: datetime | None = None) -> int:
        """Count the dispatches of a launch that the service refused, of those it refused after a moment."""
        query = (
            sa.select(sa.func.count(sa.distinct(dispatches.c.dispatch_key)))
            .join(outcomes, outcomes.c.dispatch_key == dispatches.c.dispatch_key)
            .where(
                dispatches.c.launch_key == launch_key,
                dispatches.c.state == DispatchState.REFUSED,
                outcomes.c.kind == OutcomeKind.REFUSED,
            )
        )
        if since is not None:
            query = query.where(outcomes.c.recorded_at > since)
        with self._database.read() as db:
            return db.scalar(query) or 0

    def reasons(self, launch_key: str, kind: str, since: datetime | None = None) -> list[str]:
        """Return the reasons recorded with one kind of outcome, such as ``refused``, after a moment; each text once."""
        query = (
            sa.select(outcomes.c.reason)
            .join(dispatches, dispatches.c.dispatch_key == outcomes.c.dispatch_key)
            .where(dispatches.c.launch_key == launch_key, outcomes.c.kind == kind)
            .distinct()
            .order_by(outcomes.c.reason)
        )
        if since is not None:
            query = query.where(outcomes.c.recorded_at > since)
        with self._database.read() as db:
            return [reason for reason in db.scalars(query) if reason]

    def newest_outcome(self, launch_key: str, *, up_to_wave: int | None = None) -> datetime | None:
        """Return the time of the newest outcome of a launch, or of its waves up to one; None before the first."""
        query = (
            sa.select(outcomes.c.recorded_at)
            .join(dispatches, dispatches.c.dispatch_key == outcomes.c.dispatch_key)
            .where(dispatches.c.launch_key == launch_key)
            .order_by(outcomes.c.recorded_at.desc())
            .limit(1)
        )
        if up_to_wave is not None:
            query = query.where(dispatches.c.wave <= up_to_wave)
        with self._database.read() as db:
            return db.scalar(query)

    def segments(self, launch_key: str) -> Iterator[tuple[Dispatch, Identifiers]]:
        """Yield each dispatch of a launch with the identifiers of its segment, read as they are used.

        One for whom the service chooses the people has none.
        """
        query = (
            sa.select(*_DISPATCH, audiences.c.kind, segments.c.identifiers)
            .join(audiences, audiences.c.launch_key == dispatches.c.launch_key)
            .join(segments, OF_SEGMENT)
            .where(dispatches.c.launch_key == launch_key)
            .order_by(dispatches.c.segment)
        )
        with self._database.read() as db:
            streamed = db.execution_options(stream_results=True, max_row_buffer=100)
            for *dispatch, kind, blob in streamed.execute(query):
                yield Dispatch(*dispatch), empty(kind) if blob is None else from_bytes(kind, blob)

    def variants(self, launch_key: str) -> dict[int, str]:
        """Return the variant of each segment of a launch, by its number; those without one are left out."""
        query = sa.select(segments.c.number, segments.c.variant)
        with self._database.read() as db:
            rows = db.execute(
                query.where(segments.c.launch_key == launch_key, segments.c.variant.is_not(None))
            )
            return {row.number: row.variant for row in rows}

    def segment_sizes(self, launch_key: str) -> list[SegmentSize]:
        """Return the sizes of the segments of a launch, in order, without reading their people."""
        query = sa.select(
            *(segments.c[name] for name in ("language", "variant", "time_zone", "wave", "size"))
        )
        with self._database.read() as db:
            rows = db.execute(query.where(segments.c.launch_key == launch_key).order_by(segments.c.number))
            return [
                SegmentSize(Variation(row.language, row.variant, row.time_zone), row.wave, row.size)
                for row in rows
            ]

    def segment(self, launch_key: str, number: int) -> Segment:
        """Return one segment."""
        with self._database.read() as db:
            return segment_of(db, launch_key, number)

    def requests(
        self, launch_key: str, *, states: Collection[str] = (), offset: int = 0, limit: int = 50
    ) -> list[Request]:
        """Return a page of the requests of a launch, in the order of their segments, with their attempts.

        ``states``: only requests in one of these states; all if empty.
        """
        query = _REQUESTS.where(dispatches.c.launch_key == launch_key).order_by(dispatches.c.segment)
        if states:
            query = query.where(dispatches.c.state.in_(states))
        with self._database.read() as db:
            rows = db.execute(query.offset(offset).limit(limit)).all()
            attempts = _attempt_records(db, [row.dispatch_key for row in rows])
        return [
            Request(
                **{**row._mapping, "time_zone": row.time_zone or None}, recorded=attempts[row.dispatch_key]
            )
            for row in rows
        ]

    def attempt_records(self, dispatch_keys: Collection[str]) -> Mapping[str, Sequence[AttemptRecord]]:
        """Return what was recorded of the attempts of some dispatches, oldest first; of very many, the newest."""
        with self._database.read() as db:
            return _attempt_records(db, dispatch_keys)


def _attempt_records(db: sa.Connection, dispatch_keys: Collection[str]) -> dict[str, list[AttemptRecord]]:
    query = (
        sa.select(
            outcomes.c.dispatch_key,
            *(outcomes.c[name] for name in ("attempt", "kind", "status", "reason", "recorded_at")),
        )
        .where(outcomes.c.dispatch_key.in_(dispatch_keys))
        .order_by(outcomes.c.id.desc())
        .limit(_MOST_RECORDS)
    )
    records: dict[str, list[AttemptRecord]] = {key: [] for key in dispatch_keys}
    for key, *values in reversed(db.execute(query).all()):
        records[key].append(AttemptRecord(*values))
    return records


_MOST_RECORDS = 5_000  # that are read for one page
_DISPATCH = tuple(
    dispatches.c[name] for name in ("dispatch_key", "segment", "state", "attempt", "campaign_id")
)
_REQUESTS = (
    sa.select(
        *(dispatches.c[name] for name in ("dispatch_key", "segment", "wave", "time_zone")),
        segments.c.language,
        segments.c.variant,
        segments.c.size.label("people"),
        *(dispatches.c[name] for name in ("state", "attempt", "campaign_id")),
        sa.func.coalesce(dispatch_totals.c.deliveries, 0).label("deliveries"),
        sa.func.coalesce(dispatch_totals.c.opens, 0).label("opens"),
    )
    .join(segments, OF_SEGMENT)
    .outerjoin(dispatch_totals, dispatch_totals.c.dispatch_key == dispatches.c.dispatch_key)
)
