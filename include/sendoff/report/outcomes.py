"""The outcome query of a campaign: compare what the people of each variant and of the control group did afterwards.

``outcome.sql`` in the campaign's folder returns the same identifier column as the audience query. Without another
column, everyone listed counts as converted. With a column ``value``, each person counts with their number, and people
who are not listed count with 0. The parameters are ``:period_start``, ``:period_end``, ``:partition`` and ``:sent_at``.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from sendoff import warehouse
from sendoff.audience.identifiers import Identifiers, Kind, RowCounter, StringIdentifiers, builder, union
from sendoff.errors import AudienceError, QueryError
from sendoff.ledger import Launch, Ledger
from sendoff.report.comparison import CONTROL_GROUP
from sendoff.report.statistics import Comparison, Values, compared_means, compared_shares
from sendoff.states import DecisionKind, Verdict
from sendoff.warehouse import checked_text, is_text, sql_type_name, value_type

SENT_TO = "sent to"
"""The name of the side that gets the message, for launches without variants."""

VALUE = "value"
FILE = "outcome.sql"
_OUTCOME = "converted"  # its name in comparisons

_ROWS_AT_ONCE = 1_000_000
_AGREED = (DecisionKind.APPROVED, DecisionKind.RELEASED)


def measure_outcome(ledger: Ledger, launch_key: str, source: warehouse.Source, sql: str) -> Comparison:
    """Run the outcome query and compare the variants and the holdout of a launch by its result.

    Each person counts in the side that chance assigned them to, whether they were sent to or not. Raise QueryError
    if the query fails or returns other columns, AudienceError if its identifiers are of another type than the launch's,
    NotFoundError for an unknown launch.
    """
    launch = ledger.launches.get(launch_key)
    sides = sides_of(ledger, launch)
    if launch.is_chosen_by_service or len(sides) < 2:
        alone = "the service chose its people" if launch.is_chosen_by_service else "it has only one side"
        return Comparison(
            _OUTCOME,
            "share",
            (),
            remarks=(f"There is nothing to compare in this launch: {alone}, and there is no control group.",),
        )
    parameters = {
        "period_start": launch.period.start,
        "period_end": launch.period.end,
        "partition": launch.period.partition,
        "sent_at": sent_at(ledger, launch),
    }
    intake = _OutcomeReader(launch.identified_by, launch.kind, sides)
    try:
        with warehouse.read(source, sql, parameters=parameters, batch_rows=_ROWS_AT_ONCE) as batches:
            for batch in batches:
                intake.add(batch)
    except (AudienceError, QueryError) as error:
        where = f"campaign {launch.campaign}: " + ("" if str(error).startswith(FILE) else f"{FILE}: ")
        raise type(error)(f"{where}{error}") from None
    return _compared(sides, intake, _remarks(ledger, launch_key, sides), launch.noun)


def store_outcome(ledger: Ledger, launch_key: str, compared: Comparison, now: datetime | None = None) -> None:
    """Keep a comparison in the ledger for the pages, in place of an earlier one of the same outcome."""
    if compared.sides:
        ledger.comparisons.store(launch_key, compared.what, compared.to_json(), now or datetime.now(UTC))


def stored_outcomes(ledger: Ledger, launch_key: str) -> list[tuple[datetime, Comparison]]:
    """Return the kept comparisons of a launch, each with the time when it was made."""
    return [
        (each.compared_at, Comparison.from_json(each.result))
        for each in ledger.comparisons.of_launch(launch_key)
    ]


def sent_at(ledger: Ledger, launch: Launch) -> datetime:
    """Return the earliest time the message can have arrived: the latest of creation, approval and planned sending."""
    agreed = [
        each.decided_at for each in ledger.audit_log.of_launch(launch.launch_key) if each.kind in _AGREED
    ]
    return max([launch.created_at, *agreed, *([launch.sends_at] if launch.sends_at else [])])


def sides_of(ledger: Ledger, launch: Launch) -> dict[str, Identifiers]:
    """Return the people of each variant, or of all who are sent to if there are no variants, and the holdout.

    Each person is in the side that chance assigned them to, whatever happened to their request.
    """
    variants = ledger.dispatch_queries.variants(launch.launch_key)
    found: defaultdict[str, list[Identifiers]] = defaultdict(list)
    for dispatch, people in ledger.dispatch_queries.segments(launch.launch_key):
        found[variants.get(dispatch.segment, SENT_TO)].append(people)
    sides = {name: union(launch.kind, parts) for name, parts in sorted(found.items())}
    held_out = ledger.launches.suppressed(launch.launch_key, "holdout").get("holdout")
    return sides | ({CONTROL_GROUP: held_out} if held_out is not None and len(held_out) else {})


@dataclass(slots=True)
class _OutcomeReader:
    """The rows read so far: the people they list, and their values by side."""

    identified_by: str
    kind: Kind
    sides: Mapping[str, Identifiers]
    counter: RowCounter = field(init=False)
    values: dict[str, Values] | None = None

    def __post_init__(self) -> None:
        self.counter = RowCounter(self.kind)

    def add(self, batch: pa.RecordBatch) -> None:
        names = [name.lower() for name in batch.schema.names]
        if sorted(names) not in ([self.identified_by], sorted([self.identified_by, VALUE])):
            raise QueryError(
                f"{FILE}: the query returns the columns {', '.join(names)}. Return "
                f"{self.identified_by}, as in audience.sql, and optionally {VALUE}."
            )
        column = batch.column(names.index(self.identified_by))
        people = _typed(column, self.kind, self.identified_by)
        if VALUE not in names:
            self.counter.add(people)
            return
        numbers = _numbers(batch.column(names.index(VALUE)))
        is_known = pc.and_(people.is_valid(), numbers.is_valid())
        self._add_values(people.filter(is_known), numbers.filter(is_known))

    def _add_values(self, people: pa.Array, numbers: pa.DoubleArray) -> None:
        self.values = self.values or dict.fromkeys(self.sides, Values())
        usable = self.counter.add(people)
        if usable is not None:
            people, numbers = people.filter(usable), numbers.filter(usable)
        if self.counter.duplicate:
            raise QueryError(
                f"{FILE}: the query returns several rows for one person. Return one row per person, "
                f"for example with GROUP BY {self.identified_by}."
            )
        some = builder(self.kind)
        some.add(people)
        for name, side in self.sides.items():
            inside = some.identifiers() & side
            if len(inside):
                places = pc.index_in(_column(inside), value_set=people)
                self.values[name] = self.values[name].and_(_values(numbers.take(places).to_numpy()))


def _compared(
    sides: Mapping[str, Identifiers],
    intake: _OutcomeReader,
    remarks: tuple[str, ...],
    noun: tuple[str, str],
) -> Comparison:
    control = CONTROL_GROUP if CONTROL_GROUP in sides else ""
    if intake.values is None:
        listed = intake.counter.identifiers()
        counts = [(name, len(people & listed), len(people)) for name, people in sides.items()]
        found = compared_shares(_OUTCOME, counts, control=control, noun=noun)
    else:
        values = [(name, intake.values[name], len(people)) for name, people in sides.items()]
        found = compared_means(f"{VALUE} of {_OUTCOME}", values, control=control, noun=noun)
    inside = sum(side.count or 0 for side in found.sides)
    rows = intake.counter.rows
    seen = (
        f"{FILE} returned {rows:,} rows: {inside:,} {noun[1]} of this launch"
        f" and {len(intake.counter.identifiers()) - inside:,} others, which are ignored."
    )
    return replace(found, remarks=(seen, *found.remarks, *remarks))


def _remarks(ledger: Ledger, launch_key: str, sides: Mapping[str, Identifiers]) -> tuple[str, ...]:
    not_sent = ledger.verdicts.sets(launch_key).get(Verdict.NOT_SENT)
    counts = {
        name: len(people & not_sent) if not_sent is not None else 0
        for name, people in sides.items()
        if name != CONTROL_GROUP
    }
    said = [
        f"{count:,} of {name} were not sent to. They still count there, because chance assigned them to it."
        for name, count in counts.items()
        if count
    ]
    if CONTROL_GROUP not in sides:
        said.append(
            "There is no control group, so this compares the variants but does not measure the effect of the launch."
        )
    return tuple(said)


def _typed(column: pa.Array, kind: Kind, name: str) -> pa.Array:
    """Return an identifier column in the type that sets of this kind are built with."""
    type_ = value_type(column)
    if column.null_count == len(column):
        return pa.nulls(len(column), pa.uint64() if kind == "integer" else pa.large_string())
    if kind == "integer" and pa.types.is_integer(type_):
        return column.cast(type_) if type_ == pa.uint64() else column.cast(pa.int64()).view(pa.uint64())
    if kind == "string" and (is_text(type_) or pa.types.is_integer(type_)):
        return checked_text(column.cast(pa.large_string()), name)
    wanted = "whole numbers" if kind == "integer" else "text"
    raise AudienceError(
        f"{FILE}: column {name} holds {sql_type_name(type_)}, but the launch has {wanted}. Return {wanted}."
    )


def _numbers(column: pa.Array) -> pa.DoubleArray:
    type_ = value_type(column)
    is_number = any(
        is_one(type_) for is_one in (pa.types.is_integer, pa.types.is_floating, pa.types.is_decimal, pa.types.is_null)
    )  # fmt: skip
    if not is_number:
        raise QueryError(f"{FILE}: column {VALUE} holds {sql_type_name(type_)}. Return numbers.")
    numbers = column.cast(pa.float64(), safe=False)
    if not pc.all(pc.is_finite(numbers), skip_nulls=True, min_count=0).as_py():
        raise QueryError(
            f"{FILE}: column {VALUE} holds a number that is not finite. Return finite numbers or null."
        )
    return numbers


def _column(people: Identifiers) -> pa.Array:
    return people.column() if isinstance(people, StringIdentifiers) else pa.array(people.values())


def _values(numbers: np.ndarray[tuple[int], np.dtype[np.float64]]) -> Values:
    mean = float(numbers.mean())
    return Values(len(numbers), mean, float(np.square(numbers - mean).sum()))
