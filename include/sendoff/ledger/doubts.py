"""Doubts in the ledger: how a dispatch goes into doubt, what is known of it, and what settles it.

A worker that was silent beyond its lease leaves one, as does an outcome that nobody knows. It ends as ``accepted`` by
evidence, and as ``planned`` or ``written_off`` where a person, or the campaign, says so.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any, Literal

import sqlalchemy as sa

from sendoff.errors import NotFoundError
from sendoff.ledger.clock import LedgerTime
from sendoff.ledger.database import Database
from sendoff.ledger.schema import (
    DOUBTFUL,
    IN_FLIGHT,
    decisions,
    dispatches,
    launches,
    outcomes,
    returns,
    segments,
)
from sendoff.ledger.staleness import add_news_if_reported, add_news_of_dispatch
from sendoff.outcome import Accepted, InDoubt, NotProcessed, Outcome, Refused

_RESOLVED = {"resend": "planned", "write_off": "written_off"}
_WORKER_DEAD = "the worker stopped before it recorded an outcome"
_EVIDENCE = "a post-back came from it"

OF_SEGMENT = sa.and_(
    segments.c.launch_key == dispatches.c.launch_key, segments.c.number == dispatches.c.segment
)
"""Joins dispatches to their segments."""
IS_IN_DOUBT = dispatches.c.state == sa.literal_column("'in_doubt'")
"""Keeps dispatches in doubt; as a literal, by which SQLite finds them in the index of them."""
IS_EVIDENT = sa.exists().where(
    returns.c.dispatch_key == sa.literal_column("dispatches.dispatch_key"), returns.c.is_evidence
)
"""Says of dispatches whether what came back shows that a request of theirs was accepted.

With a literal, since of a column in RETURNING SQLAlchemy gives SQLite no table: it would be compared with itself.
"""


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
class SentAgain:
    """A dispatch that was in doubt and is planned again, so that its next request is not made yet."""

    dispatch_key: str
    launch_key: str
    campaign: str
    state: str  # of the launch
    segment: int
    people: int  # 0 where the service chooses them


class Doubts:
    """What is in doubt, or was; a part of :class:`~sendoff.ledger.dispatches.Dispatches`."""

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
            dispatches.c.dispatch_key == dispatch_key, dispatches.c.state == "in_doubt"
        )
        if how == "resend":
            change = change.where(_OF_UNFINISHED)
        if doubts is not None:
            change = change.where(_doubts(dispatch_key) == doubts)
        moved = change.values(state=_RESOLVED[how]).returning(dispatches.c.launch_key, dispatches.c.segment)
        with self._database.write() as connection:
            if accept_what_is_evident(connection, [dispatch_key], now):
                add_news_of_dispatch(connection, dispatch_key)
                return False
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
            add_news_of_dispatch(connection, dispatch_key)
        return True

    def accept(self, dispatch_key: str, campaign_id: int, reason: str, now: datetime) -> bool:
        """Take a dispatch for accepted by evidence that the service itself shows; False where it is already.

        Whoever looked it up saw it in doubt, and evidence stands over what a person did meanwhile. Only a later attempt
        that is in flight goes on; whatever becomes of that, the dispatch is accepted when it ends.
        """
        goes_on = dispatches.c.state == "in_flight"
        change = (
            sa.update(dispatches)
            .where(dispatches.c.dispatch_key == dispatch_key, dispatches.c.state != "accepted")
            .values(state=sa.case((goes_on, dispatches.c.state), else_="accepted"), campaign_id=campaign_id)
            .returning(dispatches.c.attempt)
        )
        with self._database.write() as connection:
            attempt = connection.scalar(change)
            if attempt is None:
                return False
            row = {"dispatch_key": dispatch_key, "attempt": attempt, "kind": "evidence", "reason": reason}
            connection.execute(sa.insert(outcomes), {**row, "recorded_at": now})
            add_news_of_dispatch(connection, dispatch_key)
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
            .join(segments, OF_SEGMENT)
            .join(outcomes, sa.and_(doubtful, outcomes.c.id == newest))
            .outerjoin(returns, returns.c.dispatch_key == dispatches.c.dispatch_key)
            .where(IS_IN_DOUBT)
            .order_by(outcomes.c.recorded_at, dispatches.c.launch_key, dispatches.c.segment)
        )
        if launch_key is not None:
            query = query.where(dispatches.c.launch_key == launch_key)
        with self._database.read() as connection:
            return [Doubt(*row) for row in connection.execute(query)]

    def planned_again(self, launch_key: str | None = None) -> list[SentAgain]:
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
                dispatches.c.state == "planned",
                _OF_UNFINISHED,
                sa.exists().where(
                    outcomes.c.dispatch_key == dispatches.c.dispatch_key,
                    outcomes.c.kind == "in_doubt",
                    sa.not_(recorded_later("refused", "not_processed")),
                ),
            )
            .order_by(dispatches.c.launch_key, dispatches.c.segment)
        )
        with self._database.read() as connection:
            return [SentAgain(*row) for row in connection.execute(query)]

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

    def expire_leases(self, launch_key: str | None, now: datetime) -> int:
        """Put every dispatch of a launch, or of all, whose worker was silent beyond its lease into doubt.

        Return their number. A dispatch of which an earlier attempt is known to be accepted is accepted instead. The
        ledger's clock judges the leases; ``now`` is when they are noticed, by the caller's clock.
        """
        is_of_launch = sa.true() if launch_key is None else dispatches.c.launch_key == launch_key
        with self._database.write() as connection:
            expired = connection.execute(
                sa.update(dispatches)
                .where(
                    is_of_launch,
                    IN_FLIGHT if launch_key is None else dispatches.c.state == "in_flight",
                    dispatches.c.lease_until < LedgerTime(),
                )
                .values(state="in_doubt", lease_until=None)
                .returning(dispatches.c.dispatch_key, dispatches.c.attempt, dispatches.c.launch_key)
            ).all()
            if expired:
                dead = InDoubt(_WORKER_DEAD)
                rows = [outcome_row(row.dispatch_key, row.attempt, dead, now) for row in expired]
                connection.execute(sa.insert(outcomes), rows)
                accept_what_was_accepted(connection, [row.dispatch_key for row in expired], now)
                add_news_if_reported(connection, (row.launch_key for row in expired))
        return len(expired)

    def next_expiry(self, launch_key: str) -> timedelta | None:
        """Return how long the ledger waits for the first worker that is sending a launch; None if no worker is."""
        query = sa.select(sa.func.min(dispatches.c.lease_until), LedgerTime()).where(
            dispatches.c.launch_key == launch_key, dispatches.c.state == "in_flight"
        )
        with self._database.read() as connection:
            expiry, now = connection.execute(query).one()
        return None if expiry is None else max(timedelta(0), expiry - now)


def outcome_row(key: str, attempt: int, outcome: Outcome, now: datetime) -> dict[str, Any]:
    """Give the row that keeps an outcome."""
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


def accept_what_was_accepted(link: sa.Connection, dispatch_keys: Collection[str], now: datetime) -> None:
    """Move to ``accepted`` those of some dispatches of which any attempt is known to have been accepted.

    To be called when they have been moved by the same transaction, and by statements of their own: those see what
    another worker recorded, or somebody folded, while we waited for it.
    """
    for key in dispatch_keys:
        link.execute(_ACCEPT, {"of": key})
    accept_what_is_evident(link, dispatch_keys, now)


def accept_what_is_evident(
    link: sa.Connection, dispatch_keys: Collection[str], now: datetime
) -> Sequence[sa.Row[tuple[str, int, str]]]:
    """Move to ``accepted`` those of some dispatches that something came back from, unless they are in flight.

    Gives key, attempt and launch of those that were moved. Evidence stands over a person who wrote a dispatch off, or
    planned it again. The campaign's number is not taken over from a post-back: its body may name any, and only the
    service's own reply tells a forgery.
    """
    moved = link.execute(_ACCEPT_EVIDENT, {"of": list(dispatch_keys)}).all()
    rows = [
        {
            "dispatch_key": row.dispatch_key,
            "attempt": row.attempt,
            "kind": "evidence",
            "reason": _EVIDENCE,
            "recorded_at": now,
        }
        for row in moved
    ]
    if rows:
        link.execute(sa.insert(outcomes), rows)
    return moved


def recorded_later(*kinds: str) -> sa.Exists:
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


_ACCEPT = (
    sa.update(dispatches)
    .where(
        dispatches.c.dispatch_key == sa.bindparam("of"),
        dispatches.c.state.in_(("planned", "refused", "in_doubt")),
        sa.exists().where(
            outcomes.c.dispatch_key == sa.bindparam("of"), outcomes.c.kind.in_(("accepted", "evidence"))
        ),
    )
    .values(state="accepted")
)
_ACCEPT_EVIDENT = (
    sa.update(dispatches)
    .where(DOUBTFUL, dispatches.c.dispatch_key.in_(sa.bindparam("of", expanding=True)), IS_EVIDENT)
    .values(state="accepted")
    .returning(dispatches.c.dispatch_key, dispatches.c.attempt, dispatches.c.launch_key)
)
_OF_UNFINISHED = dispatches.c.launch_key.in_(
    sa.select(launches.c.launch_key).where(launches.c.state.not_in(("rejected", "stopped")))
)


def _doubts(dispatch_key: str) -> sa.ScalarSelect[int]:
    """Count the attempts of a dispatch that are in doubt, or were before evidence came."""
    return (
        sa.select(sa.func.count(sa.distinct(outcomes.c.attempt)))
        .where(
            outcomes.c.dispatch_key == dispatch_key,
            outcomes.c.kind == "in_doubt",
            sa.not_(recorded_later("refused", "not_processed")),
        )
        .scalar_subquery()
    )


def _check_there(connection: sa.Connection, dispatch_key: str) -> None:
    known = sa.select(dispatches.c.dispatch_key).where(dispatches.c.dispatch_key == dispatch_key)
    if connection.scalar(known) is None:
        raise NotFoundError(f"the ledger holds no dispatch {dispatch_key}")
