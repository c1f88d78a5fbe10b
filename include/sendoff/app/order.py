"""What a caller of the library orders: a campaign, with its audience, for a period."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, time
from pathlib import Path
from typing import TYPE_CHECKING, Any
from zoneinfo import ZoneInfo

from sendoff.campaign import Given, Period
from sendoff.errors import CampaignError, NotYetError

if TYPE_CHECKING:
    from sendoff.app.connections import Connections
    from sendoff.campaign import Campaign, CampaignFolder
    from sendoff.launch import LaunchOptions
    from sendoff.ledger import LaunchRecord
    from sendoff.settings import Settings


def order_of(
    connections: Connections,
    campaign: Campaign | Mapping[str, Any] | str | Path,
    name: str | None,
    audience: Any,
    period: Given | None,
) -> Order:
    """Return the order that the arguments of ``App.prepare`` mean.

    Raise CampaignError for a wrong campaign, and for a period that it cannot have. Raise NotYetError if the period has
    not ended.
    """
    reads_query = audience is None and isinstance(campaign, str | Path)
    folder = folder_given(campaign, name, connections.settings, reads_query=reads_query)
    if not reads_query:
        folder = folder.with_audience(audience)
    connections.check(folder.campaign.connection)
    fixed = folder.campaign.fixed_period
    if fixed is None and period is None:
        raise CampaignError(f"campaign {folder.name}: it has no period. Add one, such as period='2026-11-16'")
    order = Order(folder, fixed or Period.of(period), datetime.now(UTC))  # type: ignore[arg-type]
    order.check_start()
    order.check_over()
    return order


@dataclass(frozen=True, slots=True)
class Order:
    """What a caller wants to launch."""

    folder: CampaignFolder
    period: Period
    now: datetime

    def check_over(self) -> None:
        """Raise NotYetError if the period has not ended, so that the query would miss some of it."""
        end = self.period.end
        if end > self.now and self.folder.campaign.fixed_period is None:
            raise NotYetError(
                f"campaign {self.folder.name}: the period {self.period.key} has not ended. Wait, or name another one",
                end,
            )

    def check_start(self) -> None:
        """Raise CampaignError if the period begins before the campaign does."""
        campaign = self.folder.campaign
        zone = ZoneInfo(campaign.schedule_time_zone)
        if campaign.start and self.period.start < datetime.combine(campaign.start, time(), zone):
            raise CampaignError(
                f"campaign {self.folder.name}: the period {self.period.key} begins before start, {campaign.start}. "
                "Use a later period, or change start"
            )

    def options(self, who: str, size_limit: int | None, *, send_late: bool, **again: Any) -> LaunchOptions:
        """Return the options of its launch. ``again``: those of a resend."""
        from sendoff.launch import LaunchOptions, due_time

        return LaunchOptions(
            size_limit=size_limit,
            due_at=due_time(self.folder.campaign, self.period, self.now),
            send_late=send_late,
            who=who,
            **again,
        )


def folder_given(
    campaign: Campaign | Mapping[str, Any] | str | Path,
    name: str | None,
    settings: Settings,
    *,
    reads_query: bool,
) -> CampaignFolder:
    """Return a campaign; ``reads_query``: with the audience query, if it is a folder.

    A campaign from Python that names no connection uses the app's.
    """
    from sendoff.campaign import Campaign, folder_of, load_campaign

    defaults = Path(settings.defaults) if settings.defaults else None
    if isinstance(campaign, str | Path):
        folder = load_campaign(Path(campaign), has_audience=reads_query, defaults=defaults)
        return folder if name is None else folder.named(name)
    if name is None:
        raise CampaignError("the campaign has no name. Add one, such as name='lapsed_buyers'")
    if isinstance(campaign, Mapping):
        campaign = {"connection": settings.connection, **campaign}
    elif isinstance(campaign, Campaign) and "connection" not in campaign.model_fields_set:
        campaign = campaign.replace(connection=settings.connection)
    return folder_of(campaign, name, defaults=defaults)


def is_frozen_as(launch: LaunchRecord, campaign: Campaign, period_end: datetime) -> bool:
    """Check whether a launch has frozen a campaign. The texts of equal definitions differ between versions.

    A campaign whose times do not fit the period is another one.
    """
    from sendoff.campaign import Campaign

    try:
        return Campaign.frozen(launch.definition) == campaign.resolved(period_end)
    except CampaignError:
        return False
