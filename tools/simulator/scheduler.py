"""A seeded scheduler: it decides who goes on at every point where actors meet, in virtual time.

Each task runs in a greenlet, so one goes on at a time, and only points of meeting let another go on. Every decision is
a choice with a simple default: the task goes on, nothing fails. A seed and the name of a choice draw it, so a new kind
of choice leaves the others of a seed as they are. Those that differ from the default are noted under their names, which
stay the same if others are left out, so a history can be shrunk.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from hashlib import blake2b
from typing import Any, TypeVar

import greenlet

T = TypeVar("T")

MOST_SWITCHES = 4_000  # of one history; more means that it does not end. Most have about 100, and none 500


class Crash(BaseException):
    """The process of a task died. No product code may stop it: every later point raises it again."""


class EndlessError(Exception):
    """A history does not end."""


class Choices:
    """The choices of one history: drawn by a seed, or only those given, with the default everywhere else."""

    def __init__(self, seed: int, given: Mapping[str, Any] | None = None) -> None:
        self._seed = seed
        self._given = given
        self._counts = Counter[str]()
        self.taken: dict[str, Any] = {}
        self.is_quiet = False  # then everything is as simple as possible

    def pick(self, name: str, options: Sequence[T], weights: Sequence[float] | None = None) -> T:
        """Return one of the options. The first is the default."""
        if self.is_quiet:
            return options[0]
        key = f"{name} {self._counts[name]}"
        self._counts[name] += 1
        if self._given is not None:
            number = self._given.get(key, 0)
            number = number if isinstance(number, int) and number < len(options) else 0
        elif weights is None:
            number = int(self._at(key) * len(options))
        else:
            number = _drawn(self._at(key) * sum(weights), weights)
        if number:
            self.taken[key] = number
        return options[number]

    def chance(self, name: str, probability: float) -> bool:
        """Return whether something unusual happens."""
        return self.pick(name, (False, True), (1 - probability, probability))

    def go_on(self, name: str, tasks: Sequence[Task], weights: Sequence[float]) -> Task:
        """Return the task that goes on after a point of the task ``name``. It is noted by its own name."""
        if self.is_quiet or len(tasks) == 1:
            return tasks[0]
        key = f"{name} -> {self._counts[name]}"
        self._counts[name] += 1
        if self._given is not None:
            wanted = self._given.get(key)
            chosen = next((task for task in tasks if task.name == wanted), tasks[0])
        else:
            chosen = tasks[_drawn(self._at(key) * sum(weights), weights)]
        if chosen is not tasks[0]:
            self.taken[key] = chosen.name
        return chosen

    def _at(self, key: str) -> float:
        """Return a number from 0 to below 1."""
        digest = blake2b(f"{self._seed} {key}".encode(), digest_size=8).digest()
        return (int.from_bytes(digest) >> 11) / 2**53


def _drawn(at: float, weights: Sequence[float]) -> int:
    for number, weight in enumerate(weights):
        at -= weight
        if at < 0:
            return number
    return 0


@dataclass(slots=True, eq=False)
class Task:
    """One thread of a process, or one actor of the world outside."""

    name: str
    owner: Any  # the process that it dies with; None: the world outside
    work: Callable[[], object]
    is_daemon: bool = False  # the history ends without it
    wakes_at: float | None = None
    is_ready: Callable[[], object] | None = None  # None: at once
    is_done: bool = False
    error: BaseException | None = None
    greenlet: Any = field(default=None, repr=False)


class Scheduler:
    """Runs tasks one at a time until all that are no daemons have ended."""

    def __init__(self, choices: Choices, switching: float, slowness: float) -> None:
        self.choices = choices
        self.now = 0.0  # seconds of virtual time
        self.current: Task | None = None
        self.switches = 0
        self._switching, self._slowness = switching, slowness
        self._tasks: list[Task] = []
        self._dead: list[Any] = []
        self._hub = greenlet.getcurrent()

    def spawn(
        self,
        name: str,
        work: Callable[[], object],
        owner: Any = None,
        *,
        delay: float = 0,
        daemon: bool = False,
    ) -> Task:
        """Add a task. It begins after a delay."""
        task = Task(name, owner, work, daemon, wakes_at=self.now + delay if delay else None)
        if delay:
            task.is_ready = _never
        task.greenlet = greenlet.greenlet(lambda: self._run_task(task), self._hub)
        self._tasks.append(task)
        return task

    def run(self) -> None:
        """Run until every task has ended, except daemons. Raise EndlessError if they never do."""
        previous = "start"
        while any(not task.is_daemon for task in self._tasks):
            self.switches += 1
            if self.switches > MOST_SWITCHES:
                raise EndlessError("the history does not end")
            task = self._next(previous)
            previous = task.name
            self._switch_to(task)
            while self._dead:
                self.kill(self._dead.pop())

    def kill(self, owner: Any) -> None:
        """End all tasks of a process, the newest first."""
        for task in [task for task in reversed(self._tasks) if task.owner is owner]:
            if task.greenlet:
                self.current = task
                task.greenlet.throw(Crash)
            task.is_done = True
            if task in self._tasks:
                self._tasks.remove(task)
        self.current = None

    def die(self, owner: Any) -> None:
        """End the process of the current task here and now."""
        self._dead.append(owner)
        self._hub.switch()

    def point(self) -> None:
        """Allow another task to go on here."""
        task = self.current
        if task is None or self.choices.is_quiet or not self._switching:
            return
        if self.choices.chance(f"{task.name} pauses", self._switching):
            self._hub.switch()

    def wait(self, is_ready: Callable[[], object], timeout: float | None = None) -> None:
        """Wait until something is true, or for some seconds of virtual time at most."""
        task = self.current
        assert task is not None
        if is_ready():
            return
        task.is_ready = is_ready
        task.wakes_at = None if timeout is None or timeout == math.inf else self.now + timeout
        self._hub.switch()

    def sleep(self, seconds: float) -> None:
        """Wait for some seconds of virtual time."""
        if self.current is not None and seconds > 0:
            self.wait(_never, seconds)

    def _switch_to(self, task: Task) -> None:
        if task.wakes_at is not None and not (task.is_ready is None or task.is_ready()):
            self.now = max(self.now, task.wakes_at)
        task.wakes_at = task.is_ready = None
        self.current = task
        task.greenlet.switch()
        self.current = None

    def _next(self, previous: str) -> Task:
        ready, sleeper = [], None
        for task in self._tasks:
            if task.is_ready is None or task.is_ready():
                ready.append(task)
            elif task.wakes_at is not None:
                if task.wakes_at <= self.now:
                    ready.append(task)
                elif sleeper is None or task.wakes_at < sleeper.wakes_at:  # type: ignore[operator]
                    sleeper = task
        weights = [1.0] * len(ready)
        if sleeper is not None and (not ready or self._slowness):
            ready.append(sleeper)
            weights.append(self._slowness * len(ready) if weights else 1.0)
        if not ready:
            names = ", ".join(task.name for task in self._tasks)
            raise EndlessError(f"nothing can go on: {names}")
        return self.choices.go_on(previous, ready, weights)

    def _run_task(self, task: Task) -> None:
        try:
            task.work()
        except Crash:
            pass
        except Exception as error:  # it is part of the history
            task.error = error
        finally:
            task.is_done = True
            if task in self._tasks:
                self._tasks.remove(task)

    @property
    def tasks(self) -> Sequence[Task]:
        """The tasks that have not ended."""
        return self._tasks


def _never() -> bool:
    return False
