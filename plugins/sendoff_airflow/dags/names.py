"""Whether a campaign's name is another DAG's: a campaign that takes over an unpaused DAG would send at once.

Airflow itself allows two files to define the same DAG ID: whichever it read last counts, and the DAG stays unpaused.
While DAG files are read there is no database to ask. So the sources of the other files are searched for DAG IDs, and
what that cannot find is looked for in the history of runs, before a launch is frozen.
"""

from __future__ import annotations

import ast
import sys
from collections.abc import Collection, Iterator, Mapping
from pathlib import Path
from typing import Any

from airflow.sdk import Context, conf
from airflow.sdk.exceptions import AirflowFailException
from airflow.utils.file import list_py_file_paths

_FACTORIES = ("doubts_dag", "maintenance_dag", "reconcile_dag")


def names_in_use(folder: Path, names: Collection[str]) -> Mapping[str, Path]:
    """Return those of some names that a Python file of the DAGs folder gives to a DAG, each with the file.

    ``folder``: the campaigns. Files are read and not run, so a name must stand in the file: as a text, as a constant of
    the module, as the name of a function with ``@dag``, or as the name of the file (``Path(__file__).stem``). Files
    that Airflow does not read are passed over, and so are zip files.
    """
    files: dict[str, Path] = {}
    for file in map(Path, list_py_file_paths(_dags_folder(folder.absolute()))):
        try:
            source = file.read_bytes() if file.suffix == ".py" else b""
        except OSError:
            continue
        if file.stem in names or any(name.encode() in source for name in names):
            files |= {name: file for name in _dag_ids(source, file) if name in names}
    return files


def refuse_runs_of_others(context: Context) -> None:
    """Raise AirflowFailException if the DAG has runs that no campaign made: it is another DAG's name.

    A run of a campaign has a task ``audience``. Airflow is asked for numbers first, and for the tasks of each run only
    if there are some that the campaign does not have, as after an upgrade.
    """
    instance: Any = context["ti"]
    dag = instance.task.dag
    all_tasks = instance.get_ti_count(dag_id=dag.dag_id)
    if all_tasks == instance.get_ti_count(dag_id=dag.dag_id, task_ids=sorted(dag.task_ids)):
        return
    for run_id, tasks in instance.get_task_states(dag_id=dag.dag_id).items():
        if "audience" not in tasks:
            raise AirflowFailException(
                f"Nothing was sent: the DAG {dag.dag_id} was another DAG's before this campaign took its name. Its run "
                f"{run_id!r} has no task 'audience'. Rename the campaign's folder. If the other DAG is gone for good, "
                f"delete the DAG {dag.dag_id} in Airflow, which deletes its runs, and unpause the campaign."
            )


def _dags_folder(folder: Path) -> Path:
    """Return the DAGs folder or bundle that holds ``folder``, or else the DAGs folder that Airflow is configured with.

    Airflow puts the folder of a bundle on Python's path. Other folders of that path may hold much more: that in which
    the process runs, and those above the DAGs folder.
    """
    configured = Path(conf.get("core", "dags_folder")).absolute()
    if configured in folder.parents:
        return configured
    larger = {Path.cwd(), *configured.parents}
    on_path = (path for path in folder.parents if str(path) in sys.path and path not in larger)
    return next(on_path, configured)


def _dag_ids(source: bytes, file: Path) -> Iterator[str]:
    """Yield the DAG IDs that stand in a Python file."""
    try:
        tree = ast.parse(source)
    except (SyntaxError, ValueError, RecursionError):
        return
    constants: dict[str, str] = {}
    for statement in tree.body:
        if (
            isinstance(statement, ast.Assign)
            and (text := _text(statement.value, constants, file)) is not None
        ):
            constants |= {target.id: text for target in statement.targets if isinstance(target, ast.Name)}
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef):
            if any(_name(mark) == "dag" and _id_of(mark) is None for mark in node.decorator_list):
                yield node.name
        elif (value := _id_of(node)) is not None and (text := _text(value, constants, file)) is not None:
            yield text


def _id_of(node: ast.AST) -> ast.expr | None:
    """Return what a call gives as the ID of a DAG; None for any other call, and one that gives none."""
    if not isinstance(node, ast.Call):
        return None
    name = _name(node)
    if not name.endswith("DAG") and name not in ("dag", *_FACTORIES):
        return None
    named = [keyword.value for keyword in node.keywords if keyword.arg == "dag_id"]
    return next(iter([*named, *(() if name in _FACTORIES else node.args)]), None)


def _name(node: ast.expr) -> str:
    """Return the last part of the name that is called, or decorates."""
    called = node.func if isinstance(node, ast.Call) else node
    if isinstance(called, ast.Attribute):
        return called.attr
    return called.id if isinstance(called, ast.Name) else ""


def _text(node: ast.expr, constants: Mapping[str, str], file: Path) -> str | None:
    """Return the text that an expression stands for, as far as it can be read without running it."""
    if isinstance(node, ast.Constant):
        return node.value if isinstance(node.value, str) else None
    if isinstance(node, ast.Name):
        return constants.get(node.id)
    of_file = any(isinstance(part, ast.Name) and part.id == "__file__" for part in ast.walk(node))
    return file.stem if of_file else None
