"""Protocols that are wrong on purpose: with each, the same counting must not give zeros."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

import sqlalchemy as sa

from sendoff.dispatch.worker import LEASE
from sendoff.ledger.aggregates import Fold, Returns
from sendoff.ledger.claims import Claim
from sendoff.ledger.clock import LedgerTime
from sendoff.ledger.dispatches import Dispatches
from sendoff.ledger.schema import attempts, dispatches, receivers
from sendoff.outcome import Accepted, InDoubt, NotProcessed, Outcome

_claim = Dispatches.claim
_record = Dispatches.record
_record_and_claim = Dispatches.record_and_claim
_expire_leases = Dispatches.expire_leases
_store_fold = Returns.store_fold


def intent_after_request() -> None:
    """Look for a planned dispatch without a mark, send it, and write intent and outcome afterwards."""
    Dispatches.claim = _look  # type: ignore[method-assign]
    Dispatches.record = _record_both  # type: ignore[method-assign]
    Dispatches.record_and_claim = _record_both  # type: ignore[method-assign]


def _look(self: Dispatches, launch_key: str, *, now: datetime, **_: Any) -> Claim | None:
    planned = [each for each in self.of_launch(launch_key) if each.state == "planned"]
    if not planned:
        return None
    found = planned[0]
    content = self.segment(launch_key, found.segment)
    return Claim(found.dispatch_key, launch_key, found.segment, found.attempt + 1, content, now)


def _record_both(self: Dispatches, claim: Claim, outcome: Outcome, now: datetime, **_: Any) -> None:
    with self._database.write() as connection:
        connection.execute(
            sa.update(dispatches)
            .where(dispatches.c.dispatch_key == claim.dispatch_key)
            .values(state="in_flight", attempt=claim.attempt, lease_until=now + LEASE)
        )
        intent = {"number": claim.attempt, "worker": "late", "started_at": now}
        insert = self._database.insert_or_pass(attempts)
        connection.execute(insert, {"dispatch_key": claim.dispatch_key, **intent})
    _record(self, claim, outcome, now)


def doubt_sent_again() -> None:
    """Take a request without an answer for one that was not made, and plan it again."""
    Dispatches.record = _record_hopefully  # type: ignore[method-assign]


def _record_hopefully(self: Dispatches, claim: Claim, outcome: Outcome, now: datetime) -> None:
    if isinstance(outcome, InDoubt):
        outcome = NotProcessed(outcome.reason)
    _record(self, claim, outcome, now)


def dead_sent_again() -> None:
    """Take a worker that fell silent for one that had not sent anything, and plan its dispatch again."""
    Dispatches.expire_leases = _plan_again  # type: ignore[assignment,method-assign]


def _plan_again(self: Dispatches, launch_key: str | None, _now: datetime) -> int:
    with self._database.write() as connection:
        expired = connection.execute(
            sa.update(dispatches)
            .where(
                dispatches.c.launch_key == launch_key,
                dispatches.c.state == "in_flight",
                dispatches.c.lease_until < LedgerTime(),
            )
            .values(state="planned", lease_until=None)
        )
    return expired.rowcount


def lease_by_the_workers_clock() -> None:
    """Take a worker for dead whose lease is over by the clock of whoever looks."""
    Dispatches.claim = _claim_by_own_clock  # type: ignore[method-assign]
    Dispatches.record_and_claim = _record_and_claim_by_own_clock  # type: ignore[method-assign]
    Dispatches.expire_leases = _expire_by_own_clock  # type: ignore[assignment,method-assign]


def _claim_by_own_clock(
    self: Dispatches, launch_key: str, *, now: datetime, lease: timedelta, **how: Any
) -> Claim | None:
    claim = _claim(self, launch_key, now=now, lease=lease, **how)
    _lease_by_own_clock(self, claim, now + lease)
    return claim


def _record_and_claim_by_own_clock(
    self: Dispatches, claim: Claim, outcome: Accepted, now: datetime, *, lease: timedelta, **how: Any
) -> Claim | None:
    following = _record_and_claim(self, claim, outcome, now, lease=lease, **how)
    _lease_by_own_clock(self, following, now + lease)
    return following


def _lease_by_own_clock(self: Dispatches, claim: Claim | None, until: datetime) -> None:
    if claim is not None:
        with self._database.write() as connection:
            connection.execute(
                sa.update(dispatches)
                .where(dispatches.c.dispatch_key == claim.dispatch_key)
                .values(lease_until=until)
            )


def _expire_by_own_clock(self: Dispatches, launch_key: str | None, now: datetime) -> int:
    over = datetime.now(UTC) - timedelta(seconds=1)
    with self._database.write() as connection:
        connection.execute(
            sa.update(dispatches)
            .where(
                dispatches.c.launch_key == launch_key,
                dispatches.c.state == "in_flight",
                dispatches.c.lease_until < now,
            )
            .values(lease_until=over)
        )
    return _expire_leases(self, launch_key, now)


def mark_before_events() -> None:
    """Move the mark of folding when post-backs are fetched, before what they add is stored."""
    Returns.store_fold = _mark_first  # type: ignore[method-assign]


def _mark_first(self: Returns, fold: Fold) -> bool:
    with self._database.write() as connection:
        moved = connection.execute(
            sa.update(receivers)
            .where(receivers.c.receiver == fold.receiver, receivers.c.folded == fold.after)
            .values(folded=fold.up_to)
        )
    return bool(moved.rowcount) and _store_fold(self, replace(fold, after=fold.up_to))


PROTOCOLS: Mapping[str, Callable[[], None]] = {
    "intent after request": intent_after_request,
    "doubt sent again": doubt_sent_again,
    "dead sent again": dead_sent_again,
    "lease by the worker's clock": lease_by_the_workers_clock,
    "mark before events": mark_before_events,
}


def apply(name: str | None) -> None:
    """Put a wrong protocol in the place of the right one, in this process."""
    if name is not None:
        PROTOCOLS[name]()
