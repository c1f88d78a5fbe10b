"""Launches that were not made, such as because a gate was closed: which one, when, and why.

There is at most one entry for each launch key. It does not count once the ledger has the launch.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import asdict, dataclass
from datetime import datetime
from typing import Any

import sqlalchemy as sa

from sendoff.campaign import Period
from sendoff.ledger.launches.launch_record import period_columns, period_of
from sendoff.ledger.storage.database import LedgerPart
from sendoff.ledger.storage.schema import launches, not_launched


@dataclass(frozen=True, slots=True)
class NotLaunched:
    """A launch that was not made. ``why``: in words for everybody, with counts and times only."""

    launch_key: str  # the key that the launch would have
    campaign: str
    title: str
    period: Period
    resend: int
    checked_at: datetime
    why: str


class NotLaunchedLog(LedgerPart):
    """The launches of a ledger that were not made."""

    def store(self, entry: NotLaunched) -> None:
        """Store an entry in place of an earlier one for the same launch."""
        values = {name: value for name, value in asdict(entry).items() if name != "period"}
        with self._database.write() as db:
            db.execute(self._database.insert_or_replace(not_launched), values | period_columns(entry.period))

    def campaigns(self) -> dict[str, NotLaunched]:
        """Return the newest launch that was not made of each campaign that has one, by the campaign's name."""
        latest = (
            sa.select(not_launched.c.campaign, sa.func.max(not_launched.c.checked_at).label("checked_at"))
            .where(IS_CURRENT)
            .group_by(not_launched.c.campaign)
            .subquery()
        )
        query = sa.select(not_launched).join(
            latest,
            (not_launched.c.campaign == latest.c.campaign)
            & (not_launched.c.checked_at == latest.c.checked_at),
        )
        return {row.campaign: _entry(row) for row in self._database.rows(query.where(IS_CURRENT))}

    def newest(
        self, campaigns: Collection[str] | None = None, *, limit: int | None = None
    ) -> list[NotLaunched]:
        """Return the launches that were not made, newest first. ``campaigns``: only of these."""
        query = sa.select(not_launched).where(IS_CURRENT)
        if campaigns is not None:
            query = query.where(not_launched.c.campaign.in_(campaigns))
        ordered = query.order_by(not_launched.c.checked_at.desc(), not_launched.c.launch_key)
        return [_entry(row) for row in self._database.rows(ordered.limit(limit))]

    def of_keys(self, launch_keys: Collection[str]) -> list[NotLaunched]:
        """Return those of some launches that were not made."""
        query = sa.select(not_launched).where(IS_CURRENT, not_launched.c.launch_key.in_(launch_keys))
        return [_entry(row) for row in self._database.rows(query)]

    def delete_before(self, moment: datetime) -> int:
        """Delete the entries from before a moment, and return their number."""
        with self._database.write() as db:
            return db.execute(sa.delete(not_launched).where(not_launched.c.checked_at < moment)).rowcount


IS_CURRENT = ~sa.exists().where(launches.c.launch_key == not_launched.c.launch_key)
"""The condition that the ledger does not have the launch of an entry."""


def _entry(row: sa.Row[Any]) -> NotLaunched:
    values = {name: row._mapping[name] for name in NotLaunched.__slots__ if name != "period"}
    return NotLaunched(period=period_of(row), **values)
