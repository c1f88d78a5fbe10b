"""The newest decisions about a launch, from the audit log."""

from __future__ import annotations

from datetime import datetime

from sendoff.ledger import Decision, Ledger


def last_decision(ledger: Ledger, launch_key: str, kind: str) -> Decision | None:
    """Return the newest decision of one kind about a launch, or None."""
    decisions = ledger.audit_log.of_launch(launch_key)
    return next((decision for decision in reversed(decisions) if decision.kind == kind), None)


def released_at(ledger: Ledger, launch_key: str) -> datetime | None:
    """Return when a person last released the launch. Only failures after that count."""
    released = last_decision(ledger, launch_key, "released")
    return released.decided_at if released else None
