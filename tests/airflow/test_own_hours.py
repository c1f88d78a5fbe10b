"""A launch at own hours in Airflow. The day passes whenever a task sleeps in the triggerer."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from types import SimpleNamespace
from typing import Any

import pytest
import time_machine
from airflow.models.dagrun import DagRun
from airflow.providers.standard.triggers import temporal

from sendoff.audience.identifiers import integers
from sendoff.comparison.engagement import of_own_hours
from sendoff.postbacks.aggregation import aggregate
from sendoff.states import Arm

from ..factories import make_accepted, post_back, store

START = datetime(2026, 3, 2, 9, tzinfo=UTC)
EVEN, ODD = 11, 15  # the hours at which the devices with these numbers open
MORE = """
send: {kind: now, own_hours: {explore: 20, control: 50}}
gates: {window: {earliest: "09:00", latest: "18:00", time_zone: UTC}}
"""


@pytest.fixture(scope="module", autouse=True)
def clock() -> Iterator[time_machine.Traveller]:
    """The clock of this process, from before the service and the receiver start."""
    with time_machine.travel(START) as traveller:
        yield traveller


@pytest.fixture
def passing_time(clock: time_machine.Traveller, monkeypatch: pytest.MonkeyPatch) -> None:
    """Move the clock forward instead of a trigger that sleeps until a moment."""

    async def sleep(seconds: float) -> None:
        clock.shift(seconds)

    monkeypatch.setattr(temporal, "asyncio", SimpleNamespace(sleep=sleep))


@pytest.mark.proof
@pytest.mark.usefixtures("passing_time")
def test_each_recipient_gets_the_message_at_their_hour_of_the_day(
    house: Any, run_dag: Callable[..., DagRun]
) -> None:
    devices, day_before = set(house.devices), START - timedelta(days=1)
    with house.ledger() as ledger:
        key = make_accepted(ledger, integers(house.devices), name="earlier", at=day_before)
        opens = [
            (device, day_before.replace(hour=ODD if device % 2 else EVEN) + timedelta(seconds=7 * place))
            for place, device in enumerate(house.devices[:400])  # not all at once, as a machine opens
        ]
        store(ledger, *(post_back(key, "open", who, at=at) for who, at in opens), at=day_before)
        aggregate(ledger)

    run = run_dag(house.campaign("own_hours", more=MORE), logical_date=START)
    assert run.state == "success", house.tasks(run)

    key = house.launch_key(run)
    with house.ledger() as ledger:
        queries = ledger.dispatch_queries
        arms, sizes = queries.arms(key), queries.segment_sizes(key)
        hours_of = {number: part.hour for number, part in enumerate(sizes, 1) if part.hour is not None}
        segments = {each.dispatch_key: (each.segment, people) for each, people in queries.segments(key)}
        compared = of_own_hours(ledger, ledger.verdicts.figures(key))
    reached: Counter[int] = Counter()
    by_arm: dict[Arm | None, set[int]] = {arm: set() for arm in (None, *Arm)}
    for campaign in house.admin("campaigns?count=1000")["campaigns"]:
        segment, people = segments[campaign["title"][-33:-1]]
        arm, hour = arms.get(segment), hours_of.get(segment)
        created_at = datetime.fromisoformat(campaign["created_at"])
        assert created_at.astimezone(UTC).hour == (START.hour if hour is None else hour)
        targeted = house.truth(campaign["id"])["targeted"]
        assert set(targeted) == set(map(int, people))
        reached.update(targeted)
        by_arm[arm].update(targeted)
        if arm == Arm.OWN_HOUR:
            assert {device % 2 for device in targeted} == {hour == ODD}
    assert reached == Counter(devices)
    assert all(by_arm.values())
    assert len({hours_of[number] for number, arm in arms.items() if arm == Arm.EXPLORE}) > 2
    assert compared
    assert compared.mismatch == ""
    assert [side.people for side in compared.sides] == [len(by_arm[Arm.OWN_HOUR]), len(by_arm[Arm.CONTROL])]
