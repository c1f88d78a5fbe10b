"""The logical period of a DAG run."""

from __future__ import annotations

from datetime import UTC, date, datetime, timedelta, timezone
from types import SimpleNamespace
from typing import Any

import pendulum
import pytest
from airflow.sdk import (
    DAG,
    Asset,
    AssetOrTimeSchedule,
    CronDataIntervalTimetable,
    CronPartitionTimetable,
    CronTriggerTimetable,
    DagRunState,
    EventsTimetable,
    MultipleCronTriggerTimetable,
    PartitionedAssetTimetable,
    PartitionedAtRuntime,
)
from airflow.sdk.api.datamodels._generated import DagRun, DagRunType
from airflow.sdk.timezone import coerce_datetime
from airflow.timetables.base import TimeRestriction
from airflow.timetables.interval import CronDataIntervalTimetable as CoreTimetable

from sendoff.campaign import Campaign, Period, last_period
from sendoff.errors import SettingsError
from sendoff.launch import LaunchOptions
from sendoff_airflow.operators.recipients import VerdictsOfLaunch
from sendoff_airflow.operators.reported import of_run
from sendoff_airflow.period import displaced_run, period_of

NINE = datetime(2026, 3, 2, 9, tzinfo=UTC)
MIDNIGHT = NINE.replace(hour=0)
DAY, HOUR = timedelta(days=1), timedelta(hours=1)
WEEKLY = CronDataIntervalTimetable("0 9 * * 1", timezone="UTC")
AT_NINE = CronTriggerTimetable("0 9 * * *", timezone="UTC")
SEVERAL = MultipleCronTriggerTimetable("0 9 * * *", "30 18 * * *", timezone="UTC")
ASSET = Asset("something")
EVENING = NINE.replace(hour=18, minute=30)
LAST_EVENING = EVENING - DAY
AT_THE_SAME = MultipleCronTriggerTimetable("0 9 * * *", "0 9 * * 1", timezone="UTC")
EVENTS = EventsTimetable([pendulum.instance(each) for each in (NINE + 4 * DAY, NINE, NINE)])
BY_PARTITION = CronPartitionTimetable("0 9 * * *", timezone="UTC")
OR_ASSET = [
    AssetOrTimeSchedule(timetable=clock, assets=ASSET)
    for clock in (WEEKLY, CronTriggerTimetable("0 */6 * * *", timezone="UTC"))
]
SIX, NOON = NINE - 3 * HOUR, NINE + 3 * HOUR
SCHEDULED, ASSET_TRIGGERED = DagRunType.SCHEDULED, DagRunType.ASSET_TRIGGERED
PARTITIONED = PartitionedAssetTimetable(assets=ASSET)


@pytest.mark.parametrize(
    ("schedule", "run", "period"),
    [
        # a schedule with intervals: the interval, whoever started the run
        (
            WEEKLY,
            {"interval": (NINE - 7 * DAY, NINE), "logical_date": NINE - 7 * DAY},
            (NINE - 7 * DAY, NINE),
        ),
        (WEEKLY, {"interval": (NINE - 7 * DAY, NINE), "logical_date": NINE + DAY}, (NINE - 7 * DAY, NINE)),
        # a schedule of points in time: the time before the last point, whoever started the run
        (AT_NINE, {"interval": (NINE, NINE), "logical_date": NINE}, (NINE - DAY, NINE)),
        (AT_NINE, {"interval": (NINE + HOUR, NINE + HOUR), "logical_date": NINE + HOUR}, (NINE - DAY, NINE)),
        (AT_NINE, {"interval": (NINE - HOUR, NINE - HOUR)}, (NINE - 2 * DAY, NINE - DAY)),
        (AT_NINE, {"run_after": NINE + HOUR}, (NINE - DAY, NINE)),
        ("@daily", {"interval": (NINE, NINE)}, (MIDNIGHT - DAY, MIDNIGHT)),
        (
            CronTriggerTimetable("0 9 * * *", timezone="Asia/Tokyo", interval=2 * HOUR),
            {"interval": (NINE - 2 * HOUR, NINE)},
            (MIDNIGHT - 2 * HOUR, MIDNIGHT),
        ),
        (HOUR, {"interval": (NINE, NINE), "run_type": SCHEDULED}, (NINE - HOUR, NINE)),
        # several cron expressions: the time between the last two of all their points
        (SEVERAL, {"interval": (NINE, NINE), "run_type": SCHEDULED}, (LAST_EVENING, NINE)),
        (SEVERAL, {"interval": (EVENING, EVENING), "run_type": SCHEDULED}, (NINE, EVENING)),
        (SEVERAL, {"interval": (EVENING + HOUR, EVENING + HOUR)}, (NINE, EVENING)),
        (SEVERAL, {"run_after": NINE + HOUR}, (LAST_EVENING, NINE)),
        (AT_THE_SAME, {"interval": (NINE, NINE), "run_type": SCHEDULED}, (NINE - DAY, NINE)),
        (
            MultipleCronTriggerTimetable("0 9 * * *", "0 6 * * *", timezone="UTC", interval=2 * HOUR),
            {"interval": (NINE - 2 * HOUR, NINE), "run_type": SCHEDULED},
            (NINE - 2 * HOUR, NINE),
        ),
        # events: the time since the event before, and a day for the first one
        (EVENTS, {"interval": (NINE, NINE), "run_type": SCHEDULED}, (NINE - DAY, NINE)),
        (
            EVENTS,
            {"interval": (NINE + 4 * DAY, NINE + 4 * DAY), "run_type": SCHEDULED},
            (NINE, NINE + 4 * DAY),
        ),
        (EVENTS, {"interval": (NINE + 5 * DAY, NINE + 5 * DAY)}, (NINE, NINE + 4 * DAY)),
        # no schedule: the day before the logical date in UTC, whatever the hour
        (None, {"interval": (NINE, NINE), "logical_date": NINE}, (MIDNIGHT - DAY, MIDNIGHT)),
        (None, {"logical_date": MIDNIGHT}, (MIDNIGHT - DAY, MIDNIGHT)),
        (
            None,
            {"logical_date": datetime(2026, 3, 3, 1, tzinfo=timezone(timedelta(hours=2)))},
            (MIDNIGHT - DAY, MIDNIGHT),
        ),
        # no logical date either: the day before the run was due
        (None, {"run_after": NINE + DAY}, (MIDNIGHT, MIDNIGHT + DAY)),
        ([ASSET], {"run_after": NINE}, (MIDNIGHT - DAY, MIDNIGHT)),
        # a clock and assets: the clock's period, but the day for a run that an asset started
        (OR_ASSET[0], {"run_after": NINE, "run_type": ASSET_TRIGGERED}, (MIDNIGHT - DAY, MIDNIGHT)),
        (OR_ASSET[0], {"interval": (NINE - 7 * DAY, NINE), "run_type": SCHEDULED}, (NINE - 7 * DAY, NINE)),
        (OR_ASSET[1], {"run_after": NINE, "run_type": ASSET_TRIGGERED}, (MIDNIGHT - DAY, MIDNIGHT)),
        (OR_ASSET[1], {"interval": (SIX, SIX), "run_type": SCHEDULED}, (SIX - 6 * HOUR, SIX)),
        (OR_ASSET[1], {"interval": (NOON, NOON), "run_type": SCHEDULED}, (SIX, NOON)),
        (OR_ASSET[1], {"interval": (NOON, NOON), "run_type": DagRunType.BACKFILL}, (SIX, NOON)),
        (OR_ASSET[1], {"interval": (NOON + HOUR, NOON + HOUR)}, (SIX, NOON)),
        (OR_ASSET[1], {"run_after": NOON + HOUR}, (SIX, NOON)),  # started by hand, without a logical date
    ],
)
def test_a_run_is_for_its_interval_or_its_day(
    schedule: Any, run: dict[str, Any], period: tuple[datetime, datetime]
) -> None:
    assert period_of(_context(schedule, **run)) == Period(*period)


@pytest.mark.parametrize(
    ("schedule", "run", "due_at"),
    [
        (WEEKLY, {"interval": (NINE - 7 * DAY, NINE), "run_type": SCHEDULED}, NINE),
        (WEEKLY, {"interval": (NINE - 7 * DAY, NINE), "run_type": DagRunType.BACKFILL}, NINE),
        (WEEKLY, {"interval": (NINE - 7 * DAY, NINE), "run_after": NINE + 9 * DAY}, NINE),  # a manual run
        ("@daily", {"interval": (NINE, NINE), "run_after": NINE + 9 * DAY}, MIDNIGHT),
        (AT_NINE, {"interval": (NINE, NINE), "run_type": SCHEDULED}, NINE),
        (SEVERAL, {"interval": (EVENING, EVENING), "run_after": EVENING, "run_type": SCHEDULED}, EVENING),
        (EVENTS, {"interval": (NINE, NINE), "run_type": SCHEDULED}, NINE),
        (OR_ASSET[1], {"interval": (NOON, NOON), "run_after": NOON, "run_type": SCHEDULED}, NOON),
        # a schedule that starts its runs long after the period's end
        (
            BY_PARTITION,
            {"partition_key": "a", "partition_date": NINE - 7 * DAY, "run_type": SCHEDULED},
            NINE,
        ),
        # without a clock, a launch is never late
        (OR_ASSET[1], {"run_type": ASSET_TRIGGERED}, None),
        ([ASSET], {"run_type": ASSET_TRIGGERED}, None),
        (None, {"interval": (NINE, NINE), "logical_date": NINE}, None),
    ],
)
def test_a_launch_is_due_when_the_clock_of_its_dag_says(
    schedule: Any, run: dict[str, Any], due_at: datetime | None
) -> None:
    fields = {"title": "A", "message": {"text": "B"}, "channels": {"android_push": {}}}
    campaign = Campaign.model_validate(fields)
    context = _context(schedule, **run)
    assert of_run(context, campaign, LaunchOptions()).due_at == due_at
    follow_up = Campaign.model_validate(
        {**fields, "audience": {"source": {"kind": "verdicts", "of": "spring", "are": ["missing"]}}}
    )
    assert of_run(context, follow_up, LaunchOptions()).due_at is None
    # the recipients of a launch that was made in time
    context["task"] = SimpleNamespace(audience=VerdictsOfLaunch("a" * 32))
    assert of_run(context, campaign, LaunchOptions()).due_at is None


@pytest.mark.parametrize(
    ("schedule", "run", "is_displaced"),
    [
        (WEEKLY, {"interval": (NINE - 7 * DAY, NINE), "logical_date": NINE}, True),
        (WEEKLY, {"interval": (NINE - 7 * DAY, NINE), "logical_date": NINE + timedelta(minutes=5)}, False),
        # the scheduled run
        (WEEKLY, {"interval": (NINE - 7 * DAY, NINE), "logical_date": NINE - 7 * DAY}, False),
        # a schedule of points in time: the scheduled run is for the same period
        (AT_NINE, {"interval": (NINE, NINE), "logical_date": NINE}, False),
        (None, {"logical_date": NINE}, False),
    ],
)
def test_a_run_that_takes_the_place_of_the_next_scheduled_run_is_found(
    schedule: Any, run: dict[str, Any], is_displaced: bool
) -> None:
    warning = displaced_run(_context(schedule, **run))
    assert bool(warning) == is_displaced
    assert not warning or "the period that starts on 2026-03-02 at 09:00 UTC" in warning


def test_a_period_has_moments_of_pythons_own_type_because_pendulums_lose_utc_in_a_sum() -> None:
    moment = pendulum.instance(NINE.replace(fold=1))
    assert (moment.astimezone(UTC) - DAY).tzinfo is None
    for period in (Period(moment, moment + DAY), Period.of((moment, moment + DAY))):
        assert {type(period.start), type(period.end)} == {datetime}
        assert (period.start, period.end) == (NINE, NINE + DAY)
        assert period.start.fold == 1
    day = pendulum.instance(MIDNIGHT).astimezone(UTC)
    assert Period.of(day) == Period(MIDNIGHT, MIDNIGHT + DAY)


def test_a_run_that_fits_no_interval_of_its_schedule_is_refused() -> None:
    with pytest.raises(SettingsError, match="trigger the DAG with a logical date"):
        period_of(_context(WEEKLY))


@pytest.mark.parametrize(
    ("schedule", "run_type"),
    [
        (HOUR, DagRunType.MANUAL),  # it would be another launch each time
        ("@once", DagRunType.MANUAL),
        ("@once", SCHEDULED),
    ],
)
def test_a_run_is_refused_if_its_period_would_have_no_length(schedule: Any, run_type: DagRunType) -> None:
    with pytest.raises(
        SettingsError,
        match=f"a {run_type.value} run .* Use a schedule with intervals, such as CronDataIntervalTimetable",
    ):
        period_of(_context(schedule, interval=(NINE, NINE), logical_date=NINE, run_type=run_type))


@pytest.mark.parametrize(
    ("schedule", "zone", "at", "period"),
    [
        ("@daily", "Africa/Cairo", "2026-04-24T09:05Z", ("2026-04-22T22:00Z", "2026-04-23T22:00Z")),
        ("30 2 * * *", "America/New_York", "2026-03-08T15:00Z", ("2026-03-07T07:30Z", "2026-03-08T07:30Z")),
    ],
)
def test_a_manual_run_has_the_period_of_its_schedule_also_when_clocks_skip_its_time(
    schedule: str, zone: str, at: str, period: tuple[str, str]
) -> None:
    """Airflow gives such a run an interval without length."""
    clock = CoreTimetable(schedule, zone)
    manual = clock.infer_manual_data_interval(run_after=coerce_datetime(datetime.fromisoformat(at)))
    assert manual.start == manual.end
    found = period_of(
        _context(CronDataIntervalTimetable(schedule, timezone=zone), interval=(manual.start, manual.end))
    )
    assert found == Period.of(period)


def test_a_run_before_the_first_event_is_refused() -> None:
    with pytest.raises(SettingsError, match="before the first event of its DAG"):
        period_of(_context(EVENTS, interval=(NINE - HOUR, NINE - HOUR)))


@pytest.mark.parametrize(
    ("schedule", "run", "period"),
    [
        # a partition of an interval
        (WEEKLY, {"interval": (NINE - 7 * DAY, NINE)}, (NINE - 7 * DAY, NINE)),
        # a partition with a date: that day, whenever the run takes place
        (BY_PARTITION, {"partition_date": NINE, "run_after": NINE + DAY}, (MIDNIGHT, MIDNIGHT + DAY)),
        (BY_PARTITION, {"partition_date": NINE, "run_after": NINE + 9 * DAY}, (MIDNIGHT, MIDNIGHT + DAY)),
        (PARTITIONED, {"partition_date": MIDNIGHT}, (MIDNIGHT, MIDNIGHT + DAY)),
        # any other partition: the previous day
        (PARTITIONED, {}, (MIDNIGHT - DAY, MIDNIGHT)),
        (PartitionedAtRuntime(), {"logical_date": NINE + DAY}, (MIDNIGHT, MIDNIGHT + DAY)),
        (None, {"interval": (NINE, NINE), "logical_date": NINE}, (MIDNIGHT - DAY, MIDNIGHT)),
    ],
)
def test_a_run_for_a_partition_is_for_that_part_of_its_period(
    schedule: Any, run: dict[str, Any], period: tuple[datetime, datetime]
) -> None:
    assert period_of(_context(schedule, **run, partition_key="list-a")) == Period(*period, "list-a")


def test_every_run_of_a_campaign_that_the_service_repeats_is_for_its_whole_life() -> None:
    running = {"time": "08:00", "time_zone": "UTC", "start": "2026-03-01", "end": "2026-12-24"}
    email = {"email": {"from_address": 7, "subject": "Hello", "text": "Words"}}
    repeated = Campaign.model_validate(
        {"title": "A", "channels": email, "send": {"kind": "recurring", **running}}
    )
    life = Period.of_campaign(date(2026, 3, 1))
    assert period_of(_context(None, logical_date=NINE), repeated) == life
    assert period_of(_context(PARTITIONED, partition_key="list-a"), repeated) == life
    once = Campaign.model_validate({"title": "A", "channels": email})
    assert period_of(_context(None, logical_date=NINE), once) == Period(MIDNIGHT - DAY, MIDNIGHT)


def _context(
    schedule: Any,
    interval: tuple[datetime | None, datetime | None] = (None, None),
    logical_date: datetime | None = None,
    run_after: datetime = NINE,
    partition_key: str | None = None,
    partition_date: datetime | None = None,
    run_type: DagRunType = DagRunType.MANUAL,
) -> Any:
    run = DagRun(
        dag_id="d",
        run_id="r",
        logical_date=logical_date,
        data_interval_start=interval[0],
        data_interval_end=interval[1],
        run_after=run_after,
        start_date=None,
        end_date=None,
        run_type=run_type,
        state=DagRunState.RUNNING,
        consumed_asset_events=[],
        partition_key=partition_key,
        partition_date=partition_date,
    )
    return {"dag_run": run, "dag": DAG("d", schedule=schedule, start_date=NINE - 30 * DAY)}


@pytest.mark.parametrize("zone", ["UTC", "Europe/Dublin", "America/New_York", "Australia/Lord_Howe"])
@pytest.mark.parametrize(
    "schedule",
    [
        "0 9 * * 1",
        "30 1 * * *",
        "30 2 * * *",
        "30 0-2 * * *",
        "*/30 * * * *",
        "15 */2 * * *",
        "0 * * * 1-5",
        "*/15 * * * 1-5",
        "@daily",
        "@quarterly",
    ],
)
@pytest.mark.proof
def test_the_period_of_a_shell_is_that_of_the_dag_also_when_clocks_change(schedule: str, zone: str) -> None:
    fields = {"message": {"text": "Hello"}, "channels": {"android_push": {}}}
    campaign = Campaign.model_validate(
        {"title": "T", "schedule": schedule, "schedule_time_zone": zone, "start": "2025-01-01", **fields}
    )
    timetable = CoreTimetable(schedule, zone)
    for begin in ("2026-03-07", "2026-03-28", "2026-10-24", "2026-10-31"):
        first = coerce_datetime(datetime.fromisoformat(f"{begin}T00:00Z"))
        bounds, run = TimeRestriction(earliest=first, latest=None, catchup=True), None
        while run is None or run.end < first.add(days=2):
            info = timetable.next_dagrun_info(last_automated_data_interval=run, restriction=bounds)
            assert info is not None
            run = info.data_interval
            for late in (0, 61):
                now = datetime.fromtimestamp(run.end.timestamp() + late, UTC)
                period = last_period(campaign, now)
                assert period == Period(run.start, run.end)
