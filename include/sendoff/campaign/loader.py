"""Read a campaign's folder: ``campaign.yaml``, the audience query if it has one, and the queries for comparisons.

``outcome.sql`` and ``before.sql`` are optional, and the second needs the first.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from copy import deepcopy
from pathlib import Path
from typing import Any

from sendoff.campaign.audience_rules import (
    Exclusion,
    FileExclusion,
    QueryExclusion,
)
from sendoff.campaign.campaign_folder import (
    ALLOWED_NAMES,
    AUDIENCE,
    BEFORE,
    CAMPAIGN,
    NO_JINJA,
    OUTCOME,
    CampaignFolder,
    chooser_of,
    is_campaign_name,
    jinja_problem,
    partitions_problem,
)
from sendoff.campaign.defaults import (
    DEFAULTS,
    NO_RULES,
    RULES,
    read_defaults,
    rules_for,
    rules_of,
)
from sendoff.campaign.error_messages import MOST_MISTAKES
from sendoff.campaign.field_types import describe
from sendoff.campaign.model import Campaign, mistakes_of, validated
from sendoff.campaign.period import OUTCOME_PARAMETERS, QUERY_PARAMETERS
from sendoff.campaign.validation import broken_rules, broken_texts
from sendoff.campaign.yaml_document import (
    MOST_SQL,
    UnfitFileError,
    YamlDocument,
    YamlPath,
    leads_out,
    read_document,
    read_text,
)
from sendoff.errors import CampaignError, Finding
from sendoff.warehouse import Spot, is_blank, jinja_at, named_parameters, refusal, texts_of

_PARAMETERS = {
    OUTCOME: OUTCOME_PARAMETERS,
    BEFORE: OUTCOME_PARAMETERS,
}
"""The parameters of queries by file. Others have the usual ones."""
_PARTS = ("part", "parts")


def load_folder(folder: Path, *, has_audience: bool = True, defaults: Path | None = None) -> CampaignFolder:
    """Read a campaign's folder, with the defaults from ``defaults.yaml`` beside it.

    ``defaults``: the file with the rules for all campaigns if the one beside the folder has none; by default the one
    that ``SENDOFF_DEFAULTS`` names.

    Raise one CampaignError that lists all mistakes: of the defaults, or else of the folder. Without ``has_audience``,
    ``audience.sql`` is not read: the caller adds an audience.
    """
    folder = folder.absolute()
    try:
        return FolderReader(folder, defaults).read(has_audience)
    except OSError as error:
        mistake = Finding(folder, f"the folder cannot be read ({error.strerror})")
    raise CampaignError.of([mistake])


def refused_queries(folder: Path, queries: Mapping[str, str]) -> Iterator[Finding]:
    """Yield the mistakes of queries that a launch or a report refuses before they run. ``queries``: SQL by file."""
    for file, sql in queries.items():
        known: tuple[str, ...] = _PARAMETERS.get(file, QUERY_PARAMETERS)
        if file == AUDIENCE and not set(_PARTS).isdisjoint(named_parameters(sql)):
            known += _PARTS  # the campaign has partitions, or another mistake says that it needs them
        if problem := refusal(sql, known):
            yield Finding(folder / file, str(problem), problem.line)


def quoted_parameters(folder: Path, queries: Mapping[str, str]) -> Iterator[Finding]:
    """Yield a warning for each text of a query that is the name of a parameter. ``queries``: SQL by file."""
    for file, sql in queries.items():
        for text, line in texts_of(sql):
            if text[:1] == ":" and text[1:] in (*_PARAMETERS.get(file, QUERY_PARAMETERS), *_PARTS):
                found = f"{text} in quotes is a text, which is not replaced by the parameter's value"
                yield Finding(folder / file, f"{found}. Remove the quotes", line)


def _checked(document: YamlDocument, tree: Mapping[str, Any]) -> Campaign | None:
    """Check a document's tree with its defaults, and report the mistakes: the first 50, the others as a number.

    If unknown fields are the only mistakes, check the rules without them too.
    """
    campaign, errors = validated(tree)
    whole = campaign
    unknown = [error["loc"] for error in errors if error["type"] == "extra_forbidden"]
    if errors and len(unknown) == len(errors) <= MOST_MISTAKES:
        whole, others = validated(_without(tree, unknown))
        errors += others
    mistakes = mistakes_of(errors[:MOST_MISTAKES])
    mistakes += [(rule.path, rule.text) for rule in broken_texts(tree)]
    is_channel_unknown = any(loc[-2:-1] == ("channels",) for loc in unknown)
    for rule in broken_rules(whole) if whole else ():
        # If a channel's name is misspelled, rules about missing channels would only repeat that.
        if not (is_channel_unknown and _is_about_channels(rule.path)):
            mistakes.append((rule.path, rule.text))
    for loc, text in mistakes[:MOST_MISTAKES]:
        document.report(loc, text)
    if more := [
        *(error["loc"] for error in errors[MOST_MISTAKES:]),
        *(loc for loc, _ in mistakes[MOST_MISTAKES:]),
    ]:
        document.report(more[0], f"there are {len(more)} more mistakes")
    return campaign


def _without(tree: Mapping[str, Any], unknown: Sequence[YamlPath]) -> dict[str, Any]:
    """Copy a tree without the fields at some places, which pydantic names with steps that are not in the tree."""
    known = deepcopy(dict(tree))
    for *steps, name in unknown:
        node: Any = known
        for step in steps:
            inner = (
                node.get(step) if isinstance(node, dict) else node[step] if isinstance(step, int) else None
            )
            node = inner if isinstance(inner, dict | list) else node
        node.pop(name, None)
    return known


def _is_about_channels(path: YamlPath) -> bool:
    place = path[2:] if path[0] == "variants" else path
    return place[:1] in (("message",), ("channels",), ("push_expiry",))


class FolderReader:
    """Reads the files of a folder, and collects their mistakes."""

    def __init__(self, folder: Path, defaults: Path | None) -> None:
        self._folder = folder
        self._defaults = read_defaults(folder.parent)
        self._rules = rules_of(self._defaults, folder.parent / DEFAULTS) or rules_for(defaults)
        self._mistakes: list[Finding] = []
        self._queries: dict[str, str] = {}  # by file, without those that have a mistake already

    def read(self, has_audience: bool) -> CampaignFolder:
        """Return the campaign. Raise CampaignError with all mistakes."""
        if self._leads_out(CAMPAIGN):
            raise self._error()
        campaign, inherited = self._campaign()
        audience_sql = self._audience_sql(campaign) if has_audience else None
        exclusion_sql = self._exclusion_sql(campaign.audience.exclude if campaign else (), campaign)
        outcome_sql = self._sql(OUTCOME, "the outcome query") if self._has(OUTCOME) else None
        before_sql = self._before_sql() if self._has(BEFORE) else None
        name = self._folder.name
        if not is_campaign_name(name):
            self._refuse("", f"found a folder {name!r}. {ALLOWED_NAMES}")
        if self._mistakes or campaign is None:
            raise self._error()
        return CampaignFolder(
            name,
            campaign,
            audience_sql,
            self._folder,
            exclusion_sql,
            outcome_sql,
            before_sql,
            inherited=inherited,
            rules=self._rules,
        )

    def _campaign(self) -> tuple[Campaign | None, Mapping[YamlPath, int]]:
        """Return the campaign, and the places and lines of the defaults that it uses."""
        document = read_document(self._folder / CAMPAIGN)
        campaign: Campaign | None = None
        if isinstance(document.tree, dict):
            tree, document.inherited = self._defaults.under(document.tree)
            if RULES in document.tree:
                document.report((RULES,), NO_RULES)
            if self._rules:
                tree[RULES] = self._rules.rules
            campaign = _checked(document, tree)
        elif document.tree is not None:
            document.report((), f"found {describe(document.tree)}. Use a mapping")
        self._mistakes += document.findings(self._folder / CAMPAIGN)
        return campaign, document.inherited

    def _refuse(self, file: str, text: str, line: int | None = None) -> None:
        self._mistakes.append(Finding(self._folder / file, text, line))

    def _error(self) -> CampaignError:
        """Return the error with all mistakes, also those of queries that would be found only later."""
        return CampaignError.of([*self._mistakes, *refused_queries(self._folder, self._queries)])

    def _audience_sql(self, campaign: Campaign | None) -> str | None:
        """Read the audience query, or refuse one that targeting does not use."""
        if campaign and (chosen_by := chooser_of(campaign)):
            if (self._folder / AUDIENCE).exists():
                self._refuse(AUDIENCE, f"found a query with {chosen_by}. Remove one of them")
            return None
        sql = self._sql(AUDIENCE, "the query of the recipients", campaign, has_references=True)
        self._check_partitions(sql, campaign)
        return sql

    def _check_partitions(self, sql: str | None, campaign: Campaign | None) -> None:
        if campaign and sql and (problem := partitions_problem(sql, campaign.audience.partitions)):
            self._refuse(AUDIENCE, problem)

    def _exclusion_sql(
        self, exclusions: Iterable[Exclusion], campaign: Campaign | None = None
    ) -> dict[str, str]:
        """Read the queries of exclusions, and check that the CSV files of exclusions exist."""
        queries = {}
        for exclusion in exclusions:
            if isinstance(exclusion, QueryExclusion):
                meaning = "the query of the recipients to leave out"
                sql = self._sql(exclusion.file, meaning, campaign, has_references=campaign is not None)
                queries[exclusion.file] = sql or ""
            if not isinstance(exclusion, FileExclusion) or self._leads_out(exclusion.file):
                continue
            if not (self._folder / exclusion.file).is_file():
                self._refuse(
                    exclusion.file, "the file does not exist. Add the recipients to leave out, as CSV"
                )
        return queries

    def _has(self, name: str) -> bool:
        return (self._folder / name).exists() or (self._folder / name).is_symlink()

    def _before_sql(self) -> str | None:
        """Read the query of what people did before the launch, or refuse one without an outcome to adjust."""
        if not self._has(OUTCOME):
            self._refuse(
                BEFORE,
                f"found a query without {OUTCOME}, which it adjusts. Add {OUTCOME}, or remove this file",
            )
        return self._sql(BEFORE, "the query of what people did before the launch")

    def _sql(
        self, name: str, meaning: str, campaign: Campaign | None = None, *, has_references: bool = False
    ) -> str | None:
        """Read a query, or refuse it. ``has_references``: it may name models and sources of dbt."""
        if self._leads_out(name):
            return None
        try:
            sql = read_text(self._folder / name, "SQL", MOST_SQL)
        except FileNotFoundError:
            self._refuse(name, f"the file does not exist. Add {meaning}")
            return None
        except UnfitFileError as error:
            self._refuse(name, str(error))
            return None
        if is_blank(sql):
            self._refuse(name, f"the file is empty. Add {meaning}")
        elif has_references and (found := jinja_problem(sql, campaign)):
            self._refuse(name, *found)
        elif not has_references and (at := jinja_at(sql)) is not None:
            self._refuse(name, NO_JINJA, Spot.at(sql, at).line)
        else:
            self._queries[name] = sql
        return sql

    def _leads_out(self, name: str) -> bool:
        """Refuse a symbolic link to a file outside the folder; mounted volumes use links inside it."""
        is_outside = leads_out(self._folder / name, self._folder)
        if is_outside:
            self._refuse(
                name,
                "found a link that leads out of the campaign's folder. Use a file inside the folder",
            )
        return is_outside
