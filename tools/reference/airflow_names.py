"""docs/reference/operators.md: what a DAG file or a task uses of ``sendoff_airflow``."""

from __future__ import annotations

from collections.abc import Iterator

import griffe

from tools.reference.markdown import code, first_sentence, table
from tools.reference.sources import line_of, meanings, modules, parameter_table, signature, text_of

KINDS = {
    "Operator": ("Operators", "execute"),
    "Sensor": ("Sensors", "execute"),
    "Trigger": ("Triggers", "run"),
    "Hook": ("Hooks", "get_conn"),
    "Notifier": ("Notifiers", "notify"),
    "Link": ("Links", "get_link"),
}
"""How the name of a class ends: its heading, and the method without which it is a beginning for others only."""

_HEAD = """\
# Operators

Every operator, sensor, trigger, hook, notifier and link of `sendoff_airflow`, and its macros. How they are put together
is told in [Airflow](airflow.md), what the DAG factory makes of them in [the DAG factory](dag-factory.md). What is
*templated* may hold Jinja. Operators and sensors take the arguments of `BaseOperator` as well."""


def page() -> str:
    """Write the page."""
    parts = [_HEAD]
    for ending, (heading, _) in KINDS.items():
        found = sorted(classes(ending), key=_place)
        if found:
            parts += [f"## {heading}", *map(_class, found)]
    for module in modules():
        if "MACROS" in module.members and not module.members["MACROS"].is_alias:
            parts += ["## Macros", text_of(module), table(["Macro", "Gives"], _macros(module))]
    return "\n\n".join(parts) + "\n"


def classes(ending: str) -> Iterator[griffe.Class]:
    """Give the public classes of a kind that can be used as they are."""
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


def member(owner: griffe.Class, name: str) -> griffe.Function | None:
    """Give a method of a class or, where it has none of its own, of the classes of this package that it extends."""
    for each in [owner, *owner.mro()]:
        found = each.members.get(name)
        if isinstance(found, griffe.Function):
            return found
    return None


def _place(each: griffe.Class) -> tuple[bool, str, int]:
    return home(each) != "sendoff_airflow.operators", each.module.path, line_of(each)


def home(each: griffe.Class) -> str:
    """Give the module that a class is imported from: a package that exports those of its modules, else its own."""
    package = each.module.parent
    return package.path if package and each.name in (package.exports or ()) else each.module.path


def _class(each: griffe.Class) -> str:
    parts = [f"### {each.name}", f"`from {home(each)} import {each.name}`", text_of(each)]
    if begin := member(each, "__init__"):
        said = {
            name: text for owner in [*reversed(each.mro()), each] for name, text in meanings(owner).items()
        }
        parts.append(parameter_table(begin, said))
    parts += [_templated(each), _returns(each)]
    if each.name.endswith("Hook"):
        parts.append(table(["Method", "Does"], _methods(each)))
    return "\n\n".join(part for part in parts if part)


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
    return f"Type of what it returns: {code(method.returns)}."


def _methods(each: griffe.Class) -> Iterator[list[str]]:
    for method in sorted(each.functions.values(), key=line_of):
        if not method.name.startswith("_") and method.docstring:
            yield [code(signature(method)), first_sentence(method.docstring.value)]


def _macros(module: griffe.Object) -> Iterator[list[str]]:
    for function in module.functions.values():
        if not function.name.startswith("_") and function.docstring:
            yield [code(f"macros.sendoff.{signature(function)}"), first_sentence(function.docstring.value)]
