"""What a person may do with launches and doubts. The audit log records who did it and why.

Every worker checks before each request, so a decision affects all of them at once. A request in progress is not taken
back, and no other follows it.
"""

from __future__ import annotations

import json
import shlex
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime

from sendoff.arguments import check_flags
from sendoff.campaign import Campaign, OwnRequest
from sendoff.dispatch.winner import Proposal, proposal_of
from sendoff.errors import GateError, LedgerUnavailableError
from sendoff.figures import counted
from sendoff.ledger import MOVED, Decision, Doubt, LaunchRecord, Ledger, PendingResend, scope_of
from sendoff.postbacks import aggregate
from sendoff.states import LIVING, NO_ANSWER, DecisionKind, DispatchState, LaunchState, Resolution

_JUDGED = {DecisionKind.APPROVED, DecisionKind.RELEASED, DecisionKind.HELD}
_MAY_BE_SENT = (DispatchState.PLANNED, DispatchState.IN_FLIGHT, DispatchState.IN_DOUBT)


def awaits_approval(launch: LaunchRecord, decisions: Sequence[Decision]) -> bool:
    """Check whether a launch waits for its first approval. ``decisions``: all decisions about it.

    A launch that was held later because something went wrong does not wait for an approval.
    """
    kinds = {decision.kind for decision in decisions}
    return launch.state == LaunchState.HELD and not kinds & _JUDGED


def awaited_role(launch: LaunchRecord, decisions: Sequence[Decision]) -> str | None:
    """Return the role that must approve a launch; None if anyone may approve it or no approval is needed.

    The role comes from the frozen campaign. Only Airflow knows who has it.
    """
    return Campaign.frozen(launch.definition).approval.role if awaits_approval(launch, decisions) else None


def approval_ends_at(launch: LaunchRecord, decisions: Sequence[Decision]) -> datetime | None:
    """Return until when a launch may get its first approval; None if it waits for none.

    ``decisions``: all decisions about it. Also None if a run in Airflow made the launch, because the question of the
    run has its own deadline.
    """
    if launch.origin or not awaits_approval(launch, decisions):
        return None
    return launch.created_at + Campaign.frozen(launch.definition).approval.within.timedelta()


def check_answered(
    ledger: Ledger, launch: LaunchRecord, decisions: Sequence[Decision], *, now: datetime | None = None
) -> None:
    """Reject a launch and raise GateError if the time for its first approval is over."""
    moment, ends_at = now or datetime.now(UTC), approval_ends_at(launch, decisions)
    if ends_at is None or moment <= ends_at:
        return
    why = f"not approved within {Campaign.frozen(launch.definition).approval.within.words} (approval.within)"
    _decide(ledger, launch.launch_key, DecisionKind.REJECTED, NO_ANSWER, why, moment)
    raise GateError(
        f"launch {launch.launch_key} was not approved in time (approval.within), so it is rejected now. To send its "
        "period all the same, prepare it again with a resend number and a reason"
    )


def release(  # noqa: PLR0913 - options beside those of every decision
    ledger: Ledger,
    launch_key: str,
    who: str,
    why: str,
    *,
    without_approval: bool = False,
    variant: str | None = None,
    now: datetime | None = None,
) -> None:
    """Release a launch that is held. If a wave held it, the next wave follows without being judged.

    ``variant``: the variant that the rest gets, if the launch waits for a person to choose it. Raise GateError if it is
    missing then, or given although the launch does not wait for it.

    Only failures after the release count. ``without_approval``: release the launch even if a role must approve it and
    has not. This function cannot know who has the role, so the reason in the audit log says so. Raise GateError if the
    approval is missing or the launch is not held, and NotFoundError if the ledger does not have the launch. If the time
    for its first approval is over (``approval.within``), reject it and raise GateError. Raise UsageError if
    ``without_approval`` is not a boolean.
    """
    check_flags(without_approval=without_approval)
    since, moment = ledger.audit_log.newest(launch_key), now or datetime.now(UTC)
    launch, decisions = ledger.launches.get(launch_key), ledger.audit_log.of_launch(launch_key)
    proposal = proposal_of(launch, decisions)
    _check_variant(launch, proposal, variant)
    if proposal:
        decision = Decision(launch_key, DecisionKind.RELEASED, who, why, moment, {"winner": variant})
        if not ledger.audit_log.decide(decision, since=since, winner=variant):
            raise GateError(f"launch {launch_key}: someone else decided about it meanwhile; look at it again")
        return
    role = awaited_role(launch, decisions)
    if role and not without_approval:
        raise GateError(
            f"launch {launch_key} waits for someone with the role {role}, who must answer the task approve of its "
            "run in Airflow, under Required Actions. To release it anyway, which the audit log records, run: "
            f"sendoff release {launch_key[:12]} --without-approval --why TEXT"
        )
    check_answered(ledger, launch, decisions, now=moment)
    if role:
        why = f"without the approval of the role {role}: {why}"
    _decide(ledger, launch_key, DecisionKind.RELEASED, who, why, now)


def reject(ledger: Ledger, launch_key: str, who: str, why: str, *, now: datetime | None = None) -> None:
    """End a launch that is held, so that no more of it is ever sent. Raise the same errors as :func:`release`."""
    _decide(ledger, launch_key, DecisionKind.REJECTED, who, why, now)


def pause(ledger: Ledger, launch_key: str, who: str, why: str, *, now: datetime | None = None) -> None:
    """Pause a launch until a person resumes it. Its tasks in Airflow wait, and ``sendoff send`` ends.

    Raise GateError if it is not released, and NotFoundError if the ledger does not have it.
    """
    _decide(ledger, launch_key, DecisionKind.PAUSED, who, why, now)


def resume(ledger: Ledger, launch_key: str, who: str, why: str, *, now: datetime | None = None) -> None:
    """Resume a paused launch at the next segment. Raise GateError if it is not paused."""
    _decide(ledger, launch_key, DecisionKind.RESUMED, who, why, now)


def stop(ledger: Ledger, launch_key: str, who: str, why: str, *, now: datetime | None = None) -> None:
    """End a launch that is held, released, or paused, so that it sends no further request.

    Requests that the service accepted are not taken back. Raise GateError if the launch is already rejected or stopped,
    and NotFoundError if the ledger does not have it.
    """
    _decide(ledger, launch_key, DecisionKind.STOPPED, who, why, now)


def pause_all(
    ledger: Ledger, who: str, why: str, *, connection: str | None = None, now: datetime | None = None
) -> None:
    """Pause all launches, or all launches of one connection, including later ones.

    Raise GateError if they are already paused, or if the ledger was moved.
    """
    ledger.pauses.check_not_moved()
    scope = scope_of(connection)
    if not ledger.pauses.pause(scope, who, why, now=now or datetime.now(UTC)):
        raise GateError(f"launches are already paused ({scope})")


def resume_all(ledger: Ledger, who: str, why: str, *, connection: str | None = None) -> None:
    """Undo :func:`pause_all` for the same scope; other holds and pauses stay.

    Raise GateError if it is not paused, or if the ledger was moved.
    """
    ledger.pauses.check_not_moved()
    scope = scope_of(connection)
    if not ledger.pauses.resume(scope, who, why, now=datetime.now(UTC)):
        raise GateError(f"launches are not paused ({scope})")


def resume_moved(ledger: Ledger, who: str, why: str) -> None:
    """Resume all launches of a ledger that was moved, because its copy was discarded before it sent anything.

    If the copy sends too, people get messages twice. Raise GateError if the ledger was not moved.
    """
    if not ledger.pauses.resume(MOVED, who, why, now=datetime.now(UTC)):
        raise GateError("this ledger was not moved to another database")


def stop_all(
    ledger: Ledger, who: str, why: str, *, connection: str | None = None, now: datetime | None = None
) -> list[str]:
    """Stop all launches that may still send, or those of one connection, and return their keys.

    That includes launches whose last requests are in flight or in doubt, because these may be sent again.
    Raise GateError if the ledger was moved.
    """
    ledger.pauses.check_not_moved()
    unsent = ledger.launches.unsent(*LIVING, connection=connection, of=_MAY_BE_SENT)
    return _decide_all(ledger, unsent, DecisionKind.STOPPED, who, why, now)


def release_all(
    ledger: Ledger, who: str, why: str, *, connection: str | None = None, now: datetime | None = None
) -> list[str]:
    """Release all launches that were held because something went wrong, and return their keys.

    Launches that wait for an approval, or for a person to choose a variant, stay held. Raise GateError if the
    ledger was moved.
    """
    ledger.pauses.check_not_moved()
    held = [
        key
        for key in ledger.launches.unsent(LaunchState.HELD, connection=connection)
        if _went_wrong(ledger.launches.get(key), ledger.audit_log.of_launch(key))
    ]
    return _decide_all(ledger, held, DecisionKind.RELEASED, who, why, now)


def _went_wrong(launch: LaunchRecord, decisions: Sequence[Decision]) -> bool:
    was_held = any(decision.kind == DecisionKind.HELD for decision in decisions)
    return was_held and proposal_of(launch, decisions) is None


def _check_variant(launch: LaunchRecord, proposal: Proposal | None, variant: str | None) -> None:
    """Raise GateError unless a variant is named exactly if the launch waits for it, and the campaign has it."""
    key = launch.launch_key
    if proposal is None and variant is not None:
        raise GateError(f"launch {key} does not wait for a variant; release it without one")
    if proposal and variant not in proposal.variants:
        named = (
            f"has no variant {variant!r}"
            if variant
            else "waits for a person to choose the variant for the rest"
        )
        raise GateError(
            f"launch {key} {named}. Name one with --variant: {', '.join(proposal.variants)} (proposed: "
            f"{proposal.variant})"
        )


def doubts(ledger: Ledger, launch_key: str | None = None, *, now: datetime | None = None) -> list[Doubt]:
    """Return the doubts of one launch, or of all, that no post-back has settled, oldest first."""
    moment = now or datetime.now(UTC)
    ledger.doubts.expire_leases(launch_key, moment)
    aggregate(ledger, now=moment)
    return ledger.doubts.open(launch_key)


def how_to_continue(planned: Sequence[PendingResend]) -> list[str]:
    """Return a sentence for each launch with requests planned again: their number, and how to send them."""
    launches = Counter(
        (resend.launch_key, resend.campaign, resend.state, resend.is_own_request) for resend in planned
    )
    return [
        f"{counted(count, 'request')} of launch {key[:12]} {'is' if count == 1 else 'are'} planned again and not sent "
        f"yet; {_how_to_send(key, campaign, state, is_own_request=is_own)}"
        for (key, campaign, state, is_own), count in launches.items()
    ]


def how_to_send_rest(launch: LaunchRecord) -> str:
    """Return how to send the planned requests of a launch, in words for a person who may have no Airflow."""
    is_own = isinstance(Campaign.frozen(launch.definition), OwnRequest)
    return _how_to_send(launch.launch_key, launch.campaign, launch.state, is_own_request=is_own)


def _how_to_send(launch_key: str, campaign: str, state: str, *, is_own_request: bool) -> str:
    if is_own_request:
        return f"clear its task in Airflow, or run again what sent {campaign}"
    conf = shlex.quote(json.dumps({"launch": launch_key}))
    first = {LaunchState.HELD: "release", LaunchState.PAUSED: "resume"}.get(LaunchState(state))
    prepared = f"sendoff {first} {launch_key[:12]} --why TEXT; " if first else ""
    return (
        f"unless a task is sending the launch now, continue it with: {prepared}airflow dags trigger "
        f"{shlex.quote(campaign)} --conf {conf}, or, if {campaign} is not a DAG, with: sendoff send {launch_key[:12]}"
    )


def resolve(
    ledger: Ledger,
    dispatch_key: str,
    how: Resolution,
    who: str,
    why: str,
    *,
    now: datetime | None = None,
) -> None:
    """Plan a dispatch in doubt again or write it off, unless post-backs now prove that it was accepted.

    After a resend, recipients may get the message twice. After a write-off, they may not have got it, and no one looks
    any more. If no task is sending the launch, continue it after a resend: see :func:`how_to_continue`. Raise GateError
    if the dispatch is not in doubt, or if it would be resent and its launch has ended. Raise NotFoundError if the
    ledger does not have it.
    """
    moment = now or datetime.now(UTC)
    aggregate(ledger, now=moment)
    if not ledger.doubts.resolve(dispatch_key, how, who, why, moment):
        raise GateError(f"dispatch {dispatch_key} is not in doubt, or its launch is stopped or rejected")


def resolve_seen(
    ledger: Ledger,
    seen: Mapping[str, int],
    how: Resolution,
    who: str,
    why: str,
    *,
    now: datetime | None = None,
) -> int:
    """Resolve several dispatches like :func:`resolve`, reading post-backs once, and return their number.

    ``seen``: for each dispatch, how many of its attempts were in doubt when the person saw it. Dispatches that changed
    since are skipped. If the ledger becomes unavailable after the first, the rest is skipped too. Raise NotFoundError
    if the ledger does not have a dispatch, and LedgerUnavailableError if none was resolved.
    """
    moment = now or datetime.now(UTC)
    aggregate(ledger, now=moment)
    resolved = 0
    for key, attempts in seen.items():
        try:
            resolved += ledger.doubts.resolve(key, how, who, why, moment, doubts=attempts)
        except LedgerUnavailableError:  # each one is a separate commit: report what was done
            if not resolved:
                raise
            break
    return resolved


def _decide_all(
    ledger: Ledger, launch_keys: Iterable[str], kind: DecisionKind, who: str, why: str, now: datetime | None
) -> list[str]:
    moment = now or datetime.now(UTC)
    return [key for key in launch_keys if ledger.audit_log.decide(Decision(key, kind, who, why, moment))]


def _decide(
    ledger: Ledger, launch_key: str, kind: DecisionKind, who: str, why: str, now: datetime | None
) -> None:
    if not ledger.audit_log.decide(Decision(launch_key, kind, who, why, now or datetime.now(UTC))):
        state = ledger.launches.get(launch_key).state
        raise GateError(f"launch {launch_key} is {state}, so it cannot be {kind}")
