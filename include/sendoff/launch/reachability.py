"""Whom a campaign's channels certainly do not reach, as far as the query tells who is on which platform."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from sendoff.audience import Segment
from sendoff.audience.identifiers import Identifiers, union
from sendoff.campaign import Campaign, Channel
from sendoff.figures import share

_PUSHES = {Channel.ANDROID_PUSH: "android", Channel.IOS_PUSH: "ios"}
_BROWSERS = ("chrome", "firefox", "opera", "safari")
_KNOWN = frozenset({*_PUSHES.values(), *_BROWSERS, "email", "sms"})


@dataclass(frozen=True, slots=True)
class Reach:
    """Whether a campaign that only pushes reaches anybody: the query's platforms, and those that are pushed to."""

    is_anybody_reached: bool
    saw: str
    allowed: str


def reach_of(
    campaign: Campaign, platforms: Mapping[str, Identifiers], segments: Sequence[Segment]
) -> Reach | None:
    """Check whether at least one of a launch's people may be reached. Return None if the query cannot tell.

    Nobody is reached only if the query puts every recipient on a platform that the service's document names and no
    channel pushes to. A recipient without a platform, or on one that the document does not name, may be reached.
    """
    pushed_to = _pushed_to(campaign)
    if pushed_to is None or not platforms or not segments:
        return None
    saw = f"people on {', '.join(f'{name} ({len(platforms[name]):,})' for name in sorted(platforms))}"
    return Reach(
        _may_reach(platforms, pushed_to, segments), saw, f"somebody on {', '.join(sorted(pushed_to))}"
    )


def _may_reach(
    platforms: Mapping[str, Identifiers], pushed_to: frozenset[str], segments: Sequence[Segment]
) -> bool:
    idle = {name: members for name, members in platforms.items() if name in _KNOWN - pushed_to}
    if sum(map(len, idle.values())) < sum(map(len, segments)):
        return True  # they cannot be everybody, and a large audience need not be compared
    kind = next(iter(platforms.values())).kind
    reachable = union(kind, (members for name, members in platforms.items() if name not in idle))
    lost = union(kind, idle.values()) - reachable
    return any(len(segment.identifiers - lost) for segment in segments if segment.identifiers is not None)


def unreached(campaign: Campaign, platforms: Mapping[str, Identifiers]) -> Iterator[str]:
    """Say how many people are only on platforms that no channel of the campaign pushes to.

    Only of campaigns that do nothing but push: every other channel may reach anybody, whatever the device. A platform
    that the service's document does not name is passed over.
    """
    reached = _pushed_to(campaign)
    if reached is None or not platforms:
        return
    idle = sorted(name for name in platforms if name in _KNOWN and name not in reached)
    kind = next(iter(platforms.values())).kind
    everybody = union(kind, platforms.values())
    reachable = union(kind, (members for name, members in platforms.items() if name not in idle))
    counts = {name: len(platforms[name] - reachable) for name in idle}
    lost = len(everybody - reachable)
    if lost:
        where = ", ".join(f"{name} ({count:,})" for name, count in counts.items() if count)
        yield (
            f"{lost:,} people, {share(lost, len(everybody))} of those with a platform, are where no channel of the "
            f"campaign reaches: {where}."
        )


def _pushed_to(campaign: Campaign) -> frozenset[str] | None:
    """Give the platforms that are pushed to; None where another channel is used."""
    of_variants = [part.channels.used() for part in campaign.variants.values()]
    of_templates = [part.template.channels for part in campaign.variants.values() if part.template]
    used = set(campaign.used()).union(*of_variants, *of_templates)
    if used - {*_PUSHES, Channel.WEB_PUSH}:
        return None
    reached = {platform for channel, platform in _PUSHES.items() if channel in used}
    if Channel.WEB_PUSH in used:
        reached.update(_browsers(campaign))
    return frozenset(reached)


def _browsers(campaign: Campaign) -> Iterator[str]:
    pushes = [campaign.channels.web_push, *(part.channels.web_push for part in campaign.variants.values())]
    for push in pushes:
        yield from push.browsers if push else ()
    if campaign.template or any(part.template for part in campaign.variants.values()):
        yield from _BROWSERS  # a template keeps to itself which
