"""The ends of leases, for tests: the database's clock judges leases, and no test can move that clock."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import sqlalchemy as sa

from sendoff.ledger import Ledger
from sendoff.ledger.schema import dispatches


def end_leases(ledger: Ledger) -> None:
    """Let the lease of every request in flight be over."""
    over = datetime.now(UTC) - timedelta(seconds=1)
    with ledger._database.write() as db:
        db.execute(sa.update(dispatches).where(dispatches.c.state == "in_flight").values(lease_until=over))


def expire(ledger: Ledger, launch_key: str | None, now: datetime) -> int:
    """Let every lease be over, put what is in flight into doubt, and return the number of those dispatches."""
    end_leases(ledger)
    return ledger.doubts.expire_leases(launch_key, now)
