"""Export metrics from Sendoff's own processes with the OpenTelemetry SDK, configured by its standard variables.

``OTEL_METRICS_EXPORTER`` names the exporters. Without it, ``OTEL_EXPORTER_OTLP_ENDPOINT`` means ``otlp``. If neither is
set, nothing is imported. The SDK reads all other ``OTEL_*`` variables itself. Inside Airflow, this module is not used,
because Airflow has its own meter provider.
"""

from __future__ import annotations

import logging
import os
from importlib.metadata import entry_points
from multiprocessing import parent_process
from multiprocessing.util import Finalize
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from opentelemetry.sdk.metrics.export import MetricReader
    from opentelemetry.sdk.resources import Resource

_log = logging.getLogger(__name__)

_ENDPOINTS = ("OTEL_EXPORTER_OTLP_METRICS_ENDPOINT", "OTEL_EXPORTER_OTLP_ENDPOINT")
_PROTOCOLS = ("OTEL_EXPORTER_OTLP_METRICS_PROTOCOL", "OTEL_EXPORTER_OTLP_PROTOCOL")
_PORTS = 64  # number of ports to try; more than the receiver's processes on one machine


def start(*, is_scraped: bool = False) -> None:
    """Start to export this process's metrics as the environment says; the last ones are sent when it ends.

    ``is_scraped``: whether the process lives long enough for Prometheus to scrape it; if not, ``prometheus`` is
    ignored. If the export cannot be set up, log a warning and go on, because metrics must not cost post-backs.
    """
    if os.environ.get("OTEL_SDK_DISABLED", "").strip().lower() == "true":
        return
    names = [name for name in _exporters() if is_scraped or name != "prometheus"]
    try:
        readers = [_reader(name) for name in names]
        if readers:
            _collect(readers)
    except (ImportError, LookupError) as error:
        _log.warning(
            "No metrics are exported: %s. In the clone of Sendoff, try: pip install '.[telemetry]'", error
        )
    except (OSError, ValueError) as error:
        _log.warning("No metrics are exported: %s", error)


def _collect(readers: list[MetricReader]) -> None:
    from opentelemetry.metrics import set_meter_provider
    from opentelemetry.sdk.metrics import MeterProvider

    provider = MeterProvider(readers, _resource())
    set_meter_provider(provider)
    if parent_process() is not None:  # a child process skips atexit, which the provider relies on
        Finalize(None, provider.shutdown, exitpriority=0)


def _exporters() -> list[str]:
    named = os.environ.get("OTEL_METRICS_EXPORTER", "").strip()
    if not named:
        return ["otlp"] if any(os.environ.get(name) for name in _ENDPOINTS) else []
    return [name for part in named.split(",") if (name := part.strip()) not in ("", "none")]


def _reader(name: str) -> MetricReader:
    if name == "prometheus":
        return _prometheus()
    from opentelemetry.sdk.metrics.export import MetricReader, PeriodicExportingMetricReader

    entry = _otlp() if name == "otlp" else name
    found = next(iter(entry_points(group="opentelemetry_metrics_exporter", name=entry)), None)
    if found is None:
        raise LookupError(f"there is no metrics exporter {entry}")
    made = found.load()()
    return made if isinstance(made, MetricReader) else PeriodicExportingMetricReader(made)


def _otlp() -> str:
    protocol = next((value for name in _PROTOCOLS if (value := os.environ.get(name))), "http/protobuf")
    return {"http/protobuf": "otlp_proto_http", "grpc": "otlp_proto_grpc"}.get(protocol, protocol)


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
