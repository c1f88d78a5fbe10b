"""Run the benchmarks one after the other, and compare their figures with the goals in one line of JSON.

Arguments are the names of benchmarks; without any, all run except ``erasure``, which takes longer than the others
together. The last line has the whole JSON line of each benchmark, and each goal with its figure.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

NAMES = ("audience", "rules", "dispatch", "suppression", "receiver", "reconcile", "parse", "growth")
LARGER = {"reconcile": 10.0}  # times as large: its goals are for ten million people


@dataclass(frozen=True)
class Goal:
    """A figure of a benchmark and its goal, which is a minimum unless it is said to be a maximum."""

    benchmark: str
    figure: str
    goal: float
    text: str
    is_most: bool = False


GOALS = (
    Goal("audience", "times_pandas_speed", 10, "audience of integers, times the speed of pandas"),
    Goal("audience", "share_of_copy_speed", 0.9, "the same, share of the speed of COPY to psql"),
    Goal(
        "audience",
        "share_of_copy_speed_of_texts",
        0.7,
        "audience of texts, share of the speed of COPY to psql",
    ),
    Goal("audience", "memory_of_texts_over_bytes", 2, "memory of texts over their bytes", is_most=True),
    Goal(
        "audience",
        "times_speed_in_two_parts",
        0.98,  # two runs of the same reading differ by 2 %
        "reading in at most two parts, times the speed of one",
    ),
    Goal("dispatch", "postgresql_10000_to_bare_4", 0.9, "10,000 to a request, PostgreSQL, to a bare session"),
    Goal("dispatch", "postgresql_1000_to_bare_4", 0.85, "1,000 to a request, PostgreSQL, to a bare session"),
    Goal("dispatch", "sqlite_1000_to_bare_4", 0.85, "1,000 to a request, SQLite, to a bare session"),
    Goal(
        "receiver",
        "receiver_postgresql_to_unstored",
        0.7,
        "receiver on PostgreSQL, to one that stores nothing",
    ),
    Goal("reconcile", "times_pandas_speed", 20, "reconciling 10 million people, times the speed of pandas"),
    Goal(
        "reconcile",
        "seconds_of_10_million",
        3,
        "the same, seconds",
        is_most=True,
    ),
    Goal("reconcile", "peak_mib", 200, "the same, MiB", is_most=True),
    Goal(
        "parse", "cpu_ms_beyond_plain", 2, "parsing a campaign folder, ms beyond an empty DAG", is_most=True
    ),
    Goal("growth", "verdicts_reused_seconds", 5, "10 million verdicts as an audience, seconds", is_most=True),
)


def compared(found: Mapping[str, Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Return each goal with its figure and whether it was reached; both are None if the figure was not measured."""
    rows = []
    for goal in GOALS:
        figure = found.get(goal.benchmark, {}).get(goal.figure)
        is_reached = None if figure is None else figure <= goal.goal if goal.is_most else figure >= goal.goal
        rows.append({**asdict(goal), "found": figure, "is_reached": is_reached})
    return rows


def run(name: str) -> dict[str, Any]:
    """Run a benchmark, print what it prints, and return its last line."""
    line = [sys.executable, str(Path(__file__).with_name(f"bench_{name}.py"))]
    scale = float(os.environ.get("BENCH_SCALE", "1")) * LARGER.get(name, 1)
    last = "{}"
    with subprocess.Popen(
        line, stdout=subprocess.PIPE, text=True, env={**os.environ, "BENCH_SCALE": str(scale)}
    ) as process:
        assert process.stdout
        for text in process.stdout:
            print(text, end="", flush=True)
            last = text.strip() or last
    if process.returncode:
        sys.exit(f"bench_{name}.py ended with {process.returncode}")
    return dict(json.loads(last))


def main() -> None:
    """Run, and print the goals as a table and everything as JSON."""
    found = {name: run(name) for name in sys.argv[1:] or NAMES}
    goals = compared(found)
    print("\nGoals")
    for row in goals:
        figure = "not measured" if row["found"] is None else f"{row['found']:,.2f}"
        limit = f"{'at most' if row['is_most'] else 'at least'} {row['goal']:g}"
        state = {None: "", True: "reached", False: "not reached"}[row["is_reached"]]
        print(f"  {row['text']:62}{figure:>14}  {limit:15}{state}")
    print(json.dumps({"benchmark": "all", "goals": goals, **found}))


if __name__ == "__main__":
    main()
