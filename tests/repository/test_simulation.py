"""The simulation of a launch, compared with cases that can be calculated by hand."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import pytest

BENCHMARKS = Path(__file__).resolve().parents[2] / "tools/benchmarks"

NOTHING = 1e-9  # seconds, or a share of the people: practically zero


@pytest.fixture
def simulation(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.syspath_prepend(BENCHMARKS)
    import simulation

    return simulation


@pytest.fixture
def command(simulation: Any) -> Any:
    import simulate

    return simulate


def free(simulation: Any, **costs: float) -> Any:
    """Return costs that are zero except those given; the ledger and the receivers handle a billion per second."""
    of_all = dict.fromkeys(simulation.Costs.__dataclass_fields__, 0.0)
    rates = {"transaction": NOTHING, "transactions_per_second": 1e9, "receivers_per_second": 1e9}
    return simulation.Costs(**{**of_all, **rates, **costs})


def quick(simulation: Any, **world: float) -> Any:
    """Return a launch of 1,000 people in 100 requests, without any waiting unless ``world`` sets it."""
    at_once = {
        "latency": 0.0,
        "delivery_half_life": 0.0,
        "open_half_life": 0.0,
        "quiet_for": 0.0,
        "tail": 0.0,
    }
    rhythm = {"tick": 0.01, "aggregate_every": 0.01, "aggregate_every_quiet": 0.01}
    people = {"devices": 1_000, "segment_size": 10, "delivery_share": 1.0, "open_share": 0.0}
    return simulation.World(**{**at_once, **rhythm, **people, **world})


def one_of_each(simulation: Any, **more: int) -> Any:
    few = dict.fromkeys(("readers", "workers", "requests_at_once", "receivers", "ledger_processors"), 1)
    return simulation.Deployment(**{"name": "one of each", "processors": 1_000, **few, **more})


# Costs that take 100 seconds for 1,000 people if all else is free: 0.1 s per person, or 1 s per request.
ONE_LIMIT = [
    ("reading", {"read": 0.1}, {}),
    ("rules", {"rules": 0.1}, {}),
    ("freezing", {"freeze": 1.0}, {}),
    ("freezing", {"freeze_byte": 0.05, "segment_bytes": 2.0}, {}),
    ("ledger transactions", {"transaction": 1.0, "transactions_per_second": 1.0}, {}),
    (
        "ledger transactions",
        {"transaction": 4.0, "transactions_per_second": 1.0},
        {},
    ),  # four run at once
    ("writing", {"write": 0.1}, {}),
    ("requests at once", {}, {"latency": 1.0}),
    ("service takes", {}, {"requests_per_second": 1.0}),
    ("service sends", {}, {"messages_per_second": 10.0}),
    ("receivers", {"receivers_per_second": 10.0}, {}),
    ("storing", {"store": 0.1}, {}),
    ("aggregating", {"aggregate": 0.1}, {}),
    (
        "aggregating",
        {"aggregate_dispatch": 1.0},
        {"aggregate_every": 1_000.0, "aggregate_every_quiet": 1_000.0, "devices": 10_000},
    ),
    ("reconciling", {"reconcile": 0.1}, {}),
]


def enough(simulation: Any, limit: str) -> Any:
    """Return a deployment whose threads do not limit the launch, unless ``limit`` is "requests at once"."""
    return one_of_each(simulation, requests_at_once=1 if limit == "requests at once" else 8)


@pytest.mark.parametrize(("limit", "costs", "world"), ONE_LIMIT)
def test_a_line_with_one_limit_takes_as_long_as_the_limit_at_its_rate(
    simulation: Any, limit: str, costs: dict[str, float], world: dict[str, float]
) -> None:
    launch = quick(simulation, **world)
    result = simulation.simulate(free(simulation, **costs), launch, enough(simulation, limit))
    is_aggregating = (
        "aggregate_dispatch" in costs
    )  # 1,000 requests, each with 10 of the 10,000 post-backs on average
    expected = 1_000 * (1 - math.exp(-10)) if is_aggregating else 100
    assert result.limits[0].name == limit
    assert result.limits[0].least == pytest.approx(expected, abs=0.01)
    waiting = launch.aggregate_every if is_aggregating else 0.0
    assert result.elapsed - waiting == pytest.approx(expected, abs=0.1)
    assert result.stored == result.aggregated == pytest.approx(launch.devices)


def test_a_limit_that_is_doubled_moves(simulation: Any) -> None:
    costs = free(simulation, receivers_per_second=10.0, store=0.06)
    launch, deployment = quick(simulation), one_of_each(simulation)
    result = simulation.simulate(costs, launch, deployment)
    assert [each.name for each in result.limits[:2]] == ["receivers", "storing"]
    step = simulation.widened(costs, launch, deployment, result)
    assert (step.limit, step.factor, step.deployment.receivers) == ("receivers", 2, 2)
    assert step.result.limits[0].name == "storing"
    assert step.result.elapsed == pytest.approx(60, abs=0.2)  # and 50 for the receivers: there are now two


def test_a_limit_is_doubled_as_often_as_it_takes(simulation: Any) -> None:
    costs = free(simulation, aggregate=0.1, reconcile=0.03)
    launch, deployment = quick(simulation), one_of_each(simulation)
    step = simulation.widened(costs, launch, deployment, simulation.simulate(costs, launch, deployment))
    assert (step.limit, step.factor) == ("aggregating", 4)
    assert step.costs.aggregate == pytest.approx(0.025)
    assert step.result.limits[0].name == "reconciling"


@pytest.mark.parametrize("limit", sorted({limit for limit, _, _ in ONE_LIMIT}))
def test_every_limit_can_be_widened(simulation: Any, limit: str) -> None:
    costs, world = next((costs, world) for name, costs, world in ONE_LIMIT if name == limit)
    launch, deployment = quick(simulation, **world), enough(simulation, limit)
    before = simulation.simulate(free(simulation, **costs), launch, deployment)
    step = simulation.widened(free(simulation, **costs), launch, deployment, before)
    assert step.limit == limit
    assert step.how
    assert step.result.elapsed < before.elapsed


def test_littles_law_holds_for_requests_that_queue(simulation: Any) -> None:
    costs = free(simulation, transaction=0.02, transactions_per_second=50.0, write=0.001)
    launch = quick(simulation, latency=0.3)
    result = simulation.simulate(costs, launch, one_of_each(simulation, workers=2, requests_at_once=10))
    for name in ("requests at once", "ledger transactions", "writing"):
        used = result.of(name)
        rate = used.items / (used.end - used.begin)
        assert used.mean_inside == pytest.approx(rate * used.mean_stay)
    # 20 threads need 0.33 s per request without waiting, so they could make 60 a second; the ledger handles 50.
    assert result.of("ledger transactions").mean_wait > 0
    assert result.of("ledger transactions").utilisation == pytest.approx(1, abs=0.15)


def test_as_many_requests_are_under_way_as_there_are_threads(simulation: Any) -> None:
    result = simulation.simulate(
        free(simulation),
        quick(simulation, latency=1.0),
        one_of_each(simulation, workers=2, requests_at_once=5),
    )
    assert result.marks.requested == pytest.approx(10)  # 100 requests of one second each, ten at a time
    assert result.of("requests at once").mean_inside == pytest.approx(10)


def test_processes_that_share_a_processor_wait_for_one_another(simulation: Any) -> None:
    costs = free(simulation, receivers_per_second=10.0, aggregate=0.1)
    launch = quick(simulation)
    apart = simulation.simulate(costs, launch, one_of_each(simulation, processors=2))
    together = simulation.simulate(costs, launch, one_of_each(simulation, processors=1))
    assert apart.elapsed == pytest.approx(100, rel=0.02)
    assert together.limits[0].name == "processors"
    assert together.elapsed == pytest.approx(200, rel=0.02)


def test_half_of_the_post_backs_come_within_a_half_life(simulation: Any) -> None:
    coming = simulation.Coming(share=0.5, half_life=60.0)
    assert coming.come(1_000, 60) == pytest.approx(250)
    assert sum(coming.come(0, 1) for _ in range(60)) == pytest.approx(125)  # whatever the number of steps
    assert coming.ahead == pytest.approx(125)


def test_everything_that_comes_back_is_stored_and_aggregated_once(simulation: Any) -> None:
    launch = quick(
        simulation,
        delivery_share=0.9,
        open_share=0.3,
        delivery_half_life=5.0,
        open_half_life=50.0,
        tick=0.5,
        tail=0.001,
    )
    result = simulation.simulate(free(simulation), launch, one_of_each(simulation, receivers=3))
    assert result.stored == pytest.approx(1_200)
    assert result.aggregated == pytest.approx(1_200)


def test_with_a_tail_people_are_waited_for_less(simulation: Any) -> None:
    launch = quick(simulation, delivery_half_life=10.0, tick=0.5, tail=1 / 1_024)
    result = simulation.simulate(free(simulation), launch, one_of_each(simulation))
    assert result.marks.arrived - result.marks.sent == pytest.approx(10 * 10, abs=1)  # 2 ** 10 is 1,024
    assert result.stored == pytest.approx(1_000)


def test_aggregating_for_want_of_anything_else_is_no_limit(simulation: Any) -> None:
    costs = free(simulation, aggregate_dispatch=0.1, receivers_per_second=10.0)
    result = simulation.simulate(costs, quick(simulation, aggregate_every=1.0), one_of_each(simulation))
    aggregating = result.of("aggregating")
    assert aggregating.work > aggregating.least
    assert aggregating.least == pytest.approx(100 * 0.1 * (1 - math.exp(-10)))  # 100 dispatches, each once
    assert result.limits[0].name == "receivers"


def test_requests_that_are_simulated_as_one_take_as_long_as_they_would(simulation: Any) -> None:
    costs = free(simulation, transaction=0.01, transactions_per_second=100.0, write=0.001)
    deployment = one_of_each(simulation, requests_at_once=2)
    exact = simulation.simulate(costs, quick(simulation, latency=0.1, devices=10_000), deployment)
    coarse = simulation.simulate(
        costs, quick(simulation, latency=0.1, devices=10_000, most_steps=100, most_lots=100), deployment
    )
    assert coarse.marks.requested == pytest.approx(exact.marks.requested, rel=0.02)
    assert coarse.of("ledger transactions").least == pytest.approx(exact.of("ledger transactions").least)
    assert coarse.stored == pytest.approx(exact.stored)


def test_the_same_arguments_give_the_same_result(simulation: Any) -> None:
    costs = free(
        simulation, transaction=0.02, transactions_per_second=120.0, receivers_per_second=30.0, aggregate=0.01
    )
    launch = quick(
        simulation, latency=0.2, delivery_half_life=3.0, open_share=0.3, open_half_life=9.0, tail=0.001
    )
    deployment = one_of_each(simulation, workers=3, requests_at_once=3, receivers=2, processors=4)
    assert simulation.simulate(costs, launch, deployment) == simulation.simulate(costs, launch, deployment)


def test_a_launch_of_one_person_ends(simulation: Any) -> None:
    result = simulation.simulate(free(simulation), quick(simulation, devices=1), one_of_each(simulation))
    assert result.stored == pytest.approx(1)
    assert result.marks.requested <= result.marks.stored <= result.marks.aggregated <= result.elapsed


def test_a_launch_that_would_never_end_is_refused(simulation: Any) -> None:
    with pytest.raises(ValueError, match="never"):
        quick(simulation, open_half_life=60.0)


# The command


def written(file: Path, simulation: Any, **costs: float) -> Path:
    room = dict.fromkeys(
        ("dense", "by_chance", "scattered", "planned", "in_ledger", "post_back", "body"), 2.0
    )
    known = {each: getattr(free(simulation, **costs), each) for each in simulation.Costs.__dataclass_fields__}
    file.write_text("a table\n" + json.dumps({"costs": known, "room": room}) + "\n")
    return file


def test_the_command_says_where_each_figure_is_from(
    simulation: Any, command: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    earlier = written(tmp_path / "earlier.txt", simulation, reconcile=0.1)
    receiver = tmp_path / "receiver.txt"
    receiver.write_text('{"receiver_postgresql_per_second": 12800}\n')
    words = "--devices 1000 --segment-size 10 --latency 3 --aggregate 0.5 --receivers 2 --tick 1 --open-half-life 60"
    command.main([*words.split(), "--costs", str(earlier), "--receiver", str(receiver)])
    *table, last = capsys.readouterr().out.strip().splitlines()
    (aggregating,) = [line for line in table if line.startswith("│ aggregating ") and "s/post-back" in line]
    assert "given" in aggregating
    (verdicts,) = [line for line in table if "verdicts of a launch" in line]
    assert "given: earlier.txt" in verdicts
    (taken,) = [line for line in table if "one receiver process takes" in line]
    assert "12,800" in taken
    (latency,) = [line for line in table if "of an answer of the service" in line]
    assert "given" in latency
    (half,) = [line for line in table if "half of the deliveries" in line]
    assert "assumed" in half
    figures = json.loads(last)
    (only,) = figures["scenarios"]
    assert only["deployment"]["receivers"] == 2
    assert figures["sizes"] == {
        "dispatches": 100,
        "audience_every_number": 2_000,
        "audience_nine_in_ten": 2_000,
        "audience_scattered": 2_000,
        "planning_nine_in_ten": 2_000,
        "body_of_a_request": 20,
        "bodies": 2_000,
        "ledger_without_post_backs": 2_000,
        "post_backs": 2_400,
    }


def test_without_a_deployment_there_are_the_usual_ones_and_a_service_with_a_quota(
    simulation: Any, command: Any
) -> None:
    costs = free(simulation, reconcile=1e-6)
    launch = quick(
        simulation,
        devices=2_000_000,
        segment_size=10_000,
        tick=1.0,
        aggregate_every=10.0,
        aggregate_every_quiet=10.0,
        most_lots=100,
    )
    found = command.scenarios(costs, launch, None)
    assert [each.name for each in found] == [
        "laptop",
        "one server",
        "small cluster",
        "small cluster, 10,000 messages/s",
    ]
    limited = found[-1]
    assert limited.result.limits[0].name == "service sends"
    assert limited.result.limits[0].least == pytest.approx(200)  # 2,000,000 at 10,000 a second
    assert limited.steps[0].limit == "service sends"


def test_bytes_are_written_for_people(command: Any) -> None:
    assert [command.amount(value) for value in (12, 1_500, 442e9, 1.2e15)] == [
        "12 B",
        "1.5 KB",
        "442 GB",
        "1.2e+03 TB",
    ]


def test_costs_of_two_things_are_told_apart(simulation: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    import steps

    # 100 post-backs of 2 dispatches, and 10 of 20: each post-back took 3, and each dispatch 5.
    assert steps.apart((100, 2, 310), (10, 20, 130)) == (pytest.approx(3), pytest.approx(5))
    # If the noise is larger than the cost, the cost is zero, never negative.
    assert steps.apart((100, 2, 1), (10, 20, 130))[0] == 0.0
