"""Sendoff's own metrics, as OpenTelemetry instruments: numbers only, without identifiers, texts and keys.

Without an OpenTelemetry SDK in the process, every call does nothing. Airflow's meter provider collects the metrics in
Airflow, and the one of :mod:`sendoff.telemetry.exporters` in the receiver. :mod:`tools.reference.metrics` writes the
list of instruments in ``docs/reference/observability.md`` from this module.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from opentelemetry import metrics

from sendoff.states import FeedHealth

_Kind = Literal["counter", "gauge", "histogram"]


@dataclass(frozen=True, slots=True)
class Instrument:
    """One metric; ``attributes`` describes the values of each attribute."""

    kind: _Kind
    name: str
    unit: str
    meaning: str
    attributes: Mapping[str, str]


INSTRUMENTS: list[Instrument] = []
"""Every instrument of Sendoff, in the order of a launch's life."""

_FEED_STATES = [state for state in FeedHealth if state.is_certain]

_meter = metrics.get_meter("sendoff")


def _counter(name: str, unit: str, meaning: str, **attributes: str) -> metrics.Counter:
    INSTRUMENTS.append(Instrument("counter", name, unit, meaning, attributes))
    return _meter.create_counter(name, unit, meaning)


def _gauge(name: str, unit: str, meaning: str, **attributes: str) -> metrics._Gauge:
    INSTRUMENTS.append(Instrument("gauge", name, unit, meaning, attributes))
    return _meter.create_gauge(name, unit, meaning)


def _histogram(
    name: str, unit: str, meaning: str, buckets: tuple[float, ...], **attributes: str
) -> metrics.Histogram:
    INSTRUMENTS.append(Instrument("histogram", name, unit, meaning, attributes))
    return _meter.create_histogram(name, unit, meaning, explicit_bucket_boundaries_advisory=buckets)


_CONNECTION = "the connection's name"
_STATUS = "the HTTP status"
# From the reply of a nearby service to the default time-out of a request, which is 60 seconds.
_REQUEST_SECONDS = (0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0)
# From a commit on a fast disk to the time-out of the receiver, which is 10 seconds.
_COMMIT_SECONDS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0)
_COMMIT_SIZES = (1.0, 2.0, 5.0, 10.0, 20.0, 50.0, 100.0, 200.0, 500.0, 1_000.0)

_audience_rows = _counter(
    "sendoff.audience.rows",
    "{row}",
    "Rows that audience queries returned",
    outcome="`kept`, `null`, `invalid` or `duplicate`",
)
_launches = _gauge(
    "sendoff.launches", "{launch}", "Launches that are not settled", state="`held`, `released` or `paused`"
)
_dispatches = _gauge(
    "sendoff.dispatches",
    "{dispatch}",
    "Dispatches of launches that are not settled",
    connection=_CONNECTION,
    state="`planned`, `in_flight`, `accepted`, `refused`, `in_doubt`, `suppressed` or `written_off`",
)
_requests = _counter(
    "sendoff.requests",
    "{request}",
    "Requests to the messaging service, by outcome",
    connection=_CONNECTION,
    outcome="`accepted`, `refused`, `not_processed` or `in_doubt`",
)
_request_seconds = _histogram(
    "sendoff.request.duration",
    "s",
    "Time from sending a request to reading its reply",
    _REQUEST_SECONDS,
    path="the path of the service's API",
    status=f"{_STATUS}, or `none` if no reply came",
)
_tokens = _counter(
    "sendoff.token.requests", "{request}", "Requests for an access token", outcome="`granted` or `failed`"
)
_doubts = _gauge(
    "sendoff.doubts", "{dispatch}", "Dispatches in doubt that are not settled yet", connection=_CONNECTION
)
_post_backs = _counter("sendoff.post_backs", "{post_back}", "Stored post-backs")
_refused_post_backs = _counter(
    "sendoff.post_backs.refused",
    "{request}",
    "Requests to the receiver that got another answer than 200, without pages to opt out that were only opened",
    status=_STATUS,
)
_available = _gauge(
    "sendoff.receiver.available",
    "{process}",
    "1 while this process of the receiver can store post-backs, else 0",
)
_commit_size = _histogram(
    "sendoff.commit.size", "{post_back}", "Post-backs stored in one commit", _COMMIT_SIZES
)
_commit_seconds = _histogram(
    "sendoff.commit.duration", "s", "Duration of one commit of the receiver", _COMMIT_SECONDS
)
aggregated = _counter("sendoff.post_backs.aggregated", "{post_back}", "Aggregated post-backs").add
"""Count aggregated post-backs."""
aggregation_lag = _gauge(
    "sendoff.aggregation.lag", "s", "Age of the oldest post-back not yet aggregated; 0 if there is none"
).set
"""Set the age of the oldest post-back not yet aggregated, or 0 if there is none."""
report_age = _gauge("sendoff.report.age", "s", "Age of the newest report of any launch").set
"""Set the age of the newest report."""
_feeds = _gauge(
    "sendoff.feeds",
    "{feed}",
    "Feeds of post-backs, by their last certain state",
    state=", ".join(f"`{state}`" for state in _FEED_STATES),
)
observed_at = _gauge("sendoff.observed_at", "s", "Unix time of the last complete count of the ledger").set
"""Set the time at which the gauges of the ledger were last set. They keep their values while it is unavailable."""


def audience_rows(kept: int, dropped: Mapping[str, int]) -> None:
    """Count the rows of one audience query."""
    for outcome, rows in {"kept": kept, **dropped}.items():
        _audience_rows.add(rows, {"outcome": outcome})


def request(connection: str, outcome: str) -> None:
    """Count one request of a dispatch by its outcome."""
    _requests.add(1, {"connection": connection, "outcome": outcome})


def request_seconds(path: str, seconds: float, status: int | None) -> None:
    """Record the duration of one request; ``status`` is None if no reply came."""
    _request_seconds.record(seconds, {"path": path, "status": str(status or "none")})


def token_request(outcome: str) -> None:
    """Count one request for an access token, which was ``granted`` or ``failed``."""
    _tokens.add(1, {"outcome": outcome})


def commit(post_backs: int, seconds: float) -> None:
    """Count the post-backs that one commit of the receiver stored, and record its duration."""
    _post_backs.add(post_backs)
    _commit_size.record(post_backs)
    _commit_seconds.record(seconds)


def refused_post_back(status: int) -> None:
    """Count one request that the receiver did not answer with 200."""
    _refused_post_backs.add(1, {"status": str(status)})


def receiver_available(is_available: bool) -> None:
    """Set whether this process of the receiver can store post-backs."""
    _available.set(int(is_available))


def launches(by_state: Mapping[str, int]) -> None:
    """Set the number of unsettled launches in each state; pass 0 for an empty state."""
    for state, count in by_state.items():
        _launches.set(count, {"state": state})


def dispatches(of: Mapping[tuple[str, str], int]) -> None:
    """Set the number of dispatches by connection and state; pass 0 for an empty state."""
    for (connection, state), count in of.items():
        _dispatches.set(count, {"connection": connection, "state": state})


def doubts(by_connection: Mapping[str, int]) -> None:
    """Set the number of dispatches in doubt for each connection; pass 0 for a connection without any."""
    for connection, count in by_connection.items():
        _doubts.set(count, {"connection": connection})


def feeds(by_state: Mapping[FeedHealth, int]) -> None:
    """Set the number of feeds of post-backs in each state; a missing state counts as 0."""
    for state in _FEED_STATES:
        _feeds.set(by_state.get(state, 0), {"state": state})
