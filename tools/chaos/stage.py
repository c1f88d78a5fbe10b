"""Where histories play: the service, a ledger with its receiver, and workers that carry on whatever happens."""

from __future__ import annotations

import random
import signal
import sqlite3
import time
from collections.abc import Collection
from contextlib import closing
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any, Self

import sqlalchemy as sa

from sendoff.ledger import Ledger
from sendoff.ledger.schema import dispatches
from sendoff.period import Period, launch_key
from sendoff.service.postbacks import Addresses
from tools.chaos.processes import (
    PLATFORMS,
    SECRET,
    ChaosError,
    Cluster,
    Server,
    Service,
    receiver,
    wait_until,
)
from tools.chaos.workers import AGAIN, Job, Step, join, start_fold, start_worker

DEVICES = 400
ONE_BY_ONE = 1  # request at a time: then a line is the same in every run
_FIRST_DAY = datetime(2026, 1, 1, tzinfo=UTC)
_LONGEST_HISTORY = 300.0  # seconds
_WELL = (0, AGAIN)
_KILLED = -9


@dataclass(frozen=True, slots=True)
class Size:
    """How large each launch is, and how often each history is played."""

    people: int
    segment_size: int
    is_short: bool

    def times(self, short: int, long: int) -> int:
        """Give one of two numbers."""
        return short if self.is_short else long


SHORT = Size(people=60, segment_size=6, is_short=True)
LONG = Size(people=240, segment_size=20, is_short=False)


@dataclass
class Side:
    """A ledger, the receiver that stores in it, and the PostgreSQL that it lies in, if we own it."""

    url: str
    ledger: Ledger
    address: str
    receiver: Server
    cluster: Cluster | None = None

    @classmethod
    def opened(cls, url: str, folder: Path, cluster: Cluster | None = None) -> Self:
        """Make the tables and start the receiver."""
        ledger = Ledger(url)
        ledger.migrate()
        address, server = receiver(url, folder)
        server.start()
        return cls(url, ledger, address, server, cluster)

    def close(self) -> None:
        """End the receiver."""
        self.ledger.close()
        self.receiver.end()


@dataclass
class Played:
    """What one row has played: its launches, and how many processes were killed on the way."""

    side: Side
    launches: list[str] = field(default_factory=list)
    killed: int = 0
    faults: int = 0
    unfinished: int = 0


class Stage:
    """Plays launches of one row, one after the other; every launch is for another day."""

    _days = 0

    def __init__(
        self, service: Service, side: Side, folder: Path, size: Size, points: dict[str, int], seed: str
    ) -> None:
        self.service = service
        self.side = side
        self.size = size
        self.chance = random.Random(seed)  # noqa: S311  # no secret
        self.played = Played(side)
        self._folder = folder
        self._points = points

    def job(self, **changes: Any) -> Job:
        """Give the work of one worker on a new launch."""
        day = _FIRST_DAY + timedelta(days=Stage._days)
        Stage._days += 1
        job = Job(
            ledger_url=self.side.url,
            service=self.service.address,
            client_id=self.service.client_id,
            client_secret=self.service.client_secret,
            receiver=self.side.address,
            warehouse=f"sqlite:///{self._folder / 'warehouse.db'}",
            period=Period(day, day + timedelta(days=1)),
            people=self.size.people,
            segment_size=self.size.segment_size,
        )
        self.played.launches.append(self.key(job))
        return replace(job, **changes)

    @staticmethod
    def key(job: Job) -> str:
        """Give the key of the launch of a job."""
        folder = job.folder()
        return launch_key(folder.campaign.connection, folder.name, job.period)

    def lines(self, step: Step) -> int:
        """Give how many lines two dispatches one after the other, one freezing or one fold run through."""
        if step not in self._points:
            self._points[step] = self._measured(step)
        return self._points[step]

    def points(self, step: Step, count: int | None) -> list[int]:
        """Give all the lines of a step, or ``count`` of them, spread over it evenly."""
        last = self.lines(step)
        if count is None or count >= last:
            return list(range(1, last + 1))
        return sorted({1 + round(place * (last - 1) / max(1, count - 1)) for place in range(count)})

    def run(self, *jobs: Job) -> None:
        """Run workers at the same time, to their end or death, and then others until the launch is made."""
        self._join([start_worker(job) for job in jobs])
        self.carry_on(jobs[0])

    def carry_on(self, job: Job) -> None:
        """Run two workers again and again until nothing is planned or in flight.

        Before each pair every lease is ended, so that whoever died is noticed.
        """
        key = self.key(job)
        deadline = time.monotonic() + _LONGEST_HISTORY
        fresh = replace(job, dies_at=None)
        while not self._is_made(key):
            if time.monotonic() > deadline:
                self.played.unfinished += 1
                return
            self.end_leases(job)
            self._join([start_worker(fresh), start_worker(fresh)])

    def end_leases(self, job: Job) -> None:
        """End the lease of every request in flight of a launch, as if five minutes had passed; nobody must be sending.

        The ledger's database judges leases by its own clock, which nobody here may move.
        """
        over = datetime.now(UTC) - timedelta(seconds=1)
        in_flight = sa.update(dispatches).where(
            dispatches.c.launch_key == self.key(job), dispatches.c.state == "in_flight"
        )
        engine = sa.create_engine(self.side.url)
        try:
            with engine.begin() as connection:
                connection.execute(in_flight.values(lease_until=over))
        finally:
            engine.dispose()

    def start(self, *jobs: Job) -> list[BaseProcess]:
        """Start workers and go on."""
        return [start_worker(job) for job in jobs]

    def join(self, processes: Collection[BaseProcess]) -> None:
        """Wait until workers that were started have ended."""
        self._join(list(processes))

    def fold(self, job: Job, run: int = 1_000) -> None:
        """Fold in a process of its own, which may die."""
        self._join([start_fold(job, run)])

    def fold_what_came_before(self, job: Job) -> None:
        """Fold the post-backs of every launch before this one, in the right way, so that its own are next."""
        self.wait_until_quiet()
        self.fold(replace(job, dies_at=None, broken=None))

    def kill(self, server: Server, how: signal.Signals = signal.SIGKILL) -> None:
        """Kill a server."""
        server.end(how)
        self.played.killed += 1

    def unfolded(self) -> int:
        """Give how many post-backs of this ledger are not folded yet."""
        return sum(newest - folded for _, folded, newest in self.side.ledger.post_backs.unfolded())

    def wait_until_quiet(self) -> None:
        """Wait until the service has nothing more to post back."""
        self.service.wait_until_quiet()

    def pause(self, longest: float) -> None:
        """Let a moment pass that chance chooses."""
        time.sleep(self.chance.uniform(0, longest))

    def wait_until_begun(self, job: Job) -> None:
        """Wait until something of a launch was sent."""
        key = self.key(job)
        wait_until(lambda: set(self.side.ledger.dispatches.states(key)) > {"planned"}, "a launch has begun")

    def _is_made(self, key: str) -> bool:
        states = self.side.ledger.dispatches.states(key)
        return bool(states) and not states.keys() & {"planned", "in_flight"}

    def _join(self, processes: list[BaseProcess]) -> None:
        for code in join(processes, _LONGEST_HISTORY):
            if code == _KILLED:
                self.played.killed += 1
            elif code not in _WELL:
                raise ChaosError(f"a worker ended with exit code {code}; what it wrote stands above")

    def _measured(self, step: Step) -> int:
        told = self._folder / f"{step}.lines"
        segment = self.size.segment_size
        people = {"freeze": self.size.people, "send": 2 * segment, "fold": segment}
        job = self.job(
            people=people[step], dies_in=step, dies_at=0, lines_to=str(told), requests_at_once=ONE_BY_ONE
        )
        if step == "fold":  # nothing of what came before
            self.fold_what_came_before(job)
        self.run(job)
        if step == "fold":
            self.wait_until_quiet()
            self.fold(job)
        lines = int(told.read_text())
        if not lines:
            raise ChaosError(f"no line of the step {step} was seen")
        return lines


def make_warehouse(folder: Path) -> None:
    """Write the devices that the campaign's query names some of."""
    rows = [(n, PLATFORMS[n % len(PLATFORMS)]) for n in range(1, DEVICES + 1)]
    with closing(sqlite3.connect(folder / "warehouse.db")) as connection, connection:
        connection.execute("CREATE TABLE devices (device_id INTEGER, platform TEXT)")
        connection.executemany("INSERT INTO devices VALUES (?, ?)", rows)


def addresses(side: Side) -> Addresses:
    """Give what signs the addresses of a side's post-backs."""
    return Addresses(side.address, [SECRET])
