"""Launches in the ledger: each is frozen once, with its audience, segments, and planned dispatches."""

from __future__ import annotations

from collections.abc import Collection
from datetime import datetime, timedelta
from typing import Any, NamedTuple

import sqlalchemy as sa
from sqlalchemy import exc

from sendoff.audience.identifiers import Identifiers, as_integer, from_bytes, union
from sendoff.campaign import Period
from sendoff.errors import AudienceError, ConflictError, NotFoundError
from sendoff.ledger.launches import freeze
from sendoff.ledger.launches.freeze import NewLaunch, Overlap
from sendoff.ledger.launches.launch_record import LAUNCH, LaunchRecord, launch_of
from sendoff.ledger.launches.recipient import RecipientStatus, recipient_status
from sendoff.ledger.requests.doubts import may_be_processed
from sendoff.ledger.storage.database import LedgerPart
from sendoff.ledger.storage.erasure_state import check_version
from sendoff.ledger.storage.joins import OF_SEGMENT, SENT_TO
from sendoff.ledger.storage.schema import audience_groups, dispatches, launches
from sendoff.ledger.storage.schema import segments as segments_table
from sendoff.ledger.storage.schema import suppressed as suppressed_table
from sendoff.ledger.storage.stored_sets import GROUPS, SUPPRESSED, joined
from sendoff.ledger.suppression.active_verdicts import LaunchSource, sources_of
from sendoff.ledger.suppression.withheld import REMAINING, UNMADE_BUT_LEFT_OUT, recipients_of, remaining
from sendoff.states import LIVING, DispatchState


class NotReached(NamedTuple):
    """Requests whose recipients got nothing, and the number of these recipients: 0 if the service chooses them."""

    requests: int
    recipients: int


class Launches(LedgerPart):
    """The launches of a ledger."""

    def find(self, launch_key: str) -> LaunchRecord | None:
        """Return a launch, or None if the ledger does not have it."""
        row = self._database.first(_LAUNCH_OF_KEY, {"key": launch_key})
        return launch_of(row) if row else None

    def get(self, launch_key: str) -> LaunchRecord:
        """Return a launch, or raise NotFoundError."""
        launch = self.find(launch_key)
        if launch is None:
            raise NotFoundError(f"the ledger holds no launch {launch_key}")
        return launch

    def of_keys(self, launch_keys: Collection[str]) -> list[LaunchRecord]:
        """Return the launches with some keys."""
        rows = self._database.rows(LAUNCH.where(is_one_of(launches.c.launch_key, launch_keys)))
        return [launch_of(row) for row in rows]

    def previous(self, connection: str, campaign: str, period: Period) -> LaunchRecord | None:
        """Return the newest launch of a campaign for an earlier period, preferably of the same partition.

        Rejected launches, and launches stopped before any request was sent, are skipped: they are no basis for
        comparison.
        """
        return self._newest_ended(connection, campaign, period, launches.c.period_end < period.end)

    def ended_within(
        self, connection: str, campaign: str, period: Period, days: int = 0
    ) -> LaunchRecord | None:
        """Return the newest launch of a campaign whose own period ends within a period, up to its end.

        ``days``: the own period may also end up to this many days before. Launches are chosen and skipped as in
        :meth:`previous`.
        """
        end, since = launches.c.period_end, period.start - timedelta(days=days)
        is_after = end >= since if days else end > since  # the start of a period is the end of the one before
        ended = sa.or_(end == period.end, sa.and_(is_after, end < period.end))
        return self._newest_ended(connection, campaign, period, ended)

    def overlapping(self, overlap: Overlap) -> LaunchRecord | None:
        """Return the newest launch that was or will be sent for a part of a period."""
        row = self._database.first(_of_overlap(overlap).order_by(launches.c.period_end.desc()).limit(1))
        return launch_of(row) if row else None

    def of_period(
        self,
        connection: str,
        campaigns: Collection[str],
        period: Period,
        *,
        or_overlapping: bool = False,
        is_sent: bool = False,
    ) -> list[LaunchRecord]:
        """Return the launches of some campaigns for a period, the first one first.

        ``or_overlapping``: also those whose period overlaps it. ``is_sent``: only those that may send or may have sent.
        """
        query = LAUNCH.where(
            launches.c.connection == connection,
            launches.c.campaign.in_(campaigns),
            launches.c.partition.is_not_distinct_from(period.partition),
            _overlaps(period) if or_overlapping else _is_same(period),
            *([_LIVES_OR_SENT] if is_sent else []),
        )
        return [launch_of(row) for row in self._database.rows(query.order_by(launches.c.created_at))]

    def sources(self, launch_key: str) -> list[LaunchSource]:
        """Return the other launches whose verdicts decide about the recipients of a launch."""
        with self._database.read() as db:
            return sources_of(db, launch_key)

    def _newest_ended(
        self, connection: str, campaign: str, period: Period, ended: sa.ColumnElement[bool]
    ) -> LaunchRecord | None:
        query = LAUNCH.where(
            launches.c.connection == connection,
            launches.c.campaign == campaign,
            ended,
            _LIVES_OR_SENT,
        ).order_by(
            launches.c.partition.is_not_distinct_from(period.partition).desc(),
            launches.c.period_end.desc(),
            launches.c.resend.desc(),
        )
        row = self._database.first(query.limit(1))
        return launch_of(row) if row else None

    def search(
        self, prefix: str = "", *, campaign: str | None = None, limit: int | None = None
    ) -> list[LaunchRecord]:
        """Return the launches whose key starts with ``prefix``, newest first."""
        query = LAUNCH.where(launches.c.launch_key.startswith(prefix, autoescape=True))
        if campaign is not None:
            query = query.where(launches.c.campaign == campaign)
        rows = self._database.rows(query.order_by(launches.c.created_at.desc()).limit(limit))
        return [launch_of(row) for row in rows]

    def page(
        self,
        campaigns: Collection[str],
        *,
        states: Collection[str] = (),
        offset: int = 0,
        limit: int | None = None,
    ) -> list[LaunchRecord]:
        """Return a page of the launches of some campaigns, newest first. ``states``: only these; all if empty."""
        some = sa.select(launches.c.launch_key).where(*_among(campaigns, states)).order_by(*_NEWEST_FIRST)
        query = LAUNCH.where(launches.c.launch_key.in_(some.offset(offset).limit(limit)))
        return [launch_of(row) for row in self._database.rows(query.order_by(*_NEWEST_FIRST))]

    def count_of(self, campaigns: Collection[str], *, states: Collection[str] = ()) -> int:
        """Count the launches of some campaigns. ``states``: only these; all if empty."""
        return int(self._database.scalar(sa.select(sa.func.count()).where(*_among(campaigns, states))))

    def campaigns(self, connection: str | None = None) -> dict[str, int]:
        """Count the launches of each campaign, by name. ``connection``: only launches on this connection."""
        query = sa.select(launches.c.campaign, sa.func.count()).group_by(launches.c.campaign)
        if connection is not None:
            query = query.where(launches.c.connection == connection)
        return dict(self._database.rows(query.order_by(launches.c.campaign)))

    def connections(self) -> list[str]:
        """Return the connections that have launches."""
        query = sa.select(launches.c.connection).distinct().order_by(launches.c.connection)
        return self._database.scalars(query)

    def unsent(
        self, *states: str, connection: str | None = None, of: Collection[str] = (DispatchState.PLANNED,)
    ) -> list[str]:
        """Return the keys of launches in some states that have a dispatch in a state of ``of``, oldest first."""
        is_left = sa.exists().where(
            dispatches.c.launch_key == launches.c.launch_key, dispatches.c.state.in_(of)
        )
        query = sa.select(launches.c.launch_key).where(launches.c.state.in_(states), is_left)
        if connection is not None:
            query = query.where(launches.c.connection == connection)
        return self._database.scalars(query.order_by(launches.c.created_at, launches.c.launch_key))

    def freeze(self, launch: NewLaunch) -> LaunchRecord:
        """Store a launch with its audience, segments, and planned dispatches in one transaction.

        If another process froze the same key first, return its launch and discard this one. If the connection no longer
        has ``known_launches``, people were erased since ``known_erasures``, or another launch was made for a part of
        the period, store nothing and raise ConflictError.
        """
        try:
            with self._database.write() as db:
                freeze.await_others(db, launch.connection)
                check_version(db, launch.known_erasures)
                known = launch.known_launches
                if known is not None and known != db.scalar(_COUNT, {"of": launch.connection}):
                    raise ConflictError(
                        "another launch was made in the meantime, so the suppression must be decided again"
                    )
                if launch.overlap and db.execute(_of_overlap(launch.overlap).limit(1)).first():
                    raise ConflictError("another launch was made in the meantime for a part of the period")
                freeze.insert_launch(db, launch)
        except exc.IntegrityError:
            if self.find(launch.launch_key) is None:
                raise
        return self.get(launch.launch_key)

    def count(self, connection: str) -> int:
        """Count the launches of a connection."""
        return int(self._database.scalar(_COUNT, {"of": connection}))

    def sending(self, connection: str, since: datetime) -> list[LaunchRecord]:
        """Return the launches that are at least partly sent after a given time or are recurring, earliest first."""
        query = LAUNCH.where(
            launches.c.connection == connection,
            sa.or_(launches.c.sends_at > since, launches.c.sends_at.is_(None)),
            _MAY_SEND,
        ).order_by(launches.c.sends_at, launches.c.launch_key)
        return [launch_of(row) for row in self._database.rows(query)]

    def sent(self, launch_key: str) -> Identifiers:
        """Return the identifiers that a launch was sent to, may have been sent to, or will be sent to."""
        kind = self.get(launch_key).kind
        is_own = launches.c.launch_key == dispatches.c.launch_key
        query = SENT_TO.join(launches, is_own).where(_MAY_BE_SENT).order_by(dispatches.c.segment)
        with self._database.read() as db:
            parts = recipients_of(db, launch_key, query)
            return joined(kind, (remaining(people, left_out) for _, people, left_out in parts))

    def got_nothing(self, launch_key: str) -> dict[str, NotReached]:
        """Count the recipients who got nothing and get nothing by themselves, by the state of their request.

        :meth:`sent` leaves them out. Requests that were written off count if it is known that none was processed.
        Recipients that a refused request left out do not count. Nor do those that the newest attempt of a planned or
        written-off one left out because of a verdict.
        """
        query = (
            sa.select(dispatches.c.state, sa.func.count(), sa.func.sum(REMAINING - UNMADE_BUT_LEFT_OUT))
            .join(launches, launches.c.launch_key == dispatches.c.launch_key)
            .join(segments_table, OF_SEGMENT)
            .where(
                dispatches.c.launch_key == launch_key,
                dispatches.c.state.in_(_GOT_NOTHING),
                sa.not_(_MAY_BE_SENT),
            )
            .group_by(dispatches.c.state)
        )
        return {state: NotReached(count, int(size)) for state, count, size in self._database.rows(query)}

    def recipient(self, launch_key: str, identifier: int | str) -> RecipientStatus:
        """Return the status of one identifier in a launch.

        Raise NotFoundError if the ledger does not have the launch, and AudienceError if the identifier is of the wrong
        type.
        """
        launch = self.get(launch_key)
        typed = _typed(identifier, launch)
        with self._database.read() as db:
            return recipient_status(db, launch, typed)

    def settle(self, launch_key: str, now: datetime) -> None:
        """Mark a launch as settled, unless it already is."""
        with self._database.write() as db:
            db.execute(
                sa.update(launches)
                .where(launches.c.launch_key == launch_key, launches.c.settled_at.is_(None))
                .values(settled_at=now)
            )

    def audience(self, launch_key: str) -> Identifiers:
        """Return the frozen audience of a launch: the recipients it is sent to, and the holdout."""
        kind = self.get(launch_key).kind
        is_held_out = (suppressed_table.c.launch_key == launch_key, suppressed_table.c.reason == "holdout")
        with self._database.read() as db:
            held_out = SUPPRESSED.sets(db, *is_held_out).values()
            with db.scalars(_PEOPLE, {"key": launch_key}) as blobs:
                return union(kind, [joined(kind, (from_bytes(kind, blob) for blob in blobs)), *held_out])

    def recipients_among(self, launch_key: str, people: Identifiers) -> Identifiers:
        """Return the members of a set that are recipients of a launch, without its holdout."""
        with self._database.read() as db, db.scalars(_PEOPLE, {"key": launch_key}) as blobs:
            return joined(people.kind, (from_bytes(people.kind, blob) & people for blob in blobs))

    def suppressed(self, launch_key: str, *reasons: str) -> dict[str, Identifiers]:
        """Return the identifiers that a launch leaves out, by reason. ``reasons``: only these; all if empty."""
        is_asked = suppressed_table.c.reason.in_(reasons) if reasons else sa.true()
        with self._database.read() as db:
            return SUPPRESSED.sets(db, suppressed_table.c.launch_key == launch_key, is_asked)

    def suppressed_sizes(self, launch_key: str) -> dict[str, int]:
        """Count the identifiers that a launch leaves out, by reason, without reading them."""
        with self._database.read() as db:
            return SUPPRESSED.sizes(db, suppressed_table.c.launch_key == launch_key)

    def groups(self, launch_key: str, name: str) -> dict[str, Identifiers]:
        """Return the groups formed by one column of the query, such as ``platform``: value -> identifiers."""
        where = (audience_groups.c.launch_key == launch_key, audience_groups.c.name == name)
        with self._database.read() as db:
            return GROUPS.sets(db, *where)


_MAY_BE_SENT = sa.or_(
    dispatches.c.state.in_((DispatchState.ACCEPTED, DispatchState.IN_FLIGHT, DispatchState.IN_DOUBT)),
    sa.and_(
        dispatches.c.state == DispatchState.PLANNED,
        launches.c.state.in_(LIVING),
    ),
    may_be_processed(dispatches.c.dispatch_key),  # also if it was refused or written off
)
_GOT_NOTHING = (DispatchState.PLANNED, DispatchState.REFUSED, DispatchState.WRITTEN_OFF)
_MAY_SEND = (
    sa.exists().where(dispatches.c.launch_key == launches.c.launch_key, _MAY_BE_SENT).correlate(launches)
)
_LIVES_OR_SENT = sa.or_(launches.c.state.in_(LIVING), _MAY_SEND)
_LAUNCH_OF_KEY = LAUNCH.where(launches.c.launch_key == sa.bindparam("key"))
_COUNT = sa.select(sa.func.count()).where(launches.c.connection == sa.bindparam("of"))


def _is_same(period: Period) -> sa.ColumnElement[bool]:
    return sa.and_(launches.c.period_start == period.start, launches.c.period_end == period.end)


def _overlaps(period: Period) -> sa.ColumnElement[bool]:
    within = sa.and_(launches.c.period_start < period.end, launches.c.period_end > period.start)
    return sa.or_(_is_same(period), within)


def _of_overlap(overlap: Overlap) -> sa.Select[Any]:
    period, is_same = overlap.period, _is_same(overlap.period)
    is_other = sa.or_(sa.not_(is_same), launches.c.resend > 0)
    is_own = sa.and_(launches.c.campaign == overlap.campaign, is_other)
    return LAUNCH.where(
        launches.c.connection == overlap.connection,
        launches.c.partition.is_not_distinct_from(period.partition),
        is_same if overlap.only_same else _overlaps(period),
        sa.or_(launches.c.campaign.in_(overlap.formerly), is_own),
        _MAY_SEND,
    )


_NEWEST_FIRST = (launches.c.created_at.desc(), launches.c.launch_key)


def _among(campaigns: Collection[str], states: Collection[str]) -> list[sa.ColumnElement[bool]]:
    return [launches.c.campaign.in_(campaigns), launches.c.state.in_(states) if states else sa.true()]


_PEOPLE_AT_ONCE = 20  # segments that the database sends at a time


_PEOPLE = (
    sa.select(segments_table.c.identifiers)
    .where(segments_table.c.launch_key == sa.bindparam("key"), segments_table.c.identifiers.is_not(None))
    .order_by(segments_table.c.number)
    .execution_options(stream_results=True, max_row_buffer=_PEOPLE_AT_ONCE)
)


def is_one_of(column: sa.ColumnElement[str], keys: Collection[str]) -> sa.ColumnElement[bool]:
    """Compare a column with keys, written into the statement, because databases limit its parameters."""
    return column.in_(sa.bindparam(None, list(keys), expanding=True, literal_execute=True))


def _typed(identifier: int | str, launch: LaunchRecord) -> int | str:
    member = str(identifier) if launch.kind == "string" else as_integer(str(identifier))
    if member is None:
        raise AudienceError(
            f"launch {launch.launch_key} identifies recipients by {launch.identified_by}, as whole numbers from 1 on"
        )
    return member
