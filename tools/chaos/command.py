"""The command ``python -m tools.chaos``: play every history, print the table, and fail if anything was sent
twice or lost.
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
import time
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path

from sendoff.demo.processes import interruptible
from tools.chaos import table
from tools.chaos.counting import Record, count
from tools.chaos.histories import HISTORIES, History, Place
from tools.chaos.processes import ChaosError, Cluster, Service, cluster
from tools.chaos.stage import DEVICES, LONG, SHORT, Played, Side, Size, Stage, make_warehouse
from tools.chaos.table import Row

_SECONDS = 800.0
_FOR_COUNTING = 0.12  # of the time


class Run:
    """One run of the crash proof, in a folder of its own."""

    def __init__(self, folder: Path, size: Size, seconds: float, seed: str, stack: ExitStack) -> None:
        self._folder = folder
        self._size = size
        self._seed = seed
        self._stack = stack
        self._deadline = time.monotonic() + seconds * (1 - _FOR_COUNTING)
        self._points: dict[str, int] = {}
        self._sides: dict[Place, Side | None] = {}
        make_warehouse(folder)
        self._service = Service(folder, DEVICES)
        stack.callback(self._service.server.end)
        self._service.server.start()

    def play(self, histories: Sequence[History]) -> list[Row]:
        """Play the histories, then hold everything against the service's own record."""
        chosen = [history for history in histories if history.times(self._size)]
        by_weight = sorted(
            chosen, key=lambda history: history.expected != "some"
        )  # without these, zeros say nothing
        found = {history.name: self._play(history) for history in by_weight}
        played = [(history, found[history.name]) for history in chosen]
        _say("counting")
        self._service.wait_until_quiet()
        record = Record.of(self._service)
        rows = [
            Row(history, None, what) if isinstance(what, str) else Row(history, count(record, what))
            for history, what in played
        ]
        if unknown := record.unknown():
            raise ChaosError(f"the service accepted {len(unknown)} requests of no launch that was played")
        return rows

    def _play(self, history: History) -> Played | str:
        if time.monotonic() > self._deadline:
            return table.NO_TIME
        side = self._side(history.on)
        if side is None:
            return "no PostgreSQL programs on this machine"
        started = time.monotonic()
        stage = Stage(
            self._service, side, self._folder, self._size, self._points, f"{self._seed} {history.name}"
        )
        for _ in range(history.times(self._size)):
            history.play(stage)
        _say(f"{time.monotonic() - started:6.1f} s  {history.name}: {len(stage.played.launches)} launches")
        return stage.played

    def _side(self, place: Place) -> Side | None:
        if place not in self._sides:
            self._sides[place] = self._opened(place)
        return self._sides[place]

    def _opened(self, place: Place) -> Side | None:
        own: Cluster | None = None
        url = f"sqlite:///{self._folder / place}.db"
        if place == "postgresql":
            own = self._stack.enter_context(cluster(self._folder / "postgresql.log"))
            if own is None:
                return None
            url = own.url
        side = Side.opened(url, self._folder, own)
        self._stack.callback(side.close)
        return side


def main() -> int:
    """Run it; 0 where every count is what it must be."""
    options = _options()
    chosen = [each for each in HISTORIES if not options.only or each.name in options.only]
    if unknown := set(options.only) - {each.name for each in HISTORIES}:
        _say(
            f"no such history: {', '.join(sorted(unknown))}; there are: {', '.join(h.name for h in HISTORIES)}"
        )
        return 2
    started = time.monotonic()
    size = SHORT if options.short else LONG
    with interruptible(), ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="chaos-")))
        try:
            rows = Run(folder, size, options.seconds, options.seed, stack).play(chosen)
        except ChaosError as error:
            _say(f"the crash proof could not be made: {error}")
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
        "--short", action="store_true", help="a sample of each history on SQLite, for every day"
    )
    parser.add_argument("--json", action="store_true", help="print JSON in the place of the table")
    parser.add_argument("--write", type=Path, metavar="FILE", help="put the table into a document, too")
    parser.add_argument(
        "--only", action="append", default=[], metavar="NAME", help="this history; repeatable"
    )
    parser.add_argument("--seed", default="1", help="decides what chance decides")
    parser.add_argument(
        "--seconds",
        type=float,
        default=float(os.environ.get("CHAOS_SECONDS") or _SECONDS),
        help="histories that would begin later are left out, and named (also CHAOS_SECONDS)",
    )
    return parser.parse_args()


def _say(line: str) -> None:
    sys.stderr.write(f"{line}\n")
    sys.stderr.flush()
