"""Dispatches in the ledger: the intent before each request, and what became of it.

``planned -> in_flight -> accepted | refused | in_doubt``, or ``planned`` again where certainly nothing happened.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

import sqlalchemy as sa

from sendoff.campaign import Edition
from sendoff.identifiers import Identifiers, empty, from_bytes
from sendoff.ledger.database import Database
from sendoff.ledger.tables import attempts, audiences, dispatches, launches, outcomes, segments
from sendoff.outcome import Accepted, InDoubt, NotProcessed, Outcome, Refused
from sendoff.segments import Segment

_STATE_AFTER = {
    "accepted": "accepted",
    "refused": "refused",
    "not_processed": "planned",
    "in_doubt": "in_doubt",
}
_WORKER_DEAD = "the worker stopped before it recorded an outcome"


@dataclass(frozen=True, slots=True)
class Claim:
    """The right to send one dispatch once, and what to send; its intent is committed."""

    dispatch_key: str
    launch_key: str
    segment: int
    attempt: int
    content: Segment  # whom it is for, and what they get


@dataclass(frozen=True, slots=True)
class Dispatch:
    """One request of a launch, as the ledger knows it."""

    dispatch_key: str
    segment: int
    state: str
    attempt: int
    campaign_id: int | None


@dataclass(frozen=True, slots=True)
class Progress:
    """How many dispatches of one wave and one time zone of a launch are in one state."""

    wave: int
    time_zone: str | None
    state: str
    dispatches: int


class Dispatches:
    """The dispatches of a ledger."""

    def __init__(self, database: Database) -> None:
        self._database = database

    def claim(
        self,
        launch_key: str,
        *,
        worker: str,
        now: datetime,
        lease: timedelta,
        closed_zones: Collection[str | None] = (),
    ) -> Claim | None:
        """Take the next planned dispatch of a launch and commit the intent to send it, or give None.

        None also while the launch is not released. Waves that are not open yet are passed over, and the time zones in
        ``closed_zones``, where None stands for people without one. The move to ``in_flight`` is a compare-and-set: of
        any number of workers, one wins each dispatch.
        """
        with self._database.write() as connection:
            taken = connection.execute(_take_next(launch_key, worker, now + lease, closed_zones)).first()
            if taken is None:
                return None
            intent = {"number": taken.attempt, "worker": worker, "started_at": now}
            connection.execute(sa.insert(attempts), {"dispatch_key": taken.dispatch_key, **intent})
            segment = connection.execute(_segment(launch_key, taken.segment)).one()
        return Claim(taken.dispatch_key, launch_key, taken.segment, taken.attempt, _content(segment))

    def record(self, claim: Claim, outcome: Outcome, now: datetime) -> None:
        """Append the outcome of an attempt and move its dispatch accordingly.

        A dispatch that meanwhile went into doubt, because its lease ended, still takes the outcome of the same
        attempt; one that a later attempt or a person has moved does not. Repeating a record is harmless.
        """
        values: dict[str, Any] = {"state": _STATE_AFTER[outcome.kind], "lease_until": None}
        open_states = ["in_flight", "in_doubt"]
        if isinstance(outcome, Accepted):
            values["campaign_id"] = outcome.campaign_id
            open_states.append("accepted")  # by evidence that was faster
        with self._database.write() as connection:
            connection.execute(
                sa.update(dispatches)
                .where(
                    dispatches.c.dispatch_key == claim.dispatch_key,
                    dispatches.c.attempt == claim.attempt,
                    dispatches.c.state.in_(open_states),
                )
                .values(values)
            )
            connection.execute(
                sa.insert(outcomes), _outcome_row(claim.dispatch_key, claim.attempt, outcome, now)
            )

    def expire_leases(self, launch_key: str, now: datetime) -> int:
        """Put every dispatch whose worker was silent beyond its lease into doubt; gives their number."""
        with self._database.write() as connection:
            expired = connection.execute(
                sa.update(dispatches)
                .where(
                    dispatches.c.launch_key == launch_key,
                    dispatches.c.state == "in_flight",
                    dispatches.c.lease_until < now,
                )
                .values(state="in_doubt", lease_until=None)
                .returning(dispatches.c.dispatch_key, dispatches.c.attempt)
            ).all()
            for row in expired:
                doubt = _outcome_row(row.dispatch_key, row.attempt, InDoubt(_WORKER_DEAD), now)
                connection.execute(self._database.insert_or_pass(outcomes), doubt)
        return len(expired)

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
        columns = (segments.c.wave, segments.c.time_zone, dispatches.c.state)
        query = (
            sa.select(*columns, sa.func.count())
            .join(segments, _OF_SEGMENT)
            .where(dispatches.c.launch_key == launch_key)
            .group_by(*columns)
        )
        with self._database.read() as connection:
            return [Progress(*row) for row in connection.execute(query)]

    def accepted(self, launch_key: str, waves: Collection[int]) -> Iterator[Identifiers]:
        """Yield the identifiers of each accepted dispatch of some waves of a launch, read as they are used."""
        query = (
            sa.select(audiences.c.kind, segments.c.identifiers)
            .join(audiences, audiences.c.launch_key == segments.c.launch_key)
            .join(dispatches, _OF_SEGMENT)
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

    def reasons(self, launch_key: str, kind: str) -> list[str]:
        """Give the reasons recorded with one kind of outcome, such as ``refused``, each text once."""
        query = (
            sa.select(outcomes.c.reason)
            .join(dispatches, dispatches.c.dispatch_key == outcomes.c.dispatch_key)
            .where(dispatches.c.launch_key == launch_key, outcomes.c.kind == kind)
            .distinct()
            .order_by(outcomes.c.reason)
        )
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
            query = query.join(segments, _OF_SEGMENT).where(segments.c.wave <= up_to_wave)
        with self._database.read() as connection:
            return connection.scalar(query)

    def segments(self, launch_key: str) -> Iterator[tuple[Dispatch, Identifiers]]:
        """Yield each dispatch of a launch with the identifiers of its segment, read as they are used.

        One for whom the service chooses the people has none.
        """
        query = (
            sa.select(*_DISPATCH, audiences.c.kind, segments.c.identifiers)
            .join(audiences, audiences.c.launch_key == dispatches.c.launch_key)
            .join(segments, _OF_SEGMENT)
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
            return _content(connection.execute(_segment(launch_key, number)).one())


_OF_SEGMENT = sa.and_(
    segments.c.launch_key == dispatches.c.launch_key, segments.c.number == dispatches.c.segment
)
_DISPATCH = tuple(
    dispatches.c[name] for name in ("dispatch_key", "segment", "state", "attempt", "campaign_id")
)


def _take_next(
    launch_key: str, worker: str, lease_until: datetime, closed_zones: Collection[str | None]
) -> Any:
    following = (
        sa.select(dispatches.c.dispatch_key)
        .join(launches, launches.c.launch_key == dispatches.c.launch_key)
        .join(segments, _OF_SEGMENT)
        .where(
            dispatches.c.launch_key == launch_key,
            dispatches.c.state == "planned",
            launches.c.state == "released",
            segments.c.wave <= launches.c.wave,
            sa.func.coalesce(segments.c.time_zone, "").not_in([zone or "" for zone in closed_zones]),
        )
        .order_by(dispatches.c.segment)
        .limit(1)
        .with_for_update(
            skip_locked=True, of=dispatches
        )  # PostgreSQL; SQLite lets one writer in at a time anyway
        .scalar_subquery()
    )
    return (
        sa.update(dispatches)
        .where(dispatches.c.dispatch_key == following, dispatches.c.state == "planned")
        .values(state="in_flight", worker=worker, lease_until=lease_until, attempt=dispatches.c.attempt + 1)
        .returning(dispatches.c.dispatch_key, dispatches.c.segment, dispatches.c.attempt)
    )


def _segment(launch_key: str, number: int) -> Any:
    return (
        sa.select(audiences.c.kind, segments)
        .join(audiences, audiences.c.launch_key == segments.c.launch_key)
        .where(segments.c.launch_key == launch_key, segments.c.number == number)
    )


def _content(row: sa.Row[Any]) -> Segment:
    identifiers = None if row.identifiers is None else from_bytes(row.kind, row.identifiers)
    edition = Edition(row.language, row.variant, row.time_zone)
    return Segment(identifiers, edition, row.wave, row.parameters)


def _outcome_row(key: str, attempt: int, outcome: Outcome, now: datetime) -> dict[str, Any]:
    status = outcome.status if isinstance(outcome, Accepted | Refused) else None
    reason: str | None = None
    if isinstance(outcome, Refused):
        reason = outcome.message
    elif isinstance(outcome, NotProcessed | InDoubt):
        reason = outcome.reason
    return {
        "dispatch_key": key,
        "attempt": attempt,
        "kind": outcome.kind,
        "status": status,
        "reason": reason,
        "recorded_at": now,
    }
