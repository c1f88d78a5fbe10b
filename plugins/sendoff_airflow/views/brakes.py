"""The brakes that are set, as far as somebody may know of them, and which ones they may set."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass

from sendoff.ledger import ALL, Brake, Ledger, scope_of
from sendoff_airflow.views.permissions import Viewer


@dataclass(frozen=True, slots=True)
class SeenBrakes:
    """The brakes that are set: those of which somebody may know who set them and why, and how many others there are."""

    known: Sequence[Brake]
    others: int


def seen_brakes(book: Ledger, viewer: Viewer, seen: Collection[str]) -> SeenBrakes:
    """Give the brakes that are set; who set one, why and for which connection only where it holds campaigns seen.

    Whoever may set them all may know of them all, also where nothing was launched for a connection yet.
    """
    brakes = book.brakes.all()
    known = [
        each for each in brakes if not book.launches.campaigns(connection_of(each)).keys().isdisjoint(seen)
    ]
    if len(known) < len(brakes) and seen and viewer.may_brake(book.launches.campaigns()):
        known = brakes
    return SeenBrakes(known, len(brakes) - len(known))


def connection_of(brake: Brake) -> str | None:
    """Give the connection whose launches a brake holds; None: it holds those of all."""
    return None if brake.scope == ALL else brake.scope.removeprefix(scope_of(""))


def pausable(book: Ledger, viewer: Viewer) -> Sequence[str]:
    """Give the connections whose launches somebody may pause all at once; the empty one: those of all."""
    connections = book.launches.connections()
    if viewer.may_brake(book.launches.campaigns()):
        return ["", *connections]
    return [each for each in connections if viewer.may_brake(book.launches.campaigns(each))]
