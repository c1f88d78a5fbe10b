"""Export verdicts: one row for each identifier of a launch, to a file or a table of a warehouse.

Rows are built from the compressed sets of the launch, one segment at a time. Even a hundred million people need no
more memory than their sets and a few batches. An export whose rows do not add up to the report is discarded.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet as pq

from sendoff.arguments import check_flags
from sendoff.audience.identifiers import Identifiers, StringIdentifiers, empty
from sendoff.errors import ConflictError, PermanentError, SettingsError, UsageError
from sendoff.figures import LaunchStats
from sendoff.ledger import Decision, LaunchRecord, Ledger, by_request_state
from sendoff.report.export_suppressions import SuppressionRows
from sendoff.report.whole_file import whole_file
from sendoff.states import DecisionKind, Verdict

SUFFIXES = (".parquet", ".csv")
_ROWS_AT_ONCE = 131_072
_SHARED = pa.dictionary(pa.int32(), pa.string())


@dataclass(frozen=True, slots=True)
class VerdictRows:
    """The verdicts of a launch according to its newest report, as rows that are built while they are read.

    The columns are:

    - ``launch_key``
    - the identifier, under its own name, as 64-bit integers or text
    - ``verdict``
    - ``variant``, ``language`` and ``time_zone``: null if the launch's requests do not differ in them
    - ``segment`` and ``wave``: null for people who are in no request
    - ``hour`` and ``arm``: null unless the launch sends at own hours
    - ``request``: the state of the person's request, null if there is none
    - ``held_out``
    - ``as_of``: the time of the report

    ``only``: the verdict of the rows, if all others are left out. ``who``: who gets them, for the audit log; None:
    someone who had them before, as when a table is renewed. ``read``: the number of rows that were read so far,
    by verdict, for showing progress.
    """

    figures: LaunchStats
    launch: LaunchRecord
    schema: pa.Schema
    only: Verdict | None
    who: str | None
    _sets: Mapping[str, Identifiers] = field(repr=False)
    _ledger: Ledger = field(repr=False)
    read: Counter[str] = field(default_factory=Counter)

    @classmethod
    def of(
        cls, ledger: Ledger, launch_key: str, only: Verdict | None = None, *, who: str | None = None
    ) -> VerdictRows:
        """Read the verdicts of a launch as of its newest report. ``only``: for people with this verdict alone.

        Raise NotFoundError if it was never reconciled, ConflictError if others keep reconciling it meanwhile.
        """
        launch = ledger.launches.get(launch_key)
        figures, sets = ledger.verdicts.snapshot(launch_key)
        return cls(figures, launch, _schema(launch), only, who, sets, ledger)

    def batches(self) -> Iterator[pa.RecordBatch]:
        """Record the export in the audit log. Then yield the rows segment by segment, and the holdout at the end.

        There is at least one batch, which may be empty. Raise PermanentError at the end if the rows do not add up to
        the report, and ConflictError if that is because people were erased meanwhile.
        """
        counts = self.read
        counts.clear()
        if self.who:
            detail = {"verdict": self.only, "people": sum(self.expected.values())}
            key, now = self.launch.launch_key, datetime.now(UTC)
            self._ledger.audit_log.record(Decision(key, DecisionKind.EXPORTED, self.who, None, now, detail))
        yield from _in_batches(self._rows(counts), self.schema)
        if any(counts[verdict] != count for verdict, count in self.expected.items()):
            if self._ledger.launches.get(self.launch.launch_key).erased != self.figures.erased:
                raise ConflictError(
                    f"People are being erased from launch {self.launch.launch_key}. Try again in some minutes."
                )
            raise PermanentError(
                f"The verdicts of launch {self.launch.launch_key} DO NOT ADD UP to its report: "
                f"{dict(counts)} instead of {self.expected}. Please report this defect."
            )

    @property
    def expected(self) -> dict[str, int]:
        """The number of rows by verdict, according to the report."""
        return {verdict: n for verdict, n in self.figures.verdicts.items() if self.only in (None, verdict)}

    def _rows(self, counts: Counter[str]) -> Iterator[pa.RecordBatch]:
        wanted = (self.only,) if self.only else tuple(Verdict)
        sets = {verdict: self._sets.get(verdict, empty(self.launch.kind)) for verdict in wanted}
        for people, about in self._parts():
            for verdict, members in sets.items():
                some = _shared(people, members)
                counts[verdict] += len(some)
                for run in some.slices(_ROWS_AT_ONCE):
                    yield self._batch(run, verdict, about)

    def _parts(self) -> Iterator[tuple[Identifiers, dict[str, Any]]]:
        """Yield groups of people, each with the values of the columns that its people share."""
        key, queries = self.launch.launch_key, self._ledger.dispatch_queries
        for (dispatch, people, left_out), part in zip(
            queries.frozen_segments(key), queries.segment_sizes(key), strict=True
        ):
            about = asdict(part.variation) | {
                "segment": dispatch.segment,
                "wave": part.wave,
                "hour": part.hour,
                "arm": part.arm,
                "held_out": False,
            }
            if self.launch.is_chosen_by_service:  # only people in post-backs are known
                for heard_of in self._sets.values():
                    yield heard_of, about | {"request": dispatch.state}
            else:
                for state, some in by_request_state(dispatch.state, people, left_out):
                    yield some, about | {"request": state}
        for held_out in self._ledger.launches.suppressed(key, "holdout").values():
            yield held_out, {"held_out": True}

    def _batch(self, people: Identifiers, verdict: str, about: Mapping[str, Any]) -> pa.RecordBatch:
        same = {
            **about,
            "launch_key": self.launch.launch_key,
            "verdict": verdict,
            "as_of": self.figures.as_of,
        }
        columns = [
            people.column().cast(each.type)
            if each.name == self.launch.identified_by
            else pa.repeat(pa.scalar(same.get(each.name), each.type), len(people))
            for each in self.schema
        ]
        return pa.RecordBatch.from_arrays(columns, schema=self.schema)


def verdict_named(name: str, place: str) -> Verdict:
    """Return the verdict with a name, such as ``in doubt``. Raise UsageError, which names the place, if none has."""
    try:
        return Verdict(name.replace(" ", "_"))
    except ValueError:
        raise UsageError(f"{place}: {name!r} is not a verdict. Use {', '.join(Verdict)}.") from None


def write_file(
    of: VerdictRows | SuppressionRows,
    path: Path,
    *,
    replace: bool = False,
    suffixes: Sequence[str] = SUFFIXES,
) -> int:
    """Write rows to a file and return their number. The suffix chooses Parquet or CSV, unless ``suffixes`` has one.

    The file identifies people, so its mode is 0600. It appears only when it is complete. Raise UsageError for any
    other suffix, and if ``replace`` is not a boolean. Raise SettingsError if the file exists and ``replace`` is false,
    or if it cannot be written.
    """
    check_flags(replace=replace)
    if path.suffix not in suffixes:
        raise UsageError(f"{path.name}: the file name must end in {' or '.join(suffixes)}.")
    if path.exists() and not replace:
        raise SettingsError(f"{path} already exists. To replace it, add --force, or replace=True in Python.")
    rows = 0
    with whole_file(path) as file, _writer(file, path.suffix, of.schema) as writer:
        for batch in of.batches():
            writer.write_batch(batch)
            rows += batch.num_rows
    return rows


def _writer(file: Any, suffix: str, schema: pa.Schema) -> Any:
    if suffix == ".parquet":
        return pq.ParquetWriter(file, schema, compression="zstd")
    return pyarrow.csv.CSVWriter(file, schema)


def _schema(launch: LaunchRecord) -> pa.Schema:
    return pa.schema(
        [
            pa.field("launch_key", _SHARED, nullable=False),
            pa.field(
                launch.identified_by, pa.int64() if launch.kind == "integer" else pa.string(), nullable=False
            ),
            pa.field("verdict", _SHARED, nullable=False),
            *(pa.field(name, _SHARED) for name in ("variant", "language", "time_zone")),
            *(pa.field(name, pa.int32()) for name in ("segment", "wave", "hour")),
            pa.field("arm", _SHARED),
            pa.field("request", _SHARED),
            pa.field("held_out", pa.bool_(), nullable=False),
            pa.field("as_of", pa.timestamp("us", "UTC"), nullable=False),
        ]
    )


def _in_batches(rows: Iterator[pa.RecordBatch], schema: pa.Schema) -> Iterator[pa.RecordBatch]:
    """Join small batches into larger ones, each the size of a row group in a file."""
    waiting: list[pa.RecordBatch] = []
    held, is_first = 0, True
    for batch in rows:
        waiting.append(batch)
        held += batch.num_rows
        if held >= _ROWS_AT_ONCE:
            yield from _joined(waiting, schema)
            waiting, held, is_first = [], 0, False
    if waiting or is_first:
        yield from _joined(waiting, schema)


def _joined(batches: list[pa.RecordBatch], schema: pa.Schema) -> Iterator[pa.RecordBatch]:
    table = pa.Table.from_batches(batches, schema).unify_dictionaries().combine_chunks()
    yield from table.to_batches(max_chunksize=_ROWS_AT_ONCE) or [pa.RecordBatch.from_pylist([], schema)]


def _shared(people: Identifiers, members: Identifiers) -> Identifiers:
    """Return the intersection. For text, look only at the range of ``members`` that ``people`` span."""
    if isinstance(people, StringIdentifiers) and isinstance(members, StringIdentifiers) and len(people):
        column = people.column()
        first, last = column[0].as_py(), column[-1].as_py()
        run = _run(members.column(), first, last)
        return people & StringIdentifiers(run)
    return people & members


def _run(column: pa.LargeStringArray, first: str, last: str) -> pa.LargeStringArray:
    def text(scalar: pa.LargeStringScalar) -> str:
        return str(scalar.as_py())

    start = bisect_left(column, first, key=text)
    return column.slice(start, bisect_right(column, last, lo=start, key=text) - start)
