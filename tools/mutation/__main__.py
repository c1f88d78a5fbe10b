"""Draw single-line mutants of the core packages, and count how many the tests notice: ``python -m tools.mutation``.

Each mutant is written into a copy of the package, which only its tests import, so nothing changes in place. They run
one mutant after the other, the nearest first, until one fails or the time of the mutant is over. A mutant that no test
noticed must be in ``survivors.yaml`` with a reason, or it counts against the share. So does one whose time was over.
The exit code is 1 if the share is below the goal.
"""

from __future__ import annotations

import argparse
import os
import random
import shutil
import subprocess
import sys
import tempfile
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import yaml

from tools.mutation.mutants import ROOT, SOURCES, Mutant, all_mutants
from tools.mutation.tests import Imports

SURVIVORS = Path(__file__).with_name("survivors.yaml")
LEAST_SHARE = 97.0
_NEAREST = 6  # test files that are run first
_NO_TESTS = 5  # pytest's exit code
NOTICED, SURVIVED, TIME_OVER, LISTED, NOT_RUN = "noticed", "SURVIVED", "TIME OVER", "listed", "not run"
_PYTEST = ["-m", "pytest", "-x", "-q", "--tb=no", "--no-header", "-p", "no:cacheprovider", "-m", "not proof"]


def main(arguments: list[str] | None = None) -> int:
    """Run the command, and return its exit code."""
    options = _parser().parse_args(arguments)
    listed = known_survivors()
    mutants = drawn([each for each in all_mutants() if options.only in each.key], options.count, options.seed)
    imports = Imports()
    counts, started = Counter[str](), time.monotonic()

    def judge(mutant: Mutant) -> tuple[Mutant, str]:
        if mutant.key in listed and not options.listed:
            return mutant, LISTED
        if time.monotonic() - started > options.total:
            return mutant, NOT_RUN
        return mutant, run_tests(mutant, imports.tests_of(mutant.path), options.seconds)

    with ThreadPoolExecutor(options.processes) as pool:
        for mutant, result in pool.map(judge, mutants):
            counts[result] += 1
            _print(f"{result:9} {mutant.path}:{mutant.line}: {mutant.before} -> {mutant.after}")
    meaningful = counts[NOTICED] + counts[SURVIVED] + counts[TIME_OVER]
    share = 100 * counts[NOTICED] / meaningful if meaningful else 100.0
    _print(
        f"{counts[NOTICED]} of {meaningful} meaningful mutants noticed: {share:.1f} % (seed {options.seed})"
    )
    _print(f"{counts[LISTED]} listed in {SURVIVORS.name}, {counts[NOT_RUN]} not run for lack of time")
    return int(share < LEAST_SHARE)


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


def run_tests(mutant: Mutant, tests: list[str], seconds: float) -> str:
    """Return whether one of the tests failed with a mutant, all passed, or the time was over."""
    with tempfile.TemporaryDirectory(prefix="mutant-") as folder:
        shutil.copytree(SOURCES, folder, dirs_exist_ok=True)
        Path(folder, mutant.path).write_bytes(mutant.source())
        # Its folder comes before that of the installed package.
        environment = {**os.environ, "PYTHONPATH": folder, "TMPDIR": folder}
        until = time.monotonic() + seconds
        for some in filter(
            None, (tests[:_NEAREST], tests[_NEAREST:])
        ):  # collecting all takes longer than running a few
            try:
                done = subprocess.run(  # noqa: S603 (our own tests)
                    [sys.executable, *_PYTEST, *some],
                    cwd=ROOT,
                    env=environment,
                    timeout=max(until - time.monotonic(), 0),
                    capture_output=True,
                    check=False,
                )
            except subprocess.TimeoutExpired:
                return TIME_OVER
            if done.returncode not in {0, _NO_TESTS}:
                return NOTICED
    return SURVIVED


def known_survivors() -> dict[str, str]:
    """Return the reason of each listed survivor by its key."""
    entries = yaml.safe_load(SURVIVORS.read_text()) or []
    return {f"{each['file']}: {each['before']} -> {each['after']}": each["reason"] for each in entries}


def _print(text: str) -> None:
    sys.stdout.write(f"{text}\n")
    sys.stdout.flush()


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
    parser.add_argument("--processes", type=int, default=1, help="mutants at once (default: %(default)s)")
    parser.add_argument("--only", default="", help="only mutants whose file or line contains this")
    parser.add_argument("--listed", action="store_true", help="also run the listed survivors")
    return parser


if __name__ == "__main__":
    raise SystemExit(main())
