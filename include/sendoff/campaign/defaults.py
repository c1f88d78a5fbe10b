"""Defaults for all campaigns of a folder, from the file ``defaults.yaml`` beside the campaigns' own folders.

A campaign's own value wins. The sections, such as ``gates``, are merged field by field. Each field of a section is one
value: ``gates.window`` comes from one of the two files, never from both.

The section ``rules`` is different: it holds for all campaigns, and a campaign cannot replace it. Campaigns without such
a file get the rules of the file that ``SENDOFF_DEFAULTS`` names.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import Any

from sendoff.campaign.deployment_rules import DeploymentRules
from sendoff.campaign.error_messages import MOST_MISTAKES
from sendoff.campaign.field_types import FrozenModel, describe, did_you_mean
from sendoff.campaign.model import Campaign, mistakes_of, schema_with_rules, validated
from sendoff.campaign.yaml_document import (
    MOST_YAML,
    UnfitFileError,
    YamlDocument,
    YamlPath,
    document_of,
    leads_out,
    read_text,
)
from sendoff.errors import CampaignError, Finding
from sendoff.settings import defaults_file

DEFAULTS = "defaults.yaml"

FIELDS = (
    "post_backs", "audience", "gates", "on_doubt", "approval", "report", "connection", "warehouse", "dbt",
    "schedule_time_zone", "start", "owner", "tags", "segment_size", "parallelism", "pool", "retries", "alert_after",
)  # fmt: skip
"""The fields that may have a default: not the content of a campaign, its recipients or its times."""

RULES = "rules"
NO_RULES = (
    "found rules, which hold for all campaigns. Move them to defaults.yaml, beside the campaigns' folders"
)
_ALL = (*FIELDS, RULES)
_RULES = DeploymentRules.model_fields
_SECTIONS: dict[str, type[FrozenModel]] = {
    name: type(default)
    for name in _ALL
    if isinstance(default := Campaign.model_fields[name].default, FrozenModel)
}
_FILES_OF_A_FOLDER = ("file", "query")  # kinds of exclusions that read a file of the campaign's folder


@dataclass(frozen=True, slots=True)
class Setting:
    """A field that may have a default: its path, its value in JSON's types, and the file that sets it.

    ``origin``: ``campaign.yaml``, ``defaults.yaml``, ``Python`` or ``built in``. ``line``: the line in
    ``defaults.yaml``.
    """

    path: str
    value: Any
    origin: str
    line: int | None = None


@dataclass(frozen=True, slots=True)
class Defaults:
    """The content of ``defaults.yaml`` in JSON's types, and the line of each value in it."""

    tree: Mapping[str, Any] = field(default_factory=dict)
    lines: Mapping[YamlPath, int] = field(default_factory=dict)

    def under(self, own: Mapping[str, Any]) -> tuple[dict[str, Any], dict[YamlPath, int]]:
        """Return a campaign's tree with the defaults that it does not replace, and the places and lines of these.

        Rules of its own are left out.
        """
        own = {name: each for name, each in own.items() if name != RULES}
        tree = dict(own)
        inherited: dict[YamlPath, int] = {}
        for name, default in self.tree.items():
            if name not in _SECTIONS:
                if name not in own and _applies((name,), own):
                    tree[name], inherited[(name,)] = default, self.lines[(name,)]
            elif isinstance(section := own.get(name, {}), dict):
                used = {
                    key: default[key] for key in default if key not in section and _applies((name, key), own)
                }
                tree[name] = {**used, **section}
                inherited |= {(name, key): self.lines[name, key] for key in used}
        return tree, inherited


def _applies(place: tuple[str, ...], own: Mapping[str, Any]) -> bool:
    """Check whether a default makes sense in a campaign: some of the fields depend on other ones."""
    if place == ("schedule_time_zone",):
        return own.get("schedule") is not None
    if place == ("approval", "above"):
        return "needed" not in _members(own, "approval")
    if place in (("audience", "columns"), ("audience", "partitions")):
        if _members(own, "targeting").get("kind", "query") != "query":
            return False
        source = _members(_members(own, "audience"), "source")
        return not source or (place[1] == "columns" and source.get("kind") != "verdicts")
    return True


def _members(tree: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    return members if isinstance(members := tree.get(name), dict) else {}


def read_defaults(folder: Path) -> Defaults:
    """Read the defaults of the campaigns in ``folder``; without the file, there are none.

    Raise one CampaignError that lists all mistakes of the file.
    """
    file = folder / DEFAULTS
    if leads_out(file, folder):
        raise _error(file, "found a link that leads out of the folder. Use a file inside the folder")
    return _read(file)


def _read(file: Path) -> Defaults:
    try:
        document = _checked(read_text(file, "YAML", MOST_YAML))
    except FileNotFoundError:
        if file.is_symlink():
            raise _error(file, "found a link to a file that does not exist. Correct or remove it") from None
        if (other := file.with_suffix(".yml")).exists():
            raise _error(other, f"Sendoff does not read this file. Rename it to {DEFAULTS}") from None
        return Defaults()
    except UnfitFileError as error:
        raise _error(file, str(error)) from None
    if document.problems:
        raise CampaignError.of(document.findings(file)[:MOST_MISTAKES])
    return Defaults(document.tree or {}, document.lines)


def _error(file: Path, text: str) -> CampaignError:
    return CampaignError.of([Finding(file, text)])


@lru_cache(maxsize=8)  # all campaigns of a folder have the same file
def _checked(text: str) -> YamlDocument:
    document = document_of(text)
    tree = document.tree
    if not isinstance(tree, dict):
        if tree is not None:
            document.report((), f"found {describe(tree)}. Use a mapping")
        return document
    for name in tree:
        if name not in _ALL:
            document.report((name,), _no_default(name))
    # A title is all that a campaign needs besides: broken_rules checks the rest, in each campaign.
    _, errors = validated({"title": "Defaults", **{name: tree[name] for name in tree if name in _ALL}})
    for place, problem in [*mistakes_of(errors[:MOST_MISTAKES]), *_exclusions_of_folders(tree)]:
        document.report(place, problem)
    return document


def _no_default(name: str) -> str:
    if name in Campaign.model_fields:
        return f"{name!r} cannot have a default. Move it to each campaign.yaml"
    hint = f" (did you mean 'rules.{name}'?)" if name in _RULES else did_you_mean(name, _ALL)
    return f"{name!r} is not a field{hint}. Use {', '.join(sorted(_ALL))}"


def _exclusions_of_folders(tree: Mapping[str, Any]) -> Iterator[tuple[YamlPath, str]]:
    """Yield each exclusion that reads a file, because the campaigns' folders do not share files."""
    audience = tree.get("audience")
    exclusions = audience.get("exclude") if isinstance(audience, dict) else None
    for number, exclusion in enumerate(exclusions if isinstance(exclusions, list) else ()):
        if isinstance(exclusion, dict) and exclusion.get("kind") in _FILES_OF_A_FOLDER:
            found = f"found kind: {exclusion['kind']}, which reads a file of a campaign's folder"
            yield ("audience", "exclude", number), f"{found}. Use kind: list or campaign"


@dataclass(frozen=True, slots=True)
class RulesOfFile:
    """The rules for all campaigns, the file that they come from, and the line of each rule in it."""

    rules: DeploymentRules
    file: Path
    lines: Mapping[str, int]


def rules_for(file: Path | None = None) -> RulesOfFile | None:
    """Return the rules of a defaults file, or of the one that ``SENDOFF_DEFAULTS`` names; None if there are none.

    ``file``: the file, or the folder that it is in. Raise CampaignError if the file does not exist or has mistakes.
    """
    named = file or defaults_file()
    if named is None:
        return None
    path = (named / DEFAULTS if named.is_dir() else named).absolute()
    if not path.is_file():
        raise _error(path, "there is no such file. Correct SENDOFF_DEFAULTS, or the argument defaults")
    return rules_of(_read(path), path)


def rules_of(defaults: Defaults, file: Path) -> RulesOfFile | None:
    """Return the rules of defaults that were read from a file, or None if it has none."""
    if RULES not in defaults.tree:
        return None
    rules = DeploymentRules.model_validate(defaults.tree[RULES])
    lines = {name: defaults.lines[RULES, name] for name in defaults.tree[RULES]}
    return RulesOfFile(rules, file, lines)


def settings_of(campaign: Campaign, inherited: Mapping[YamlPath, int], own: str) -> list[Setting]:
    """Return every field that may have a default, in the order of the reference.

    ``inherited``: the places with a value from ``defaults.yaml``, and their lines there. ``own``: the origin of the
    campaign's own values.
    """
    found = []
    for name, value in campaign.model_dump(mode="json", include=set(FIELDS)).items():
        section = getattr(campaign, name) if name in _SECTIONS else None
        values = {(name, key): each for key, each in value.items()} if section else {(name,): value}
        given = section.model_fields_set if section else campaign.model_fields_set
        for place, each in values.items():
            origin = DEFAULTS if place in inherited else own if place[-1] in given else "built in"
            found.append(Setting(".".join(place), each, origin, inherited.get(place)))
    return found


def rules_settings(found: RulesOfFile, origin: str) -> list[Setting]:
    """Return the rules for all campaigns that are set, each with its line in the file."""
    values = found.rules.model_dump(mode="json", exclude_unset=True)
    return [Setting(f"{RULES}.{name}", value, origin, found.lines[name]) for name, value in values.items()]


def defaults_schema() -> dict[str, Any]:
    """Return the JSON Schema of ``defaults.yaml``, which editors use to complete and check the file."""
    schema = schema_with_rules()
    return {
        "$schema": schema["$schema"],
        "$defs": used_definitions({name: schema["properties"][name] for name in _ALL}, schema["$defs"]),
        "title": "Defaults",
        "description": "Values for all campaigns of a folder; a campaign's own value wins. Rules hold for all of them.",
        "type": "object",
        "additionalProperties": False,
        "properties": {name: schema["properties"][name] for name in _ALL},
    }


def used_definitions(node: Any, definitions: Mapping[str, Any]) -> dict[str, Any]:
    """Return the definitions that a part of a schema refers to."""
    found: dict[str, Any] = {}
    ahead = [node]
    while ahead:
        node = ahead.pop()
        if isinstance(node, dict):
            name = str(node.get("$ref", "")).rpartition("/")[2]
            if name and name not in found:
                found[name] = definitions[name]
                ahead.append(definitions[name])
            ahead += node.values()
        elif isinstance(node, list):
            ahead += node
    return found
