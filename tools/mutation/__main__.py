"""Draw single-line mutants of the core packages, and count how many the tests notice: ``python -m tools.mutation``.

For each mutant, the tests that execute its line run until one fails or the time of the mutant is over. A mutant that no
test noticed must be in ``survivors.yaml`` with a reason, or it counts against the share. So does one whose time was
over. The exit code is 1 if the share is below the goal.
"""

from __future__ import annotations

import argparse
import multiprocessing
import os
import random
import time
from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import NoReturn

import yaml

from tools.mutation.judge import NOTICED, SURVIVED, TIME_OVER, judge
from tools.mutation.mutants import Mutant, all_mutants
from tools.mutation.record import FOLDERS, Record

SURVIVORS = Path(__file__).with_name("survivors.yaml")
LEAST_SHARE = 97.0
LISTED, NOT_RUN = "listed", "not run"
FORK = multiprocessing.get_context("fork")


def main(arguments: list[str] | None = None) -> int:
    """Run the command, and return its exit code."""
    options = _parser().parse_args(arguments)
    listed = {} if options.listed else known_survivors()
    mutants = drawn([each for each in all_mutants() if options.only in each.key], options.count, options.seed)
    Record(options.tests, again=options.again)  # once, before the processes read it
    until = time.monotonic() + options.total
    printed = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)  # what pytest prints about collecting, and about each mutant
    counts = {result: FORK.Value("i", 0) for result in (NOTICED, SURVIVED, TIME_OVER, LISTED, NOT_RUN)}
    drawn_so_far = FORK.Value("i", 0)

    def report(mutant: Mutant, result: str, failed: str = "") -> None:
        with counts[result]:
            counts[result].value += 1
        by = f" ({failed})" if failed else ""
        printed.write(f"{result:9} {mutant.path}:{mutant.line}: {mutant.before} -> {mutant.after}{by}\n")

    def in_time() -> Iterator[Mutant]:
        while True:
            with drawn_so_far:
                number = drawn_so_far.value
                drawn_so_far.value += 1
            if number >= len(mutants):
                return
            mutant = mutants[number]
            if mutant.key in listed:
                report(mutant, LISTED)
            elif time.monotonic() > until:
                report(mutant, NOT_RUN)
            else:
                yield mutant

    def run() -> NoReturn:
        record = Record(options.tests)  # what another process has read is empty after a fork
        with TemporaryDirectory(prefix="mutants-") as folder:
            raise SystemExit(judge(in_time(), record, Path(folder), options.seconds, report))

    processes = [FORK.Process(target=run) for _ in range(min(options.processes, len(mutants)))]
    for process in processes:
        process.start()
    for process in processes:
        process.join()
    found = {result: count.value for result, count in counts.items()}
    meaningful = found[NOTICED] + found[SURVIVED] + found[TIME_OVER]
    share = 100 * found[NOTICED] / meaningful if meaningful else 100.0
    printed.write(
        f"{found[NOTICED]} of {meaningful} meaningful mutants noticed: {share:.1f} % (seed {options.seed})\n"
    )
    printed.write(f"{found[LISTED]} listed in {SURVIVORS.name}, {found[NOT_RUN]} not run for lack of time\n")
    return int(share < LEAST_SHARE or any(process.exitcode for process in processes))


def drawn(mutants: list[Mutant], count: int, seed: int) -> list[Mutant]:
    """Return a sample that depends only on the code and the seed."""
    shuffled = random.Random(seed).sample(mutants, len(mutants))  # noqa: S311 (nothing is secret)
    chosen: list[Mutant] = []
    for mutant in shuffled:
        if len(chosen) == count:
            break
        try:
            mutant.source()
        except SyntaxError:
            continue
        chosen.append(mutant)
    return chosen


def known_survivors() -> dict[str, str]:
    """Return the reason of each listed survivor by its key."""
    entries = yaml.safe_load(SURVIVORS.read_text()) or []
    return {f"{each['file']}: {each['before']} -> {each['after']}": each["reason"] for each in entries}


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m tools.mutation", description=__doc__)
    parser.add_argument(
        "--count", type=int, default=100, help="how many mutants to draw (default: %(default)s)"
    )
    parser.add_argument("--seed", type=int, default=1, help="draws other mutants (default: %(default)s)")
    parser.add_argument(
        "--seconds", type=float, default=60, help="the time of one mutant (default: %(default)s)"
    )
    parser.add_argument(
        "--total", type=float, default=3_600, help="begin none later (default: %(default)s s)"
    )
    parser.add_argument(
        "--processes", type=int, default=os.cpu_count() or 1, help="how many at once (default: %(default)s)"
    )
    parser.add_argument(
        "--tests", nargs="+", default=FOLDERS, help="files or folders of tests (default: %(default)s)"
    )
    parser.add_argument("--again", action="store_true", help="record again which tests execute which line")
    parser.add_argument("--only", default="", help="only mutants whose file or line contains this")
    parser.add_argument("--listed", action="store_true", help="also run the listed survivors")
    return parser


if __name__ == "__main__":
    raise SystemExit(main())
