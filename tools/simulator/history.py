"""One history: a seed draws its actors and its faults, plays them, and exports everything that happened as events."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from datetime import timedelta
from functools import lru_cache, partial
from pathlib import Path
from typing import Any

import pyarrow as pa
import requests

from sendoff.audience import Audience, Segment, with_template_values
from sendoff.audience.identifiers import Identifiers, from_bytes, integers
from sendoff.audience.template_values import TemplateValues
from sendoff.campaign import Campaign, CampaignFolder, Period, launch_key
from sendoff.dispatch import ServiceConnection, control, send_launch
from sendoff.dispatch.worker import LEASE
from sendoff.errors import ConflictError, GateError, NobodyLeftError, NotYetError, SendoffError
from sendoff.launch.verdict_audience import read_already_sent
from sendoff.ledger import LaunchSource, Ledger, NewLaunch
from sendoff.postbacks import aggregate, continue_erasures, reconcile_launch, request_erasure
from sendoff.service import Client
from sendoff.service.credentials import ClientSecret
from sendoff.service.tokens import TokenSource
from sendoff.states import Resolution
from tools.simulator.contents import tables_naming
from tools.simulator.machine import BEGIN, Disk, Machine, Process
from tools.simulator.scheduler import Choices, EndlessError, Scheduler
from tools.simulator.world import SERVICE, SIGNER, Habits, Receiver, Service, opt_out

PERIOD = Period(BEGIN - timedelta(days=1), BEGIN)
CAMPAIGNS = {launch_key("service", name, PERIOD): name for name in ("spring", "summer")}  # by launch
SPRING = next(iter(CAMPAIGNS))
AGAIN = launch_key("service", "spring", PERIOD, 1)  # spring again, only to those who got nothing
REFUSED = 60  # percent of the requests of a wave
FIRST = 700_001  # the identifier of the first recipient

_FAULTS = ("crash", "reply lost", "ledger fails", "pause", "clock jump", "ledger clock jump")
_LONGEST = 600.0  # seconds that a person looks for a doubt
_TARGETINGS = ("query", "broadcast", "saved_segments")
_MOST_CALLS = 8  # of a worker, before it gives up and leaves the rest to the end


@dataclass(frozen=True, slots=True)
class Outcome:
    """What one history left: its events, and the choices that differ from the default."""

    events: list[dict[str, Any]]
    taken: Mapping[str, Any]

    def lines(self) -> str:
        """Return the events as JSON lines."""
        return "".join(f"{json.dumps(event, sort_keys=True)}\n" for event in self.events)


def play(seed: int, disk: Disk, given: Mapping[str, Any] | None = None) -> Outcome:
    """Play the history of a seed, or the one with these choices."""
    choices = Choices(seed, given)
    history = _History(choices, disk)
    disk.clean()
    history.run()
    return Outcome(history.machine.events, choices.taken)


class _History:
    def __init__(self, choices: Choices, disk: Disk) -> None:
        self.choices = pick = choices
        switching = pick.pick("switching", (0.0, 0.1, 0.3, 0.8), (1, 2, 3, 2))
        slowness = pick.pick("slowness", (0.0, 0.002, 0.02), (2, 3, 2))
        often = pick.pick("faults", (0.0, 0.004, 0.015), (1, 2, 1))
        faults = {name: often for name in _FAULTS if often and pick.chance(f"fault {name}", 0.5)}
        self.scheduler = Scheduler(choices, switching, slowness)
        self.machine = Machine(self.scheduler, disk, faults)
        habits = Habits(
            failing=pick.pick("failing", (0.0, 0.25, 0.6), (1, 2, 1)),
            late=pick.pick("late", (0.0, 0.2, 0.6), (3, 1, 1)),
            delivered=pick.pick("delivered", (0.0, 0.3, 0.8), (2, 3, 1)),
            opened=pick.pick("opened", (0.0, 0.15, 0.5), (2, 3, 1)),
            repeated=pick.pick("repeated", (0.0, 0.2)),
            odd=pick.pick("odd", (0.0, 0.15), (3, 1)),
        )
        self.launches = list(CAMPAIGNS)[: pick.pick("launches", (1, 2))]
        self.is_resent = pick.pick("resend", (False, True), (3, 1))
        self.steered = [*self.launches, AGAIN] if self.is_resent else self.launches
        on_doubt = pick.pick("on doubt", ("hold", "resend"))
        has_waves = pick.chance("waves", 0.25)
        failures = pick.pick("failures", (3, 1), (3, 1))
        self.campaigns: dict[str, Campaign] = {}  # by launch
        for launch in self.launches:
            name, targeting = CAMPAIGNS[launch], "query"
            # A broadcast cannot be sent again to those who got nothing, because no one knows these people.
            if launch != SPRING or not self.is_resent:
                targeting = pick.pick(f"targeting of {name}", _TARGETINGS, (19, 3, 1))
            has_template = targeting == "query" and pick.chance(f"template of {name}", 0.15)
            self.campaigns[launch] = _campaign(targeting, has_template, on_doubt, has_waves, failures)
        self.campaigns[AGAIN] = self.campaigns[SPRING]
        self.size = pick.pick("segment size", (1, 2, 3))
        self.people = pick.pick("recipients", (2, 3, 4, 6, 8), (1, 1, 2, 2, 1))
        self.last_wave = 2 if has_waves else 1
        self.at_once = pick.pick("requests at once", (1, 2), (2, 1))
        self.rate = pick.pick("requests per second", (None, 2.0, 0.1), (4, 1, 1))
        self.receivers: list[Receiver] = []
        users = range(FIRST, FIRST + self.people)
        self.service = Service(self.machine, habits, self.receivers, [*users])

    def run(self) -> None:
        """Play until all actors have ended, then without faults until everything is done, and export the end."""
        resends = {AGAIN: SPRING} if self.is_resent else {}
        self.machine.record(
            "begin",
            launches=[*self.launches, *resends],
            resends=resends,
            on_doubt=self.campaigns[SPRING].on_doubt,
            lease=LEASE.total_seconds(),
            refused=REFUSED,
        )
        try:
            self._spawn_actors()
            self.scheduler.run()
            self.choices.is_quiet = True
            self.scheduler.spawn("the end", self._finish)
            self.scheduler.run()
        except EndlessError as error:
            self.machine.record("endless", why=str(error))
        for process in self.machine.processes:
            process.is_alive = False
            process.slot.roll_back()
            self.scheduler.kill(process)
        self.scheduler.kill(None)

    def _spawn_actors(self) -> None:
        pick = self.choices
        for number in range(pick.pick("receivers", (1, 2), (2, 1))):
            self.receivers.append(Receiver(self.machine, number + 1))
        workers = 0
        for launch in self.steered:
            for extra in range(pick.pick("workers", (1, 2, 3), (1, 3, 1))):
                send = partial(self._send, launch=launch, extra=extra)
                self._start(f"worker {workers + 1}", send, pick.pick(f"start {workers}", (0.0, 1.0, 60.0)))
                workers += 1
        for number in range(pick.pick("aggregations", (0, 1, 2), (2, 2, 1))):
            self._start(f"aggregation {number + 1}", self._add_up, pick.pick(f"aggregate {number}", _TIMES))
        for number in range(pick.pick("reports", (0, 1), (2, 1))):
            report = partial(self._report, launch=pick.pick(f"launch of report {number}", self.launches))
            self._start(f"report {number + 1}", report, pick.pick(f"report {number}", _TIMES))
        for number in range(pick.pick("decisions", (0, 1, 2, 3), (2, 2, 1, 1))):
            act = pick.pick(f"decision {number}", _ACTS)
            act = pick.pick(f"decision {number} about all", (act, *_ABOUT_ALL), (6, 1, 1))
            launch = pick.pick(f"launch of decision {number}", self.steered)
            decide = partial(self._decide, launch=launch, act=act)
            self._start(f"person {number + 1}", decide, pick.pick(f"decide {number}", _TIMES), restarts=0)
        for person in self._chosen("opt-outs", (0, 1, 2), (3, 2, 1)):
            launch = pick.pick(f"launch of {person}", self.launches)
            is_widened = pick.chance(f"all messages to {person}", 0.5)
            leave = partial(opt_out, self.machine, self.receivers, launch, person, is_widened=is_widened)
            self.scheduler.spawn(f"recipient {person}", leave, delay=pick.pick(f"opt out {person}", _TIMES))
        for number, person in enumerate(self._chosen("erasures", (0, 1), (4, 1))):
            erase = partial(self._erase, person=person)
            self._start(f"clerk {number}", erase, pick.pick(f"erase {person}", _TIMES))

    def _chosen(self, name: str, counts: tuple[int, ...], weights: tuple[float, ...]) -> set[int]:
        number = self.choices.pick(name, counts, weights)
        return {FIRST + self.choices.pick(f"{name} {each}", range(self.people)) for each in range(number)}

    def _start(
        self, name: str, work: Callable[[Process], object], delay: float, *, restarts: int = 2
    ) -> None:
        """Start a process after a delay, and again some time after each crash."""
        starts = 0

        def start() -> None:
            nonlocal starts
            starts += 1
            process = self.machine.start(f"{name}.{starts}", restart)
            process.clock_ahead = timedelta(
                seconds=self.choices.pick(f"clock of {name}", _CLOCKS, _CLOCK_WEIGHTS)
            )

            def run() -> None:
                try:
                    work(process)
                except SendoffError as error:
                    self.machine.record("error", of=process.name, kind=type(error).__name__)
                except Exception as error:  # the checker judges it
                    self.machine.record(
                        "unexpected", of=process.name, kind=type(error).__name__, text=str(error)[:300]
                    )
                self.machine.end(process)

            dead.append(process)
            process.spawn("", run)

        def restart() -> None:
            process = dead[-1]

            def again() -> None:
                self.machine.end(process)
                if starts <= restarts:
                    start()

            self.scheduler.spawn(
                f"{name} again", again, delay=self.choices.pick(f"restart {name}", _RESTARTS)
            )

        dead: list[Process] = []
        self.scheduler.spawn(f"{name} starts", start, delay=delay)

    def _connection(self, process: Process) -> ServiceConnection:
        session = requests.Session()
        session.trust_env = False
        session.adapters.clear()
        session.mount("https://", self.service)
        credentials = ClientSecret("sendoff", "secret")
        tokens = TokenSource(credentials, SERVICE, session, clock=process.now)
        client = Client(SERVICE, session, tokens, clock=process.now)
        return ServiceConnection(client, SIGNER, rate=self.rate, requests_at_once=self.at_once)

    def _freeze(self, process: Process, launch: str, extra: int) -> None:
        """Freeze a launch, with other recipients than other workers would."""
        ledger, campaign = process.ledger, self.campaigns[launch]
        folder = CampaignFolder("spring", campaign, None, Path())
        while True:
            erased, seen = ledger.erasures.people(), None
            sources: list[LaunchSource] = []
            people = integers(range(FIRST, FIRST + self.people + extra))
            people -= erased.among("device_id", people)
            if launch == AGAIN:
                if ledger.launches.find(launch):
                    return
                seen, now = ledger.launches.count("service"), process.now()
                asked = Audience("device_id", people, len(people), {}, {})
                sent, sources = read_already_sent(ledger, folder, asked, PERIOD, but=launch, now=now)
                people -= sent
                if not len(people):
                    raise NobodyLeftError
            # Someone may be erased while the launch is planned.
            self.scheduler.sleep(
                self.choices.pick(f"time before {process.name} freezes", (0.0, 60.0, 600.0), (9, 1, 1))
            )
            parts = list(people.slices(self.size))
            last = len(parts) if self.last_wave > 1 else 0
            segments = [Segment(part, wave=1 + (number == last)) for number, part in enumerate(parts, 1)]
            own = _own_values(people) if campaign.template else None
            audience = Audience("device_id", people, len(people), {}, {}, template_values=own)
            is_chosen = campaign.targeting.kind != "query"  # by the service
            now = process.now()
            new = NewLaunch(
                launch, "service", CAMPAIGNS.get(launch, "spring"), PERIOD, int(launch == AGAIN),
                campaign.model_dump_json(), None if is_chosen else audience,
                [Segment(None)] if is_chosen else with_template_values(segments, audience), now,
                sends_at=now, known_erasures=erased.version, known_launches=seen, sources=sources,
            )  # fmt: skip
            try:
                ledger.launches.freeze(new)
            except ConflictError:
                continue
            return

    def _send(
        self, process: Process, launch: str, extra: int = 0, connection: ServiceConnection | None = None
    ) -> None:
        for _ in range(_MOST_CALLS):
            try:
                if connection is None:
                    self._freeze(process, launch, extra)
                    connection = self._connection(process)
                send_launch(
                    process.ledger, launch, connection,
                    worker=process.name, now=process.now, sleep=self.scheduler.sleep,
                )  # fmt: skip
            except NotYetError as early:
                ahead = (early.until - process.now()).total_seconds()
                self.scheduler.sleep(min(max(ahead, 1.0), 2_000.0))
            except GateError:
                self.scheduler.sleep(300.0)
            except SendoffError:
                self.scheduler.sleep(20.0)
            else:
                return

    def _add_up(self, process: Process) -> None:
        for _ in range(2):
            try:
                aggregate(process.ledger, now=process.now())
            except SendoffError:
                self.scheduler.sleep(5.0)
            self.scheduler.sleep(120.0)

    def _report(self, process: Process, launch: str) -> None:
        figures = reconcile_launch(process.ledger, launch, now=process.now())
        self.machine.record(
            "report",
            launch=launch,
            verdicts=dict(figures.verdicts),
            erased=figures.erased,
            audience=figures.audience,
        )

    def _decide(self, process: Process, launch: str, act: str) -> None:
        ledger, who, now = process.ledger, process.name, process.now()
        facts: dict[str, Any] = {"launch": None if act in _ABOUT_ALL else launch, "who": who, "kind": act}
        if act in _RESOLUTIONS:
            pause = 90.0
            while not (doubts := control.doubts(ledger, launch, now=now)):
                if self.scheduler.now > _LONGEST:
                    return
                self.scheduler.sleep(pause)
                pause *= 2
            facts["dispatch"] = self.choices.pick(f"doubt of {who}", doubts).dispatch_key
        asked = self.machine.record("decision", **facts)
        done: bool | None
        try:
            if act in _RESOLUTIONS:
                control.resolve(ledger, facts["dispatch"], _RESOLUTIONS[act], who, "simulated", now=now)
            else:
                _CONTROLS[act](ledger, launch, who, "simulated", now=now)
            done = True
        except GateError:
            done = False
        except SendoffError:
            done = None
        self.machine.record("decision answer", of=asked, done=done, **facts)

    def _erase(self, process: Process, person: int) -> None:
        answered = False
        if self.choices.chance(f"report with {person}", 0.3):  # whose verdicts name the person
            with suppress(SendoffError):
                self._report(process, self.choices.pick(f"launch with {person}", self.launches))
        for _ in range(_MOST_CALLS):
            try:
                if not answered:
                    asked = self.machine.record("erasure", person=person, who=process.name)
                    request_erasure(
                        process.ledger, [person], identified_by="device_id", who=process.name,
                        reason="simulated", now=process.now(),
                    )  # fmt: skip
                    self.machine.record("erasure answer", of=asked, person=person, who=process.name)
                    answered = True
                continue_erasures(process.ledger, now=process.now())
            except SendoffError:
                self.scheduler.sleep(10.0)
            else:
                return

    def _finish(self) -> None:
        """Do what people and schedules do sooner or later, without any fault, and export what the ledger has then."""
        scheduler, machine = self.scheduler, self.machine
        machine.record("quiet")
        machine.ledger_ahead = timedelta(hours=2)  # every lease has ended
        process = machine.start("worker 1.end")

        def work() -> None:
            for launch in self.launches:
                self._send_rest(process, launch)
            if self.is_resent:
                try:
                    self._send_rest(process, AGAIN)
                    self.launches.append(AGAIN)
                except NobodyLeftError:
                    asked = [*range(FIRST, FIRST + self.people)]
                    machine.record("not launched", launch=AGAIN, people=asked)
            continue_erasures(process.ledger, now=process.now())
            aggregate(process.ledger, now=process.now())  # this takes out late post-backs of erased people
            self._record_remains()
            for launch in self.launches:
                self._report(process, launch)
            for launch in self.launches:
                self._export(process.ledger, launch)
            self._record_remains()

        task = process.spawn("", work)
        scheduler.wait(lambda: task.is_done)
        if task.error is not None:
            machine.record(
                "unexpected", of=process.name, kind=type(task.error).__name__, text=str(task.error)[:300]
            )

    def _send_rest(self, process: Process, launch: str) -> None:
        """Release a launch and send what is left of it, until nothing holds it any more."""
        self._freeze(process, launch, 0)
        connection = self._connection(process)
        self._try(process, launch, "resumed_all")
        self._try(process, launch, "resumed")
        self._try(process, launch, "released")
        for _ in range(3):
            self._send(process, launch, connection=connection)
            self.scheduler.wait(
                lambda: not any("post-back" in task.name for task in self.scheduler.tasks), 10_000
            )
            if not self._try(process, launch, "released"):
                return

    def _try(self, process: Process, launch: str, act: str) -> bool:
        """Decide something, and return whether it was possible."""
        try:
            _CONTROLS[act](process.ledger, launch, "the end", "simulated", now=process.now())
        except GateError:
            return False
        return True

    def _export(self, ledger: Ledger, launch: str) -> None:
        record = partial(self.machine.record, launch=launch)
        record("doubts", dispatches=sorted(doubt.dispatch_key for doubt in ledger.doubts.open(launch)))
        with self.machine.disk.raw() as db:
            for name, query in _EXPORTS.items():
                record(name, rows=[list(row) for row in db.execute(query, {"launch": launch})])
            for verdict, blob in db.execute(_VERDICTS, {"launch": launch}):
                record("verdict", verdict=verdict, people=list(map(int, from_bytes("integer", blob))))

    def _record_remains(self) -> None:
        """Record where erased people are still named. A later report would hide that old ones still name them."""
        erased = {event["person"] for event in self.machine.events if event["event"] == "erasure answer"}
        with self.machine.disk.raw() as db:
            for person in sorted(erased):
                self.machine.record("remains", person=person, tables=tables_naming(db, person))


_TIMES = (1.0, 0.0, 10.0, 45.0, 130.0, 400.0, 1_000.0)
_RESTARTS = (10.0, 1.0, 120.0, 400.0)
_CLOCKS = (0.0, 20.0, -20.0, 600.0, -600.0)
_CLOCK_WEIGHTS = (6.0, 1.0, 1.0, 1.0, 1.0)
_CONTROLS: Mapping[str, Callable[..., None]] = {
    "paused": control.pause,
    "resumed": control.resume,
    "stopped": control.stop,
    "released": control.release,
    "paused_all": lambda ledger, _, who, why, now: control.pause_all(ledger, who, why, now=now),
    "resumed_all": lambda ledger, _, who, why, now: control.resume_all(ledger, who, why),  # noqa: ARG005
}
_RESOLUTIONS = {
    "resend_dispatch": Resolution.RESEND,
    "write_off_dispatch": Resolution.WRITE_OFF,
}
_ACTS = (
    "paused",
    "resumed",
    "released",
    "resend_dispatch",
    "write_off_dispatch",
    "resend_dispatch",
    "stopped",
)
_ABOUT_ALL = ("paused_all", "resumed_all")
_EXPORTS = {
    "states": "SELECT dispatch_key, state, attempt FROM dispatches WHERE launch_key = :launch ORDER BY segment",
    "totals": "SELECT dispatch_key, deliveries, opens FROM dispatch_totals JOIN dispatches USING (dispatch_key)"
    " WHERE dispatches.launch_key = :launch ORDER BY dispatch_key",
    "audit": "SELECT kind || CASE WHEN detail ->> 'scope' > '' THEN '_all' ELSE '' END, who, detail ->> 'dispatch'"
    " FROM decisions"
    " WHERE coalesce(launch_key, :launch) = :launch ORDER BY id",
    "launch": "SELECT state FROM launches WHERE launch_key = :launch",
    "suppressed": "SELECT identifier FROM suppressions WHERE removed_at IS NULL ORDER BY identifier",
}
_VERDICTS = "SELECT verdict, identifiers FROM verdicts WHERE launch_key = :launch"


@lru_cache(maxsize=64)
def _campaign(targeting: str, has_template: bool, on_doubt: str, has_waves: bool, failures: int) -> Campaign:
    gates: dict[str, Any] = {"failures": {"refused": failures, "in_doubt": failures}}
    if has_waves and targeting == "query":
        gates["rollout"] = {"shares": [50], "wait": {"length": 1, "unit": "minutes"}, "refused": REFUSED}
    template = {"id": 4_711, "channels": ["email"], "columns": ["own"]}
    email = {"from_address": 1, "subject": "Hello", "text": "It is spring"}
    return Campaign.model_validate(
        {
            "title": "Spring",
            "connection": "service",
            "targeting": {"kind": targeting} | ({"ids": [1]} if targeting == "saved_segments" else {}),
            **({"template": template} if has_template else {"channels": {"email": email}}),
            "on_doubt": on_doubt,
            "gates": gates,
        }
    )


def _own_values(people: Identifiers) -> TemplateValues:
    """Return a value for each recipient's variable: the own identifier, so that the checker can tell them apart."""
    column = people.column()
    field = pa.field("own", pa.large_string(), metadata={"holds": "text"})
    return TemplateValues(column, pa.table([column.cast(pa.large_string())], pa.schema([field])))


def migrated(file: Path) -> Path:
    """Make an empty ledger at a path, and return the path."""
    ledger = Ledger(f"sqlite:///{file}")
    ledger.migrate()
    ledger.close()
    with sqlite3.connect(file) as db:
        db.execute("PRAGMA journal_mode=WAL")
    db.close()
    return file
