"""Results in the warehouse: a table of launches, one of verdicts, and one of comparisons, shared by all campaigns.

The columns here make the tables, their rows, and the source file of dbt, so that these always agree.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
import sqlalchemy as sa

from sendoff.comparison import Comparison, Difference, comparisons_of
from sendoff.errors import SettingsError
from sendoff.launch import standing_of
from sendoff.ledger import Ledger
from sendoff.report.export import VerdictRows
from sendoff.report.export_table import LONGEST_IDENTIFIER
from sendoff.report.outcomes import stored_outcomes
from sendoff.report.table_writer import NewRows, replace_rows, sql_column, table_name
from sendoff.states import Arm, DispatchState, LaunchState, Stage, Verdict
from sendoff.warehouse import Source

_TEXT, _COUNT, _NUMBER, _TIME = pa.string(), pa.int64(), pa.float64(), pa.timestamp("us", "UTC")
_LONGEST_NAME = 200  # of a variant or a metric in a key


@dataclass(frozen=True, slots=True)
class ResultColumn:
    """A column of a result table.

    ``longest``: the characters of a text in the key. ``values``: the only possible values, if they are limited.
    """

    name: str
    type: pa.DataType
    description: str
    is_key: bool = False
    is_optional: bool = False
    longest: int | None = None
    values: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class ResultTable:
    """A table of results. Its key begins with ``launch_key``."""

    name: str
    description: str
    columns: tuple[ResultColumn, ...]

    @property
    def schema(self) -> pa.Schema:
        """The columns as Arrow's."""
        return pa.schema([pa.field(each.name, each.type, nullable=each.is_optional) for each in self.columns])

    def new_rows(self, schema: str | None, batches: Callable[[], Iterator[pa.RecordBatch]]) -> NewRows:
        """Return new rows of the table in a schema of a warehouse."""
        columns = [
            sql_column(field, each.longest, is_key=each.is_key)
            for field, each in zip(self.schema, self.columns, strict=True)
        ]
        table = sa.Table(self.name, sa.MetaData(), *columns, schema=schema or None)
        return NewRows(table, self.schema, batches)


def _key(name: str, description: str, longest: int = _LONGEST_NAME) -> ResultColumn:
    return ResultColumn(name, _TEXT, description, is_key=True, longest=longest)


def _maybe(name: str, type_: pa.DataType, description: str, values: Sequence[str] = ()) -> ResultColumn:
    return ResultColumn(name, type_, description, is_optional=True, values=tuple(values))


def _of_verdict(verdict: Verdict) -> ResultColumn:
    words = f"Recipients with the verdict {verdict}"
    if verdict.is_observed:
        return _maybe(verdict.value, _COUNT, f"{words}; null if no post-back can show it")
    return ResultColumn(verdict.value, _COUNT, words)


_LAUNCH_KEY = _key("launch_key", "Key of the launch", 64)
_AS_OF = ResultColumn("as_of", _TIME, "Time of the report that the row comes from")

LAUNCHES = ResultTable(
    "sendoff_launches",
    "One row for each launch: its campaign, its period, its state, and the counts of its newest report",
    (
        _LAUNCH_KEY,
        ResultColumn("campaign", _TEXT, "Name of the campaign"),
        ResultColumn("title", _TEXT, "Title of the campaign when the launch was frozen"),
        ResultColumn("period", _TEXT, "Period of the launch, as in reports"),
        ResultColumn("period_start", _TIME, "Start of the period"),
        ResultColumn("period_end", _TIME, "End of the period"),
        _maybe("partition_key", _TEXT, "Airflow's partition of the period, if it has one"),
        ResultColumn(
            "resend", pa.int32(), "0 for the first launch of the period, 1 and up if it was sent again"
        ),
        ResultColumn("state", _TEXT, "Whether the launch may send", values=tuple(LaunchState)),
        ResultColumn("stage", _TEXT, "State of the launch as Airflow's pages show it", values=tuple(Stage)),
        ResultColumn("created_at", _TIME, "Time when the launch was frozen"),
        _maybe(
            "sends_at", _TIME, "Time when the service has sent it at the latest; null if it sends repeatedly"
        ),
        ResultColumn("identified_by", _TEXT, "Column of the audience query that identifies recipients"),
        ResultColumn("query_rows", _COUNT, "Rows that the audience query returned"),
        ResultColumn(
            "audience", _COUNT, "Recipients with the control group: the sum of all verdicts and of erased"
        ),
        ResultColumn("requests", _COUNT, "Requests to the service that were planned"),
        *(_of_verdict(each) for each in Verdict),
        ResultColumn("held_out", _COUNT, "Recipients in the control group, who are part of not_sent"),
        ResultColumn("erased", _COUNT, "Recipients who were erased since, and have no verdict any more"),
        ResultColumn("reached_at_least", _COUNT, "Recipients who were reached for certain"),
        _maybe("reached_at_most", _COUNT, "Recipients who may have been reached; null if that is not known"),
        _AS_OF,
    ),
)

VERDICTS = ResultTable(
    "sendoff_verdicts",
    "One row for each recipient of a launch, with the control group. The rows identify people",
    (
        _LAUNCH_KEY,
        _key("identifier", "Identifier of the recipient, as text", LONGEST_IDENTIFIER),
        ResultColumn("identified_by", _TEXT, "Column of the audience query that the identifier comes from"),
        ResultColumn("verdict", _TEXT, "What became of the message to the recipient", values=tuple(Verdict)),
        _maybe("variant", _TEXT, "Variant that the recipient got; null without variants"),
        _maybe("language", _TEXT, "Language of the request; null if all requests have the same"),
        _maybe("time_zone", _TEXT, "Time zone of the request; null if all requests have the same"),
        _maybe("segment", pa.int32(), "Number of the segment; null in the control group"),
        _maybe("wave", pa.int32(), "Number of the wave; null in the control group"),
        _maybe(
            "hour", pa.int32(), "Hour of the day at which the recipient gets the message; null if at any hour"
        ),
        _maybe("arm", _TEXT, "Why at that hour or at once; null without a known hour", tuple(Arm)),
        _maybe("request", _TEXT, "State of the request; null in the control group", tuple(DispatchState)),
        ResultColumn("held_out", pa.bool_(), "Whether the recipient is in the control group"),
        _AS_OF,
    ),
)

COMPARISONS = ResultTable(
    "sendoff_comparisons",
    "One row for each pair of sides that a report compares, and each metric",
    (
        _LAUNCH_KEY,
        _key("metric", "What is compared, such as engaged"),
        _key("side", "Variant, or the people who were sent to"),
        _key("against", "Variant or control group that the side is compared with"),
        ResultColumn("measure", _TEXT, "What the estimates are", values=("share", "mean")),
        _maybe("side_estimate", _NUMBER, "Share or mean of the side"),
        _maybe("against_estimate", _NUMBER, "Share or mean of the other side"),
        _maybe("estimate", _NUMBER, "Difference: the side minus the other side; null if too few people"),
        _maybe("interval_low", _NUMBER, "Lower end of the difference's confidence interval"),
        _maybe("interval_high", _NUMBER, "Upper end of the difference's confidence interval"),
        ResultColumn("level", _NUMBER, "Confidence level of the interval, however often you look"),
        ResultColumn("conclusion", _TEXT, "What the difference means, in a sentence"),
        ResultColumn("is_final", pa.bool_(), "Whether hardly any results can still arrive"),
        ResultColumn("as_of", _TIME, "Time of the comparison"),
    ),
)

RESULT_TABLES = (LAUNCHES, VERDICTS, COMPARISONS)


def write_results(
    ledger: Ledger, launch_key: str, source: Source, schema: str | None, *, who: str | None = None
) -> dict[str, int]:
    """Replace the rows of a launch in the result tables. Return the number of rows that each table now has of it.

    ``schema``: the schema of the tables; None: the connection's own. ``who``: see :class:`VerdictRows`. One transaction
    writes all three tables, from the newest report. Raise SettingsError if the warehouse cannot be written to, and the
    other errors of :func:`~sendoff.report.table_writer.replace_rows`. Raise NotFoundError if the launch has no report.
    """
    if schema:
        table_name(f"{schema}.{LAUNCHES.name}")
    verdicts = VerdictRows.of(ledger, launch_key, who=who)
    launch, compared = _launch(ledger, verdicts), _compared(ledger, verdicts)
    parts = [
        LAUNCHES.new_rows(schema, lambda: _batch(LAUNCHES, [launch])),
        VERDICTS.new_rows(schema, lambda: _verdicts(verdicts)),
        COMPARISONS.new_rows(schema, lambda: _batch(COMPARISONS, compared)),
    ]
    known = " ".join(name for table in RESULT_TABLES for name in table.schema.names)
    try:
        replace_rows(source, launch_key, parts, known=known)
    except SettingsError as error:
        raise SettingsError(
            f"{str(error).rstrip('.')}. Or name a connection that may write, in report.tables_warehouse"
        ) from None
    return {LAUNCHES.name: 1, VERDICTS.name: verdicts.read.total(), COMPARISONS.name: len(compared)}


def _batch(table: ResultTable, rows: list[dict[str, Any]]) -> Iterator[pa.RecordBatch]:
    yield pa.RecordBatch.from_pylist(rows, schema=table.schema)


def _launch(ledger: Ledger, verdicts: VerdictRows) -> dict[str, Any]:
    figures, launch = verdicts.figures, verdicts.launch
    at_least, at_most = figures.reached
    return {
        "launch_key": launch.launch_key,
        "campaign": launch.campaign,
        "title": launch.title,
        "period": figures.period,
        "period_start": launch.period.start,
        "period_end": launch.period.end,
        "partition_key": launch.period.partition,
        "resend": launch.resend,
        "state": figures.state,
        "stage": standing_of(ledger, launch).stage,
        "created_at": launch.created_at,
        "sends_at": launch.sends_at,
        "identified_by": launch.identified_by,
        "query_rows": figures.rows,
        "audience": figures.audience,
        "requests": figures.segments,
        **{
            each.value: figures.verdicts.get(each, 0) if figures.is_measured(each) else None
            for each in Verdict
        },
        "held_out": figures.not_sent_because.get("held out", 0),
        "erased": figures.erased,
        "reached_at_least": at_least,
        "reached_at_most": at_most,
        "as_of": figures.as_of,
    }


def _verdicts(verdicts: VerdictRows) -> Iterator[pa.RecordBatch]:
    identified_by = verdicts.launch.identified_by
    for batch in verdicts.batches():
        given = {name: batch.column(name) for name in batch.schema.names}
        given["identifier"] = given.pop(identified_by)
        given["identified_by"] = pa.repeat(identified_by, batch.num_rows)
        columns = [given[each.name].cast(each.type) for each in VERDICTS.columns]
        yield pa.RecordBatch.from_arrays(columns, schema=VERDICTS.schema)


def _compared(ledger: Ledger, verdicts: VerdictRows) -> list[dict[str, Any]]:
    figures = verdicts.figures
    found = stored_outcomes(ledger, figures.launch_key)
    found += [(figures.as_of, engaged) for engaged in comparisons_of(ledger, figures)]
    return [
        {"launch_key": figures.launch_key, "as_of": as_of, **_pair(compared, each)}
        for as_of, compared in found
        for each in compared.differences
    ]


def _pair(compared: Comparison, difference: Difference) -> dict[str, Any]:
    estimates = {side.name: side.estimate for side in compared.sides}
    interval = difference.interval
    return {
        "metric": compared.what,
        "side": difference.side,
        "against": difference.against,
        "measure": compared.measure,
        "side_estimate": estimates.get(difference.side),
        "against_estimate": estimates.get(difference.against),
        "estimate": difference.estimate,
        "interval_low": interval.low if interval else None,
        "interval_high": interval.high if interval else None,
        "level": compared.level,
        "conclusion": difference.sentence,
        "is_final": compared.is_final,
    }
