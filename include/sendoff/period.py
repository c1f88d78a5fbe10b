"""The logical time of a launch, and the keys that follow from it: derived, never random.

A retry, a cleared task, a backfill and a second DAG arrive at the same keys, and so find what was done before.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from datetime import UTC, date, datetime, time


@dataclass(frozen=True, slots=True)
class Period:
    """The logical time that a launch is for: a data interval, a day, an hour; never the wall clock.

    ``partition``: the part of that time's data that it is for, where Airflow cuts it into partitions.
    """

    start: datetime
    end: datetime
    partition: str | None = None

    def __post_init__(self) -> None:
        if self.start.tzinfo is None or self.end.tzinfo is None:
            raise ValueError("a period needs aware datetimes")
        if self.end < self.start:
            raise ValueError("a period cannot end before it starts")
        if self.partition == "":
            raise ValueError("a partition has a name")

    @classmethod
    def of_campaign(cls, start: date) -> Period:
        """Give the period of a campaign that the service repeats: its first day (UTC), without length.

        Every run of its DAG is for this period, and so for one launch. Its last day is no part of it: an end that was
        changed must not make a second campaign beside the first.
        """
        first = datetime.combine(start, time(), UTC)
        return cls(first, first)

    @property
    def key(self) -> str:
        """The period as text, the same in every time zone: ``2026-03-01T00:00:00Z/2026-03-02T00:00:00Z``.

        Of a partition, its name stands behind.
        """
        moments = [
            moment.astimezone(UTC).isoformat(timespec="seconds").replace("+00:00", "Z")
            for moment in (self.start, self.end)
        ]
        return "/".join(moments if self.partition is None else [*moments, self.partition])


def launch_key(connection: str, campaign: str, period: Period, resend: int = 0) -> str:
    """Derive the key of a launch: 32 hexadecimal characters, the same for a retry, a clear and a backfill."""
    return _derived("launch", connection, campaign, period.key, str(resend))


def dispatch_key(launch: str, segment_fingerprint: str) -> str:
    """Derive the key of a dispatch: 32 hexadecimal characters from its launch and what it sends to."""
    return _derived("dispatch", launch, segment_fingerprint)


def _derived(*parts: str) -> str:
    digest = hashlib.blake2b(digest_size=16, person=b"sendoff-key")
    for part in parts:
        encoded = part.encode()
        digest.update(
            len(encoded).to_bytes(8, "big") + encoded
        )  # the lengths keep ("ab", "c") from ("a", "bc")
    return digest.hexdigest()
