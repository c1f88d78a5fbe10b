"""Send Sendoff's metrics to Airflow's own metrics client.

With ``[metrics] otel_on``, nothing needs to be done: Airflow sets the meter provider of the whole process, and flushes
it when a task ends. With StatsD or Datadog, each value goes to Airflow's client at once, under the same name and with
its attributes as tags.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import timedelta
from functools import cache
from typing import Any

from airflow.sdk import conf
from airflow.sdk.observability import stats
from opentelemetry import metrics

_AGENTS = ("statsd_on", "statsd_datadog_enabled")


@cache
def count_in_airflow() -> None:
    """Send the metrics of this process to Airflow's StatsD or Datadog client from now on, if one is configured."""
    if any(conf.getboolean("metrics", name, fallback=False) for name in _AGENTS):
        metrics.set_meter_provider(_Stats())


class _Stats(metrics.NoOpMeterProvider):
    def get_meter(self, name: str, *others: Any, **more: Any) -> metrics.Meter:
        if name == "sendoff":  # leave the metrics of other libraries alone
            return _Meter(name)
        return super().get_meter(name, *others, **more)


class _Meter(metrics.NoOpMeter):
    def create_counter(self, name: str, unit: str = "", description: str = "") -> metrics.Counter:
        return _Counter(name, unit, description)

    def create_gauge(self, name: str, unit: str = "", description: str = "") -> metrics._Gauge:
        return _Gauge(name, unit, description)

    def create_histogram(
        self,
        name: str,
        unit: str = "",
        description: str = "",
        *,
        explicit_bucket_boundaries_advisory: Sequence[float] | None = None,
    ) -> metrics.Histogram:
        # StatsD supports distributions only for times.
        kind = _Time if unit == "s" else metrics.NoOpHistogram
        return kind(name, unit, description, explicit_bucket_boundaries_advisory)


class _Instrument:
    """Keeps its name, which OpenTelemetry's instruments that do nothing forget."""

    def __init__(self, name: str, *details: Any) -> None:
        super().__init__(name, *details)  # type: ignore[call-arg]  # of the class beside this one
        self._stat = name


class _Counter(_Instrument, metrics.NoOpCounter):
    def add(self, amount: float, attributes: Mapping[str, Any] | None = None, *_: Any, **__: Any) -> None:
        stats.incr(self._stat, int(amount), tags=_tags(attributes))


class _Gauge(_Instrument, metrics._NoOpGauge):
    def set(self, amount: float, attributes: Mapping[str, Any] | None = None, *_: Any, **__: Any) -> None:
        stats.gauge(self._stat, amount, tags=_tags(attributes))


class _Time(_Instrument, metrics.NoOpHistogram):
    def record(self, amount: float, attributes: Mapping[str, Any] | None = None, *_: Any, **__: Any) -> None:
        stats.timing(self._stat, timedelta(seconds=amount), tags=_tags(attributes))


def _tags(attributes: Mapping[str, Any] | None) -> dict[str, str]:
    return {name: str(value).replace(" ", "_") for name, value in (attributes or {}).items()}
