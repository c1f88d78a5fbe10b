"""What a worker needs of one connection to write the request of a dispatch and send it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial

from sendoff.campaign import Campaign
from sendoff.errors import SettingsError
from sendoff.ledger import Claim, Launch
from sendoff.outcome import Outcome
from sendoff.service import Client, PostBackSigner
from sendoff.service.wire import FieldNames, Targeting, request_body

DEFAULT_REQUESTS_AT_ONCE = 4
"""How many requests a worker makes at a time unless its connection says otherwise."""

MAX_REQUESTS_AT_ONCE = 16
"""The most of them: about as many connections as a process holds to its ledger. For more, start more workers."""


@dataclass(frozen=True, slots=True)
class ServiceConnection:
    """Everything a worker needs to send dispatches of one connection; shared by the threads of a worker.

    Raises SettingsError unless ``requests_at_once`` is from 1 to MAX_REQUESTS_AT_ONCE. The HTTP session of ``client``
    keeps as many connections open as its adapter's ``pool_maxsize`` says; that should be no less.
    """

    client: Client
    signer: PostBackSigner
    app_token: str | None = field(default=None, repr=False)
    names: FieldNames = field(default_factory=FieldNames)
    rate: float | None = None  # requests per second of all workers of the connection; None: no limit
    can_list: bool = False  # the service lists its campaigns, so doubts may be resolved by reading
    requests_at_once: int = DEFAULT_REQUESTS_AT_ONCE  # of one worker

    def __post_init__(self) -> None:
        if not 1 <= self.requests_at_once <= MAX_REQUESTS_AT_ONCE:
            raise SettingsError(f"requests_at_once is not a whole number from 1 to {MAX_REQUESTS_AT_ONCE}")

    def build_request(self, claim: Claim, campaign: Campaign, launch: Launch) -> Callable[[], Outcome]:
        """Return the one request of a dispatch (service.md, sections 4.2 and 4.3); calling it sends it.

        ``campaign`` is that of the launch. Raises CampaignError and SettingsError for a request that cannot be written;
        then nothing was sent.
        """
        segment = claim.content
        campaign = campaign.variation(segment.variation, launch.period.end)
        targeting = None
        if segment.identifiers is not None:
            targeting = Targeting(launch.identified_by, segment.identifiers, segment.template_values)
        body = request_body(
            campaign,
            title=f"{campaign.title} [{claim.dispatch_key}]",
            targeting=targeting,
            post_backs=self.signer.for_dispatch(claim.dispatch_key, campaign.post_backs.kinds),
            app_token=self.app_token,
            names=self.names,
        )
        return partial(
            self.client.execute_campaign if campaign.template else self.client.create_campaign, body
        )
