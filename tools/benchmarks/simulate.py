"""A simulated launch to a billion recipients, to find its first limit and the next ones.

The cost of each step is what ``bench_growth.py`` measures, continued to the size of the launch. Reading and freezing
run in sequence, because no request is sent before a launch is frozen. From then on, requests, the service, receivers
and aggregation run at the same time, until the last post-back is in. The launch is followed in steps of virtual time,
so the same figures give the same result. Nothing is sent.

``--growth FILE`` and ``--receiver FILE`` take the costs from the last line of an earlier run of ``bench_growth.py`` and
``bench_receiver.py``; without them, both are measured. Everything else is an option: ``--devices 100000000
--delivery-share 0.7``. An option for the size of the deployment (``--receivers 6``) replaces the usual deployments with
one. The last line is one JSON object.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field, fields, replace
from datetime import timedelta
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

QUOTA = 10_000.0
"""Messages per second: the default quota of Firebase Cloud Messaging for one project, 600,000 per minute.

firebase.google.com/docs/cloud-messaging/throttling-and-quotas
"""
WIDENED = 2  # limits to widen, one after the other
_MOST = 1 << 10  # times that one limit is doubled


def _chosen(default: float, text: str, source: str) -> Any:
    return field(default=default, metadata={"text": text, "source": source})


@dataclass(frozen=True)
class World:
    """The launch and the behaviour of everything outside, each with its source."""

    devices: int = _chosen(1_000_000_000, "recipients", "the question")
    segment_size: int = _chosen(10_000, "recipients of one request", "a campaign's default")
    latency: float = _chosen(0.2, "seconds until the service answers", "assumed")
    requests_per_second: float = _chosen(0, "that the service takes; 0: unlimited", "document: not shown")
    messages_per_second: float = _chosen(0, "that the service sends; 0: unlimited", "document: not shown")
    delivery_share: float = _chosen(0.9, "deliveries per recipient", "assumed")
    open_share: float = _chosen(0.3, "opens and clicks per recipient", "assumed")
    delivery_half_life: float = _chosen(60, "seconds until half of the deliveries came", "assumed")
    open_half_life: float = _chosen(3_600, "seconds until half of the opens came", "assumed")
    tail: float = _chosen(0.001, "share of the post-backs that is not waited for", "a simplification")
    quiet_for: float = _chosen(900, "seconds without a post-back before the verdicts", "a campaign's default")
    tick: float = _chosen(5, "seconds of virtual time at once", "a simplification")

    def __post_init__(self) -> None:
        if not self.tail and (self.delivery_half_life or self.open_half_life):
            raise ValueError(
                "tail must be above 0: half of the rest comes in each half-life, so the end never comes"
            )

    @property
    def requests(self) -> int:
        """The number of requests."""
        return -(-self.devices // self.segment_size)

    @property
    def post_backs(self) -> float:
        """The number of post-backs."""
        return self.devices * (self.delivery_share + self.open_share)


@dataclass(frozen=True)
class Deployment:
    """The amount of each resource."""

    name: str = "as given"
    workers: int = _chosen(4, "tasks that send: the campaign's parallelism", "")
    requests_at_once: int = _chosen(4, "of each worker", "")
    receivers: int = _chosen(2, "receiver processes", "")
    processors: int = _chosen(8, "for all processes except the ledger's database", "")
    ledger_processors: int = _chosen(4, "of the ledger's database", "")


LAPTOP = Deployment("laptop", 4, 4, receivers=1, processors=2, ledger_processors=2)
COMPOSE = Deployment(
    "compose: two workers, two receivers", 2, 4, receivers=2, processors=6, ledger_processors=2
)
CLUSTER = Deployment("small cluster", 16, 4, receivers=12, processors=32, ledger_processors=16)


@dataclass(frozen=True)
class Costs:
    """Seconds of one process for the whole launch, unless stated otherwise."""

    reading: float
    freezing: float
    sending: float  # claiming, writing and recording all requests, one after the other
    aggregating: float
    reconciling: float
    receivers_per_second: float  # post-backs of one receiver process

    @classmethod
    def of(cls, growth: dict[str, Any], receivers_per_second: float, world: World) -> Costs:
        """Continue measured costs to the size of the launch."""
        steps = [each.name for each in fields(cls) if each.name != "receivers_per_second"]
        found = {step: continued(growth["sizes"], growth[step], world.devices) for step in steps}
        return cls(**found, receivers_per_second=receivers_per_second)


def continued(sizes: Sequence[int], growth: dict[str, Any], size: int) -> float:
    """Return the seconds at a size: by the exponent if it is above 1, otherwise by what one more recipient costs."""
    before, last = (each["seconds"] for each in growth["costs"][-2:])
    if growth["time_exponent"] > 1:
        return float(last * (size / sizes[-1]) ** growth["time_exponent"])
    return float(last + max(0.0, last - before) / (sizes[-1] - sizes[-2]) * (size - sizes[-1]))


@dataclass(frozen=True)
class Result:
    """A simulated launch: seconds since its beginning, post-backs, and the least seconds that each resource needs."""

    frozen: float
    requested: float
    stored: float
    verdicts: float
    most_waiting: float  # post-backs that the service must hold
    longest_wait: float  # seconds until a post-back is stored
    limits: dict[str, float]  # the largest first

    @property
    def first_limit(self) -> str:
        """The resource that would help most if there were more of it."""
        return next(iter(self.limits))


def least(costs: Costs, world: World, deployment: Deployment) -> dict[str, float]:
    """Return the least seconds that each resource needs, however much there is of the others."""
    each_request = world.latency + costs.sending / world.requests
    receiving = world.post_backs / costs.receivers_per_second
    on_processors = sum((costs.reading, costs.freezing, costs.aggregating, costs.reconciling, receiving))
    found = {
        "reading": costs.reading,
        "freezing": costs.freezing,
        "workers": world.requests * each_request / (deployment.workers * deployment.requests_at_once),
        "ledger": costs.sending / deployment.ledger_processors,
        "service": max(
            world.requests / world.requests_per_second if world.requests_per_second else 0.0,
            world.devices / world.messages_per_second if world.messages_per_second else 0.0,
        ),
        "receivers": receiving / deployment.receivers,
        "aggregating": costs.aggregating,
        "reconciling": costs.reconciling,
        "processors": on_processors / deployment.processors,
    }
    return dict(sorted(found.items(), key=lambda each: -each[1]))


def simulate(costs: Costs, world: World, deployment: Deployment) -> Result:
    """Follow a launch from its query to its verdicts."""
    limits = least(costs, world, deployment)
    frozen = now = costs.reading + costs.freezing
    requests = rate(world.devices, max(limits["workers"], limits["ledger"], limits["service"]))
    shared = (world.post_backs / costs.receivers_per_second + costs.aggregating) / deployment.processors
    receive = rate(world.post_backs, max(limits["receivers"], shared))
    aggregate = rate(world.post_backs, max(limits["aggregating"], shared))
    left, to_come = float(world.devices), dict.fromkeys(("delivery", "open"), 0.0)
    waiting = stored = aggregated = most_waiting = longest_wait = 0.0
    requested = arrived = all_stored = 0.0
    nothing = world.post_backs * 1e-9
    while not all_stored or stored - aggregated > nothing:
        now += world.tick
        sent = min(left, requests * world.tick)
        left -= sent
        if sent:
            requested = now
        for kind in to_come:
            to_come[kind] += sent * getattr(world, f"{kind}_share")
            half_life = getattr(world, f"{kind}_half_life")
            came = to_come[kind] * (1 - 2 ** (-world.tick / half_life)) if half_life else to_come[kind]
            to_come[kind] -= came
            waiting += came
        if not arrived:
            most_waiting, longest_wait = max(most_waiting, waiting), max(longest_wait, waiting / receive)
            if not left and sum(to_come.values()) <= world.tail * world.post_backs:
                waiting, arrived = waiting + sum(to_come.values()), now
                to_come = dict.fromkeys(to_come, 0.0)
        done = min(waiting, receive * world.tick)
        waiting, stored = waiting - done, stored + done
        aggregated = min(stored, aggregated + aggregate * world.tick)
        if arrived and not all_stored and waiting <= nothing:
            all_stored = now
    verdicts = now + world.quiet_for + costs.reconciling
    return Result(frozen, requested, all_stored, verdicts, most_waiting, longest_wait, limits)


def rate(amount: float, seconds: float) -> float:
    return amount / seconds if seconds else float("inf")


@dataclass(frozen=True)
class Step:
    """The first limit of a launch, how it was widened, and the launch with that change."""

    limit: str
    factor: int
    how: str
    result: Result


def widen(costs: Costs, world: World, deployment: Deployment) -> list[Step]:
    """Double the first limit until another one comes first; then that one."""
    steps = []
    result = simulate(costs, world, deployment)
    for _ in range(WIDENED):
        limit, factor = result.first_limit, 1
        how, double = _WIDER[limit]
        while result.first_limit == limit and factor < _MOST:
            costs, world, deployment = double(costs, world, deployment)
            factor *= 2
            result = simulate(costs, world, deployment)
        steps.append(Step(limit, factor, how, result))
    return steps


_Parts = tuple[Costs, World, Deployment]


def _more(name: str) -> Callable[[Costs, World, Deployment], _Parts]:
    return lambda costs, world, deployment: (
        costs,
        world,
        replace(deployment, **{name: 2 * getattr(deployment, name)}),
    )


def _cheaper(name: str) -> Callable[[Costs, World, Deployment], _Parts]:
    return lambda costs, world, deployment: (
        replace(costs, **{name: getattr(costs, name) / 2}),
        world,
        deployment,
    )


def _faster_service(costs: Costs, world: World, deployment: Deployment) -> _Parts:
    names = ("requests_per_second", "messages_per_second")
    return costs, replace(world, **{name: 2 * getattr(world, name) for name in names}), deployment


_OTHER_CODE = "one process does it: other code, or a faster processor"
_WIDER: dict[str, tuple[str, Callable[[Costs, World, Deployment], _Parts]]] = {
    "workers": ("more workers", _more("workers")),
    "ledger": ("more processors for the ledger", _more("ledger_processors")),
    "receivers": ("more receivers", _more("receivers")),
    "processors": ("more processors", _more("processors")),
    "service": ("the service's own", _faster_service),
    **{name: (_OTHER_CODE, _cheaper(name)) for name in ("reading", "freezing", "aggregating", "reconciling")},
}


# The command


def clock(seconds: float) -> str:
    """Format seconds as hours, minutes, and seconds."""
    return str(timedelta(seconds=round(seconds)))


def figures(title: str, rows: Sequence[tuple[str, float, str]]) -> Table:
    table = Table("", "", "", title=title, show_header=False, title_justify="left")
    for text, value, origin in rows:
        table.add_row(text, f"{value:,.0f}" if value >= 1_000 else f"{value:.4g}", origin)
    return table


def table_of_times(results: dict[str, tuple[Result, list[Step]]]) -> Table:
    columns = ("frozen", "requests made", "stored", "verdicts", "most post-backs waiting", "longest")
    table = Table("deployment", *columns, title="Times", title_justify="left")
    for name, (found, _) in results.items():
        times = map(clock, (found.frozen, found.requested, found.stored, found.verdicts))
        table.add_row(name, *times, f"{found.most_waiting:,.0f}", clock(found.longest_wait))
    return table


def table_of_limits(results: dict[str, tuple[Result, list[Step]]]) -> Table:
    table = Table("deployment", "with", "least time", "verdicts", title="Limits", title_justify="left")
    for name, (found, steps) in results.items():
        rows = [
            ("as given", found),
            *((f"{step.factor} x {step.limit}: {step.how}", step.result) for step in steps),
        ]
        for what, result in rows:
            limits = list(result.limits.items())[:3]
            at_least = ", ".join(f"{limit} {clock(seconds)}" for limit, seconds in limits)
            table.add_row(name if what == "as given" else "", what, at_least, clock(result.verdicts))
    return table


def last_line(file: Path) -> dict[str, Any]:
    return dict(json.loads(file.read_text().strip().splitlines()[-1]))


def measured(options: argparse.Namespace) -> tuple[dict[str, Any], float, str]:
    """Return the growth of each step, the post-backs per second of a receiver, and where they are from."""
    if options.growth and options.receiver:
        of_receiver = last_line(options.receiver)["receiver_postgresql_per_second"]
        return last_line(options.growth), of_receiver, "given"
    import bench_growth as growth
    import bench_receiver
    from shared import postgres_ledger  # imported here, because given costs need no ledger

    found = {name: asdict(each) for name, each in growth.measure().items()}
    with postgres_ledger() as url:
        per_second = bench_receiver.measure("receiver", url, 1).rate
    return {"sizes": growth.SIZES, **found}, per_second, "measured"


def main(words: Sequence[str] | None = None) -> None:
    """Measure, simulate, and print."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--growth", type=Path, help="file with the last line of bench_growth.py")
    parser.add_argument("--receiver", type=Path, help="file with the last line of bench_receiver.py")
    for kind in (World, Deployment):
        for each in (each for each in fields(kind) if each.metadata):
            number = int if each.type == "int" else float
            parser.add_argument(
                f"--{each.name.replace('_', '-')}", type=number, metavar="N", help=each.metadata["text"]
            )
    options = parser.parse_args(words)
    given = {name: value for name, value in vars(options).items() if value is not None}
    chosen = {name: value for name, value in given.items() if name in Deployment.__dataclass_fields__}
    world = World(**{name: value for name, value in given.items() if name in World.__dataclass_fields__})
    growth, per_second, origin = measured(options)
    costs = Costs.of(growth, per_second, world)
    console = Console(width=None if Console().is_terminal else 160)
    console.print(figures("Costs", [(name, value, origin) for name, value in asdict(costs).items()]))
    about = {each.name: each.metadata for each in fields(World)}
    console.print(
        figures(
            "The launch and the assumptions",
            [
                (about[name]["text"], value, "given" if name in given else about[name]["source"])
                for name, value in asdict(world).items()
            ],
        )
    )
    deployments = [Deployment(**chosen)] if chosen else [LAPTOP, COMPOSE, CLUSTER]
    runs = {each.name: (world, each) for each in deployments}
    if not chosen and not world.messages_per_second:
        limited = replace(world, messages_per_second=QUOTA)
        runs[f"{CLUSTER.name}, {QUOTA:,.0f} messages/s"] = limited, CLUSTER
    results = {name: (simulate(costs, *run), widen(costs, *run)) for name, run in runs.items()}
    console.print(table_of_times(results))
    console.print(table_of_limits(results))
    found = {
        name: {**asdict(result), "widened": [asdict(step) for step in steps]}
        for name, (result, steps) in results.items()
    }
    print(
        json.dumps(
            {"benchmark": "simulate", "costs": asdict(costs), "world": asdict(world), "launches": found}
        )
    )


if __name__ == "__main__":
    main()
