"""What keeps a ledger small and quick: partitions made ahead, and old post-backs forgotten."""

from __future__ import annotations

import logging
from datetime import UTC, datetime, timedelta

from sendoff.ledger import Forgotten, Ledger
from sendoff.postbacks.aggregation import aggregate

SHORTEST = timedelta(days=1)
"""For how long post-backs are kept at least: what a service sends again after a day is still recognised."""

_FEWEST_AHEAD = 2  # days: of fewer, the next run may be too late

_log = logging.getLogger(__name__)


def maintain(ledger: Ledger, keep: timedelta, *, now: datetime | None = None) -> Forgotten:
    """Fold what came back, make the partitions of the next days, and forget post-backs older than ``keep``.

    No report changes by it. Needs the rights of the owner of the ledger's tables. May be stopped at any moment and run
    again. Raises ValueError for less than a day.
    """
    if keep < SHORTEST:
        raise ValueError(f"post-backs are kept for a day or longer; found {keep}")
    moment = now or datetime.now(UTC)
    aggregate(ledger, now=moment)
    made = ledger.retention.prepare(moment)
    ahead = ledger.retention.ahead(moment)
    if ahead is not None and ahead < _FEWEST_AHEAD:
        _log.warning(
            "%d days ahead have partitions: others use the table all the time, or post-backs of later days have come",
            ahead,
        )
    forgotten = ledger.retention.forget(moment - keep)
    _log.info(
        "%d days made ready, %d days and %d single post-backs forgotten; %d days are still needed, %d were in use",
        len(made),
        len(forgotten.days),
        forgotten.post_backs,
        len(forgotten.needed),
        len(forgotten.in_use),
    )
    return forgotten
