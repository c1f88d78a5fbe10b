"""The dispatch loop: take the next planned dispatch, send it once, record what became of it.

Any number of workers may run the loop for one launch at once, and run it again after any crash. The intent is
committed before the request and the outcome after it, so a dispatch whose worker died in between is found in flight
with its lease over: it goes into doubt, and is never sent again by itself.

What is allowed is looked up before every request: whether the launch is released and no brake is set, whether the rate
of the connection allows one, whether it is too late, whether the window of its people is open, and which waves may be
sent.
"""

from __future__ import annotations

import logging
import os
import socket
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict, dataclass
from datetime import UTC, datetime, timedelta

from tenacity import Retrying, retry_if_exception_type, stop_after_attempt, wait_exponential

from sendoff.campaign import Campaign
from sendoff.campaign.gates import Spread
from sendoff.errors import (
    GateError,
    LedgerUnavailableError,
    NoSlotError,
    NotYetError,
    PermanentError,
    RefusedError,
    RetryableError,
)
from sendoff.gates import is_over, lateness, opens_at, zone_of
from sendoff.ledger import Claim, Ledger
from sendoff.ledger.launches import Launch
from sendoff.ledger.rates import AHEAD
from sendoff.outcome import Accepted, InDoubt, NotProcessed, Outcome, Refused
from sendoff.sender import Sender
from sendoff.spread import open_next_wave

_log = logging.getLogger(__name__)

LEASE = timedelta(minutes=5)
"""How long a worker may be silent about a dispatch; well above the client's time-outs."""

_OLDEST_CLAIM = LEASE / 10  # a worker that slept longer may have lost its claim, and makes no request of it
_LONGEST_PATIENCE = 60.0  # seconds to wait for the service between two dispatches; beyond, the caller waits
_USUAL_PATIENCE = 30.0  # seconds, where the service asks for patience and does not say how long
_RECORDINGS = 12  # tries to record an outcome, over about two minutes: well within the lease
_PAUSE = timedelta(seconds=30)  # after which a worker looks whether a launch goes on that somebody paused
_ENDED = frozenset({"rejected", "stopped"})
_SHORTEST_PAUSE = 1.0  # seconds, also where the service says 0: its clock may be behind ours
_TOO_OLD = NotProcessed("the claim is too old")


@dataclass(frozen=True, slots=True)
class Tally:
    """What one worker did, in numbers of dispatches."""

    accepted: int = 0
    refused: int = 0
    in_doubt: int = 0


def work(
    ledger: Ledger,
    launch_key: str,
    sender: Sender,
    *,
    worker: str | None = None,
    now: Callable[[], datetime] = lambda: datetime.now(UTC),
    sleep: Callable[[float], None] = time.sleep,
) -> Tally:
    """Send the planned dispatches of a launch, one after the other, until none is left that may be sent.

    Raises NotYetError, with the time to call again, where it is too early: outside of the window, between two waves,
    while somebody has paused the launch or set a brake, where the service asked for patience, or while the last
    requests are in flight of a campaign that sends again what a dead worker leaves in doubt. Raises another
    RetryableError where the service could not be reached. In both cases what was planned stays planned, and calling
    again goes on at the same dispatch. Raises GateError while the launch is held, and another PermanentError where a
    person must change something first, such as a secret. A launch that has become too late is stopped, and one whose
    requests fail too often is held. One refusal or doubt does not stop the loop; it is in the tally and in the ledger.
    """
    launch = ledger.launches.get(launch_key)
    campaign = Campaign.frozen(launch.definition)
    zones = sorted({edition.time_zone for edition, _, _ in ledger.dispatches.parts(launch_key)}, key=str)
    name = worker or worker_name()
    if expired := ledger.dispatches.expire_leases(launch_key, now()):
        _log.warning("launch %s: %d dispatches of dead workers are in doubt", launch_key, expired)
    _resend_doubts(ledger, launch_key, campaign, now())
    tally: Counter[str] = Counter()
    waited = 0.0
    while not _is_too_late(ledger, launch, campaign, now()):
        moment = now()
        shut = _shut(campaign, launch, zones, moment)
        try:
            claim = ledger.dispatches.claim(
                launch_key,
                worker=name,
                now=moment,
                lease=LEASE,
                closed_zones=shut.keys(),
                rate=sender.rate,
            )
            if claim is None:
                if _goes_on(ledger, launch_key, campaign, shut, moment):
                    continue
                break
        except NoSlotError as early:
            lead = AHEAD if sender.rate else timedelta(0)
            waited += _wait(early, waited, now() + lead, sleep)
            continue
        if claim.not_before and (ahead := (claim.not_before - now()).total_seconds()) > 0:
            sleep(ahead)
        outcome = _attempt(sender, claim, campaign, launch, now=now, send_until=moment + _OLDEST_CLAIM)
        _record(ledger, claim, outcome, now, sleep)
        _log.info(
            "launch %s segment %d attempt %d: %s", launch_key, claim.segment, claim.attempt, outcome.kind
        )
        if isinstance(outcome, NotProcessed):
            _be_patient(ledger, launch.connection, outcome, now())
            continue
        waited = 0.0
        tally[outcome.kind] += 1
        if isinstance(outcome, InDoubt):
            _resend_doubts(ledger, launch_key, campaign, now())
        if not isinstance(outcome, Accepted):
            _hold_failing(ledger, launch_key, campaign, outcome, now())
    return Tally(**tally)


def _resend_doubts(ledger: Ledger, launch_key: str, campaign: Campaign, now: datetime) -> None:
    """Plan again, once, what is in doubt of a campaign for which twice is better than never."""
    if campaign.on_doubt != "resend":
        return
    for doubt in ledger.dispatches.doubts(launch_key):
        if ledger.dispatches.resolve(
            doubt.dispatch_key, "resend", "sendoff", "on_doubt: resend", now, doubts=1
        ):
            _log.warning("launch %s segment %d was in doubt and is sent again", launch_key, doubt.segment)


def _hold_failing(
    ledger: Ledger, launch_key: str, campaign: Campaign, outcome: Refused | InDoubt, now: datetime
) -> None:
    """Hold a launch of which too many of the newest requests failed as this one did, where something is left of it.

    Counted is from where somebody released it last.
    """
    gate = campaign.gates.failures
    if gate is None:
        return
    seen = ledger.decisions.newest(launch_key)
    recent = ledger.dispatches.recent(launch_key, gate.of, _released_at(ledger, launch_key))
    found, most = {
        "refused": (recent.refused, gate.refused),
        "in_doubt": (recent.in_doubt, gate.in_doubt),
    }[outcome.kind]
    if found < most or not ledger.dispatches.states(launch_key).get("planned"):
        return
    why = (
        f"gates.failures.{outcome.kind}: found {found:,} of the newest {_count(recent.requests, 'request')} "
        f"{outcome.kind.replace('_', ' ')}; allowed: fewer than {most:,}"
    )
    if ledger.decisions.decide(
        launch_key, "held", "sendoff", why, now=now, detail=asdict(recent), since=seen
    ):
        _log.warning("launch %s is held: %s", launch_key, why)


def _count(number: int, noun: str) -> str:
    return noun if number == 1 else f"{number:,} {noun}s"


def _released_at(ledger: Ledger, launch_key: str) -> datetime | None:
    """Give when somebody released a launch last, after which its failures count anew."""
    released = [each for each in ledger.decisions.of_launch(launch_key) if each.kind == "released"]
    return released[-1].decided_at if released else None


def _is_too_late(ledger: Ledger, launch: Launch, campaign: Campaign, now: datetime) -> bool:
    """Say whether a launch is later than its campaign allows, and stop it where something is left of it."""
    if campaign.gates.lateness is None:
        return False
    gate = lateness(campaign.gates.lateness, launch.due_at, now)
    if not gate.is_open and ledger.dispatches.states(launch.launch_key).get("planned"):
        _stop(ledger, launch.launch_key, str(gate), now)
    return not gate.is_open


def _stop(ledger: Ledger, launch_key: str, why: str, now: datetime) -> None:
    if ledger.decisions.decide(launch_key, "stopped", "sendoff", f"too late: {why}", now=now):
        _log.warning("launch %s is stopped, and the rest of it is not sent: %s", launch_key, why)


def _shut(
    campaign: Campaign, launch: Launch, zones: Iterable[str | None], now: datetime
) -> dict[str | None, datetime | None]:
    """Give the time zones whose people must not be sent to now, with the time from which they may; None: never.

    The window is for what is sent at once; another moment of sending was held against it before the launch was frozen.
    """
    window = campaign.gates.window if campaign.send.kind == "now" else None
    shut: dict[str | None, datetime | None] = {}
    for zone in zones:
        if is_over(campaign, zone, launch.period.end, now):
            shut[zone] = None
        elif window and (until := opens_at(window, zone_of(window, zone), now)):
            shut[zone] = until
    return shut


def _goes_on(
    ledger: Ledger,
    launch_key: str,
    campaign: Campaign,
    shut: Mapping[str | None, datetime | None],
    now: datetime,
) -> bool:
    """Say whether there is more to send where nothing could be claimed, once the next wave is open.

    Raises GateError where a person must decide, NotYetError where it is too early.
    """
    launch = ledger.launches.get(
        launch_key
    )  # before its progress: another worker may open a wave at any time
    progress = ledger.dispatches.progress(launch_key)
    planned = [part for part in progress if part.state == "planned"]
    if launch.state in _ENDED:
        return False
    if not planned:
        _check_nothing_may_return(ledger, launch_key, campaign)
        return False
    if launch.state == "held":
        raise GateError(
            f"launch {launch_key} is held: {_why_held(ledger, launch_key)}; release it or stop it"
        )
    _check_not_paused(ledger, launch, now)
    ahead = [part for part in planned if shut.get(part.time_zone, now) is not None]
    if not ahead:
        over = sum(part.dispatches for part in planned)
        _stop(ledger, launch_key, f"the moment of sending is over, and {over:,} requests are not made", now)
        return False
    if in_open_wave := [part for part in ahead if part.wave <= launch.wave]:
        openings = [until for part in in_open_wave if (until := shut.get(part.time_zone))]
        if len(openings) == len(in_open_wave):
            raise NotYetError(f"launch {launch_key}: the window of gates.window is closed", min(openings))
        _check_patience(ledger, launch, now)
        return True  # another worker gave a dispatch back, or a launch was released, a moment ago
    spread = campaign.gates.spread or Spread()
    if any(part.state == "in_flight" and part.wave <= launch.wave for part in progress):
        until = now + spread.wait.timedelta()
        raise NotYetError(f"launch {launch_key}: wave {launch.wave} is in flight", until)
    open_next_wave(ledger, launch, spread, now=now)
    return True


def _check_nothing_may_return(ledger: Ledger, launch_key: str, campaign: Campaign) -> None:
    """Raise NotYetError while the doubt that a dead worker leaves would be sent again, and somebody must be there."""
    if campaign.on_doubt == "resend" and (expiry := ledger.dispatches.next_expiry(launch_key)):
        raise NotYetError(
            f"launch {launch_key}: its last requests are in flight, and are sent again if their workers are dead",
            expiry + timedelta(seconds=1),
        )


def _check_not_paused(ledger: Ledger, launch: Launch, now: datetime) -> None:
    if launch.state == "paused":
        paused = [each for each in ledger.decisions.of_launch(launch.launch_key) if each.kind == "paused"]
        by = f" by {paused[-1].who}: {paused[-1].why}" if paused else ""
        raise NotYetError(f"launch {launch.launch_key} is paused{by}", now + _PAUSE)
    for brake in ledger.brakes.on(launch.connection):
        raise NotYetError(f"launches are paused ({brake.scope}) by {brake.who}: {brake.why}", now + _PAUSE)


def _check_patience(ledger: Ledger, launch: Launch, now: datetime) -> None:
    until = ledger.rates.next_at(launch.connection)
    if until and until > now:
        raise NoSlotError(f"no request over the connection {launch.connection} is due yet", until)


def _why_held(ledger: Ledger, launch_key: str) -> str:
    held = [each for each in ledger.decisions.of_launch(launch_key) if each.kind == "held"]
    return held[-1].why or "" if held else "somebody must agree first"


def _attempt(
    sender: Sender,
    claim: Claim,
    campaign: Campaign,
    launch: Launch,
    *,
    now: Callable[[], datetime],
    send_until: datetime,
) -> Outcome:
    """Make the request of a claim, unless it is so old that somebody may have decided about it by now."""
    try:
        send = sender.request(claim, campaign, launch)
    except PermanentError as error:
        return NotProcessed(str(error), permanent=True)
    return send() if now() < send_until else _TOO_OLD


def _record(
    ledger: Ledger,
    claim: Claim,
    outcome: Outcome,
    now: Callable[[], datetime],
    sleep: Callable[[float], None],
) -> None:
    """Record an outcome, patiently: a request was made, and while the ledger is away only we know what became of it."""
    for attempt in Retrying(
        retry=retry_if_exception_type(LedgerUnavailableError),
        wait=wait_exponential(max=15),
        stop=stop_after_attempt(_RECORDINGS),
        sleep=sleep,
        reraise=True,
    ):
        with attempt:
            ledger.dispatches.record(claim, outcome, now())


def check_all_made(ledger: Ledger, launch_key: str) -> None:
    """Raise RetryableError while a dispatch of a launch waits or is in flight, its worker dead or alive.

    In a launch that is rejected or stopped nothing waits.
    """
    ledger.dispatches.expire_leases(launch_key, datetime.now(UTC))
    states = ledger.dispatches.states(launch_key)
    planned = 0 if ledger.launches.get(launch_key).state in _ENDED else states.get("planned", 0)
    waiting = planned + states.get("in_flight", 0)
    if waiting:
        raise RetryableError(f"launch {launch_key}: {waiting} dispatches are not made yet")


def check_refusals(ledger: Ledger, launch_key: str) -> None:
    """Raise RefusedError, with what the service said, where it refused a dispatch of a launch.

    What was refused before somebody released the launch was seen then, and counts no more.
    """
    seen = _released_at(ledger, launch_key)
    refused = ledger.dispatches.refused(launch_key, seen)
    if refused:
        said = "; ".join(ledger.dispatches.reasons(launch_key, "refused", seen)[:3])
        raise RefusedError(f"launch {launch_key}: the service refused {refused} dispatches: {said}")


def worker_name() -> str:
    """Name this worker in the ledger: host, process and thread."""
    return f"{socket.gethostname()}/{os.getpid()}/{threading.get_ident()}"


def _be_patient(ledger: Ledger, connection: str, outcome: NotProcessed, now: datetime) -> None:
    """Keep the service's wish for patience for all workers of the connection; raise where waiting is of no use."""
    if outcome is _TOO_OLD:  # the service said nothing, and the next claim is new
        return
    said = f"nothing was sent: {outcome.reason}"
    if outcome.permanent:
        raise PermanentError(said)
    if not outcome.asks_patience:
        raise RetryableError(said)
    wish = _USUAL_PATIENCE if outcome.retry_after is None else max(_SHORTEST_PAUSE, outcome.retry_after)
    until = now + timedelta(seconds=wish)
    ledger.rates.delay(connection, until)
    if outcome.retry_after is None or wish > _LONGEST_PATIENCE:
        raise NotYetError(said, until)


def _wait(early: NoSlotError, waited: float, now: datetime, sleep: Callable[[float], None]) -> float:
    """Wait for the connection's next request and give the seconds; raise where that takes too long."""
    ahead = max((early.until - now).total_seconds(), 0.0)
    if waited + ahead > _LONGEST_PATIENCE:
        raise early
    sleep(ahead)
    return ahead
