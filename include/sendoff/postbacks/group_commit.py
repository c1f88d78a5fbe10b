"""Group commit: the post-backs of many requests share one transaction, and each request waits for it.

One thread takes the post-backs that gathered while it was busy, so transactions grow with the load. It numbers
post-backs from 1 in the order of its commits. It repeats a failed transaction until the ledger has taken it. Repeating
a commit that succeeded unnoticed changes nothing, and a number never appears after a higher one.

A ledger that was unavailable may come back as an older copy, which does not know this receiver and may have given its
number to another. So the receiver checks its number first, and gets a new one if necessary.
"""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from functools import partial
from time import monotonic, sleep

from sendoff.errors import LedgerUnavailableError, SendoffError, UnusableLedgerError
from sendoff.ledger import Ledger
from sendoff.service import PostBack
from sendoff.telemetry import metrics
from sendoff.times import utc_now

_log = logging.getLogger(__name__)

Waiting = tuple[PostBack, "asyncio.Future[bool]"]


@dataclass(slots=True)
class ReceiverCounts:
    """Counts since the process started. The committing thread writes the first four, the event loop the others."""

    stored: int = 0
    commits: int = 0
    largest_commit: int = 0
    failed_commits: int = 0
    unreadable: int = 0
    wrong_method: int = 0
    wrong_address: int = 0
    too_large: int = 0
    too_slow: int = 0
    broken_off: int = 0
    in_pieces: int = 0
    unavailable: int = 0
    opted_out: int = 0
    """With repetitions."""
    opt_outs_refused: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """The limits of one receiver process, in bytes, post-backs, and seconds."""

    max_body: int = 16_384
    body_timeout: float = 10.0
    """Seconds for a body to arrive."""
    answer_timeout: float = 10.0
    """Seconds for the ledger to answer before it counts as unavailable."""
    queue_limit: int = 10_000
    """Post-backs that may wait for a transaction."""
    batch_limit: int = 1_000
    """Post-backs in one transaction."""
    gather: float = 0.003
    """Seconds that a transaction waits at most for more post-backs, so that more share its cost."""
    lull: float = 0.0005
    """Seconds without another post-back after which a transaction starts at once, or fewer if they came fast."""
    pause: float = 1.0
    """Seconds between two tries while the ledger is unavailable."""
    idle: float = 10.0
    """Seconds without a post-back before the ledger is checked anyway."""
    log_every: float = 60.0
    """Seconds between two log lines with counts."""


class GroupCommit:
    """Stores post-backs through one thread, many in each transaction."""

    def __init__(
        self, ledger: Ledger, name: str, limits: Limits, clock: Callable[[], datetime] = utc_now
    ) -> None:
        self.counts = ReceiverCounts()
        self.receiver: int | None = None
        self._ledger = ledger
        self._name = name
        self._limits = limits
        self._clock = clock
        self._queue: list[Waiting] = []
        self._in_flight: list[Waiting] = []
        self._lock = threading.Lock()
        self._changed = threading.Condition(self._lock)
        self._available = False
        self._busy_since: float | None = None
        self._stop = threading.Event()
        self._tried = threading.Event()
        self._next_number = 1
        self._registered_at: datetime | None = None
        self._is_known = False
        self._thread = threading.Thread(target=self._run, name="group-commit", daemon=True)

    @property
    def available(self) -> bool:
        """Whether the ledger took the last step it was given and has not been silent since."""
        busy_since = self._busy_since
        answers = busy_since is None or monotonic() - busy_since < self._limits.answer_timeout
        return self._available and answers

    def start(self, patience: float = 5.0) -> None:
        """Start, and wait up to ``patience`` seconds until the ledger answers or fails."""
        self._thread.start()
        self._tried.wait(patience)

    def stop(self, patience: float = 30.0) -> None:
        """Take no more post-backs, commit the queued ones, and end. Those not committed get no 2xx."""
        with self._changed:
            self._stop.set()
            self._changed.notify()
        self._thread.join(patience)

    def submit(self, post_back: PostBack) -> asyncio.Future[bool] | None:
        """Queue a post-back, and return a future with whether it was stored.

        Return None if it was not queued because the ledger is unavailable or the queue is full. Call this in the event
        loop that the future belongs to.
        """
        with self._lock:  # costs a fraction of entering the condition
            if not self.available or self._stop.is_set() or len(self._queue) >= self._limits.queue_limit:
                return None
            stored = asyncio.get_running_loop().create_future()
            self._queue.append((post_back, stored))
            if len(self._queue) == 1:
                self._changed.notify()
            return stored

    def release(self) -> None:
        """Fail all waiting requests if the ledger became silent. Call this in their event loop."""
        if not self.available:
            with self._changed:
                queued, self._queue = self._queue, []
            _resolve(self._in_flight + queued, stored=False)

    def _run(self) -> None:
        try:
            if self._persist(self._register, []):
                self._commit_all()
        finally:
            self._available = False

    def _commit_all(self) -> None:
        while (batch := self._take()) or not self._stop.is_set():
            if not batch:
                self._persist(self._ledger.ping, batch)
                continue
            if self._persist(partial(self._commit, [post_back for post_back, _ in batch]), batch):
                _answer(batch, stored=True)

    def _take(self) -> list[Waiting]:
        """Wait for post-backs and take them. Return none after ``idle`` seconds without any, or once stopped."""
        with self._changed:
            self._changed.wait_for(lambda: self._queue or self._stop.is_set(), self._limits.idle)
        self._gather()
        with self._changed:
            self._in_flight = self._queue[: self._limits.batch_limit]
            del self._queue[: self._limits.batch_limit]
            return self._in_flight

    def _gather(self) -> None:
        """Wait while more post-backs arrive. Then the event loop is less busy, and does not slow down the commit.

        They have stopped coming if none came for four times the mean time between them. The mean of few says little, so
        it includes one whole lull.
        """
        lull, seen, start = self._limits.lull, 0, monotonic()
        while seen < (waiting := len(self._queue)) < self._limits.batch_limit:
            seen, passed = waiting, monotonic() - start
            if passed >= self._limits.gather:
                break
            sleep(min(lull, 4 * (passed + lull) / (waiting + 1)))

    def _persist(self, step: Callable[[], None], batch: list[Waiting]) -> bool:
        """Repeat a step until it succeeds or the process stops. After a failure, no request keeps waiting."""
        while not self._succeeds(step, batch):
            if self._stop.wait(self._limits.pause):
                return False
        return True

    def _succeeds(self, step: Callable[[], None], batch: list[Waiting]) -> bool:
        self._busy_since = monotonic()
        try:
            step()
        except Exception as error:  # nothing may end the thread
            self._give_up(batch, error)
            return False
        else:
            self._recovered()
            return True
        finally:
            self._tried.set()
            self._busy_since = None

    def _register(self) -> None:
        now = self._clock()
        self.receiver = self._ledger.post_backs.register_receiver(self._name, now)
        self._registered_at = now
        self._next_number = 1
        self._is_known = True

    def _known_receiver(self) -> int:
        """Return this receiver's number. If the ledger that came back does not know it, register again."""
        assert self.receiver is not None
        assert self._registered_at is not None
        registered = self._ledger.post_backs.is_registered
        if not self._is_known and not registered(self.receiver, self._name, self._registered_at):
            _log.warning("Receiver %s: the ledger no longer knows it; registering again", self.receiver)
            self._register()
        self._is_known = True
        return self.receiver

    def _commit(self, batch: Sequence[PostBack]) -> None:
        start = monotonic()
        receiver = self._known_receiver()
        numbered = list(enumerate(batch, self._next_number))
        try:
            self._ledger.post_backs.store(receiver, numbered)
        except (LedgerUnavailableError, UnusableLedgerError):
            raise
        except Exception as error:
            _log.error("Storing %d post-backs one by one: the batch failed (%s)", len(numbered), _kind(error))
            self._commit_singly(receiver, numbered)
        self._next_number += len(numbered)
        self.counts.stored += len(numbered)
        self.counts.commits += 1
        self.counts.largest_commit = max(self.counts.largest_commit, len(numbered))
        metrics.commit(len(numbered), monotonic() - start)

    def _commit_singly(self, receiver: int, numbered: Sequence[tuple[int, PostBack]]) -> None:
        """Store each post-back separately. If one cannot be stored, store it without its parsed fields."""
        for number, post_back in numbered:
            try:
                self._ledger.post_backs.store(receiver, [(number, post_back)])
            except (LedgerUnavailableError, UnusableLedgerError):
                raise
            except Exception:
                self._ledger.post_backs.store(receiver, [(number, replace(post_back, fields=None))])

    def _give_up(self, batch: list[Waiting], error: Exception) -> None:
        self._is_known = False
        with self._changed:
            was_available, self._available = self._available, False
            queued, self._queue = self._queue, []
        self.counts.failed_commits += 1
        if was_available or not self._tried.is_set():
            _log.error("The ledger is unavailable (%s); answering 503 until it is back", _kind(error))
        _answer(batch + queued, stored=False)

    def _recovered(self) -> None:
        if not self._available:
            with self._changed:
                self._available = True
            _log.info("Receiver %s: the ledger is available", self.receiver)


def _answer(batch: list[Waiting], *, stored: bool) -> None:
    """Send the result to all waiting requests, with one call into their event loop."""
    if batch:
        batch[0][1].get_loop().call_soon_threadsafe(partial(_resolve, batch, stored=stored))


def _resolve(batch: list[Waiting], *, stored: bool) -> None:
    for _, future in batch:
        if not future.done():  # the client may have disconnected
            future.set_result(stored)


def _kind(error: Exception) -> str:
    if isinstance(error, SendoffError):
        return str(error)
    return type(error).__name__  # the text of a database error may quote what was stored
