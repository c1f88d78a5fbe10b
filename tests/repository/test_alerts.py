"""docs/dashboards/alerts.yaml: Prometheus's own tool plays series against the rules, and the right alerts fire."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest
import yaml

RULES = Path(__file__).resolve().parents[2] / "docs/dashboards/alerts.yaml"
OBSERVED = "sendoff_observed_at_seconds"
AVAILABLE = "sendoff_receiver_available"
UNAVAILABLE = 'sendoff_post_backs_refused_total{status="503"}'
FAILED = 'sendoff_token_requests_total{outcome="failed"}'


def fires(alert: str, minute: int, series: dict[str, str]) -> bool:
    """Check whether an alert fires, ``minute`` minutes after Prometheus started with one sample a minute."""
    sample = f'count(ALERTS{{alertname="{alert}", alertstate="firing"}})'
    case = {
        "interval": "1m",
        "input_series": [{"series": name, "values": values} for name, values in series.items()],
        "promql_expr_test": [
            {"expr": sample, "eval_time": f"{minute}m", "exp_samples": [{"labels": "{}", "value": 1}]}
        ],
    }
    whole = {"rule_files": [str(RULES)], "evaluation_interval": "1m", "tests": [case]}
    command = ["promtool", "test", "rules", "/dev/stdin"]
    done = subprocess.run(command, input=yaml.safe_dump(whole), check=False, capture_output=True, text=True)
    told = done.stdout + done.stderr
    assert done.returncode == 0 or "got: nil" in told, told
    return done.returncode == 0


@pytest.fixture(autouse=True)
def needs_promtool() -> None:
    if shutil.which("promtool") is None:
        pytest.skip("needs promtool; on Debian: apt-get install prometheus")


def test_prometheus_reads_the_rules() -> None:
    subprocess.run(["promtool", "check", "rules", RULES], check=True)


@pytest.mark.parametrize(
    ("minute", "series", "expected"),
    [
        pytest.param(300, {OBSERVED: "0+60x300"}, False, id="counted every minute"),
        pytest.param(300, {OBSERVED: "0+60x200 12000x100"}, True, id="scraped, but no longer counted"),
        pytest.param(255, {OBSERVED: "0+60x200 12000x100"}, False, id="not counted for 55 minutes"),
        pytest.param(300, {OBSERVED: "0+60x200"}, True, id="no longer scraped"),
        pytest.param(1, {}, True, id="never scraped"),
        pytest.param(
            300,
            {f'{OBSERVED}{{job="a"}}': "0+60x200 12000x100", f'{OBSERVED}{{job="b"}}': "0+60x300"},
            False,
            id="counted by another process",
        ),
    ],
)
def test_gauges_that_are_an_hour_old_are_noticed(minute: int, series: dict[str, str], expected: bool) -> None:
    assert fires("SendoffNotObserved", minute, series) is expected


@pytest.mark.parametrize(
    ("minute", "values", "expected"),
    [
        pytest.param(120, "_x120 1", True, id="one sample, of a task that ended"),
        pytest.param(170, "_x120 1", True, id="fifty minutes later"),
        pytest.param(190, "_x120 1", False, id="an hour later"),
        pytest.param(120, "_x120 1x120", True, id="the first failure of a process that goes on"),
        pytest.param(240, "_x120 1x120", False, id="an hour later, of a process that goes on"),
        pytest.param(120, "1x119 2x120", True, id="another failure"),
        pytest.param(120, "1 _x119 2", True, id="another failure, counted by a collector"),
        pytest.param(120, "1 _x89 2 _x29 3", True, id="a failure in each hour, counted by a collector"),
        pytest.param(120, "5x119 1x120", True, id="a failure after a restart"),
        pytest.param(120, "_x240", False, id="no failure"),
    ],
)
def test_a_token_that_was_not_granted_is_noticed_once(minute: int, values: str, expected: bool) -> None:
    assert fires("SendoffTokensFail", minute, {FAILED: values}) is expected


def test_tokens_that_are_granted_are_no_failure() -> None:
    granted = FAILED.replace("failed", "granted")
    assert not fires("SendoffTokensFail", 120, {granted: "_x100 1x100"})


@pytest.mark.parametrize(
    ("minute", "series", "expected"),
    [
        pytest.param(30, {AVAILABLE: "1x30"}, False, id="available"),
        pytest.param(30, {AVAILABLE: "1x19 0x10"}, True, id="not available, and without requests"),
        pytest.param(21, {AVAILABLE: "1x19 0x10"}, False, id="not available for a minute"),
        pytest.param(30, {AVAILABLE: "1x19 0x5 1x5"}, False, id="available again"),
        pytest.param(
            30, {f'{AVAILABLE}{{pod="a"}}': "1x30", f'{AVAILABLE}{{pod="b"}}': "0x30"}, False, id="one of two"
        ),
        pytest.param(30, {AVAILABLE: "1x9"}, True, id="no metrics any more"),
        pytest.param(30, {AVAILABLE: "1x30", UNAVAILABLE: "0x19 0+5x10"}, True, id="answers 503"),
    ],
)
def test_receivers_that_do_not_store_are_noticed(minute: int, series: dict[str, str], expected: bool) -> None:
    assert fires("SendoffReceiverNotStoring", minute, series) is expected
