"""A campaign with its queries, as it is read from a folder or comes from Python, and what its queries may say."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sendoff.campaign.audience_rules import DbtModelSource, VerdictsOf
from sendoff.campaign.dbt import Reference, other_jinja_at, references_in
from sendoff.campaign.defaults import DEFAULTS, RulesOfFile, Setting, rules_settings, settings_of
from sendoff.campaign.model import Campaign
from sendoff.campaign.yaml_document import YamlPath, dotted, read_document
from sendoff.errors import AudienceError, CampaignError, Finding
from sendoff.warehouse import Spot, named_parameters

if TYPE_CHECKING:
    from sendoff.campaign.gates import Duration
    from sendoff.warehouse import Rows

_NAME = re.compile(r"[A-Za-z0-9_-][A-Za-z0-9_.-]{0,99}", re.ASCII)
CAMPAIGN, AUDIENCE, OUTCOME, BEFORE = "campaign.yaml", "audience.sql", "outcome.sql", "before.sql"
TEST = "-test"
"""The end of the name under which a campaign is tested."""
ALLOWED_NAMES = "Use at most 100 letters, digits, _, - and . in its name"
NO_JINJA = (
    "found Jinja, such as {{ ds }}, which is not rendered in queries. Use query parameters, such as :period_start and "
    ":period_end, without quotes"
)
_NO_ARTIFACTS = (
    "found {reference} of dbt without dbt.artifacts. Set it to the folder with manifest.json, in campaign.yaml or "
    "defaults.yaml"
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
    ``later``: the later steps of its journey, which take their recipients from it. ``wait``: how long a step waits
    after the earlier one was sent.
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
    file: str = CAMPAIGN
    within: YamlPath = ()
    later: tuple[CampaignFolder, ...] = field(default=(), repr=False)
    wait: Duration | None = None

    @property
    def first_name(self) -> str:
        """The oldest name of the campaign. Random shares depend on it, so a new name does not change them."""
        return (*self.campaign.formerly, self.name)[0]

    @property
    def names(self) -> tuple[str, ...]:
        """The name of the campaign, and its earlier names."""
        return (self.name, *self.campaign.formerly)

    @property
    def reads_warehouse(self) -> bool:
        """Whether a query chooses or leaves out recipients."""
        is_of_dbt = isinstance(self.campaign.audience.source, DbtModelSource)
        return bool(self.audience_sql or self.exclusion_sql or is_of_dbt)

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
        chosen_by = chooser_of(self.campaign)
        if not chosen_by and audience is None:
            raise CampaignError(
                f"campaign {self.name}: it has no audience. Use SQL, a path, a DataFrame, an Arrow table or a list of "
                "dictionaries"
            )
        if chosen_by and audience is not None:
            raise CampaignError(
                f"campaign {self.name}: found an audience with {chosen_by}. Leave one of them out"
            )
        try:
            source = None if audience is None else _source(audience)
        except AudienceError as error:
            raise AudienceError(f"campaign {self.name}: {error}") from None
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


def is_campaign_name(name: object) -> bool:
    """Check whether a campaign may have this name."""
    return isinstance(name, str) and _NAME.fullmatch(name) is not None


def chooser_of(campaign: Campaign) -> str | None:
    """Return the field that says where the recipients come from, or None if a query returns them."""
    if campaign.audience.source:
        return f"audience.source.kind: {campaign.audience.source.kind}"
    kind = campaign.targeting.kind
    return None if kind == "query" else f"targeting.kind: {kind}"


def _check_query(name: str, sql: str, campaign: Campaign) -> None:
    problem = partitions_problem(sql, campaign.audience.partitions)
    if found := jinja_problem(sql, campaign):
        problem = f"line {found[1]} of the query: {found[0]}"
    if problem:
        raise CampaignError(f"campaign {name}: {problem}")


def jinja_problem(sql: str, campaign: Campaign | None) -> tuple[str, int] | None:
    """Return what is wrong with the Jinja in a query, and its line: only references of dbt are resolved."""
    if (at := other_jinja_at(sql)) is not None:
        return NO_JINJA, Spot.at(sql, at).line
    if campaign and campaign.dbt.artifacts is None and (found := references_in(sql)):
        return _NO_ARTIFACTS.replace("{reference}", str(found[0][0])), Spot.at(sql, found[0][1]).line
    return None


def partitions_problem(sql: str, partitions: int | None) -> str | None:
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
