"""Looking at the ledger as a whole, for metrics that no single task or post-back can count."""

from __future__ import annotations

from datetime import UTC, datetime

from sendoff import metrics
from sendoff.ledger.ledger import Ledger
from sendoff.ledger.stats import Counted


def observe(ledger: Ledger, *, now: datetime | None = None) -> Counted:
    """Count what the ledger holds, set the metrics of it, and give the counts."""
    moment = now or datetime.now(UTC)
    counted = ledger.counts.take()
    metrics.launches(counted.launches)
    metrics.dispatches(counted.dispatches)
    metrics.doubts(counted.doubts)
    metrics.fold_lag(_age(counted.unfolded_since, moment) or 0)
    if (age := _age(counted.reported_at, moment)) is not None:
        metrics.report_age(age)
    metrics.silences(ledger.silences.states())
    return counted


def _age(since: datetime | None, now: datetime) -> float | None:
    return None if since is None else max(0.0, (now - since).total_seconds())
