"""The dispatch loop: claim the next planned dispatch, send it once, record its outcome.

Several workers may run the loop for one launch at the same time, and again after any crash. The intent is committed
before the request, and the outcome after it. If a worker dies in between, its dispatch goes into doubt when the lease
ends, and is never sent again automatically.

The worker checks the send policy before every request. The policy covers the state of the launch, global pauses, the
connection's rate limit, lateness, the send window of the recipients, and the open waves.

One call sends several requests at once. Each runs on a thread that makes its own claims under a unique name. Decisions
about the launch are made between two rounds, when this call has no request in progress.
"""

from __future__ import annotations

import logging
import os
import re
import secrets
import socket
import threading
import time
from collections import Counter
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor, wait
from dataclasses import asdict, dataclass, field, replace
from datetime import UTC, datetime, timedelta
from typing import NamedTuple

from tenacity import Retrying, retry_if_exception_type, wait_exponential

from sendoff.audience.identifiers import Identifiers
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
from sendoff.service import redacted, shortened, unescaped
from sendoff.states import Accepted, DispatchState, InDoubt, NotProcessed, Outcome, Refused
from sendoff.telemetry import metrics, traces

_log = logging.getLogger(__name__)

LEASE = timedelta(minutes=5)
"""How long a worker may be silent about a dispatch. It is much longer than the client's timeouts."""

_MAX_CLAIM_AGE = LEASE / 10  # a worker that slept longer may have lost its claim, so it sends nothing
_MAX_WAIT = 60.0  # seconds to wait for the service between two dispatches; for longer waits, the caller waits
_DEFAULT_RETRY_AFTER = 30.0  # seconds, if the service limits the rate without a Retry-After
_LOOK_AGAIN = 0.5  # seconds, after two rounds that sent nothing
_SIGNAL_POLL = 0.5  # seconds; only the main thread handles signals, and another may receive one
_MAX_RECORD_ATTEMPTS = 24  # to record an outcome; about one lease in total if each fails at once
_MAX_BACKOFF = 30.0  # seconds between two tries while the service fails without a Retry-After
_MIN_BACKOFF = 1.0  # seconds, even for a Retry-After of 0, because the service's clock may be behind ours
_CLAIM_TOO_OLD = NotProcessed("the claim is too old")
_SHUTTING_DOWN = NotProcessed("the worker was told to stop before it sent the request")


@dataclass(frozen=True, slots=True)
class SendResult:
    """The numbers of dispatches that one call of :func:`send_launch` sent, by outcome."""

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

    Raise NotYetError with the time to call again if it is too early: outside the send window, between two waves, or
    while the launch or its connection is paused. The same applies while the service limits the rate, and while requests
    of dead workers may be in flight and the campaign resends doubts. Raise another RetryableError if the service cannot
    be reached. Both leave the rest planned, and the next call continues at the same dispatch.

    Raise GateError while the launch is held, and another PermanentError if someone must change something first, such as
    a secret. A launch that is too late is stopped. A launch is held if its requests fail too often or a rate
    is above its limit. A refusal or a doubt does not stop the loop; the result and the ledger count it.

    After such an error, requests in progress are finished and recorded, and no other begins. At a daily limit, those
    that are claimed are sent too. If several requests fail, raise the most severe error and log the others: first an
    unexpected error, then PermanentError, then RetryableError, then the earliest NotYetError. An interruption of this
    thread, such as Ctrl-C, also waits until the requests in progress are recorded.

    ``sleep`` replaces waiting, in seconds. ``worker`` is the start of the workers' names in the ledger.
    """
    policy = SendPolicy(ledger, launch_key)
    if expired := ledger.doubts.expire_leases(launch_key, now()):
        _log.warning("launch %s: %d dispatches of dead workers are in doubt", launch_key, expired)
    policy.resend_doubts(now())
    name = f"{worker or worker_name()}/{secrets.token_hex(8)}"  # unique: no one else finds our claims
    with (
        traces.span("dispatch", launch_key) as count,
        ThreadPoolExecutor(connection.requests_at_once, "dispatch") as threads,
    ):
        pool = _WorkerPool(ledger, connection, policy, name, now, sleep, threads)
        try:
            return pool.run()
        except BaseException:  # even for a signal: this thread sends no request, so none is cut off
            pool.finish()
            raise
        finally:
            count(**asdict(pool.result()))


class _Delay(NamedTuple):
    seconds: float  # until the next request
    waits_here: bool  # the worker itself waits


@dataclass(slots=True)
class _WorkerPool:
    """The threads of one call. In the ledger, each is a separate worker."""

    ledger: Ledger
    connection: ServiceConnection
    policy: SendPolicy
    name: str
    now: Callable[[], datetime]
    sleep: Callable[[float], None] | None
    threads: ThreadPoolExecutor
    stopping: threading.Event = field(default_factory=threading.Event)
    _unavailable_since: datetime | None = None
    _waited: float = 0.0  # seconds that threads waited for the rate limit since a request was made
    _waits_until: datetime | None = None
    _done: Counter[str] = field(default_factory=Counter)
    _at_work: int = 0
    _counting: threading.Condition = field(default_factory=threading.Condition)

    @property
    def key(self) -> str:
        return self.policy.launch.launch_key

    def run(self) -> SendResult:
        in_vain = 0  # rounds in a row
        while not self.policy.is_too_late(self.now()):
            self.policy.look_if_due(self.now())
            done = self._done.total()
            self._round()
            in_vain = in_vain + 1 if self._done.total() == done else 0
            try:
                if not self.policy.has_more(self.now()):
                    break
            except RateLimitedLocallyError as early:  # the threads of the next round wait, unless it is long
                if self._seconds_until(early) is None:
                    raise
            if in_vain > 1:  # a long transaction may have locked what is left.
                # Not in an Event: an interruption between two of its lines would leave it locked, and nothing could
                # stop the other threads.
                (self.sleep or time.sleep)(_LOOK_AGAIN)
        return self.result()

    def result(self) -> SendResult:
        return SendResult(**self._done)

    def finish(self) -> None:
        """Begin no further request, and wait until the requests in progress are recorded.

        An executor joins only the threads that it knows, and it registers a thread after starting it. An interruption
        may come in between, when that thread is already working.
        """
        self.stopping.set()
        with self._counting:
            self._counting.wait_for(lambda: self._at_work == 0)

    def _round(self) -> None:
        """Send on several threads until none of them can claim a dispatch."""
        planned = self.ledger.dispatch_queries.states(self.key).get(DispatchState.PLANNED, 0)
        size = min(self.connection.requests_at_once, planned)
        round_ = [self.threads.submit(self._send, f"{self.name}/{place + 1}") for place in range(size)]
        while wait(round_, _SIGNAL_POLL).not_done:
            pass  # between two waits, the main thread handles signals that another thread received
        _raise_most_severe(round_)

    def _send(self, worker: str) -> None:
        """Send one dispatch after the other until none can be claimed or the pool stops."""
        with self._counting:  # before the first check of stopping
            self._at_work += 1
        try:
            claim = self._claim(worker)
            while claim is not None:
                claim = self._send_claim(claim, worker) or self._claim(worker)
        except NotYetError:  # the other threads send what they have claimed, and then meet the same limit
            raise
        except BaseException:
            self.stopping.set()
            raise
        finally:
            with self._counting:
                self._at_work -= 1
                self._counting.notify_all()

    def _claim(self, worker: str) -> Claim | None:
        """Claim a dispatch, and wait for the rate limit if nothing else is in the way. Return None if that is long."""
        is_second = False
        while not self.stopping.is_set():
            moment = self.now()
            try:
                claim = self.ledger.dispatches.claim(
                    self.key,
                    worker=worker,
                    now=moment,
                    lease=LEASE,
                    closed_zones=self.policy.closed_zones(moment),
                    rate=self.connection.rate,
                    limit=self.policy.daily_limit(moment),
                )
                if claim is None:
                    self.policy.check_rate(moment, ready_by=moment + self._lead)
            except RateLimitedLocallyError as early:
                if (seconds := self._seconds_until(early)) is None:
                    return None
                self._wait(seconds)
                # The clock was set back, or stands still.
                if self.now() < moment + timedelta(seconds=seconds / 2):
                    with self._counting:
                        self._waited += seconds
            except LedgerUnavailableError:  # the claim may be committed, and only the reply lost
                if not self._give_back(worker) or is_second:
                    raise
                is_second = True
            else:
                return claim
        return None

    def _give_back(self, worker: str) -> bool:
        """Put back a claim that the worker never learned of. Return False if the ledger does not answer."""
        try:
            is_limited = self.policy.is_limited_daily
            self.ledger.dispatches.give_back(self.key, worker, self.now(), is_limited=is_limited)
        except LedgerUnavailableError:
            return False
        return True

    def _send_claim(self, claim: Claim, worker: str) -> Claim | None:
        """Send the request of a claim and record its outcome. Return the next claim if recording made one."""
        outcome = self._attempt(claim)
        metrics.request(self.policy.launch.connection, outcome.kind)
        following = self._record(claim, outcome, worker)
        _log.info("launch %s segment %d attempt %d: %s", self.key, claim.segment, claim.attempt, outcome.kind)
        if isinstance(outcome, NotProcessed):
            self._back_off(claim, outcome)
            return None
        with self._counting:
            self._done[outcome.kind] += 1
            self._unavailable_since, self._waited = None, 0.0
        if isinstance(outcome, InDoubt):
            self.policy.resend_doubt(claim.dispatch_key, claim.segment, self.now())
        if not isinstance(outcome, Accepted):
            self.policy.hold_if_failing(outcome, self.now())
        if isinstance(outcome, Refused):
            self.policy.rates.look_at_refused(self.now())
        try:
            self.policy.look_if_due(self.now(), has_claim=following is not None)
        except BaseException:
            if following is not None:
                self._record(following, _SHUTTING_DOWN, worker)
            raise
        return following

    def _attempt(self, claim: Claim) -> Outcome:
        """Send the request of a claim, unless the claim is so old that someone may have decided about it."""
        try:
            send = self.connection.build_request(claim, self.policy.campaign, self.policy.launch)
        except PermanentError as error:
            return NotProcessed(str(error), is_permanent=True)
        if claim.not_before and (ahead := (claim.not_before - self.now()).total_seconds()) > 0:
            self._wait(ahead)
        if self.stopping.is_set():
            return _SHUTTING_DOWN
        if self.now() >= claim.claimed_at + _MAX_CLAIM_AGE:
            return _CLAIM_TOO_OLD
        return _without_recipients(send(), claim.content.identifiers)

    def _record(self, claim: Claim, outcome: Outcome, worker: str) -> Claim | None:
        """Record an outcome, and retry while the ledger is unavailable: only this worker knows the outcome.

        Give up when the lease of the claim ends; the dispatch is then in doubt. After an accepted request, return the
        next claim, which the same transaction makes. A connection with a daily limit claims separately: a new sender
        makes few requests.
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
        claims_later = self.policy.is_limited_daily or self.policy.must_follow_sources
        if not isinstance(outcome, Accepted) or claims_later:
            self.ledger.dispatches.record(claim, outcome, moment)
            return None
        return self.ledger.dispatches.record_and_claim(
            claim,
            outcome,
            moment,
            worker=worker,
            lease=LEASE,
            closed_zones=self._closed_zones(moment),
            rate=self.connection.rate,
        )

    def _closed_zones(self, moment: datetime) -> frozenset[str | None]:
        """Return the time zones that must not be claimed from; all of them if the pool stops."""
        return self.policy.zones if self.stopping.is_set() else self.policy.closed_zones(moment)

    def _back_off(self, claim: Claim, outcome: NotProcessed) -> None:
        """Delay all workers of the connection as long as the service needs. Raise if that is too long to wait here.

        While the service issues no token, the delays double, up to a total of half a minute to a minute.
        """
        if outcome is _CLAIM_TOO_OLD or outcome is _SHUTTING_DOWN:  # the service did not answer this
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
            self.stopping.set()
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

    @property
    def _lead(self) -> timedelta:
        """How early a request may be claimed."""
        return LOOKAHEAD if self.connection.rate else timedelta(0)

    def _seconds_until(self, early: RateLimitedLocallyError) -> float | None:
        """Return how long to wait for the rate limit, or None if that is too long to wait here.

        Threads that wait at the same time count once.
        """
        now, end = self.now(), early.until - self._lead
        ahead = max((end - now).total_seconds(), 0.0)
        with self._counting:
            counted_to = max(now, self._waits_until or now)
            more = max((end - counted_to).total_seconds(), 0.0)
            if max(self._waited + more, ahead) > _MAX_WAIT:
                return None
            self._waited, self._waits_until = self._waited + more, max(end, counted_to)
        return ahead

    def _wait(self, seconds: float) -> None:
        """Wait, but not longer than until the pool stops."""
        (self.sleep or self.stopping.wait)(seconds)


def _without_recipients(outcome: Outcome, recipients: Identifiers | None) -> Outcome:
    """Return an outcome without the identifiers of the request's own recipients, which a refusal may quote."""
    if not isinstance(outcome, Refused):
        return outcome
    message, lower = outcome.message, outcome.message.lower()
    # As the message shows them, partly hidden.
    shown = {redacted(text) for each in recipients or () for text in {str(each), unescaped(str(each))}} - {
        "…"
    }
    if quoted := [re.escape(text) for text in shown if text.lower() in lower]:
        longest_first = "|".join(sorted(quoted, key=len, reverse=True))
        message = re.sub(rf"(?<!\w)(?:{longest_first})(?!\w)", "…", message, flags=re.IGNORECASE)
    return replace(outcome, message=shortened(message))


def _raise_most_severe(round_: list[Future[None]]) -> None:
    """Raise the most severe error of the threads, and log the others."""
    errors = [error for future in round_ if (error := future.exception()) is not None]
    if not errors:
        return
    most_severe = min(errors, key=_rank)
    for error in errors:
        if error is not most_severe:
            _log.warning("another request failed at the same time: %s", error)
    raise most_severe


def _rank(error: BaseException) -> tuple[int, float]:
    if isinstance(error, NotYetError):
        return 3, error.until.timestamp()
    if isinstance(error, RetryableError):
        return 2, 0.0
    return int(isinstance(error, SendoffError)), 0.0


def worker_name() -> str:
    """Return the name of this worker in the ledger: host, process, and thread."""
    return f"{socket.gethostname()}/{os.getpid()}/{threading.get_ident()}"
