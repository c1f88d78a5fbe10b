"""Export metrics and traces from Sendoff's own processes with the OpenTelemetry SDK, configured by its variables.

``OTEL_METRICS_EXPORTER`` and ``OTEL_TRACES_EXPORTER`` name the exporters. Without them, ``OTEL_EXPORTER_OTLP_ENDPOINT``
means ``otlp``. If none is set, nothing is imported. The SDK reads all other ``OTEL_*`` variables itself. Inside
Airflow, this module is not used, because Airflow has its own providers.
"""

from __future__ import annotations

import logging
import os
from importlib.metadata import entry_points
from multiprocessing import parent_process
from multiprocessing.util import Finalize
from typing import TYPE_CHECKING, Any, Literal

if TYPE_CHECKING:
    from opentelemetry.sdk.metrics.export import MetricReader
    from opentelemetry.sdk.resources import Resource

_log = logging.getLogger(__name__)

_Signal = Literal["metrics", "traces"]
_EXPORTERS = {"metrics": "OTEL_METRICS_EXPORTER", "traces": "OTEL_TRACES_EXPORTER"}
_ENDPOINTS = {
    "metrics": ("OTEL_EXPORTER_OTLP_METRICS_ENDPOINT", "OTEL_EXPORTER_OTLP_ENDPOINT"),
    "traces": ("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", "OTEL_EXPORTER_OTLP_ENDPOINT"),
}
_PROTOCOLS = {
    "metrics": ("OTEL_EXPORTER_OTLP_METRICS_PROTOCOL", "OTEL_EXPORTER_OTLP_PROTOCOL"),
    "traces": ("OTEL_EXPORTER_OTLP_TRACES_PROTOCOL", "OTEL_EXPORTER_OTLP_PROTOCOL"),
}
_PORTS = 64  # number of ports to try; more than the receiver's processes on one machine


def start(*, is_scraped: bool = False) -> None:
    """Start to export this process's metrics and traces as the environment says; the last are sent when it ends.

    ``is_scraped``: whether the process lives long enough for Prometheus to scrape it; if not, ``prometheus`` is
    ignored. Such a process, a receiver for example, works on no launch and has no traces. If the export cannot be set
    up, log a warning and go on, because metrics must not cost post-backs.
    """
    if os.environ.get("OTEL_SDK_DISABLED", "").strip().lower() == "true":
        return
    _start("metrics", [name for name in _exporters("metrics") if is_scraped or name != "prometheus"])
    if not is_scraped:
        _start("traces", _exporters("traces"))


def _start(signal: _Signal, names: list[str]) -> None:
    try:
        if names:
            _collect([_reader(name) for name in names]) if signal == "metrics" else _trace(names)
    except (ImportError, LookupError) as error:
        _log.warning(
            "No %s are exported: %s. In the clone of Sendoff, try: pip install '.[telemetry]'", signal, error
        )
    except (OSError, ValueError) as error:
        _log.warning("No %s are exported: %s", signal, error)


def _collect(readers: list[MetricReader]) -> None:
    from opentelemetry.metrics import set_meter_provider
    from opentelemetry.sdk.metrics import MeterProvider

    provider = MeterProvider(readers, _resource())
    set_meter_provider(provider)
    if parent_process() is not None:  # a child process skips atexit, which the provider relies on
        Finalize(None, provider.shutdown, exitpriority=0)


def _trace(names: list[str]) -> None:
    from opentelemetry.sdk.trace import TracerProvider
    from opentelemetry.sdk.trace.export import BatchSpanProcessor
    from opentelemetry.trace import set_tracer_provider

    exporters = [_exporter("traces", name) for name in names]
    provider = TracerProvider(resource=_resource())
    for exporter in exporters:
        provider.add_span_processor(BatchSpanProcessor(exporter))
    set_tracer_provider(provider)


def _exporters(signal: _Signal) -> list[str]:
    named = os.environ.get(_EXPORTERS[signal], "").strip()
    if not named:
        return ["otlp"] if _first(_ENDPOINTS[signal]) else []
    return [name for part in named.split(",") if (name := part.strip()) not in ("", "none")]


def _first(variables: tuple[str, ...]) -> str | None:
    return next((value for name in variables if (value := os.environ.get(name))), None)


def _reader(name: str) -> MetricReader:
    if name == "prometheus":
        return _prometheus()
    from opentelemetry.sdk.metrics.export import MetricReader, PeriodicExportingMetricReader

    made = _exporter("metrics", name)
    return made if isinstance(made, MetricReader) else PeriodicExportingMetricReader(made)


def _exporter(signal: _Signal, name: str) -> Any:
    protocol = _first(_PROTOCOLS[signal]) or "http/protobuf"
    of_otlp = {"http/protobuf": "otlp_proto_http", "grpc": "otlp_proto_grpc"}.get(protocol, protocol)
    entry = of_otlp if name == "otlp" else name
    found = next(iter(entry_points(group=f"opentelemetry_{signal}_exporter", name=entry)), None)
    if found is None:
        raise LookupError(f"there is no {signal} exporter {entry}")
    return found.load()()


def _prometheus() -> MetricReader:
    """Serve /metrics on the first free port, counting up from the configured one."""
    from opentelemetry.exporter.prometheus import PrometheusMetricReader
    from prometheus_client import start_http_server

    host = os.environ.get("OTEL_EXPORTER_PROMETHEUS_HOST") or "localhost"
    first = int(os.environ.get("OTEL_EXPORTER_PROMETHEUS_PORT") or 9464)
    for port in range(first, first + _PORTS):
        try:
            start_http_server(port, host)
        except OSError:
            continue
        _log.info("Metrics at http://%s:%d/metrics", host, port)
        return PrometheusMetricReader()
    raise OSError(f"no port is free on {host} from {first} to {first + _PORTS - 1}")


def _resource() -> Resource:
    """Name this process, so that processes on one machine or in one container do not overwrite each other's metrics."""
    from opentelemetry.sdk.resources import OTELResourceDetector, Resource

    given = OTELResourceDetector().detect().attributes
    own = {"service.name": given.get("service.name") or "sendoff"}
    if instance := given.get("service.instance.id"):  # if unset, the SDK makes one for each process
        own["service.instance.id"] = f"{instance}/{os.getpid()}"
    return Resource.create(own)
