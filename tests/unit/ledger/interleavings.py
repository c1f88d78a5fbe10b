"""A small explorer of interleavings: it plays every order of the statements of two workers.

Each actor runs in a thread of its own, with its own connections, and stops before each statement and each commit that
another actor can notice. One actor goes on at a time. The explorer replays the steps from the same rows again and
again, depth first, until it has tried every choice.

Most orders differ only in statements that touch no common table, so they lead to the same rows and answers. Sleep sets
(Godefroid, *Partial-Order Methods*) leave all but one of them out. On SQLite, a transaction that writes excludes
other writers and is invisible until its commit, and a transaction that reads sees one state. So actors stop there only
before the lock, the commit, and the first query. No other actor goes on between a lock and its commit, because it would
see the rows of before. On PostgreSQL, an actor can wait for a lock of the other. The server says so, and then the other
goes on. If both actors take the same step, the left one begins, because the other orders mirror these.
"""

from __future__ import annotations

import math
import re
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any
from weakref import WeakKeyDictionary

import psycopg
import sqlalchemy as sa
from sqlalchemy import event

from sendoff.ledger.storage.database import Database
from sendoff.ledger.storage.schema import metadata

_TABLES = frozenset(metadata.tables)
_PARENTS = {
    name: frozenset(key.column.table.name for key in table.foreign_keys)
    for name, table in metadata.tables.items()
}
_WRITTEN = re.compile(r"(?:INSERT INTO|UPDATE|DELETE FROM|LOCK TABLE) (\w+)")
_LOCKED = re.compile(r"FOR (?:UPDATE|SHARE)(?: OF (\w+))?")
_WRITE_LOCK = "the write lock of SQLite"
_SECONDS = 0.002  # until the server is first asked whether an actor waits for a lock; it decides nothing
_LONGEST = 600  # seconds that a step may take before the exploration gives up


@dataclass(frozen=True, slots=True)
class Point:
    """What an actor does next, and the tables that it reads and writes."""

    text: str = field(compare=False)
    reads: frozenset[str] = frozenset()
    writes: frozenset[str] = frozenset()

    @classmethod
    @lru_cache(maxsize=1_000)
    def of(cls, text: str) -> Point:
        """Return the point of a statement. Foreign keys count as reading the other table."""
        named = _TABLES.intersection(re.findall(r"\w+", text))
        written = named.intersection(_WRITTEN.findall(text))
        for alias in _LOCKED.findall(text):  # a locked row counts as written
            written |= named.intersection(re.findall(rf"(\w+) AS {alias}\b", text)) if alias else named
        parents = frozenset[str]().union(*(_PARENTS[name] for name in written))
        if "DELETE FROM" in text:
            parents |= {name for name, its in _PARENTS.items() if its & written}
        return cls(" ".join(text.split())[:100], frozenset(named | parents), frozenset(written))

    def depends_on(self, other: Point) -> bool:
        """Check whether the order of two points can matter."""
        return bool(self.writes & (other.reads | other.writes) or self.reads & other.writes)


class _Abandoned(BaseException):
    """The order equals one that was played, so the rest of the work is left out."""


class Actor:
    """A worker in its own thread that stops before each point."""

    def __init__(self, name: str, database: Database, changed: threading.Condition) -> None:
        self.name, self.database, self._changed = name, database, changed
        self.point: Point | None = None
        self.is_done, self.is_free = True, False
        self.written: dict[Any, set[str]] = {}  # by driver connection: in its current transaction
        self.reading: set[Any] = (
            set()
        )  # on SQLite: the driver connections whose transactions have their state
        self.backend = 0
        self.result: Any = None
        for name in ("commit", "rollback"):
            event.listen(database._engine, name, self._end)
        if database._is_sqlite:
            event.listen(database._engine, "before_cursor_execute", self._before_cursor)
        else:  # some statements go to the driver without SQLAlchemy
            event.listen(database._engine, "connect", self._watch)

    def start(self, work: Callable[[], object]) -> threading.Thread:
        """Begin the work, which stops before its first point."""
        self.point, self.result, self.is_done, self.is_free = None, None, False, False
        self.written, self.reading = {}, set()
        thread = threading.Thread(target=self._work, args=(work,), name=self.name)
        self._thread = thread
        thread.start()
        return thread

    @property
    def holds_write_lock(self) -> bool:
        """Check whether the actor is in a transaction that writes on SQLite."""
        return any(_WRITE_LOCK in written for written in self.written.values())

    def _work(self, work: Callable[[], object]) -> None:
        try:
            self.result = work()
        except (Exception, _Abandoned) as error:
            self.result = error  # a result like others: the checks decide whether it may be one
        with self._changed:
            self.is_done = True
            self._changed.notify_all()

    def _watch(self, connection: psycopg.Connection[Any], _record: Any) -> None:
        _actors[connection] = self
        connection.cursor_factory = _Cursor

    def _before_cursor(self, db: sa.Connection, _cursor: Any, text: str, *_: Any) -> None:
        self._before(db.connection.driver_connection, text)

    def _before(self, connection: Any, text: str) -> None:
        point = Point.of(text)
        written = self.written.setdefault(connection, set())
        if text == "BEGIN":
            written.clear()  # a statement before it was a transaction of its own
        elif text == "BEGIN IMMEDIATE":
            self._stop(Point(text, writes=frozenset({_WRITE_LOCK})))
            written.add(_WRITE_LOCK)
        elif not self.database._is_sqlite:
            self._stop(point)
        elif not self.holds_write_lock and connection not in self.reading and point.reads:
            self._stop(Point(point.text, reads=_TABLES))
            self.reading.add(connection)
        written |= point.writes

    def _end(self, db: sa.Connection) -> None:
        connection = db.connection.driver_connection
        self._stop(Point("the end of the transaction", writes=frozenset(self.written.get(connection, ()))))
        self.written.pop(connection, None)
        self.reading.discard(connection)

    def _stop(self, point: Point) -> None:
        is_watched = threading.current_thread() is getattr(self, "_thread", None) and not self.is_free
        if not is_watched or not (point.reads or point.writes):
            return
        with self._changed:
            self.point = point
            self._changed.notify_all()
            self._changed.wait_for(lambda: self.point is None or self.is_free)
        if self.is_free:
            raise _Abandoned


_actors: WeakKeyDictionary[psycopg.Connection[Any], Actor] = WeakKeyDictionary()


class _Watching:
    """Allow the actor of a connection to stop before each statement."""

    def execute(self, query: Any, *arguments: Any, **how: Any) -> Any:
        self._stop(query)
        return super().execute(query, *arguments, **how)  # type: ignore[misc]

    def executemany(self, query: Any, *arguments: Any, **how: Any) -> Any:
        self._stop(query)
        return super().executemany(query, *arguments, **how)  # type: ignore[misc]

    def _stop(self, query: Any) -> None:
        connection: psycopg.Connection[Any] = self.connection  # type: ignore[attr-defined]
        if (actor := _actors.get(connection)) is not None:
            actor.backend = connection.info.backend_pid
            actor._before(connection, query)


class _Cursor(_Watching, psycopg.Cursor[Any]): ...


class _RawCursor(_Watching, psycopg.RawCursor[Any]): ...


psycopg.RawCursor = _RawCursor  # type: ignore[misc]  # the product makes it by its name


@dataclass(frozen=True, slots=True)
class Step:
    """One step of a history: who did what."""

    actor: str
    point: Point


@dataclass(frozen=True, slots=True)
class History:
    """One order of all points, and what each actor returned or raised."""

    steps: Sequence[Step]
    results: Mapping[str, Any]
    is_deadlocked: bool = False

    def __str__(self) -> str:
        return "\n".join(f"{step.actor:>8} | {step.point.text}" for step in self.steps)


class _Node:
    """A moment of a history: which actors can go on, and which of them were tried."""

    def __init__(
        self, enabled: dict[str, Point], parent: _Node | None, *, is_reduced: bool, left: float
    ) -> None:
        self.enabled = enabled
        self.asleep: dict[str, Point] = {}
        self.last, self.left = "", left  # who went on last, and how often another may go on instead
        if parent is not None:
            is_switch = parent.last in parent.enabled and parent.chosen != parent.last
            self.last, self.left = parent.chosen, parent.left - is_switch
            if is_reduced:
                now = parent.enabled[parent.chosen]
                self.asleep = {
                    name: point for name, point in parent.asleep.items() if not point.depends_on(now)
                }
        must_stay = self.last in enabled and not self.left
        awake = [name for name in enabled if name not in self.asleep and (name == self.last or not must_stay)]
        self.options = sorted(awake, key=lambda name: name != self.last)
        self.chosen = ""
        self.advance()

    def advance(self) -> bool:
        """Choose the next actor that was not tried, and return whether there is one."""
        if self.chosen:
            self.asleep[self.chosen] = self.enabled[self.chosen]
        self.chosen = self.options.pop(0) if self.options else ""
        return bool(self.chosen)


class Explorer:
    """Explores the interleavings of actors over the databases at one URL.

    ``restore`` gets the names of the tables that were written, and puts the rows of the beginning back.
    """

    def __init__(self, databases: Mapping[str, Database], restore: Callable[[set[str]], None]) -> None:
        self._changed = threading.Condition()
        self.actors = {name: Actor(name, database, self._changed) for name, database in databases.items()}
        self._restore, self.written = restore, set(_TABLES)
        first = next(iter(databases.values()))
        self._monitor = None if first._is_sqlite else sa.create_engine(first._engine.url).connect()
        self.abandoned = 0

    def close(self) -> None:
        """Close the connection that asks the server who waits."""
        if self._monitor is not None:
            self._monitor.close()
            self._monitor.engine.dispose()

    def explore(
        self,
        works: Callable[[], Mapping[str, Callable[[], object]]],
        *,
        is_reduced: bool = True,
        switches: float = math.inf,
        is_mirrored: bool = False,
    ) -> Iterator[History]:
        """Yield a history for each order. ``works`` returns the work of each actor, from the first rows on.

        ``is_reduced``: leave out orders that differ only in statements which touch no common table, and play
        transactions that write on SQLite as a whole. ``switches``: how often an actor that could go on has to wait for
        another, at most; orders with more are left out. ``is_mirrored``: the first actor begins.
        """
        self._is_whole = is_reduced
        stack: list[_Node] = []
        while True:
            self._restore(self.written)
            self.written = set()
            history = self._run(works(), stack, is_reduced, switches)
            if history is None:
                self.abandoned += 1
            else:
                yield history
            while stack and not stack[-1].advance():
                stack.pop()
            if not stack or (is_mirrored and len(stack) == 1):
                return

    def _run(
        self,
        works: Mapping[str, Callable[[], object]],
        stack: list[_Node],
        is_reduced: bool,
        switches: float,
    ) -> History | None:
        steps: list[Step] = []
        is_deadlocked = False
        threads = [self.actors[name].start(work) for name, work in works.items()]
        try:
            while True:
                is_deadlocked |= self._settle()
                enabled = self._enabled()
                if not enabled:
                    return History(steps, {name: self.actors[name].result for name in works}, is_deadlocked)
                if len(steps) == len(stack):
                    parent = stack[-1] if stack else None
                    node = _Node(enabled, parent, is_reduced=is_reduced, left=switches)
                    if not node.chosen:
                        return None
                    stack.append(node)
                node = stack[len(steps)]
                assert node.enabled == enabled, "the same choices led to another point"
                self._go(node.chosen, steps)
        finally:
            self._free(threads)

    def _go(self, name: str, steps: list[Step]) -> None:
        actor = self.actors[name]
        assert actor.point is not None
        steps.append(Step(name, actor.point))
        self.written |= actor.point.writes & _TABLES
        with self._changed:
            actor.point = None
            self._changed.notify_all()

    def _enabled(self) -> dict[str, Point]:
        is_locked = any(actor.holds_write_lock for actor in self.actors.values())
        return {
            name: actor.point
            for name, actor in self.actors.items()
            if actor.point is not None
            and not (is_locked and actor.point.text == "BEGIN IMMEDIATE")
            and (actor.holds_write_lock or not (is_locked and self._is_whole))
        }

    def _settle(self) -> bool:
        """Wait until each actor has stopped, ended, or waits for a lock. Return whether all waited in a circle."""
        is_deadlocked = False
        seconds, ends = _SECONDS if self._monitor is not None else _LONGEST, time.monotonic() + _LONGEST
        while time.monotonic() < ends:
            with self._changed:
                self._changed.wait_for(lambda: not self._running(), timeout=seconds)
                running = self._running()
            if not running:
                return is_deadlocked
            seconds = min(2 * seconds, 0.1)  # most of those that run for long are slow, and wait for no one
            if self._monitor is not None and all(map(self._waits, running)):
                if any(actor.point is not None for actor in self.actors.values()):
                    return is_deadlocked
                is_deadlocked = len(running) > 1  # the server ends the circle after a second
        raise AssertionError(f"{[actor.name for actor in self._running()]} did not go on")

    def _running(self) -> list[Actor]:
        return [actor for actor in self.actors.values() if actor.point is None and not actor.is_done]

    def _waits(self, actor: Actor) -> bool:
        assert self._monitor is not None
        blocking = self._monitor.scalar(sa.select(sa.func.pg_blocking_pids(actor.backend))) or []
        self._monitor.rollback()
        return any(other.backend in blocking for other in self.actors.values())

    def _free(self, threads: Sequence[threading.Thread]) -> None:
        """End all actors of an abandoned order, and wait until they have ended."""
        with self._changed:
            for actor in self.actors.values():
                if not actor.is_done and actor.point is None:
                    self.written |= _TABLES  # it waits for a lock, and goes on without a stop
                actor.is_free, actor.point = True, None
            self._changed.notify_all()
        for thread in threads:
            thread.join()
