"""Injected faults: their kinds, where they happen, and how often.

A fault happens with a probability until it is removed, or a limited number of times. Request faults happen at the
token endpoint, at create and at execute. Post-back faults happen to deliveries and openings.
"""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from sqlalchemy import Connection, Row, delete, insert, or_, select, update

from messaging_service.store import Store
from messaging_service.tables import faults

OPERATIONS = ("create", "execute")
REQUESTS = ("token", *OPERATIONS)
POST_BACKS = ("delivery", "open")
_LONGEST = 3_600.0
_HIGHEST_COUNT = 1_000_000

# The effect of each kind.
REQUEST_FAULTS: Mapping[str, str] = {
    "401": "answers 401",
    "403": "answers 403",
    "429": "answers 429, with Retry-After if that is given",
    "500": "answers 500",
    "503": "answers 503, with Retry-After if that is given",
    "502": "answers 502 with an HTML page, like a gateway",
    "html": "answers 200 with an HTML page",
    "slow": "processes the request, and answers after the given seconds",
    "reset": "resets the connection",
    "lost": "processes the request, and closes the connection without an answer after the given seconds",
    "token-expired": "expires the access token of the request early: 401 from now on",
}
POST_BACK_FAULTS: Mapping[str, str] = {
    "duplicate": "sends a post-back twice",
    "delay": "sends a post-back the given seconds later",
    "reorder": "sends each post-back later by a random time, up to the given seconds",
    "lose": "never sends a post-back",
    "malformed": "damages the body of a post-back at the first attempt",
    "retyped": "sends a post-back with other types of members; the document shows none",
    "burst": "collects post-backs for the given seconds, and sends them all at once",
}
KINDS = (*REQUEST_FAULTS, *POST_BACK_FAULTS)
_MAY_COME_AFTER = ("401", "403", "429", "500", "502", "503", "html", "reset")
_USUAL_SECONDS = {"slow": 5.0, "lost": 0.0, "delay": 5.0, "reorder": 5.0, "burst": 5.0}


class FaultRefusedError(ValueError):
    """A fault has wrong settings; the text says what to change."""


@dataclass(frozen=True, slots=True)
class Fault:
    """A fault to inject.

    It has a ``probability`` or a ``count``; with neither, it happens once. With ``after``, the request is processed
    first. ``seconds`` is for the kinds that take time, ``retry_after`` for 429 and 503.
    """

    kind: str
    at: tuple[str, ...] = ()
    probability: float | None = None
    count: int | None = None
    after: bool = False
    seconds: float | None = None
    retry_after: int | None = None

    def __post_init__(self) -> None:
        if self.kind not in KINDS:
            raise FaultRefusedError(f"kind must be one of {', '.join(KINDS)}")
        wrong = [place for place in self.at if place not in self.possible_places]
        if wrong:
            raise FaultRefusedError(f"{self.kind} can only happen at {', '.join(self.possible_places)}")
        if self.probability is not None and self.count is not None:
            raise FaultRefusedError("give a probability or a count, not both")
        if self.probability is not None and not 0 < self.probability <= 1:
            raise FaultRefusedError("probability must be above 0 and at most 1")
        if self.count is not None and not 1 <= self.count <= _HIGHEST_COUNT:
            raise FaultRefusedError(f"count must be between 1 and {_HIGHEST_COUNT:,}")
        self._check_details()

    def _check_details(self) -> None:
        if self.after and self.kind not in _MAY_COME_AFTER:
            raise FaultRefusedError(f"after is only for {', '.join(_MAY_COME_AFTER)}")
        if self.seconds is not None and self.kind not in _USUAL_SECONDS:
            raise FaultRefusedError(f"seconds is only for {', '.join(_USUAL_SECONDS)}")
        if self.seconds is not None and not 0 <= self.seconds <= _LONGEST:
            raise FaultRefusedError(f"seconds must be between 0 and {_LONGEST:,.0f}")
        if self.retry_after is not None and not (
            self.kind in ("429", "503") and 0 <= self.retry_after <= _LONGEST
        ):
            raise FaultRefusedError(
                f"retry_after is only for 429 and 503, and must be between 0 and {_LONGEST:,.0f} seconds"
            )

    @property
    def possible_places(self) -> tuple[str, ...]:
        """The places where this kind of fault can happen."""
        if self.kind in POST_BACK_FAULTS:
            return POST_BACKS
        return OPERATIONS if self.kind == "token-expired" else REQUESTS

    @property
    def usual_places(self) -> tuple[str, ...]:
        """The places where it happens by default: not at the token endpoint."""
        return POST_BACKS if self.kind in POST_BACK_FAULTS else OPERATIONS


@dataclass(frozen=True, slots=True)
class InjectedFault:
    """One occurrence of a fault."""

    kind: str
    after: bool
    seconds: float
    retry_after: int | None


def add_fault(store: Store, fault: Fault) -> dict[str, Any]:
    """Add a fault that takes effect at once. Return it in the form of ``list_faults``."""
    row = {
        "kind": fault.kind,
        "at": list(dict.fromkeys(fault.at or fault.usual_places)),
        "probability": fault.probability,
        "remaining": None if fault.probability else fault.count or 1,
        "happened": 0,
        "after": fault.after,
        "seconds": _USUAL_SECONDS.get(fault.kind) if fault.seconds is None else fault.seconds,
        "retry_after": fault.retry_after,
    }
    with store.write() as connection:
        number = connection.execute(insert(faults).values(row).returning(faults.c.id)).scalar_one()
    return {"id": number, **row}


def list_faults(store: Store) -> list[dict[str, Any]]:
    """Return the current faults, with how often each happened."""
    with store.read() as connection:
        rows = connection.execute(select(faults).order_by(faults.c.id)).all()
    return [{str(name): value for name, value in row._asdict().items()} for row in rows]


def remove_faults(store: Store, number: int | None = None) -> int:
    """Remove one fault, or all. Return how many were removed."""
    statement = delete(faults) if number is None else delete(faults).where(faults.c.id == number)
    with store.write() as connection:
        return connection.execute(statement).rowcount


def inject_request_fault(store: Store, place: str) -> InjectedFault | None:
    """Return the fault for a request at this place, or None. The oldest fault comes first."""
    with store.read() as connection:
        active = [fault for fault in _active(connection, REQUEST_FAULTS) if place in fault.at]
    for fault in active:
        if fault.probability is not None and random.random() >= fault.probability:  # noqa: S311
            continue
        with store.write() as connection:
            if _count(connection, fault, 1):
                return _struck(fault)
    return None


class PostBackFaults:
    """Draws the faults of post-backs within one transaction, and counts them at its end."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self._active = _active(connection, POST_BACK_FAULTS, lock=True)
        self._struck: dict[int, int] = {}

    def __bool__(self) -> bool:
        return bool(self._active)

    def draw(self, kind: str) -> list[InjectedFault]:
        """Return the faults of one post-back of this kind."""
        return [_struck(fault) for fault in self._active if kind in fault.at and self._strikes(fault)]

    def count(self) -> None:
        """Store how often each fault happened."""
        for fault in self._active:
            if self._struck.get(fault.id):
                _count(self._connection, fault, self._struck[fault.id])

    def _strikes(self, fault: Row[tuple[Any, ...]]) -> bool:
        before = self._struck.get(fault.id, 0)
        by_count = fault.probability is None
        strikes: bool = before < fault.remaining if by_count else random.random() < fault.probability  # noqa: S311
        self._struck[fault.id] = before + strikes
        return strikes


def _active(
    connection: Connection, kinds: Mapping[str, str], *, lock: bool = False
) -> Sequence[Row[tuple[Any, ...]]]:
    lasting = or_(faults.c.remaining.is_(None), faults.c.remaining > 0)
    query = select(faults).where(faults.c.kind.in_(kinds), lasting).order_by(faults.c.id)
    return connection.execute(query.with_for_update() if lock else query).all()


def _count(connection: Connection, fault: Row[tuple[Any, ...]], times: int) -> bool:
    """Store that a fault happens. Return False if others have used it up."""
    values = {"happened": faults.c.happened + times}
    statement = update(faults).where(faults.c.id == fault.id)
    if fault.probability is None:
        statement = statement.where(faults.c.remaining >= times)
        values["remaining"] = faults.c.remaining - times
    return connection.execute(statement.values(values)).rowcount == 1


def _struck(fault: Row[tuple[Any, ...]]) -> InjectedFault:
    return InjectedFault(fault.kind, fault.after, fault.seconds or 0.0, fault.retry_after)
