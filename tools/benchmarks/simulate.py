"""A simulated launch to a billion recipients, to find its first limit and the next ones.

The cost of each step is measured first, with the real code at a small scale (``steps.py``). Then a launch goes through
all stages in virtual time (``simulation.py``), in several deployments, and again with its first limit widened. The
simulation makes no request and does not wait. The largest set that it makes has 20 million recipients.

Every figure is printed with its origin: *measured* in this run, *given* by an option or a file, or *assumed*. Each is
an option: ``--devices 100000000 --delivery-share 0.7 --aggregate 8e-7``. An option for the size of the deployment
(``--receivers 6``) replaces the usual deployments with one. ``--costs FILE`` takes the costs from the last line of an
earlier run and measures nothing. ``--receiver FILE`` takes the receiver's figure from the last line of
``bench_receiver.py``. ``SENDOFF_TEST_POSTGRES_URL`` is the server to use. The last line is one JSON object.
"""

from __future__ import annotations

import argparse
import json
import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass, fields, replace
from datetime import timedelta
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table
from simulation import Costs, Deployment, Result, Step, World, simulate, widened

LAPTOP = Deployment("laptop", 1, 4, 4, receivers=1, processors=2, ledger_processors=2)
SERVER = Deployment("one server", 2, 4, 4, receivers=4, processors=8, ledger_processors=4)
CLUSTER = Deployment("small cluster", 4, 16, 4, receivers=12, processors=32, ledger_processors=16)
QUOTA = 10_000.0
"""Messages per second: the default quota of Firebase Cloud Messaging for one project, 600,000 per minute.

firebase.google.com/docs/cloud-messaging/throttling-and-quotas
"""
STEPS = 2  # limits to widen, one after the other
MAPPED = 1_024
"""The most tasks that Airflow maps by default (``[core] max_map_length``)."""


@dataclass(frozen=True)
class Scenario:
    """One launch in one deployment, and its first limits."""

    name: str
    world: World
    result: Result
    steps: tuple[Step, ...]


def scenarios(costs: Costs, world: World, deployment: Deployment | None) -> list[Scenario]:
    """Simulate the launch in every deployment, and in the largest one with a service that has a common quota."""
    if deployment:
        return [scenario(deployment.name, costs, world, deployment)]
    found = [scenario(each.name, costs, world, each) for each in (LAPTOP, SERVER, CLUSTER)]
    if not world.messages_per_second:
        limited = replace(world, messages_per_second=QUOTA)
        found.append(scenario(f"{CLUSTER.name}, {QUOTA:,.0f} messages/s", costs, limited, CLUSTER))
    return found


def scenario(name: str, costs: Costs, world: World, deployment: Deployment) -> Scenario:
    result = simulate(costs, world, deployment)
    steps: list[Step] = []
    last = result
    at = costs, world, deployment
    for _ in range(STEPS):
        step = widened(*at, last)
        steps.append(step)
        last, at = step.result, (step.costs, step.world, step.deployment)
    return Scenario(name, world, result, tuple(steps))


def sizes(world: World, room: dict[str, float]) -> dict[str, float]:
    """Return the sizes of the launch in bytes, and the number of its requests."""
    people = world.devices
    return {
        "dispatches": world.dispatches,
        "audience_every_number": people * room["dense"],
        "audience_nine_in_ten": people * room["by_chance"],
        "audience_scattered": people * room["scattered"],
        "planning_nine_in_ten": people * room["planned"],
        "body_of_a_request": world.segment_size * room["body"],
        "bodies": people * room["body"],
        "ledger_without_post_backs": people * room["in_ledger"],
        "post_backs": world.post_backs * room["post_back"],
    }


# Output


def clock(seconds: float) -> str:
    """Format seconds as hours, minutes, and seconds."""
    return str(timedelta(seconds=round(seconds)))


def amount(value: float) -> str:
    """Format a number of bytes."""
    for unit in ("B", "KB", "MB", "GB"):
        if value < 1_000:
            return f"{value:.3g} {unit}"
        value /= 1_000
    return f"{value:.3g} TB"


def table_of_figures(title: str, figures: Any, origins: dict[str, str]) -> Table:
    table = Table("", "", "", "", title=title, show_header=False, title_justify="left")
    for each in fields(figures):
        if each.metadata:
            value, about = getattr(figures, each.name), each.metadata
            table.add_row(
                about["text"],
                f"{value:,.0f}" if value >= 1_000 else f"{value:.4g}",
                about["unit"],
                origins[each.name],
            )
    return table


def table_of_sizes(world: World, found: dict[str, float]) -> Table:
    table = Table("", "", title="Room", show_header=False, title_justify="left")
    table.add_row("requests", f"{found['dispatches']:,.0f}")
    for name, value in found.items():
        if name != "dispatches":
            table.add_row(name.replace("_", " "), amount(value))
    table.add_row("post-backs", f"{world.post_backs:,.0f}")
    table.add_row("mapped tasks in Airflow with one per request", f"{found['dispatches']:,.0f}")
    table.add_row("the most mapped tasks in Airflow by default", f"{MAPPED:,}")
    return table


def table_of_resources(found: Scenario) -> Table:
    title = f"{found.name}: {clock(found.result.elapsed)} in total"
    table = Table(
        "resource", "how many", "from", "until", "busy", "at least", title=title, title_justify="left"
    )
    for each in found.result.limits:
        table.add_row(
            each.name,
            f"{each.capacity:g}",
            clock(each.begin),
            clock(each.end),
            f"{each.utilisation:.0%}",
            clock(each.least),
        )
    return table


def table_of_times(found: Sequence[Scenario]) -> Table:
    names = ("frozen", "requests made", "sent", "last post-back", "stored", "aggregated", "verdicts")
    table = Table(
        "deployment", *names, "post-backs that wait", "longest", title="Times", title_justify="left"
    )
    for each in found:
        marks, peaks = each.result.marks, each.result.peaks
        times = (marks.frozen, marks.requested, marks.sent, marks.arrived, marks.stored, marks.aggregated)
        row = [clock(time) for time in (*times, each.result.elapsed)]
        table.add_row(each.name, *row, f"{peaks.waiting:,.0f}", clock(peaks.wait))
    return table


def table_of_limits(found: Sequence[Scenario]) -> Table:
    table = Table("deployment", "with", "first limit", "verdicts", title="Limits", title_justify="left")
    for each in found:
        table.add_row(each.name, "as given", each.result.limits[0].name, clock(each.result.elapsed))
        for step in each.steps:
            limits, elapsed = step.result.limits, clock(step.result.elapsed)
            table.add_row("", f"{step.factor} x {step.limit}: {step.how}", limits[0].name, elapsed)
    return table


def as_json(found: Scenario) -> dict[str, Any]:
    result = found.result
    return {
        "name": found.name,
        "deployment": asdict(result.deployment),
        "messages_per_second": found.world.messages_per_second,
        "seconds": round(result.elapsed),
        "marks": {name: round(value) for name, value in asdict(result.marks).items()},
        "peaks": {name: round(value) for name, value in asdict(result.peaks).items()},
        "resources": {
            each.name: {"busy": round(each.utilisation, 3), "at_least": round(each.least)}
            for each in result.limits
        },
        "limits": [
            {
                "limit": step.limit,
                "widened": step.factor,
                "seconds": round(step.result.elapsed),
                "next": step.result.limits[0].name,
            }
            for step in found.steps
        ],
    }


# Options


def arguments(words: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--costs", type=Path, help="file with the last line of an earlier run")
    parser.add_argument("--receiver", type=Path, help="file with the last line of bench_receiver.py")
    for group, kind in (("costs", Costs), ("world", World), ("deployment", Deployment)):
        options = parser.add_argument_group(group)
        for each in fields(kind):
            if each.metadata:
                number = int if each.type == "int" else float
                text = f"{each.metadata['text']} {each.metadata['unit']}".replace("%", "%%")
                options.add_argument(f"--{each.name.replace('_', '-')}", type=number, metavar="N", help=text)
    return parser.parse_args(words)


def given(options: argparse.Namespace, kind: Any) -> dict[str, Any]:
    """Return the fields of a dataclass that the options set."""
    named = {each.name: getattr(options, each.name) for each in fields(kind) if each.metadata}
    return {name: value for name, value in named.items() if value is not None}


def last_line(file: Path) -> dict[str, Any]:
    return dict(json.loads(file.read_text().strip().splitlines()[-1]))


def known_costs(
    options: argparse.Namespace, console: Console
) -> tuple[Costs, dict[str, float], dict[str, str]]:
    """Return measured or given costs, the sizes of everything in bytes, and the origin of each cost."""
    by_option = given(options, Costs)
    if options.receiver:
        by_option.setdefault(
            "receivers_per_second", last_line(options.receiver)["receiver_postgresql_per_second"]
        )
    if options.costs:
        earlier = last_line(options.costs)
        costs, room, origin = Costs(**earlier["costs"]), earlier["room"], f"given: {options.costs.name}"
    else:
        from steps import measure  # imported here, because a simulation of given costs needs no ledger

        with console.status("measuring") as status:
            costs, measured = measure(by_option.get("receivers_per_second"), status.update)
        room, origin = asdict(measured), "measured"
    origins = {each.name: "given" if each.name in by_option else origin for each in fields(Costs)}
    return replace(costs, **by_option), room, origins


def main(words: Sequence[str] | None = None) -> None:
    """Measure, simulate, and print."""
    options = arguments(words)
    console = Console(width=None if Console().is_terminal else 160)
    world = World(**given(options, World))
    deployment = given(options, Deployment)
    costs, room, origins = known_costs(options, console)
    console.print(table_of_figures("Costs", costs, origins))
    sources = {each.name: each.metadata["source"] for each in fields(World)}
    sources |= dict.fromkeys(given(options, World), "given")
    console.print(table_of_figures("The launch and the assumptions", world, sources))
    found_sizes = sizes(world, room)
    console.print(table_of_sizes(world, found_sizes))
    found = scenarios(costs, world, Deployment(name="as given", **deployment) if deployment else None)
    for each in found:
        console.print(table_of_resources(each))
    console.print(table_of_times(found))
    console.print(table_of_limits(found))
    figures = {
        "benchmark": "simulate",
        "costs": asdict(costs),
        "room": room,
        "world": asdict(world),
        "sizes": {name: math.ceil(value) for name, value in found_sizes.items()},
        "scenarios": [as_json(each) for each in found],
    }
    print(json.dumps(figures))


if __name__ == "__main__":
    main()
