"""The environment of a scenario: the service, a ledger with its receiver, and workers that always carry on."""

from __future__ import annotations

import random
import signal
import sqlite3
import time
from collections.abc import Collection, Sequence
from contextlib import closing
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any, Self

import requests
import sqlalchemy as sa

from sendoff.campaign import ACCOUNT, Period, topic_scope
from sendoff.demo.processes import Process, Supervisor
from sendoff.ledger import Ledger
from sendoff.ledger.requests.dispatch_queries import Dispatch
from sendoff.ledger.storage.schema import dispatches, rate_limits
from sendoff.service import OptOut, OptOutSigner
from sendoff.service.postbacks import PostBackSigner
from sendoff.states import DispatchState
from tools.chaos.processes import (
    PLATFORMS,
    SECRET,
    ChaosError,
    Cluster,
    Service,
    receiver,
)
from tools.chaos.workers import (
    AGAIN,
    DECIDED_AFTER,
    Job,
    Phase,
    join,
    start_aggregation,
    start_erasure,
    start_worker,
)

DEVICES = 400
ONE_BY_ONE = 1  # one request at a time, so that a line number means the same in every run
_FIRST_DAY = datetime(2026, 1, 1, tzinfo=UTC)
_LONGEST_HISTORY = 300.0  # seconds
_WELL = (0, AGAIN)
_KILLED = -9


@dataclass(frozen=True, slots=True)
class Size:
    """The size of each launch, and how often each scenario is played."""

    people: int
    segment_size: int
    is_short: bool

    def times(self, short: int, long: int) -> int:
        """Return one of the two numbers."""
        return short if self.is_short else long


SHORT = Size(people=60, segment_size=6, is_short=True)
LONG = Size(people=240, segment_size=20, is_short=False)


@dataclass
class Backend:
    """A ledger, its receiver, and its PostgreSQL if it is a private one."""

    url: str
    ledger: Ledger
    address: str
    receiver: Process
    cluster: Cluster | None = None

    @classmethod
    def opened(cls, supervisor: Supervisor, url: str, cluster: Cluster | None = None) -> Self:
        """Migrate the ledger and start the receiver."""
        ledger = Ledger(url)
        ledger.migrate()
        address, process = receiver(supervisor, url)
        return cls(url, ledger, address, process, cluster)

    def close(self) -> None:
        """Close the ledger and end the receiver."""
        self.ledger.close()
        self.receiver.end()


@dataclass
class Result:
    """The result of one row: its launches, and the number of killed processes."""

    backend: Backend
    launches: list[str] = field(default_factory=list)
    killed: int = 0
    faults: int = 0
    unfinished: int = 0
    opt_outs: dict[str, dict[int, datetime]] = field(default_factory=dict)
    """By launch: the devices whose opt-out was answered 200, and when, by the clock of the launch's workers."""
    opens: dict[str, dict[int, datetime]] = field(default_factory=dict)
    """The same for opens of an earlier message, by the launch that must leave out who opened it."""
    erased: set[int] = field(default_factory=set)  # devices that were erased from the ledger


class Environment:
    """Plays the launches of one row, one after the other, each for another day."""

    _days = 0

    def __init__(
        self,
        service: Service,
        backend: Backend,
        folder: Path,
        size: Size,
        points: dict[tuple[str, str | None], int],
        seed: str,
    ) -> None:
        self.service = service
        self.backend = backend
        self.size = size
        self.chance = random.Random(seed)  # noqa: S311  # not for secrets
        self.result = Result(backend)
        self._folder = folder
        self._points = points

    def job(self, **changes: Any) -> Job:
        """Return the job of one worker for a new launch."""
        day = _FIRST_DAY + timedelta(days=Environment._days)
        Environment._days += 1
        job = Job(
            ledger_url=self.backend.url,
            service=self.service.address,
            client_id=self.service.client_id,
            client_secret=self.service.client_secret,
            receiver=self.backend.address,
            warehouse=f"sqlite:///{self._folder / 'warehouse.db'}",
            period=Period(day, day + timedelta(days=1)),
            people=self.size.people,
            segment_size=self.size.segment_size,
        )
        job = replace(job, **changes)
        self.result.launches.append(job.key)
        return job

    def lines(self, phase: Phase, mutant: str | None = None) -> int:
        """Return the number of lines of a phase: two dispatches in sequence, one freeze, or one aggregation."""
        if (phase, mutant) not in self._points:
            self._points[phase, mutant] = self._measured(phase, mutant)
        return self._points[phase, mutant]

    def points(self, phase: Phase, count: int | None, mutant: str | None = None) -> list[int]:
        """Return all lines of a phase, or ``count`` of them, evenly spread."""
        last = self.lines(phase, mutant)
        if count is None or count >= last:
            return list(range(1, last + 1))
        return sorted({1 + round(place * (last - 1) / max(1, count - 1)) for place in range(count)})

    def run(self, *jobs: Job) -> None:
        """Run workers at the same time until they end or die, and then others until the launch is complete."""
        self.join(self.start(*jobs))
        self.carry_on(jobs[0])

    def take_turn(self, *jobs: Job) -> None:
        """Run workers at the same time until they end or die, and let time pass."""
        self.join(self.start(*jobs))
        self.let_time_pass(jobs[0])

    def kill_at(self, job: Job, phase: Phase, lines: Sequence[int]) -> None:
        """Run a worker for each of some lines of a phase, at which it dies, and let time pass."""
        self.take_turn(*(replace(job, dies_in=phase, dies_at=line) for line in lines))

    def carry_on(self, job: Job) -> None:
        """Run two workers again and again until nothing is planned or in flight.

        Leases and waits end before each pair, so that dead workers are noticed and no worker waits.
        """
        deadline = time.monotonic() + _LONGEST_HISTORY
        fresh = replace(job, dies_at=None)
        while not self.is_made(job):
            if time.monotonic() > deadline:
                self.result.unfinished += 1
                return
            self.let_time_pass(job)
            self.join(self.start(fresh, fresh))

    def let_time_pass(self, job: Job) -> None:
        """End the leases of a launch and the waits that the service asked for, as if five minutes had passed.

        No worker may be sending meanwhile. The database judges leases by its own clock, which the tests cannot move.
        """
        over = datetime.now(UTC) - timedelta(seconds=1)
        in_flight = sa.update(dispatches).where(
            dispatches.c.launch_key == job.key, dispatches.c.state == DispatchState.IN_FLIGHT
        )
        with self.backend.ledger._database.write() as db:
            db.execute(in_flight.values(lease_until=over))
            db.execute(sa.update(rate_limits).values(next_at=over))

    def start(self, *jobs: Job) -> list[BaseProcess]:
        """Start workers, and do not wait for them."""
        return [start_worker(job) for job in jobs]

    def join(self, processes: Sequence[BaseProcess]) -> None:
        """Wait until started processes have ended."""
        for code in join(processes, _LONGEST_HISTORY):
            if code == _KILLED:
                self.result.killed += 1
            elif code not in _WELL:
                raise ChaosError(f"a worker ended with exit code {code}; see its output above")

    def aggregate(self, job: Job, run: int = 1_000) -> None:
        """Aggregate in a separate process, which may die."""
        self.join([start_aggregation(job, run)])

    def erase(self, job: Job, devices: Collection[int]) -> None:
        """Erase devices in a separate process, which may die. Another one must continue then."""
        self.result.erased.update(devices)
        self.join([start_erasure(job, sorted(devices))])

    def aggregate_earlier(self, job: Job) -> None:
        """Aggregate the post-backs of earlier launches with the correct protocol, so that this one's are next."""
        self.service.wait_until_quiet()
        self.aggregate(replace(job, dies_at=None, mutant=None))

    def recipients(self, job: Job, count: int) -> list[int]:
        """Return some recipients of a launch, drawn by chance."""
        return self.chance.sample(sorted(map(int, self.backend.ledger.launches.audience(job.key))), count)

    def kill(self, process: Process, how: signal.Signals = signal.SIGKILL) -> None:
        """Kill a process."""
        process.end(how)
        self.result.killed += 1

    def complain(self, job: Job, devices: Sequence[int]) -> None:
        """Suppress recipients for a launch's topic by a source that the next worker replaces."""
        self.backend.ledger.suppressions.add(job.complaints, devices, datetime.now(UTC))

    def opt_out(self, job: Job, device: int) -> None:
        """Opt out of a launch's topic, and remember when it was answered 200.

        Devices with an odd number press the second button: they opt out of all messages too.
        """
        opt_out = OptOut(job.key, topic_scope(job.topic), "device_id", str(device))
        address = OptOutSigner(self.backend.address, [SECRET]).sign(opt_out)
        try:
            wider = {"scope": ACCOUNT} if device % 2 else {}
            answer = requests.post(address, data={"List-Unsubscribe": "One-Click", **wider}, timeout=60)
        except requests.ConnectionError:  # the receiver is down
            return
        if answer.status_code == 200:
            self.result.opt_outs.setdefault(job.key, {})[device] = datetime.now(UTC) + job.ahead

    def send_test_share(self, job: Job) -> None:
        """Send the variants of a launch to its test share."""
        self.join(self.start(replace(job, dies_at=None)))

    def has_sent_rest(self, job: Job) -> bool:
        """Check whether a request to the rest of a launch, after its test share, was accepted."""
        queries = self.backend.ledger.dispatch_queries
        tested = queries.variants(job.key)
        rest = [each for each in queries.of_launch(job.key) if each.segment not in tested]
        return any(each.state == DispatchState.ACCEPTED for each in rest)

    def open_variant(self, job: Job, variant: str) -> None:
        """Post an open of everyone in the test share who got a variant."""
        queries = self.backend.ledger.dispatch_queries
        variants = queries.variants(job.key)
        for dispatch, devices in queries.segments(job.key):
            if variants.get(dispatch.segment) == variant:
                for device in map(int, devices):
                    self._post_open(dispatch, device, datetime.now(UTC)).raise_for_status()

    def open_at_hours(self, job: Job, hours: Sequence[datetime]) -> None:
        """Post an open of everyone in a launch, each at one of these hours, in turn."""
        for dispatch, devices in self.backend.ledger.dispatch_queries.segments(job.key):
            for number, device in enumerate(sorted(map(int, devices))):
                at = hours[number % len(hours)] + timedelta(minutes=number % 60)
                self._post_open(dispatch, device, at).raise_for_status()

    def following(self, source: Job, **changes: Any) -> Job:
        """Return the job of one worker for a launch that needs the opens of another launch."""
        start = source.period.start + timedelta(hours=1)  # another period with the same end
        job = replace(source, period=Period(start, source.period.end), **changes)
        self.result.launches.append(job.key)
        return job

    def resent(self, job: Job, number: int) -> Job:
        """Return the job of one worker that sends the period of a launch again, to those who got nothing."""
        job = replace(job, resend=number)
        self.result.launches.append(job.key)
        return job

    def open(self, job: Job, source: Job, device: int) -> None:
        """Open the message of a reminder's source, and remember when the post-back was answered 2xx."""
        segments = self.backend.ledger.dispatch_queries.segments(source.key)
        dispatch = next(dispatch for dispatch, people in segments if device in people)
        try:
            answer = self._post_open(dispatch, device, datetime.now(UTC))
        except requests.ConnectionError:  # the receiver is down
            return
        if answer.ok:
            self.result.opens.setdefault(job.key, {})[device] = datetime.now(UTC) + job.ahead

    def _post_open(self, dispatch: Dispatch, device: int, at: datetime) -> requests.Response:
        address = PostBackSigner(self.backend.address, [SECRET]).sign("open", dispatch.dispatch_key)
        campaign = {"id": dispatch.campaign_id}
        body = {"time": int(at.timestamp()), "device": {"id": device}, "campaign": campaign}
        return requests.post(address, json=body, timeout=60)

    def is_made(self, job: Job) -> bool:
        """Check whether every request of a launch is made."""
        states = self.backend.ledger.dispatch_queries.states(job.key)
        return bool(states) and not states.keys() & {DispatchState.PLANNED, DispatchState.IN_FLIGHT}

    def pending(self) -> int:
        """Return how many post-backs of this ledger are not aggregated yet."""
        return sum(newest - aggregated for _, aggregated, newest in self.backend.ledger.post_backs.pending())

    def pause(self, longest: float) -> None:
        """Wait for a random time."""
        time.sleep(self.chance.uniform(0, longest))

    def wait_until_begun(self, job: Job) -> None:
        """Wait until some requests of a launch were sent."""
        key = job.key
        self.service.supervisor.wait_until(
            lambda: set(self.backend.ledger.dispatch_queries.states(key)) > {DispatchState.PLANNED},
            "a launch has begun",
            every=0.05,
        )

    def _measured(self, phase: Phase, mutant: str | None) -> int:
        lines_file = self._folder / f"{phase}.lines"
        segment = self.size.segment_size
        people = {
            "freeze": self.size.people,
            "send": 2 * segment,
            "decide": self.size.people,
            "aggregate": 5 * segment,  # a single segment may have no post-back at all
            "erase": segment,
        }
        job = self.job(
            people=people[phase],
            mutant=mutant,
            dies_in=phase,
            dies_at=0,
            lines_to=str(lines_file),
            requests_at_once=ONE_BY_ONE,
            decides=phase == "decide",
        )
        if phase == "decide":
            self.send_test_share(job)
            job = replace(job, ahead=2 * DECIDED_AFTER)
        if phase == "aggregate":  # without earlier post-backs
            self.aggregate_earlier(job)
        self.run(job)
        if phase == "aggregate":
            self.service.wait_until_quiet()
            if not self.pending():
                raise ChaosError(
                    "there is no post-back to aggregate, so the lines of the phase cannot be counted"
                )
            self.aggregate(job)
        if phase == "erase":
            self.service.wait_until_quiet()
            self.aggregate(replace(job, dies_at=None))
            self.erase(job, self.recipients(job, 2))
        lines = int(lines_file.read_text())
        if not lines:
            raise ChaosError(f"the phase {phase} ran no line")
        return lines


def make_warehouse(folder: Path) -> None:
    """Write the devices that the campaign's query selects from."""
    rows = [(n, PLATFORMS[n % len(PLATFORMS)]) for n in range(1, DEVICES + 1)]
    with closing(sqlite3.connect(folder / "warehouse.db")) as db, db:
        db.execute("CREATE TABLE devices (device_id INTEGER, platform TEXT)")
        db.executemany("INSERT INTO devices VALUES (?, ?)", rows)
