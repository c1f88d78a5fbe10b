"""What came back of each dispatch: post-backs added up, in the transaction that moves their receiver's mark.

What cannot be held against a dispatch yet is set aside in that transaction, and folded when it can be.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from datetime import datetime
from typing import Any

import sqlalchemy as sa

from sendoff.audience.identifiers import Identifiers, Kind, from_bytes
from sendoff.ledger.clock import LedgerTime
from sendoff.ledger.database import Database
from sendoff.ledger.doubts import accept_what_is_evident
from sendoff.ledger.post_backs import SetAside, some_at_once
from sendoff.ledger.schema import (
    DOUBTFUL,
    audiences,
    dispatches,
    launches,
    outcomes,
    receivers,
    returns,
    segments,
    timeline,
)
from sendoff.ledger.schema import set_aside as set_aside_table
from sendoff.ledger.staleness import add_news

AT_OPENS = "at_opens"
"""Under this name ``anomalies`` counts the forged and unreadable post-backs that came to an address for opens.

What was folded before they were counted has none, so those are taken for post-backs at an address for deliveries.
"""

_SEGMENTS_AT_ONCE = 200  # that are read together


@dataclass(frozen=True, slots=True)
class Origin:
    """What the post-backs of one dispatch are held against."""

    launch_key: str
    campaign_id: int | None  # None too where an earlier attempt may have made a campaign of another number
    awaits_reply: bool  # the service is being asked at this moment, and its reply may tell the number
    identified_by: str
    kind: Kind
    settled_at: datetime | None


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

    @property
    def unread(self) -> int:
        """Post-backs that decide nothing because they are unreadable or forged."""
        return self.anomalies.get("unreadable", 0) + self.anomalies.get("forged", 0)

    @property
    def may_hide_deliveries(self) -> bool:
        """Whether one of them may have been somebody's delivery: it came to the address for deliveries."""
        return self.unread > self.anomalies.get(AT_OPENS, 0)

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
    returned: Iterable[Mapping[str, Returned]]  # in parts: dispatch key -> what this run adds
    launches: Collection[str]  # to which it adds
    minutes: Mapping[tuple[str, datetime], tuple[int, int]]  # (launch key, minute) -> deliveries, opens
    set_aside: Sequence[SetAside] = ()


class Returns:
    """What came back of the dispatches of a ledger."""

    def __init__(self, database: Database) -> None:
        self._database = database

    def identified_by(self) -> list[str]:
        """Give the columns of queries by which the people of any launch were named."""
        with self._database.read() as connection:
            return list(connection.scalars(sa.select(audiences.c.identified_by).distinct()))

    def origins(self, dispatch_keys: Iterable[str]) -> dict[str, Origin]:
        """Return for each dispatch key that the ledger knows what its post-backs are held against."""
        with self._database.read() as connection:
            return {
                row.dispatch_key: Origin(
                    launch_key=row.launch_key,
                    campaign_id=None if row.is_ambiguous else row.campaign_id,
                    awaits_reply=not row.is_ambiguous and row.is_leased,
                    identified_by=row.identified_by,
                    kind=row.kind,
                    settled_at=row.settled_at,
                )
                for keys in some_at_once(dispatch_keys)
                for row in connection.execute(_ORIGIN.where(dispatches.c.dispatch_key.in_(keys)))
            }

    def sent_to(self, dispatch_keys: Iterable[str]) -> Iterator[tuple[str, Identifiers | None]]:
        """Yield dispatches with whom each was sent to, read as they are used; None where the service chose them."""
        with self._database.read() as connection:
            for keys in some_at_once(dispatch_keys, _SEGMENTS_AT_ONCE):
                for key, kind, blob in connection.execute(
                    _SENT_TO.where(dispatches.c.dispatch_key.in_(keys))
                ):
                    yield key, None if blob is None else from_bytes(kind, blob)

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

    def store_set_aside(self, asides: Sequence[SetAside], fold: Fold) -> bool:
        """Add the fold of what was set aside, and set it aside no more.

        All in one transaction; gives False, and changes nothing, where another process folded any of it first.
        """
        with self._database.write() as connection:
            _lock_folding(connection)
            for each in asides:
                taken = connection.execute(
                    sa.delete(set_aside_table).where(
                        set_aside_table.c.receiver == each.receiver, set_aside_table.c.first == each.first
                    )
                )
                if not taken.rowcount:
                    connection.rollback()
                    return False
            self._add(connection, fold)
        return True

    def _add(self, connection: sa.Connection, fold: Fold) -> None:
        for part in fold.returned:
            stored = _stored_returns(connection, part)
            rows = [
                _returns_row(key, stored[key] | new if key in stored else new) for key, new in part.items()
            ]
            connection.execute(self._database.insert_or_replace(returns), rows)
        minutes = [
            {"launch_key": launch, "minute": minute, "deliveries": deliveries, "opens": opens}
            for (launch, minute), (deliveries, opens) in fold.minutes.items()
        ]
        if minutes:
            connection.execute(self._database.insert_or_add(timeline, "deliveries", "opens"), minutes)
        add_news(connection, fold.launches)

    def resolve_doubts(self, now: datetime) -> int:
        """Take every dispatch that was in doubt and that something came back from for accepted; gives their number.

        Evidence also stands over a person who wrote the dispatch off, or planned it again and it was not sent yet.
        """
        evident = (
            sa.select(dispatches.c.dispatch_key)
            .join(returns, returns.c.dispatch_key == dispatches.c.dispatch_key)
            .where(DOUBTFUL, returns.c.is_evidence)
        )
        with self._database.read() as connection:
            keys = connection.scalars(evident).all()
        # Where there is none, as nearly always, nothing is written, which would keep receivers waiting.
        return sum(self._resolve(some, now) for some in some_at_once(keys))

    def _resolve(self, keys: Collection[str], now: datetime) -> int:
        with self._database.write() as connection:
            resolved = accept_what_is_evident(connection, keys, now)
            add_news(connection, (row.launch_key for row in resolved))
        return len(resolved)

    def returned(self, launch_key: str) -> dict[str, Returned]:
        """Give what came back of each dispatch of a launch; dispatches without a post-back are left out."""
        return dict(self.each(launch_key))

    def each(self, launch_key: str) -> Iterator[tuple[str, Returned]]:
        """Yield what :meth:`returned` gives, read as it is used, in the order of segments: that of most texts."""
        query = _RETURNS.where(dispatches.c.launch_key == launch_key).order_by(dispatches.c.segment)
        with self._database.read() as connection:
            streamed = connection.execution_options(stream_results=True, max_row_buffer=100)
            for row in streamed.execute(query):
                yield row.dispatch_key, _returned(row)

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

    def timeline(self, launch_key: str) -> list[tuple[datetime, int, int]]:
        """Give (minute of reception, deliveries, opens) of a launch in the order of time."""
        query = sa.select(timeline.c.minute, timeline.c.deliveries, timeline.c.opens)
        with self._database.read() as connection:
            rows = connection.execute(
                query.where(timeline.c.launch_key == launch_key).order_by(timeline.c.minute)
            )
            return [(minute, deliveries, opens) for minute, deliveries, opens in rows]


_EARLIER_DOUBT = sa.exists().where(
    outcomes.c.dispatch_key == dispatches.c.dispatch_key,
    outcomes.c.kind == "in_doubt",
    outcomes.c.attempt < dispatches.c.attempt,
)

_IS_LEASED = sa.and_(dispatches.c.state == "in_flight", dispatches.c.lease_until >= LedgerTime())

_ORIGIN = (
    sa.select(
        dispatches.c.dispatch_key,
        dispatches.c.launch_key,
        dispatches.c.campaign_id,
        _IS_LEASED.label("is_leased"),
        _EARLIER_DOUBT.label("is_ambiguous"),
        audiences.c.identified_by,
        audiences.c.kind,
        launches.c.settled_at,
    )
    .join(launches, launches.c.launch_key == dispatches.c.launch_key)
    .join(audiences, audiences.c.launch_key == dispatches.c.launch_key)
)

_SENT_TO = (
    sa.select(dispatches.c.dispatch_key, audiences.c.kind, segments.c.identifiers)
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
