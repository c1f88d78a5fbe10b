"""Maintenance that keeps a ledger small and fast: creates partitions ahead, and deletes old post-backs."""

from __future__ import annotations

import logging
from datetime import UTC, datetime, timedelta

from sendoff.ledger import Deleted, Ledger
from sendoff.postbacks.aggregation import aggregate

SHORTEST = timedelta(days=1)
"""The minimum time to keep post-backs. If the service repeats one within a day, it is still recognised."""

_FEWEST_AHEAD = 2  # days; with fewer, the next run may be too late

_log = logging.getLogger(__name__)


def maintain(ledger: Ledger, keep: timedelta, *, now: datetime | None = None) -> Deleted:
    """Aggregate post-backs, create the partitions of the next days, and delete post-backs older than ``keep``.

    Entries about launches that were not made go after the same time. Reports do not change. This needs the rights of
    the tables' owner. It may be stopped at any moment and run again. Raise ValueError if ``keep`` is less than a day.
    """
    if keep < SHORTEST:
        raise ValueError(f"post-backs must be kept for a day or longer, not {keep}")
    moment = now or datetime.now(UTC)
    aggregate(ledger, now=moment)
    made = ledger.retention.prepare(moment)
    ahead = ledger.retention.ahead(moment)
    if ahead is not None and ahead < _FEWEST_AHEAD:
        _log.warning(
            "%d days ahead have partitions: the table was always in use, or post-backs of later days already arrived",
            ahead,
        )
    ledger.not_launched.delete_before(moment - keep)
    deleted = ledger.retention.delete_before(moment - keep)
    _log.info(
        "%d partitions created, %d dropped, and %d single post-backs deleted; %d days are still needed, %d were in use",
        len(made),
        len(deleted.days),
        deleted.post_backs,
        len(deleted.needed),
        len(deleted.in_use),
    )
    return deleted
