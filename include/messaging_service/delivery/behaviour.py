"""The simulated outcomes of messages, drawn at random but reproducible from a seed."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass

_SCALE = 2**64


@dataclass(frozen=True, slots=True)
class SimulatedOutcome:
    """The seconds until a message is delivered, and from then until it is opened; None if it never is."""

    delivered_after: float | None
    opened_after: float | None


@dataclass(frozen=True, slots=True)
class Behaviour:
    """The shares and delays of the simulated outcomes.

    ``delivered`` is the share of messages that are delivered, and ``opened`` the share of those that are opened.
    Each delay is drawn between ``delay_from`` and ``delay_to`` seconds, and divided by ``speed``.
    """

    seed: int = 1
    delivered: float = 0.9
    opened: float = 0.3
    delay_from: float = 0.5
    delay_to: float = 5.0
    speed: float = 1.0

    def __post_init__(self) -> None:
        if not (0 <= self.delivered <= 1 and 0 <= self.opened <= 1):
            raise ValueError("a share must be between 0 and 1")
        if not 0 <= self.delay_from <= self.delay_to:
            raise ValueError("delays must be 0 or more, and the longest must not be below the shortest")
        if self.speed <= 0:
            raise ValueError("the speed must be above 0")

    def draw(self, campaign_id: int, run_number: int, device_id: int, message_type: int) -> SimulatedOutcome:
        """Draw the outcome of a message; the same arguments and seed give the same outcome on any machine."""
        text = f"{self.seed}/{campaign_id}/{run_number}/{device_id}/{message_type}"
        digest = hashlib.blake2b(text.encode(), digest_size=32).digest()
        arrives, arrival, opens, opening = (
            int.from_bytes(digest[start : start + 8], "big") / _SCALE for start in (0, 8, 16, 24)
        )
        if arrives >= self.delivered:
            return SimulatedOutcome(None, None)
        return SimulatedOutcome(self._delay(arrival), self._delay(opening) if opens < self.opened else None)

    def _delay(self, drawn: float) -> float:
        return (self.delay_from + drawn * (self.delay_to - self.delay_from)) / self.speed
