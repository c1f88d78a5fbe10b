"""Helpers that end leases. Leases follow the database's clock, which tests cannot change."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import sqlalchemy as sa

from sendoff.ledger import Ledger
from sendoff.ledger.schema import dispatches


def end_leases(ledger: Ledger) -> None:
    """End the leases of all requests in flight."""
    over = datetime.now(UTC) - timedelta(seconds=1)
    with ledger._database.write() as db:
        db.execute(sa.update(dispatches).where(dispatches.c.state == "in_flight").values(lease_until=over))


def expire(ledger: Ledger, launch_key: str | None, now: datetime) -> int:
    """End all leases, mark the requests in flight as in doubt, and return the number of their dispatches."""
    end_leases(ledger)
    return ledger.doubts.expire_leases(launch_key, now)
