"""The simulation of a launch, compared with cases that can be calculated by hand."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest


@pytest.fixture
def command(benchmark_module: Callable[[str], Any]) -> Any:
    return benchmark_module("simulate")


def costs_of(command: Any, **costs: float) -> Any:
    """Return costs that are zero except those given; a receiver takes a billion post-backs per second."""
    free = dict.fromkeys(command.Costs.__dataclass_fields__, 0.0)
    return command.Costs(**{**free, "receivers_per_second": 1e9, **costs})


def world_of(command: Any, **world: float) -> Any:
    """Return a launch of 1,000 recipients in 100 requests, without any waiting unless ``world`` sets it."""
    at_once = {
        "latency": 0.0,
        "delivery_half_life": 0.0,
        "open_half_life": 0.0,
        "quiet_for": 0.0,
        "tail": 0.0,
    }
    launch = {"devices": 1_000, "segment_size": 10, "delivery_share": 1.0, "open_share": 0.0, "tick": 0.01}
    return command.World(**{**at_once, **launch, **world})


def deployment_of(command: Any, **more: int) -> Any:
    one = dict.fromkeys(("workers", "requests_at_once", "receivers", "ledger_processors"), 1)
    return command.Deployment(**{"processors": 1_000, **one, **more})


# Costs that take 100 seconds if everything else is free.
ONE_LIMIT = [
    ("reading", {"reading": 100.0}, {}),
    ("freezing", {"freezing": 100.0}, {}),
    ("workers", {}, {"latency": 1.0}),
    ("service", {}, {"requests_per_second": 1.0}),
    ("service", {}, {"messages_per_second": 10.0}),
    ("receivers", {"receivers_per_second": 10.0}, {}),
    ("aggregating", {"aggregating": 100.0}, {}),
    ("reconciling", {"reconciling": 100.0}, {}),
]


@pytest.mark.parametrize(("limit", "costs", "world"), ONE_LIMIT)
def test_a_launch_with_one_limit_takes_as_long_as_that(
    command: Any, limit: str, costs: dict[str, float], world: dict[str, float]
) -> None:
    result = command.simulate(costs_of(command, **costs), world_of(command, **world), deployment_of(command))
    assert result.first_limit == limit
    assert result.limits[limit] == pytest.approx(100)
    assert result.verdicts == pytest.approx(100, abs=0.1)


@pytest.mark.parametrize(("limit", "costs", "world"), ONE_LIMIT)
def test_every_limit_can_be_widened(
    command: Any, limit: str, costs: dict[str, float], world: dict[str, float]
) -> None:
    made = costs_of(command, **costs), world_of(command, **world), deployment_of(command)
    step = command.widen(*made)[0]
    assert step.limit == limit
    assert step.how
    assert step.result.verdicts < command.simulate(*made).verdicts


def test_a_limit_that_is_doubled_moves(command: Any) -> None:
    made = (
        costs_of(command, receivers_per_second=10.0, aggregating=60.0),
        world_of(command),
        deployment_of(command),
    )
    first, second = command.widen(*made)
    assert (first.limit, first.factor, first.result.first_limit) == ("receivers", 2, "aggregating")
    assert first.result.verdicts == pytest.approx(60, abs=0.1)  # and 50 for the receivers: there are now two
    assert (second.limit, second.factor, second.result.first_limit) == ("aggregating", 2, "receivers")


def test_the_ledger_limits_what_many_workers_claim(command: Any) -> None:
    deployment = deployment_of(command, workers=8, ledger_processors=2)
    result = command.simulate(costs_of(command, sending=100.0), world_of(command), deployment)
    assert result.first_limit == "ledger"
    assert result.requested == pytest.approx(50, abs=0.1)


def test_as_many_requests_are_under_way_as_there_are_threads(command: Any) -> None:
    deployment = deployment_of(command, workers=2, requests_at_once=5)
    result = command.simulate(costs_of(command), world_of(command, latency=1.0), deployment)
    assert result.requested == pytest.approx(10, abs=0.1)  # 100 requests of one second each, ten at a time


def test_processes_that_share_a_processor_wait_for_one_another(command: Any) -> None:
    made = costs_of(command, receivers_per_second=10.0, aggregating=100.0), world_of(command)
    together = command.simulate(*made, deployment_of(command, processors=1))
    assert together.first_limit == "processors"
    assert together.verdicts == pytest.approx(200, rel=0.02)


def test_half_of_the_post_backs_come_within_a_half_life(command: Any) -> None:
    world = world_of(command, delivery_half_life=60.0, tail=1 / 1_024, tick=1.0)
    result = command.simulate(costs_of(command), world, deployment_of(command))
    assert result.stored - result.requested == pytest.approx(600, abs=2)  # 2 ** 10 is 1,024


def test_what_the_receivers_cannot_take_waits(command: Any) -> None:
    result = command.simulate(
        costs_of(command, receivers_per_second=10.0), world_of(command), deployment_of(command)
    )
    assert result.most_waiting == pytest.approx(1_000)
    assert result.longest_wait == pytest.approx(100)


def test_a_launch_of_one_recipient_ends(command: Any) -> None:
    result = command.simulate(costs_of(command), world_of(command, devices=1), deployment_of(command))
    assert 0 < result.requested <= result.stored <= result.verdicts


def test_a_launch_that_would_never_end_is_refused(command: Any) -> None:
    with pytest.raises(ValueError, match="the end never comes"):
        world_of(command, open_half_life=60.0)


def growth_of(*seconds: float) -> dict[str, Any]:
    import bench_growth as growth

    return {
        "costs": [{"seconds": each, "mib": 1.0} for each in seconds],
        "time_exponent": growth.exponent(seconds),
    }


def test_a_cost_is_continued_by_its_exponent_or_by_what_one_more_recipient_costs(command: Any) -> None:
    sizes = [1, 4, 16]
    assert command.continued(sizes, growth_of(1, 16, 256), 64) == pytest.approx(256 * 16)  # its square
    assert command.continued(sizes, growth_of(11, 14, 26), 64) == pytest.approx(74)  # 10, and 1 each
    assert command.continued(sizes, growth_of(5, 5, 4), 64) == pytest.approx(4)  # noise is never a gain


def test_the_command_says_where_each_figure_is_from(
    command: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    steps = {each: growth_of(1, 4, 16) for each in command.Costs.__dataclass_fields__}
    growth, receiver = tmp_path / "growth.txt", tmp_path / "receiver.txt"
    growth.write_text("a table\n" + json.dumps({"sizes": [250, 1_000, 4_000], **steps}) + "\n")
    receiver.write_text('{"receiver_postgresql_per_second": 12800}\n')
    words = ["--devices", "16000", "--latency", "3", "--receivers", "2"]
    command.main([*words, "--growth", str(growth), "--receiver", str(receiver)])
    *tables, last = capsys.readouterr().out.strip().splitlines()
    (latency,) = [line for line in tables if "until the service answers" in line]
    assert "given" in latency
    (half,) = [line for line in tables if "half of the deliveries" in line]
    assert "assumed" in half
    figures = json.loads(last)
    assert figures["costs"]["reading"] == pytest.approx(64)
    assert figures["costs"]["receivers_per_second"] == 12_800
    assert list(figures["launches"]) == ["as given"]
    assert figures["launches"]["as given"]["limits"]["workers"] > 0


def test_without_a_deployment_there_are_the_usual_ones_and_a_service_with_a_quota(
    command: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    growth, receiver = tmp_path / "growth.txt", tmp_path / "receiver.txt"
    steps = {each: growth_of(0.1, 0.1, 0.1) for each in command.Costs.__dataclass_fields__}
    growth.write_text(json.dumps({"sizes": [250, 1_000, 4_000], **steps}))
    receiver.write_text('{"receiver_postgresql_per_second": 1e9}')
    command.main(["--devices", "2000000", "--growth", str(growth), "--receiver", str(receiver)])
    launches = json.loads(capsys.readouterr().out.strip().splitlines()[-1])["launches"]
    *_, (name, limited) = launches.items()
    assert (len(launches), name) == (4, "small cluster, 10,000 messages/s")
    assert limited["limits"]["service"] == pytest.approx(200)  # 2,000,000 at 10,000 a second
    assert limited["widened"][0]["limit"] == "service"
