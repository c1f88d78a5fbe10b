"""The recipients of a launch whose silence means that nothing was delivered."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from functools import cached_property

from sendoff.audience.identifiers import Identifiers, empty, union
from sendoff.campaign import Campaign, Channel, Variation
from sendoff.figures import NO_PLATFORM, PLATFORM, RELIABLE_PLATFORMS, UNREAD
from sendoff.ledger import LaunchRecord, Ledger
from sendoff.service import MATCHED_BY
from sendoff.states import PostBackKind

_RELIABLE_CHANNELS = frozenset({Channel.EMAIL, Channel.SMS, Channel.INBOX, Channel.WEBHOOK})


@dataclass(frozen=True)
class Measurable:
    """Recipients whose silence means that nothing was delivered. ``why_nobody``: why there are none."""

    launch: LaunchRecord
    campaign: Campaign
    platforms: Mapping[str, Identifiers]
    why_nobody: str | None

    @classmethod
    def of(cls, ledger: Ledger, launch: LaunchRecord, now: datetime) -> Measurable:
        """Read what decides about the silence of a launch's recipients."""
        campaign = Campaign.frozen(launch.definition)
        reasons = {
            "sent again": launch.sends_at is None,
            "not sent yet": launch.sends_at is not None and now < launch.sends_at,
            "not named": launch.identified_by not in MATCHED_BY,
            "not asked for": PostBackKind.DELIVERY not in campaign.post_backs.kinds,
        }
        platforms = ledger.launches.groups(launch.launch_key, "platform")
        return cls(launch, campaign, platforms, next((why for why, holds in reasons.items() if holds), None))

    @property
    def unmeasured(self) -> tuple[str, ...]:
        """The kinds of post-backs that were not requested, or cannot identify the recipients."""
        asked = self.campaign.post_backs.kinds if self.launch.identified_by in MATCHED_BY else ()
        return tuple(kind.value for kind in PostBackKind if kind not in asked)

    def among(self, people: Identifiers) -> Identifiers:
        """Return those of some recipients whose silence means that nothing was delivered."""
        if self.why_nobody:
            return empty(self.launch.kind)
        return people if self.is_everyone else people & self.by_platform

    @cached_property
    def is_everyone(self) -> bool:
        """Whether all channels report deliveries reliably."""
        variations = [Variation(variant=name) for name in self.campaign.variants] or [Variation()]
        end = self.launch.period.end
        return all(_every_channel_reliable(self.campaign.variation(each, end)) for each in variations)

    @cached_property
    def by_platform(self) -> Identifiers:
        """The recipients whose platforms all report deliveries reliably."""
        # A recipient with two platforms may have been sent to on the one that reports nothing.
        return self._on(are_reliable=True) - self._on(are_reliable=False)

    def why_unknowable(self, unknowable: Identifiers, reliable: Identifiers) -> dict[str, int]:
        """Count the recipients whose silence proves nothing by reason, in the order of precedence."""
        if self.why_nobody:
            return {self.why_nobody: len(unknowable)} if unknowable else {}
        others = unknowable - reliable
        unreliable = others & self._on(are_reliable=False)
        counts = {
            UNREAD: len(unknowable) - len(others),
            PLATFORM: len(unreliable),
            NO_PLATFORM: len(others) - len(unreliable),
        }
        return {reason: count for reason, count in counts.items() if count}

    def _on(self, *, are_reliable: bool) -> Identifiers:
        some = (who for name, who in self.platforms.items() if (name in RELIABLE_PLATFORMS) is are_reliable)
        return union(self.launch.kind, some)


def measurable_recipients(ledger: Ledger, launch: LaunchRecord, now: datetime) -> Identifiers:
    """Return the recipients of a launch whose silence means that nothing was delivered."""
    return Measurable.of(ledger, launch, now).among(ledger.launches.audience(launch.launch_key))


def _every_channel_reliable(campaign: Campaign) -> bool:
    others = set(campaign.channels_used()) - _RELIABLE_CHANNELS
    web_push = campaign.channels.web_push
    return not others or (
        others == {Channel.WEB_PUSH}
        and web_push is not None
        and RELIABLE_PLATFORMS.issuperset(web_push.browsers)
    )
