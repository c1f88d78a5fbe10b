"""Generate docs/reference/operators.md: the classes and macros of ``sendoff_airflow`` for DAG files and tasks."""

from __future__ import annotations

from collections.abc import Iterator

import griffe

from tools.reference.markdown import code, first_sentence, table
from tools.reference.sources import (
    line_of,
    meanings,
    modules,
    parameter_table,
    parameters,
    signature,
    text_of,
)

KINDS = {
    "Operator": ("Operators", "execute"),
    "Sensor": ("Sensors", "execute"),
    "Trigger": ("Triggers", "run"),
    "Hook": ("Hooks", "get_conn"),
    "Notifier": ("Notifiers", "notify"),
    "Link": ("Links", "get_link"),
}
"""The suffix of a class name, its heading, and the method that a class needs to be usable as it is."""

_HEAD = """\
# Operators

All operators, sensors, triggers, hooks, notifiers, links and decorators of `sendoff_airflow`, and
its macros.
[Airflow](airflow.md) explains how to combine them, and [the DAG factory](dag-factory.md) builds DAGs from them.
*Templated* fields may contain Jinja. Operators and sensors also accept the arguments of `BaseOperator`."""


def page() -> str:
    """Write the page."""
    parts = [_HEAD]
    for ending, (heading, _) in KINDS.items():
        found = sorted(classes(ending), key=_place)
        if found:
            parts += [f"## {heading}", *map(_class, found)]
    parts += ["## Decorators", *map(_decorator, decorators())]
    for module in modules():
        if "MACROS" in module.members and not module.members["MACROS"].is_alias:
            parts += ["## Macros", text_of(module), table(["Macro", "Meaning"], _macros(module))]
    return "\n\n".join(parts) + "\n"


def classes(ending: str) -> Iterator[griffe.Class]:
    """Yield the public classes of a kind that can be used as they are."""
    _, method = KINDS[ending]
    for module in modules():
        for name, each in module.classes.items():
            if (
                name.endswith(ending)
                and not name.startswith("_")
                and not each.is_alias
                and member(each, method)
            ):
                yield each


def decorators() -> Iterator[griffe.Function]:
    """Yield the functions that Airflow calls for a decorator ``@task.NAME``; each is called ``NAME_task``."""
    for module in modules():
        for each in module.functions.values():
            if not each.is_alias and str(each.returns) == "TaskDecorator":
                yield each


def member(owner: griffe.Class, name: str) -> griffe.Function | None:
    """Return a method of a class, or of the classes of this package that it extends."""
    for each in [owner, *owner.mro()]:
        found = each.members.get(name)
        if isinstance(found, griffe.Function):
            return found
    return None


def _place(each: griffe.Class) -> tuple[bool, str, int]:
    return home(each) != "sendoff_airflow.operators", each.module.path, line_of(each)


def home(each: griffe.Class) -> str:
    """Return the module to import a class from: its package if that exports the class, otherwise its own module."""
    package = each.module.parent
    return package.path if package and each.name in (package.exports or ()) else each.module.path


def _class(each: griffe.Class) -> str:
    parts = [f"### {each.name}", f"`from {home(each)} import {each.name}`", text_of(each)]
    said = {name: text for owner in [*reversed(each.mro()), each] for name, text in meanings(owner).items()}
    parts.append(parameter_table(_parameters(each), said))
    parts += [_templated(each), _returns(each)]
    if each.name.endswith("Hook"):
        parts.append(table(["Method", "Meaning"], _methods(each)))
    return "\n\n".join(part for part in parts if part)


def _decorator(each: griffe.Function) -> str:
    return f"### @task.{each.name.removesuffix('_task')}\n\n{text_of(each)}"


def _parameters(each: griffe.Class) -> list[griffe.Parameter]:
    """Return the parameters of a class, the required ones first, with those of classes that it extends."""
    begins = (owner.members.get("__init__") for owner in [each, *each.mro()])
    found = [name for begin in begins if isinstance(begin, griffe.Function) for name in parameters(begin)]
    unique = list({name.name: name for name in reversed(found)}.values())[::-1]
    return sorted(unique, key=lambda name: name.default is not None)


def _templated(each: griffe.Class) -> str:
    for owner in [each, *each.mro()]:
        fields = owner.members.get("template_fields")
        if isinstance(fields, griffe.Attribute) and isinstance(fields.value, griffe.ExprTuple):
            names = [str(name).strip("'\"") for name in fields.value.elements]
            return f"Templated: {', '.join(map(code, names))}." if names else ""
    return ""


def _returns(each: griffe.Class) -> str:
    method = member(each, "execute")
    if method is None or str(method.returns) in ("None", "Any"):
        return ""
    return f"Returns: {code(method.returns)}."


def _methods(each: griffe.Class) -> Iterator[list[str]]:
    for method in sorted(each.functions.values(), key=line_of):
        if not method.name.startswith("_") and method.docstring:
            yield [code(signature(method)), first_sentence(method.docstring.value)]


def _macros(module: griffe.Object) -> Iterator[list[str]]:
    for function in module.functions.values():
        if not function.name.startswith("_") and function.docstring:
            yield [code(f"macros.sendoff.{signature(function)}"), first_sentence(function.docstring.value)]
