"""Resolving doubts with the service's list of campaigns: a campaign's title contains the key of its dispatch.

The service's document shows no such list (docs/reference/unknowns.md), so it is read only if the connection has
``can_list``. A listed campaign was accepted. A campaign that is not listed stays in doubt, because the list may be
incomplete.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Collection
from datetime import UTC, datetime

from sendoff.dispatch.control import doubts
from sendoff.dispatch.request import ServiceConnection
from sendoff.errors import SettingsError
from sendoff.ledger import Ledger
from sendoff.service import Client
from sendoff.service.wire import list_body

_log = logging.getLogger(__name__)

_KEY = re.compile(r"\[([0-9a-f]{32})\]\Z")
_PAGE = 100  # campaigns
_MAX_PAGES = 50
_FOUND = "the service lists a campaign with its key"


def find_campaigns(
    client: Client, dispatch_keys: Collection[str], app_token: str | None = None
) -> dict[str, int]:
    """Return the service's campaign ID for each dispatch key found in the titles of the service's newest campaigns.

    It reads 50 pages of up to 100 campaigns. The service may make them shorter, so only an empty one is the end.

    Raise RetryableError without a clear answer, and RefusedError if the service does not list its campaigns.
    """
    numbers: dict[str, int] = {}
    read = 0
    for _ in range(_MAX_PAGES):
        page = client.list_campaigns(list_body(_PAGE, read, app_token))
        read += len(page)
        for campaign_id, title in page:
            key = _KEY.search(title)
            if key and key[1] in dispatch_keys:
                numbers[key[1]] = campaign_id
        if not page or len(numbers) == len(dispatch_keys):
            break
    return numbers


def resolve_by_listing(
    ledger: Ledger, launch_key: str, connection: ServiceConnection, *, now: datetime | None = None
) -> int:
    """Accept the dispatches in doubt of a launch whose campaigns the service lists, and return their number.

    Executions have no title. Raise SettingsError unless the connection has ``can_list``, and the errors of
    :func:`find_campaigns`.
    """
    if not connection.can_list:
        raise SettingsError("the connection does not set can_list: the service may not list its campaigns")
    moment = now or datetime.now(UTC)
    keys = {doubt.dispatch_key for doubt in doubts(ledger, launch_key, now=moment)}
    if not keys:
        return 0
    numbers = find_campaigns(connection.client, keys, connection.app_token)
    resolved = sum(ledger.doubts.accept(key, number, _FOUND, moment) for key, number in numbers.items())
    _log.info(
        "launch %s: %d of %d dispatches in doubt were found in the list", launch_key, resolved, len(keys)
    )
    return resolved
