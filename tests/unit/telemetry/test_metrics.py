"""Sendoff's own metrics: counts from a ledger and from events, without any text."""

from __future__ import annotations

import asyncio
from contextlib import closing
from datetime import timedelta
from pathlib import Path

import pytest
import sqlalchemy as sa
from opentelemetry import metrics as api
from opentelemetry.sdk.metrics import Counter, Histogram, MeterProvider, _Gauge
from opentelemetry.sdk.metrics.export import AggregationTemporality, InMemoryMetricReader

from sendoff.audience.identifiers import integers
from sendoff.audience.segmentation import Segment
from sendoff.campaign import CampaignFolder, Period, dispatch_key
from sendoff.errors import UnusableLedgerError
from sendoff.launch.plan import plan_launch
from sendoff.ledger import Ledger
from sendoff.ledger.results.feed_states import Feed
from sendoff.postbacks.aggregation import aggregate
from sendoff.postbacks.feed_health import check_feeds
from sendoff.postbacks.receiver import create_app
from sendoff.postbacks.reconcile import reconcile_launch
from sendoff.service.postbacks import PostBack, PostBackSigner
from sendoff.states import Accepted, DispatchState, InDoubt
from sendoff.telemetry import metrics

from ...factories import NOW, claimed, make_campaign, make_launch
from ...waiting import until

PERIOD = Period(NOW - timedelta(days=1), NOW)
SEGMENTS = [Segment(integers([1, 2])), Segment(integers([3, 4])), Segment(integers([5]))]

Points = dict[str, dict[tuple[tuple[str, object], ...], object]]


class Collected:
    """Return the current values of each instrument, by attributes."""

    def __init__(self, reader: InMemoryMetricReader) -> None:
        self._reader = reader

    def points(self) -> Points:
        data = self._reader.get_metrics_data()
        found: Points = {}
        for resource in data.resource_metrics if data else ():
            for scope in resource.scope_metrics:
                for metric in scope.metrics:
                    points = found.setdefault(metric.name, {})
                    for point in metric.data.data_points:
                        key = tuple(sorted((point.attributes or {}).items()))
                        points[key] = getattr(point, "value", None) if hasattr(point, "value") else point
        return found


@pytest.fixture(scope="session")
def reader() -> InMemoryMetricReader:
    """The only meter provider of this process; OpenTelemetry does not allow a second one."""
    delta = dict.fromkeys((Counter, Histogram, _Gauge), AggregationTemporality.DELTA)
    reader = InMemoryMetricReader(preferred_temporality=delta)
    api.set_meter_provider(MeterProvider([reader], shutdown_on_exit=False))
    return reader


@pytest.fixture
def collected(reader: InMemoryMetricReader) -> Collected:
    """The metrics recorded from now on."""
    reader.collect()
    reader.get_metrics_data()
    return Collected(reader)


def freeze(ledger: Ledger, key: str, connection: str = "service", state: str = "released") -> None:
    make_launch(ledger, segments=SEGMENTS, period=PERIOD, connection=connection, launch_key=key, state=state)


def test_a_ledger_is_counted_by_connection_and_state(ledger: Ledger, collected: Collected) -> None:
    freeze(ledger, "a" * 32)
    freeze(ledger, "b" * 32, "other", "held")
    for outcome in (Accepted(200, 17), InDoubt("no answer")):
        claim = claimed(ledger, "a" * 32)
        ledger.dispatches.record(claim, outcome, NOW)
    ledger.stats.collect_gauges(NOW)
    points = collected.points()
    assert points["sendoff.launches"] == {
        (("state", "held"),): 1,
        (("state", "released"),): 1,
        (("state", "paused"),): 0,
    }
    dispatches = {
        (of["connection"], of["state"]): count
        for key, count in points["sendoff.dispatches"].items()
        if (of := dict(key))
    }
    filled = {key: count for key, count in dispatches.items() if count}
    assert filled == {
        ("service", "planned"): 1,
        ("service", "accepted"): 1,
        ("service", "in_doubt"): 1,
        ("other", "planned"): 3,
    }
    assert {state for _, state in dispatches} == set(DispatchState)
    assert points["sendoff.doubts"] == {(("connection", "service"),): 1, (("connection", "other"),): 0}


def test_what_is_over_is_counted_as_0_from_then_on(ledger: Ledger, collected: Collected) -> None:
    freeze(ledger, "a" * 32)
    assert ledger.stats.collect_gauges(NOW).launches["released"] == 1
    ledger.launches.settle("a" * 32, NOW)
    ledger.stats.collect_gauges(NOW)
    points = collected.points()
    assert points["sendoff.launches"][("state", "released"),] == 0
    assert points["sendoff.dispatches"][("connection", "service"), ("state", "planned")] == 0


def test_the_lag_is_the_age_of_the_oldest_post_back_that_waits(ledger: Ledger, collected: Collected) -> None:
    freeze(ledger, "a" * 32)
    key = dispatch_key("a" * 32, SEGMENTS[0].fingerprint())
    claim = claimed(ledger, "a" * 32)
    ledger.dispatches.record(claim, Accepted(200, 17), NOW)
    for ages in ((50, 20), (70, 60)):  # minutes, in the order of each receiver's commits
        receiver = ledger.post_backs.register_receiver("r", NOW)
        events = [PostBack.received("open", key, NOW - timedelta(minutes=age), b"{}") for age in ages]
        for commit in enumerate(events, start=1):
            ledger.post_backs.store(receiver, [commit])
    ledger.stats.collect_gauges(NOW)
    assert collected.points()["sendoff.aggregation.lag"] == {(): 70 * 60}
    assert aggregate(ledger, now=NOW) == 4
    ledger.stats.collect_gauges(NOW)
    assert collected.points()["sendoff.aggregation.lag"] == {(): 0}


def test_the_age_of_the_newest_report_is_measured(ledger: Ledger, collected: Collected) -> None:
    freeze(ledger, "a" * 32)
    reconcile_launch(ledger, "a" * 32, now=NOW)
    ledger.stats.collect_gauges(NOW + timedelta(minutes=7))
    assert collected.points()["sendoff.report.age"] == {(): 7 * 60}


def test_an_empty_ledger_waits_for_nothing(ledger: Ledger, collected: Collected) -> None:
    counted = ledger.stats.collect_gauges(NOW)
    assert counted.pending_since is None
    assert counted.reported_at is None
    assert "sendoff.report.age" not in collected.points()
    assert set(counted.launches.values()) == {0}


def test_a_count_that_breaks_off_leaves_the_time_of_the_last_complete_one(
    migrated_url: str, collected: Collected
) -> None:
    with closing(Ledger(migrated_url)) as ledger:
        ledger.stats.collect_gauges(NOW)
        assert collected.points()["sendoff.observed_at"] == {(): NOW.timestamp()}
        with ledger._database.write() as db:
            db.execute(sa.text("DROP TABLE feed_states"))
        with pytest.raises(UnusableLedgerError):
            ledger.stats.collect_gauges(NOW + timedelta(hours=1))
    points = collected.points()
    assert "sendoff.aggregation.lag" in points
    assert "sendoff.observed_at" not in points


def test_a_receiver_is_available_once_its_ledger_has_tables(tmp_path: Path, collected: Collected) -> None:
    def shows(value: int) -> bool:
        return collected.points().get("sendoff.receiver.available") == {(): value}

    async def test(ledger: Ledger) -> None:
        app = create_app(ledger, PostBackSigner("https://events.example.com", ["s" * 32]))
        await app.start()
        try:
            await asyncio.to_thread(until, lambda: shows(0))
            await asyncio.to_thread(ledger.migrate)
            await asyncio.to_thread(until, lambda: shows(1))
        finally:
            await app.stop()

    with closing(Ledger(f"sqlite:///{tmp_path / 'ledger.db'}")) as ledger:
        asyncio.run(test(ledger))


def test_a_state_of_silence_that_nothing_is_in_any_more_is_0(collected: Collected) -> None:
    metrics.feeds({"silent": 2})
    metrics.feeds({"as expected": 1})
    values = {dict(key)["state"]: count for key, count in collected.points()["sendoff.feeds"].items()}
    assert values == {"as expected": 1, "degraded": 0, "silent": 0}


def test_what_was_last_certain_of_each_source_is_measured(ledger: Ledger, collected: Collected) -> None:
    ledger.feed_states.move(Feed("service", "delivery"), None, "silent", "", NOW)
    ledger.feed_states.move(Feed("service", "open"), None, "as expected", "", NOW)
    ledger.stats.collect_gauges(NOW)
    by_observing = collected.points()["sendoff.feeds"]
    check_feeds(ledger, now=NOW)
    assert collected.points()["sendoff.feeds"] == by_observing
    assert {dict(key)["state"]: count for key, count in by_observing.items()} == {
        "as expected": 1,
        "degraded": 0,
        "silent": 1,
    }


def test_each_instrument_measures_what_it_says_with_the_attributes_that_it_names(
    collected: Collected,
) -> None:
    metrics.audience_rows(5, {"null": 1, "invalid": 2, "duplicate": 3})
    metrics.launches({"held": 1})
    metrics.dispatches({("service", "planned"): 1})
    metrics.request("service", "accepted")
    metrics.request_seconds("/api", 0.1, 200)
    metrics.token_request("granted")
    metrics.doubts({"service": 1})
    metrics.commit(7, 0.01)
    metrics.refused_post_back(503)
    metrics.aggregated(3)
    metrics.aggregation_lag(1)
    metrics.report_age(1)
    metrics.feeds({})
    metrics.observed_at(1)
    metrics.receiver_available(True)
    points = collected.points()
    assert set(points) == {each.name for each in metrics.INSTRUMENTS}
    for each in metrics.INSTRUMENTS:
        for attributes in points[each.name]:
            assert {name for name, _ in attributes} == set(each.attributes), each.name


def test_only_the_rows_of_the_audience_query_are_counted_and_not_those_of_an_exclusion(
    tmp_path: Path, collected: Collected
) -> None:
    (tmp_path / "warehouse.db").touch()
    audience, returned = (
        f"SELECT value AS device_id FROM json_each('{rows}')" for rows in ("[1, 1, 2]", "[3, 4]")
    )
    campaign = make_campaign(audience={"exclude": [{"kind": "query", "file": "returned.sql"}]})
    folder = CampaignFolder("spring", campaign, audience, tmp_path, {"returned.sql": returned})
    plan_launch(
        None, folder, period=PERIOD, warehouses=lambda _: f"sqlite:///{tmp_path / 'warehouse.db'}", now=NOW
    )
    rows = {dict(key)["outcome"]: count for key, count in collected.points()["sendoff.audience.rows"].items()}
    assert rows == {"kept": 2, "null": 0, "invalid": 0, "duplicate": 1}


def test_a_request_without_an_answer_has_no_status(collected: Collected) -> None:
    metrics.request_seconds("/api", 60.1, None)
    assert (("path", "/api"), ("status", "none")) in collected.points()["sendoff.request.duration"]


@pytest.mark.parametrize(
    ("name", "edges"),
    [
        ("sendoff.request.duration", (0.025, 60)),  # a time-out is 60 seconds
        ("sendoff.commit.duration", (0.001, 10)),
        ("sendoff.commit.size", (1, 1_000)),  # the maximum per commit
    ],
)
def test_a_histogram_has_buckets_of_its_own(
    collected: Collected, name: str, edges: tuple[float, float]
) -> None:
    metrics.request_seconds("/api", 0.1, 200)
    metrics.commit(7, 0.01)
    [point, *_] = collected.points()[name].values()
    bounds = point.explicit_bounds  # type: ignore[attr-defined]
    assert (bounds[0], bounds[-1]) == edges
    assert list(bounds) == sorted(set(bounds))
