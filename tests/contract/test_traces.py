"""Traces: all steps of a launch are in one trace, under Airflow's task span or alone, and hold keys and counts only."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from sendoff.ledger import Ledger

from ..local_receiver import local_receiver
from ..local_service import LocalService
from .sending import service

__all__ = ["service"]

SECRET = "s" * 32
PEOPLE = (7_340_000_007, 7_340_000_014, 7_340_000_021)
FILES = {
    "campaign.yaml": "title: Spring sale\nmessage: {title: A confidential title, text: A confidential text}\n"
    'channels: {web_push: {browsers: [chrome]}}\nschedule: "0 * * * *"\nstart: 2026-01-01\n'
    "report: {quiet_for: {length: 1, unit: seconds}}\n",
    "audience.sql": f"WITH d (device_id) AS (VALUES {', '.join(f'({who})' for who in PEOPLE)}) "
    "SELECT device_id, 'chrome' AS platform FROM d",
}
SENDOFF = "import sys; from sendoff.cli import main; sys.argv = ['sendoff', *sys.argv[1:]]; main()"


@pytest.fixture
def environment(
    service: LocalService, tmp_path: Path, collector: Any, migrated_url: str
) -> Iterator[dict[str, str]]:
    url = f"sqlite:///{tmp_path}/ledger.db"
    for name, text in FILES.items():
        (tmp_path / "welcome").mkdir(exist_ok=True)
        (tmp_path / "welcome" / name).write_text(text)
    with local_receiver(url, SECRET) as address:
        yield {name: value for name, value in os.environ.items() if not name.startswith("OTEL_")} | {
            "SENDOFF_LEDGER_URL": url,
            "SENDOFF_WAREHOUSE_URL": "sqlite://",
            "SENDOFF_SERVICE_URL": service.base_url,
            "SENDOFF_CLIENT_ID": service.client_id,
            "SENDOFF_CLIENT_SECRET": service.client_secret,
            "SENDOFF_APP_TOKEN": service.app_token,
            "SENDOFF_PUBLIC_URL": address,
            "SENDOFF_POST_BACK_SECRETS": SECRET,
            "OTEL_METRICS_EXPORTER": "none",
            **collector.environment,
        }


def python(code: str, *arguments: str, environment: dict[str, str]) -> None:
    line = [sys.executable, "-c", code, *arguments]
    ended = subprocess.run(line, env=environment, capture_output=True, text=True, check=False)
    assert ended.returncode == 0, ended.stderr


def key_of(environment: dict[str, str]) -> str:
    with closing(Ledger(environment["SENDOFF_LEDGER_URL"])) as ledger:
        (launch,) = ledger.launches.search()
        return launch.launch_key


def attributes(span: Any) -> dict[str, Any]:
    return {each.key: each.value.string_value or each.value.int_value for each in span.attributes}


def test_a_launch_of_the_command_line_is_one_trace_whose_id_is_its_key(
    environment: dict[str, str], tmp_path: Path, collector: Any
) -> None:
    python(SENDOFF, "send", str(tmp_path / "welcome"), environment=environment)
    key = key_of(environment)
    python(SENDOFF, "report", key, environment=environment)
    spans = {span.name: span for span in collector.spans}
    assert {
        "sendoff.prepare",
        "sendoff.query",
        "sendoff.freeze",
        "sendoff.dispatch",
        "sendoff.reconcile",
    } == set(spans)
    assert {span.trace_id.hex() for span in collector.spans} == {key}
    assert spans["sendoff.query"].parent_span_id == spans["sendoff.prepare"].span_id
    assert attributes(spans["sendoff.query"]) == {"sendoff.launch_key": key, "sendoff.recipients": 3}
    assert attributes(spans["sendoff.freeze"]) == {
        "sendoff.launch_key": key,
        "sendoff.audience": 3,
        "sendoff.segments": 1,
    }
    assert attributes(spans["sendoff.dispatch"]) == {
        "sendoff.launch_key": key,
        "sendoff.accepted": 1,
        "sendoff.refused": 0,
        "sendoff.in_doubt": 0,
    }
    assert attributes(spans["sendoff.reconcile"])["sendoff.audience"] == 3


def test_no_span_holds_a_recipient_a_text_or_a_secret(
    environment: dict[str, str], tmp_path: Path, collector: Any
) -> None:
    python(SENDOFF, "send", str(tmp_path / "welcome"), environment=environment)
    (tmp_path / "welcome/audience.sql").write_text(f"SELECT {PEOPLE[0]} AS device_id, nothing FROM nowhere")
    late = ["--period", "2026-02-02T10:00Z/2026-02-02T11:00Z", "--send-late"]
    line = [sys.executable, "-c", SENDOFF, "send", str(tmp_path / "welcome"), *late]
    failed = subprocess.run(line, env=environment, capture_output=True, text=True, check=False)
    assert failed.returncode == 1, failed.stderr
    (query,) = (span for span in collector.spans if span.name == "sendoff.query" and span.status.code)
    assert query.status.message == "QueryError"
    assert not query.events
    found = b"".join(span.SerializeToString() for span in collector.spans)
    secrets = [SECRET, environment["SENDOFF_CLIENT_SECRET"], environment["SENDOFF_APP_TOKEN"]]
    for word in (*map(str, PEOPLE), "confidential", "Spring", "nowhere", *secrets):
        assert word.encode() not in found, word


def test_inside_another_span_the_steps_of_a_launch_are_its_children(collector: Any) -> None:
    key = "0123456789abcdef" * 2
    code = f"""
from opentelemetry import trace
from sendoff.telemetry import exporters, traces
exporters.start()
with trace.get_tracer("airflow").start_as_current_span("worker.dispatch"):
    with traces.span("dispatch", {key!r}) as count:
        count(accepted=1)
with traces.span("reconcile", {key!r}):
    pass
"""
    python(code, environment=dict(os.environ) | collector.environment)
    spans = {span.name: span for span in collector.spans}
    task, inside, alone = (
        spans[name] for name in ("worker.dispatch", "sendoff.dispatch", "sendoff.reconcile")
    )
    assert (inside.trace_id, inside.parent_span_id) == (task.trace_id, task.span_id)
    assert alone.trace_id.hex() == key


def test_without_an_exporter_nothing_of_the_sdk_is_imported() -> None:
    code = """
import sys
from sendoff.telemetry import exporters, traces
exporters.start()
with traces.span("dispatch", "0" * 31 + "1") as count:
    count(accepted=1)
assert not [name for name in sys.modules if name.startswith("opentelemetry.sdk")]
"""
    python(code, environment={name: value for name, value in os.environ.items() if "OTEL" not in name})
