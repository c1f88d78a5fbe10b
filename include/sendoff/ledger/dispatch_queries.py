"""How launches stand: the states of their dispatches, what became of the newest, and whom each is for.

Nothing is moved here: that is in :mod:`~sendoff.ledger.dispatches`.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from dataclasses import dataclass
from datetime import datetime

import sqlalchemy as sa

from sendoff.audience import Segment
from sendoff.audience.identifiers import Identifiers, empty, from_bytes
from sendoff.campaign import Edition
from sendoff.ledger.claims import segment_of
from sendoff.ledger.database import Database
from sendoff.ledger.doubts import OF_SEGMENT, recorded_later
from sendoff.ledger.schema import audiences, dispatches, outcomes, segments


@dataclass(frozen=True, slots=True)
class Dispatch:
    """One request of a launch, as the ledger knows it."""

    dispatch_key: str
    segment: int
    state: str
    attempt: int
    campaign_id: int | None


@dataclass(frozen=True, slots=True)
class Recent:
    """What became of the newest requests of a launch; of those in doubt, which still are."""

    requests: int
    refused: int
    in_doubt: int


@dataclass(frozen=True, slots=True)
class Progress:
    """How many dispatches of one wave and one time zone of a launch are in one state."""

    wave: int
    time_zone: str | None
    state: str
    dispatches: int


class Standing:
    """What is read of dispatches; a part of :class:`~sendoff.ledger.dispatches.Dispatches`."""

    _database: Database

    def recent(self, launch_key: str, newest: int, since: datetime | None) -> Recent:
        """Count what became of the newest so many requests of a launch, of those after a moment.

        Each counts once, as what was recorded of it last: a doubt about a worker that was silent may end in an answer.
        """
        query = (
            sa.select(outcomes.c.kind, dispatches.c.state)
            .join(dispatches, dispatches.c.dispatch_key == outcomes.c.dispatch_key)
            .where(
                dispatches.c.launch_key == launch_key,
                outcomes.c.kind.in_(("accepted", "refused", "in_doubt")),
                sa.not_(recorded_later("accepted", "refused", "in_doubt", "not_processed")),
            )
            .order_by(outcomes.c.id.desc())
            .limit(newest)
        )
        if since is not None:
            query = query.where(outcomes.c.recorded_at > since)
        with self._database.read() as connection:
            rows = [tuple(row) for row in connection.execute(query)]
        refused = sum(kind == "refused" for kind, _ in rows)
        return Recent(len(rows), refused, rows.count(("in_doubt", "in_doubt")))

    def of_launch(self, launch_key: str) -> list[Dispatch]:
        """Give the dispatches of a launch in the order of their segments."""
        query = sa.select(*_DISPATCH)
        with self._database.read() as connection:
            rows = connection.execute(
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
        with self._database.read() as connection:
            return {row.state: row.size for row in connection.execute(query)}

    def progress(self, launch_key: str) -> list[Progress]:
        """Count the dispatches of a launch by wave, time zone and state; what is empty is left out."""
        columns = (dispatches.c.wave, dispatches.c.time_zone, dispatches.c.state)
        query = (
            sa.select(*columns, sa.func.count())
            .where(dispatches.c.launch_key == launch_key)
            .group_by(*columns)
        )
        with self._database.read() as connection:
            return [
                Progress(wave, zone or None, state, count)
                for wave, zone, state, count in connection.execute(query)
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
                dispatches.c.state == "accepted",
            )
        )
        with self._database.read() as connection:
            streamed = connection.execution_options(stream_results=True, max_row_buffer=100)
            for kind, blob in streamed.execute(query):
                yield from_bytes(kind, blob)

    def refused(self, launch_key: str, since: datetime | None = None) -> int:
        """Count the dispatches of a launch that the service refused, of those it refused after a moment."""
        query = (
            sa.select(sa.func.count(sa.distinct(dispatches.c.dispatch_key)))
            .join(outcomes, outcomes.c.dispatch_key == dispatches.c.dispatch_key)
            .where(
                dispatches.c.launch_key == launch_key,
                dispatches.c.state == "refused",
                outcomes.c.kind == "refused",
            )
        )
        if since is not None:
            query = query.where(outcomes.c.recorded_at > since)
        with self._database.read() as connection:
            return connection.scalar(query) or 0

    def reasons(self, launch_key: str, kind: str, since: datetime | None = None) -> list[str]:
        """Give the reasons recorded with one kind of outcome, such as ``refused``, after a moment; each text once."""
        query = (
            sa.select(outcomes.c.reason)
            .join(dispatches, dispatches.c.dispatch_key == outcomes.c.dispatch_key)
            .where(dispatches.c.launch_key == launch_key, outcomes.c.kind == kind)
            .distinct()
            .order_by(outcomes.c.reason)
        )
        if since is not None:
            query = query.where(outcomes.c.recorded_at > since)
        with self._database.read() as connection:
            return [reason for reason in connection.scalars(query) if reason]

    def newest_outcome(self, launch_key: str, *, up_to_wave: int | None = None) -> datetime | None:
        """Give the time of the newest outcome of a launch, or of its waves up to one; None before the first."""
        query = (
            sa.select(outcomes.c.recorded_at)
            .join(dispatches, dispatches.c.dispatch_key == outcomes.c.dispatch_key)
            .where(dispatches.c.launch_key == launch_key)
            .order_by(outcomes.c.recorded_at.desc())
            .limit(1)
        )
        if up_to_wave is not None:
            query = query.where(dispatches.c.wave <= up_to_wave)
        with self._database.read() as connection:
            return connection.scalar(query)

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
        with self._database.read() as connection:
            streamed = connection.execution_options(stream_results=True, max_row_buffer=100)
            for *dispatch, kind, blob in streamed.execute(query):
                yield Dispatch(*dispatch), empty(kind) if blob is None else from_bytes(kind, blob)

    def variants(self, launch_key: str) -> dict[int, str]:
        """Give the variant of each segment of a launch, by its number; those without one are left out."""
        query = sa.select(segments.c.number, segments.c.variant)
        with self._database.read() as connection:
            rows = connection.execute(
                query.where(segments.c.launch_key == launch_key, segments.c.variant.is_not(None))
            )
            return {row.number: row.variant for row in rows}

    def parts(self, launch_key: str) -> list[tuple[Edition, int, int]]:
        """Give edition, wave and number of people of each segment of a launch, in order, without reading the people."""
        query = sa.select(
            *(segments.c[name] for name in ("language", "variant", "time_zone", "wave", "size"))
        )
        with self._database.read() as connection:
            rows = connection.execute(
                query.where(segments.c.launch_key == launch_key).order_by(segments.c.number)
            )
            return [(Edition(row.language, row.variant, row.time_zone), row.wave, row.size) for row in rows]

    def segment(self, launch_key: str, number: int) -> Segment:
        """Give one segment."""
        with self._database.read() as connection:
            return segment_of(connection, launch_key, number)


_DISPATCH = tuple(
    dispatches.c[name] for name in ("dispatch_key", "segment", "state", "attempt", "campaign_id")
)
