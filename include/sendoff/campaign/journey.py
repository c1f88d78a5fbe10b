"""Journeys: a folder with ``journey.yaml``, whose steps become campaigns to recipients of earlier steps.

A step is the campaign ``<journey>.<step>``. The first step has the query ``audience.sql``. Each later one goes to
recipients of an earlier step with some verdicts, in the same period. Exits become exclusions. So launches, gates,
suppression and reports know nothing of journeys.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, replace
from datetime import timedelta
from functools import cache
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import Field, ValidationError

from sendoff.campaign.audience_rules import FileName, KnownVerdicts, QueryExclusion
from sendoff.campaign.campaign_folder import ALLOWED_NAMES, TEST, CampaignFolder, is_campaign_name
from sendoff.campaign.defaults import RULES, used_definitions
from sendoff.campaign.error_messages import MOST_MISTAKES, sentences, with_required_kinds
from sendoff.campaign.field_types import (
    ConnectionName,
    Day,
    FrozenModel,
    Text,
    TimeZone,
    describe,
    did_you_mean,
    optional,
)
from sendoff.campaign.gates import MOST_DAYS, Duration
from sendoff.campaign.loader import FolderReader
from sendoff.campaign.model import Campaign, mistakes_of, validated
from sendoff.campaign.schedule import Once
from sendoff.campaign.validation import broken_rules, broken_texts
from sendoff.campaign.yaml_document import YamlDocument, YamlPath, dotted, read_document

JOURNEY = "journey.yaml"
_STEP_NAME = re.compile(rf"(?!.*{TEST}\Z)[A-Za-z0-9_-]{{1,40}}", re.ASCII)
_OF_JOURNEY = ("schedule", "schedule_time_zone", "after", "start", "connection", "warehouse", "owner", "tags")
"""The fields of a campaign that all steps share, so that only the journey has them."""
_OF_STEP = ("name", "wait", "when")
_OF_CLOCK = ("schedule", "after", "start")


class VerdictExit(FrozenModel):
    """Recipients with some verdicts in any earlier step leave the journey."""

    kind: Literal["verdicts"] = "verdicts"
    are: KnownVerdicts = Field(
        description="Verdicts, such as engaged. Each request of a later step checks opens and deliveries again"
    )


class QueryExit(FrozenModel):
    """Recipients that a query returns leave the journey."""

    kind: Literal["query"] = "query"
    file: FileName = Field(description="File in the journey's folder with the query, such as bought.sql")


class ListExit(FrozenModel):
    """Recipients on an uploaded list leave the journey."""

    kind: Literal["list"] = "list"
    name: Text = Field(description="Name of the list in the ledger")


Exit = Annotated[VerdictExit | QueryExit | ListExit, Field(discriminator="kind")]


class When(FrozenModel):
    """Which recipients of an earlier step take a step."""

    of: Text = Field(description="Name of the earlier step")
    are: KnownVerdicts = Field(description="Verdicts of its recipients who take this step")
    unknowable: Literal["leave_out", "include"] = optional(
        "What to do with recipients whose result cannot be known", "leave_out"
    )


class Step(Campaign):
    """A step of a journey: a name, when it is taken, and the fields of a campaign."""

    title: Annotated[Text, Field(max_length=200)] | None = optional(  # type: ignore[assignment]
        "Name of the campaign in the service; by default the titles of the journey and the step's name"
    )
    name: Text = Field(description="Name of the step: letters, digits, - and _, without -test at its end")
    wait: Duration | None = optional("How long to wait after the step in when.of was sent")
    when: When | None = optional("Which recipients of an earlier step take this one; not in the first step")


class Journey(FrozenModel):
    """A journey: a list of steps, its schedule, and who leaves it."""

    title: Annotated[Text, Field(max_length=150, description="Name of the journey")]
    schedule: str | None = optional(
        "When the DAG runs, as in a campaign; each run begins the journey for one period"
    )
    schedule_time_zone: TimeZone = optional("IANA time zone of schedule and start", "UTC")
    start: Day | None = optional("First day of the DAG; no period begins before it")
    owner: Annotated[Text, Field(max_length=500)] = optional("Owner of the DAG in Airflow", "sendoff")
    tags: tuple[Annotated[Text, Field(max_length=100)], ...] = optional("Tags of the DAG in Airflow", ())
    connection: ConnectionName = optional("Airflow connection of the messaging service", "sendoff_default")
    warehouse: ConnectionName = optional("Airflow connection that the queries read", "sendoff_warehouse")
    exits: tuple[Exit, ...] = optional("Who leaves the journey before its next step", ())
    again: Duration | None = optional(
        "When someone may begin the journey again after its first step was sent, in whole days; by default never"
    )
    steps: Annotated[tuple[Step, ...], Field(min_length=1, max_length=50)] = Field(
        description="The steps, in order"
    )


@dataclass(frozen=True, slots=True)
class JourneyFolder:
    """A journey with its name, its folder, and the campaign of each step, in order."""

    name: str
    journey: Journey
    path: Path
    campaigns: tuple[CampaignFolder, ...]

    def earlier(self, number: int) -> CampaignFolder | None:
        """Return the campaign that a step takes its recipients from; None for the first step. Numbers start at 0."""
        when = self.journey.steps[number].when
        if when is None:
            return None
        names = [step.name for step in self.journey.steps]
        return self.campaigns[names.index(when.of)]


def is_journey_folder(path: Path) -> bool:
    """Check whether a path is the folder of a journey. One that cannot be read is none."""
    try:
        return (path / JOURNEY).is_file()
    except OSError:
        return False


def load_journey(folder: Path, *, defaults: Path | None = None) -> JourneyFolder:
    """Read the folder of a journey, with the defaults from ``defaults.yaml`` beside it, as for a campaign.

    Raise one CampaignError that lists all mistakes.
    """
    return _JourneyReader(folder.absolute(), defaults).read_journey()


def step_name(journey: str, step: str) -> str:
    """Return the name of a step's campaign."""
    return f"{journey}.{step}"


def journey_schema() -> dict[str, Any]:
    """Return the JSON Schema of ``journey.yaml``, which editors use to complete and check the file."""
    schema = with_required_kinds(Journey.model_json_schema())
    step = schema["$defs"]["Step"]
    for name in (*_OF_JOURNEY, RULES):
        del step["properties"][name]
    del schema["$defs"]["AudienceRules"]["properties"]["source"]
    schema["$defs"] = used_definitions(schema["properties"], schema["$defs"])
    return {"$schema": "https://json-schema.org/draft/2020-12/schema", **schema}


class _JourneyReader(FolderReader):
    """Reads the files of a journey's folder, and collects their mistakes."""

    def read_journey(self) -> JourneyFolder:
        if self._leads_out(JOURNEY):
            raise self._error()
        document = read_document(self._folder / JOURNEY)
        journey = _checked_head(document)
        for other in ("campaign.yaml", "outcome.sql", "before.sql"):
            if self._has(other):
                self._refuse(other, f"found this file beside {JOURNEY}. Remove one of them")
        campaigns = list(self._campaigns(journey, document)) if journey else []
        self._check_names(journey)
        self._mistakes += document.findings(self._folder / JOURNEY)
        if self._mistakes or journey is None:
            raise self._error()
        first, *later = campaigns
        campaigns[0] = replace(first, later=tuple(later))
        return JourneyFolder(self._folder.name, journey, self._folder, tuple(campaigns))

    def _campaigns(self, journey: Journey, document: YamlDocument) -> Iterator[CampaignFolder]:
        """Yield the campaign of each step, and report its mistakes."""
        sql = self._sql("audience.sql", "the query of the first step's recipients")
        exits = self._exclusion_sql(
            [QueryExclusion(file=each.file) for each in journey.exits if isinstance(each, QueryExit)]
        )
        for number, step in enumerate(journey.steps):
            if (self._folder / step.name).is_dir():
                text = f"found a folder with the name of a step, whose campaign is in {JOURNEY}. Move or remove it"
                self._refuse(step.name, text)
            tree, inherited = self._defaults.under(_own_fields(document.tree, number))
            for name in _OF_CLOCK if number else ():  # only the first step has a time when it is due
                tree.pop(name, None)
                inherited.pop((name,), None)
            tree = _compiled(journey, self._folder.name, number, tree)
            if self._rules:
                tree[RULES] = self._rules.rules
            if campaign := _checked_step(document, number, tree):
                audience_sql = None if number else sql
                self._check_partitions(audience_sql, campaign)
                yield CampaignFolder(
                    step_name(self._folder.name, step.name),
                    campaign,
                    audience_sql,
                    self._folder,
                    {**exits, **self._exclusion_sql(step.audience.exclude)},
                    inherited=inherited,
                    rules=self._rules,
                    file=JOURNEY,
                    within=("steps", number),
                    wait=step.wait,
                )

    def _check_names(self, journey: Journey | None) -> None:
        longest = max((len(step.name) for step in journey.steps), default=0) if journey else 0
        if not is_campaign_name(step_name(self._folder.name, "x" * longest)):
            self._refuse(
                "", f"found a folder {self._folder.name!r}. {ALLOWED_NAMES}, with the name of a step"
            )


def _checked_head(document: YamlDocument) -> Journey | None:
    """Check the fields of the file, without the rules on how they fit together in each step's campaign."""
    tree = document.tree
    if tree is None:
        return None
    if not isinstance(tree, dict):
        document.report((), f"found {describe(tree)}. Use a mapping")
        return None
    try:
        journey = Journey.model_validate(tree)
    except ValidationError as error:
        for place, text in sentences(error.errors(include_url=False)[:MOST_MISTAKES], _schema()):
            document.report(place, text)
        return None
    for place, text in _broken(journey, tree):
        document.report(place, text)
    return None if document.problems else journey


_schema = cache(journey_schema)


def _broken(journey: Journey, tree: Mapping[str, Any]) -> Iterator[tuple[YamlPath, str]]:
    """Yield the place and a sentence for each rule of journeys that one breaks."""
    earlier: dict[str, bool] = {}  # whether each step is due after a wait
    if journey.again and journey.again.timedelta() % timedelta(days=1):
        found = f"found {journey.again.words}, which is not in whole days"
        yield ("again",), f"{found}. Use days, such as {{length: 30, unit: days}}"
    for number, step in enumerate(journey.steps):
        place: YamlPath = ("steps", number)
        for name in (*_OF_JOURNEY, RULES):
            if name in tree["steps"][number]:
                mend = "Move it to the journey, because all steps share it"
                if name == "after":
                    mend = "Remove it, because a journey starts by its schedule"
                yield (*place, name), f"found {name} in a step. {mend}"
        if not _STEP_NAME.fullmatch(step.name):
            allowed = f"at most 40 letters, digits, - and _, without {TEST} at the end, which tests have"
            yield (*place, "name"), f"found {describe(step.name)}. Use {allowed}"
        if step.name in earlier:
            yield (*place, "name"), f"found {describe(step.name)} twice. Use each name once"
        if step.audience.source:
            yield (
                (*place, "audience", "source"),
                "found a source in a step. Use when, which names an earlier step",
            )
        if step.targeting.kind != "query" or step.send.kind not in ("now", "once"):
            found = "found a step that the service repeats, or whose recipients it chooses"
            yield place, f"{found}. Use targeting.kind: query and send.kind: now or once"
        waits = bool(step.wait or (step.when and earlier.get(step.when.of)))
        yield from _broken_order(step, earlier, place, waits=waits)
        earlier[step.name] = waits


def _broken_order(
    step: Step, earlier: Collection[str], place: YamlPath, *, waits: bool
) -> Iterator[tuple[YamlPath, str]]:
    """Yield each rule on the place of a step that it breaks. ``waits``: it is due after a wait."""
    if not earlier:
        for name in ("wait", "when"):
            if getattr(step, name):
                yield (
                    (*place, name),
                    f"found {name} in the first step, which takes the recipients of audience.sql. Remove it",
                )
        return
    if "lateness" in step.gates.model_fields_set:
        yield (
            (*place, "gates", "lateness"),
            "found a limit in a later step, which is due after its wait. Remove it",
        )
    if isinstance(step.send, Once) and step.send.date is None:
        text = "found kind: once without a date in a later step, which is due after its wait. Use kind: now, "
        yield (*place, "send"), text + "and gates.window for the hours"
    for path, expiry in step.expiries():
        if waits and expiry.until and expiry.until.date is None:
            text = "found no date in a step that is due after a wait. Use a date, or length and unit"
            yield (*place, *path, "until"), text
    if step.when is None:
        yield (
            place,
            "the required field 'when' is missing. Name the earlier step that the recipients come from",
        )
    elif step.when.of not in earlier:
        of = step.when.of
        names = ", ".join(earlier)
        yield (
            (*place, "when", "of"),
            f"found {describe(of)}{did_you_mean(of, earlier)}, which is no earlier step. Use {names}",
        )


def _own_fields(tree: Mapping[str, Any], number: int) -> dict[str, Any]:
    """Return the fields of a step's campaign that do not come from defaults: the journey's and the step's own.

    Later steps have no time when they are due, and no query. The defaults for these do not apply to them.
    """
    step = {name: value for name, value in tree["steps"][number].items() if name not in _OF_STEP}
    own = {name: value for name, value in tree.items() if name in _OF_JOURNEY} | step
    if number:
        own["gates"] = {**own.get("gates", {}), "lateness": None}
        own["audience"] = {"columns": {}, "partitions": None, **own.get("audience", {})}
    return own


def _compiled(journey: Journey, name: str, number: int, tree: dict[str, Any]) -> dict[str, Any]:
    """Return the tree of a step's campaign."""
    step = journey.steps[number]
    audience = tree.get("audience", {})
    audience = {**audience, "exclude": [*_exclusions(journey, name, number), *audience.get("exclude", ())]}
    if step.when:
        audience["source"] = {"kind": "verdicts", **step.when.model_dump(mode="json")}
        audience["source"]["of"] = step_name(name, step.when.of)
    return {"title": f"{journey.title}: {step.name}", **tree, "audience": audience}


def _exclusions(journey: Journey, name: str, number: int) -> Iterator[dict[str, Any]]:
    """Yield the exits of a step, and for the first one the recipients who took it before."""
    for each in journey.exits:
        if not isinstance(each, VerdictExit):
            yield each.model_dump(mode="json")
            continue
        for earlier in journey.steps[:number]:
            yield {"kind": "verdicts", "of": step_name(name, earlier.name), "are": list(each.are)}
    if number == 0:
        days = journey.again.timedelta().days if journey.again else MOST_DAYS
        yield {
            "kind": "campaign",
            "name": step_name(name, journey.steps[0].name),
            "days": days,
            "reason": "took it before",
        }


def _checked_step(document: YamlDocument, number: int, tree: Mapping[str, Any]) -> Campaign | None:
    """Return the campaign of a step. Report the rules that it breaks."""
    place: YamlPath = ("steps", number)
    campaign, errors = validated(tree)
    for loc, text in mistakes_of(errors):  # of a default, since the file's own fields were checked
        document.report((*place, *loc), f"{dotted(loc)}: {text}")
    for rule in [*broken_texts(tree), *(broken_rules(campaign) if campaign else ())]:
        document.report(rule.path if rule.path[0] in _OF_JOURNEY else (*place, *rule.path), rule.text)
    return campaign
