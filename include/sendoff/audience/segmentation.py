"""Cutting an audience into segments: the people of one request each, who all get the same variation of the campaign."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

from sendoff.audience.bucketing import split
from sendoff.audience.build import Audience
from sendoff.audience.identifiers import Identifiers, empty
from sendoff.campaign import Campaign, Variation, is_time_zone
from sendoff.errors import AudienceError

DEFAULT_VARIATION = Variation()
"""The variation of a campaign that is the same for all."""

EVERYBODY = "everybody whom the service chooses"


@dataclass(frozen=True, slots=True)
class Segment:
    """The people of one request, and what they get.

    ``identifiers``: None where the service chooses the people. ``wave``: 1 for those who are sent to first; the next
    wave follows when that went well. ``template_values``: each person's own values for the variables of a template, an
    Arrow IPC stream whose rows are in the order of the identifiers; None where there are none.
    """

    identifiers: Identifiers | None
    variation: Variation = DEFAULT_VARIATION
    wave: int = 1
    template_values: bytes | None = None

    def __len__(self) -> int:
        return 0 if self.identifiers is None else len(self.identifiers)

    def fingerprint(self) -> str:
        """Return what tells it from the other segments of its launch."""
        return EVERYBODY if self.identifiers is None else self.identifiers.fingerprint()


def segments_of(campaign: Campaign, audience: Audience, *, name: str = "") -> Iterator[Segment]:
    """Cut an audience into segments of the campaign's size, each in one variation, without overlap, wave after wave.

    ``name``: that of the campaign. By it chance shares people out among variants and waves, the same in every launch;
    the two have nothing to do with each other, nor with a holdout. Who has two of the campaign's languages gets the one
    that stands first, who has two time zones the one that comes first in the alphabet; who has none gets the campaign's
    own language, its default time zone.

    Raises AudienceError where people are cut by a column that the query does not give.
    """
    everybody = audience.identifiers
    variants = _by_variant(campaign, everybody, name)
    languages = _by_language(campaign, audience)
    zones = _by_zone(campaign, audience)
    for wave, people in enumerate(_waves(campaign, everybody, name), start=1):
        for variant, of_variant in _within(people, variants):
            for language, of_language in _within(of_variant, languages):
                for zone, members in _within(of_language, zones):
                    for identifiers in members.slices(campaign.segment_size):
                        yield Segment(identifiers, Variation(language, variant, zone), wave)


def with_template_values(segments: Iterable[Segment], audience: Audience) -> Iterator[Segment]:
    """Yield segments of an audience, each with its people's own values where the audience has any."""
    for segment in segments:
        if audience.template_values is None or segment.identifiers is None:
            yield segment
        else:
            yield replace(segment, template_values=audience.template_values.of(segment.identifiers))


_Part = tuple[str | None, Identifiers | None]
"""What some people have in common, and who they are; None: everybody."""


def _within(people: Identifiers, parts: Iterable[_Part]) -> Iterator[tuple[str | None, Identifiers]]:
    """Yield those of some people who are in each part, where there are any."""
    for value, part in parts:
        members = people if part is None else people & part
        if len(members):
            yield value, members


def _waves(campaign: Campaign, everybody: Identifiers, name: str) -> list[Identifiers]:
    """Return the people of each wave; one of nobody, as in a small audience, is none."""
    if campaign.gates.rollout is None:
        return [everybody]
    shares = (0, *campaign.gates.rollout.shares, 100)
    waves = split(everybody, f"rollout {name}", [end - start for start, end in pairwise(shares)])
    return [people for people in waves if len(people)]


def _by_variant(campaign: Campaign, everybody: Identifiers, name: str) -> Iterable[_Part]:
    if not campaign.variants:
        return [(None, None)]
    percents = [variant.percent for variant in campaign.variants.values()]
    return list(zip(campaign.variants, split(everybody, f"variant {name}", percents), strict=True))


def _by_language(campaign: Campaign, audience: Audience) -> Iterable[_Part]:
    languages = campaign.separate_languages() or (None,)
    if len(languages) == 1:
        return [(languages[0], None)]
    purpose = f"the campaign is sent apart in {', '.join(map(str, languages))}"
    groups = _groups(audience, "language", purpose, _language)
    return _apart(audience.identifiers, groups, languages[0], languages)


def _by_zone(campaign: Campaign, audience: Audience) -> Iterable[_Part]:
    default = campaign.default_zone
    if default is None:
        return [(None, None)]
    zones = _groups(audience, "time_zone", "the campaign has time_zone: query", _zone)
    return _apart(audience.identifiers, zones, default, sorted({*zones, default}))


def _apart(
    everybody: Identifiers,
    groups: Mapping[str, Identifiers],
    default: str | None,
    order: Sequence[str | None],
) -> list[_Part]:
    """Put everybody into one of the groups that they are in, the first in some order, or into the default."""
    rest, parts = everybody, {}
    for value in order:
        parts[value] = rest & groups.get(str(value), empty(rest.kind))
        rest -= parts[value]
    parts[default] |= rest
    return list(parts.items())


def _groups(
    audience: Audience, column: str, purpose: str, meaning: Callable[[str], str | None]
) -> dict[str, Identifiers]:
    """Return the groups of a column by what their values mean; a value that means nothing is left out."""
    if column not in audience.groups:
        raise AudienceError(
            f"{purpose}, but its query gives no column {column}; add {column} to those that it selects"
        )
    groups: dict[str, Identifiers] = {}
    for value, members in audience.groups[column].items():
        if name := meaning(value):
            groups[name] = groups[name] | members if name in groups else members
    return groups


def _language(value: str) -> str:
    """Return the language of a value; one that is written with a region, such as fr-CA, is that language."""
    return value.replace("_", "-").partition("-")[0].lower()


def _zone(value: str) -> str | None:
    name = value.strip()
    return name if is_time_zone(name) else None
