"""The dispatch loop: claim the next planned dispatch, send it once, record its outcome.

Any number of workers may run the loop for one launch at once, and again after any crash. The intent is committed before
the request and the outcome after it. A dispatch whose worker died in between is found in flight after its lease: it
goes into doubt, and is never sent again by itself.

The worker checks the send policy before every request: the state of the launch, global pauses, the rate of the
connection, lateness, the send window of the recipients, and the open waves.

One call makes several requests at once, each on a thread that claims for itself, under a name that nobody else has.
Decisions about the launch are made between two rounds, when no request of this call is under way.
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
from typing import NamedTuple

from tenacity import Retrying, retry_if_exception_type, wait_exponential

from sendoff.dispatch.policy import SendPolicy
from sendoff.dispatch.request import ServiceConnection
from sendoff.errors import (
    LedgerUnavailableError,
    NotYetError,
    PermanentError,
    RateLimitedLocallyError,
    RetryableError,
    SendoffError,
    UnusableLedgerError,
)
from sendoff.ledger import LOOKAHEAD, Claim, Ledger
from sendoff.outcome import Accepted, InDoubt, NotProcessed, Outcome
from sendoff.states import DispatchState
from sendoff.telemetry import metrics

_log = logging.getLogger(__name__)

LEASE = timedelta(minutes=5)
"""How long a worker may be silent about a dispatch; well above the client's time-outs."""

_MAX_CLAIM_AGE = LEASE / 10  # a worker that slept longer may have lost its claim, and makes no request of it
_MAX_WAIT = 60.0  # seconds to wait for the service between two dispatches; beyond, the caller waits
_DEFAULT_RETRY_AFTER = 30.0  # seconds, if the service limits the rate without a Retry-After
_SIGNAL_POLL = 0.5  # seconds: the main thread handles signals, but another may take one, which wakes nobody
_MAX_RECORD_ATTEMPTS = 24  # to record an outcome, over about the lease if each fails at once
_MAX_BACKOFF = 30.0  # seconds between two tries while the service fails without a Retry-After
_MIN_BACKOFF = 1.0  # seconds, also for a Retry-After of 0: the service's clock may be behind ours
_CLAIM_TOO_OLD = NotProcessed("the claim is too old")
_SHUTTING_DOWN = NotProcessed("the worker was told to end before it made the request")


@dataclass(frozen=True, slots=True)
class SendResult:
    """What one call of :func:`send_launch` did, in numbers of dispatches."""

    accepted: int = 0
    refused: int = 0
    in_doubt: int = 0


def send_launch(
    ledger: Ledger,
    launch_key: str,
    connection: ServiceConnection,
    *,
    worker: str | None = None,
    now: Callable[[], datetime] = lambda: datetime.now(UTC),
    sleep: Callable[[float], None] | None = None,
) -> SendResult:
    """Send the planned dispatches of a launch until none may be sent, ``connection.requests_at_once`` at a time.

    Raises NotYetError, with the time to call again, while it is too early: outside of the send window, between two
    waves, while the launch or its connection is paused, while the service limits the rate, or while requests of dead
    workers may be in flight and the campaign resends doubts. Raises another RetryableError if the service cannot be
    reached. Both leave the rest planned, and calling again continues at the same dispatch. Raises GateError while the
    launch is held, and another PermanentError if a person must change something first, such as a secret. A launch that
    is too late is stopped, and one whose requests fail too often is held. A refusal or a doubt does not stop the loop;
    the result and the ledger count it.

    If a request meets such an error, the requests under way are finished and recorded, and no other begins. Of several
    errors, the most severe is raised and the others are logged: first an unexpected error, then PermanentError, then
    RetryableError, then the earliest NotYetError. An interruption of this thread, such as Ctrl-C, also waits until the
    requests under way are recorded.

    ``sleep`` replaces waiting, in seconds. The names of the workers in the ledger start with ``worker``.
    """
    policy = SendPolicy(ledger, launch_key)
    if expired := ledger.doubts.expire_leases(launch_key, now()):
        _log.warning("launch %s: %d dispatches of dead workers are in doubt", launch_key, expired)
    policy.resend_doubts(now())
    name = f"{worker or worker_name()}/{secrets.token_hex(8)}"  # unique: nobody else may find our claims
    with ThreadPoolExecutor(connection.requests_at_once, "dispatch") as threads:
        pool = _WorkerPool(ledger, connection, policy, name, now, sleep, threads)
        try:
            return pool.run()
        except BaseException:  # also a signal: this thread makes no request, so none is cut off by it
            pool.finish()
            raise


class _Delay(NamedTuple):
    seconds: float  # until the next request
    waits_here: bool  # this worker waits for them itself


@dataclass(slots=True)
class _WorkerPool:
    """The threads of one call, each of them a worker of its own in the ledger."""

    ledger: Ledger
    connection: ServiceConnection
    policy: SendPolicy
    name: str
    now: Callable[[], datetime]
    sleep: Callable[[float], None] | None
    threads: ThreadPoolExecutor
    stopping: threading.Event = field(default_factory=threading.Event)
    _unavailable_since: datetime | None = None
    _done: Counter[str] = field(default_factory=Counter)
    _at_work: int = 0
    _counting: threading.Condition = field(default_factory=threading.Condition)

    @property
    def key(self) -> str:
        return self.policy.launch.launch_key

    def run(self) -> SendResult:
        waited, done = 0.0, 0
        while not self.policy.is_too_late(self.now()):
            self._round()
            if self._done.total() > done:
                waited, done = 0.0, self._done.total()
            try:
                if not self.policy.has_more(self.now()):
                    break
            except RateLimitedLocallyError as early:
                waited += self._wait_for_rate(early, waited)
        return SendResult(**self._done)

    def finish(self) -> None:
        """Begin no further request, and wait until those under way are recorded.

        An executor joins the threads that it has noted, and it notes one after its start: an interruption may come in
        between, when that thread works already.
        """
        self.stopping.set()
        with self._counting:
            self._counting.wait_for(lambda: self._at_work == 0)

    def _round(self) -> None:
        """Send on several threads until none of them can claim anything."""
        planned = self.ledger.dispatch_queries.states(self.key).get(DispatchState.PLANNED, 0)
        size = min(self.connection.requests_at_once, planned)
        round_ = [self.threads.submit(self._send, f"{self.name}/{place + 1}") for place in range(size)]
        while wait(round_, _SIGNAL_POLL).not_done:
            pass  # a signal that another thread took is handled between two waits
        _raise_most_severe(round_)

    def _send(self, worker: str) -> None:
        """Send one dispatch after the other until there is none to claim, or the pool stops."""
        with self._counting:  # before the first look at stopping
            self._at_work += 1
        try:
            claim = self._claim(worker)
            while claim is not None:
                claim = self._send_claim(claim, worker) or self._claim(worker)
        except BaseException:
            self.stopping.set()
            raise
        finally:
            with self._counting:
                self._at_work -= 1
                self._counting.notify_all()

    def _claim(self, worker: str) -> Claim | None:
        waited, is_second = 0.0, False
        while not self.stopping.is_set():
            moment = self.now()
            try:
                return self.ledger.dispatches.claim(
                    self.key,
                    worker=worker,
                    now=moment,
                    lease=LEASE,
                    closed_zones=self.policy.closed_zones(moment),
                    rate=self.connection.rate,
                )
            except RateLimitedLocallyError as early:
                waited += self._wait_for_rate(early, waited)
            except LedgerUnavailableError:  # it may have committed the claim, and only the answer was lost
                if not self._give_back(worker) or is_second:
                    raise
                is_second = True
        return None

    def _give_back(self, worker: str) -> bool:
        """Give back a claim that the worker never learned of; False if the ledger does not answer."""
        try:
            self.ledger.dispatches.give_back(self.key, worker, self.now())
        except LedgerUnavailableError:
            return False
        return True

    def _send_claim(self, claim: Claim, worker: str) -> Claim | None:
        """Send the request of a claim and record its outcome; return the next claim if the record came with one."""
        outcome = self._attempt(claim)
        metrics.request(self.policy.launch.connection, outcome.kind)
        following = self._record(claim, outcome, worker)
        _log.info("launch %s segment %d attempt %d: %s", self.key, claim.segment, claim.attempt, outcome.kind)
        if isinstance(outcome, NotProcessed):
            self._back_off(claim, outcome)
            return None
        with self._counting:
            self._done[outcome.kind] += 1
            self._unavailable_since = None
        if isinstance(outcome, InDoubt):
            self.policy.resend_doubt(claim.dispatch_key, claim.segment, self.now())
        if not isinstance(outcome, Accepted):
            self.policy.hold_if_failing(outcome, self.now())
        return following

    def _attempt(self, claim: Claim) -> Outcome:
        """Send the request of a claim, unless it is so old that somebody may have decided about it by now."""
        try:
            send = self.connection.build_request(claim, self.policy.campaign, self.policy.launch)
        except PermanentError as error:
            return NotProcessed(str(error), is_permanent=True)
        if claim.not_before and (ahead := (claim.not_before - self.now()).total_seconds()) > 0:
            self._wait(ahead)
        if self.stopping.is_set():
            return _SHUTTING_DOWN
        return send() if self.now() < claim.claimed_at + _MAX_CLAIM_AGE else _CLAIM_TOO_OLD

    def _record(self, claim: Claim, outcome: Outcome, worker: str) -> Claim | None:
        """Record an outcome, and retry while the ledger is away: nobody else knows what became of the request.

        It gives up when the lease of the claim is over; then the dispatch is in doubt. Returns the next claim after an
        accepted request, made in the same transaction. A connection with a rate claims for itself: the next claim may
        have to wait, and must not delay the record.
        """
        retry = Retrying(
            retry=retry_if_exception_type((LedgerUnavailableError, UnusableLedgerError)),
            wait=wait_exponential(max=15),
            stop=lambda tries: (
                tries.attempt_number >= _MAX_RECORD_ATTEMPTS or self.now() >= claim.claimed_at + LEASE
            ),
            sleep=self.sleep or time.sleep,
            reraise=True,
        )
        return retry(self._record_once, claim, outcome, worker)

    def _record_once(self, claim: Claim, outcome: Outcome, worker: str) -> Claim | None:
        moment = self.now()
        if not isinstance(outcome, Accepted) or self.connection.rate is not None:
            self.ledger.dispatches.record(claim, outcome, moment)
            return None
        return self.ledger.dispatches.record_and_claim(
            claim, outcome, moment, worker=worker, lease=LEASE, closed_zones=self._closed_zones(moment)
        )

    def _closed_zones(self, moment: datetime) -> frozenset[str | None]:
        """Return the time zones of which nothing may be claimed; all of them if the pool stops."""
        return self.policy.zones if self.stopping.is_set() else self.policy.closed_zones(moment)

    def _back_off(self, claim: Claim, outcome: NotProcessed) -> None:
        """Delay all workers of the connection for as long as the service needs; raise if that is too long to wait here.

        While the service issues no token, the delays double, for half a minute to a minute in all.
        """
        if (
            outcome is _CLAIM_TOO_OLD or outcome is _SHUTTING_DOWN
        ):  # no word of the service: claim anew, or end
            return
        text = f"the request of segment {claim.segment} was not processed and stays planned: {outcome.reason}"
        if outcome.is_permanent:
            raise PermanentError(text)
        if not outcome.is_rate_limited and not outcome.is_unavailable:
            raise RetryableError(text)
        moment = self.now()
        delay = self._delay(outcome, moment)
        if outcome.retry_after is None and outcome.is_unavailable and not delay.waits_here:
            raise RetryableError(text)
        until = moment + timedelta(seconds=delay.seconds)
        self.ledger.rate_limits.delay(self.policy.launch.connection, until)
        if not delay.waits_here:
            raise NotYetError(text, until)
        _log.warning("launch %s: %s; trying again in %g seconds", self.key, text, delay.seconds)

    def _delay(self, outcome: NotProcessed, moment: datetime) -> _Delay:
        outage = 0.0
        if outcome.is_unavailable:
            with self._counting:
                self._unavailable_since = self._unavailable_since or moment
                outage = max((moment - self._unavailable_since).total_seconds(), 0.0)
        if outcome.retry_after is not None:
            seconds = max(_MIN_BACKOFF, outcome.retry_after)
        elif outcome.is_unavailable:
            seconds = min(max(_MIN_BACKOFF, outage), _MAX_BACKOFF)
        else:
            return _Delay(_DEFAULT_RETRY_AFTER, waits_here=False)
        return _Delay(seconds, waits_here=outage + seconds <= _MAX_WAIT)

    def _wait_for_rate(self, early: RateLimitedLocallyError, waited: float) -> float:
        """Wait until the connection's rate allows a request, and return the seconds; raise if that takes too long."""
        lead = LOOKAHEAD if self.connection.rate else timedelta(0)
        ahead = max((early.until - self.now() - lead).total_seconds(), 0.0)
        if waited + ahead > _MAX_WAIT:
            raise early
        self._wait(ahead)
        return ahead

    def _wait(self, seconds: float) -> None:
        """Wait, but stop waiting if the pool stops."""
        (self.sleep or self.stopping.wait)(seconds)


def _raise_most_severe(round_: list[Future[None]]) -> None:
    """Raise the most severe error of some threads, and log the others."""
    errors = [error for future in round_ if (error := future.exception()) is not None]
    if not errors:
        return
    most_severe = min(errors, key=_rank)
    for error in errors:
        if error is not most_severe:
            _log.warning("another request met this at the same time: %s", error)
    raise most_severe


def _rank(error: BaseException) -> tuple[int, float]:
    if isinstance(error, NotYetError):
        return 3, error.until.timestamp()
    if isinstance(error, RetryableError):
        return 2, 0.0
    return int(isinstance(error, SendoffError)), 0.0


def worker_name() -> str:
    """Name this worker in the ledger: host, process and thread."""
    return f"{socket.gethostname()}/{os.getpid()}/{threading.get_ident()}"
