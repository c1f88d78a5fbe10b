"""Checks that a launch was sent completely and without refusals."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

from sendoff.dispatch.control import doubts
from sendoff.dispatch.decisions import released_at
from sendoff.errors import AmbiguousError, NotYetError, RefusedError, RetryableError
from sendoff.figures import counted
from sendoff.ledger import Ledger
from sendoff.states import DispatchState, LaunchState


def check_all_sent(ledger: Ledger, launch_key: str) -> None:
    """Raise NotYetError while a dispatch is in flight, and RetryableError while one is planned.

    NotYetError carries the time at which the next lease ends: by then, the worker has recorded an outcome or counts as
    dead. Planned dispatches of a rejected or stopped launch do not count.
    """
    now = datetime.now(UTC)
    ledger.doubts.expire_leases(launch_key, now)
    states = ledger.dispatch_queries.states(launch_key)
    if in_flight := states.get(DispatchState.IN_FLIGHT):
        left = ledger.doubts.next_expiry(launch_key) or timedelta(0)
        raise NotYetError(
            f"launch {launch_key}: dispatches in flight: {in_flight}; the end of their leases shows whether their "
            "workers are alive",
            now + left + timedelta(seconds=1),
        )
    planned = (
        0
        if LaunchState(ledger.launches.get(launch_key).state).is_final
        else states.get(DispatchState.PLANNED, 0)
    )
    if planned:
        raise RetryableError(f"launch {launch_key}: dispatches not sent yet: {planned}")


def check_doubts(ledger: Ledger, launch_key: str) -> None:
    """Raise AmbiguousError if it is not known whether the service processed a dispatch, unless post-backs prove it."""
    if found := doubts(ledger, launch_key):
        raise AmbiguousError(
            f"launch {launch_key}: dispatches in doubt: {len(found)}. The service may have processed them, so they are "
            "not sent again. A post-back may settle it; otherwise decide with 'sendoff doubts'"
        )


def check_refusals(ledger: Ledger, launch_key: str) -> None:
    """Raise RefusedError with the service's messages if the service refused a dispatch of a launch.

    Only refusals since a person last released the launch count.
    """
    since = released_at(ledger, launch_key)
    if refused := ledger.dispatch_queries.refused(launch_key, since):
        reasons = "; ".join(
            ledger.dispatch_queries.reasons(launch_key, DispatchState.REFUSED, since, limit=3)
        )
        raise RefusedError(
            f"launch {launch_key}: the service refused {counted(refused, 'request')}: {reasons}"
        )
