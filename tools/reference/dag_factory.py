"""Generate docs/reference/dag-factory.md: the functions that build DAGs, and the assets that the DAGs update."""

from __future__ import annotations

from collections.abc import Iterator

import griffe

from tools.reference.sources import line_of, meanings, package, parameter_table, parameters, text_of

_HEAD = """\
# The DAG factory

The functions of `sendoff_airflow.dags`, which the files of `dags/` call, and those of
`sendoff_airflow.operators.assets`. The DAG
of a campaign is described in [Airflow](campaign-dag.md)."""


def page() -> str:
    """Write the page."""
    factory, assets = package()["dags"], package()["operators.assets"]
    made = [
        each for part in ("folder", "campaign", "group", "housekeeping") for each in functions(factory[part])
    ]
    made = [each for each in made if each.name in (factory.exports or ())]
    parts = [_HEAD, "## Functions", *(_function(each, factory) for each in made)]
    parts += ["## Assets", text_of(assets), *(_function(each, assets) for each in functions(assets))]
    parts += ["## Constants", *map(_constant, [package()["errors.RETRY_DEFAULTS"], assets["POST_BACKS"]])]
    return "\n\n".join(part for part in parts if part) + "\n"


def functions(module: griffe.Object) -> Iterator[griffe.Function]:
    """Yield the public functions that return a DAG or an asset, or check campaigns."""
    own = (each for each in module.functions.values() if not each.is_alias)
    for each in sorted(own, key=line_of):
        if not each.name.startswith("_") and any(
            word in str(each.returns) for word in ("DAG", "TaskGroup", "Asset", "None")
        ):
            yield each


def _function(each: griffe.Function, module: griffe.Object) -> str:
    head = [f"### {each.name}", f"`from {module.path} import {each.name}`; returns `{each.returns}`."]
    return "\n\n".join(
        part for part in [*head, text_of(each), parameter_table(parameters(each), meanings(each))] if part
    )


def _constant(each: griffe.Attribute) -> str:
    return f"### {each.name}\n\n{text_of(each)}\n\n```python\n{each.name} = {each.value}\n```"
