"""Targeting (section 2.9): the rows of a query, everyone, or recipients that the service chooses."""

from __future__ import annotations

from math import isfinite
from typing import Annotated, Any, Literal, Self

from pydantic import Discriminator, Field, Tag, field_validator, model_validator

from sendoff.campaign.field_types import FrozenModel, Int32, Text, optional, problem


class ByQuery(FrozenModel):
    """Send to the recipients that ``audience.sql`` returns."""

    kind: Literal["query"] = "query"


class Broadcast(FrozenModel):
    """Send to the whole user base."""

    kind: Literal["broadcast"] = "broadcast"


class SavedSegments(FrozenModel):
    """Send to segments that are saved in the service."""

    kind: Literal["saved_segments"] = "saved_segments"
    ids: Annotated[tuple[Int32, ...], Field(min_length=1, description="IDs of saved segments")]


class Condition(FrozenModel):
    """One condition: compare a field of an attribute with a value."""

    attribute: Text = Field(description="Attribute to check")
    field: Text = optional("Field of the attribute to compare", "value")
    comparison: Text = optional("Comparison operator, as the service spells it", "=")
    value: str | int | float | bool = Field(repr=False, description="Value to compare the field with")

    @field_validator("value", mode="before")
    @classmethod
    def _fits_into_json(cls, value: Any) -> Any:
        if isinstance(value, float) and not isfinite(value):
            raise problem("a number that is infinite or not a number", "a finite number")
        if isinstance(value, int) and not -(2**63) <= value < 2**63:
            raise problem("a whole number of more than 64 bits", "a text: put it in quotation marks")
        return value


def _condition_or_group(given: Any) -> str:
    is_group = "all" in given or "any" in given if isinstance(given, dict) else isinstance(given, Conditions)
    return "group" if is_group else "condition"


_Member = Annotated[
    Annotated[Condition, Tag("condition")] | Annotated["Conditions", Tag("group")],
    Discriminator(_condition_or_group),
]
_Members = Annotated[tuple[_Member, ...], Field(min_length=1)]


class Conditions(FrozenModel):
    """A group of conditions: all or any of them must hold. Groups can be nested."""

    all: _Members | None = optional("Conditions or groups that must all hold; give all or any, not both")
    any: _Members | None = optional("Conditions or groups; at least one must hold")

    @model_validator(mode="after")
    def _one_way(self) -> Self:
        if (self.all is None) == (self.any is None):
            raise problem("both all and any" if self.all else "neither all nor any", "one of them")
        return self

    @property
    def depth(self) -> int:
        """How many groups contain each other at most, including this one."""
        inner = (each.depth for each in self.all or self.any or () if isinstance(each, Conditions))
        return 1 + max(inner, default=0)


class ByConditions(FrozenModel):
    """Send to the users who meet conditions, as the service evaluates them."""

    kind: Literal["conditions"] = "conditions"
    where: Conditions = Field(description="Group of conditions to meet")


Target = Annotated[ByQuery | Broadcast | SavedSegments | ByConditions, Field(discriminator="kind")]
