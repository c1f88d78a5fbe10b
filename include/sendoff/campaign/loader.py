"""A campaign's folder: ``campaign.yaml``, ``audience.sql`` where a query chooses the people, maybe ``outcome.sql``."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

from pydantic import ValidationError
from pydantic_core import ErrorDetails

from sendoff.campaign.audience_rules import FileExclusion, QueryExclusion
from sendoff.campaign.field_types import did_you_mean, shown
from sendoff.campaign.files import MOST_SQL, UnfitFileError, read_text
from sendoff.campaign.model import Campaign
from sendoff.campaign.yaml_document import Document, Place, Problem, read_document
from sendoff.errors import CampaignError
from sendoff.warehouse import Spot, jinja_at, named_parameters

_NAME = re.compile(r"[A-Za-z0-9_-][A-Za-z0-9_.-]{0,99}", re.ASCII)
_OUTCOME = "outcome.sql"
_LEADS_OUT = "{}: found a link that leads out of the campaign's folder; allowed: a file of the folder itself"
_MOST = 50  # mistakes of a file that are told one by one
_QUOTED = re.compile(r"'([^']+)'")
_MAPPING = ("model_type", "model_attributes_type", "dict_type")
_ALLOWED = {
    **dict.fromkeys(_MAPPING, "a mapping"),
    "tuple_type": "a list",
    "too_short": "one or more",
    "string_type": "a text",
    "string_too_short": "a text that is not empty",
    "int_type": "a whole number",
    **dict.fromkeys(("float_parsing", "float_type", "int_parsing"), "a number, such as 5"),
    "bool_type": "true or false",
    "date_type": "a date as YYYY-MM-DD",
}


@dataclass(frozen=True, slots=True)
class CampaignFolder:
    """A campaign with its name (the folder's), its query (None: the service chooses the people) and its folder.

    ``exclusion_sql``: the queries whose people are left out, by the name of their file. ``outcome_sql``: the query that
    says what people did afterwards, where the folder has one.
    """

    name: str
    campaign: Campaign
    audience_sql: str | None = field(repr=False)
    path: Path
    exclusion_sql: Mapping[str, str] = field(default_factory=dict, repr=False)
    outcome_sql: str | None = field(default=None, repr=False)

    def place_of(self, *place: str) -> str:
        """Return where ``campaign.yaml`` holds a field, with its line if it is still there, for an error."""
        file = self.path / "campaign.yaml"
        line = read_document(file).lines.get(place)
        return f"{file}:{line}: {'.'.join(place)}" if line else f"{file}: {'.'.join(place)}"

    def needed_outcome_sql(self) -> str:
        """Give the query that says what people did afterwards, or raise CampaignError where there is none."""
        if self.outcome_sql is None:
            raise CampaignError(f"{self.path / _OUTCOME}: found no such file; allowed: the outcome query")
        return self.outcome_sql


def load_campaign(folder: Path) -> CampaignFolder:
    """Read a campaign's folder, or raise one CampaignError that names everything that is wrong with it."""
    folder = folder.absolute()
    try:
        return _loaded(folder)
    except OSError as error:
        problem = error.strerror
    raise CampaignError(f"{folder}: found a folder that cannot be read ({problem}); allowed: one that can")


def _loaded(folder: Path) -> CampaignFolder:
    file = folder / "campaign.yaml"
    if _leads_out(file):
        raise CampaignError(_LEADS_OUT.format(file))
    document = read_document(file)
    campaign = _checked(document) if isinstance(document.tree, dict) else None
    if document.tree is not None and not isinstance(document.tree, dict):
        document.report((), f"found {shown(document.tree)}; allowed: a mapping")
    problems = [
        _line(file, problem) for problem in sorted(document.problems, key=lambda each: each.line or 0)
    ]
    audience_sql = _audience_sql(folder, campaign, problems)
    exclusion_sql = _exclusion_sql(folder, campaign, problems)
    has_outcome = (folder / _OUTCOME).exists() or (folder / _OUTCOME).is_symlink()
    outcome_sql = _sql(folder / _OUTCOME, "the outcome query", problems) if has_outcome else None
    if not _NAME.fullmatch(folder.name):
        problems.append(
            f"{folder}: found a folder {folder.name!r}; allowed: letters, digits, _, - and . (at most 100)"
        )
    if problems or campaign is None:
        raise CampaignError("\n".join(problems))
    return CampaignFolder(folder.name, campaign, audience_sql, folder, exclusion_sql, outcome_sql)


def campaign_schema() -> dict[str, Any]:
    """Give the JSON Schema of ``campaign.yaml``, by which editors complete and check it."""
    schema = Campaign.model_json_schema()
    for node in schema["$defs"].values():
        if "const" in node.get("properties", {}).get("kind", ()):  # has a default in Python, none in the file
            del node["properties"]["kind"]["default"]
            node["required"] = ["kind", *node.get("required", ())]
    return {"$schema": "https://json-schema.org/draft/2020-12/schema", **schema}


def _checked(document: Document) -> Campaign | None:
    """Check the tree; where unknown fields are all that is wrong, look again without them for broken rules.

    Of very many mistakes the first are told one by one, and how many there are besides.
    """
    campaign, errors = _validated(document.tree)
    unknown = [error["loc"] for error in errors if error["type"] == "extra_forbidden"]
    if errors and len(unknown) == len(errors) <= _MOST:
        errors += _validated(_without(document.tree, unknown))[1]
    is_channel_unknown = any(loc[-2:-1] == ("channels",) for loc in unknown)
    told, more = errors[:_MOST], errors[_MOST:]
    for error in told:
        if error["type"] != "too_short" or not any(
            _lies_within(other["loc"], error["loc"]) for other in told
        ):
            _report(document, error, is_channel_unknown=is_channel_unknown)
    if more:
        document.report(more[0]["loc"], f"found {len(more)} more mistakes; allowed: none")
    return campaign


def _lies_within(inner: Place, outer: Place) -> bool:
    """Say whether a place lies inside another; a list whose only item is wrong counts as empty, which is not news."""
    return len(inner) > len(outer) and inner[: len(outer)] == outer


def _validated(tree: Any) -> tuple[Campaign | None, list[ErrorDetails]]:
    try:
        return Campaign.model_validate(tree), []
    except ValidationError as error:
        return None, error.errors(include_url=False)


def _without(tree: Any, unknown: Sequence[Place], place: Place = ()) -> Any:
    """Copy a tree without the fields at some places (given as pydantic does, with steps that are not in the tree)."""
    if isinstance(tree, list):
        return [_without(item, unknown, (*place, number)) for number, item in enumerate(tree)]
    if isinstance(tree, dict):
        return {
            key: _without(value, unknown, (*place, key))
            for key, value in tree.items()
            if not any(loc[-1] == key and _leads_to(loc, (*place, key)) for loc in unknown)
        }
    return tree


def _leads_to(loc: Place, place: Place) -> bool:
    steps = iter(loc)
    return all(step in steps for step in place)


def _report(document: Document, error: ErrorDetails, *, is_channel_unknown: bool) -> None:
    """Report an error; not that the content lacks a channel where one has only a wrong name."""
    if error["type"] == "campaign_rules":
        for path, text in error["ctx"]["broken"]:
            if not (is_channel_unknown and _is_about_channels(path)):
                document.report(path, text)
    else:
        document.report(error["loc"], _sentence(error))


def _is_about_channels(path: Sequence[str]) -> bool:
    place = path[2:] if path[0] == "variants" else path
    return place[:1] in (("message",), ("channels",), ("push_expiry",))


def _sentence(error: ErrorDetails) -> str:
    """Say what was found and what is allowed; never the words of a message."""
    kind, loc = error["type"], error["loc"]
    context = error.get("ctx", {})
    if kind == "campaign":
        return error["msg"]
    if kind == "missing":
        return f"found no {loc[-1]}; allowed: {loc[-1]} is required"
    if kind == "extra_forbidden":
        return _unknown_field(loc)
    if kind == "union_tag_not_found":
        return f"found no kind; allowed: kind is one of {', '.join(_kinds_at(loc))}"
    if kind in _MAPPING and isinstance(error["input"], list):
        return f"found {shown(error['input'])}; allowed: {_mapping_like(error['input'], loc)}"
    found = shown(context.get("tag", error["input"]))
    choices = _QUOTED.findall(context.get("expected_tags") or context.get("expected") or "")
    hint = did_you_mean(context.get("tag", error["input"]), choices)
    if kind == "union_tag_invalid":
        return f"found kind {found}{hint}; allowed: {context['expected_tags']}"
    words = error["msg"].removeprefix("Input should be ").removeprefix("String should have ")
    return f"found {found}{hint}; allowed: {_ALLOWED.get(kind, words)}"


def _mapping_like(items: Sequence[Any], loc: Place) -> str:
    """Say how a field is named, where a list holds the names of fields: channels are often listed at first."""
    names = (name for name in items if isinstance(name, str) and name in _fields_at(loc))
    example = next(names, None)
    return f"a mapping, for example `{example}:` on a line of its own" if example else "a mapping"


def _unknown_field(loc: Place) -> str:
    allowed = sorted(_fields_at(loc[:-1]))
    hint = did_you_mean(str(loc[-1]), allowed)
    return f"found the unknown field {str(loc[-1])!r}{hint}; allowed: {', '.join(allowed)}"


def _fields_at(loc: Place) -> set[str]:
    """Give the fields that a mapping may have, by the schema."""
    return {name for node in _nodes_at(loc) for name in node.get("properties", {})}


def _kinds_at(loc: Place) -> list[str]:
    return [node["properties"]["kind"]["const"] for node in _nodes_at(loc)]


@cache
def _schema() -> dict[str, Any]:
    return campaign_schema()


def _nodes_at(loc: Place) -> list[Mapping[str, Any]]:
    schema = _schema()
    nodes = _variants(schema, schema["$defs"])
    for step in loc:
        inner = [inner for node in nodes for inner in _inside(node, step)]
        nodes = [variant for node in inner for variant in _variants(node, schema["$defs"])]
    return nodes


def _variants(node: Mapping[str, Any], definitions: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    if "$ref" in node:
        node = definitions[node["$ref"].rsplit("/", 1)[1]]
    choices = node.get("anyOf") or node.get("oneOf")
    return (
        [variant for choice in choices for variant in _variants(choice, definitions)] if choices else [node]
    )


def _inside(node: Mapping[str, Any], step: str | int) -> Iterator[Mapping[str, Any]]:
    """Go one step down; a step that names one of several kinds keeps the node of that kind."""
    properties = node.get("properties", {})
    if isinstance(step, int):
        yield from [node["items"]] if "items" in node else []
    elif step in properties:
        yield properties[step]
    elif isinstance(node.get("additionalProperties"), dict):
        yield node["additionalProperties"]
    elif "kind" not in properties or properties["kind"].get("const") == step:
        yield node


def _line(file: Path, problem: Problem) -> str:
    where = f"{file}: " if problem.line is None else f"{file}:{problem.line}: "
    return f"{where}{problem.path}: {problem.text}" if problem.path else where + problem.text


def _audience_sql(folder: Path, campaign: Campaign | None, problems: list[str]) -> str | None:
    """Read the query where people are chosen by one; a query that would not be asked is a mistake too."""
    file = folder / "audience.sql"
    if campaign and campaign.targeting.kind != "query":
        if file.exists():
            problems.append(
                f"{file}: found a query; allowed: none with targeting.kind: {campaign.targeting.kind}"
            )
        return None
    sql = _sql(file, "the query that gives the people", problems)
    if campaign and sql and (problem := _parts_problem(sql, campaign.audience.parts)):
        problems.append(f"{file}: {problem}")
    return sql


def _parts_problem(sql: str, parts: int | None) -> str | None:
    """Say what is wrong where a query is read in parts and does not give them, or the other way round."""
    named = set(named_parameters(sql))
    if parts is None:
        used = [f":{name}" for name in ("part", "parts") if name in named]
        allowed = "neither, or audience.parts in campaign.yaml"
        return f"found {' and '.join(used)} without audience.parts; allowed: {allowed}" if used else None
    missing = [f":{name}" for name in ("part", "parts") if name not in named]
    return (
        f"found no {' and no '.join(missing)} beside audience.parts: {parts}; allowed: both, such as "
        "WHERE device_id % :parts = :part, or rows come several times or not at all"
        if missing
        else None
    )


def _exclusion_sql(folder: Path, campaign: Campaign | None, problems: list[str]) -> dict[str, str]:
    """Read the queries whose people are left out, and see that the files of such people are there."""
    queries: dict[str, str] = {}
    for exclusion in campaign.audience.exclude if campaign else ():
        if isinstance(exclusion, QueryExclusion):
            sql = _sql(folder / exclusion.file, "the query of the people who are left out", problems)
            queries[exclusion.file] = sql or ""
        elif isinstance(exclusion, FileExclusion) and _leads_out(folder / exclusion.file):
            problems.append(_LEADS_OUT.format(folder / exclusion.file))
        elif isinstance(exclusion, FileExclusion) and not (folder / exclusion.file).is_file():
            problems.append(
                f"{folder / exclusion.file}: found no such file; allowed: the people who are left out, as CSV"
            )
    return queries


def _leads_out(file: Path) -> bool:
    """Say whether a file is a link to one outside of its folder; links inside of it are how volumes are mounted."""
    try:
        return file.is_symlink() and not file.resolve().is_relative_to(file.parent.resolve())
    except RuntimeError:  # a link that leads to itself, before Python 3.13; whoever reads it is told so
        return False


def _sql(file: Path, meant: str, problems: list[str]) -> str | None:
    if _leads_out(file):
        problems.append(_LEADS_OUT.format(file))
        return None
    try:
        sql = read_text(file, "SQL", MOST_SQL)
    except FileNotFoundError:
        problems.append(f"{file}: found no such file; allowed: {meant}")
    except UnfitFileError as error:
        problems.append(f"{file}: {error}")
    else:
        if not sql.strip():
            problems.append(f"{file}: found an empty file; allowed: {meant}")
        if (at := jinja_at(sql)) is not None:
            problems.append(
                f"{file}:{Spot.at(sql, at).line}: found Jinja, such as {{{{ ds }}}}, which nothing renders here; "
                "allowed: the parameters of a query, such as :period_start and :period_end, without quotes"
            )
        return sql
    return None
