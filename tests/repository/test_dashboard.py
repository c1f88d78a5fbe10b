"""docs/dashboards and docs/reference/observability.md: they name exactly the metrics that exist."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import promql_parser as promql
import pytest
import yaml
from grafana_foundation_sdk.cog import plugins
from grafana_foundation_sdk.cog.encoder import JSONEncoder
from grafana_foundation_sdk.models.dashboard import Dashboard

from sendoff.telemetry.metrics import INSTRUMENTS, Instrument
from tools.reference.metrics import prometheus_names

DOCS = Path(__file__).resolve().parents[2] / "docs"
PAGE = (DOCS / "reference/observability.md").read_text(encoding="utf-8")
DASHBOARD: dict[str, Any] = json.loads((DOCS / "dashboards/sendoff.json").read_text(encoding="utf-8"))
RULES: list[dict[str, Any]] = [
    rule
    for group in yaml.safe_load((DOCS / "dashboards/alerts.yaml").read_text(encoding="utf-8"))["groups"]
    for rule in group["rules"]
]
SHOWN = {
    f"{panel['title']} {target['refId']}": target["expr"].replace("$__rate_interval", "5m")
    for panel in DASHBOARD["panels"]
    for target in panel.get("targets", ())
}
ASKED = SHOWN | {rule["alert"]: rule["expr"] for rule in RULES}
FROM_PROMETHEUS = {"le", "instance", "job"}  # labels that Sendoff does not set


def series(instrument: Instrument) -> set[str]:
    """Return the names of an instrument in Prometheus: an exponential histogram is one series."""
    names = prometheus_names(instrument)
    return {*names, *(name.removesuffix("_bucket") for name in names)}


BY_NAME = {name: instrument for instrument in INSTRUMENTS for name in series(instrument)}


def selectors(expression: str) -> list[promql.VectorSelector]:
    return _selectors(promql.parse(expression))


def _selectors(node: Any) -> list[promql.VectorSelector]:
    if isinstance(node, promql.VectorSelector):
        return [node]
    if isinstance(node, promql.MatrixSelector):
        return [node.vector_selector]
    parts = [getattr(node, name, None) for name in ("expr", "lhs", "rhs", "param")]
    return [found for part in [*parts, *getattr(node, "args", ())] if part for found in _selectors(part)]


@pytest.mark.parametrize("expression", ASKED.values(), ids=ASKED)
def test_an_expression_asks_for_what_is_measured(expression: str) -> None:
    found = selectors(expression)
    assert found
    for selector in found:
        instrument = BY_NAME[selector.name]
        for matcher in selector.matchers.matchers:
            values = instrument.attributes[matcher.name]
            assert "`" not in values or f"`{matcher.value}`" in values


@pytest.mark.parametrize("expression", ASKED.values(), ids=ASKED)
def test_an_expression_groups_by_attributes_that_its_metrics_have(expression: str) -> None:
    known = {name for selector in selectors(expression) for name in BY_NAME[selector.name].attributes}
    named = {
        label.strip() for part in re.findall(r"\bby \(([^)]*)\)", expression) for label in part.split(",")
    }
    assert named <= known | FROM_PROMETHEUS


@pytest.mark.parametrize("instrument", INSTRUMENTS, ids=lambda instrument: instrument.name)
def test_each_instrument_is_on_the_dashboard(instrument: Instrument) -> None:
    shown = {selector.name for expression in SHOWN.values() for selector in selectors(expression)}
    assert shown & series(instrument)


def test_the_names_are_those_that_opentelemetry_makes_for_prometheus() -> None:
    code = """
from opentelemetry.exporter.prometheus import PrometheusMetricReader
from opentelemetry.metrics import set_meter_provider
from opentelemetry.sdk.metrics import MeterProvider
from prometheus_client import generate_latest
from sendoff.telemetry import metrics
set_meter_provider(MeterProvider([PrometheusMetricReader()]))
metrics.audience_rows(1, {}); metrics.launches({"held": 1}); metrics.dispatches({("a", "b"): 1}); metrics.feeds({})
metrics.request("a", "b"); metrics.request_seconds("/", 1, 200); metrics.token_request("a"); metrics.doubts({"a": 1})
metrics.commit(1, 1); metrics.refused_post_back(404); metrics.aggregated(1)
metrics.aggregation_lag(1); metrics.report_age(1); metrics.observed_at(1)
metrics.receiver_available(True)
print(generate_latest().decode())
"""
    told = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    names = set(re.findall(r"^(sendoff_\w+)[{ ]", told, re.MULTILINE))
    assert names == {name for instrument in INSTRUMENTS for name in prometheus_names(instrument)}


def test_grafanas_own_types_read_the_dashboard_and_know_each_of_its_fields() -> None:
    plugins.register_default_plugins()
    loaded = Dashboard.from_json(DASHBOARD)
    assert _missing(DASHBOARD, json.loads(JSONEncoder().encode(loaded))) == []
    queries = [target for panel in loaded.panels or [] for target in getattr(panel, "targets", None) or []]
    assert {type(query).__name__ for query in queries} == {"Dataquery"}
    assert [query.expr for query in queries] == [
        target["expr"] for panel in DASHBOARD["panels"] for target in panel.get("targets", ())
    ]


def test_a_misspelled_field_of_the_dashboard_would_be_found() -> None:
    broken = {**DASHBOARD, "refesh": "30s"}
    written = json.loads(JSONEncoder().encode(Dashboard.from_json(broken)))
    assert _missing(broken, written) == [".refesh"]


def _missing(given: Any, written: Any, place: str = "") -> list[str]:
    """Return the places of values that were lost or changed."""
    if isinstance(given, dict) and isinstance(written, dict):
        parts = [(f"{place}.{name}", value, written.get(name)) for name, value in given.items()]
    elif isinstance(given, list) and isinstance(written, list) and len(given) == len(written):
        parts = [(f"{place}[{n}]", a, b) for n, (a, b) in enumerate(zip(given, written, strict=True))]
    else:
        return [] if given == written else [place]
    return [lost for where, a, b in parts for lost in _missing(a, b, where)]


def test_the_panels_have_places_of_their_own() -> None:
    ids = [panel["id"] for panel in DASHBOARD["panels"]]
    assert len(ids) == len(set(ids))
    cells = [
        (x, y)
        for panel in DASHBOARD["panels"]
        if (at := panel["gridPos"])
        for x in range(at["x"], at["x"] + at["w"])
        for y in range(at["y"], at["y"] + at["h"])
    ]
    assert len(cells) == len(set(cells))
    assert max(x for x, _ in cells) < 24  # Grafana has 24 columns


def test_the_dashboard_has_a_row_for_each_part_and_one_choice_of_a_data_source() -> None:
    rows = [panel["title"] for panel in DASHBOARD["panels"] if panel["type"] == "row"]
    assert rows == ["Sending", "Receiving", "Reconciling", "Feed health"]
    sources = {panel["datasource"]["uid"] for panel in DASHBOARD["panels"] if "datasource" in panel}
    assert sources == {"${" + DASHBOARD["templating"]["list"][0]["name"] + "}"}


def test_every_alert_says_what_is_wrong_and_what_to_do() -> None:
    assert len({rule["alert"] for rule in RULES}) == len(RULES)
    for rule in RULES:
        assert rule["labels"]["severity"] in {"critical", "warning"}
        assert rule["annotations"].keys() == {"summary", "description"}


def test_the_page_names_each_alert() -> None:
    assert set(re.findall(r"^\| `(Sendoff\w+)` \|", PAGE, re.MULTILINE)) == {rule["alert"] for rule in RULES}


def test_the_examples_of_the_page_are_yaml() -> None:
    export = (DOCS / "reference/metrics-export.md").read_text(encoding="utf-8")
    examples = re.findall(r"```yaml\n(.*?)```", PAGE + export, re.DOTALL)
    assert len(examples) >= 2
    assert all(isinstance(yaml.safe_load(example), dict) for example in examples)
