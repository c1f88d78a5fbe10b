"""The timeline of a launch, with minutes merged into longer steps if there are many."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime, timedelta, tzinfo

from sendoff.figures import TimelinePoint

_STEPS = (1, 2, 5, 10, 30, 60, 180, 360, 1_440, 10_080)  # minutes that one point may span
_MOST_POINTS = 180
FEWEST_POINTS = 3
"""With fewer points, a chart shows nothing that a sentence does not."""


def points_of(timeline: Sequence[TimelinePoint], zone: tzinfo = UTC) -> tuple[int, list[TimelinePoint]]:
    """Return how many minutes one point spans, and the points. A point without post-backs has zeros.

    ``zone``: the time zone of the points. Points of hours and days begin with an hour or a day there.
    """
    if not timeline:
        return 1, []
    offset = timeline[0][0].astimezone(zone).utcoffset() or timedelta()
    ahead = int(offset.total_seconds()) // 60
    numbers = [int(minute.timestamp()) // 60 + ahead for minute, _, _ in timeline]
    length = max(numbers) - min(numbers)
    step = next((step for step in _STEPS if length / step <= _MOST_POINTS), _STEPS[-1])
    sums: dict[int, tuple[int, int]] = dict.fromkeys(
        range(min(numbers) // step, max(numbers) // step + 1), (0, 0)
    )
    for number, (_, deliveries, opens) in zip(numbers, timeline, strict=True):
        before = sums[number // step]
        sums[number // step] = before[0] + deliveries, before[1] + opens
    return step, [
        TimelinePoint(datetime.fromtimestamp((at * step - ahead) * 60, UTC).astimezone(zone), *counts)
        for at, counts in sums.items()
    ]


def span(step: int) -> str:
    """Return a number of minutes in words: ``minute``, ``5 minutes``, ``hour``, ``day``."""
    for minutes, name in ((10_080, "week"), (1_440, "day"), (60, "hour")):
        if step % minutes == 0:
            return name if step == minutes else f"{step // minutes} {name}s"
    return "minute" if step == 1 else f"{step} minutes"
