"""The scopes of the suppression list: which campaigns an entry stops."""

from __future__ import annotations

import re
from collections.abc import Iterable

from sendoff.campaign.content import Channel

ACCOUNT = "account"
"""The scope that stops every campaign that is not transactional."""

EVERYTHING = "everything"
"""The scope that stops every campaign, also transactional ones."""

TOPIC = r"[a-z0-9][a-z0-9_-]{0,63}"
"""The names of topics, as a regular expression."""

_TOPIC_SCOPE = re.compile(f"topic:{TOPIC}", re.ASCII)


def topic_scope(topic: str) -> str:
    """Return the scope that stops the campaigns on a topic."""
    return f"topic:{topic}"


def channel_scope(channel: str) -> str:
    """Return the scope that stops the campaigns that use a channel."""
    return f"channel:{channel}"


def is_suppression_scope(scope: str) -> bool:
    """Check whether entries of the suppression list can have a scope."""
    return (
        scope in (ACCOUNT, EVERYTHING, *map(channel_scope, Channel))
        or _TOPIC_SCOPE.fullmatch(scope) is not None
    )


def scopes_of(topic: str | None, channels: Iterable[str], *, is_transactional: bool) -> tuple[str, ...]:
    """Return the scopes that stop a campaign, sorted."""
    scopes = {EVERYTHING, *map(channel_scope, channels)}
    if not is_transactional:
        scopes.add(ACCOUNT)
    if topic is not None:
        scopes.add(topic_scope(topic))
    return tuple(sorted(scopes))
