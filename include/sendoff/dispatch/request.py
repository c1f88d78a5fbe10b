"""The parts of a connection that a worker needs to write a dispatch's request and send it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial

from sendoff.campaign import ACCOUNT, Campaign, topic_scope
from sendoff.errors import CampaignError, SettingsError
from sendoff.ledger import Claim, LaunchRecord
from sendoff.service import Client, OptOut, OptOutSigner, PostBackSigner
from sendoff.service.wire import FieldNames, Targeting, completed, request_body
from sendoff.states import Outcome

DEFAULT_REQUESTS_AT_ONCE = 4
"""The number of requests that a worker sends at once, unless its connection sets another."""

MAX_REQUESTS_AT_ONCE = 16
"""The maximum, which is about the number of ledger connections of a process. For more, start more workers."""


@dataclass(frozen=True, slots=True)
class ServiceConnection:
    """Everything that a worker needs to send the dispatches of one connection. Its threads share it.

    Raise SettingsError unless ``requests_at_once`` is from 1 to MAX_REQUESTS_AT_ONCE. The ``pool_maxsize`` of the
    client's HTTP session should be at least as large, because the session keeps no more connections open.
    """

    client: Client
    signer: PostBackSigner
    app_token: str | None = field(default=None, repr=False)
    names: FieldNames = field(default_factory=FieldNames)
    rate: float | None = None  # requests per second for all workers of the connection; None: no limit
    can_list: bool = False  # the service lists its campaigns, so the list can resolve doubts
    requests_at_once: int = DEFAULT_REQUESTS_AT_ONCE  # per worker

    def __post_init__(self) -> None:
        if not 1 <= self.requests_at_once <= MAX_REQUESTS_AT_ONCE:
            raise SettingsError(f"requests_at_once is not a whole number from 1 to {MAX_REQUESTS_AT_ONCE}")

    def build_request(self, claim: Claim, campaign: Campaign, launch: LaunchRecord) -> Callable[[], Outcome]:
        """Return a function that sends the request of a dispatch (service.md, sections 4.2 and 4.3).

        ``campaign`` is that of the launch. Raise CampaignError or SettingsError if the request cannot be written;
        nothing was sent then.
        """
        segment = claim.content
        if len(campaign.possible(segment.variation)) > 1:  # the ledger opens these requests with the winner
            raise CampaignError(
                f"launch {launch.launch_key}: the winner for segment {claim.segment} is not decided"
            )
        send = (
            self.client.execute_campaign if campaign.send_mode == "execute" else self.client.create_campaign
        )
        campaign = campaign.variation(segment.variation, launch.period.end)
        post_backs = self.signer.for_dispatch(claim.dispatch_key, campaign.post_backs.kinds)
        if segment.body is not None:
            return partial(send, completed(segment.body, post_backs, self.app_token))
        targeting = None
        if segment.identifiers is not None:
            targeting = Targeting(
                launch.identified_by,
                segment.identifiers,
                segment.template_values,
                _opt_out_url(self.signer, campaign, launch),
            )
        body = request_body(
            campaign,
            title=f"{campaign.title} [{claim.dispatch_key}]",
            targeting=targeting,
            post_backs=post_backs,
            app_token=self.app_token,
            names=self.names,
        )
        return partial(send, body)


def _opt_out_url(
    signer: PostBackSigner, campaign: Campaign, launch: LaunchRecord
) -> Callable[[int | str], str]:
    """Return a function that makes the address where a recipient of a launch opts out of its topic, or of all."""
    scope = topic_scope(campaign.topic) if campaign.topic else ACCOUNT
    opt_outs = OptOutSigner.of(signer)

    def address(identifier: int | str) -> str:
        return opt_outs.sign(OptOut(launch.launch_key, scope, launch.identified_by, str(identifier)))

    return address
