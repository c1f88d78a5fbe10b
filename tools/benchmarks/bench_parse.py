"""Parsing two hundred campaign folders into DAGs, compared with two hundred DAG files written by hand.

Each parsing runs in its own process, as in Airflow's DAG processor. It is timed after what a DAG processor does before
it forks: its imports, the plugins' hooks for its start, and ``gc.freeze``. All other imports count. Compiling does not:
modules and DAG files are loaded from bytecode, as in an installation. The folders are copies of the examples. For each
campaign, the other files contain a plain DAG with as many tasks, all empty, and one process runs them one after the
other.

``BENCH_SCALE`` is the number of campaigns in units of two hundred; 1 takes about half a minute on an idle machine.
``BENCH_ROUNDS`` is the number of rounds.
"""

from __future__ import annotations

import gc
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from importlib.machinery import SourceFileLoader
from importlib.util import module_from_spec, spec_from_loader
from itertools import cycle, islice
from pathlib import Path
from shutil import copytree
from statistics import median
from types import ModuleType
from typing import Any

CAMPAIGNS = int(200 * float(os.environ.get("BENCH_SCALE", "1")))
ROUNDS = int(os.environ.get("BENCH_ROUNDS", "5"))
EXAMPLES = Path(__file__).resolve().parents[2] / "examples/campaigns"

OURS = """
from pathlib import Path

from sendoff_airflow.dags import campaign_dags

globals().update(campaign_dags(Path(__file__).with_name("campaigns")))
"""
PLAIN = """
from datetime import datetime

from airflow.providers.standard.operators.empty import EmptyOperator
from airflow.sdk import DAG, chain

with DAG(
    dag_id="plain_{number}",
    description="A DAG written by hand",
    schedule="0 9 * * 1",
    start_date=datetime(2026, 1, 5),
    catchup=False,
    default_args={{"owner": "crm", "retries": 8}},
    tags=["crm"],
) as dag:
    chain(*[EmptyOperator(task_id=f"task_{{number}}") for number in range({tasks})])
"""


def parse(files: list[Path]) -> dict[str, Any]:
    """Run DAG files as Airflow does. Return the wall-clock and CPU seconds, and the number of tasks of each DAG."""
    import airflow.dag_processing.manager
    import airflow.jobs.dag_processor_job_runner  # noqa: F401
    from airflow.jobs.job import Job
    from airflow.sdk import DAG

    Job()  # calls the plugins' hooks
    gc.freeze()
    start, cpu = time.perf_counter(), time.process_time()
    found = [value for file in files for value in vars(load(file)).values()]
    spent = {"seconds": time.perf_counter() - start, "cpu": time.process_time() - cpu}
    return {**spent, "tasks": [len(dag.tasks) for dag in found if isinstance(dag, DAG)]}


def load(file: Path) -> ModuleType:
    loader = SourceFileLoader(f"dag_file_{file.stem}", str(file))
    spec = spec_from_loader(loader.name, loader)
    assert spec
    module = module_from_spec(spec)
    loader.exec_module(module)
    return module


def parse_in_a_process(folder: Path) -> dict[str, Any]:
    done = subprocess.run(
        [sys.executable, str(Path(__file__).resolve()), str(folder)],
        env={
            **os.environ,
            "AIRFLOW_HOME": str(folder.parent),
            "AIRFLOW__CORE__LOAD_EXAMPLES": "False",
            "PYTHONDONTWRITEBYTECODE": "",
            "PYTHONPYCACHEPREFIX": str(folder.parent / "bytecode"),
        },
        check=True,
        stdout=subprocess.PIPE,
    )
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    if len(found["tasks"]) != CAMPAIGNS:
        sys.exit(f"{folder.name} gave {len(found['tasks'])} DAGs instead of {CAMPAIGNS}")
    return found


def write_campaigns(folder: Path) -> None:
    examples = sorted(EXAMPLES.iterdir())
    for number, example in enumerate(islice(cycle(examples), CAMPAIGNS)):
        copytree(example, folder / "campaigns" / f"{example.name}_{number:03}")
    (folder / "campaigns.py").write_text(OURS)


def write_plain(folder: Path, tasks: list[int]) -> None:
    folder.mkdir()
    for number, count in enumerate(tasks):
        (folder / f"plain_{number:03}.py").write_text(PLAIN.format(number=number, tasks=count))


def rounds(ours: Path, plain: Path) -> Iterator[tuple[str, float, float]]:
    for number in range(1, ROUNDS + 1):
        for folder in (ours, plain):
            found = parse_in_a_process(folder)
            print(f"  round {number}  {folder.name:10}{found['seconds']:8.2f} s", flush=True)
            yield folder.name, found["seconds"], found["cpu"]


def main() -> None:
    print(f"Parsing: {CAMPAIGNS} campaigns")
    with tempfile.TemporaryDirectory() as name:
        ours, plain = Path(name, "campaigns"), Path(name, "plain")
        write_campaigns(ours)
        tasks = parse_in_a_process(ours)["tasks"]  # an extra parsing, so that all files are in the cache
        write_plain(plain, tasks)
        parse_in_a_process(plain)
        seen = list(rounds(ours, plain))
    medians = {which: median(s for name, s, _ in seen if name == which) for which in ("campaigns", "plain")}
    cpu = {which: median(c for name, _, c in seen if name == which) for which in medians}
    print(f"\n{CAMPAIGNS} DAGs with {sum(tasks)} tasks, medians of {ROUNDS} rounds, in a DAG processor")
    for which, seconds in medians.items():
        print(f"  {which:10}{seconds:8.2f} s {1000 * seconds / CAMPAIGNS:8.1f} ms for each")
    figures = {
        "campaigns": CAMPAIGNS,
        "tasks": sum(tasks),
        f"parse_{CAMPAIGNS}_seconds": round(medians["campaigns"], 3),
        f"parse_{CAMPAIGNS}_cpu_seconds": round(cpu["campaigns"], 3),
        "plain_seconds": round(medians["plain"], 3),
        "plain_cpu_seconds": round(cpu["plain"], 3),
        "cpu_ms_beyond_plain": round(1000 * (cpu["campaigns"] - cpu["plain"]) / CAMPAIGNS, 2),
        "ratio_to_plain": round(medians["campaigns"] / medians["plain"], 2),
    }
    print(json.dumps({"benchmark": "parse", **figures}))


if __name__ == "__main__":
    if len(sys.argv) > 1:
        print(json.dumps(parse(sorted(Path(sys.argv[1]).glob("*.py")))))
    else:
        main()
