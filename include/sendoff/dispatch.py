"""The dispatch loop: take the next planned dispatch, send it once, record what became of it.

Any number of workers may run the loop for one launch at once, and run it again after any crash. The intent is
committed before the request and the outcome after it, so a dispatch whose worker died in between is found in flight
with its lease over: it goes into doubt, and is never sent again by itself.
"""

from __future__ import annotations

import logging
import os
import socket
import threading
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from functools import partial

from tenacity import Retrying, retry_if_exception_type, stop_after_attempt, wait_exponential

from sendoff.campaign import Campaign
from sendoff.client import Client
from sendoff.errors import (
    CampaignError,
    LedgerUnavailableError,
    PermanentError,
    RateLimitedError,
    RefusedError,
    RetryableError,
)
from sendoff.ledger import Claim, Ledger
from sendoff.ledger.launches import Launch
from sendoff.outcome import NotProcessed, Outcome
from sendoff.postbacks import Addresses
from sendoff.wire import FieldNames, Targeting, create_body, execute_body

_log = logging.getLogger(__name__)

LEASE = timedelta(minutes=5)
"""How long a worker may be silent about a dispatch; well above the client's time-outs."""

_LONGEST_PATIENCE = (
    60.0  # seconds to wait for the service between two accepted dispatches; beyond, the caller decides
)
_RECORDINGS = 12  # tries to record an outcome, over about two minutes: well within the lease
_SHORTEST_PAUSE = 1.0  # seconds, also where the service says 0: its clock may be behind ours


@dataclass(frozen=True, slots=True)
class Tally:
    """What one worker did, in numbers of dispatches."""

    accepted: int = 0
    refused: int = 0
    in_doubt: int = 0


@dataclass(frozen=True, slots=True)
class Sender:
    """Everything a worker needs to send dispatches of one connection."""

    client: Client
    addresses: Addresses
    app_token: str | None = field(default=None, repr=False)
    names: FieldNames = field(default_factory=FieldNames)

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


def work(
    ledger: Ledger,
    launch_key: str,
    sender: Sender,
    *,
    worker: str | None = None,
    now: Callable[[], datetime] = lambda: datetime.now(UTC),
    sleep: Callable[[float], None] = time.sleep,
) -> Tally:
    """Send the planned dispatches of a launch, one after the other, until none is left.

    Raises a RetryableError where the service could not be reached or asked for patience: what was planned stays
    planned, and calling again goes on at the same dispatch. Raises a PermanentError where a person must change
    something first, such as a secret. Refusals and doubts do not stop the loop; they are in
    the tally and in the ledger.
    """
    launch = ledger.launches.get(launch_key)
    campaign = Campaign.model_validate_json(launch.definition)
    name = worker or worker_name()
    if expired := ledger.dispatches.expire_leases(launch_key, now()):
        _log.warning("launch %s: %d dispatches of dead workers are in doubt", launch_key, expired)
    tally: Counter[str] = Counter()
    waited = 0.0
    while claim := ledger.dispatches.claim(launch_key, worker=name, now=now(), lease=LEASE):
        outcome = _attempt(sender, claim, campaign, launch)
        _record(ledger, claim, outcome, now, sleep)
        _log.info(
            "launch %s segment %d attempt %d: %s", launch_key, claim.segment, claim.attempt, outcome.kind
        )
        if isinstance(outcome, NotProcessed):
            waited += _be_patient(outcome, sleep)
            if waited > _LONGEST_PATIENCE:
                raise RateLimitedError(f"nothing was sent for a while: {outcome.reason}", outcome.retry_after)
        else:
            waited = 0.0
            tally[outcome.kind] += 1
    return Tally(**tally)


def _attempt(sender: Sender, claim: Claim, campaign: Campaign, launch: Launch) -> Outcome:
    try:
        send = sender.request(claim, campaign, launch)
    except PermanentError as error:
        return NotProcessed(str(error), permanent=True)
    return send()


def _record(
    ledger: Ledger,
    claim: Claim,
    outcome: Outcome,
    now: Callable[[], datetime],
    sleep: Callable[[float], None],
) -> None:
    """Record an outcome, patiently: a request was made, and while the ledger is away only we know what became of it."""
    for attempt in Retrying(
        retry=retry_if_exception_type(LedgerUnavailableError),
        wait=wait_exponential(max=15),
        stop=stop_after_attempt(_RECORDINGS),
        sleep=sleep,
        reraise=True,
    ):
        with attempt:
            ledger.dispatches.record(claim, outcome, now())


def check_all_made(ledger: Ledger, launch_key: str) -> None:
    """Raise RetryableError while a dispatch of a launch waits or is in flight, its worker dead or alive."""
    ledger.dispatches.expire_leases(launch_key, datetime.now(UTC))
    states = ledger.dispatches.states(launch_key)
    waiting = states.get("planned", 0) + states.get("in_flight", 0)
    if waiting:
        raise RetryableError(f"launch {launch_key}: {waiting} dispatches are not made yet")


def check_refusals(ledger: Ledger, launch_key: str) -> None:
    """Raise RefusedError, with what the service said, where it refused a dispatch of a launch."""
    refused = ledger.dispatches.states(launch_key).get("refused", 0)
    if refused:
        said = "; ".join(ledger.dispatches.reasons(launch_key, "refused")[:3])
        raise RefusedError(f"launch {launch_key}: the service refused {refused} dispatches: {said}")


def worker_name() -> str:
    """Name this worker in the ledger: host, process and thread."""
    return f"{socket.gethostname()}/{os.getpid()}/{threading.get_ident()}"


def _be_patient(outcome: NotProcessed, sleep: Callable[[float], None]) -> float:
    """Wait as the service asked and give the seconds; raise where it asked for too much, or waiting is of no use."""
    if outcome.permanent:
        raise PermanentError(f"nothing was sent: {outcome.reason}")
    if outcome.retry_after is None:
        raise RetryableError(f"nothing was sent: {outcome.reason}")
    if outcome.retry_after > _LONGEST_PATIENCE:
        raise RateLimitedError(f"nothing was sent: {outcome.reason}", outcome.retry_after)
    wait = max(_SHORTEST_PAUSE, outcome.retry_after)
    sleep(wait)
    return wait
