"""Daily limits: how many recipients a connection may reach on one UTC day, over all its launches.

A claim counts its recipients in its own transaction, before the request. If the request was certainly not processed,
the count is taken back. A request in doubt counts as made.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, date, datetime, time, timedelta

import sqlalchemy as sa

from sendoff.errors import NotYetError
from sendoff.ledger.storage.database import Database, LedgerPart
from sendoff.ledger.storage.joins import LEFT_OUT, OF_SEGMENT
from sendoff.ledger.storage.schema import attempts, daily_recipients, dispatches, launches, segments, withheld


@dataclass(frozen=True, slots=True)
class DailyLimit:
    """The maximum number of recipients of a connection on one UTC day."""

    connection: str
    day: date
    most: int


class DailyLimits(LedgerPart):
    """The recipients that count against the daily limits of the ledger's connections."""

    def recipients_on(self, connection: str, day: date) -> int:
        """Return how many recipients count against the limit of a connection on a UTC day."""
        found = sa.select(daily_recipients.c.recipients).where(
            daily_recipients.c.connection == connection, daily_recipients.c.day == day
        )
        return self._database.scalar(found) or 0


def count_recipients(database: Database, db: sa.Connection, limit: DailyLimit, recipients: int) -> None:
    """Count recipients of a request that is about to be made, within the transaction of its claim.

    Raise NotYetError if the limit has no room for all of them. The caller must roll back then.
    """
    row = {"connection": limit.connection, "day": limit.day, "recipients": 0}
    db.execute(database.insert_or_ignore(daily_recipients), row)
    counted = db.execute(
        _COUNT, {"of": limit.connection, "on": limit.day, "more": recipients, "most": limit.most}
    )
    if counted.rowcount != 1:
        tomorrow = datetime.combine(limit.day + timedelta(days=1), time(), UTC)
        raise NotYetError(
            f"the connection {limit.connection} may reach {limit.most:,} recipients on {limit.day} (UTC), and the next "
            f"request has {recipients:,}, too many for the rest of the day (rules.warm_up)",
            tomorrow,
        )


def take_back(db: sa.Connection, dispatch_key: str, attempt: int) -> None:
    """Take back the count of an attempt that the service certainly did not process."""
    row = db.execute(_OF_ATTEMPT, {"of": dispatch_key, "by": attempt}).one()
    counted = row.size - int(row.withheld or 0)
    db.execute(_TAKE_BACK, {"of": row.connection, "on": row.started_at.date(), "fewer": counted})


_OF_DAY = (
    daily_recipients.c.connection == sa.bindparam("of"),
    daily_recipients.c.day == sa.bindparam("on"),
)
_COUNT = (
    sa.update(daily_recipients)
    .where(*_OF_DAY, daily_recipients.c.recipients + sa.bindparam("more") <= sa.bindparam("most"))
    .values(recipients=daily_recipients.c.recipients + sa.bindparam("more"))
)
_TAKE_BACK = (
    sa.update(daily_recipients)
    .where(*_OF_DAY)
    .values(recipients=daily_recipients.c.recipients - sa.bindparam("fewer"))
)
_WITHHELD = sa.select(sa.func.sum(withheld.c.size)).where(LEFT_OUT).scalar_subquery()
_OF_ATTEMPT = (
    sa.select(launches.c.connection, attempts.c.started_at, segments.c.size, _WITHHELD.label("withheld"))
    .select_from(dispatches)
    .join(launches, launches.c.launch_key == dispatches.c.launch_key)
    .join(segments, OF_SEGMENT)
    .join(attempts, attempts.c.dispatch_key == dispatches.c.dispatch_key)
    .where(dispatches.c.dispatch_key == sa.bindparam("of"), attempts.c.number == sa.bindparam("by"))
)
