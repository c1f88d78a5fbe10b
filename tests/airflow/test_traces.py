"""Traces in Airflow: the steps of a launch are children of Airflow's span of the task, in the trace of the run."""

from __future__ import annotations

import os
import subprocess
import sys
from typing import Any

RUN = """
from types import SimpleNamespace
from sendoff.telemetry import exporters, traces
exporters.start()
from airflow.sdk._shared.observability.traces import new_dagrun_trace_carrier, new_task_run_carrier
from airflow.sdk.execution_time.task_runner import _make_task_span

run = new_dagrun_trace_carrier()
for task, step in (("audience", "freeze"), ("dispatch", "dispatch"), ("report", "reconcile")):
    instance = SimpleNamespace(
        task_id=task, dag_id="spring", run_id="one", map_index=-1, try_number=1,
        context_carrier=new_task_run_carrier(run),
    )
    with _make_task_span(SimpleNamespace(ti=instance)), traces.span(step, "0123456789abcdef" * 2):
        pass
print(run["traceparent"].split("-")[1])
"""


def test_one_run_of_a_campaign_is_one_trace_of_airflow_and_sendoff(collector: Any) -> None:
    environment = {name: value for name, value in os.environ.items() if not name.startswith("OTEL_")}
    environment |= {"OTEL_METRICS_EXPORTER": "none", **collector.environment}
    ended = subprocess.run(
        [sys.executable, "-c", RUN], env=environment, capture_output=True, text=True, check=False
    )
    assert ended.returncode == 0, ended.stderr
    spans = {span.name: span for span in collector.spans}
    assert {span.trace_id.hex() for span in collector.spans} == {ended.stdout.split()[-1]}
    for task, step in (("audience", "freeze"), ("dispatch", "dispatch"), ("report", "reconcile")):
        assert spans[f"sendoff.{step}"].parent_span_id == spans[f"worker.{task}"].span_id
