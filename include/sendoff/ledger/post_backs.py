"""Post-backs in the ledger: stored as they come, in the order of each receiver's commits, and folded later.

A receiver process is the only writer under its number and commits in order, so "everything up to number n" is a
state that never changes: folding remembers n, and n moves in the same transaction as what was folded. What cannot be
held against a dispatch yet is set aside in that transaction, and folded when it can be.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from datetime import datetime
from typing import Any

import pyarrow as pa
import sqlalchemy as sa

from sendoff.identifiers import Identifiers, Kind, from_bytes
from sendoff.ledger.database import Database
from sendoff.ledger.tables import (
    DOUBTFUL,
    audiences,
    dispatches,
    launches,
    outcomes,
    post_backs,
    receivers,
    returns,
    segments,
    timeline,
)
from sendoff.ledger.tables import set_aside as set_aside_table
from sendoff.postbacks import PostBack

_FOLDED_COLUMNS = (
    "number",
    "kind",
    "dispatch_key",
    "received_at",
    "device_id",
    "user_id",
    "campaign_id",
    "readable",
)
_EVIDENCE = "a post-back came from it"


@dataclass(frozen=True, slots=True)
class Origin:
    """What the post-backs of one dispatch are held against."""

    launch_key: str
    campaign_id: int | None  # None too where an earlier attempt may have made a campaign of another number
    awaits_reply: bool  # the service is being asked at this moment, and its reply may tell the number
    identified_by: str
    settled_at: datetime | None
    kind: Kind
    identifiers: Identifiers | None  # whom it was sent to; None: the service chose them


@dataclass(frozen=True, slots=True)
class Returned:
    """What came back of one dispatch: who, how many post-backs, and which of them decide nothing."""

    delivered: Identifiers
    engaged: Identifiers
    deliveries: int
    opens: int
    anomalies: Mapping[str, int]
    newest_at: datetime  # when the newest was received
    is_evidence: bool  # somebody answered whom the dispatch was sent to

    def __or__(self, other: Returned) -> Returned:
        """Join two parts of what came back; the order of joining changes nothing."""
        anomalies = Counter(self.anomalies)
        anomalies.update(other.anomalies)
        return Returned(
            delivered=self.delivered | other.delivered,
            engaged=self.engaged | other.engaged,
            deliveries=self.deliveries + other.deliveries,
            opens=self.opens + other.opens,
            anomalies=dict(anomalies),
            newest_at=max(self.newest_at, other.newest_at),
            is_evidence=self.is_evidence or other.is_evidence,
        )


@dataclass(frozen=True, slots=True)
class SetAside:
    """Post-backs of one dispatch in a run of one receiver that cannot be held against it yet."""

    receiver: int
    first: int  # their numbers, between which there may be those of other dispatches
    last: int
    dispatch_key: str
    post_backs: int
    newest_at: datetime


@dataclass(frozen=True, slots=True)
class Strays:
    """How many post-backs are validly addressed to dispatches that the ledger does not hold."""

    post_backs: int
    dispatches: int
    newest_at: datetime | None


@dataclass(frozen=True, slots=True)
class Fold:
    """A run of post-backs of one receiver, folded, ready to be stored in one transaction."""

    receiver: int
    after: int
    up_to: int
    returned: Mapping[str, Returned]  # dispatch key -> what this run adds
    minutes: Mapping[tuple[str, datetime], tuple[int, int]]  # (launch key, minute) -> deliveries, opens
    set_aside: Sequence[SetAside] = ()


class PostBacks:
    """The post-backs of a ledger."""

    def __init__(self, database: Database) -> None:
        self._database = database

    def register_receiver(self, name: str, now: datetime) -> int:
        """Give a receiver process a number of its own, under which it numbers its post-backs from 1."""
        row = {"name": name, "started_at": now, "folded": 0}
        with self._database.write() as connection:
            return int(
                connection.execute(sa.insert(receivers).returning(receivers.c.receiver), row).scalar_one()
            )

    def is_registered(self, receiver: int, name: str, started_at: datetime) -> bool:
        """Say whether a number is still the one that ``register_receiver`` gave this process at this time."""
        query = sa.select(receivers.c.name, receivers.c.started_at).where(receivers.c.receiver == receiver)
        with self._database.read() as connection:
            return connection.execute(query).one_or_none() == (name, started_at)

    def store(self, receiver: int, numbered: Sequence[tuple[int, PostBack]]) -> None:
        """Store post-backs in one transaction; when this returns they are durable.

        Numbers that are stored already are passed over, so that a commit whose answer was lost can be repeated.
        """
        rows = [_row(receiver, number, post_back) for number, post_back in numbered]
        if not rows:
            return
        with self._database.write() as connection:
            connection.execute(self._database.insert_or_pass(post_backs), rows)

    def unfolded(self) -> list[tuple[int, int, int]]:
        """Give (receiver, number folded so far, newest number) of every receiver that stored more than is folded."""
        newest = (
            sa.select(sa.func.max(post_backs.c.number))
            .where(post_backs.c.receiver == receivers.c.receiver)
            .scalar_subquery()
        )
        query = sa.select(receivers.c.receiver, receivers.c.folded, newest).where(newest > receivers.c.folded)
        with self._database.read() as connection:
            return [(receiver, folded, last) for receiver, folded, last in connection.execute(query)]

    def folded(self, receiver: int) -> int:
        """Give the number up to which one receiver's post-backs are folded."""
        query = sa.select(receivers.c.folded).where(receivers.c.receiver == receiver)
        with self._database.read() as connection:
            return int(connection.execute(query).scalar_one())

    def read(self, receiver: int, *, after: int, limit: int) -> pa.Table:
        """Give up to ``limit`` post-backs of one receiver above number ``after``, in order, without bodies."""
        query = _READ.where(post_backs.c.receiver == receiver, post_backs.c.number > after)
        return self._table(query.order_by(post_backs.c.number).limit(limit))

    def read_set_aside(self, aside: SetAside) -> pa.Table:
        """Give the post-backs that were set aside together, as :meth:`read` does."""
        query = _READ.where(
            post_backs.c.receiver == aside.receiver,
            post_backs.c.number.between(aside.first, aside.last),
            post_backs.c.dispatch_key == aside.dispatch_key,
        )
        return self._table(query.order_by(post_backs.c.number))

    def _table(self, query: sa.Select[Any]) -> pa.Table:
        with self._database.read() as connection:
            rows = connection.execute(query).all()
        columns = zip(*rows, strict=True) if rows else ([] for _ in _FOLDED_COLUMNS)
        return pa.table(
            [pa.array(values, _ARROW[name]) for name, values in zip(_ARROW, columns, strict=True)],
            list(_ARROW),
        )

    def origins(self, dispatch_keys: Iterable[str], now: datetime) -> dict[str, Origin]:
        """Give for each dispatch key that the ledger knows what its post-backs are held against."""
        query = _ORIGIN.where(dispatches.c.dispatch_key.in_(list(dispatch_keys)))
        with self._database.read() as connection:
            return {
                row.dispatch_key: Origin(
                    launch_key=row.launch_key,
                    campaign_id=None if row.is_ambiguous else row.campaign_id,
                    awaits_reply=not row.is_ambiguous and row.state == "in_flight" and row.lease_until >= now,
                    identified_by=row.identified_by,
                    settled_at=row.settled_at,
                    kind=row.kind,
                    identifiers=None if row.identifiers is None else from_bytes(row.kind, row.identifiers),
                )
                for row in connection.execute(query)
            }

    def set_aside(self) -> list[SetAside]:
        """Give what is set aside of dispatches that the ledger holds by now."""
        query = sa.select(set_aside_table).join(
            dispatches, dispatches.c.dispatch_key == set_aside_table.c.dispatch_key
        )
        with self._database.read() as connection:
            return [SetAside(**row._mapping) for row in connection.execute(query)]

    def strays(self) -> Strays:
        """Count what is set aside of dispatches that the ledger does not hold."""
        query = (
            sa.select(
                sa.func.coalesce(sa.func.sum(set_aside_table.c.post_backs), 0),
                sa.func.count(sa.distinct(set_aside_table.c.dispatch_key)),
                sa.func.max(set_aside_table.c.newest_at),
            )
            .outerjoin(dispatches, dispatches.c.dispatch_key == set_aside_table.c.dispatch_key)
            .where(dispatches.c.dispatch_key.is_(None))
        )
        with self._database.read() as connection:
            count, keys, newest_at = connection.execute(query).one()
        return Strays(int(count), keys, newest_at)

    def store_fold(self, fold: Fold) -> bool:
        """Add a fold to what came back, and move the receiver's mark.

        Both in one transaction; gives False, and changes nothing, where another process folded the same run first.
        """
        with self._database.write() as connection:
            _lock_folding(connection)
            moved = connection.execute(
                sa.update(receivers)
                .where(receivers.c.receiver == fold.receiver, receivers.c.folded == fold.after)
                .values(folded=fold.up_to)
            )
            if not moved.rowcount:
                return False
            self._add(connection, fold)
            if fold.set_aside:
                connection.execute(sa.insert(set_aside_table), [asdict(each) for each in fold.set_aside])
        return True

    def store_set_aside(self, aside: SetAside, fold: Fold) -> bool:
        """Add the fold of what was set aside, and set it aside no more; False where another process was first."""
        with self._database.write() as connection:
            _lock_folding(connection)
            taken = connection.execute(
                sa.delete(set_aside_table).where(
                    set_aside_table.c.receiver == aside.receiver, set_aside_table.c.first == aside.first
                )
            )
            if not taken.rowcount:
                return False
            self._add(connection, fold)
        return True

    def _add(self, connection: sa.Connection, fold: Fold) -> None:
        stored = _stored_returns(connection, fold.returned)
        changed = [
            _returns_row(key, stored[key] | new if key in stored else new)
            for key, new in fold.returned.items()
        ]
        if changed:
            connection.execute(self._database.insert_or_replace(returns), changed)
        minutes = [
            {"launch_key": launch, "minute": minute, "deliveries": deliveries, "opens": opens}
            for (launch, minute), (deliveries, opens) in fold.minutes.items()
        ]
        if minutes:
            connection.execute(self._database.insert_or_add(timeline, "deliveries", "opens"), minutes)

    def resolve_doubts(self, now: datetime) -> int:
        """Take every dispatch that was in doubt and that something came back from for accepted; gives their number.

        Evidence also stands over a person who wrote the dispatch off, or planned it again and it was not sent yet. The
        campaign's number is not taken over from a post-back: its body may name any, and only the service's own
        reply tells a forgery.
        """
        evident = (
            sa.select(dispatches.c.dispatch_key)
            .join(returns, returns.c.dispatch_key == dispatches.c.dispatch_key)
            .where(DOUBTFUL, returns.c.is_evidence)
        )
        with self._database.read() as connection:
            keys = connection.scalars(evident).all()
        if not keys:
            return 0  # as nearly always: a transaction that writes would keep receivers waiting
        with self._database.write() as connection:
            resolved = connection.execute(
                sa.update(dispatches)
                .where(DOUBTFUL, dispatches.c.dispatch_key.in_(keys))
                .values(state="accepted")
                .returning(dispatches.c.dispatch_key, dispatches.c.attempt)
            ).all()
            rows = [
                {**row._mapping, "kind": "evidence", "reason": _EVIDENCE, "recorded_at": now}
                for row in resolved
            ]
            if rows:
                connection.execute(self._database.insert_or_pass(outcomes), rows)
        return len(rows)

    def returned(self, launch_key: str) -> dict[str, Returned]:
        """Give what came back of each dispatch of a launch; dispatches without a post-back are left out."""
        query = _RETURNS.where(dispatches.c.launch_key == launch_key)
        with self._database.read() as connection:
            return {row.dispatch_key: _returned(row) for row in connection.execute(query)}

    def newest(self, launch_key: str) -> tuple[datetime | None, int]:
        """Give when the newest post-back of a launch was received, and how many of its post-backs were opens."""
        query = (
            sa.select(sa.func.max(returns.c.newest_at), sa.func.coalesce(sa.func.sum(returns.c.opens), 0))
            .join(dispatches, dispatches.c.dispatch_key == returns.c.dispatch_key)
            .where(dispatches.c.launch_key == launch_key)
        )
        with self._database.read() as connection:
            newest_at, opens = connection.execute(query).one()
        return newest_at, int(opens)

    def heard(self) -> tuple[int, datetime | None]:
        """Give how many receivers were ever started, and when the newest post-back of any of them was received."""
        numbered = post_backs.alias("numbered")
        newest = (
            sa.select(sa.func.max(numbered.c.number))
            .where(numbered.c.receiver == receivers.c.receiver)
            .scalar_subquery()
        )
        query = sa.select(sa.func.count(), sa.func.max(post_backs.c.received_at)).select_from(
            receivers.outerjoin(
                post_backs,
                sa.and_(post_backs.c.receiver == receivers.c.receiver, post_backs.c.number == newest),
            )
        )
        with self._database.read() as connection:
            count, newest_at = connection.execute(query).one()
        return count, newest_at

    def timeline(self, launch_key: str) -> list[tuple[datetime, int, int]]:
        """Give (minute of reception, deliveries, opens) of a launch in the order of time."""
        query = sa.select(timeline.c.minute, timeline.c.deliveries, timeline.c.opens)
        with self._database.read() as connection:
            rows = connection.execute(
                query.where(timeline.c.launch_key == launch_key).order_by(timeline.c.minute)
            )
            return [(minute, deliveries, opens) for minute, deliveries, opens in rows]


_ARROW = {
    "number": pa.int64(),
    "kind": pa.string(),
    "dispatch_key": pa.string(),
    "received_at": pa.timestamp("us", "UTC"),
    "device_id": pa.int64(),
    "user_id": pa.string(),
    "campaign_id": pa.int64(),
    "readable": pa.bool_(),
}

_READ = sa.select(*(post_backs.c[name] for name in _FOLDED_COLUMNS))

_EARLIER_DOUBT = sa.exists().where(
    outcomes.c.dispatch_key == dispatches.c.dispatch_key,
    outcomes.c.kind == "in_doubt",
    outcomes.c.attempt < dispatches.c.attempt,
)

_ORIGIN = (
    sa.select(
        dispatches.c.dispatch_key,
        dispatches.c.launch_key,
        dispatches.c.campaign_id,
        dispatches.c.state,
        dispatches.c.lease_until,
        _EARLIER_DOUBT.label("is_ambiguous"),
        audiences.c.identified_by,
        audiences.c.kind,
        launches.c.settled_at,
        segments.c.identifiers,
    )
    .join(launches, launches.c.launch_key == dispatches.c.launch_key)
    .join(audiences, audiences.c.launch_key == dispatches.c.launch_key)
    .join(
        segments,
        sa.and_(segments.c.launch_key == dispatches.c.launch_key, segments.c.number == dispatches.c.segment),
    )
)

_RETURNS = (
    sa.select(returns, audiences.c.kind)
    .join(dispatches, dispatches.c.dispatch_key == returns.c.dispatch_key)
    .join(audiences, audiences.c.launch_key == dispatches.c.launch_key)
)


def _row(receiver: int, number: int, post_back: PostBack) -> dict[str, Any]:
    fields = post_back.fields
    return {
        "receiver": receiver,
        "number": number,
        "kind": post_back.kind,
        "dispatch_key": post_back.dispatch_key,
        "received_at": post_back.received_at,
        "occurred_at": fields and fields.time,
        "device_id": fields and fields.device_id,
        "profile_id": fields and fields.profile_id,
        "user_id": fields and fields.user_id,
        "send_id": fields and fields.send_id,
        "campaign_id": fields and fields.campaign_id,
        "readable": fields is not None,
        "body": post_back.body,
    }


def _lock_folding(connection: sa.Connection) -> None:
    """Let one fold at a time change what came back, whichever receiver it is of (SQLite does so by itself)."""
    if connection.dialect.name == "postgresql":
        connection.execute(sa.text("LOCK TABLE returns IN SHARE ROW EXCLUSIVE MODE"))


def _stored_returns(connection: sa.Connection, dispatch_keys: Iterable[str]) -> dict[str, Returned]:
    query = _RETURNS.where(returns.c.dispatch_key.in_(list(dispatch_keys)))
    return {row.dispatch_key: _returned(row) for row in connection.execute(query)}


def _returned(row: sa.Row[Any]) -> Returned:
    return Returned(
        delivered=from_bytes(row.kind, row.delivered),
        engaged=from_bytes(row.kind, row.engaged),
        deliveries=row.deliveries,
        opens=row.opens,
        anomalies=row.anomalies,
        newest_at=row.newest_at,
        is_evidence=row.is_evidence,
    )


def _returns_row(dispatch_key: str, returned: Returned) -> dict[str, Any]:
    return {
        "dispatch_key": dispatch_key,
        "delivered": returned.delivered.to_bytes(),
        "engaged": returned.engaged.to_bytes(),
        "deliveries": returned.deliveries,
        "opens": returned.opens,
        "anomalies": dict(returned.anomalies),
        "newest_at": returned.newest_at,
        "is_evidence": returned.is_evidence,
    }
