"""Read a campaign's folder: ``campaign.yaml``, the audience query if it has one, and the queries for comparisons.

``outcome.sql`` and ``before.sql`` are optional, and the second needs the first.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sendoff.campaign.audience_rules import (
    DbtModelSource,
    Exclusion,
    FileExclusion,
    QueryExclusion,
    VerdictsOf,
)
from sendoff.campaign.dbt import Reference, other_jinja_at, references_in
from sendoff.campaign.defaults import (
    DEFAULTS,
    RULES,
    RulesOfFile,
    Setting,
    read_defaults,
    rules_for,
    rules_of,
    rules_settings,
    settings_of,
)
from sendoff.campaign.error_messages import MOST_MISTAKES, sentence, sentences, validated
from sendoff.campaign.field_types import describe
from sendoff.campaign.model import Campaign
from sendoff.campaign.validation import broken_rules, broken_texts, check_campaign
from sendoff.campaign.yaml_document import (
    MOST_SQL,
    UnfitFileError,
    YamlDocument,
    YamlPath,
    dotted,
    leads_out,
    read_document,
    read_text,
)
from sendoff.errors import CampaignError, Finding
from sendoff.warehouse import Spot, jinja_at, named_parameters

if TYPE_CHECKING:
    from sendoff.warehouse import Rows

_NAME = re.compile(r"[A-Za-z0-9_-][A-Za-z0-9_.-]{0,99}", re.ASCII)
_CAMPAIGN, AUDIENCE, OUTCOME, BEFORE = "campaign.yaml", "audience.sql", "outcome.sql", "before.sql"
ALLOWED_NAMES = "Use at most 100 letters, digits, _, - and . in its name"
_NO_JINJA = (
    "found Jinja, such as {{ ds }}, which is not rendered in queries. Use query parameters, such as :period_start and "
    ":period_end, without quotes"
)
_NO_ARTIFACTS = (
    "found {reference} of dbt without dbt.artifacts. Set it to the folder with manifest.json, in campaign.yaml or "
    "defaults.yaml"
)
_NO_RULES = (
    "found rules, which hold for all campaigns. Move them to defaults.yaml, beside the campaigns' folders"
)


@dataclass(frozen=True, slots=True)
class CampaignFolder:
    """A campaign with its name, its queries and its folder.

    The name is the folder's. ``audience_sql``: the audience query. ``audience_rows``: the rows of the audience
    instead, or verdicts, for a campaign from Python. Both are None if the service or ``audience.source`` chooses
    the recipients. ``exclusion_sql``: the queries of exclusions, by file name. ``outcome_sql``: the outcome query,
    if the folder has one. ``before_sql``: the query of what people did before the launch, if there is one.
    ``inherited``: the places with a value from ``defaults.yaml``, and their lines there. ``rules``: the rules for all
    campaigns, with their file. ``file``: the name of the file that has the campaign, at the place ``within``.
    ``later``: the later steps of its journey, which take their recipients from it.
    """

    name: str
    campaign: Campaign
    audience_sql: str | None = field(repr=False)
    path: Path
    exclusion_sql: Mapping[str, str] = field(default_factory=dict, repr=False)
    outcome_sql: str | None = field(default=None, repr=False)
    before_sql: str | None = field(default=None, repr=False)
    audience_rows: Rows | VerdictsOf | None = None
    inherited: Mapping[YamlPath, int] = field(default_factory=dict)
    rules: RulesOfFile | None = None
    file: str = _CAMPAIGN
    within: YamlPath = ()
    later: tuple[CampaignFolder, ...] = field(default=(), repr=False)

    def place_of(self, *place: str | int) -> str:
        """Return the place of a field for an error: its file, and its line if the file still has it."""
        return str(self.finding(place, dotted((*self.within, *place))))

    def finding(self, place: YamlPath, text: str) -> Finding:
        """Return a finding about a field in the file that sets it, with its line if the file still has the field."""
        if default := self.inherited.get(place[:1]) or self.inherited.get(place[:2]):
            return Finding(self.path.parent / DEFAULTS, text, default)
        file = self.path / self.file
        return Finding(file, text, read_document(file).lines.get((*self.within, *place)))

    def settings(self) -> list[Setting]:
        """Return every field that may have a default, with its value and the file that sets it."""
        own = "Python" if self.path == Path() else self.file
        settings = settings_of(self.campaign, self.inherited, own)
        if self.rules is None:
            return settings
        is_beside = self.rules.file.parent == self.path.parent
        return settings + rules_settings(self.rules, DEFAULTS if is_beside else str(self.rules.file))

    def named(self, name: str) -> CampaignFolder:
        """Return the campaign under another name. Raise CampaignError if a folder cannot have it."""
        if not is_campaign_name(name):
            raise CampaignError(f"found a campaign {name!r}. {ALLOWED_NAMES}")
        return replace(self, name=name)

    def with_audience(self, audience: Any) -> CampaignFolder:
        """Return the campaign with another audience, as in :func:`campaign_from`. Raise the same errors."""
        chosen_by = _chooser(self.campaign)
        if not chosen_by and audience is None:
            raise CampaignError(
                f"campaign {self.name}: it has no audience. Use SQL, a path, a DataFrame or an Arrow table"
            )
        if chosen_by and audience is not None:
            raise CampaignError(
                f"campaign {self.name}: found an audience with {chosen_by}. Leave one of them out"
            )
        source = None if audience is None else _source(audience)
        if not isinstance(source, str):
            return replace(self, audience_sql=None, audience_rows=source)
        _check_query(self.name, source, self.campaign)
        return replace(self, audience_sql=source, audience_rows=None)

    def dbt_references(self) -> list[Reference]:
        """Return the models and sources of dbt that its audience and its exclusions name, each once."""
        source = self.campaign.audience.source
        found = [Reference("ref", (source.name,))] if isinstance(source, DbtModelSource) else []
        for sql in (self.audience_sql or "", *self.exclusion_sql.values()):
            found += [each.reference for each in references_in(sql)]
        return list(dict.fromkeys(found))

    def needed_outcome_sql(self) -> str:
        """Return the outcome query. Raise CampaignError if there is none."""
        if self.outcome_sql is None:
            raise CampaignError(f"{self.path / OUTCOME}: the file does not exist. Add the outcome query")
        return self.outcome_sql


def is_campaign_name(name: str) -> bool:
    """Check whether a campaign may have this name."""
    return _NAME.fullmatch(name) is not None


def campaign_of(given: Campaign | Mapping[str, Any], name: str, *, defaults: Path | None = None) -> Campaign:
    """Return a campaign from Python after the checks of a campaign from a file, with the rules for all campaigns.

    ``given``: the campaign, or a mapping with the fields of ``campaign.yaml``. ``name``: its name in errors.
    ``defaults``: the file with the rules; by default the one that ``SENDOFF_DEFAULTS`` names.

    Raise one CampaignError that lists all mistakes.
    """
    if not isinstance(given, Campaign) and RULES in given:
        raise CampaignError(f"campaign {name}: {_NO_RULES}")
    campaign, errors = (given, []) if isinstance(given, Campaign) else validated(given)
    if campaign is None:
        mistakes = (
            f"{'.'.join(map(str, error['loc']))}: {sentence(error)}" for error in errors[:MOST_MISTAKES]
        )
        raise CampaignError("\n".join(f"campaign {name}: {mistake}" for mistake in mistakes))
    if found := rules_for(defaults):
        campaign = campaign.replace(rules=found.rules)
    try:
        check_campaign(campaign)
    except CampaignError as error:
        raise CampaignError(f"campaign {name}: {error}") from None
    return campaign


def campaign_from(
    given: Campaign | Mapping[str, Any], name: str, audience: Any = None, *, defaults: Path | None = None
) -> CampaignFolder:
    """Return a campaign from Python as if it had been read from a folder of this name.

    ``given`` and ``defaults``: as in :func:`campaign_of`. ``audience``: anything that
    :func:`~sendoff.warehouse.audience_source` reads; None only if the service chooses the recipients.

    Raise one CampaignError that lists all mistakes. Raise AudienceError if ``audience`` cannot be an audience.
    """
    campaign = campaign_of(given, name, defaults=defaults)
    folder = CampaignFolder("", campaign, None, Path(), rules=rules_for(defaults)).named(name)
    problems = [
        f"audience.exclude: found the file {each.file}. Leave its people out of the audience, or upload them as a list"
        for each in folder.campaign.audience.exclude
        if isinstance(each, QueryExclusion | FileExclusion)
    ]
    if problems:
        raise CampaignError("\n".join(f"campaign {name}: {problem}" for problem in problems))
    return folder.with_audience(audience)


def _chooser(campaign: Campaign) -> str | None:
    """Return the field that says where the recipients come from, or None if a query returns them."""
    if campaign.audience.source:
        return f"audience.source.kind: {campaign.audience.source.kind}"
    kind = campaign.targeting.kind
    return None if kind == "query" else f"targeting.kind: {kind}"


def _check_query(name: str, sql: str, campaign: Campaign) -> None:
    problem = _partitions_problem(sql, campaign.audience.partitions)
    if found := _jinja_problem(sql, campaign):
        problem = f"line {found[1]} of the query: {found[0]}"
    if problem:
        raise CampaignError(f"campaign {name}: {problem}")


def _jinja_problem(sql: str, campaign: Campaign | None) -> tuple[str, int] | None:
    """Return what is wrong with the Jinja in a query, and its line: only references of dbt are resolved."""
    if (at := other_jinja_at(sql)) is not None:
        return _NO_JINJA, Spot.at(sql, at).line
    if campaign and campaign.dbt.artifacts is None and (found := references_in(sql)):
        return _NO_ARTIFACTS.replace("{reference}", str(found[0][0])), Spot.at(sql, found[0][1]).line
    return None


def _partitions_problem(sql: str, partitions: int | None) -> str | None:
    """Return what is wrong if a query's parameters ``:part`` and ``:parts`` do not match ``audience.partitions``."""
    named = set(named_parameters(sql)) if ":part" in sql else set()
    used = [f":{name}" for name in ("part", "parts") if name in named]
    missing = [f":{name}" for name in ("part", "parts") if name not in named]
    if partitions is None and used:
        allowed = "neither, or audience.partitions in campaign.yaml"
        return f"found {' and '.join(used)} without audience.partitions. Use {allowed}"
    if partitions is not None and missing:
        found = f"audience.partitions: {partitions} without {' and '.join(missing)} in the query"
        allowed = "WHERE device_id % :parts = :part, so that each row is read exactly once"
        return f"found {found}. Use both, such as {allowed}"
    return None


def _source(audience: Any) -> str | Rows | VerdictsOf:
    if isinstance(audience, VerdictsOf):
        return audience
    from sendoff.warehouse import audience_source  # it imports pyarrow, which takes long

    return audience_source(audience)


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
    raise CampaignError(str(mistake), [mistake])


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
    mistakes = sentences(errors[:MOST_MISTAKES])
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

    def read(self, has_audience: bool) -> CampaignFolder:
        """Return the campaign. Raise CampaignError with all mistakes."""
        if self._leads_out(_CAMPAIGN):
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
        document = read_document(self._folder / _CAMPAIGN)
        campaign: Campaign | None = None
        if isinstance(document.tree, dict):
            tree, document.inherited = self._defaults.under(document.tree)
            if RULES in document.tree:
                document.report((RULES,), _NO_RULES)
            if self._rules:
                tree[RULES] = self._rules.rules
            campaign = _checked(document, tree)
        elif document.tree is not None:
            document.report((), f"found {describe(document.tree)}. Use a mapping")
        self._mistakes += document.findings(self._folder / _CAMPAIGN)
        return campaign, document.inherited

    def _refuse(self, file: str, text: str, line: int | None = None) -> None:
        self._mistakes.append(Finding(self._folder / file, text, line))

    def _error(self) -> CampaignError:
        return CampaignError("\n".join(map(str, self._mistakes)), self._mistakes)

    def _audience_sql(self, campaign: Campaign | None) -> str | None:
        """Read the audience query, or refuse one that targeting does not use."""
        if campaign and (chosen_by := _chooser(campaign)):
            if (self._folder / AUDIENCE).exists():
                self._refuse(AUDIENCE, f"found a query with {chosen_by}. Remove one of them")
            return None
        sql = self._sql(AUDIENCE, "the query of the recipients", campaign, has_references=True)
        if campaign and sql and (problem := _partitions_problem(sql, campaign.audience.partitions)):
            self._refuse(AUDIENCE, problem)
        return sql

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
        if not sql.strip():
            self._refuse(name, f"the file is empty. Add {meaning}")
        if has_references:
            if found := _jinja_problem(sql, campaign):
                self._refuse(name, *found)
        elif (at := jinja_at(sql)) is not None:
            self._refuse(name, _NO_JINJA, Spot.at(sql, at).line)
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
