"""Send a campaign to a few people of your own, to see its message before anyone else gets it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from datetime import datetime, timedelta
from typing import Any

from sendoff.campaign import TEST, CampaignFolder, Gates, Period
from sendoff.errors import CampaignError
from sendoff.launch.plan import prepare_launch
from sendoff.launch.plan_inputs import LaunchOptions
from sendoff.launch.suppression import Warehouses
from sendoff.ledger import LaunchRecord, Ledger

MOST_TESTERS = 100
"""The most recipients of a test, which needs no approval and skips all other gates."""

_UNTESTED = ("targeting", "send", "audience", "approval", "report", "on_doubt", "dbt")


def prepare_tests(  # noqa: PLR0913 - each is needed
    ledger: Ledger,
    folder: CampaignFolder,
    recipients: Any,
    *,
    moment: datetime,
    variant: str | None = None,
    warehouses: Warehouses,
    options: LaunchOptions = LaunchOptions(),  # noqa: B008 - frozen
) -> list[LaunchRecord]:
    """Freeze launches that send a campaign's message to some recipients at once: one for each variant, or for one.

    They have a campaign of their own, ``<name>-test``, so they change nothing about the launches of the campaign. It
    has the content, the topic, the connection and the daily limits of the campaign. It has no exclusions, no holdout,
    no approval, no hours, and no results in a warehouse. Its only gate is :data:`MOST_TESTERS`. The suppression list
    holds. ``recipients``: as the audience in :func:`~sendoff.campaign.campaign_from`. ``moment``: when the test was
    asked for. The same moment with the same ``options.origin`` returns the same launches. Another origin gets a later
    second, because the second is the period of a test.

    Raise CampaignError if there is no such variant, and the errors of :func:`prepare_launch`.
    """
    if hasattr(recipients, "read_all"):  # a stream of Arrow, which only one launch could read
        recipients = recipients.read_all()
    launches = []
    for name, test in _tests(folder, variant):
        at = moment
        while True:
            launch = prepare_launch(
                ledger,
                test.with_audience(recipients),
                period=Period(at, at, name),
                warehouses=warehouses,
                options=options,
            )
            if launch.origin == options.origin:
                break
            at += timedelta(seconds=1)
        launches.append(launch)
    return launches


def _tests(folder: CampaignFolder, variant: str | None) -> Iterator[tuple[str | None, CampaignFolder]]:
    """Yield the campaign of each test, with the name of its variant."""
    campaign = folder.campaign
    if variant and variant not in campaign.variants:
        known = f"Use {', '.join(campaign.variants)}" if campaign.variants else "It has no variants"
        raise CampaignError(f"campaign {folder.name}: found the variant {variant!r}. {known}")
    defaults = {name: type(campaign).model_fields[name].get_default() for name in _UNTESTED}
    for name in [variant] if variant else campaign.variants or [None]:
        tested = (campaign.as_variant(name) if name else campaign).replace(
            title=f"{campaign.title[:193]} (test)",
            gates=Gates(most=MOST_TESTERS),
            rules=campaign.rules.limits_only(),
            **defaults,
        )
        test = CampaignFolder(f"{folder.name[:95]}{TEST}", tested, None, folder.path)
        yield name, replace(test, rules=folder.rules)
