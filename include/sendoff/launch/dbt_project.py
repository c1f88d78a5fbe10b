"""Models of a dbt project: their tables from its manifest, and gates from its last run. dbt itself never runs.

.. code-block:: text

    manifest.json ...... tables, columns and tests, and which model reads what
    run_results.json ... when a model was built, and how its tests ended
    sources.json ....... how fresh the sources are; only needed if a source has a limit in dbt
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from functools import cached_property
from pathlib import Path
from typing import Any

import orjson

from sendoff.audience import GROUP_COLUMNS, IDENTIFIER_COLUMNS, template_columns
from sendoff.campaign import (
    Campaign,
    CampaignFolder,
    Dbt,
    DbtModelSource,
    Reference,
    did_you_mean,
    references_in,
    with_references,
)
from sendoff.errors import CampaignError, GateError
from sendoff.figures import duration
from sendoff.warehouse import code_of, usual_dialect

ReadArtifact = Callable[[str], bytes]
"""Reads a file of dbt's by its path or URL. Raises OSError if it cannot be read, FileNotFoundError if it is missing."""

_TABLES = ("model", "seed", "snapshot")
_BUILDS_NOTHING = ("clone", "compile", "generate", "parse", "run-operation", "show")
"""Commands of dbt that write ``run_results.json`` too. Compiling a model or a test counts as a success there."""
_NAMES = {
    "integer": "int, integer, bigint, smallint, tinyint, mediumint, hugeint, int2, int4, int8, int16, int32, int64, "
    "byteint, long, short, ubigint, uinteger, usmallint, utinyint, serial, bigserial",
    "number": "numeric, decimal, number, bignumeric, float, double, real, float4, float8, float32, float64, "
    "double precision",
    "text": "text, string, varchar, char, bpchar, nvarchar, nchar, character, character varying, clob",
    "boolean": "bool, boolean",
    "date": "date",
    "timestamp": "timestamp, timestamptz, datetime, timestamp_ntz, timestamp_ltz, timestamp_tz, "
    "timestamp with time zone, timestamp without time zone",
}
"""The names of the usual warehouses for each type of a contract; a type that is not here is not compared."""

_TYPES = {name: type_ for type_, names in _NAMES.items() for name in names.split(", ")}


def read_local(path: str) -> bytes:
    """Read a file of dbt's from this machine."""
    if "://" in path:
        raise CampaignError(
            f"dbt.artifacts: only Airflow reads {path.partition('://')[0]}://. Here, use the path of a folder"
        )
    return Path(path).read_bytes()


def with_dbt_tables(folder: CampaignFolder, read: ReadArtifact, now: datetime) -> CampaignFolder:
    """Return a campaign whose queries name the tables of its dbt models and sources, after the gates of the models.

    Raise CampaignError if the manifest cannot be read or lacks a model or source. Raise GateError if a model is not
    as the campaign needs it. Both before a row is read.
    """
    source = folder.campaign.audience.source
    model = Reference("ref", (source.name,)) if isinstance(source, DbtModelSource) else None
    references = folder.dbt_references()
    if not references:
        return folder
    audience_sql = folder.audience_sql or ""
    place = f"campaign {folder.name}"
    try:
        project = _Project.read(folder, read)
        found = {reference: project.node(reference) for reference in references}
        tables = {reference: _table(reference, node) for reference, node in found.items()}
    except CampaignError as error:
        raise CampaignError(f"{place}: {error}") from None
    of_audience = [model] if model else [each.reference for each in references_in(audience_sql)]
    problems = [
        *_columns_problems(folder, [found[reference] for reference in dict.fromkeys(of_audience)]),
        *project.problems(list({node["unique_id"]: node for node in found.values()}.values()), now),
    ]
    if why := "; ".join(problems):
        raise GateError(f"{place}: nothing was sent: {why}", not_launched=f"dbt: {why}")
    exclusions = {file: _resolved(sql, tables) for file, sql in folder.exclusion_sql.items()}
    sql = _select(folder.campaign, found[model], tables[model]) if model else _resolved(audience_sql, tables)
    return replace(folder, audience_sql=sql or folder.audience_sql, exclusion_sql=exclusions)


def _resolved(sql: str, tables: Mapping[Reference, str]) -> str:
    return with_references(sql, lambda found: tables[found.reference])


def _table(reference: Reference, node: Mapping[str, Any]) -> str:
    if not node.get("relation_name"):
        raise CampaignError(f"dbt makes no table or view of {reference}. Use a model that is not ephemeral")
    return str(node["relation_name"])


def _select(campaign: Campaign, node: Mapping[str, Any], table: str) -> str:
    """Return the query of a whole model: the columns of its contract that a launch uses, or all without a contract."""
    used = {*IDENTIFIER_COLUMNS, *GROUP_COLUMNS}
    used |= {name.lower() for name in (*template_columns(campaign), *campaign.audience.columns)}
    names = [name for name in _columns(node) if name.lower() in used] if _has_contract(node) else []
    return f"SELECT {', '.join(names) or '*'} FROM {table}"  # noqa: S608 - names from the manifest


def _has_contract(node: Mapping[str, Any]) -> bool:
    return bool((node.get("contract") or node.get("config", {}).get("contract") or {}).get("enforced"))


def _columns(node: Mapping[str, Any]) -> dict[str, str | None]:
    """Return the columns of a model with their types."""
    return {each["name"]: each.get("data_type") for each in node.get("columns", {}).values()}


def _name(node: Mapping[str, Any]) -> str:
    return f"{node['resource_type']} {node['name']}"


def _columns_problems(folder: CampaignFolder, nodes: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    """Compare the contracts of the models that the audience reads with the columns that the campaign names."""
    campaign = folder.campaign
    models = [node for node in nodes if node["resource_type"] == "model"]
    if not campaign.dbt.contract or not models:
        return
    if without := [node["name"] for node in models if not _has_contract(node)]:
        mend = "Add contract: {enforced: true} in dbt, or set dbt.contract: false"
        yield from (f"model {name} has no enforced contract. {mend}" for name in without)
        return
    types = {name.lower(): (type_, node["name"]) for node in models for name, type_ in _columns(node).items()}
    code = code_of(folder.audience_sql, usual_dialect()) if folder.audience_sql else ""
    for name in dict.fromkeys([*campaign.audience.columns, *template_columns(campaign)]):
        if re.search(rf"\bas\s+{re.escape(name)}\b", code, re.IGNORECASE):
            continue  # the query itself makes this column
        if name.lower() not in types:
            of = " and ".join(node["name"] for node in models)
            yield f"the contract of model {of} has no column {name}{did_you_mean(name, list(types))}"
            continue
        declared, model = types[name.lower()]
        expected = campaign.audience.columns.get(name)
        if expected and expected.type and not _fits(declared, expected.type):
            yield (
                f"column {name} has the type {declared} in the contract of model {model}, but audience.columns "
                f"expects {expected.type}"
            )


def _fits(declared: str | None, expected: str) -> bool:
    """Check whether a type of a contract fits a type of a campaign. A type that is not known fits every type."""
    text = (declared or "").lower().strip()
    known = _TYPES.get(re.sub(r"\s*\(.*\)", "", text).strip())
    if known == "number" and expected == "integer":
        return bool(re.fullmatch(r"number(\(\d+(,\s*0)?\))?|(numeric|decimal)\(\d+(,\s*0)?\)", text))
    return known is None or known == expected or (known, expected) == ("integer", "number")


@dataclass(frozen=True)
class _Project:
    """The artifacts of a dbt project, and the campaign's gates for them. An artifact that is missing is empty."""

    dbt: Dbt
    manifest: Mapping[str, Any]
    run_results: Mapping[str, Any]
    source_results: Mapping[str, Any]

    @classmethod
    def read(cls, folder: CampaignFolder, read: ReadArtifact) -> _Project:
        dbt = folder.campaign.dbt
        if (place := dbt.artifacts) is None:
            raise CampaignError(
                "its query names dbt models. Set dbt.artifacts to the folder with manifest.json"
            )
        if "://" not in place:
            place = str(folder.path.parent / place)
        names = ("manifest.json", "run_results.json", "sources.json")
        manifest, results, sources = (_artifact(f"{place.rstrip('/')}/{name}", read) for name in names)
        if "nodes" not in manifest:
            raise CampaignError(
                f"{place}/manifest.json: there is no manifest. Run dbt, and correct dbt.artifacts if it is elsewhere"
            )
        if (results.get("args") or {}).get("which") in _BUILDS_NOTHING:
            results = {}
        return cls(dbt, manifest, results, sources)

    def node(self, reference: Reference) -> Mapping[str, Any]:
        """Return what a reference names. Raise CampaignError if the manifest does not have it, or twice."""
        found: list[Mapping[str, Any]]
        if reference.kind == "source":
            nodes = list(self.manifest.get("sources", {}).values())
            found = [each for each in nodes if (each["source_name"], each["name"]) == reference.names]
            known = [f"{each['source_name']}.{each['name']}" for each in nodes]
        else:
            nodes = [each for each in self.manifest["nodes"].values() if each["resource_type"] in _TABLES]
            found = [each for each in nodes if self._is_named(each, reference)]
            known = [each["name"] for each in nodes]
            own = self.manifest.get("metadata", {}).get("project_name")
            found = [each for each in found if each["package_name"] == own] or found
        if len(found) == 1:
            return found[0]
        if found:
            raise CampaignError(f"the manifest has {reference} in several packages. Name the package first")
        raise CampaignError(
            f"the manifest has no {reference}{did_you_mean('.'.join(reference.names[-2:]), known)}. "
            "Correct the name, or run dbt"
        )

    @staticmethod
    def _is_named(node: Mapping[str, Any], reference: Reference) -> bool:
        if node["name"] != reference.names[-1] or reference.names[:-1] not in ((), (node["package_name"],)):
            return False
        wanted = reference.version or node.get("latest_version")
        return wanted is None or str(node.get("version")) == str(wanted)

    def problems(self, nodes: Sequence[Mapping[str, Any]], now: datetime) -> Iterator[str]:
        """Yield why these models and sources are not ready: an old or failed build, failed tests, or old sources."""
        for node in nodes:
            if node["resource_type"] != "source":
                yield from self._build_problems(node, now)
            if self.dbt.tests != "ignore":
                yield from self._test_problems(node)
        yield from self._source_problems(nodes, now)

    @cached_property
    def _results(self) -> Mapping[str, Mapping[str, Any]]:
        return {each["unique_id"]: each for each in self.run_results.get("results", [])}

    def _build_problems(self, node: Mapping[str, Any], now: datetime) -> Iterator[str]:
        if self.dbt.fresh_within is None:
            return
        result = self._results.get(node["unique_id"])
        if result is None:
            yield f"run_results.json has no build of {_name(node)}. Run dbt build"
        elif result["status"] != "success":
            yield f"the last build of {_name(node)} ended with {result['status']}"
        else:
            ends = [each["completed_at"] for each in result.get("timing", []) if each.get("completed_at")]
            built = max(map(_moment, ends or [self.run_results["metadata"]["generated_at"]]))
            yield from self._age_problem(f"{_name(node)} was built", built, now)

    def _age_problem(self, what: str, at: datetime, now: datetime) -> Iterator[str]:
        limit = self.dbt.fresh_within
        if limit and now - at > limit.timedelta():
            age = duration(int((now - at) / timedelta(seconds=1)))
            yield f"{what} at {at:%Y-%m-%d %H:%M} UTC, {age} ago; dbt.fresh_within allows {limit.words}"

    def _test_problems(self, node: Mapping[str, Any]) -> Iterator[str]:
        accepted = {"pass", "success"} | ({"warn"} if self.dbt.tests == "warn" else set())
        for test in self.manifest["nodes"].values():
            if test["resource_type"] != "test" or node["unique_id"] not in test["depends_on"]["nodes"]:
                continue
            result = self._results.get(test["unique_id"])
            if result is None:
                yield f"run_results.json has no result of test {test['name']} of {_name(node)}. Run dbt build"
            elif result["status"] not in accepted:
                yield f"test {test['name']} of {_name(node)} ended with {result['status']}"

    def _source_problems(self, nodes: Sequence[Mapping[str, Any]], now: datetime) -> Iterator[str]:
        """Yield the sources, also those that the models read, which are older than their limit in dbt allows."""
        if self.dbt.fresh_within is None:
            return
        results = {each["unique_id"]: each for each in self.source_results.get("results", [])}
        for source in self._limited_sources(nodes):
            name, result = f"{source['source_name']}.{source['name']}", results.get(source["unique_id"])
            if result is None:
                yield f"sources.json has no freshness of source {name}. Run dbt source freshness"
            elif result["status"] not in ("pass", "warn"):
                yield f"the freshness of source {name} ended with {result['status']}"
            else:
                yield from self._age_problem(
                    f"the freshness of source {name} was checked", _moment(result["snapshotted_at"]), now
                )

    def _limited_sources(self, nodes: Sequence[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
        found: dict[str, Mapping[str, Any]] = {}
        ahead = [node["unique_id"] for node in nodes]
        seen = set(ahead)
        while ahead:
            name = ahead.pop()
            if source := self.manifest.get("sources", {}).get(name):
                limits = source.get("freshness") or {}
                if any((limits.get(each) or {}).get("count") for each in ("warn_after", "error_after")):
                    found[name] = source
                continue
            parents = self.manifest["nodes"].get(name, {}).get("depends_on", {}).get("nodes", [])
            ahead += [parent for parent in parents if parent not in seen]
            seen.update(parents)
        return [found[name] for name in sorted(found)]


def _artifact(path: str, read: ReadArtifact) -> dict[str, Any]:
    try:
        found = orjson.loads(read(path))
    except FileNotFoundError:
        return {}
    except (OSError, ValueError) as error:
        why = getattr(error, "strerror", None) or "it is damaged"
        raise CampaignError(f"{path}: the file cannot be read ({why})") from None
    return found if isinstance(found, dict) else {}


def _moment(text: str) -> datetime:
    at = datetime.fromisoformat(text)
    return at.replace(tzinfo=UTC) if at.tzinfo is None else at.astimezone(UTC)
