"""Check whether another DAG has a campaign's name: a campaign that takes over an unpaused DAG would send at once.

Airflow allows two files to define the same DAG ID. The file it read last counts, and the DAG stays unpaused. Airflow
has no database access while it reads DAG files. So this module searches the sources of the other files for DAG IDs.
Before a launch is frozen, it also checks the history of runs for what that search cannot find.
"""

from __future__ import annotations

import ast
import sys
from collections.abc import Collection, Iterator, Mapping
from pathlib import Path
from typing import Any

from airflow.sdk import Context, conf
from airflow.sdk._shared.module_loading import find_path_from_directory
from airflow.sdk.exceptions import AirflowFailException

AUDIENCE = "audience"
"""The task that each launch begins with."""
_FACTORIES = ("doubts_dag", "maintenance_dag", "reconcile_dag", "send_test_dag", "suppression_dag")


def names_in_use(folder: Path, names: Collection[str]) -> Mapping[str, Path]:
    """Return the names that a Python file of the DAGs folder uses as a DAG ID, each with the file.

    ``folder``: the campaigns. ``names``: those of campaigns, journeys and steps. Files are parsed but not run, so the
    name must be in the file. It can be text, a constant of the module, the name of a function with ``@dag``, or the
    name of the file (``Path(__file__).stem``). Files that Airflow does not read are ignored, and so are zip files.
    """
    files: dict[str, Path] = {}
    syntax = conf.get("core", "dag_ignore_file_syntax", fallback="glob")
    for file in map(
        Path, find_path_from_directory(_dags_folder(folder.absolute()), ".airflowignore", syntax)
    ):
        try:
            source = file.read_bytes() if file.suffix == ".py" else b""
        except OSError:
            continue
        if file.stem in names or any(name.encode() in source for name in names):
            files |= {name: file for name in _dag_ids(source, file) if name in names}
    return files


def refuse_runs_of_others(context: Context) -> None:
    """Raise AirflowFailException if the DAG has runs of another DAG.

    Every run of a campaign has the task ``audience``, and every run of a journey has that of a step, such as
    ``hello.audience``. Steps may be renamed, so that of any step counts. This function first counts tasks, and reads
    the tasks of each run only if there are some that the DAG does not have, for example after an upgrade.
    """
    instance: Any = context["ti"]
    dag = instance.task.dag
    all_tasks = instance.get_ti_count(dag_id=dag.dag_id)
    if all_tasks == instance.get_ti_count(dag_id=dag.dag_id, task_ids=sorted(dag.task_ids)):
        return
    for run_id, tasks in instance.get_task_states(dag_id=dag.dag_id).items():
        if not any(task.rpartition(".")[2] == AUDIENCE for task in tasks):
            raise AirflowFailException(
                f"Nothing was sent: before this campaign, another DAG had the name {dag.dag_id}. Its run "
                f"{run_id!r} has no task {AUDIENCE!r}. Rename the campaign's folder. If the other DAG is "
                f"gone for good, delete the DAG {dag.dag_id} in Airflow, which deletes its runs, and unpause the "
                "campaign."
            )


def _dags_folder(folder: Path) -> Path:
    """Return the DAGs folder or bundle that holds ``folder``, or else the DAGs folder of Airflow's configuration.

    Airflow puts the folder of a bundle on Python's path. The working directory and folders above the DAGs folder may
    also be on it. They may hold much more, so they do not count.
    """
    configured = Path(conf.get("core", "dags_folder")).absolute()
    if configured in folder.parents:
        return configured
    larger = {Path.cwd(), *configured.parents}
    on_path = (path for path in folder.parents if str(path) in sys.path and path not in larger)
    return next(on_path, configured)


def _dag_ids(source: bytes, file: Path) -> Iterator[str]:
    """Yield the DAG IDs in a Python file."""
    try:
        tree = ast.parse(source)
    except (SyntaxError, ValueError, RecursionError):
        return
    constants: dict[str, str] = {}
    for statement in tree.body:
        if (
            isinstance(statement, ast.Assign | ast.AnnAssign)
            and statement.value is not None
            and (text := _text(statement.value, constants, file)) is not None
        ):
            targets = statement.targets if isinstance(statement, ast.Assign) else [statement.target]
            constants |= {target.id: text for target in targets if isinstance(target, ast.Name)}
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            if any(_name(mark) == "dag" and _id_of(mark) is None for mark in node.decorator_list):
                yield node.name
        elif (value := _id_of(node)) is not None and (text := _text(value, constants, file)) is not None:
            yield text


def _id_of(node: ast.AST) -> ast.expr | None:
    """Return the DAG ID argument of a call, or None if the call makes no DAG or has no such argument."""
    if not isinstance(node, ast.Call):
        return None
    name = _name(node)
    if not name.endswith("DAG") and name not in ("dag", *_FACTORIES):
        return None
    named = [keyword.value for keyword in node.keywords if keyword.arg == "dag_id"]
    return next(iter([*named, *(() if name in _FACTORIES else node.args)]), None)


def _name(node: ast.expr) -> str:
    """Return the last part of the name of a called function or a decorator."""
    called = node.func if isinstance(node, ast.Call) else node
    if isinstance(called, ast.Attribute):
        return called.attr
    return called.id if isinstance(called, ast.Name) else ""


def _text(node: ast.expr, constants: Mapping[str, str], file: Path) -> str | None:
    """Return the text value of an expression, or None if it is not known without running it."""
    if isinstance(node, ast.Constant):
        return node.value if isinstance(node.value, str) else None
    if isinstance(node, ast.Name):
        return constants.get(node.id)
    of_file = any(isinstance(part, ast.Name) and part.id == "__file__" for part in ast.walk(node))
    return file.stem if of_file else None
