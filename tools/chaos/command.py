"""The command ``python -m tools.chaos`` plays every scenario and prints the table.

It fails if anything was sent twice or lost.
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
import time
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path

from sendoff.demo.processes import ProcessError, Supervisor, interruptible
from tools.chaos import table
from tools.chaos.counting import Record, count
from tools.chaos.environment import DEVICES, LONG, SHORT, Backend, Environment, Result, Size, make_warehouse
from tools.chaos.processes import ChaosError, Cluster, Service, cluster
from tools.chaos.scenarios import SCENARIOS, BackendName, Scenario
from tools.chaos.table import Row

_SECONDS = 3600.0
_FOR_COUNTING = 0.12  # share of the time


class Run:
    """One run of the crash tests, in its own folder."""

    def __init__(self, folder: Path, size: Size, seconds: float, seed: str, stack: ExitStack) -> None:
        self._folder = folder
        self._size = size
        self._seed = seed
        self._stack = stack
        self._deadline = time.monotonic() + seconds * (1 - _FOR_COUNTING)
        self._points: dict[tuple[str, str | None], int] = {}
        self._backends: dict[BackendName, Backend | None] = {}
        make_warehouse(folder)
        self._supervisor = stack.enter_context(Supervisor(folder))
        self._service = Service(self._supervisor, folder, DEVICES)

    def play(self, scenarios: Sequence[Scenario]) -> list[Row]:
        """Play the scenarios, then compare everything with the service's own record."""
        chosen = [scenario for scenario in scenarios if scenario.times(self._size)]
        # Mutants come first: without them, zeros prove nothing.
        by_weight = sorted(chosen, key=lambda scenario: scenario.expected != "some")
        results = {scenario.name: self._play(scenario) for scenario in by_weight}
        _say("counting")
        self._service.wait_until_quiet()
        record = Record.of(self._service)
        rows = [
            Row(scenario, None, result) if isinstance(result, str) else Row(scenario, count(record, result))
            for scenario, result in ((scenario, results[scenario.name]) for scenario in chosen)
        ]
        if unknown := record.unknown():
            raise ChaosError(f"the service accepted {len(unknown)} requests that belong to no played launch")
        return rows

    def _play(self, scenario: Scenario) -> Result | str:
        if time.monotonic() > self._deadline:
            return table.NO_TIME
        backend = self._backend(scenario.on)
        if backend is None:
            return "this machine has no PostgreSQL programs"
        started = time.monotonic()
        env = Environment(
            self._service, backend, self._folder, self._size, self._points, f"{self._seed} {scenario.name}"
        )
        for _ in range(scenario.times(self._size)):
            scenario.play(env)
        _say(f"{time.monotonic() - started:6.1f} s  {scenario.name}: {len(env.result.launches)} launches")
        return env.result

    def _backend(self, place: BackendName) -> Backend | None:
        if place not in self._backends:
            self._backends[place] = self._open_backend(place)
        return self._backends[place]

    def _open_backend(self, place: BackendName) -> Backend | None:
        own: Cluster | None = None
        url = f"sqlite:///{self._folder / place}.db"
        if place.startswith("postgresql"):
            own = self._stack.enter_context(cluster(self._supervisor))
            if own is None:
                return None
            url = own.url
        backend = Backend.opened(self._supervisor, url, own)
        self._stack.callback(backend.close)
        return backend


def main() -> int:
    """Run the command. Return 0 if every count is as expected."""
    options = _options()
    chosen = [scenario for scenario in SCENARIOS if not options.only or scenario.name in options.only]
    if unknown := set(options.only) - {scenario.name for scenario in SCENARIOS}:
        _say(
            f"no such scenario: {', '.join(sorted(unknown))}. Use one of: {', '.join(h.name for h in SCENARIOS)}"
        )
        return 2
    if options.times:
        chosen = [replace(scenario, short=options.times, long=options.times) for scenario in chosen]
    started = time.monotonic()
    size = SHORT if options.short else LONG
    with interruptible(), ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="chaos-")))
        try:
            rows = Run(folder, size, options.seconds, options.seed, stack).play(chosen)
        except (ChaosError, ProcessError) as error:
            _say(f"the crash tests could not run: {error}")
            return 2
    seconds = time.monotonic() - started
    sys.stdout.write(table.as_json(rows, seconds) if options.json else table.as_text(rows))
    sys.stdout.write("\n")
    if options.write:
        table.write(options.write, rows)
    _say(f"it took {seconds:.0f} seconds")
    return 0 if all(row.is_as_expected for row in rows) else 1


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m tools.chaos", description=__doc__)
    parser.add_argument(
        "--short", action="store_true", help="a sample of each scenario on SQLite, for every day"
    )
    parser.add_argument("--json", action="store_true", help="print JSON instead of the table")
    parser.add_argument("--write", type=Path, metavar="FILE", help="also write the table into a document")
    parser.add_argument(
        "--only", action="append", default=[], metavar="NAME", help="play only this scenario; repeatable"
    )
    parser.add_argument(
        "--times", type=int, help="how often to play each scenario, instead of its own number"
    )
    parser.add_argument("--seed", default="1", help="seed of the random choices")
    parser.add_argument(
        "--seconds",
        type=float,
        default=float(os.environ.get("CHAOS_SECONDS") or _SECONDS),
        help="leave out scenarios that would begin later, and name them (also CHAOS_SECONDS)",
    )
    return parser.parse_args()


def _say(line: str) -> None:
    sys.stderr.write(f"{line}\n")
    sys.stderr.flush()
