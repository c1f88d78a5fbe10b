"""The rules of an audience: who of the query's people is left out, and why."""

from __future__ import annotations

import re
from typing import Annotated, Literal

from pydantic import AfterValidator, Field

from sendoff.campaign.field_types import (
    ConnectionName,
    FrozenModel,
    Int32,
    Text,
    between,
    describe,
    optional,
    problem,
)

_FILE = re.compile(r"[A-Za-z0-9_-][A-Za-z0-9_.-]{0,99}", re.ASCII)
_REASON = re.compile(r"[a-z0-9][a-z0-9_ .-]{0,99}", re.ASCII)
OWN_REASONS = ("null", "invalid", "duplicate", "cap", "priority", "size_limit", "holdout")
"""Why somebody is left out, where no exclusion of the file says it in its own words."""


def _file_name(name: str) -> str:
    if not _FILE.fullmatch(name):
        raise problem(describe(name), "the name of a file in the campaign's folder, without a path")
    return name


def _reason(text: str) -> str:
    if not _REASON.fullmatch(text) or text in OWN_REASONS:
        raise problem(describe(text), f"small letters, digits and _, and none of {', '.join(OWN_REASONS)}")
    return text


FileName = Annotated[str, Field(strict=True), AfterValidator(_file_name)]
Reason = Annotated[str, Field(strict=True), AfterValidator(_reason)]
Percent = Annotated[float, Field(gt=0, le=100, allow_inf_nan=False)]


class _Exclusion(FrozenModel):
    reason: Reason | None = optional(
        "What the people it leaves out are counted under; default its kind and name: list complaints"
    )


class QueryExclusion(_Exclusion):
    """Leave out the people of another query."""

    kind: Literal["query"] = "query"
    file: FileName = Field(description="A file in the campaign's folder with the query, such as returned.sql")
    warehouse: ConnectionName | None = optional(
        "Airflow connection that it runs on; default the campaign's warehouse"
    )


class CampaignExclusion(_Exclusion):
    """Leave out whom another campaign was sent to."""

    kind: Literal["campaign"] = "campaign"
    name: Text = Field(description="Name of the other campaign: its folder")
    days: Int32 = Field(description="How many days back its launches count, from the moment of this one")


class ListExclusion(_Exclusion):
    """Leave out the people of a list that was uploaded: ``sendoff lists upload``."""

    kind: Literal["list"] = "list"
    name: Text = Field(description="Name of the list in the ledger")


class FileExclusion(_Exclusion):
    """Leave out the people of a file that lies beside the campaign."""

    kind: Literal["file"] = "file"
    file: FileName = Field(
        description="A CSV file in the campaign's folder, with a column named as the query names its people"
    )


Exclusion = Annotated[
    QueryExclusion | CampaignExclusion | ListExclusion | FileExclusion, Field(discriminator="kind")
]


def counted_as(exclusion: Exclusion) -> str:
    """Return the reason under which the people that it leaves out are counted."""
    name = exclusion.file if isinstance(exclusion, QueryExclusion | FileExclusion) else exclusion.name
    return exclusion.reason or f"{exclusion.kind} {name}"


class Cap(FrozenModel):
    """The most messages that anybody gets in some days, counted over all campaigns of the connection."""

    messages: Int32 = Field(description="Most messages, this launch's included")
    days: Int32 = Field(description="In how many days, wherever this launch falls among them")


class Priority(FrozenModel):
    """Which of several campaigns of one day reaches a person that all of them name."""

    rank: Int32 = Field(description="1 is the most important")
    group: Text = optional("Campaigns that share it compete", "all")


class Holdout(FrozenModel):
    """People who are not sent to, so that what the message did can be measured."""

    percent: Percent = Field(description="Share of the audience, in percent")
    salt: Text | None = optional(
        "Campaigns that share it hold out the same people; default the name of the campaign"
    )


class AudienceRules(FrozenModel):
    """How the query's people are read, and who of them is left out."""

    partitions: Annotated[int, between(1, 32)] | None = optional(
        "In how many parts, at the same time, audience.sql is read: each gives the rows of :part (from 0) "
        "of :parts"
    )
    exclude: tuple[Exclusion, ...] = optional("Exclusions, in the order in which they count", ())
    priority: Priority | None = optional("Rank among the campaigns of one day")
    cap: Cap | None = optional("Most messages for a person in some days")
    holdout: Holdout | None = optional("Share that is left alone, to measure against")

    @property
    def depend_on_launches(self) -> bool:
        """Check whether it matters whom other launches are sent to."""
        return bool(
            self.cap or self.priority or any(isinstance(each, CampaignExclusion) for each in self.exclude)
        )
