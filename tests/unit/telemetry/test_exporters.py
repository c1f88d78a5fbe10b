"""Exporting metrics, each test in its own process, because a process can have only one meter provider."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

pytestmark = pytest.mark.proof  # each test starts a process

COUNT = "from sendoff.telemetry import exporters, metrics; exporters.start(); metrics.aggregated(3)"
SDK = (
    "import sys; print(sorted(name for name in sys.modules if name.startswith('opentelemetry.sdk.metrics')))"
)


def python(code: str, **variables: str) -> subprocess.CompletedProcess[str]:
    surroundings = {name: value for name, value in os.environ.items() if not name.startswith("OTEL_")}
    surroundings |= {"OTEL_EXPORTER_OTLP_TIMEOUT": "120"}  # seconds
    line = [sys.executable, "-c", code]
    ended = subprocess.run(line, env=surroundings | variables, capture_output=True, text=True, check=False)
    assert ended.returncode == 0, ended.stderr
    return ended


@pytest.mark.parametrize(
    "variables",
    [
        {},
        {"OTEL_SERVICE_NAME": "sendoff", "OTEL_METRIC_EXPORT_INTERVAL": "1000"},
        {"OTEL_METRICS_EXPORTER": "none"},
        {"OTEL_METRICS_EXPORTER": "otlp", "OTEL_SDK_DISABLED": "true"},
        {"OTEL_METRICS_EXPORTER": "prometheus"},  # Prometheus cannot scrape a process that ends at once
    ],
)
def test_where_nothing_is_asked_for_nothing_is_imported(variables: dict[str, str]) -> None:
    assert python(f"{COUNT}; {SDK}", **variables).stdout == "[]\n"


def test_what_a_short_process_counted_is_sent_when_it_ends(collector: Any) -> None:
    python(COUNT, OTEL_METRICS_EXPORTER="otlp", **collector.environment)
    python(COUNT, **collector.environment)
    assert collector.total("sendoff.post_backs.aggregated") == 6
    assert len({resource["service.instance.id"] for resource in collector.resources()}) == 2


@pytest.mark.proof
def test_a_process_is_called_sendoff_unless_it_is_called_otherwise(collector: Any) -> None:
    python(COUNT, **collector.environment)
    python(COUNT, OTEL_SERVICE_NAME="events", **collector.environment)
    python(COUNT, OTEL_RESOURCE_ATTRIBUTES="service.name=other,deployment=a", **collector.environment)
    assert [resource["service.name"] for resource in collector.resources()] == ["sendoff", "events", "other"]
    assert collector.resources()[2]["deployment"] == "a"


def test_the_console_is_an_exporter_too() -> None:
    assert '"sendoff.post_backs.aggregated"' in python(COUNT, OTEL_METRICS_EXPORTER="console").stdout


@pytest.mark.parametrize(
    ("variables", "said"),
    [
        ({"OTEL_METRICS_EXPORTER": "pigeon"}, "there is no metrics exporter pigeon"),
        (
            {"OTEL_METRICS_EXPORTER": "otlp", "OTEL_EXPORTER_OTLP_PROTOCOL": "smoke"},
            "there is no metrics exporter smoke",
        ),
        ({"OTEL_METRICS_EXPORTER": "prometheus", "OTEL_EXPORTER_PROMETHEUS_PORT": "soon"}, "'soon'"),
    ],
)
def test_what_cannot_be_set_up_is_said_and_the_process_works_on(variables: dict[str, str], said: str) -> None:
    ended = python(COUNT.replace("start()", "start(is_scraped=True)") + "; print('done')", **variables)
    assert ended.stdout == "done\n"
    assert "No metrics are exported" in ended.stderr
    assert said in ended.stderr


def test_without_the_sdk_one_line_says_what_to_install(collector: Any) -> None:
    without = "import sys; sys.modules['opentelemetry.sdk.metrics.export'] = None"
    ended = python(f"{without}; {COUNT}; print('done')", **collector.environment)
    assert ended.stdout == "done\n"
    assert "pip install '.[telemetry]'" in ended.stderr
    assert ended.stderr.count("\n") == 1


@pytest.mark.proof
def test_a_command_that_opens_the_ledger_sends_what_it_counted(collector: Any, tmp_path: Any) -> None:
    ledger = f"sqlite:///{tmp_path / 'ledger.db'}"
    main = "import sys; from sendoff.cli import main; sys.argv = ['sendoff', {}, '--ledger', {!r}]; main()"
    python(main.format("'migrate'", ledger))
    ended = python(main.format("'metrics'", ledger), **collector.environment)
    assert "launches" in ended.stdout
    assert {"sendoff.launches", "sendoff.aggregation.lag"} <= collector.names()


@pytest.mark.proof
def test_the_ledger_is_measured_again_and_again_until_somebody_stops_it(
    collector: Any, migrated_file: Path
) -> None:
    surroundings = os.environ | {"OTEL_METRIC_EXPORT_INTERVAL": "200"} | collector.environment
    line = [sys.executable, "-c", "from sendoff.cli import main; main()", "metrics", "--every", "1"]
    process = subprocess.Popen([*line, "--ledger", f"sqlite:///{migrated_file}"], env=surroundings)
    try:
        deadline = time.monotonic() + 120
        while "sendoff.aggregation.lag" not in collector.names():
            assert process.poll() is None
            assert time.monotonic() < deadline
            time.sleep(0.05)
    finally:
        process.terminate()
    assert process.wait(120) == 0


def test_the_counts_of_a_ledger_are_shown_as_json(migrated_file: Path, sendoff: Any) -> None:
    told = json.loads(sendoff("metrics", "--json", "--ledger", f"sqlite:///{migrated_file}").stdout)
    assert told == {
        "launches": {"held": 0, "released": 0, "paused": 0},
        "dispatches": {},
        "doubts": {},
        "pending_since": None,
        "reported_at": None,
    }
