"""What a person may do with a launch: release it, reject it, stop it; and the ledger remembers who did and why."""

from __future__ import annotations

from datetime import UTC, datetime

from sendoff.errors import GateError
from sendoff.ledger import Ledger


def release(ledger: Ledger, launch_key: str, who: str, why: str, *, now: datetime | None = None) -> None:
    """Let a launch that is held be sent; where a wave held it, the next wave follows without a judgement.

    Raises GateError where it is not held, NotFoundError where the ledger does not hold it.
    """
    _decide(ledger, launch_key, "released", who, why, now)


def reject(ledger: Ledger, launch_key: str, who: str, why: str, *, now: datetime | None = None) -> None:
    """End a launch that is held: nothing more of it is ever sent. Raises what :func:`release` raises."""
    _decide(ledger, launch_key, "rejected", who, why, now)


def stop(ledger: Ledger, launch_key: str, who: str, why: str, *, now: datetime | None = None) -> None:
    """End a launch that is held or released: no request of it is made any more.

    What the service has accepted is not taken back. Raises GateError where it was rejected or stopped before,
    NotFoundError where the ledger does not hold it.
    """
    _decide(ledger, launch_key, "stopped", who, why, now)


def _decide(ledger: Ledger, launch_key: str, kind: str, who: str, why: str, now: datetime | None) -> None:
    if not ledger.decisions.decide(launch_key, kind, who, why, now=now or datetime.now(UTC)):
        state = ledger.launches.get(launch_key).state
        raise GateError(f"launch {launch_key} is {state}, so it cannot be {kind}")
