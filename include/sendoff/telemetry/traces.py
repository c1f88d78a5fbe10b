"""One OpenTelemetry trace for each launch, from its query to its report: keys and counts, no identifiers and texts.

Inside a span, such as Airflow's span of a task, the spans of a launch are its children. Elsewhere, the key of the
launch is the ID of its trace, so that the commands that prepare, send and report a launch add to the same trace.
Without an OpenTelemetry SDK in the process, every call does nothing.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Literal, Protocol

from opentelemetry import trace
from opentelemetry.context import Context
from opentelemetry.trace import NonRecordingSpan, SpanContext, Status, StatusCode, TraceFlags

SpanName = Literal["prepare", "query", "freeze", "dispatch", "reconcile"]

_KEY = re.compile("[0-9a-f]{32}")
_tracer = trace.get_tracer("sendoff")


class Count(Protocol):
    """Add counts to a span."""

    def __call__(self, **counts: int) -> None:
        """Add counts."""


@contextmanager
def span(step: SpanName, launch_key: str) -> Iterator[Count]:
    """Record a step of a launch as a span, and yield a function that adds counts to it.

    If the block raises, the span has the type of the error. Messages of errors may come from a database, so they are
    left out.
    """
    with _tracer.start_as_current_span(
        f"sendoff.{step}",
        _parent(launch_key),
        attributes={"sendoff.launch_key": launch_key},
        record_exception=False,
        set_status_on_exception=False,
    ) as current:
        try:
            yield lambda **counts: current.set_attributes(
                {f"sendoff.{name}": count for name, count in counts.items()}
            )
        except BaseException as error:
            current.set_status(Status(StatusCode.ERROR, type(error).__name__))
            raise


def _parent(launch_key: str) -> Context | None:
    """Return the start of a launch's own trace. Return None inside another span, or if the text is not a key."""
    if trace.get_current_span().get_span_context().is_valid or not _KEY.fullmatch(launch_key):
        return None
    start = SpanContext(
        trace_id=int(launch_key, 16),
        span_id=int(launch_key[:16], 16),
        is_remote=True,
        trace_flags=TraceFlags(TraceFlags.SAMPLED),
    )
    return trace.set_span_in_context(NonRecordingSpan(start), Context())
