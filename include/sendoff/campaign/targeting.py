"""Who is sent to (section 2.9): the people of a query, everybody, or people that the service itself chooses."""

from __future__ import annotations

from typing import Annotated, Any, Literal, Self

from pydantic import Discriminator, Field, Tag, model_validator

from sendoff.campaign.field_types import FrozenModel, Int32, Text, optional, problem


class ByQuery(FrozenModel):
    """The people that ``audience.sql`` gives."""

    kind: Literal["query"] = "query"


class Broadcast(FrozenModel):
    """The whole user base."""

    kind: Literal["broadcast"] = "broadcast"


class SavedSegments(FrozenModel):
    """The people of segments that the service keeps."""

    kind: Literal["saved_segments"] = "saved_segments"
    ids: Annotated[tuple[Int32, ...], Field(min_length=1, description="Ids of saved segments")]


class Condition(FrozenModel):
    """One condition: an attribute whose field compares with a value."""

    attribute: Text = Field(description="What is looked at")
    field: Text = optional("Which field of the attribute", "value")
    comparison: Text = optional("How the field compares with value, in the service's spelling", "=")
    value: str | int | float | bool = Field(repr=False, description="What the field is compared with")


def _condition_or_group(given: Any) -> str:
    is_group = "all" in given or "any" in given if isinstance(given, dict) else isinstance(given, Conditions)
    return "group" if is_group else "condition"


Member = Annotated[
    Annotated[Condition, Tag("condition")] | Annotated["Conditions", Tag("group")],
    Discriminator(_condition_or_group),
]
Members = Annotated[tuple[Member, ...], Field(min_length=1)]


class Conditions(FrozenModel):
    """Conditions of which all, or any, must hold; each may be such a group again."""

    all: Members | None = optional("Conditions or groups that must all hold; all or any, not both")
    any: Members | None = optional("Conditions or groups of which one must hold")

    @model_validator(mode="after")
    def _one_way(self) -> Self:
        if (self.all is None) == (self.any is None):
            raise problem("both all and any" if self.all else "neither all nor any", "one of them")
        return self


class ByConditions(FrozenModel):
    """The people for whom conditions hold."""

    kind: Literal["conditions"] = "conditions"
    where: Conditions = Field(description="The group of conditions")


Target = Annotated[ByQuery | Broadcast | SavedSegments | ByConditions, Field(discriminator="kind")]
