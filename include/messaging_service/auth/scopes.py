"""The scopes that restrict a client ID (section 2.2), all selected by default.

The document names none. The first six are quoted from public pages of the same interface; ``execute`` follows from
there being such an operation. Of these, this service has the operations of ``create``, ``list`` and ``execute``.
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
    """A scope that does not exist; the text lists those that do."""


def read_scopes(names: Iterable[str]) -> tuple[str, ...]:
    """Return the scopes in the order of SCOPES, each once."""
    scopes = set(names)
    unknown = sorted(scopes - set(SCOPES))
    if unknown:
        raise UnknownScopeError(f"no such scope: {', '.join(unknown)}; there are {', '.join(SCOPES)}")
    return tuple(name for name in SCOPES if name in scopes)
