"""Freeze a request that someone else wrote, as a launch with one segment and one dispatch.

The launch's key derives from the request key, so the same key is sent at most once: in any run, for any body.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any, Literal

from sendoff.audience import Segment
from sendoff.campaign import Campaign, OwnRequest, Period, is_campaign_name, request_launch_key
from sendoff.errors import CampaignError
from sendoff.ledger import LaunchRecord, Ledger, NewLaunch
from sendoff.service.wire import FieldNames, OwnBody, read_own_body
from sendoff.states import DispatchState

_LONGEST_TITLE = 200  # characters, as in a campaign
_LONGEST_KEY = 500  # characters
_FATES = {
    DispatchState.PLANNED: "was not sent yet",
    DispatchState.IN_FLIGHT: "is being sent",
    DispatchState.ACCEPTED: "was accepted by the service",
    DispatchState.REFUSED: "was refused by the service",
    DispatchState.IN_DOUBT: "is in doubt",
    DispatchState.WRITTEN_OFF: "was written off",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class NewRequest:
    """A request to send exactly as it is written.

    ``body``: a JSON object of the service's External API, as a mapping or as JSON text. ``mode``: the operation that
    receives it, *create* (section 4.2) or *execute* (section 4.3). ``name``: the campaign to show it under.
    ``request_key``: names the request within its connection and campaign. A key is never sent twice, whatever its body.
    People see the name and the key, so neither may identify a person.
    """

    body: Mapping[str, Any] | str | bytes = field(repr=False)
    mode: Literal["create", "execute"]
    name: str
    request_key: str
    connection: str = "sendoff_default"


def prepare_request(
    ledger: Ledger,
    request: NewRequest,
    *,
    period: Period,
    names: FieldNames | None = None,
    now: datetime | None = None,
) -> LaunchRecord:
    """Freeze a request in the ledger, once for each request key, and return its launch.

    ``period``: shown in reports; it is not part of the launch's key. ``names``: the connection's spellings, to find the
    recipients.

    Raise CampaignError if the body, the name or the key cannot be used. Also raise it if the key is frozen with another
    body or mode: the frozen request counts. Raise RecipientsDeletedError if its recipients were deleted since. After an
    error, nothing new is frozen.
    """
    moment = now or datetime.now(UTC)
    _check_names(request)
    own = read_own_body(request.body, request.mode, names or FieldNames())
    key = request_launch_key(request.connection, request.name, request.request_key)
    launch = ledger.launches.find(key)
    if launch is None:
        partition = Period(period.start, period.end, request.request_key)
        launch = ledger.launches.freeze(_new_launch(key, request, own, partition, moment))
    launch.check_recipients()
    _check_same(ledger, launch, own)
    return launch


def _new_launch(key: str, request: NewRequest, own: OwnBody, period: Period, now: datetime) -> NewLaunch:
    definition = OwnRequest(
        title=(own.title or request.name)[:_LONGEST_TITLE],
        connection=request.connection,
        post_backs={"kinds": own.post_backs},
        sends_with=own.mode,
        known_channels=own.channels,
    )
    return NewLaunch(
        key,
        connection=request.connection,
        campaign=request.name,
        period=period,
        resend=0,
        definition=definition.model_dump_json(),
        audience=own.audience,
        segments=[Segment(own.audience.identifiers if own.audience else None, body=own.encoded)],
        created_at=now,
        sends_at=None if own.is_repeated else max(now, own.sends_at or now),
    )


def _check_names(request: NewRequest) -> None:
    if not is_campaign_name(request.name):
        raise CampaignError(
            f"name: found {request.name!r}. Use at most 100 letters, digits, _, - and ., and no dot at the start"
        )
    key = request.request_key
    if not isinstance(key, str) or not key.strip() or len(key) > _LONGEST_KEY or not key.isprintable():
        raise CampaignError(
            f"request_key: found {'an empty text' if key == '' else 'a key that cannot be used'}. Use a text of up to "
            f"{_LONGEST_KEY} printable characters that is different for each request"
        )


def _check_same(ledger: Ledger, launch: LaunchRecord, own: OwnBody) -> None:
    """Raise CampaignError if the launch froze another request than this one."""
    # Compare fingerprints: the stored body may have lost people who were erased.
    frozen = ledger.dispatch_queries.fingerprint(launch.launch_key, 1)
    given = Segment(None, body=own.encoded).fingerprint()
    if (frozen, Campaign.frozen(launch.definition).send_mode) == (given, own.mode):
        return
    [dispatch] = ledger.dispatch_queries.of_launch(launch.launch_key)
    raise CampaignError(
        f"launch {launch.launch_key}: the ledger holds another request under this request key, which "
        f"{_FATES[dispatch.state]}. Nothing was sent now. Use a new request key for a new request. If this is the same "
        "request, write it in the same way every time, without the current time or a random value"
    )
