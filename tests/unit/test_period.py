from __future__ import annotations

from datetime import UTC, datetime, timedelta, timezone

import pytest

from sendoff.period import Period, dispatch_key, launch_key

DAY = Period(datetime(2026, 3, 1, tzinfo=UTC), datetime(2026, 3, 2, tzinfo=UTC))


def test_a_period_reads_the_same_in_every_time_zone() -> None:
    tokyo = timezone(timedelta(hours=9))
    assert Period(DAY.start.astimezone(tokyo), DAY.end.astimezone(tokyo)).key == DAY.key
    assert DAY.key == "2026-03-01T00:00:00Z/2026-03-02T00:00:00Z"


def test_a_period_without_a_time_zone_is_refused() -> None:
    with pytest.raises(ValueError, match="aware"):
        Period(datetime(2026, 3, 1), DAY.end)  # noqa: DTZ001


def test_a_period_cannot_end_before_it_starts() -> None:
    with pytest.raises(ValueError, match="end before"):
        Period(DAY.end, DAY.start)


def test_the_same_campaign_and_period_are_the_same_launch() -> None:
    assert launch_key("c", "spring", DAY) == launch_key("c", "spring", DAY)


@pytest.mark.parametrize(
    "other",
    [
        launch_key("d", "spring", DAY),  # another connection
        launch_key("c", "summer", DAY),  # another campaign
        launch_key("c", "spring", Period(DAY.start, DAY.end + timedelta(days=1))),  # another period
        launch_key("c", "spring", DAY, 1),  # sent again on purpose
        launch_key("cs", "pring", DAY),  # the same letters, cut elsewhere
    ],
)
def test_anything_else_is_another_launch(other: str) -> None:
    assert other != launch_key("c", "spring", DAY)


def test_keys_are_32_hexadecimal_characters() -> None:
    key = launch_key("c", "spring", DAY)
    for derived in (key, dispatch_key(key, "f" * 32)):
        assert len(derived) == 32
        assert int(derived, 16)
