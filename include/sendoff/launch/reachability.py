"""Find recipients that a campaign's channels cannot reach, if the query returns their platforms."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from sendoff.audience import Segment
from sendoff.audience.identifiers import Identifiers, union
from sendoff.campaign import Campaign, Channel, OwnRequest
from sendoff.figures import share
from sendoff.ledger import LaunchRecord, Ledger

_PUSHES = {Channel.ANDROID_PUSH: "android", Channel.IOS_PUSH: "ios"}
_BROWSERS = ("chrome", "firefox", "opera", "safari")
_KNOWN = frozenset({*_PUSHES.values(), *_BROWSERS, "email", "sms"})


def may_reach(
    platforms: Mapping[str, Identifiers], pushed_to: frozenset[str], segments: Sequence[Segment]
) -> bool:
    """Check whether a launch may reach at least one recipient.

    A recipient is out of reach only if all their platforms are known from the service's document and none of the
    campaign's channels pushes to one. Recipients without a platform, or with an unknown one, may be reached.
    """
    idle = (members for name, members in platforms.items() if name in _KNOWN - pushed_to)
    if sum(map(len, idle)) < sum(map(len, segments)):
        return True  # a shortcut for large audiences: there are too few of them to be all recipients
    lost = _out_of_reach(platforms, pushed_to)
    return any(len(segment.identifiers - lost) for segment in segments if segment.identifiers is not None)


def unreachable(campaign: Campaign, platforms: Mapping[str, Identifiers]) -> Iterator[str]:
    """Yield a sentence with the number of recipients out of reach of the campaign's channels, if there are any.

    Platforms that the service's document does not name count as reachable.
    """
    pushed_to = platforms_pushed_to(campaign)
    if pushed_to is None or not platforms or not (lost := _out_of_reach(platforms, pushed_to)):
        return
    everybody = union(lost.kind, platforms.values())
    counts = {name: len(platforms[name] & lost) for name in sorted(platforms)}
    where = ", ".join(f"{name} ({count:,})" for name, count in counts.items() if count)
    yield (
        f"The campaign's channels cannot reach {len(lost):,} people, {share(len(lost), len(everybody))} of those with "
        f"a platform: {where}."
    )


def reached_recipients(ledger: Ledger, launch: LaunchRecord) -> int | None:
    """Return how many recipients of a launch its channels may reach. None if they may reach all, as far as is known.

    This reads all identifiers of the launch.
    """
    campaign = Campaign.frozen(launch.definition)
    if isinstance(campaign, OwnRequest) or (pushed_to := platforms_pushed_to(campaign)) is None:
        return None
    platforms = ledger.launches.groups(launch.launch_key, "platform")
    if not platforms or not (lost := _out_of_reach(platforms, pushed_to)):
        return None
    recipients = lost_recipients = 0
    for _, members in ledger.dispatch_queries.segments(launch.launch_key):
        recipients += len(members)
        lost_recipients += len(members & lost)
    return recipients - lost_recipients if lost_recipients else None


def _out_of_reach(platforms: Mapping[str, Identifiers], pushed_to: frozenset[str]) -> Identifiers:
    """Return the recipients that are only on known platforms that no channel pushes to."""
    kind = next(iter(platforms.values())).kind
    idle = _KNOWN - pushed_to
    reachable = union(kind, (members for name, members in platforms.items() if name not in idle))
    return union(kind, (members for name, members in platforms.items() if name in idle)) - reachable


def platforms_pushed_to(campaign: Campaign) -> frozenset[str] | None:
    """Return the platforms that the campaign pushes to, or None if it uses another channel that may reach anyone."""
    reached: set[str] = set()
    for part in campaign.parts():
        for channel in part.channels_used():
            if channel in _PUSHES:
                reached.add(_PUSHES[channel])
            elif channel is Channel.WEB_PUSH:  # the browsers of a template are unknown
                reached.update(part.channels.web_push.browsers if part.channels.web_push else _BROWSERS)
            else:
                return None
    return frozenset(reached)
