"""Cut an audience into segments: the recipients of one request, who all get the same variation of the campaign."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise
from typing import NamedTuple

from sendoff.audience.bucketing import split
from sendoff.audience.build import Audience
from sendoff.audience.identifiers import Identifiers, empty, union
from sendoff.audience.template_values import template_values_without
from sendoff.campaign import Campaign, Slot, Variation, time_zone_of
from sendoff.errors import AudienceError
from sendoff.states import Arm

DEFAULT_VARIATION = Variation()
"""The variation of a campaign that is the same for all recipients."""

EVERYBODY = "everybody whom the service chooses"
"""The fingerprint of a segment whose recipients the service chooses; changing it would change dispatch keys."""


@dataclass(frozen=True, slots=True)
class Segment:
    """The recipients of one request, and their variation of the campaign.

    ``identifiers``: None if the service chooses the recipients. ``wave``: 1 for the first wave; the next one follows if
    it goes well. ``template_values``: an Arrow IPC stream of each recipient's own values, in the order of the
    identifiers; None if there are none. ``body``: the JSON of a request that someone wrote; None if the request is
    written from the campaign. ``hour``: the hour of the day at which the request may be made, in the recipients' time
    zone; None for any hour. ``arm``: set only if the campaign sends at own hours.
    """

    identifiers: Identifiers | None
    variation: Variation = DEFAULT_VARIATION
    wave: int = 1
    template_values: bytes | None = None
    body: bytes | None = field(default=None, repr=False)
    hour: int | None = None
    arm: Arm | None = None

    def __len__(self) -> int:
        return 0 if self.identifiers is None else len(self.identifiers)

    @property
    def slot(self) -> str:
        """When its request may be made, as the text of a slot."""
        return str(Slot(self.variation.time_zone, self.hour))

    def without(self, people: Identifiers) -> Segment:
        """Return the segment without some of its recipients, also in its template values, but not in its body."""
        if self.identifiers is None or not len(people):
            return self
        values = self.template_values
        if values is not None:
            values = template_values_without(values, self.identifiers, people)
        return replace(self, identifiers=self.identifiers - people, template_values=values)

    def fingerprint(self) -> str:
        """Return a text that is unique among the segments of a launch."""
        if self.body is not None:
            return hashlib.blake2b(self.body, digest_size=16).hexdigest()
        return EVERYBODY if self.identifiers is None else self.identifiers.fingerprint()


class Timed(NamedTuple):
    """Recipients who get the message at the same hour; ``identifiers``: None for all recipients."""

    identifiers: Identifiers | None = None
    hour: int | None = None
    arm: Arm | None = None


def segments_of(
    campaign: Campaign,
    audience: Audience,
    *,
    name: str = "",
    hours: Callable[[str | None], Iterable[Timed]] | None = None,
) -> Iterator[Segment]:
    """Cut an audience into segments of at most the campaign's size, wave by wave, each with one variation.

    Segments do not overlap. ``name``: the campaign's oldest name, the salt for variants and waves. A recipient
    therefore gets the same variant and wave in every launch. Variants, waves and the holdout are independent of each
    other. With ``decide``, wave 1 is the test share, and wave 2 is the rest, whose variant is not known yet.
    ``hours``: divides all recipients by their hours, in a time zone.

    A recipient with two of the campaign's languages gets the one that the campaign lists first. One with two time zones
    gets the first in the alphabet. One without either gets the campaign's own language or default time zone.

    Raise AudienceError if the query lacks a column that the campaign needs for this.
    """
    check_groups(campaign, audience)
    everybody = audience.identifiers
    variants = _by_variant(campaign, everybody, name)
    languages = _by_language(campaign, audience)
    zones = _by_zone(campaign, audience)
    for wave, people in enumerate(_waves(campaign, everybody, name), start=1):
        is_rest = campaign.decide is not None and wave > 1
        for variant, of_variant in _within(people, _ALIKE if is_rest else variants):
            for language, of_language in _within(of_variant, languages):
                for zone, members in _within(of_language, zones):
                    variation = Variation(language, variant, zone)
                    for some, hour, arm in hours(zone) if hours else [Timed()]:
                        at_hour = members if some is None else members & some
                        if len(at_hour):
                            for identifiers in at_hour.slices(campaign.segment_size):
                                yield Segment(identifiers, variation, wave, hour=hour, arm=arm)


def check_groups(campaign: Campaign, audience: Audience) -> None:
    """Raise AudienceError if an audience lacks a column that the separate requests of a campaign need."""
    needed = {}
    if len(languages := campaign.separate_languages()) > 1:
        needed["language"] = f"the campaign sends separate requests in {', '.join(map(str, languages))}"
    if campaign.own_default_zone:
        needed["time_zone"] = "the campaign has time_zone: query"
    for column, purpose in needed.items():
        if column not in audience.groups:
            raise AudienceError(
                f"{purpose}, but its audience has no column {column}; add {column} to the columns of the audience"
            )


def with_template_values(segments: Iterable[Segment], audience: Audience) -> Iterator[Segment]:
    """Yield the segments of an audience with their template values, if the audience has any."""
    for segment in segments:
        if audience.template_values is None or segment.identifiers is None:
            yield segment
        else:
            yield replace(segment, template_values=audience.template_values.of(segment.identifiers))


_Part = tuple[str | None, Identifiers | None]
"""A value that some recipients share, and these recipients; None for all of them."""
_ALIKE: list[_Part] = [(None, None)]


def _within(people: Identifiers, parts: Iterable[_Part]) -> Iterator[tuple[str | None, Identifiers]]:
    """Yield the members of ``people`` in each part, without empty results."""
    for value, part in parts:
        members = people if part is None else people & part
        if len(members):
            yield value, members


def _waves(campaign: Campaign, everybody: Identifiers, name: str) -> list[Identifiers]:
    """Return the recipients of each wave, without empty waves, as a small audience may have them.

    With ``decide``, both waves stay, so that the rest is never taken for the test share.
    """
    if campaign.decide:
        return split(everybody, f"decide {name}", [campaign.decide.share, 100 - campaign.decide.share])
    if campaign.gates.rollout is None:
        return [everybody]
    shares = (0, *campaign.gates.rollout.shares, 100)
    waves = split(everybody, f"rollout {name}", [end - start for start, end in pairwise(shares)])
    return [people for people in waves if len(people)]


def _by_variant(campaign: Campaign, everybody: Identifiers, name: str) -> Iterable[_Part]:
    if not campaign.variants:
        return _ALIKE
    percents = [variant.percent for variant in campaign.variants.values()]
    return list(zip(campaign.variants, split(everybody, f"variant {name}", percents), strict=True))


def _by_language(campaign: Campaign, audience: Audience) -> Iterable[_Part]:
    languages = campaign.separate_languages() or (None,)
    if len(languages) == 1:
        return [(languages[0], None)]
    groups = _groups(audience, "language", _language)
    return _apart(audience.identifiers, groups, languages[0], languages)


def _by_zone(campaign: Campaign, audience: Audience) -> Iterable[_Part]:
    default = campaign.default_zone
    if default is None or "time_zone" not in audience.groups:
        return _ALIKE
    zones = _groups(audience, "time_zone", time_zone_of)
    return _apart(audience.identifiers, zones, default, sorted({*zones, default}))


def _apart(
    everybody: Identifiers,
    groups: Mapping[str, Identifiers],
    default: str | None,
    order: Sequence[str | None],
) -> list[_Part]:
    """Put each recipient into the first of their groups in ``order``, or into the default."""
    rest, parts = everybody, {}
    for value in order:
        parts[value] = rest & groups.get(str(value), empty(rest.kind))
        rest -= parts[value]
    parts[default] |= rest
    return list(parts.items())


def _groups(audience: Audience, column: str, meaning: Callable[[str], str | None]) -> dict[str, Identifiers]:
    """Return the groups of a column by the meaning of their values, without values that have none."""
    groups: dict[str, Identifiers] = {}
    for value, members in audience.groups[column].items():
        if name := meaning(value):
            groups[name] = groups[name] | members if name in groups else members
    return groups


def _language(value: str) -> str:
    """Return the language of a value, without its region: fr for fr-CA."""
    return value.strip().replace("_", "-").partition("-")[0].lower()


def in_unknown_zones(campaign: Campaign, audience: Audience) -> tuple[int, str] | None:
    """Return how many recipients have only time zones that do not exist, and one of these; None if no one does."""
    values = audience.groups.get("time_zone", {}) if campaign.default_zone else {}
    kind = audience.identifiers.kind
    known = union(kind, (members for value, members in values.items() if time_zone_of(value)))
    unknown = {
        value: rest
        for value, members in values.items()
        if value.strip() and time_zone_of(value) is None and len(rest := members - known)
    }
    return (len(union(kind, unknown.values())), min(unknown)) if unknown else None
