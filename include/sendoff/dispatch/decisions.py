"""The newest decisions about a launch, from the audit log, and the decision to hold it."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from datetime import datetime

from sendoff.ledger import Decision, Ledger
from sendoff.states import DecisionKind

_log = logging.getLogger(__name__)


def newest_of(decisions: Sequence[Decision], *kinds: DecisionKind) -> Decision | None:
    """Return the newest decision of some kinds. Without one of kind *held*, a held launch waits for its approval."""
    return next((decision for decision in reversed(decisions) if decision.kind in kinds), None)


def last_decision(ledger: Ledger, launch_key: str, kind: DecisionKind) -> Decision | None:
    """Return the newest decision of one kind about a launch, or None."""
    return newest_of(ledger.audit_log.of_launch(launch_key), kind)


def released_at(ledger: Ledger, launch_key: str) -> datetime | None:
    """Return when a person last released the launch. Only failures after that count."""
    released = last_decision(ledger, launch_key, DecisionKind.RELEASED)
    return released.decided_at if released else None


def hold(ledger: Ledger, decision: Decision, *, since: int, wave: int | None = None) -> bool:
    """Hold a launch until a person decides, and return whether that was possible. ``decision``: the one to hold it.

    It is impossible if someone decided about the launch after ``since``, the newest decision before it was judged.
    ``wave``: hold it only while this is the newest open wave.
    """
    is_held = ledger.audit_log.decide(decision, since=since, wave=wave)
    if is_held:
        _log.warning("launch %s is held: %s", decision.launch_key, decision.why)
    return is_held
