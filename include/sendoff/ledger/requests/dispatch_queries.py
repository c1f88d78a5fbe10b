"""Queries about dispatches: their states, recent outcomes, and recipients.

:mod:`~sendoff.ledger.requests.dispatches` changes dispatches; nothing here does.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any, NamedTuple

import sqlalchemy as sa

from sendoff.audience import Segment
from sendoff.audience.identifiers import Identifiers, empty, from_bytes
from sendoff.campaign import Slot, Variation
from sendoff.ledger.requests.claims import VARIANT, segment_of
from sendoff.ledger.requests.doubts import KNOWN_STATE, recorded_later
from sendoff.ledger.storage.bulk import streamed
from sendoff.ledger.storage.database import LedgerPart
from sendoff.ledger.storage.joins import OF_SEGMENT, SENT_TO
from sendoff.ledger.storage.schema import attempts, dispatch_totals, dispatches, outcomes, segments
from sendoff.ledger.suppression.withheld import (
    LEFT_OUT_ALWAYS,
    REMAINING,
    Withheld,
    remaining,
    withheld_by_verdict,
    withheld_of,
)
from sendoff.states import Arm, DispatchState, OutcomeKind, Verdict


@dataclass(frozen=True, slots=True)
class Dispatch:
    """One request of a launch, as the ledger has it."""

    dispatch_key: str
    segment: int
    state: DispatchState
    attempt: int
    campaign_id: int | None


@dataclass(frozen=True, slots=True)
class RecentOutcomes:
    """The outcomes of the newest requests of a launch. ``in_doubt`` counts only those still in doubt."""

    requests: int
    refused: int
    in_doubt: int


@dataclass(frozen=True, slots=True)
class Progress:
    """How many dispatches of a launch are in one state, for one wave and time zone.

    ``time_zone``: the text of a :class:`~sendoff.campaign.Slot`: with the hour of the recipients, if they have one.
    """

    wave: int
    time_zone: str | None
    state: DispatchState
    dispatches: int


@dataclass(frozen=True, slots=True)
class AttemptRecord:
    """One record of an attempt: its outcome, or evidence that came later."""

    attempt: int
    kind: OutcomeKind
    status: int | None  # HTTP status, if one was read
    reason: str | None
    recorded_at: datetime


@dataclass(frozen=True, slots=True)
class Request:
    """One request of a launch, with its content's variation, its state, and its results."""

    dispatch_key: str
    segment: int
    wave: int
    time_zone: str | None
    hour: int | None  # of the day, in the recipients' time zone; None: any
    language: str | None
    variant: str | None
    people: int  # without those left out of all its attempts; 0 if the service chooses them
    state: DispatchState
    attempt: int  # 0 before the first
    campaign_id: int | None
    deliveries: int
    opens: int
    recorded: Sequence[AttemptRecord]  # oldest first

    @property
    def doubts(self) -> int:
        """The number of attempts that went into doubt and were not later found to be refused or not processed."""
        attempts: set[int] = set()
        for record in self.recorded:
            if record.kind == OutcomeKind.IN_DOUBT:
                attempts.add(record.attempt)
            elif record.kind in (OutcomeKind.REFUSED, OutcomeKind.NOT_PROCESSED):
                attempts.discard(record.attempt)
        return len(attempts)


class SegmentSize(NamedTuple):
    """One segment's variation, wave, number of recipients, hour of the day, and arm of an experiment with hours."""

    variation: Variation
    wave: int
    people: int
    hour: int | None = None
    arm: Arm | None = None


class RequestCounts(NamedTuple):
    """Numbers of dispatches and of their recipients, by state and by ``KNOWN_STATE``: *in doubt* if any attempt is.

    Recipients who were left out of all requests count as suppressed. There are none if the service chooses them.
    """

    requests: Counter[str]
    recipients: Counter[str]
    known_requests: Counter[str]
    known_recipients: Counter[str]


class DispatchQueries(LedgerPart):
    """Queries about the dispatches of a ledger. :class:`~.dispatches.Dispatches` changes them."""

    def recent_outcomes(self, launch_key: str, newest: int, since: datetime | None) -> RecentOutcomes:
        """Count the outcomes of the last ``newest`` requests of a launch; ``since``: only those after this moment.

        Only the last record of an attempt counts: a doubt about a silent worker may be followed by an answer.
        """
        kinds = (OutcomeKind.ACCEPTED, OutcomeKind.REFUSED, OutcomeKind.IN_DOUBT)
        is_last = sa.not_(recorded_later(*kinds, OutcomeKind.NOT_PROCESSED))
        query = _outcomes(launch_key, outcomes.c.kind, dispatches.c.state, since=since)
        last = query.where(outcomes.c.kind.in_(kinds), is_last).order_by(outcomes.c.id.desc()).limit(newest)
        rows = [tuple(row) for row in self._database.rows(last)]
        refused = sum(kind == OutcomeKind.REFUSED for kind, _ in rows)
        return RecentOutcomes(len(rows), refused, rows.count((OutcomeKind.IN_DOUBT, DispatchState.IN_DOUBT)))

    def of_launch(self, launch_key: str) -> list[Dispatch]:
        """Return the dispatches of a launch in the order of their segments."""
        return [Dispatch(*row) for row in self._database.rows(_DISPATCHES, {"launch": launch_key})]

    def states(self, launch_key: str) -> dict[str, int]:
        """Count the dispatches of a launch by state; states without dispatches are left out."""
        return dict(self._database.rows(_STATES, {"launch": launch_key}))

    def counts(self, launch_key: str) -> RequestCounts:
        """Count the dispatches of a launch and their recipients, by state and by ``KNOWN_STATE``."""
        counts = RequestCounts(Counter(), Counter(), Counter(), Counter())
        for state, known, requests, size, left_out in self._database.rows(_COUNTS, {"launch": launch_key}):
            counts.requests[state] += requests
            counts.known_requests[known] += requests
            for recipients, its_state in ((counts.recipients, state), (counts.known_recipients, known)):
                recipients[its_state] += int(size - left_out)
                if left_out:
                    recipients[DispatchState.SUPPRESSED] += int(left_out)
        return counts

    def progress(self, launch_key: str) -> list[Progress]:
        """Count the dispatches of a launch by wave, time zone, and state; empty combinations are left out."""
        rows = self._database.rows(_PROGRESS, {"launch": launch_key})
        return [Progress(wave, zone or None, state, count) for wave, zone, state, count in rows]

    def refused(self, launch_key: str, since: datetime | None = None) -> int:
        """Count the refused dispatches of a launch; ``since``: only those refused after this moment."""
        is_refused = (dispatches.c.state == DispatchState.REFUSED, outcomes.c.kind == OutcomeKind.REFUSED)
        query = _outcomes(launch_key, sa.func.count(sa.distinct(dispatches.c.dispatch_key)), since=since)
        return int(self._database.scalar(query.where(*is_refused)))

    def reasons(
        self, launch_key: str, kind: str, since: datetime | None = None, *, limit: int | None = None
    ) -> list[str]:
        """Return the distinct reasons of one kind of outcome, such as ``refused``; ``since``: only later ones."""
        query = _outcomes(launch_key, outcomes.c.reason, since=since).where(
            outcomes.c.kind == kind, outcomes.c.reason > ""
        )
        return self._database.scalars(query.distinct().order_by("reason").limit(limit))

    def newest_outcome(self, launch_key: str) -> datetime | None:
        """Return the time of the newest outcome of a launch; None before the first.

        That may be long after its request: if evidence settled a doubt, or no one noticed a dead worker.
        """
        return self._newest(outcomes.c.recorded_at, launch_key)

    def first_sent(self, launch_key: str) -> datetime | None:
        """Return when a request of a launch was first accepted or in doubt; None before."""
        query = _outcomes(launch_key, sa.func.min(outcomes.c.recorded_at))
        kinds = (OutcomeKind.ACCEPTED, OutcomeKind.IN_DOUBT)
        first: datetime | None = self._database.scalar(query.where(outcomes.c.kind.in_(kinds)))
        return first

    def newest_request(self, launch_key: str, *, up_to_wave: int | None = None) -> datetime | None:
        """Return when the newest request of a launch began, optionally up to a wave; None before the first."""
        return self._newest(attempts.c.started_at, launch_key, up_to_wave)

    def newest_exchange(self, launch_key: str, *, up_to_wave: int) -> datetime | None:
        """Return when the newest request of a launch up to a wave began, or was answered if that is later."""
        times = (
            self.newest_request(launch_key, up_to_wave=up_to_wave),
            self._newest(outcomes.c.recorded_at, launch_key, up_to_wave, outcomes.c.status.is_not(None)),
        )
        return max((time for time in times if time), default=None)

    def has_planned(self, launch_key: str, up_to_wave: int, closed_zones: Collection[str | None]) -> bool:
        """Check whether a dispatch of a launch is planned, up to a wave and outside of some time zones."""
        closed = [zone or "" for zone in closed_zones]
        values = {"launch": launch_key, "up_to_wave": up_to_wave, "closed": closed}
        return self._database.scalar(_PLANNED, values) is not None

    def _newest(
        self,
        time: sa.Column[datetime],
        launch_key: str,
        up_to_wave: int | None = None,
        *where: sa.ColumnElement[bool],
    ) -> datetime | None:
        query = (
            sa.select(time)
            .join(dispatches, dispatches.c.dispatch_key == time.table.c.dispatch_key)
            .where(dispatches.c.launch_key == launch_key, *where)
            .order_by(time.desc())
            .limit(1)
        )
        if up_to_wave is not None:
            query = query.where(dispatches.c.wave <= up_to_wave)
        moment: datetime | None = self._database.scalar(query)
        return moment

    def segments(self, launch_key: str) -> Iterator[tuple[Dispatch, Identifiers]]:
        """Yield each dispatch of a launch with the identifiers of its segment, reading them lazily.

        Recipients who were left out of all its requests are missing. The set is empty if the service chooses the
        recipients.
        """
        for dispatch, people, left_out in self.frozen_segments(launch_key):
            yield dispatch, remaining(people, left_out)

    def frozen_segments(self, launch_key: str) -> Iterator[tuple[Dispatch, Identifiers, Withheld | None]]:
        """Yield each dispatch of a launch with its segment as frozen, and the people that its requests left out."""
        with self._database.read() as db:
            left_out = withheld_of(db, launch_key)
            for key, kind, blob, *values in db.execute(_FROZEN, {"launch": launch_key}):
                people = empty(kind) if blob is None else from_bytes(kind, blob)
                yield Dispatch(key, *values), people, left_out.get(key)

    def withheld_by_verdict(self, launch_key: str) -> Mapping[Verdict, Identifiers]:
        """Return the recipients that requests of a launch left out because of a verdict in another launch."""
        with self._database.read() as db:
            return withheld_by_verdict(db, launch_key)

    def variants(self, launch_key: str) -> dict[int, str]:
        """Return the variant that each segment of a launch was frozen with, by its number.

        Segments without one are left out. So are those that get the winner, even when it is known.
        """
        return self._by_number(launch_key, segments.c.variant)

    def arms(self, launch_key: str) -> dict[int, Arm]:
        """Return the arm of each segment of a launch by its number, without segments that have none."""
        return {number: Arm(arm) for number, arm in self._by_number(launch_key, segments.c.arm).items()}

    def _by_number(self, launch_key: str, column: sa.Column[Any]) -> dict[int, Any]:
        is_own = (segments.c.launch_key == launch_key, column.is_not(None))
        return dict(self._database.rows(sa.select(segments.c.number, column).where(*is_own)))

    def sending_span(self, launch_key: str) -> timedelta:
        """Return the time between the first and the last request of a launch that the service may have sent."""
        time = attempts.c.started_at
        may_be_sent = (DispatchState.ACCEPTED, DispatchState.IN_DOUBT, DispatchState.WRITTEN_OFF)
        query = (
            sa.select(sa.func.min(time), sa.func.max(time))
            .join(dispatches, dispatches.c.dispatch_key == attempts.c.dispatch_key)
            .where(dispatches.c.launch_key == launch_key, KNOWN_STATE.in_(may_be_sent))
        )
        first, last = self._database.one(query)
        return last - first if first else timedelta()

    def segment_sizes(self, launch_key: str) -> list[SegmentSize]:
        """Return the sizes of the segments of a launch, in order, without reading their identifiers."""
        columns = (segments.c[name] for name in ("language", "time_zone", "wave", "size", "hour", "arm"))
        query = sa.select(*columns, VARIANT).where(segments.c.launch_key == launch_key)
        return [
            SegmentSize(
                Variation(row.language, row.variant, row.time_zone),
                row.wave,
                row.size,
                row.hour,
                Arm(row.arm) if row.arm else None,
            )
            for row in self._database.rows(query.order_by(segments.c.number))
        ]

    def fingerprint(self, launch_key: str, number: int) -> str:
        """Return the fingerprint of one segment of a launch, as it was frozen."""
        query = sa.select(segments.c.fingerprint).where(
            segments.c.launch_key == launch_key, segments.c.number == number
        )
        return str(self._database.one(query).fingerprint)

    def segment(self, launch_key: str, number: int) -> Segment:
        """Return one segment of a launch."""
        with self._database.read() as db:
            return segment_of(db, launch_key, number)

    def requests(
        self, launch_key: str, *, states: Collection[str] = (), offset: int = 0, limit: int | None = None
    ) -> list[Request]:
        """Return a page of the requests of a launch with their attempts, in the order of their segments.

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
                **{**row._mapping, **Slot.of(row.time_zone)._asdict()}, recorded=attempts[row.dispatch_key]
            )
            for row in rows
        ]


def _outcomes(launch_key: str, *columns: Any, since: datetime | None = None) -> sa.Select[Any]:
    """Select columns of the outcomes of a launch's requests; ``since``: only of outcomes after this moment."""
    query = (
        sa.select(*columns)
        .select_from(outcomes)
        .join(dispatches, dispatches.c.dispatch_key == outcomes.c.dispatch_key)
        .where(dispatches.c.launch_key == launch_key)
    )
    return query if since is None else query.where(outcomes.c.recorded_at > since)


def _attempt_records(db: sa.Connection, dispatch_keys: Collection[str]) -> dict[str, list[AttemptRecord]]:
    """Return the records of the attempts of some dispatches, oldest first; at most the 5,000 newest."""
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


_MOST_RECORDS = 5_000  # read for one page
_DISPATCH = tuple(
    dispatches.c[name] for name in ("dispatch_key", "segment", "state", "attempt", "campaign_id")
)
_OF_LAUNCH = dispatches.c.launch_key == sa.bindparam("launch")
_DISPATCHES = sa.select(*_DISPATCH).where(_OF_LAUNCH).order_by(dispatches.c.segment)
_PLANNED = (
    sa.select(dispatches.c.dispatch_key)
    .where(
        _OF_LAUNCH,
        dispatches.c.state == DispatchState.PLANNED,
        dispatches.c.wave <= sa.bindparam("up_to_wave"),
        dispatches.c.time_zone.not_in(sa.bindparam("closed", expanding=True)),
    )
    .limit(1)
)
_FROZEN = streamed(SENT_TO.add_columns(*_DISPATCH[1:]).where(_OF_LAUNCH).order_by(dispatches.c.segment), 100)
_STATES = sa.select(dispatches.c.state, sa.func.count()).where(_OF_LAUNCH).group_by(dispatches.c.state)
# Not a join: without statistics, PostgreSQL would compare each dispatch with all segments.
_SIZE = sa.select(segments.c.size).where(OF_SEGMENT).scalar_subquery()
_COUNTS = (
    sa.select(
        dispatches.c.state, KNOWN_STATE, sa.func.count(), sa.func.sum(_SIZE), sa.func.sum(LEFT_OUT_ALWAYS)
    )
    .where(_OF_LAUNCH)
    .group_by(dispatches.c.state, "known")
)
_PARTS = (dispatches.c.wave, dispatches.c.time_zone, dispatches.c.state)
_PROGRESS = sa.select(*_PARTS, sa.func.count()).where(_OF_LAUNCH).group_by(*_PARTS)
_REQUESTS = (
    sa.select(
        *(dispatches.c[name] for name in ("dispatch_key", "segment", "wave", "time_zone")),
        segments.c.language,
        VARIANT,
        REMAINING.label("people"),
        *(dispatches.c[name] for name in ("state", "attempt", "campaign_id")),
        sa.func.coalesce(dispatch_totals.c.deliveries, 0).label("deliveries"),
        sa.func.coalesce(dispatch_totals.c.opens, 0).label("opens"),
    )
    .join(segments, OF_SEGMENT)
    .outerjoin(dispatch_totals, dispatch_totals.c.dispatch_key == dispatches.c.dispatch_key)
)
