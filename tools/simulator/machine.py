"""The machines of a history: processes with clocks of their own, and the SQLite database that they share.

The product's code runs unchanged. Its driver's connections stop at each point where processes can notice each other:
before a transaction takes the write lock or its snapshot, before its commit, and after it. What SQLite does inside a
transaction, no one else sees. Threads, timers and event loops of the product become tasks of the scheduler: the names
of the standard library in its modules are replaced here.
"""

from __future__ import annotations

import asyncio
import json
import logging
import re
import sqlite3
from asyncio import events
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future
from contextlib import nullcontext
from datetime import UTC, datetime, timedelta
from functools import lru_cache
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from weakref import WeakKeyDictionary

import sqlalchemy as sa
from sqlalchemy import event
from sqlalchemy.util import LRUCache

import sendoff.dispatch.pace
import sendoff.dispatch.worker
import sendoff.ledger.ledger
import sendoff.ledger.post_backs.post_backs
import sendoff.ledger.storage.database
import sendoff.ledger.suppression.suppressions
import sendoff.postbacks.erasure
import sendoff.postbacks.group_commit
import sendoff.postbacks.opt_out
import sendoff.postbacks.reading
from sendoff.audience.identifiers import from_bytes
from sendoff.ledger import Ledger
from sendoff.ledger.storage.database import Database
from sendoff.ledger.storage.schema import metadata
from sendoff.postbacks import aggregation
from sendoff.settings import load_settings
from tools.simulator.scheduler import Crash, Scheduler, Task

BEGIN = datetime(2026, 3, 2, 9, tzinfo=UTC)
SECRET = "a secret of the simulator, which is long enough"  # noqa: S105 (of no real system)

_OBSERVED = {"attempts", "outcomes", "withheld", "decisions", "segments", "dispatches"}
_INSERT = re.compile(r"INSERT INTO (\w+) \(([^)]*)\)")
_current: Machine | None = None


class _Statements(LRUCache[Any, Any]):
    """Compiled statements for the engines of all processes, which differ in nothing else.

    A statement that exists once in a module always has the same object as its key. It is found by its identity, because
    hashing a key takes long.
    """

    _most = 3_000

    def __init__(self) -> None:
        super().__init__(5_000)
        self._known: dict[
            tuple[Any, ...], tuple[Any, Any]
        ] = {}  # the key comes along, so that it keeps its identity

    def get(self, key: Any, default: Any = None) -> Any:
        place = id(key[1]), *key[2:]
        if (known := self._known.get(place)) is not None:
            return known[1]
        compiled = super().get(key[1:], default)
        if compiled is not None:
            if len(self._known) == self._most:
                self._known.clear()
            self._known[place] = key[1], compiled
        return compiled

    def __setitem__(self, key: Any, value: Any) -> None:
        super().__setitem__(key[1:], value)


_compiled = _Statements()
_types: WeakKeyDictionary[Any, Any] = WeakKeyDictionary()


class Process:
    """One process of the product, with a clock of its own and a ledger of its own."""

    def __init__(self, machine: Machine, name: str, slot: Slot) -> None:
        self.machine, self.name, self.slot = machine, name, slot
        self.clock_ahead = timedelta(0)
        self.is_alive = True
        self.restart: Callable[[], None] | None = None
        self.ledger = machine.disk.ledger(slot)

    def now(self) -> datetime:
        """Return the time by the clock of this process."""
        return BEGIN + timedelta(seconds=self.machine.scheduler.now) + self.clock_ahead

    def spawn(self, name: str, work: Callable[[], object], *, daemon: bool = False) -> Task:
        """Start a thread of the process."""
        return self.machine.scheduler.spawn(f"{self.name} {name}".strip(), work, self, daemon=daemon)


class _Transactions(sa.Connection):
    """Begins a transaction without the work that SQLAlchemy does for every statement, which is most of it."""

    def exec_driver_sql(self, statement: str, *arguments: Any, **options: Any) -> Any:
        """Execute a statement."""
        if not statement.startswith("BEGIN"):
            return super().exec_driver_sql(statement, *arguments, **options)
        connection: Any = self.connection
        try:
            return connection.cursor().execute(statement)
        except sqlite3.Error as error:
            self._handle_dbapi_exception(error, statement, None, None, None)


class _Kept:
    """A connection that its process keeps, in place of a pool: each of its transactions ends before it comes back."""

    is_valid = True

    def __init__(self, slot: Slot, checked_out: Any) -> None:
        self._slot, self.checked_out = slot, checked_out
        driver = self.dbapi_connection = checked_out.dbapi_connection
        self.cursor, self.commit, self.rollback = driver.cursor, driver.commit, driver.rollback

    def __getattr__(self, name: str) -> Any:
        return getattr(self.checked_out, name)

    def close(self, **_: Any) -> None:
        """Keep the connection for the next transaction."""
        if self in self._slot.out:
            self._slot.out.remove(self)
            self._slot.free.append(self.checked_out)

    _close_special = close


class Slot:
    """The connections of one process. The next process uses them again, because opening them takes long."""

    def __init__(self, url: str) -> None:
        self.database = Database(url)
        self.connections: list[Connection] = []
        self.free: list[Any] = []
        self.out: set[_Kept] = set()
        self.is_used = False
        engine: Any = self.database._engine
        event.listen(engine, "do_connect", self._connect)
        event.listen(engine, "connect", _write_without_waiting)
        engine._connection_cls = _Transactions
        engine._compiled_cache = _compiled
        engine.dialect._type_memos = _types
        self._check_out, engine.raw_connection = engine.raw_connection, self._connection
        engine.pool._max_overflow = -1  # connections of dead threads come back at the end of a history

    def _connect(self, _dialect: Any, _record: Any, arguments: Any, options: Any) -> Connection:
        options = {**options, "cached_statements": 2_000}
        connection = sqlite3.connect(*arguments, factory=Connection, **options)
        self.connections.append(connection)
        connection.create_function("strftime", 3, _ledger_time)
        return connection

    def _connection(self) -> _Kept:
        """Return the connection that was used last, which has statements and pages at hand."""
        kept = _Kept(self, self.free.pop() if self.free else self._check_out())
        self.out.add(kept)
        return kept

    def take_back(self) -> None:
        """Take back the connections of all threads, which have ended."""
        self.roll_back()
        self.free += [each.checked_out for each in self.out if each.dbapi_connection.is_open]
        self.out.clear()
        self.is_used = False

    def roll_back(self) -> None:
        """Do to open transactions what the end of a process does."""
        self.connections = [each for each in self.connections if each.is_open]  # a crash may have closed some
        for connection in self.connections:
            connection.lose()

    def close(self) -> None:
        """Close the connections."""
        for connection in self.connections:
            connection.close()
        self.database.close()


def _write_without_waiting(connection: Any, _record: Any) -> None:
    """Do not wait for a disk: the simulator's processes die, and the machine goes on."""
    connection.execute("PRAGMA synchronous=OFF").close()


class Disk:
    """The ledger's file and the connections to it, for many histories one after the other."""

    def __init__(self, file: Path) -> None:
        self._url = f"sqlite:///{file}"
        self._slots: list[Slot] = []
        self._cleaner = sqlite3.connect(file, isolation_level=None)
        self._cleaner.execute("PRAGMA synchronous=OFF")
        self._tables = [table.name for table in metadata.sorted_tables]

    def slot(self) -> Slot:
        """Return connections that no process uses."""
        slot = next((slot for slot in self._slots if not slot.is_used), None)
        if slot is None:
            self._slots.append(slot := Slot(self._url))
        slot.is_used = True
        return slot

    def ledger(self, slot: Slot) -> Ledger:
        """Return a ledger that has read nothing yet, over connections that are open already."""
        module: Any = sendoff.ledger.ledger
        original, module.Database = module.Database, lambda _: slot.database
        try:
            return Ledger(self._url, erasure_secret=SECRET)
        finally:
            module.Database = original

    def raw(self) -> Any:
        """Return a connection of the simulator itself, for a with statement."""
        return nullcontext(self._cleaner)

    def clean(self) -> None:
        """Empty all tables."""
        for slot in self._slots:
            slot.take_back()
        self._cleaner.execute("BEGIN IMMEDIATE")
        for table in self._tables:
            self._cleaner.execute(f"DELETE FROM {table}")  # noqa: S608 (names of our tables)
        self._cleaner.execute("INSERT INTO erasure_state (id, version) VALUES (1, 0)")
        self._cleaner.execute("COMMIT")

    def close(self) -> None:
        """Close all connections."""
        self._cleaner.close()
        for slot in self._slots:
            slot.close()


class Machine:
    """Everything that the processes of one history share: the scheduler, the disk, and the record of events."""

    def __init__(self, scheduler: Scheduler, disk: Disk, faults: dict[str, float]) -> None:
        global _current  # noqa: PLW0603 (one history at a time)
        _current = self
        self.scheduler, self.disk = scheduler, disk
        self._faults, self._weights = ("", *faults), (1 - sum(faults.values()), *faults.values())
        self.ledger_ahead = timedelta(0)
        self.writer: Connection | None = None
        self.events: list[dict[str, Any]] = []
        self.processes: list[Process] = []
        self.tokens = 0

    @property
    def ledger_clock(self) -> float:
        """Seconds since the beginning, by the ledger's clock."""
        return self.scheduler.now + self.ledger_ahead.total_seconds()

    def record(self, what: str, **facts: Any) -> int:
        """Append an event, and return its number."""
        number = len(self.events)
        self.events.append({"n": number, "at": round(self.scheduler.now, 3), "event": what, **facts})
        return number

    def start(self, name: str, restart: Callable[[], None] | None = None) -> Process:
        """Start a process. ``restart``: called if it crashes."""
        process = Process(self, name, self.disk.slot())
        process.restart = restart
        self.processes.append(process)
        return process

    def end(self, process: Process) -> None:
        """End a process: its threads, its open transactions, and everything in its memory."""
        process.is_alive = False
        process.slot.roll_back()
        process.slot.is_used = False
        self.processes.remove(process)

    def crash(self, process: Process) -> None:
        """Kill the process of the current task."""
        self.record("crash", process=process.name)
        process.is_alive = False
        process.slot.roll_back()
        if process.restart is not None:
            process.restart()
        self.scheduler.die(process)

    def meet(self, where: str) -> str:
        """Allow others to go on at a point of the current task. Return a fault that the caller must carry out."""
        task = self.scheduler.current
        if task is None:
            return ""
        process = task.owner
        if process is not None and not process.is_alive:
            raise Crash
        self.scheduler.point()
        if process is None or self.scheduler.choices.is_quiet or not self._faults[1:]:
            return ""
        fault = self.scheduler.choices.pick(f"{task.name} {where}", self._faults, self._weights)
        if fault == "crash":
            self.crash(process)
        elif fault == "clock jump":
            self._jump(task.name, process)
            return ""
        elif fault == "ledger clock jump":
            seconds = self.scheduler.choices.pick(f"{task.name} jump", _JUMPS)
            self.ledger_ahead += timedelta(seconds=abs(seconds))
            self.record("clock", of="ledger", ahead=self.ledger_ahead.total_seconds())
            return ""
        return fault

    def _jump(self, name: str, process: Process) -> None:
        process.clock_ahead += timedelta(seconds=self.scheduler.choices.pick(f"{name} jump", _JUMPS))
        self.record("clock", of=process.name, ahead=process.clock_ahead.total_seconds())


_JUMPS = (1.0, -1.0, 40.0, -40.0, 400.0, -400.0)


class Connection(sqlite3.Connection):
    """A driver connection that meets others at the start and the end of its transactions."""

    is_open = True
    rows: list[tuple[str, dict[str, Any]]] = []  # noqa: RUF012 (replaced at each transaction)
    began, began_at = 0, 0.0

    def cursor(self, factory: Any = None) -> Any:
        """Return a cursor that stops at points of meeting."""
        return super().cursor(factory or Cursor)

    def begin(self, text: str) -> None:
        """Meet others before a transaction begins."""
        machine = _current
        if machine is None or machine.scheduler.current is None:
            return
        fault = machine.meet(text.lower())
        if fault == "pause":  # longer than a lease, as of a machine that is suspended
            machine.record(
                "fault", of=machine.scheduler.current.name, fault="the process stops for 400 seconds"
            )
            machine.scheduler.sleep(400.0)
        if fault == "ledger fails":
            machine.record("fault", of=machine.scheduler.current.name, fault="the ledger does not answer")
            raise sqlite3.OperationalError("the simulator let this transaction fail")
        self.rows = []
        if text == "BEGIN IMMEDIATE":
            machine.scheduler.wait(lambda: machine.writer is None)
            machine.writer = self
            self.began, self.began_at = len(machine.events), machine.ledger_clock

    def commit(self) -> None:
        """Commit, and meet others before and after it."""
        machine = _current
        if machine is None or machine.writer is not self:
            super().commit()
            return
        task = machine.scheduler.current
        fault = machine.meet("commit")
        if fault == "ledger fails":
            self.rollback()
        else:
            super().commit()
            machine.writer = None
            for table, row in self.rows:
                ledger = [self.began_at, machine.ledger_clock]
                machine.record(table, by=task.name if task else "", began=self.began, ledger=ledger, **row)
            self.rows = []
        if fault in ("ledger fails", "reply lost"):
            what = "the ledger rolls back" if fault == "ledger fails" else "the reply to a commit is lost"
            machine.record("fault", of=task.name if task else "", fault=what)
            raise sqlite3.OperationalError("the simulator lost the reply to this commit")
        machine.meet("committed")

    def rollback(self) -> None:
        """Roll back."""
        super().rollback()
        if _current is not None and _current.writer is self:
            _current.writer = None
        self.rows = []

    def lose(self) -> None:
        """Roll back because the process died."""
        if self.in_transaction:
            super().rollback()
        if _current is not None and _current.writer is self:
            _current.writer = None
        self.rows = []

    def close(self) -> None:
        """Close."""
        self.is_open = False
        super().close()


class Cursor(sqlite3.Cursor):
    """A cursor that stops before a transaction, and notes the rows that tell what the product did."""

    def execute(self, text: str, parameters: Any = ()) -> Any:
        """Execute a statement."""
        if text.startswith("BEGIN"):
            self.connection.begin(text)  # type: ignore[attr-defined]
        elif text.startswith("INSERT"):
            self._note(text, [parameters])
        elif text == "COMMIT":
            self.connection.commit()
            return self
        return super().execute(text, parameters)

    def executemany(self, text: str, parameters: Iterable[Any]) -> Any:
        """Execute a statement for several rows."""
        rows = list(parameters)
        if text.startswith("INSERT"):
            self._note(text, rows)
        return super().executemany(text, rows)

    def _note(self, text: str, rows: list[Any]) -> None:
        table, columns = _columns(text)
        if table in _OBSERVED:
            for row in rows:
                self.connection.rows.append((table, _shown(table, dict(zip(columns, row, strict=False)))))  # type: ignore[attr-defined]


@lru_cache(maxsize=1_000)
def _columns(text: str) -> tuple[str, tuple[str, ...]]:
    found = _INSERT.match(text)
    return (found[1], tuple(each.strip() for each in found[2].split(","))) if found else ("", ())


def _shown(table: str, row: dict[str, Any]) -> dict[str, Any]:
    """Return the facts of a row that decide something."""
    if table == "attempts":
        return {"dispatch": row["dispatch_key"], "attempt": row["number"]}
    if table == "outcomes":
        return {"dispatch": row["dispatch_key"], "attempt": row["attempt"], "kind": str(row["kind"])}
    if table == "withheld":
        people = [int(each) for each in from_bytes("integer", bytes(row["identifiers"]))]
        return {"dispatch": row["dispatch_key"], "attempt": row["attempt"], "people": people}
    if table == "segments":
        blob = row["identifiers"]  # None if the service chooses the recipients
        frozen = None if blob is None else [int(each) for each in from_bytes("integer", bytes(blob))]
        return {"launch": row["launch_key"], "segment": row["number"], "people": frozen}
    if table == "dispatches":
        return {
            "launch": row["launch_key"],
            "dispatch": row["dispatch_key"],
            "segment": row["segment"],
            "wave": row["wave"],
        }
    detail = row["detail"]
    detail = (json.loads(detail) if isinstance(detail, str) else detail) or {}
    return {
        "launch": row["launch_key"],
        "kind": f"{row['kind']}_all" if "scope" in detail else str(row["kind"]),
        "who": row["who"],
        "dispatch": detail.get("dispatch"),
        "judged": detail.get("wave"),
    }


def _ledger_time(form: str, when: str, change: str) -> str:
    """Return what SQLite's strftime returns, by the ledger's clock of the history."""
    assert _current is not None
    assert (form, when) == ("%Y-%m-%d %H:%M:%f", "now")
    ahead = timedelta(seconds=_current.scheduler.now + float(change.removesuffix(" seconds")))
    return (BEGIN + _current.ledger_ahead + ahead).strftime("%Y-%m-%d %H:%M:%S.%f")[:-3]


def _scheduler() -> Scheduler:
    assert _current is not None
    return _current.scheduler


def _sleep(seconds: float) -> None:
    _scheduler().sleep(seconds)


def _monotonic() -> float:
    return _scheduler().now if _current is not None else 0.0


class _Lock:
    """A lock that no one waits for, because tasks go on one at a time and stop only at points of meeting."""

    def __init__(self, lock: object = None) -> None: ...

    def __enter__(self) -> None: ...

    def __exit__(self, *_: object) -> None: ...

    def notify(self) -> None:
        """Do nothing: the scheduler asks the condition itself."""

    def wait_for(self, is_ready: Callable[[], object], timeout: float | None = None) -> object:
        """Wait until a condition holds."""
        _scheduler().wait(is_ready, timeout)
        return is_ready()


class _Event:
    def __init__(self) -> None:
        self._is_set = False

    def set(self) -> None:
        self._is_set = True

    def is_set(self) -> bool:
        return self._is_set

    def wait(self, timeout: float | None = None) -> bool:
        _scheduler().wait(self.is_set, timeout)
        return self._is_set


class _Thread:
    def __init__(self, target: Callable[[], object], name: str, *, daemon: bool) -> None:
        self._target, self._name, self._is_daemon = target, name, daemon
        self._task: Task | None = None

    def start(self) -> None:
        task = _scheduler().current
        assert task is not None
        self._task = task.owner.spawn(self._name, self._target, daemon=self._is_daemon)

    def join(self, timeout: float | None = None) -> None:
        _scheduler().wait(lambda: self._task is None or self._task.is_done, timeout)


class _Executor:
    """A pool of threads whose work begins at once, as tasks."""

    def __init__(self, _threads: int, prefix: str) -> None:
        self._prefix = prefix
        self._tasks: list[Task] = []

    def submit(self, work: Callable[..., Any], *arguments: Any) -> Future[Any]:
        future: Future[Any] = Future()
        task = _scheduler().current
        assert task is not None

        def run() -> None:
            try:
                future.set_result(work(*arguments))
            except Exception as error:  # whoever asks for the result gets it
                future.set_exception(error)

        self._tasks.append(task.owner.spawn(f"{self._prefix} {len(self._tasks) + 1}", run))
        return future

    def __enter__(self) -> _Executor:
        return self

    def __exit__(self, *_: object) -> None:
        _scheduler().wait(lambda: all(task.is_done for task in self._tasks))


def _wait(futures: list[Future[Any]], _timeout: float) -> SimpleNamespace:
    _scheduler().wait(lambda: all(future.done() for future in futures))
    return SimpleNamespace(not_done=())


class Loop(asyncio.BaseEventLoop):
    """An event loop of asyncio in virtual time. It waits as a task of the scheduler."""

    def __init__(self) -> None:
        super().__init__()
        self._selector = self
        self._clock_resolution = 1e-6
        self._is_woken = False

    def time(self) -> float:
        """Return the virtual time."""
        return _monotonic()

    def select(self, timeout: float | None) -> list[Any]:
        """Wait until another task wakes the loop, or a timer ends."""
        if timeout is None or timeout > 0:
            events._set_running_loop(None)
            _scheduler().wait(lambda: self._is_woken, timeout)
            events._set_running_loop(self)
        self._is_woken = False
        return []

    def _process_events(self, _events: list[Any]) -> None: ...

    def _write_to_self(self) -> None:
        self._is_woken = True


def replace_names() -> None:
    """Put the virtual clock, sleep and threads into the product's modules, in place of the standard library's."""
    logging.disable(logging.CRITICAL)
    worker: Any = sendoff.dispatch.worker
    worker.ThreadPoolExecutor, worker.wait = _Executor, _wait
    worker.secrets = SimpleNamespace(token_hex=lambda _: _token())
    lists: Any = sendoff.ledger.suppression.suppressions
    lists.secrets = worker.secrets
    storage: Any = sendoff.ledger.storage.database
    storage.sleep, storage.monotonic = _sleep, _monotonic
    commit: Any = sendoff.postbacks.group_commit
    commit.sleep, commit.monotonic = _sleep, _monotonic
    commit.threading = SimpleNamespace(Lock=_Lock, Condition=_Lock, Event=_Event, Thread=_Thread)
    pace: Any = sendoff.dispatch.pace
    pace.time = SimpleNamespace(monotonic=_monotonic)
    reading: Any = sendoff.postbacks.reading
    reading.monotonic = _monotonic
    opt_out: Any = sendoff.postbacks.opt_out
    opt_out.ThreadPoolExecutor = _Executor
    reading_ahead: Any = sendoff.ledger.post_backs.post_backs
    reading_ahead.ahead = _in_turn
    settings = load_settings(["machine_open_seconds", "erasure_log"])
    erasing: Any = sendoff.postbacks.erasure
    reader: Any = aggregation
    reader.load_settings = erasing.load_settings = lambda _: settings


def _in_turn(batches: Iterable[Any]) -> Iterator[Any]:
    """Read batches when they are wanted, in place of a thread that reads ahead."""
    yield from batches


def _token() -> str:
    """Return a name that no other worker has, and that the same history has again."""
    assert _current is not None
    _current.tokens += 1
    return f"{_current.tokens:08x}"
