"""Variants of a campaign: contents to compare, templates to execute, and how the best variant is chosen."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Literal

from pydantic import Field

from sendoff.campaign.audience_rules import Percent
from sendoff.campaign.content import Channel, Channels, Message
from sendoff.campaign.field_types import FrozenModel, Int32, Text, optional
from sendoff.campaign.gates import Duration


class Template(FrozenModel):
    """A live campaign in the service, executed with its own content once for each segment (section 4.3)."""

    id: Int32 = Field(description="ID of the live campaign in the service")
    channels: Annotated[
        tuple[Channel, ...], Field(min_length=1, description="Channels that the template uses")
    ]
    parameters: Mapping[str, str] = Field(
        default={}, repr=False, description="Values of the template's variables, the same for all recipients"
    )
    columns: tuple[Text, ...] = optional(
        "Columns of the query that hold each recipient's own values for the template's variables", ()
    )
    unsubscribe_url: Text | None = optional(
        "Variable of the template that gets each recipient's own address to opt out, such as unsubscribe_url; "
        "a transactional campaign with it needs a topic"
    )


class Variant(FrozenModel):
    """A variant for comparison: a share of the recipients, and the content they get instead."""

    percent: Percent = Field(
        description="Share of the recipients, in percent, without the holdout; all variants must add up to 100"
    )
    message: Message | None = optional(
        "Fields that replace those of the campaign's message; the others stay as they are"
    )
    channels: Channels = optional(
        "Channels that replace those of the campaign, each one completely", Channels()
    )
    template: Template | None = optional("Template to execute instead of the campaign's")


class Decide(FrozenModel):
    """Send the variants to a test share first, and the winner of these to everyone else, once."""

    share: Annotated[float, Field(gt=0, lt=100, allow_inf_nan=False)] = Field(
        description="Test share: percent of the recipients who get the variants first; the rest wait for the winner"
    )
    after: Duration = Field(
        description="How long to wait for opens after the last request of the test share, before the winner is chosen"
    )
    otherwise: Text = Field(description="Variant that the rest get if no variant is clearly ahead")
    metric: Literal["engaged"] = optional(
        "What decides. engaged: the share of recipients who opened or clicked", "engaged"
    )
    by: Literal["itself", "person"] = optional(
        "Who decides. itself: the rest is sent without asking. person: the launch is held with a proposal, and a "
        "person names the variant when releasing it",
        "itself",
    )

    @property
    def words(self) -> str:
        """What happens, as a sentence for people who do not know Sendoff."""
        if self.by == "person":
            return (
                f"{self.share:g} % get the variants first. After {self.after.words}, the launch waits until a person "
                "chooses the variant for the rest. Proposed is the one that is clearly ahead, or else "
                f"{self.otherwise}."
            )
        return (
            f"{self.share:g} % get the variants first. After {self.after.words}, the rest gets the one that is "
            f"clearly ahead, or else {self.otherwise}."
        )
