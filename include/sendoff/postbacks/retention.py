"""Maintenance: creates partitions ahead, and deletes old post-backs and the recipients of old launches."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

from sendoff.ledger import ERASURE_IS_OPEN, REPORT_IS_OLD, Deleted, Ledger
from sendoff.postbacks.aggregation import aggregate
from sendoff.postbacks.reconcile import reconcile_launch
from sendoff.times import SHORTEST_FOR_POST_BACKS, SHORTEST_FOR_RECIPIENTS

_FEWEST_AHEAD = 2  # days; with fewer, the next run may be too late

_log = logging.getLogger(__name__)


def maintain(ledger: Ledger, keep: timedelta, *, now: datetime | None = None) -> Deleted:
    """Aggregate post-backs, create the partitions of the next days, and delete post-backs older than ``keep``.

    Entries about launches that were not made go after the same time. Reports do not change. This needs the rights of
    the tables' owner. It may be stopped at any moment and run again. Raise ValueError if ``keep`` is less than a day.
    """
    if keep < SHORTEST_FOR_POST_BACKS:
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


@dataclass(frozen=True, slots=True)
class DeletedRecipients:
    """The result of a deletion of recipients. ``stay``: launches that are old enough by the reason why they stay."""

    launches: int
    recipients: int
    stay: Mapping[str, int]


def delete_recipients(ledger: Ledger, keep: timedelta, *, now: datetime | None = None) -> DeletedRecipients:
    """Delete who was sent to by launches older than ``keep``. Their counts and reports stay.

    Only launches that are complete lose their recipients: see :attr:`DeletedRecipients.stay`. A report that is missing
    or old is made before. This needs the rights of the tables' owner. It may be stopped at any moment and run again.
    Raise ValueError if ``keep`` is less than 30 days.
    """
    if keep < SHORTEST_FOR_RECIPIENTS:
        raise ValueError(
            f"recipients must be kept for {SHORTEST_FOR_RECIPIENTS.days} days or longer, not {keep}"
        )
    moment = now or datetime.now(UTC)
    aggregate(ledger, now=moment)
    old, before = ledger.old_recipients, moment - keep
    for _ in range(2):  # the first report of a launch counts as old
        for launch_key, why in old.of(before).items():
            if why == REPORT_IS_OLD:
                reconcile_launch(ledger, launch_key, now=moment)
    if ready := [launch_key for launch_key, why in old.of(before).items() if why is None]:
        old.mark(ready, before)
    marked = old.unfinished()
    recipients = sum(old.delete(key, f"older than {keep.days} days", moment) for key in marked)
    old.unlink_opt_outs()
    stay = Counter(why or ERASURE_IS_OPEN for why in old.of(before).values())
    _log.info("%d launches lost their recipients: they are older than %s", len(marked), keep)
    return DeletedRecipients(len(marked), recipients, stay)
