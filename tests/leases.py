"""Helpers that end leases. Leases follow the database's clock, which tests cannot change."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import sqlalchemy as sa

from sendoff.ledger import Ledger
from sendoff.ledger.storage.schema import dispatches


def end_leases(ledger: Ledger, worker: str = "") -> None:
    """End the leases of all requests in flight of the workers whose names start with a text."""
    over = datetime.now(UTC) - timedelta(seconds=1)
    of_worker = dispatches.c.worker.startswith(worker, autoescape=True)
    in_flight = sa.update(dispatches).where(dispatches.c.state == "in_flight", of_worker)
    with ledger._database.write() as db:
        db.execute(in_flight.values(lease_until=over))


def expire(ledger: Ledger, launch_key: str | None, now: datetime) -> int:
    """End all leases, mark the requests in flight as in doubt, and return the number of their dispatches."""
    end_leases(ledger)
    return ledger.doubts.expire_leases(launch_key, now)
