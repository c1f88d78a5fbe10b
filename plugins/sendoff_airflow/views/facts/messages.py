"""The messages of a campaign, for mock-ups of phones, browsers and mailboxes."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from urllib.parse import urlencode

from starlette.responses import HTMLResponse

from sendoff.campaign import Campaign, OwnRequest, Variation
from sendoff.errors import CampaignError
from sendoff.launch import Rendering, renderings
from sendoff.ledger import LaunchRecord, SegmentSize
from sendoff_airflow.views.web.permissions import not_there

_MOST_MESSAGES = 12
_EMAIL_HEADERS = {
    "Content-Security-Policy": "sandbox; default-src 'none'; style-src 'unsafe-inline'; img-src data:; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'self'"
}
"""Headers of an email's page: it runs no script and loads nothing, wherever it is opened.

No header keeps a browser from opening a connection for ``<link rel=preconnect>``, but no request follows.
"""


@dataclass(frozen=True, slots=True)
class ShownMessage:
    """What some recipients see, by channel.

    ``people``: their number, None if not known. ``template``: the service's campaign, if it holds the text. ``email``:
    the query of the address of the email's page, if the email has HTML.
    """

    variant: str | None
    language: str | None
    people: int | None
    channels: Mapping[str, Mapping[str, str]]
    template: int | None
    email: str | None


def messages_of(
    campaign: Campaign, variations: Mapping[Variation, int], period_end: datetime
) -> Sequence[ShownMessage]:
    """Return the messages of a campaign. ``variations``: the number of recipients of each, 0 if it is not known.

    Requests that someone wrote have none.
    """
    if isinstance(campaign, OwnRequest):
        return []
    found = renderings(campaign, variations, period_end=period_end, most=_MOST_MESSAGES)
    return [_message(campaign, each, period_end) for each in found]


def messages_of_launch(launch: LaunchRecord, parts: Iterable[SegmentSize]) -> Sequence[ShownMessage]:
    """Return the messages of a launch, with the number of recipients of each. ``parts``: the sizes of its segments."""
    sizes: Counter[Variation] = Counter()
    for part in parts:
        sizes[part.variation] += part.people
    return messages_of(Campaign.frozen(launch.definition), sizes, launch.period.end)


def _message(campaign: Campaign, rendering: Rendering, period_end: datetime) -> ShownMessage:
    of = {"variant": rendering.variant, "language": rendering.language}
    html = _html_of(campaign, Variation(rendering.language, rendering.variant), period_end)
    return ShownMessage(
        rendering.variant,
        rendering.language,
        rendering.people,
        rendering.channels,
        rendering.template,
        urlencode({name: value for name, value in of.items() if value}) if html else None,
    )


def email_page(campaign: Campaign, variant: str, language: str, period_end: datetime) -> HTMLResponse:
    """Return the HTML of a campaign's email as a page of its own. Raise 404 if it has none."""
    try:
        html = _html_of(campaign, Variation(language or None, variant or None), period_end)
    except CampaignError:
        html = None
    if html is None:
        raise not_there()
    return HTMLResponse(html, headers=_EMAIL_HEADERS)


def _html_of(campaign: Campaign, variation: Variation, period_end: datetime) -> str | None:
    email = campaign.variation(variation, period_end).channels.email
    return email.html if email else None
