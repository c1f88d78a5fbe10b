"""The dispatch loop: take the next planned dispatch, send it once, record what became of it.

Any number of workers may run the loop for one launch at once, and run it again after any crash. The intent is
committed before the request and the outcome after it, so a dispatch whose worker died in between is found in flight
with its lease over: it goes into doubt, and is never sent again by itself.

What is allowed is looked up before every request: whether the launch is released and no brake is set, whether the rate
of the connection allows one, whether it is too late, whether the window of its people is open, and which waves may be
sent.

One call makes several requests at once, each on a thread that claims for itself, under a name that nobody else has.
What is to be decided of the launch is decided between two rounds, when no request of this call is under way.
"""

from __future__ import annotations

import logging
import os
import secrets
import socket
import threading
import time
from collections import Counter
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor, wait
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta

from tenacity import Retrying, retry_if_exception_type, wait_exponential

from sendoff import metrics
from sendoff.dispatch.policy import ENDED, Clearance, released_at
from sendoff.dispatch.request import Sender
from sendoff.errors import (
    LedgerUnavailableError,
    NoSlotError,
    NotYetError,
    PermanentError,
    RefusedError,
    RetryableError,
    SendoffError,
    UnusableLedgerError,
)
from sendoff.ledger import AHEAD, Claim, Ledger
from sendoff.outcome import Accepted, InDoubt, NotProcessed, Outcome

_log = logging.getLogger(__name__)

LEASE = timedelta(minutes=5)
"""How long a worker may be silent about a dispatch; well above the client's time-outs."""

_OLDEST_CLAIM = LEASE / 10  # a worker that slept longer may have lost its claim, and makes no request of it
_LONGEST_PATIENCE = 60.0  # seconds to wait for the service between two dispatches; beyond, the caller waits
_USUAL_PATIENCE = 30.0  # seconds, where the service asks for patience and does not say how long
_DEAFNESS = 0.5  # seconds: the main thread handles signals, but another may take one, which wakes nobody up
_RECORDINGS = 24  # tries to record an outcome at most, over about the lease where each fails at once
_LONGEST_PAUSE = 30.0  # seconds between two tries while the service fails and does not say how long
_SHORTEST_PAUSE = 1.0  # seconds, also where the service says 0: its clock may be behind ours
_TOO_OLD = NotProcessed("the claim is too old")
_TOLD_TO_END = NotProcessed("the worker was told to end before it made the request")


@dataclass(frozen=True, slots=True)
class Tally:
    """What one call of :func:`work` did, in numbers of dispatches."""

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
    sleep: Callable[[float], None] | None = None,
) -> Tally:
    """Send the planned dispatches of a launch, ``sender.requests_at_once`` at a time, until none may be sent any more.

    Raises NotYetError, with the time to call again, where it is too early: outside of the window, between two waves,
    while somebody has paused the launch or set a brake, where the service asked for patience, or while the last
    requests are in flight of a campaign that sends again what a dead worker leaves in doubt. Raises another
    RetryableError where the service could not be reached. In both cases what was planned stays planned, and calling
    again goes on at the same dispatch. Raises GateError while the launch is held, and another PermanentError where a
    person must change something first, such as a secret. A launch that has become too late is stopped, and one whose
    requests fail too often is held. One refusal or doubt does not stop the loop; it is in the tally and in the ledger.

    Where one request meets such an error, those under way are finished and recorded and no other is begun. Of several
    errors that one is raised which somebody must see first: what nobody foresaw, then PermanentError, then
    RetryableError, then NotYetError with the earliest time; the others are logged. The same happens where this thread
    is interrupted, as by Ctrl-C: what interrupted it is raised when the requests under way are recorded.

    ``sleep``: in the place of waiting, in seconds. ``worker`` stands in the ledger at the beginning of the names of
    those who claim.
    """
    clearance = Clearance(ledger, launch_key)
    if expired := ledger.dispatches.expire_leases(launch_key, now()):
        _log.warning("launch %s: %d dispatches of dead workers are in doubt", launch_key, expired)
    clearance.resend_doubts(now())
    name = (
        f"{worker or worker_name()}/{secrets.token_hex(8)}"  # nobody else may find the claims that are ours
    )
    with ThreadPoolExecutor(sender.requests_at_once, "dispatch") as threads:
        crew = _Crew(ledger, sender, clearance, name, now, sleep, threads)
        try:
            return crew.work()
        except BaseException:  # also a signal: this thread makes no request, so none is cut off by it
            crew.finish()
            raise


@dataclass(slots=True)
class _Crew:
    """The threads of one call, each of them a worker of its own in the ledger."""

    ledger: Ledger
    sender: Sender
    clearance: Clearance
    name: str
    now: Callable[[], datetime]
    sleep: Callable[[float], None] | None
    threads: ThreadPoolExecutor
    end: threading.Event = field(default_factory=threading.Event)
    _unavailable_since: datetime | None = None
    _done: Counter[str] = field(default_factory=Counter)
    _at_work: int = 0
    _counting: threading.Condition = field(default_factory=threading.Condition)

    @property
    def key(self) -> str:
        return self.clearance.launch.launch_key

    def work(self) -> Tally:
        waited, done = 0.0, 0
        while not self.clearance.is_too_late(self.now()):
            self._round()
            if self._done.total() > done:
                waited, done = 0.0, self._done.total()
            try:
                if not self.clearance.goes_on(self.now()):
                    break
            except NoSlotError as early:
                waited += self._wait_for_slot(early, waited)
        return Tally(**self._done)

    def finish(self) -> None:
        """Begin no further request, and wait until those under way are recorded.

        An executor joins the threads that it has noted, and it notes one after its start: an interruption may come in
        between, when that thread works already.
        """
        self.end.set()
        with self._counting:
            self._counting.wait_for(lambda: self._at_work == 0)

    def _round(self) -> None:
        """Let threads send until none of them can claim anything."""
        planned = self.ledger.dispatches.states(self.key).get("planned", 0)
        size = min(self.sender.requests_at_once, planned)
        round_ = [self.threads.submit(self._send, f"{self.name}/{place + 1}") for place in range(size)]
        while wait(round_, _DEAFNESS).not_done:
            pass  # what another thread took is handled between two waits
        _raise_gravest(round_)

    def _send(self, worker: str) -> None:
        """Send one dispatch after the other, as long as there is one to claim and nobody says to end."""
        with self._counting:  # before it is looked whether it is time to end
            self._at_work += 1
        try:
            claim = self._claim(worker)
            while claim is not None:
                claim = self._carry_out(claim, worker) or self._claim(worker)
        except BaseException:
            self.end.set()
            raise
        finally:
            with self._counting:
                self._at_work -= 1
                self._counting.notify_all()

    def _claim(self, worker: str) -> Claim | None:
        waited, is_second = 0.0, False
        while not self.end.is_set():
            moment = self.now()
            try:
                return self.ledger.dispatches.claim(
                    self.key,
                    worker=worker,
                    now=moment,
                    lease=LEASE,
                    closed_zones=self.clearance.closed_zones(moment),
                    rate=self.sender.rate,
                )
            except NoSlotError as early:
                waited += self._wait_for_slot(early, waited)
            except LedgerUnavailableError:  # it may have committed the claim, and only the answer was lost
                if not self._give_back(worker) or is_second:
                    raise
                is_second = True
        return None

    def _give_back(self, worker: str) -> bool:
        """Give back what a worker claimed and never learned of; False where the ledger does not answer."""
        try:
            self.ledger.dispatches.give_back(self.key, worker, self.now())
        except LedgerUnavailableError:
            return False
        return True

    def _carry_out(self, claim: Claim, worker: str) -> Claim | None:
        """Make the request of a claim and record what became of it; give the next claim where that came with it."""
        outcome = self._attempt(claim)
        metrics.request(self.clearance.launch.connection, outcome.kind)
        following = self._record(claim, outcome, worker)
        _log.info("launch %s segment %d attempt %d: %s", self.key, claim.segment, claim.attempt, outcome.kind)
        if isinstance(outcome, NotProcessed):
            self._be_patient(claim, outcome)
            return None
        with self._counting:
            self._done[outcome.kind] += 1
            self._unavailable_since = None
        if isinstance(outcome, InDoubt):
            self.clearance.resend_doubt(claim.dispatch_key, claim.segment, self.now())
        if not isinstance(outcome, Accepted):
            self.clearance.hold_if_failing(outcome, self.now())
        return following

    def _attempt(self, claim: Claim) -> Outcome:
        """Make the request of a claim, unless it is so old that somebody may have decided about it by now."""
        try:
            send = self.sender.request(claim, self.clearance.campaign, self.clearance.launch)
        except PermanentError as error:
            return NotProcessed(str(error), permanent=True)
        if claim.not_before and (ahead := (claim.not_before - self.now()).total_seconds()) > 0:
            self._wait(ahead)
        if self.end.is_set():
            return _TOLD_TO_END
        return send() if self.now() < claim.claimed_at + _OLDEST_CLAIM else _TOO_OLD

    def _record(self, claim: Claim, outcome: Outcome, worker: str) -> Claim | None:
        """Record an outcome, patiently: while the ledger is away, only we know what became of the request.

        Until the lease of the claim is over; then the dispatch is in doubt.

        Where it was accepted nothing is to be decided, and the next dispatch is claimed in the same transaction; but
        for a connection with a rate, where the next may have to wait, and must not make the record wait.
        """
        for attempt in Retrying(
            retry=retry_if_exception_type((LedgerUnavailableError, UnusableLedgerError)),
            wait=wait_exponential(max=15),
            stop=lambda tries: tries.attempt_number >= _RECORDINGS or self.now() >= claim.claimed_at + LEASE,
            sleep=self.sleep or time.sleep,
            reraise=True,
        ):
            with attempt:
                moment = self.now()
                if not isinstance(outcome, Accepted) or self.sender.rate is not None:
                    self.ledger.dispatches.record(claim, outcome, moment)
                    return None
                return self.ledger.dispatches.record_and_claim(
                    claim,
                    outcome,
                    moment,
                    worker=worker,
                    lease=LEASE,
                    closed_zones=self._closed_zones(moment),
                )
        raise AssertionError("the last try raises")

    def _closed_zones(self, moment: datetime) -> frozenset[str | None]:
        """Give the time zones of which nothing may be claimed; all of them where it is time to end."""
        return self.clearance.zones if self.end.is_set() else self.clearance.closed_zones(moment)

    def _be_patient(self, claim: Claim, outcome: NotProcessed) -> None:
        """Hold back all workers of the connection for as long as the service needs; raise if waiting here is of no use.

        A service that issues no token is asked again after pauses that double, for half a minute to a minute in all.
        """
        if (
            outcome is _TOO_OLD or outcome is _TOLD_TO_END
        ):  # the service said nothing, and the next claim is new
            return
        said = f"the request of segment {claim.segment} was not processed and stays planned: {outcome.reason}"
        if outcome.permanent:
            raise PermanentError(said)
        if not outcome.asks_patience and not outcome.is_unavailable:
            raise RetryableError(said)
        moment = self.now()
        wish, waits_here = self._pause(outcome, moment)
        if outcome.is_unavailable and outcome.retry_after is None and not waits_here:
            raise RetryableError(said)
        until = moment + timedelta(seconds=wish)
        self.ledger.rates.delay(self.clearance.launch.connection, until)
        if not waits_here:
            raise NotYetError(said, until)
        _log.warning("launch %s: %s; trying again in %g seconds", self.key, said, wish)

    def _pause(self, outcome: NotProcessed, moment: datetime) -> tuple[float, bool]:
        """Return the seconds until the next request, and whether this worker waits for them itself."""
        spent = 0.0
        if outcome.is_unavailable:
            with self._counting:
                self._unavailable_since = self._unavailable_since or moment
                spent = max((moment - self._unavailable_since).total_seconds(), 0.0)
        if outcome.retry_after is not None:
            wish = max(_SHORTEST_PAUSE, outcome.retry_after)
        elif outcome.is_unavailable:
            wish = min(max(_SHORTEST_PAUSE, spent), _LONGEST_PAUSE)
        else:
            return _USUAL_PATIENCE, False
        return wish, spent + wish <= _LONGEST_PATIENCE

    def _wait_for_slot(self, early: NoSlotError, waited: float) -> float:
        """Wait for the connection's next request and give the seconds; raise where that takes too long."""
        lead = AHEAD if self.sender.rate else timedelta(0)
        ahead = max((early.until - self.now() - lead).total_seconds(), 0.0)
        if waited + ahead > _LONGEST_PATIENCE:
            raise early
        self._wait(ahead)
        return ahead

    def _wait(self, seconds: float) -> None:
        """Wait, but no longer than until it is time to end."""
        (self.sleep or self.end.wait)(seconds)


def _raise_gravest(round_: list[Future[None]]) -> None:
    """Raise of the errors of some threads the one that somebody must see first, and log the others."""
    errors = [error for each in round_ if (error := each.exception()) is not None]
    if not errors:
        return
    gravest = min(errors, key=_rank)
    for error in errors:
        if error is not gravest:
            _log.warning("another request met this at the same time: %s", error)
    raise gravest


def _rank(error: BaseException) -> tuple[int, float]:
    if isinstance(error, NotYetError):
        return 3, error.until.timestamp()
    if isinstance(error, RetryableError):
        return 2, 0.0
    return int(isinstance(error, SendoffError)), 0.0


def check_all_made(ledger: Ledger, launch_key: str) -> None:
    """Raise NotYetError while a dispatch is in flight, RetryableError while one is planned.

    NotYetError carries the time at which the next lease ends: by then, the worker has recorded an outcome or counts as
    dead. In a launch that is rejected or stopped, planned dispatches do not count.
    """
    now = datetime.now(UTC)
    ledger.dispatches.expire_leases(launch_key, now)
    states = ledger.dispatches.states(launch_key)
    if in_flight := states.get("in_flight"):
        left = ledger.dispatches.next_expiry(launch_key) or timedelta(0)
        raise NotYetError(
            f"launch {launch_key}: dispatches in flight: {in_flight}; whether their workers are alive shows when their "
            "leases end",
            now + left + timedelta(seconds=1),
        )
    planned = 0 if ledger.launches.get(launch_key).state in ENDED else states.get("planned", 0)
    if planned:
        raise RetryableError(f"launch {launch_key}: dispatches not made yet: {planned}")


def check_refusals(ledger: Ledger, launch_key: str) -> None:
    """Raise RefusedError, with what the service said, where it refused a dispatch of a launch.

    What was refused before somebody released the launch was seen then, and counts no more.
    """
    seen = released_at(ledger, launch_key)
    refused = ledger.dispatches.refused(launch_key, seen)
    if refused:
        said = "; ".join(ledger.dispatches.reasons(launch_key, "refused", seen)[:3])
        raise RefusedError(f"launch {launch_key}: the service refused {refused} dispatches: {said}")


def worker_name() -> str:
    """Name this worker in the ledger: host, process and thread."""
    return f"{socket.gethostname()}/{os.getpid()}/{threading.get_ident()}"
