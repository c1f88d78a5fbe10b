"""Resolving doubts by reading: the campaign of a dispatch is found by the key that its title carries.

The service's document shows no such list (docs/reference/unknowns.md), so it is read only over a connection
that says that there
is one. What is found was accepted. What is not found stays in doubt: nobody knows when a list is complete.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Collection
from datetime import UTC, datetime

from sendoff.dispatch.control import doubts
from sendoff.dispatch.request import Sender
from sendoff.errors import SettingsError
from sendoff.ledger import Ledger
from sendoff.service import Client
from sendoff.service.wire import list_body

_log = logging.getLogger(__name__)

_KEY = re.compile(r"\[([0-9a-f]{32})\]\Z")
_PAGE = 100  # campaigns
_MOST_PAGES = 50
_FOUND = "the service lists a campaign with its key"


def find_campaigns(
    client: Client, dispatch_keys: Collection[str], app_token: str | None = None
) -> dict[str, int]:
    """Look for the campaigns that dispatches made, among the newest 5,000: dispatch key -> the service's number.

    Raises RetryableError where there was no clear answer, RefusedError where the service lists nothing.
    """
    found: dict[str, int] = {}
    for number in range(_MOST_PAGES):
        page = client.list_campaigns(list_body(_PAGE, number * _PAGE, app_token))
        for campaign_id, title in page:
            key = _KEY.search(title)
            if key and key[1] in dispatch_keys:
                found[key[1]] = campaign_id
        if len(page) < _PAGE or len(found) == len(dispatch_keys):
            break
    return found


def resolve_by_reading(
    ledger: Ledger, launch_key: str, sender: Sender, *, now: datetime | None = None
) -> int:
    """Take those dispatches in doubt of a launch for accepted whose campaigns the service lists; gives their number.

    ``sender`` is of the launch's connection. Executions leave no title to find. Raises SettingsError unless the
    connection says that the list may be read, and what :func:`find_campaigns` raises.
    """
    if not sender.can_list:
        raise SettingsError("the connection does not say that the service lists its campaigns (can_list)")
    moment = now or datetime.now(UTC)
    keys = {each.dispatch_key for each in doubts(ledger, launch_key, now=moment)}
    if not keys:
        return 0
    found = find_campaigns(sender.client, keys, sender.app_token)
    resolved = sum(ledger.dispatches.accept(key, number, _FOUND, moment) for key, number in found.items())
    _log.info(
        "launch %s: %d of %d dispatches in doubt were found by reading", launch_key, resolved, len(keys)
    )
    return resolved
