"""The timeline of a launch, with minutes merged into longer steps if there are many."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime, timedelta, tzinfo

from sendoff.figures import TimelinePoint

_STEPS = (1, 2, 5, 10, 30, 60, 180, 360, 1_440, 10_080)  # minutes that one point may span
_HOUR = 60
_MOST_POINTS = 180
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MONDAY = 4 * 1_440  # minutes until the first one
FEWEST_POINTS = 3
"""With fewer points, a chart shows nothing that a sentence does not."""


def points_of(timeline: Sequence[TimelinePoint], zone: tzinfo = UTC) -> tuple[int, list[TimelinePoint]]:
    """Return how many minutes one point spans, and the points. A point without post-backs has zeros.

    ``zone``: the time zone of the points. Points of hours, days and weeks begin with an hour, a day or a Monday there,
    also after its clock was changed.
    """
    if not timeline:
        return 1, []
    minutes = [int(at.timestamp()) // 60 for at, _, _ in timeline]
    offsets = [_offset(at, zone) for at, _, _ in timeline]
    length = max(minutes) - min(minutes)
    step = next((step for step in _STEPS if length / step <= _MOST_POINTS), _STEPS[-1])
    is_by_clock = step > _HOUR
    if not is_by_clock:  # hours are as long as ever when the clock changes
        offsets = [offsets[0]] * len(offsets)
    first = _MONDAY if step == _STEPS[-1] else 0
    numbers = [(minute + offset - first) // step for minute, offset in zip(minutes, offsets, strict=True)]
    sums: dict[int, tuple[int, int]] = dict.fromkeys(range(min(numbers), max(numbers) + 1), (0, 0))
    for number, (_, deliveries, opens) in zip(numbers, timeline, strict=True):
        before = sums[number]
        sums[number] = before[0] + deliveries, before[1] + opens

    def begin(number: int) -> datetime:
        clock = _EPOCH + timedelta(minutes=first + number * step)
        if is_by_clock:
            return clock.replace(tzinfo=zone)
        return (clock - timedelta(minutes=offsets[0])).astimezone(zone)

    return step, [TimelinePoint(begin(number), *counts) for number, counts in sums.items()]


def _offset(at: datetime, zone: tzinfo) -> int:
    """Return how many minutes a time zone is ahead of UTC at a moment."""
    return (at.astimezone(zone).utcoffset() or timedelta()) // timedelta(minutes=1)


def span(step: int) -> str:
    """Return a number of minutes in words: ``minute``, ``5 minutes``, ``hour``, ``day``."""
    for minutes, name in ((10_080, "week"), (1_440, "day"), (60, "hour")):
        if step % minutes == 0:
            return name if step == minutes else f"{step // minutes} {name}s"
    return "minute" if step == 1 else f"{step} minutes"
