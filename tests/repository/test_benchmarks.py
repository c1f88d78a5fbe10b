"""What the benchmarks compute from their measurements: growth, and goals."""

from __future__ import annotations

import json
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest


@pytest.fixture
def growth(benchmark_module: Callable[[str], Any]) -> Any:
    return benchmark_module("bench_growth")


@pytest.fixture
def run_all(benchmark_module: Callable[[str], Any]) -> Any:
    return benchmark_module("run_all")


def test_the_exponent_says_by_what_a_cost_grows(growth: Any) -> None:
    costs = [growth.Cost(seconds, mib) for seconds, mib in ((9, 7), (2, 7), (32, 7))]
    found = growth.Growth.of(costs)
    assert found.time_exponent == pytest.approx(2)  # sixteen times at four times the size
    assert found.memory_exponent == 0


def test_growth_is_measured_for_each_path_of_a_launch(
    growth: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(growth, "SIZES", [1, 4, 16])
    monkeypatch.setattr(growth, "postgres_ledger", lambda: nullcontext("postgresql://"))
    monkeypatch.setattr(growth, "apart", lambda step, _, size: growth.Cost(size * len(step), 1.0))
    found = growth.measure(lambda _: None)
    assert {"reading", "sending", "reusing", "suppressing", "erasing", "parsing"} <= set(found)
    assert [each.time_exponent for each in found.values()] == pytest.approx([1] * len(found))
    growth.draw(found, tmp_path / "growth.svg")
    assert "erasing" in (tmp_path / "growth.svg").read_text()


@pytest.mark.parametrize("step", ["erasing", "parsing", "reusing", "suppressing"])
def test_a_step_that_needs_no_other_one_runs(growth: Any, postgres_url: str, step: str) -> None:
    from sendoff.ledger import Ledger

    ledger = Ledger(postgres_url, erasure_secret="e" * 32)
    ledger.migrate()
    try:
        done = getattr(growth, step)(growth.Place(ledger, postgres_url, 300))()
    finally:
        ledger.close()
    assert step != "reusing" or len(done.identifiers) == 300


def test_goals_stand_beside_what_was_measured(
    run_all: Any, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    lines = {
        "audience": {"times_pandas_speed": 9.5, "share_of_copy_speed": 0.9},
        "reconcile": {"seconds_of_10_million": 3.5},
    }
    monkeypatch.setattr(run_all, "run", lines.__getitem__)
    monkeypatch.setattr("sys.argv", ["run_all.py", *lines])
    run_all.main()
    last = json.loads(capsys.readouterr().out.strip().splitlines()[-1])
    assert last["audience"] == lines["audience"]
    reached = {(goal["benchmark"], goal["figure"]): goal["is_reached"] for goal in last["goals"]}
    assert reached["audience", "times_pandas_speed"] is False
    assert reached["audience", "share_of_copy_speed"] is True
    assert reached["reconcile", "seconds_of_10_million"] is False
    assert reached["parse", "cpu_ms_beyond_plain"] is None
