"""The sender: what a worker needs of one connection to write the request of a dispatch and make it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial

from sendoff.campaign import Campaign
from sendoff.errors import CampaignError, SettingsError
from sendoff.ledger import Claim, Launch
from sendoff.outcome import Outcome
from sendoff.service import Addresses, Client
from sendoff.service.wire import FieldNames, Targeting, create_body, execute_body

REQUESTS_AT_ONCE = 4
"""How many requests a worker makes at a time unless its connection says otherwise."""

MOST_AT_ONCE = 16
"""The most of them: about as many connections as a process holds to its ledger. For more, start more workers."""


@dataclass(frozen=True, slots=True)
class Sender:
    """Everything a worker needs to send dispatches of one connection; shared by the threads of a worker.

    SettingsError for a number of requests at once that is not from 1 to MOST_AT_ONCE. The HTTP session of ``client``
    keeps as many connections open as its adapter's ``pool_maxsize`` says; that should be no less.
    """

    client: Client
    addresses: Addresses
    app_token: str | None = field(default=None, repr=False)
    names: FieldNames = field(default_factory=FieldNames)
    rate: float | None = None  # requests per second of all workers of the connection; None: no limit
    can_list: bool = False  # the service lists its campaigns, so doubts may be resolved by reading
    requests_at_once: int = REQUESTS_AT_ONCE  # of one worker

    def __post_init__(self) -> None:
        if not 1 <= self.requests_at_once <= MOST_AT_ONCE:
            raise SettingsError(f"requests_at_once is not a whole number from 1 to {MOST_AT_ONCE}")

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
