"""Cutting an audience into segments: the people of one request each, who all get the same edition of the campaign."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from sendoff.audience import Audience
from sendoff.campaign import Campaign, Edition
from sendoff.errors import AudienceError
from sendoff.identifiers import Identifiers, empty

ALIKE = Edition()
"""The edition of a campaign that is the same for all."""

EVERYBODY = "everybody whom the service chooses"


@dataclass(frozen=True, slots=True)
class Segment:
    """The people of one request, and what they get.

    ``identifiers``: None where the service chooses the people. ``wave``: 1 for those who are sent to first; the next
    wave follows when that went well. ``parameters``: each person's own values for the variables of a template, an
    Arrow IPC stream whose rows are in the order of the identifiers; None where there are none.
    """

    identifiers: Identifiers | None
    edition: Edition = ALIKE
    wave: int = 1
    parameters: bytes | None = None

    def __len__(self) -> int:
        return 0 if self.identifiers is None else len(self.identifiers)

    def fingerprint(self) -> str:
        """Give what tells it from the other segments of its launch."""
        return EVERYBODY if self.identifiers is None else self.identifiers.fingerprint()


def segments_of(campaign: Campaign, audience: Audience) -> Iterator[Segment]:
    """Cut an audience into segments of the campaign's size, each in one edition, without overlap.

    Who has two of its languages gets the one that stands first; who has none of them gets the campaign's own.
    """
    remaining = audience.identifiers
    own, *others = campaign.languages_apart() or (None,)
    if others and "language" not in audience.groups:
        raise AudienceError(
            f"the campaign is sent apart in {own}, {', '.join(others)}, but its query gives no column language"
        )
    speakers = _by_language(audience)
    nobody = empty(remaining.kind)
    parts: list[tuple[str | None, Identifiers]] = []
    for other in others:
        members = remaining & speakers.get(str(other), nobody) - speakers.get(str(own), nobody)
        parts.append((other, members))
        remaining -= members
    for language, members in [(own, remaining), *parts]:
        for identifiers in members.slices(campaign.segment_size):
            yield Segment(identifiers, Edition(language))


def _by_language(audience: Audience) -> dict[str, Identifiers]:
    """Give the people of each language; one that is written with a region, such as fr-CA, is that language."""
    speakers: dict[str, Identifiers] = {}
    for value, members in audience.groups.get("language", {}).items():
        language = value.replace("_", "-").partition("-")[0].lower()
        speakers[language] = speakers.get(language, empty(members.kind)) | members
    return speakers
