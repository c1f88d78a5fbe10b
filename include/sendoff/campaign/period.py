"""The logical period of a launch, and the keys derived from it.

Keys are never random. A retry, a cleared task, a backfill and a second DAG derive the same keys, and so find the work
already done.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, date, datetime, time, timedelta
from typing import Any

from sendoff.errors import UsageError

QUERY_PARAMETERS = ("period_start", "period_end", "partition")
OUTCOME_PARAMETERS = (*QUERY_PARAMETERS, "sent_at")
MOST_RESENDS = 2**31 - 1
"""The largest number of a resend: the column of the ledger has 32 bits."""

_DATE = len("2026-11-16")


@dataclass(frozen=True, slots=True)
class Period:
    """The logical time of a launch, such as a data interval, a day or an hour; never the wall clock.

    ``partition``: Airflow's partition of the data of that time, if it has partitions.
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
            raise ValueError("a partition needs a name")
        if not isinstance(self.partition, str | None):
            raise ValueError(f"found {type(self.partition).__name__} as a partition. Use its name")
        object.__setattr__(self, "start", _plain(self.start))
        object.__setattr__(self, "end", _plain(self.end))

    @classmethod
    def of_campaign(cls, start: date) -> Period:
        """Return the period of a campaign that the service repeats: the start of its first day (UTC), without length.

        Every run of its DAG has this period, and therefore belongs to the same launch. The last day is not part of the
        period, so that a changed end date does not create a second campaign.
        """
        first = datetime.combine(start, time(), UTC)
        return cls(first, first)

    @classmethod
    def of(cls, given: Given) -> Period:
        """Return the period that a caller describes.

        ``given`` is one of these:

        - a period
        - its start and end, as a pair of dates, datetimes or texts
        - both in one text, such as ``2026-11-16/2026-11-23``
        - one day (UTC), as a date or text
        - the ``key`` of a period

        A date is its midnight in UTC, so the end of a period is the first day after it.

        Raise ValueError for anything else, and for a datetime without a time zone.
        """
        if isinstance(given, Period):
            return given
        parts: Sequence[Any] = given.split("/", 2) if isinstance(given, str) else ()
        if not isinstance(given, str):
            parts = given if isinstance(given, Sequence) else (given,)
        if len(parts) == 1:
            day = _moment(parts[0])
            if day.time() != time():
                raise ValueError("found one time as a period. Use its start and its end, or one day")
            if day.date() == date.max:
                raise ValueError("found the last day of all as a period. Use an earlier one")
            return cls(day, day + timedelta(days=1))
        if len(parts) not in (2, 3):
            raise ValueError(f"found {len(parts)} parts of a period. Use its start and its end")
        return cls(_moment(parts[0]), _moment(parts[1]), *parts[2:])

    @property
    def key(self) -> str:
        """The period as text in UTC, such as ``2026-03-01T00:00:00Z/2026-03-02T00:00:00Z``.

        If the period has a partition, its name follows after another slash.
        """
        moments = [
            moment.astimezone(UTC).isoformat(timespec="seconds").replace("+00:00", "Z")
            for moment in (self.start, self.end)
        ]
        return "/".join(moments if self.partition is None else [*moments, self.partition])

    @property
    def parameters(self) -> dict[str, datetime | str | None]:
        """The parameters of a query for this period, by name."""
        return dict(zip(QUERY_PARAMETERS, (self.start, self.end, self.partition), strict=True))


Given = Period | str | date | Sequence[str | date]
"""What :meth:`Period.of` understands."""


def _moment(given: object) -> datetime:
    """Return a moment, midnight UTC of a day. Raise ValueError if it is neither, or has no time zone."""
    if isinstance(given, str):
        try:
            if "W" in given:  # Python reads 2026-W47 as its Monday
                raise ValueError
            given = date.fromisoformat(given) if len(given) <= _DATE else datetime.fromisoformat(given)
        except ValueError:
            raise ValueError(
                f"{given!r} is not a day or time. Write it as 2026-11-16 or 2026-11-16T08:00Z"
            ) from None
    if isinstance(given, datetime):
        if given.tzinfo is None:
            raise ValueError(
                f"{given.isoformat()} has no time zone. Add one, such as tzinfo=UTC, or use a date"
            )
        return _plain(given)
    if isinstance(given, date):
        return datetime.combine(given, time(), UTC)
    raise ValueError(f"found {type(given).__name__} in a period. Use dates, datetimes or texts")


def _plain(given: datetime) -> datetime:
    """Return a moment as Python's own type. Airflow's timetables return pendulum's, which can lose UTC in a sum.

    Raise ValueError if UTC has no such moment.
    """
    plain = datetime.combine(given, given.time(), given.tzinfo).replace(fold=given.fold)
    try:
        plain.astimezone(UTC)
    except OverflowError:
        raise ValueError(f"{plain.isoformat()} is not within the years 1 to 9999 in UTC") from None
    return plain


def launch_key(connection: str, campaign: str, period: Period, resend: int = 0) -> str:
    """Derive the key of a launch: 32 hexadecimal characters, the same for a retry, a cleared task and a backfill.

    Raise UsageError if ``resend`` is not a whole number that the ledger can store.
    """
    check_resend(resend)
    return _derived("launch", connection, campaign, period.key, str(resend))


def check_resend(given: object) -> None:
    """Raise UsageError if the number of a resend is not a whole number that the ledger can store."""
    if isinstance(given, bool) or not isinstance(given, int) or not 0 <= given <= MOST_RESENDS:
        raise UsageError(f"found resend {given!r}. Use a whole number from 0 to {MOST_RESENDS:,}")


def request_launch_key(connection: str, campaign: str, request_key: str) -> str:
    """Derive the key of the launch of a request that someone wrote. It depends on ``request_key``, not on a period."""
    return _derived("request", connection, campaign, request_key)


def dispatch_key(launch: str, segment_fingerprint: str) -> str:
    """Derive the key of a dispatch, 32 hexadecimal characters, from its launch and its segment's fingerprint."""
    return _derived("dispatch", launch, segment_fingerprint)


def _derived(*parts: str) -> str:
    digest = hashlib.blake2b(digest_size=16, person=b"sendoff-key")
    for part in parts:
        encoded = part.encode()
        # The lengths keep ("ab", "c") from ("a", "bc").
        digest.update(len(encoded).to_bytes(8, "big") + encoded)
    return digest.hexdigest()
