"""Launches in the ledger: frozen once, with their audience, segments and planned dispatches."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from datetime import datetime
from itertools import islice
from typing import Any

import sqlalchemy as sa
from sqlalchemy import exc

from sendoff.audience import Audience
from sendoff.errors import AudienceError, NotFoundError, OvertakenError
from sendoff.identifiers import Identifiers, Kind, empty, from_bytes, union
from sendoff.ledger.database import Database
from sendoff.ledger.decisions import Decision
from sendoff.ledger.fates import Fate, fate
from sendoff.ledger.tables import audience_groups, audiences, dispatches, launches
from sendoff.ledger.tables import decisions as decisions_table
from sendoff.ledger.tables import left_out as left_out_table
from sendoff.ledger.tables import segments as segments_table
from sendoff.period import Period, dispatch_key
from sendoff.segments import Segment


@dataclass(frozen=True, slots=True)
class Launch:
    """What a launch froze when it was made, without its identifiers."""

    launch_key: str
    connection: str
    campaign: str
    period: Period
    resend: int
    definition: str  # the campaign as it was frozen, JSON
    created_at: datetime
    settled_at: datetime | None  # when it was quiet or complete; later post-backs count as late
    state: str  # held, released, paused, rejected or stopped: only what is released is sent
    wave: int  # the newest wave that may be sent
    due_at: datetime | None  # when it was to be made
    sends_at: datetime | None  # by when the service has sent; None: again and again
    is_chosen_by_service: bool  # then it has no people that are known beforehand
    identified_by: str  # the column of the query that named people
    kind: Kind
    rows: int  # rows that the query gave
    audience: int  # identifiers that were left
    dropped: Mapping[str, int]  # reason -> rows
    segments: int


class Launches:
    """The launches of a ledger."""

    def __init__(self, database: Database) -> None:
        self._database = database

    def find(self, launch_key: str) -> Launch | None:
        """Give a launch, or None where the ledger holds none of that key."""
        with self._database.read() as connection:
            row = connection.execute(_LAUNCH.where(launches.c.launch_key == launch_key)).first()
        return _launch(row) if row else None

    def get(self, launch_key: str) -> Launch:
        """Give a launch, or raise NotFoundError."""
        found = self.find(launch_key)
        if found is None:
            raise NotFoundError(f"the ledger holds no launch {launch_key}")
        return found

    def previous(self, connection: str, campaign: str, period: Period) -> Launch | None:
        """Give a campaign's newest launch for a period that ended before this one, of its partition if there is one.

        One that was rejected, or stopped before anything of it was sent, is no measure for others and passed over.
        """
        is_sent = sa.exists().where(dispatches.c.launch_key == launches.c.launch_key, _MAY_BE_SENT)
        query = _LAUNCH.where(
            launches.c.connection == connection,
            launches.c.campaign == campaign,
            launches.c.period_end < period.end,
            launches.c.state != "rejected",
            sa.or_(launches.c.state != "stopped", is_sent.correlate(launches)),
        ).order_by(
            launches.c.partition.is_not_distinct_from(period.partition).desc(),
            launches.c.period_end.desc(),
            launches.c.resend.desc(),
        )
        with self._database.read() as link:
            row = link.execute(query.limit(1)).first()
        return _launch(row) if row else None

    def search(self, prefix: str = "", *, campaign: str | None = None, limit: int = 100) -> list[Launch]:
        """Give the launches whose key starts with ``prefix``, newest first."""
        query = _LAUNCH.where(launches.c.launch_key.startswith(prefix, autoescape=True))
        if campaign is not None:
            query = query.where(launches.c.campaign == campaign)
        with self._database.read() as connection:
            rows = connection.execute(query.order_by(launches.c.created_at.desc()).limit(limit)).all()
        return [_launch(row) for row in rows]

    def unsent(
        self, *states: str, connection: str | None = None, of: Collection[str] = ("planned",)
    ) -> list[str]:
        """Give the keys of launches in one of some states with a dispatch in one of the states ``of``, oldest first."""
        is_left = sa.exists().where(
            dispatches.c.launch_key == launches.c.launch_key, dispatches.c.state.in_(of)
        )
        query = sa.select(launches.c.launch_key).where(launches.c.state.in_(states), is_left)
        if connection is not None:
            query = query.where(launches.c.connection == connection)
        with self._database.read() as link:
            return list(link.scalars(query.order_by(launches.c.created_at, launches.c.launch_key)))

    def freeze(
        self,
        launch_key: str,
        *,
        connection: str,
        campaign: str,
        period: Period,
        resend: int,
        definition: str,
        audience: Audience | None,
        segments: Iterable[Segment],
        now: datetime,
        state: str = "released",
        due_at: datetime | None = None,
        sends_at: datetime | None = None,
        left_out: Mapping[str, Identifiers] | None = None,
        seen: int | None = None,
        decisions: Sequence[Decision] = (),
    ) -> Launch:
        """Store a launch with its audience, segments and planned dispatches, all or nothing.

        ``audience`` is None where the service chooses the people. ``left_out``: whom the query named and the launch is
        not sent to, by reason. ``decisions``: by which it is made, and which are kept with it, in this order. Where
        another process froze the same key first, its launch is given; this audience and these decisions are forgotten.

        ``seen``: how many launches of the connection were known when it was decided who is left out; None where that
        does not depend on them. Raises OvertakenError, and stores nothing, where there are others by now.
        """
        row = {
            "launch_key": launch_key,
            "connection": connection,
            "campaign": campaign,
            "period_start": period.start,
            "period_end": period.end,
            "partition": period.partition,
            "resend": resend,
            "definition": definition,
            "created_at": now,
            "state": state,
            "due_at": due_at,
            "sends_at": sends_at,
        }
        try:
            with self._database.write() as link:
                _await_other_freezes(link, connection)
                if seen is not None and _count(link, connection) != seen:
                    raise OvertakenError(
                        "another launch was made in the meantime; who is left out must be decided again"
                    )
                link.execute(sa.insert(launches), row)
                _insert_audience(link, launch_key, audience)
                _insert_left_out(link, launch_key, left_out or {})
                _insert_segments(link, launch_key, segments)
                if decisions:
                    link.execute(sa.insert(decisions_table), [asdict(each) for each in decisions])
        except exc.IntegrityError:
            if self.find(launch_key) is None:
                raise
        return self.get(launch_key)

    def count(self, connection: str) -> int:
        """Give how many launches of a connection the ledger holds."""
        with self._database.read() as link:
            return _count(link, connection)

    def sending(self, connection: str, since: datetime) -> list[Launch]:
        """Give the launches that are sent after a moment, or again and again, and in part at least: earliest first."""
        is_sent = sa.exists().where(dispatches.c.launch_key == launches.c.launch_key, _MAY_BE_SENT)
        query = _LAUNCH.where(
            launches.c.connection == connection,
            sa.or_(launches.c.sends_at > since, launches.c.sends_at.is_(None)),
            is_sent.correlate(launches),
        ).order_by(launches.c.sends_at, launches.c.launch_key)
        with self._database.read() as link:
            return [_launch(row) for row in link.execute(query)]

    def sent(self, launch_key: str) -> Identifiers:
        """Give whom a launch was sent to, may have been sent to, or is yet to be sent to."""
        query = (
            sa.select(audiences.c.kind, segments_table.c.identifiers)
            .join(audiences, audiences.c.launch_key == segments_table.c.launch_key)
            .join(launches, launches.c.launch_key == segments_table.c.launch_key)
            .join(
                dispatches,
                sa.and_(
                    dispatches.c.launch_key == segments_table.c.launch_key,
                    dispatches.c.segment == segments_table.c.number,
                ),
            )
            .where(
                segments_table.c.launch_key == launch_key,
                segments_table.c.identifiers.is_not(None),
                _MAY_BE_SENT,
            )
        )
        with self._database.read() as link:
            found = [(row.kind, from_bytes(row.kind, row.identifiers)) for row in link.execute(query)]
        kind = found[0][0] if found else self.get(launch_key).kind
        return union(kind, (people for _, people in found))

    def why(self, launch_key: str, identifier: int | str) -> Fate:
        """Say what became of one identifier in a launch.

        Raises NotFoundError for a launch that the ledger does not hold, AudienceError for what can be nobody in it.
        """
        launch = self.get(launch_key)
        typed = _typed(identifier, launch)
        with self._database.read() as link:
            return fate(link, launch_key, launch.state, launch.kind, typed)

    def settle(self, launch_key: str, now: datetime) -> None:
        """Note that a launch is quiet or complete, unless that was noted before."""
        with self._database.write() as connection:
            connection.execute(
                sa.update(launches)
                .where(launches.c.launch_key == launch_key, launches.c.settled_at.is_(None))
                .values(settled_at=now)
            )

    def audience(self, launch_key: str) -> Identifiers:
        """Give the frozen audience of a launch."""
        query = sa.select(audiences.c.kind, audiences.c.identifiers)
        with self._database.read() as connection:
            row = connection.execute(query.where(audiences.c.launch_key == launch_key)).one()
        return from_bytes(row.kind, row.identifiers)

    def left_out(self, launch_key: str, *reasons: str) -> dict[str, Identifiers]:
        """Give whom the query named and a launch is not sent to: reason -> identifiers; ``reasons``: only these."""
        query = (
            sa.select(left_out_table.c.reason, audiences.c.kind, left_out_table.c.identifiers)
            .join(audiences, audiences.c.launch_key == left_out_table.c.launch_key)
            .where(left_out_table.c.launch_key == launch_key)
        )
        if reasons:
            query = query.where(left_out_table.c.reason.in_(reasons))
        with self._database.read() as connection:
            return {row.reason: from_bytes(row.kind, row.identifiers) for row in connection.execute(query)}

    def groups(self, launch_key: str, name: str) -> dict[str, Identifiers]:
        """Give the groups that one column of the query made, such as ``platform``: value -> identifiers."""
        query = (
            sa.select(audience_groups.c.value, audiences.c.kind, audience_groups.c.identifiers)
            .join(audiences, audiences.c.launch_key == audience_groups.c.launch_key)
            .where(audience_groups.c.launch_key == launch_key, audience_groups.c.name == name)
        )
        with self._database.read() as connection:
            return {row.value: from_bytes(row.kind, row.identifiers) for row in connection.execute(query)}


_MAY_BE_SENT = sa.or_(
    dispatches.c.state.in_(("accepted", "in_flight", "in_doubt", "written_off")),
    sa.and_(dispatches.c.state == "planned", launches.c.state.in_(("held", "released", "paused"))),
)
_SEGMENTS = (
    sa.select(sa.func.count())
    .select_from(segments_table)
    .where(segments_table.c.launch_key == launches.c.launch_key)
    .scalar_subquery()
)
_LAUNCH = sa.select(
    launches,
    audiences.c.identified_by,
    audiences.c.kind,
    audiences.c.rows,
    audiences.c.size.label("audience"),
    audiences.c.dropped,
    audiences.c.is_chosen_by_service,
    _SEGMENTS.label("segments"),
).join(audiences, audiences.c.launch_key == launches.c.launch_key)


def _count(link: sa.Connection, connection: str) -> int:
    return link.scalar(sa.select(sa.func.count()).where(launches.c.connection == connection)) or 0


_FREEZE_LOCK = 0x4C41554E  # any number that no other pair of the database's advisory locks begins with


def _await_other_freezes(link: sa.Connection, connection: str) -> None:
    """Wait for whoever freezes a launch of the same connection, so that what follows sees that launch.

    Nobody else waits: other launches are claimed, paused and stopped meanwhile.
    """
    if link.dialect.name == "postgresql":  # SQLite lets one writer in at a time anyway
        link.execute(sa.select(sa.func.pg_advisory_xact_lock(_FREEZE_LOCK, sa.func.hashtext(connection))))


def _launch(row: sa.Row[Any]) -> Launch:
    values = dict(row._mapping)
    period = Period(*(values.pop(name) for name in ("period_start", "period_end", "partition")))
    return Launch(period=period, **values)


def _typed(identifier: int | str, launch: Launch) -> int | str:
    if launch.kind == "string":
        return str(identifier)
    try:
        return int(identifier)
    except ValueError:
        raise AudienceError(
            f"launch {launch.launch_key} names people by {launch.identified_by}, as whole numbers"
        ) from None


_LARGEST_VALUE = 500 << 20  # bytes; PostgreSQL takes more, and then cannot give it back as text


def stored(identifiers: Identifiers) -> bytes:
    """Give a set as one value of the ledger, or raise AudienceError where it is too large for one."""
    blob = identifiers.to_bytes()
    if len(blob) > _LARGEST_VALUE:
        raise AudienceError(
            f"an audience of {len(identifiers):,} such identifiers takes {len(blob) >> 20} MiB, more than one value of "
            "the ledger holds; cut the campaign in two, or name people by device_id"
        )
    return blob


def _insert_audience(connection: sa.Connection, launch_key: str, audience: Audience | None) -> None:
    identifiers = audience.identifiers if audience else empty("integer")
    connection.execute(
        sa.insert(audiences),
        {
            "launch_key": launch_key,
            "identified_by": audience.identified_by if audience else "device_id",
            "kind": identifiers.kind,
            "is_chosen_by_service": audience is None,
            "rows": audience.rows if audience else 0,
            "size": len(identifiers),
            "dropped": dict(audience.dropped) if audience else {},
            "fingerprint": audience.fingerprint if audience else "",
            "identifiers": stored(identifiers),
        },
    )
    rows = [
        {"launch_key": launch_key, "name": name, "value": value, **_set(members)}
        for name, values in (audience.groups if audience else {}).items()
        for value, members in values.items()
    ]
    if rows:
        connection.execute(sa.insert(audience_groups), rows)


def _insert_left_out(connection: sa.Connection, launch_key: str, left_out: Mapping[str, Identifiers]) -> None:
    rows = [
        {"launch_key": launch_key, "reason": reason, **_set(members)}
        for reason, members in left_out.items()
        if len(members)
    ]
    if rows:
        connection.execute(sa.insert(left_out_table), rows)


def _set(members: Identifiers) -> dict[str, Any]:
    return {"size": len(members), "identifiers": stored(members)}


_CHUNK = 500  # segments that are inserted at once


def _insert_segments(connection: sa.Connection, launch_key: str, segments: Iterable[Segment]) -> None:
    numbered = enumerate(segments, start=1)
    while chunk := list(islice(numbered, _CHUNK)):
        rows = [_segment_row(launch_key, number, segment) for number, segment in chunk]
        connection.execute(sa.insert(segments_table), rows)
        connection.execute(
            sa.insert(dispatches),
            [
                {
                    "dispatch_key": dispatch_key(launch_key, row["fingerprint"]),
                    "launch_key": launch_key,
                    "segment": row["number"],
                    "state": "planned",
                    "attempt": 0,
                }
                for row in rows
            ],
        )


def _segment_row(launch_key: str, number: int, segment: Segment) -> dict[str, Any]:
    return {
        "launch_key": launch_key,
        "number": number,
        "language": segment.edition.language,
        "variant": segment.edition.variant,
        "time_zone": segment.edition.time_zone,
        "wave": segment.wave,
        "size": len(segment),
        "fingerprint": segment.fingerprint(),
        "identifiers": None if segment.identifiers is None else segment.identifiers.to_bytes(),
        "parameters": segment.parameters,
    }
