"""Generate the table of metrics in docs/reference/observability.md from :mod:`sendoff.telemetry.metrics`.

``python -m tools.reference.metrics docs/reference/observability.md`` writes it between its two marks.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable
from pathlib import Path

from sendoff.telemetry.metrics import INSTRUMENTS, Instrument

COMMAND = "python -m tools.reference.metrics docs/reference/observability.md"
BEGIN, END = f"<!-- metrics: begin; {COMMAND} -->", "<!-- metrics: end -->"

_HEAD = (
    "| Metric, and its name in Prometheus | Kind | Unit | Attributes | Meaning |",
    "|---|---|---|---|---|",
)
_UNITS = {"s": "seconds"}
_SUFFIXES = {"counter": ("_total",), "gauge": ("",), "histogram": ("_bucket", "_count", "_sum")}


def prometheus_names(instrument: Instrument) -> list[str]:
    """Return the names of an instrument's series in Prometheus, as OpenTelemetry translates them."""
    base = instrument.name.replace(".", "_")
    if unit := _UNITS.get(instrument.unit):
        base = f"{base}_{unit}"
    return [base + suffix for suffix in _SUFFIXES[instrument.kind]]


def table(instruments: Iterable[Instrument]) -> str:
    """Return the instruments as a Markdown table with one row for each."""
    return "\n".join([*_HEAD, *map(_row, instruments)])


def _row(instrument: Instrument) -> str:
    series = prometheus_names(instrument)
    shown = series[0] if len(series) == 1 else f"{series[0].removesuffix('_bucket')}_…"
    attributes = "; ".join(f"`{name}`: {values}" for name, values in instrument.attributes.items())
    cells = (
        f"`{instrument.name}`<br>`{shown}`",
        instrument.kind,
        instrument.unit.strip("{}").replace("_", "-"),
        attributes or "none",
        instrument.meaning,
    )
    return f"| {' | '.join(cells)} |"


def written(page: str) -> str:
    """Return the page with a new table. Raise ValueError unless it has each mark once, in order."""
    before, _, rest = page.partition(BEGIN)
    _, _, after = rest.partition(END)
    if (page.count(BEGIN), page.count(END), rest.count(END)) != (1, 1, 1):
        raise ValueError(f"the page needs {BEGIN} and {END}, once each and in this order")
    return f"{before}{BEGIN}\n\n{table(INSTRUMENTS)}\n\n{END}{after}"


if __name__ == "__main__":
    file = Path(sys.argv[1]).resolve()
    file.write_text(written(file.read_text(encoding="utf-8")), encoding="utf-8")
