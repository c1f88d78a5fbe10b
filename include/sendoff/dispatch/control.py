"""What a person may do with launches and with what is in doubt; the ledger remembers who did it and why.

Every worker looks before each request, so what is decided here has effect on all of them at once: what the service is
being asked at that moment is not taken back, and nothing is asked after it.
"""

from __future__ import annotations

import json
import shlex
from collections import Counter
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import Literal

from sendoff.campaign import Campaign
from sendoff.errors import GateError, LedgerUnavailableError
from sendoff.figures import counted
from sendoff.ledger import Decision, Doubt, Launch, Ledger, SentAgain, scope_of
from sendoff.postbacks import fold

_MAY_YET_BE_SENT = ("planned", "in_flight", "in_doubt")


def awaits_approval(launch: Launch, decisions: Sequence[Decision]) -> bool:
    """Say whether a launch is held since it was frozen, until somebody agrees to it; ``decisions``: all that are its.

    One that was held later, because something went wrong, awaits none.
    """
    return launch.state == "held" and not {each.kind for each in decisions} & {"approved", "released", "held"}


def role_awaited(launch: Launch, decisions: Sequence[Decision]) -> str | None:
    """Give the role of which somebody must agree to a launch before it is sent; None: anybody may, or nobody needs to.

    It is that of the campaign as it was frozen. Who is of the role, only Airflow knows.
    """
    return Campaign.frozen(launch.definition).approval.role if awaits_approval(launch, decisions) else None


def release(
    ledger: Ledger,
    launch_key: str,
    who: str,
    why: str,
    *,
    without_approval: bool = False,
    now: datetime | None = None,
) -> None:
    """Let a launch that is held be sent; where a wave held it, the next wave follows without a judgement.

    Its failures count anew from here. ``without_approval``: also where somebody of a role must agree to it and did not,
    since nobody can say here who is of that role; the reason that is kept then says so. Raises GateError where such an
    approval is awaited and ``without_approval`` is not given, or where it is not held, NotFoundError where the ledger
    does not hold it.
    """
    launch = ledger.launches.get(launch_key)
    if role := role_awaited(launch, ledger.decisions.of_launch(launch_key)):
        if not without_approval:
            raise GateError(
                f"launch {launch_key} waits for somebody of the role {role}: they answer the task approve of its run "
                "in Airflow, under Required Actions; --without-approval releases it all the same, and is kept with the "
                "reason"
            )
        why = f"without the approval of the role {role}: {why}"
    _decide(ledger, launch_key, "released", who, why, now)


def reject(ledger: Ledger, launch_key: str, who: str, why: str, *, now: datetime | None = None) -> None:
    """End a launch that is held: nothing more of it is ever sent. Raises what :func:`release` raises."""
    _decide(ledger, launch_key, "rejected", who, why, now)


def pause(ledger: Ledger, launch_key: str, who: str, why: str, *, now: datetime | None = None) -> None:
    """Make no further request of a launch until somebody resumes it; its workers wait, and go on by themselves.

    Raises GateError where it is not released, NotFoundError where the ledger does not hold it.
    """
    _decide(ledger, launch_key, "paused", who, why, now)


def resume(ledger: Ledger, launch_key: str, who: str, why: str, *, now: datetime | None = None) -> None:
    """Let a launch that was paused go on at the segment at which it was. Raises GateError where it is not paused."""
    _decide(ledger, launch_key, "resumed", who, why, now)


def stop(ledger: Ledger, launch_key: str, who: str, why: str, *, now: datetime | None = None) -> None:
    """End a launch that is held, released or paused: no request of it is made any more.

    What the service has accepted is not taken back. Raises GateError where it was rejected or stopped before,
    NotFoundError where the ledger does not hold it.
    """
    _decide(ledger, launch_key, "stopped", who, why, now)


def pause_all(
    ledger: Ledger, who: str, why: str, *, connection: str | None = None, now: datetime | None = None
) -> None:
    """Make no further request of any launch, or of any of one connection, also of those that are yet to be made.

    Raises GateError where that is so already.
    """
    scope = scope_of(connection)
    if not ledger.brakes.set(scope, who, why, now=now or datetime.now(UTC)):
        raise GateError(f"launches are paused already ({scope})")


def resume_all(
    ledger: Ledger, who: str, why: str, *, connection: str | None = None, now: datetime | None = None
) -> None:
    """Undo :func:`pause_all` of the same connection; what else holds a launch still does. Raises GateError."""
    scope = scope_of(connection)
    if not ledger.brakes.lift(scope, who, why, now=now or datetime.now(UTC)):
        raise GateError(f"launches are not paused ({scope})")


def stop_all(
    ledger: Ledger, who: str, why: str, *, connection: str | None = None, now: datetime | None = None
) -> list[str]:
    """Stop every launch of which something may yet be sent, or every one of a connection, and give their keys.

    What is in flight may come back unsent, and what is in doubt be sent again: both end here too.
    """
    unsent = ledger.launches.unsent("held", "released", "paused", connection=connection, of=_MAY_YET_BE_SENT)
    return _decide_all(ledger, unsent, "stopped", who, why, now)


def release_all(
    ledger: Ledger, who: str, why: str, *, connection: str | None = None, now: datetime | None = None
) -> list[str]:
    """Release every launch that was held because something went wrong, and give their keys.

    Not those that wait for somebody's approval.
    """
    held = [key for key in ledger.launches.unsent("held", connection=connection) if _went_wrong(ledger, key)]
    return _decide_all(ledger, held, "released", who, why, now)


def doubts(ledger: Ledger, launch_key: str | None = None, *, now: datetime | None = None) -> list[Doubt]:
    """Give what is in doubt in a launch, or in all, once what post-backs prove is settled; oldest first."""
    moment = now or datetime.now(UTC)
    ledger.dispatches.expire_leases(launch_key, moment)
    fold(ledger, now=moment)
    return ledger.dispatches.doubts(launch_key)


def planned_again(ledger: Ledger, launch_key: str | None = None) -> list[SentAgain]:
    """Return the requests of a launch, or of all, that somebody had planned again and that are not sent yet."""
    return ledger.dispatches.planned_again(launch_key)


def how_to_continue(planned: Sequence[SentAgain]) -> list[str]:
    """Return a sentence for each launch with requests planned again: how many, and the command that sends them."""
    launches = Counter((each.launch_key, each.campaign, each.state) for each in planned)
    return [
        f"{counted(count, 'request')} of launch {key[:12]} {'is' if count == 1 else 'are'} planned again and not sent "
        f"yet; unless a task is sending the launch now, continue it with: {_continuing(key, campaign, state)}"
        for (key, campaign, state), count in launches.items()
    ]


def _continuing(launch_key: str, campaign: str, state: str) -> str:
    conf = shlex.quote(json.dumps({"launch": launch_key}))
    command = f"airflow dags trigger {shlex.quote(campaign)} --conf {conf}"
    first = {"held": "release", "paused": "resume"}.get(state)
    return f"sendoff {first} {launch_key[:12]} --why TEXT; {command}" if first else command


def resolve(
    ledger: Ledger,
    dispatch_key: str,
    how: Literal["resend", "write_off"],
    who: str,
    why: str,
    *,
    doubts: int | None = None,
    now: datetime | None = None,
) -> None:
    """Send a dispatch in doubt again, or write it off; what post-backs prove by now stands before that.

    Sent again, people may get the message twice; written off, they may not have got it, and nobody looks any more. A
    launch that no task is sending must be continued for a resend to happen: see :func:`how_to_continue`. ``doubts``:
    only if so many of its attempts went into doubt, as whoever decides has seen. Raises GateError where the dispatch is
    not in doubt, or must be sent and its launch is over, NotFoundError where the ledger does not hold it.
    """
    moment = now or datetime.now(UTC)
    fold(ledger, now=moment)
    if not ledger.dispatches.resolve(dispatch_key, how, who, why, moment, doubts=doubts):
        raise GateError(f"dispatch {dispatch_key} is not in doubt, or its launch is stopped or rejected")


def resolve_seen(
    ledger: Ledger,
    seen: Mapping[str, int],
    how: Literal["resend", "write_off"],
    who: str,
    why: str,
    *,
    now: datetime | None = None,
) -> int:
    """Resolve several dispatches as :func:`resolve` does, with one look at the post-backs, and count those resolved.

    ``seen``: how many attempts of each dispatch were in doubt where somebody saw it. One that changed meanwhile is left
    alone, and so are the others if the ledger goes away after the first. Raises NotFoundError where the ledger does not
    hold one, LedgerUnavailableError if none was resolved.
    """
    moment = now or datetime.now(UTC)
    fold(ledger, now=moment)
    done = 0
    for key, doubts in seen.items():
        try:
            done += ledger.dispatches.resolve(key, how, who, why, moment, doubts=doubts)
        except LedgerUnavailableError:  # each is a commit of its own: what was done is told
            if not done:
                raise
            break
    return done


def _went_wrong(ledger: Ledger, launch_key: str) -> bool:
    return any(each.kind == "held" for each in ledger.decisions.of_launch(launch_key))


def _decide_all(
    ledger: Ledger, launch_keys: list[str], kind: str, who: str, why: str, now: datetime | None
) -> list[str]:
    moment = now or datetime.now(UTC)
    return [key for key in launch_keys if ledger.decisions.decide(key, kind, who, why, now=moment)]


def _decide(ledger: Ledger, launch_key: str, kind: str, who: str, why: str, now: datetime | None) -> None:
    if not ledger.decisions.decide(launch_key, kind, who, why, now=now or datetime.now(UTC)):
        state = ledger.launches.get(launch_key).state
        raise GateError(f"launch {launch_key} is {state}, so it cannot be {kind}")
