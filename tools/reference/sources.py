"""Read names, signatures and docstrings with griffe, without importing the packages. This does not need Airflow."""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache
from pathlib import Path

import griffe

from tools.reference.markdown import code, prose, table

ROOT = Path(__file__).resolve().parents[2]
SHARED = {
    "ledger_conn_id": "the connection of the ledger",
    "receiver_conn_id": "the connection of the receiver of post-backs",
    "sendoff_conn_id": "the connection of the messaging service",
}
"""The meaning of a parameter, unless the docstring describes it."""


@cache
def package(name: str = "sendoff_airflow") -> griffe.Module:
    """Return a package."""
    loaded = griffe.load(
        name,
        search_paths=[ROOT / "plugins", ROOT / "include"],
        docstring_parser="sphinx",
        docstring_options={"warnings": False},  # a field may describe a parameter of one of Airflow's classes
        allow_inspection=False,
    )
    assert isinstance(loaded, griffe.Module)
    return loaded


def modules(module: griffe.Module | None = None) -> Iterator[griffe.Module]:
    """Yield all modules of the package in the order of their names."""
    module = module or package()
    yield module
    for _, each in sorted(module.modules.items()):
        if not each.is_alias:
            yield from modules(each)


def line_of(each: griffe.Class | griffe.Function) -> int:
    """Return the line of a definition, to sort definitions as in their file."""
    return each.lineno or 0


def text_of(each: griffe.Object) -> str:
    """Return the text of a docstring before its fields."""
    sections = each.docstring.parsed if each.docstring else []
    return "\n\n".join(
        prose(part.value) for part in sections if isinstance(part, griffe.DocstringSectionText)
    )


def meanings(each: griffe.Object) -> dict[str, str]:
    """Return the descriptions of parameters in the fields of a docstring."""
    sections = each.docstring.parsed if each.docstring else []
    fields = [part for part in sections if isinstance(part, griffe.DocstringSectionParameters)]
    return {field.name: prose(field.description) for part in fields for field in part.value}


def parameters(function: griffe.Function) -> list[griffe.Parameter]:
    """Return the parameters of a function, without self, ``*args`` and ``**kwargs``."""
    variadic = (griffe.ParameterKind.var_keyword, griffe.ParameterKind.var_positional)
    return [each for each in function.parameters if each.name != "self" and each.kind not in variadic]


def parameter_table(found: list[griffe.Parameter], said: dict[str, str]) -> str:
    """Return a table of the parameters, with meanings if there are any; empty without parameters."""
    known = SHARED | said
    rows = [
        [code(each.name), code(each.annotation or ""), default(each), known.get(each.name, "")]
        for each in found
    ]
    others = said.keys() - {each.name for each in found}
    rows += [[code(name), "", "Airflow's", said[name]] for name in said if name in others]
    if not rows:
        return ""
    if not any(row[3] for row in rows):
        return table(["Parameter", "Type", "Default"], [row[:3] for row in rows])
    return table(["Parameter", "Type", "Default", "Meaning"], rows)


def default(parameter: griffe.Parameter) -> str:
    """Return a parameter's default, with the values of the package's own constants."""
    return "required" if parameter.default is None else code(_value(parameter.default))


def _value(value: str | griffe.Expr) -> str:
    found = _constant(value) if isinstance(value, griffe.ExprName) else None
    return str(value) if found is None or found.value is None else _value(found.value)


def _constant(name: griffe.ExprName) -> griffe.Attribute | None:
    try:
        found = package()[name.canonical_path.removeprefix("sendoff_airflow.")]
    except KeyError:
        return None
    found = found.final_target if isinstance(found, griffe.Alias) else found
    return found if isinstance(found, griffe.Attribute) else None


def signature(function: griffe.Function) -> str:
    """Return a function's signature without types, with a star before the parameters that must be named."""
    names: list[str] = []
    for each in parameters(function):
        if each.kind is griffe.ParameterKind.keyword_only and "*" not in names:
            names.append("*")
        names.append(each.name)
    return f"{function.name}({', '.join(names)})"
