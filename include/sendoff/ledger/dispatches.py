"""Dispatches in the ledger: the intent before each request, and what became of it.

``planned -> in_flight -> accepted | refused | in_doubt``, or ``planned`` again where certainly nothing happened. What
is in doubt becomes ``accepted`` by evidence, and ``planned`` or ``written_off`` where a person, or the campaign, says
so.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any, Literal

import sqlalchemy as sa

from sendoff.campaign import Edition
from sendoff.errors import NoSlotError, NotFoundError
from sendoff.identifiers import Identifiers, empty, from_bytes
from sendoff.ledger.brakes import ALL, scope_of
from sendoff.ledger.database import Database
from sendoff.ledger.rates import AHEAD, reserve
from sendoff.ledger.tables import (
    attempts,
    audiences,
    brakes,
    decisions,
    dispatches,
    launches,
    outcomes,
    rates,
    returns,
    segments,
)
from sendoff.outcome import Accepted, InDoubt, NotProcessed, Outcome, Refused
from sendoff.segments import Segment

_STATE_AFTER = {
    "accepted": "accepted",
    "refused": "refused",
    "not_processed": "planned",
    "in_doubt": "in_doubt",
}
_RESOLVED = {"resend": "planned", "write_off": "written_off"}
_WORKER_DEAD = "the worker stopped before it recorded an outcome"


@dataclass(frozen=True, slots=True)
class Claim:
    """The right to send one dispatch once, and what to send; its intent is committed."""

    dispatch_key: str
    launch_key: str
    segment: int
    attempt: int
    content: Segment  # whom it is for, and what they get
    not_before: datetime | None = None  # the moment that the connection's rate keeps for it


@dataclass(frozen=True, slots=True)
class Dispatch:
    """One request of a launch, as the ledger knows it."""

    dispatch_key: str
    segment: int
    state: str
    attempt: int
    campaign_id: int | None


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
    post_backs: int  # that were folded and prove nothing: unreadable, or of others


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
        rate: float | None = None,
    ) -> Claim | None:
        """Take the next planned dispatch of a launch and commit the intent to send it, or give None.

        None also while the launch is not released, a brake is set, or the service asked for patience. Waves that are
        not open yet are passed over, and the time zones in ``closed_zones``, where None stands for people without one.
        The move to ``in_flight`` is a compare-and-set: of any number of workers, one wins each dispatch.

        With ``rate``, in requests per second of all workers of the launch's connection, the claim has a moment before
        which the request must not be made; where the next one is not near, NoSlotError, and nothing is taken.
        """
        with self._database.write() as connection:
            ready_by = now if rate is None else now + AHEAD
            taken = connection.execute(
                _take_next(launch_key, worker, now + lease, closed_zones, ready_by)
            ).first()
            if taken is None:
                return None
            not_before = None
            if rate is not None:
                not_before = self._slot(connection, launch_key, rate, now)
            intent = {"number": taken.attempt, "worker": worker, "started_at": now}
            connection.execute(sa.insert(attempts), {"dispatch_key": taken.dispatch_key, **intent})
            segment = connection.execute(_segment(launch_key, taken.segment)).one()
        content = _content(segment)
        return Claim(taken.dispatch_key, launch_key, taken.segment, taken.attempt, content, not_before)

    def _slot(self, link: sa.Connection, launch_key: str, rate: float, now: datetime) -> datetime:
        name = link.scalar(sa.select(launches.c.connection).where(launches.c.launch_key == launch_key))
        assert name is not None
        slot = reserve(self._database, link, name, rate, now)
        if slot > now + AHEAD:  # others took what was near; what is raised here undoes the claim
            raise NoSlotError(f"the connection {name} makes {rate:g} requests a second", slot)
        return slot

    def record(self, claim: Claim, outcome: Outcome, now: datetime) -> None:
        """Append the outcome of an attempt and move its dispatch accordingly.

        A dispatch that meanwhile went into doubt, because its lease ended, still takes the outcome of the same
        attempt; one that a later attempt has moved does not, and one that a person has moved only where the outcome is
        that it was accepted. Repeating a record is harmless.
        """
        values: dict[str, Any] = {"state": _STATE_AFTER[outcome.kind], "lease_until": None}
        open_states = ["in_flight", "in_doubt"]
        if isinstance(outcome, Accepted):
            values["campaign_id"] = outcome.campaign_id
            # Evidence was faster, or a person decided before the answer came: what is known stands over that.
            open_states += ["accepted", "planned", "written_off"]
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

        It is not where the dispatch is not in doubt, nor, to plan it, where its launch is over. ``doubts``: only if so
        many of its attempts went into doubt. Raises NotFoundError for a dispatch that the ledger does not hold.
        """
        change = sa.update(dispatches).where(
            dispatches.c.dispatch_key == dispatch_key, dispatches.c.state == "in_doubt"
        )
        if how == "resend":
            change = change.where(_OF_UNFINISHED)
        if doubts is not None:
            change = change.where(_doubts(dispatch_key) == doubts)
        moved = change.values(state=_RESOLVED[how]).returning(dispatches.c.launch_key, dispatches.c.segment)
        with self._database.write() as connection:
            row = connection.execute(moved).first()
            if row is None:
                _check_there(connection, dispatch_key)
                return False
            decision = {
                "launch_key": row.launch_key,
                "kind": f"{how}_dispatch",
                "who": who,
                "why": why,
                "detail": {"dispatch": dispatch_key, "segment": row.segment},
                "decided_at": now,
            }
            connection.execute(sa.insert(decisions), decision)
        return True

    def accept(self, dispatch_key: str, campaign_id: int, reason: str, now: datetime) -> bool:
        """Take a dispatch in doubt for accepted by evidence that the service itself shows; False where it is not.

        One that is written off counts as in doubt here: evidence stands over a person.
        """
        change = (
            sa.update(dispatches)
            .where(
                dispatches.c.dispatch_key == dispatch_key,
                dispatches.c.state.in_(("in_doubt", "written_off")),
            )
            .values(state="accepted", campaign_id=campaign_id)
            .returning(dispatches.c.attempt)
        )
        with self._database.write() as connection:
            attempt = connection.scalar(change)
            if attempt is None:
                return False
            row = {"dispatch_key": dispatch_key, "attempt": attempt, "kind": "evidence", "reason": reason}
            connection.execute(sa.insert(outcomes), {**row, "recorded_at": now})
        return True

    def doubts(self, launch_key: str | None = None) -> list[Doubt]:
        """Give the dispatches in doubt, of one launch or of all, oldest first."""
        doubtful = sa.and_(
            outcomes.c.dispatch_key == dispatches.c.dispatch_key, outcomes.c.kind == "in_doubt"
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
                sa.func.coalesce(returns.c.deliveries + returns.c.opens, 0),
            )
            .join(launches, launches.c.launch_key == dispatches.c.launch_key)
            .join(segments, _OF_SEGMENT)
            .join(outcomes, sa.and_(doubtful, outcomes.c.id == newest))
            .outerjoin(returns, returns.c.dispatch_key == dispatches.c.dispatch_key)
            .where(dispatches.c.state == "in_doubt")
            .order_by(outcomes.c.recorded_at, dispatches.c.launch_key, dispatches.c.segment)
        )
        if launch_key is not None:
            query = query.where(dispatches.c.launch_key == launch_key)
        with self._database.read() as connection:
            return [Doubt(*row) for row in connection.execute(query)]

    def doubted(self, launch_key: str) -> frozenset[str]:
        """Give the keys of dispatches that are not in doubt any more, but whose earlier attempt still is.

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
                    clear.c.kind.in_(("refused", "not_processed")),
                ),
            )
            .where(
                dispatches.c.launch_key == launch_key,
                dispatches.c.state.in_(("planned", "refused")),
                outcomes.c.kind == "in_doubt",
                clear.c.id.is_(None),
            )
        )
        with self._database.read() as connection:
            return frozenset(connection.scalars(query))

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
                sa.not_(_recorded_later("accepted", "refused", "in_doubt", "not_processed")),
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

    def expire_leases(self, launch_key: str | None, now: datetime) -> int:
        """Put every dispatch of a launch, or of all, whose worker was silent beyond its lease into doubt.

        Gives their number.
        """
        is_of_launch = sa.true() if launch_key is None else dispatches.c.launch_key == launch_key
        with self._database.write() as connection:
            expired = connection.execute(
                sa.update(dispatches)
                .where(
                    is_of_launch,
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

    def next_expiry(self, launch_key: str) -> datetime | None:
        """Give until when the first of the workers that are sending a launch may be silent; None: none is."""
        query = sa.select(sa.func.min(dispatches.c.lease_until)).where(
            dispatches.c.launch_key == launch_key, dispatches.c.state == "in_flight"
        )
        with self._database.read() as connection:
            expiry: datetime | None = connection.scalar(query)
        return expiry

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


_BRAKED = sa.exists().where(
    brakes.c.scope.in_((sa.literal(ALL), sa.literal(scope_of("")) + launches.c.connection))
)


def _take_next(
    launch_key: str,
    worker: str,
    lease_until: datetime,
    closed_zones: Collection[str | None],
    ready_by: datetime,
) -> Any:
    told_to_wait = sa.exists().where(rates.c.connection == launches.c.connection, rates.c.next_at > ready_by)
    following = (
        sa.select(dispatches.c.dispatch_key)
        .join(launches, launches.c.launch_key == dispatches.c.launch_key)
        .join(segments, _OF_SEGMENT)
        .where(
            dispatches.c.launch_key == launch_key,
            dispatches.c.state == "planned",
            launches.c.state == "released",
            sa.not_(_BRAKED.correlate(launches)),
            sa.not_(told_to_wait.correlate(launches)),
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


_OF_UNFINISHED = dispatches.c.launch_key.in_(
    sa.select(launches.c.launch_key).where(launches.c.state.not_in(("rejected", "stopped")))
)


def _recorded_later(*kinds: str) -> sa.Exists:
    """Say whether something of the same attempt was recorded after an outcome."""
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


def _doubts(dispatch_key: str) -> sa.ScalarSelect[int]:
    """Count the attempts of a dispatch that are in doubt, or were before evidence came."""
    return (
        sa.select(sa.func.count(sa.distinct(outcomes.c.attempt)))
        .where(
            outcomes.c.dispatch_key == dispatch_key,
            outcomes.c.kind == "in_doubt",
            sa.not_(_recorded_later("refused", "not_processed")),
        )
        .scalar_subquery()
    )


def _check_there(connection: sa.Connection, dispatch_key: str) -> None:
    known = sa.select(dispatches.c.dispatch_key).where(dispatches.c.dispatch_key == dispatch_key)
    if connection.scalar(known) is None:
        raise NotFoundError(f"the ledger holds no dispatch {dispatch_key}")


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
