from __future__ import annotations

from datetime import UTC, date, datetime, timedelta, timezone
from pathlib import Path
from typing import Any
from zoneinfo import ZoneInfo

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sendoff import warehouse
from sendoff.campaign import Campaign, CampaignFolder, Period, dispatch_key, launch_key
from sendoff.errors import UsageError
from sendoff.launch.plan import LaunchRecord, prepare_launch
from sendoff.ledger import Ledger

from ...factories import make_warehouse

moments = st.datetimes(datetime(2000, 1, 1), datetime(2100, 1, 1), timezones=st.just(UTC)).map(  # noqa: DTZ001
    lambda moment: moment.replace(microsecond=0)
)
DAY = Period(datetime(2026, 3, 1, tzinfo=UTC), datetime(2026, 3, 2, tzinfo=UTC))


def test_a_period_reads_the_same_in_every_time_zone() -> None:
    tokyo = timezone(timedelta(hours=9))
    assert Period(DAY.start.astimezone(tokyo), DAY.end.astimezone(tokyo)).key == DAY.key
    assert DAY.key == "2026-03-01T00:00:00Z/2026-03-02T00:00:00Z"


def test_a_period_without_a_time_zone_is_refused() -> None:
    with pytest.raises(ValueError, match="aware"):
        Period(datetime(2026, 3, 1), DAY.end)  # noqa: DTZ001
    with pytest.raises(ValueError, match="aware"):
        Period(DAY.start, datetime(2026, 3, 2))  # noqa: DTZ001


class Moment(datetime):
    """As other libraries derive from Python's own type."""


def test_a_period_has_pythons_own_moments_also_in_the_hour_that_comes_twice() -> None:
    twice: Any = {"tzinfo": ZoneInfo("Europe/Dublin"), "fold": 1}
    period = Period(Moment(2026, 10, 25, 1, 30, **twice), Moment(2026, 10, 26, tzinfo=UTC))
    assert type(period.start) is type(period.end) is datetime
    assert period.key == "2026-10-25T01:30:00Z/2026-10-26T00:00:00Z"


def test_a_period_cannot_end_before_it_starts() -> None:
    with pytest.raises(ValueError, match="end before"):
        Period(DAY.end, DAY.start)


@pytest.mark.promise("twice/launch")
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


@pytest.mark.parametrize("resend", [-1, 2**31, True, 1.0, "1", None])
def test_the_number_of_a_resend_is_one_that_the_ledger_can_store(resend: Any) -> None:
    assert launch_key("c", "spring", DAY, 2**31 - 1) != launch_key("c", "spring", DAY)
    with pytest.raises(UsageError, match="Use a whole number from 0 to 2,147,483,647"):
        launch_key("c", "spring", DAY, resend)


def test_keys_are_32_hexadecimal_characters() -> None:
    key = launch_key("c", "spring", DAY)
    for derived in (key, dispatch_key(key, "f" * 32)):
        assert len(derived) == 32
        assert int(derived, 16)


@pytest.mark.promise("twice/launch")
def test_keys_of_old_launches_never_change() -> None:
    """A different key would be a different launch, and send everything again."""
    assert launch_key("sendoff_default", "spring", DAY) == KNOWN
    assert launch_key("sendoff_default", "spring", DAY, 2) == KNOWN_RESEND
    assert dispatch_key(KNOWN, "f" * 32) == KNOWN_DISPATCH


KNOWN = "0a350e0746f1817cccc82f65ed7e6173"
KNOWN_RESEND = "5d9e5a68801a504cf27a61469abd5155"
KNOWN_DISPATCH = "0397c0aa6c66aeb597c699b10ca9d742"


def test_a_partition_is_part_of_the_key() -> None:
    lists = [Period(DAY.start, DAY.end, partition) for partition in ("list-a", "list-b")]
    assert lists[0].key == "2026-03-01T00:00:00Z/2026-03-02T00:00:00Z/list-a"
    keys = {launch_key("c", "spring", period) for period in (DAY, *lists)}
    assert len(keys) == 3
    with pytest.raises(ValueError, match="a partition needs a name"):
        Period(DAY.start, DAY.end, "")


@given(st.text(min_size=1), st.text(min_size=1), moments, moments)
def test_two_periods_share_a_key_only_if_they_are_the_same(
    one: str, other: str, first: datetime, second: datetime
) -> None:
    periods = [Period(start, start, part) for start in (first, second) for part in (None, one, other)]
    keys = {period.key for period in periods}
    assert len(keys) == len({(period.start, period.partition) for period in periods})


def test_a_campaign_that_the_service_repeats_has_one_period_for_its_life() -> None:
    assert Period.of_campaign(date(2026, 3, 1)).key == "2026-03-01T00:00:00Z/2026-03-01T00:00:00Z"


# In a launch

PARTITIONED = """
SELECT device_id FROM wishes
WHERE shop = :partition OR (:partition IS NULL AND shop = 'all')
"""


@pytest.fixture
def wishes(tmp_path: Path) -> str:
    rows = [(1, "cork"), (2, "cork"), (3, "galway"), (4, "all")]
    return make_warehouse(tmp_path / "warehouse.db", "wishes (device_id INTEGER, shop TEXT)", rows)


def freeze(ledger: Ledger, wishes: str, partition: str | None, days_ago: int = 0) -> LaunchRecord:
    made = Campaign.model_validate(
        {"title": "Spring", "message": {"text": "Hello"}, "channels": {"android_push": {}}}
    )
    folder = CampaignFolder("spring", made, PARTITIONED, Path("spring"))
    ago = timedelta(days=days_ago)
    period = Period(DAY.start - ago, DAY.end - ago, partition)
    return prepare_launch(ledger, folder, period=period, warehouses=lambda _: wishes)


def test_each_partition_is_a_launch_of_its_own_people(ledger: Ledger, wishes: str) -> None:
    launches = {name: freeze(ledger, wishes, name) for name in ("cork", "galway", None)}
    assert {name: list(ledger.launches.audience(each.launch_key)) for name, each in launches.items()} == {
        "cork": [1, 2],
        "galway": [3],
        None: [4],
    }
    assert {name: each.period.partition for name, each in launches.items()} == {
        name: name for name in launches
    }
    assert freeze(ledger, wishes, "cork") == launches["cork"]


def test_a_launch_is_compared_with_the_last_of_its_partition_if_there_is_one(
    ledger: Ledger, wishes: str
) -> None:
    cork, galway = freeze(ledger, wishes, "cork", 2), freeze(ledger, wishes, "galway", 1)

    def previous(partition: str | None) -> LaunchRecord | None:
        period = Period(DAY.start, DAY.end, partition)
        return ledger.launches.previous("sendoff_default", "spring", period)

    assert previous("cork") == cork
    assert previous("galway") == galway
    assert previous("sligo") == galway
    whole = freeze(ledger, wishes, None, 3)
    assert previous(None) == whole


def test_a_query_on_postgresql_takes_a_partition_and_none(postgres_url: str) -> None:
    for partition, there in (("cork's", ["cork's"]), (None, [None])):
        with warehouse.read(
            postgres_url, "SELECT CAST(:partition AS text) AS shop", parameters={"partition": partition}
        ) as batches:
            assert [row["shop"] for batch in batches for row in batch.to_pylist()] == there


@pytest.mark.parametrize(
    "described",
    [
        DAY,
        "2026-03-01/2026-03-02",
        "2026-03-01",
        "2026-03-01T00:00:00Z/2026-03-02T00:00:00Z",
        "2026-03-01T01:00+01:00/2026-03-02",
        date(2026, 3, 1),
        (date(2026, 3, 1), date(2026, 3, 2)),
        ("2026-03-01", datetime(2026, 3, 2, tzinfo=UTC)),
        ("2026-03-01", "2026-03-02", None),
    ],
)
def test_one_period_can_be_written_in_several_ways(described: Any) -> None:
    assert Period.of(described).key == DAY.key


def test_the_key_of_a_period_describes_it() -> None:
    period = Period(DAY.start, DAY.end, "berlin/2026-03-01")
    assert Period.of(period.key) == period


@pytest.mark.parametrize(
    ("described", "problem"),
    [
        ("yesterday", "'yesterday' is not a day or time"),
        ("2026-W47", "'2026-W47' is not a day or time"),
        ("2026-03-01/", "'' is not a day or time"),
        ("2026-03-01T09:00", "has no time zone"),
        (datetime(2026, 3, 1, 9), "has no time zone"),  # noqa: DTZ001 - naive on purpose
        (datetime(2026, 3, 1, 9, tzinfo=UTC), "found one time as a period"),
        ((), "found 0 parts"),
        (("2026-03-01", "2026-03-02", "list-a", "list-b"), "found 4 parts"),
        (("2026-03-02", "2026-03-01"), "cannot end before it starts"),
        (7, "found int in a period"),
        ("9999-12-31", "found the last day of all"),
        (("2026-03-01", "2026-03-02", 5), "found int as a partition. Use its name"),
        ("0001-01-01T00:00+05:00/2026-01-01", "is not within the years 1 to 9999 in UTC"),
        ((date(2026, 3, 1), "9999-12-31T23:00-05:00"), "is not within the years 1 to 9999 in UTC"),
    ],
)
def test_anything_else_is_no_period(described: Any, problem: str) -> None:
    with pytest.raises(ValueError, match=problem):
        Period.of(described)
