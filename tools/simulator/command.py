"""Play seeded histories of launches: ``python -m tools.simulator``.

Each seed is one or two launches with their own actors, faults and order of events. The same seed always gives the same
history. If one breaks a rule, it is made smaller and printed as a timeline, and the exit code is 1. Add its seed to
``seeds.txt``, and the tests play it from then on.
"""

from __future__ import annotations

import argparse
import gc
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from contextlib import contextmanager
from multiprocessing import get_context
from pathlib import Path
from tempfile import TemporaryDirectory, gettempdir
from typing import Any, NamedTuple

from tools.simulator.checker import Event, by_launch, check
from tools.simulator.mutants import MUTANTS, break_product
from tools.simulator.shrinking import shrunk, timeline

SEEDS = Path(__file__).with_name("seeds.txt")

AT_ONCE = 5  # seeds that a process plays before it reports
_MEMORY = Path("/dev/shm")  # noqa: S108 (only a folder in memory, for a new folder of our own)

Play = Callable[..., Any]


class Found(NamedTuple):
    """A history that breaks rules."""

    seed: int
    breaches: list[str]


def known_seeds(file: Path = SEEDS) -> list[int]:
    """Return the seeds of earlier failures."""
    lines = (line.partition("#")[0].strip() for line in file.read_text().splitlines())
    return [int(line) for line in lines if line]


def fresh() -> int:
    """Return a first seed that no one has played: the clock's milliseconds, with room for a thousand in each."""
    return time.time_ns() // 1_000_000 * 1_000


def of_commit() -> int:
    """Return a first seed that depends on the commit of this clone; outside of a clone, always the same one."""
    asked = subprocess.run(
        ["git", "rev-parse", "HEAD"],  # noqa: S607 (whichever git made the clone)
        capture_output=True,
        text=True,
        cwd=SEEDS.parent,
        check=False,
    )
    return int(asked.stdout[:12] or "f4240", 16)


@contextmanager
def player() -> Iterator[Play]:
    """Provide a function that plays a seed on a ledger in memory."""
    from tools.simulator import history, machine

    machine.replace_names()
    gc.freeze()  # the imported modules stay, so looking through them again and again frees nothing
    gc.set_threshold(50_000, 20, 20)
    with TemporaryDirectory(prefix="simulator-", dir=_MEMORY if _MEMORY.is_dir() else gettempdir()) as folder:
        disk = machine.Disk(history.migrated(Path(folder, "ledger.db")))
        try:
            yield lambda seed, given=None: history.play(seed, disk, given)
        finally:
            disk.close()


def first_breach(play: Play, seeds: Iterator[int] | range) -> tuple[int, Found | None]:
    """Play seeds until one breaks a rule, and return the number of launches played."""
    played = 0
    for seed in seeds:
        events = play(seed).events
        played += len(by_launch(events))
        if breaches := check(events):
            return played, Found(seed, breaches)
    return played, None


def smaller(play: Play, seed: int) -> tuple[Mapping[str, Any], list[Event], list[str]]:
    """Return the choices, the events and the breaches of the smallest history that fails like a seed."""
    whole = play(seed)
    rules = {breach.partition(":")[0] for breach in check(whole.events)}

    def fails(given: Mapping[str, Any]) -> Mapping[str, Any] | None:
        outcome = play(seed, given)
        same = rules & {breach.partition(":")[0] for breach in check(outcome.events)}
        return outcome.taken if same else None

    taken = shrunk(whole.taken, fails)
    events = play(seed, taken).events
    return taken, events, check(events)


def _play_some(first: int, count: int) -> tuple[int, Found | None]:
    return first_breach(_played.play, range(first, first + count))


class _played:  # noqa: N801 (what one process of the pool keeps)
    play: Play


def begin(mutant: str | None) -> None:
    """Prepare this process to play seeds, which replaces names of the standard library in the product's modules."""
    if mutant:
        break_product(mutant)
    opened = player()
    _played.play = opened.__enter__()
    import atexit

    atexit.register(lambda: opened.__exit__(None, None, None))


def run(
    first: int, seconds: float, processes: int, mutant: str | None = None
) -> tuple[int, float, Found | None]:
    """Play seeds for some seconds, and some of them however short the time is.

    Return the number of launches, the seconds, and the first seed that breaks a rule.
    """
    played, found, following = 0, None, first
    with ProcessPoolExecutor(processes, get_context("spawn"), begin, (mutant,)) as pool:
        wait([pool.submit(_play_some, 0, 0) for _ in range(processes)])  # each imports and migrates
        started = time.monotonic()
        running: set[Future[tuple[int, Found | None]]] = set()
        while found is None and (not played or time.monotonic() < started + seconds):
            while len(running) < 2 * processes:
                running.add(pool.submit(_play_some, following, AT_ONCE))
                following += AT_ONCE
            done, running = wait(running, return_when=FIRST_COMPLETED)
            for future in done:
                count, broken = future.result()
                played, found = played + count, found or broken
        for future in running:
            if found is None and not future.cancel():
                count, broken = future.result()
                played, found = played + count, found or broken
            future.cancel()
        took = time.monotonic() - started
    return played, took, found


def show(seed: int, mutant: str | None, *, is_whole: bool) -> None:
    """Print the timeline of a seed, made smaller if it breaks a rule."""
    with get_context("spawn").Pool(1, begin, (mutant,)) as pool:
        _print(pool.apply(_shown, (seed, is_whole)))


def _shown(seed: int, is_whole: bool) -> str:
    outcome = _played.play(seed)
    events, breaches, choices = outcome.events, check(outcome.events), len(outcome.taken)
    if breaches and not is_whole:
        taken, events, breaches = smaller(_played.play, seed)
        choices = len(taken)
    lines = [f"seed {seed}, {choices} choices:", *timeline(events), *(f"BROKEN: {each}" for each in breaches)]
    return "\n".join(lines)


def _export(file: Path, first: int, count: int, mutant: str | None) -> None:
    begin(mutant)
    with file.open("w") as out:
        for seed in range(first, first + count):
            out.write(_played.play(seed).lines())


def events_of(seed: int) -> list[Event]:
    """Return the events of a seed, in a process that has begun."""
    events: list[Event] = _played.play(seed).events
    return events


def is_repeated(seed: int) -> bool:
    """Check whether a seed gives the same lines twice, in a process that has begun."""
    return bool(_played.play(seed).lines() == _played.play(seed).lines())


def _breaks(seed: int, times: int) -> int:
    return sum(bool(check(events_of(seed))) for _ in range(times))


def found_and_replayed(
    name: str, seconds: float, processes: int, replays: int, first: int = 1
) -> tuple[tuple[int, float, Found] | None, int]:
    """Search for a mutant's first breach and play its seed again. Return what was found, and how often it failed."""
    played, took, found = run(first, seconds, processes, name)
    if found is None:
        return None, 0
    with get_context("spawn").Pool(1, begin, (name,)) as pool:
        return (played, took, found), pool.apply(_breaks, (found.seed, replays))


def try_mutants(seconds: float, processes: int, replays: int) -> int:
    """Search for each mutant and replay its seed. Return the number of mutants that were not found or not replayed."""
    missed = 0
    for name in MUTANTS:
        found, failed = found_and_replayed(name, seconds, processes, replays)
        missed += failed < replays
        if found is None:
            _print(f"{name:40} NOT FOUND")
            continue
        _, took, (seed, breaches) = found
        _print(f"{name:40} {took:5.1f} s, seed {seed} fails {failed} of {replays} times: {breaches[0]}")
    return missed


def main(arguments: list[str] | None = None) -> int:
    """Run the command, and return its exit code."""
    options = _parser().parse_args(arguments)
    if options.seed is not None:
        show(options.seed, options.mutant, is_whole=options.whole)
        return 0
    if options.export:
        _export(options.export, options.first or 1, options.count, options.mutant)
        return 0
    if options.mutants:
        return int(try_mutants(options.seconds, options.processes, options.replays) > 0)
    drawn = of_commit if options.commit else fresh
    first = options.first if options.first is not None else drawn()
    played, took, found = run(first, options.seconds, options.processes, options.mutant)
    _print(
        f"{played:,} launches from seed {first} on, in {took:.0f} s with {options.processes} processes: "
        f"{3_600 * played / took:,.0f} per hour"
    )
    if found is None:
        _print("no rule was broken")
        return 0
    _print(f"seed {found.seed} breaks a rule. Add it to {SEEDS.name}. The smallest history that fails alike:")
    show(found.seed, options.mutant, is_whole=False)
    return 1


def _print(text: str) -> None:
    sys.stdout.write(f"{text}\n")
    sys.stdout.flush()


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m tools.simulator", description=__doc__)
    parser.add_argument("--seconds", type=float, default=60, help="how long to play (default: %(default)s)")
    parser.add_argument("--processes", type=int, default=os.cpu_count() or 1, help="default: %(default)s")
    parser.add_argument(
        "--first", type=int, help="the first seed (default: from the clock, so all are fresh)"
    )
    parser.add_argument(
        "--commit", action="store_true", help="play the seeds of this commit, always the same"
    )
    parser.add_argument("--seed", type=int, help="replay this seed, and print its timeline")
    parser.add_argument("--whole", action="store_true", help="with --seed: do not make it smaller")
    parser.add_argument("--export", type=Path, metavar="FILE", help="write the events of seeds as JSON lines")
    parser.add_argument(
        "--count", type=int, default=100, help="with --export: how many seeds (default: %(default)s)"
    )
    parser.add_argument("--mutant", choices=sorted(MUTANTS), help="break the product like this first")
    parser.add_argument("--mutants", action="store_true", help="search for each mutant for --seconds at most")
    parser.add_argument(
        "--replays", type=int, default=100, help="with --mutants: of each seed (default: %(default)s)"
    )
    return parser
