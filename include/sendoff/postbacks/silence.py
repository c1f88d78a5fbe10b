"""How many recipients of a launch in progress are silent although their deliveries should have been reported by now."""

from __future__ import annotations

from collections.abc import Collection
from datetime import datetime
from typing import NamedTuple

from sendoff.ledger import LaunchRecord, Ledger
from sendoff.postbacks.aggregation import aggregate
from sendoff.postbacks.measurable import Measurable


class Silence(NamedTuple):
    """Recipients whose silence means that nothing was delivered, and how many of them are silent."""

    people: int
    missing: int


def count_silence(
    ledger: Ledger,
    launch: LaunchRecord,
    *,
    before: datetime,
    since: datetime | None = None,
    waves: Collection[int] | None = None,
    now: datetime,
) -> Silence:
    """Aggregate new post-backs, and count the recipients of accepted requests that the service sent by ``before``.

    ``since``: only requests that began after this moment. ``waves``: only requests of these waves. Requests with a
    post-back that may hide a delivery are left out. This reads one request after the other.
    """
    if launch.sends_at is None or launch.sends_at > before:
        return Silence(0, 0)
    aggregate(ledger, now=now)
    measurable = Measurable.of(ledger, launch, now)
    people = missing = 0
    accepted = ledger.launch_counts.accepted(launch.launch_key, since=since, before=before, waves=waves)
    for sent_to, totals in accepted:
        if totals and totals.has_unattributed_events:
            continue
        silent = among = measurable.among(sent_to)
        if totals:
            silent = among - totals.delivered - totals.engaged
        people, missing = people + len(among), missing + len(silent)
    return Silence(people, missing)
