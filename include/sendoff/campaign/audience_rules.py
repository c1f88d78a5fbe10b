"""Audience rules: which of the query's recipients are left out, and why."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Annotated, Literal, Self

from pydantic import AfterValidator, BeforeValidator, Field, ValidationInfo, model_validator

from sendoff.arguments import check_flags
from sendoff.campaign.content import Channel
from sendoff.campaign.field_types import (
    ConnectionName,
    Flag,
    FrozenModel,
    Int32,
    Text,
    between,
    describe,
    did_you_mean,
    optional,
    problem,
)
from sendoff.campaign.scopes import ACCOUNT, EVERYTHING, channel_scope, is_suppression_scope
from sendoff.errors import AudienceError
from sendoff.figures import CONTROL_GROUP, SPOKEN_REASONS
from sendoff.states import Verdict

_FILE = re.compile(r"[A-Za-z0-9_-][A-Za-z0-9_.-]{0,99}", re.ASCII)
_REASON = re.compile(r"[a-z0-9][a-z0-9_ .-]{0,99}", re.ASCII)
OWN_REASONS = (
    "null", "invalid", "duplicate", "unknowable", "suppressed", "erased", "already_sent", "cap", "priority",
    "size_limit", "holdout",
)  # fmt: skip
"""The built-in reasons for leaving out a recipient. The reason of an exclusion must differ from them, and from the
words of reports, except in a launch that an older version froze."""


def _file_name(name: str) -> str:
    if not _FILE.fullmatch(name):
        raise problem(describe(name), "the name of a file in the campaign's folder, without a path")
    return name


def _reason(text: str, info: ValidationInfo) -> str:
    is_own = text in OWN_REASONS or text in SPOKEN_REASONS
    if not _REASON.fullmatch(text) or (is_own and not info.context):
        own = f"none of {', '.join(OWN_REASONS)}, and no words of a report such as {CONTROL_GROUP}"
        raise problem(describe(text), f"lower-case letters, digits and _, but {own}")
    return text


def _scope(text: str) -> str:
    if not is_suppression_scope(text):
        channels = ", ".join(map(channel_scope, Channel))
        raise problem(describe(text), f"{ACCOUNT}, {EVERYTHING}, topic:NAME, {channels}")
    return text


FileName = Annotated[str, Field(strict=True), AfterValidator(_file_name)]
_Reason = Annotated[str, Field(strict=True), AfterValidator(_reason)]
_KnownVerdict = Literal["engaged", "delivered", "missing", "in_doubt", "not_sent"]
KnownVerdicts = Annotated[tuple[_KnownVerdict, ...], Field(min_length=1)]
DaysBefore = Annotated[int, between(0, 3_650)]
_DAYS_BEFORE = (
    "The period of the other launch may also end up to this many days before the period of this launch"
)
Percent = Annotated[float, Field(gt=0, le=100, allow_inf_nan=False)]


class _Exclusion(FrozenModel):
    reason: _Reason | None = optional(
        "Reason to show for these recipients in reports; by default the kind and name, such as list complaints"
    )


class QueryExclusion(_Exclusion):
    """Leave out the recipients that another query returns."""

    kind: Literal["query"] = "query"
    file: FileName = Field(description="File in the campaign's folder with the query, such as returned.sql")
    warehouse: ConnectionName | None = optional(
        "Airflow connection of the database to query; by default the campaign's warehouse"
    )


class CampaignExclusion(_Exclusion):
    """Leave out recipients of another campaign."""

    kind: Literal["campaign"] = "campaign"
    name: Text = Field(description="Name of the other campaign, which is the name of its folder")
    days: Int32 = Field(
        description="The other campaign's launches count from this many days before this launch"
    )


class ListExclusion(_Exclusion):
    """Leave out the recipients on an uploaded list (``sendoff lists upload``)."""

    kind: Literal["list"] = "list"
    name: Text = Field(description="Name of the list in the ledger")


class FileExclusion(_Exclusion):
    """Leave out the recipients in a file of the campaign's folder."""

    kind: Literal["file"] = "file"
    file: FileName = Field(
        description="CSV file in the campaign's folder, with the same identifier column as the query"
    )


class VerdictExclusion(_Exclusion):
    """Leave out the recipients of another campaign with some verdicts, such as those who opened its message."""

    kind: Literal["verdicts"] = "verdicts"
    of: Text = Field(description="Name of the other campaign; its launch is chosen as for audience.source")
    are: KnownVerdicts = Field(
        description="Verdicts of the recipients to leave out. Each request checks opens and deliveries again"
    )
    days: DaysBefore = optional(_DAYS_BEFORE, 0)


Exclusion = Annotated[
    QueryExclusion | CampaignExclusion | ListExclusion | FileExclusion | VerdictExclusion,
    Field(discriminator="kind"),
]


def counted_as(exclusion: Exclusion) -> str:
    """Return the reason to count an exclusion's recipients under."""
    if isinstance(exclusion, VerdictExclusion):
        return exclusion.reason or f"{' or '.join(exclusion.are)} in {exclusion.of}"
    name = exclusion.file if isinstance(exclusion, QueryExclusion | FileExclusion) else exclusion.name
    return exclusion.reason or f"{exclusion.kind} {name}"


class Cap(FrozenModel):
    """Frequency cap: the maximum number of messages per recipient, over all campaigns of the connection."""

    messages: Int32 = Field(description="Maximum number of messages, including the one of this launch")
    days: Int32 = Field(
        description="Number of days; the cap holds for every stretch of this many days that includes this launch"
    )
    scope: Annotated[str, Field(strict=True), AfterValidator(_scope)] = optional(
        "Whose messages count: account for campaigns that are not transactional, everything for all, topic:NAME or "
        "channel:NAME; caps of the rules apply to the same campaigns",
        ACCOUNT,
    )


def _one_or_several(value: object) -> object:
    return () if value is None else value if isinstance(value, list | tuple) else (value,)


Caps = Annotated[
    tuple[Cap, ...], BeforeValidator(_one_or_several, json_schema_input_type=Cap | tuple[Cap, ...] | None)
]


class Priority(FrozenModel):
    """Which campaign goes first if several would reach the same recipient on the same day."""

    rank: Int32 = Field(description="Rank of this campaign; 1 is the most important")
    group: Text = optional("Only campaigns of the same group compete", "all")


class Holdout(FrozenModel):
    """A random share of the audience that gets no message, to measure the effect of the message."""

    percent: Percent = Field(description="Share of the audience, in percent")
    salt: Text | None = optional(
        "Campaigns with the same salt hold out the same recipients; by default the oldest name of the campaign"
    )


@dataclass(frozen=True, slots=True)
class VerdictsOf:
    """The recipients of a launch with some verdicts, such as ``("missing",)``. The launch is reconciled first.

    As an audience, they keep their platform, language and time zone, and no other columns. The holdout of the launch is
    not among them. ``is_without_unknowable``: count the recipients with the verdict *unknowable* as left out. Raise
    AudienceError without a verdict, for an unknown verdict, and for a launch in place of its key.
    """

    launch_key: str
    verdicts: Collection[str]
    is_without_unknowable: bool = False

    @property
    def origin(self) -> str:
        """Where the recipients come from, for errors."""
        return f"the verdicts of launch {self.launch_key}"

    def __post_init__(self) -> None:
        """Check the launch and the verdicts. A single verdict need not be in a list."""
        if not isinstance(self.launch_key, str):
            found = type(self.launch_key).__name__
            raise AudienceError(f"VerdictsOf: found a {found} as the launch. Use its key, such as launch.key")
        check_flags(is_without_unknowable=self.is_without_unknowable)
        verdicts = (self.verdicts,) if isinstance(self.verdicts, str) else tuple(self.verdicts)
        object.__setattr__(self, "verdicts", verdicts)
        known = [verdict.value for verdict in Verdict]
        if not verdicts:
            raise AudienceError(f"there is no verdict. Use {', '.join(known)}")
        for each in verdicts:
            if each not in known:
                raise AudienceError(
                    f"{each!r} is not a verdict{did_you_mean(each, known)}. Use {', '.join(known)}"
                )


class VerdictSource(FrozenModel):
    """Send to the recipients of another campaign that have some verdicts, such as to remind those who did not open."""

    kind: Literal["verdicts"] = "verdicts"
    of: Text = Field(
        description="Name of the other campaign, which is the name of its folder. The launch whose report started the "
        "run counts. Without one, all launches of the newest period that ends within the period of this launch count"
    )
    are: KnownVerdicts = Field(
        description="Verdicts of the recipients to send to. Recipients who get another verdict before their request, "
        "because they open the other message or it is delivered, are left out"
    )
    unknowable: Literal["leave_out", "include"] = optional(
        "What to do with recipients whose result cannot be known: leave_out counts them, include sends to "
        "them too",
        "leave_out",
    )
    days: DaysBefore = optional(_DAYS_BEFORE, 0)

    def of_launch(self, launch_key: str) -> VerdictsOf:
        """Return the verdicts of a launch of the other campaign."""
        included = (Verdict.UNKNOWABLE,) if self.unknowable == "include" else ()
        return VerdictsOf(launch_key, (*self.are, *included), is_without_unknowable=not included)


class DbtModelSource(FrozenModel):
    """Send to the recipients in the table of a dbt model."""

    kind: Literal["dbt_model"] = "dbt_model"
    name: Text = Field(description="Name of the model; it needs an identifier column as a query does")


ColumnType = Literal["boolean", "date", "integer", "number", "text", "timestamp"]


class AudienceColumn(FrozenModel):
    """What a column of the audience query must contain. NULL is no value: only ``required`` is about it."""

    type: ColumnType | None = optional("Type of the values; number also accepts whole numbers")
    values: tuple[Text | Annotated[int, Field(strict=True)] | Flag, ...] = optional(
        "Accepted values, exactly as the query returns them; by default all", ()
    )
    required: Percent | None = optional("Share of the rows that must have a value, in percent")

    @model_validator(mode="after")
    def _has_a_rule(self) -> Self:
        if self.type is None and not self.values and self.required is None:
            raise problem("a column without rules", "type, values or required, or leave the column out")
        wanted = {"text": str, "integer": int, "boolean": bool}.get(self.type or "")
        if self.values and self.type and not all(type(value) is wanted for value in self.values):
            allowed = "values of this type; only boolean, integer and text can have values"
            raise problem(f"values with type: {self.type}", allowed)
        return self

    @property
    def texts(self) -> tuple[str, ...]:
        """The accepted values as text."""
        return tuple(str(value).lower() if isinstance(value, bool) else str(value) for value in self.values)


class AudienceRules(FrozenModel):
    """Where the recipients come from, how their query is read, and which recipients are left out."""

    source: Annotated[VerdictSource | DbtModelSource, Field(discriminator="kind")] | None = optional(
        "Where the recipients come from instead of audience.sql; kind: verdicts takes those of another campaign, and "
        "kind: dbt_model the table of a model"
    )
    partitions: Annotated[int, between(1, 32)] | None = optional(
        "Most parts of audience.sql to read at the same time; the query must select one part "
        "by :part (from 0) and :parts"
    )
    columns: Mapping[Text, AudienceColumn] = optional(
        "What columns of the query must contain, by name; if a row differs, nothing is frozen", default={}
    )
    exclude: tuple[Exclusion, ...] = optional(
        "Recipients to leave out; if several exclusions match a recipient, the first one is the reason", ()
    )
    priority: Priority | None = optional("Rank among the campaigns of the same day")
    cap: Caps = optional(
        "Maximum number of messages per recipient in a number of days, or several of them", ()
    )
    holdout: Holdout | None = optional(
        "Random share of the audience that gets no message, as a control group"
    )

    @property
    def depend_on_launches(self) -> bool:
        """Check whether the rules depend on the recipients of other launches."""
        return bool(
            self.cap
            or self.priority
            or any(isinstance(each, CampaignExclusion | VerdictExclusion) for each in self.exclude)
        )
