"""The sender: what a worker needs of one connection to write the request of a dispatch and make it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial

from sendoff.campaign import Campaign
from sendoff.client import Client
from sendoff.errors import CampaignError
from sendoff.ledger import Claim
from sendoff.ledger.launches import Launch
from sendoff.outcome import Outcome
from sendoff.postbacks import Addresses
from sendoff.wire import FieldNames, Targeting, create_body, execute_body


@dataclass(frozen=True, slots=True)
class Sender:
    """Everything a worker needs to send dispatches of one connection."""

    client: Client
    addresses: Addresses
    app_token: str | None = field(default=None, repr=False)
    names: FieldNames = field(default_factory=FieldNames)
    rate: float | None = None  # requests per second of all workers of the connection; None: no limit
    can_list: bool = False  # the service lists its campaigns, so doubts may be resolved by reading

    def request(self, claim: Claim, campaign: Campaign, launch: Launch) -> Callable[[], Outcome]:
        """Write the one request of a dispatch (service.md, sections 4.2 and 4.3); calling it sends it.

        ``campaign`` is that of the launch. Raises CampaignError and SettingsError for a request that cannot be written;
        then nothing was sent.
        """
        segment = claim.content
        campaign = campaign.edition(segment.edition, launch.period.end)
        people = None
        if segment.identifiers is not None:
            people = Targeting(launch.identified_by, segment.identifiers, segment.parameters)
        post_backs = self.addresses.for_dispatch(claim.dispatch_key, campaign.post_backs.kinds)
        if campaign.template:
            if people is None:
                raise CampaignError("a template is executed for people of a query")
            execution = execute_body(
                campaign, targeting=people, post_backs=post_backs, app_token=self.app_token, names=self.names
            )
            return partial(self.client.execute_campaign, execution)
        creation = create_body(
            campaign,
            title=f"{campaign.title} [{claim.dispatch_key}]",
            targeting=people,
            post_backs=post_backs,
            app_token=self.app_token,
            names=self.names,
        )
        return partial(self.client.create_campaign, creation)
