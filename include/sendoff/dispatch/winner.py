"""The winner of a test share: which variant the rest of a launch gets.

The test share is wave 1, and the rest is wave 2. The rest has no variant, and cannot be claimed, until the winner is
decided. The transaction that stores the winner also opens wave 2, only if no winner is stored yet. So there is one
decision, whatever crashes or runs at the same time, and no request of the rest without a winner.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime

from sendoff.campaign import Campaign, Decide
from sendoff.comparison import leader_of
from sendoff.dispatch.decisions import hold, newest_of
from sendoff.errors import NotYetError
from sendoff.ledger import Decision, LaunchRecord, Ledger
from sendoff.postbacks import reconcile_launch
from sendoff.states import DecisionKind, LaunchState

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Proposal:
    """The variant that Sendoff proposes for the rest of a held launch, and all variants to choose from."""

    variant: str
    variants: tuple[str, ...]


def decide_winner(ledger: Ledger, launch: LaunchRecord, decide: Decide, *, now: datetime) -> None:
    """Judge the test share of a launch, then send the winner to the rest, or hold the launch with a proposal.

    ``launch``: read before its test share turned out to be sent. If someone has decided about it since, do nothing.
    Raise NotYetError with the time of the decision until it is due.
    """
    key = launch.launch_key
    since = ledger.audit_log.newest(key)
    newest = ledger.dispatch_queries.newest_exchange(key, up_to_wave=launch.wave)
    if newest and now < (until := newest + decide.after.timedelta()):
        raise NotYetError(
            f"launch {key}: the variants are sent to the test share, and the winner is not decided yet", until
        )
    leader = leader_of(ledger, reconcile_launch(ledger, key, now=now))
    winner = leader.variant or decide.otherwise
    detail = {
        "winner": winner,
        "is_clear": leader.variant is not None,
        "engaged": dict(leader.engaged),
        "people": dict(leader.people),
    }
    if decide.by == "person":
        why = f"a person must choose the variant for the rest. Proposed: {winner}, because {leader.why}"
        held = Decision(key, DecisionKind.HELD, "sendoff", why, now, {"wave": launch.wave, **detail})
        hold(ledger, held, since=since, wave=launch.wave)
        return
    default = "" if leader.variant else ", the default"
    why = f"the rest gets {winner}{default}: {leader.why}"
    decision = Decision(key, DecisionKind.WINNER, "sendoff", why, now, detail)
    if ledger.audit_log.decide(decision, wave=launch.wave, since=since, winner=winner):
        _log.info("launch %s: the winner is decided, and the rest is sent", key)


def proposal_of(launch: LaunchRecord, decisions: Sequence[Decision]) -> Proposal | None:
    """Return the proposal that a held launch waits with; None if it does not wait for a person to choose a variant.

    ``decisions``: all decisions about it.
    """
    if launch.state != LaunchState.HELD or launch.winner is not None:
        return None
    held = newest_of(decisions, DecisionKind.HELD)
    winner = (held.detail or {}).get("winner") if held else None
    if winner is None:
        return None
    return Proposal(winner, tuple(Campaign.frozen(launch.definition).variants))
