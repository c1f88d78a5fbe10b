"""dbt: where a campaign finds the artifacts of its project, and what a model must fulfil before a launch."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal, NamedTuple

from sendoff.campaign.field_types import Flag, FrozenModel, Text, optional
from sendoff.campaign.gates import Duration
from sendoff.warehouse import code_of, jinja_at, usual_dialect

_REFERENCE = re.compile(
    r"\{\{-?\s*(?P<kind>ref|source)\s*\(\s*(?P<first>'[^'{}]+'|\"[^\"{}]+\")"
    r"(?:\s*,\s*(?P<second>'[^'{}]+'|\"[^\"{}]+\"))?"
    r"(?:\s*,\s*v(?:ersion)?\s*=\s*(?P<version>\d+|'[^'{}]+'|\"[^\"{}]+\"))?\s*\)\s*-?\}\}"
)


class Dbt(FrozenModel):
    """The dbt project whose models the audience query reads, and the gates of these models."""

    artifacts: Text | None = optional(
        "Folder with manifest.json and run_results.json of dbt: a path, or the URL of an object store. "
        "variable://NAME is the Airflow variable with one of these. A path starts at the folder of the campaigns"
    )
    contract: Flag = optional(
        "Whether each model must have an enforced contract, which audience.columns is compared with", True
    )
    fresh_within: Duration | None = optional(
        "How long ago the last build of each model may be; null: any time", Duration(length=1, unit="days")
    )
    tests: Literal["pass", "warn", "ignore"] = optional(
        "Results of the models' tests that a launch accepts. pass: no failures; warn: tests that only warn may fail; "
        "ignore: any",
        "warn",
    )


@dataclass(frozen=True, slots=True)
class Reference:
    """A model or a source that a query names in Jinja: its names, as in ``ref`` and ``source``, and its version."""

    kind: Literal["ref", "source"]
    names: tuple[str, ...]
    version: str | None = None

    def __str__(self) -> str:
        names = [f"'{name}'" for name in self.names]
        return f"{self.kind}({', '.join([*names, f'v={self.version}'] if self.version else names)})"


class FoundReference(NamedTuple):
    """A reference in a query, with its start and its end."""

    reference: Reference
    start: int
    end: int


def references_in(sql: str) -> list[FoundReference]:
    """Return the dbt references of a query. Texts and comments have none."""
    if "{{" not in sql:
        return []
    found = []
    code = code_of(sql, usual_dialect())
    for match in _REFERENCE.finditer(sql):
        if code[match.start() : match.start() + 2] != "{{":
            continue
        names = tuple(name[1:-1] for name in match.group("first", "second") if name)
        kind: Literal["ref", "source"] = "ref" if match["kind"] == "ref" else "source"
        version = match["version"]
        reference = Reference(kind, names, version.strip("'\"") if version else None)
        found.append(FoundReference(reference, *match.span()))
    return found


def other_jinja_at(sql: str) -> int | None:
    """Return the offset of the first Jinja in a query that is no dbt reference, or None."""
    return jinja_at(with_references(sql, lambda found: " " * (found.end - found.start)))


def with_references(sql: str, replacement: Callable[[FoundReference], str]) -> str:
    """Return a query with its dbt references replaced."""
    parts, at = [], 0
    for found in references_in(sql):
        parts += [sql[at : found.start], replacement(found)]
        at = found.end
    return "".join([*parts, sql[at:]])
