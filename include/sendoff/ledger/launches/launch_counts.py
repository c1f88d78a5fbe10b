"""How many recipients a launch in progress has reached, and how many of them had a problem."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from datetime import datetime
from typing import NamedTuple

import sqlalchemy as sa

from sendoff.audience.identifiers import Identifiers, from_texts
from sendoff.ledger.launches.launch_record import LaunchRecord
from sendoff.ledger.post_backs.totals import DispatchTotals, totals_of
from sendoff.ledger.storage.database import LedgerPart
from sendoff.ledger.storage.joins import NEWEST_ATTEMPT, OF_SEGMENT, SENT_TO
from sendoff.ledger.storage.schema import (
    attempts,
    audiences,
    decisions,
    dispatch_totals,
    dispatches,
    launches,
    segments,
    suppressions,
    withheld,
)
from sendoff.ledger.suppression.withheld import recipients_of
from sendoff.states import DecisionKind, DispatchState


class RequestCount(NamedTuple):
    """How many requests of one size are in one state."""

    people: int  # in the segment of each request
    state: DispatchState
    requests: int
    withheld: int  # recipients that these requests left out, all together


class LaunchCounts(LedgerPart):
    """Counts of launches in progress. ``since``: only requests that began after this moment."""

    def largest_segment(self, launch_key: str) -> int:
        """Return the number of recipients in the largest segment of a launch; 0 if the service chooses them."""
        query = sa.select(sa.func.max(segments.c.size)).where(segments.c.launch_key == launch_key)
        return self._database.scalar(query) or 0

    def requests(self, launch_key: str, since: datetime | None = None) -> list[RequestCount]:
        """Count the requests that were made by size and state. This reads no identifiers."""
        query = (
            sa.select(
                segments.c.size,
                dispatches.c.state,
                sa.func.count(),
                sa.func.coalesce(sa.func.sum(WITHHELD), 0),
            )
            .join(segments, OF_SEGMENT)
            .where(dispatches.c.launch_key == launch_key, dispatches.c.state.in_(_MADE))
            .group_by(segments.c.size, dispatches.c.state)
        )
        if since is not None:
            query = query.join(attempts, NEWEST_ATTEMPT).where(attempts.c.started_at > since)
        return [
            RequestCount(size, state, count, int(left_out))
            for size, state, count, left_out in self._database.rows(query)
        ]

    def accepted(
        self,
        launch_key: str,
        *,
        since: datetime | None = None,
        before: datetime | None = None,
        waves: Collection[int] | None = None,
    ) -> Iterator[tuple[Identifiers, DispatchTotals | None]]:
        """Yield the recipients of each accepted request and the totals of its post-backs, lazily.

        The totals are None if it has no post-backs. Recipients that only an earlier request in doubt may have reached
        are missing. ``before``: only requests that began by then. ``waves``: only requests of these waves.
        """
        totals = (column for column in dispatch_totals.c if column.name != "dispatch_key")
        query = (
            SENT_TO.add_columns(*totals)
            .join(attempts, NEWEST_ATTEMPT)
            .outerjoin(dispatch_totals, dispatch_totals.c.dispatch_key == dispatches.c.dispatch_key)
            .where(dispatches.c.state == DispatchState.ACCEPTED)
        )
        if since is not None:
            query = query.where(attempts.c.started_at > since)
        if before is not None:
            query = query.where(attempts.c.started_at <= before)
        if waves is not None:
            query = query.where(dispatches.c.wave.in_(waves))
        with self._database.read() as db:
            for row, people, left_out in recipients_of(db, launch_key, query):
                sent_to = people - left_out.newest if left_out else people
                yield sent_to, totals_of(row) if row.newest_at else None

    def opt_outs(self, launch_keys: Collection[str]) -> dict[str, int]:
        """Count the recipients who opted out because of a message of each launch, until its recipients are deleted."""
        query = _OPT_OUTS.where(launches.c.launch_key.in_(launch_keys))
        return {key: int(count) for key, count in self._database.rows(query)}

    def opted_out(self, launch: LaunchRecord, since: datetime | None = None) -> Identifiers:
        """Return the recipients who opted out because of a message of the launch; ``since``: only after this moment."""
        query = (
            sa.select(suppressions.c.identifier)
            .where(
                suppressions.c.launch_key == launch.launch_key,
                suppressions.c.identified_by == launch.identified_by,
            )
            .distinct()
        )
        if since is not None:
            query = query.where(suppressions.c.added_at > since)
        return from_texts(launch.kind, self._database.scalars(query))


_MADE = (
    DispatchState.ACCEPTED,
    DispatchState.REFUSED,
    DispatchState.IN_FLIGHT,
    DispatchState.IN_DOUBT,
    DispatchState.WRITTEN_OFF,
)
OPTED_OUT = (
    sa.select(sa.func.count(sa.distinct(suppressions.c.identifier)))
    .where(
        suppressions.c.launch_key == launches.c.launch_key,
        suppressions.c.identified_by == audiences.c.identified_by,
    )
    .correlate(launches, audiences)
    .scalar_subquery()
)
"""The number of recipients who opted out because of a message of a launch, and are linked to it."""
_OPTED_OUT_BEFORE = (
    sa.select(decisions.c.detail["opted_out"].as_integer())
    .where(
        decisions.c.launch_key == launches.c.launch_key, decisions.c.kind == DecisionKind.RECIPIENTS_DELETED
    )
    .scalar_subquery()
)
_OPT_OUTS = sa.select(launches.c.launch_key, sa.func.coalesce(_OPTED_OUT_BEFORE, OPTED_OUT)).join(
    audiences, audiences.c.launch_key == launches.c.launch_key
)
WITHHELD = (
    sa.select(sa.func.sum(withheld.c.size))
    .where(withheld.c.dispatch_key == dispatches.c.dispatch_key, withheld.c.attempt == dispatches.c.attempt)
    .scalar_subquery()
)
"""The number of recipients that the newest request of a dispatch left out; null if it left out none."""
