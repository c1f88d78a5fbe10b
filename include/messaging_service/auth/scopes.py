"""The scopes that restrict a client ID (section 2.2). All are selected by default.

The document names no scopes. The first six come from public pages of the same interface. ``execute`` is inferred,
because there is such an operation. This service has operations for ``create``, ``list`` and ``execute`` only.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

SCOPES: Mapping[str, str] = {
    "create": "create campaigns",
    "batch_create": "create many objects at once",
    "update": "change objects",
    "delete": "delete objects",
    "list": "list objects",
    "info": "read one object",
    "execute": "execute campaigns that the API triggers",
}
ALL_SCOPES = tuple(SCOPES)


class UnknownScopeError(ValueError):
    """A scope does not exist; the text lists the existing scopes."""


def read_scopes(names: Iterable[str]) -> tuple[str, ...]:
    """Return the scopes in the order of SCOPES, without duplicates, or raise UnknownScopeError."""
    scopes = set(names)
    unknown = sorted(scopes - set(SCOPES))
    if unknown:
        raise UnknownScopeError(f"unknown scope {', '.join(unknown)}; the scopes are {', '.join(SCOPES)}")
    return tuple(name for name in SCOPES if name in scopes)
