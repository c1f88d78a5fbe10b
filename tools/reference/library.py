"""Generate docs/reference/python.md: the public names of ``import sendoff``."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import griffe

import sendoff
from tools.reference.markdown import code, first_sentence, table
from tools.reference.sources import meanings, package, parameter_table, parameters, signature, text_of

CLASSES = {
    "app.App": "App",
    "launch.Launch": "Launch",
    "results.LaunchPreview": "LaunchPreview",
    "results.Report": "Report",
    "results.Verdicts": "Verdicts",
    "results.Suppressions": "Suppressions",
    "results.SuppressionEntries": "SuppressionEntries",
}
"""The classes of the page: the place in ``sendoff.app``, and the name."""

_HEAD = """\
# Python library

The public names of `import sendoff`. [Use Sendoff from Python](../how-to/use-from-python.md) shows them at work. Other
names of the package may change."""
_OTHERS = {
    "Campaign": "A campaign. Its arguments are the fields of [`campaign.yaml`](campaign-fields.md); nested ones may be "
    "dictionaries",
    "VerdictsOf": "The recipients that the newest report of a launch has some verdicts for, as an audience: "
    '`sendoff.VerdictsOf(launch.key, ("missing",))`',
    "Period": "The logical time of a launch. `Period.of` reads every form that `prepare` takes",
}


def page() -> str:
    """Write the page."""
    app = package("sendoff.app")
    connect = app["app.connect"]
    parts = [
        _HEAD,
        "## Names",
        table(["Name", "Meaning"], _names()),
        "## connect",
        *_function(connect, f"sendoff.{signature(connect)}", meanings(connect)),
    ]
    for place, name in CLASSES.items():
        found = app[place]
        assert isinstance(found, griffe.Class)
        parts += [f"## {name}", text_of(found), *_members(found)]
    return "\n\n".join(part for part in parts if part) + "\n"


def _names() -> Iterator[list[str]]:
    errors = package("sendoff.errors")
    app = package("sendoff.app")
    for name in sendoff.__all__:
        if name in errors.members:
            docstring = errors[name].docstring
            yield [code(name), f"{first_sentence(docstring.value)}. See [errors](errors.md)"]
        elif name in _OTHERS:
            yield [code(name), _OTHERS[name]]
        else:
            place = next(place for place in ("app.connect", *CLASSES) if place.endswith(f".{name}"))
            yield [f"[`{name}`](#{name.lower()})", first_sentence(app[place].docstring.value)]


def _members(owner: griffe.Class) -> Iterator[str]:
    known: dict[str, str] = {}
    members = (
        each.final_target if isinstance(each, griffe.Alias) else each for each in owner.all_members.values()
    )
    for each in sorted(members, key=lambda member: member.lineno or 0):
        if each.name.startswith("_") or not each.docstring:
            continue
        yield f"### {owner.name}.{each.name}"
        if isinstance(each, griffe.Function):
            known |= meanings(each)  # a method that says nothing has the arguments of those before it
            yield from _function(each, signature(each), known)
        else:
            assert isinstance(each, griffe.Object)
            yield text_of(each)


def _function(function: griffe.Function, call: str, known: Mapping[str, str]) -> Iterator[str]:
    yield code(call)
    yield text_of(function)
    found = parameters(function)
    yield parameter_table(found, {each.name: known[each.name] for each in found if each.name in known})
