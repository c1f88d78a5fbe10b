"""Generate the table of metrics in docs/reference/observability.md from :mod:`sendoff.telemetry.metrics`."""

from __future__ import annotations

from sendoff.telemetry.metrics import INSTRUMENTS, Instrument
from tools.reference.markdown import table

_HEAD = ("Metric, and its name in Prometheus", "Kind", "Unit", "Attributes", "Meaning")
_UNITS = {"s": "seconds"}
_SUFFIXES = {"counter": ("_total",), "gauge": ("",), "histogram": ("_bucket", "_count", "_sum")}


def prometheus_names(instrument: Instrument) -> list[str]:
    """Return the names of an instrument's series in Prometheus, as OpenTelemetry translates them."""
    base = instrument.name.replace(".", "_")
    if unit := _UNITS.get(instrument.unit):
        base = f"{base}_{unit}"
    return [base + suffix for suffix in _SUFFIXES[instrument.kind]]


def _row(instrument: Instrument) -> tuple[str, ...]:
    series = prometheus_names(instrument)
    shown = series[0] if len(series) == 1 else f"{series[0].removesuffix('_bucket')}_…"
    attributes = "; ".join(f"`{name}`: {values}" for name, values in instrument.attributes.items())
    return (
        f"`{instrument.name}`<br>`{shown}`",
        instrument.kind,
        instrument.unit.strip("{}").replace("_", "-"),
        attributes or "none",
        instrument.meaning,
    )


def block() -> str:
    """Return the table."""
    return table(_HEAD, map(_row, INSTRUMENTS))
