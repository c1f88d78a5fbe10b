"""The outcome query of a campaign: what people did afterwards, as the warehouse knows it, by variant and holdout.

``outcome.sql`` in the campaign's folder gives one column that names people as the audience query does. With nothing
else, whoever is listed converted. With a column ``value``, each person's number counts, and those who are not listed
count with 0. Its parameters are ``:period_start``, ``:period_end``, ``:partition`` and ``:sent_at``.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from sendoff import warehouse
from sendoff.audience.identifiers import Identifiers, Kind, RowCounter, StringIdentifiers, builder, union
from sendoff.errors import AudienceError, QueryError
from sendoff.ledger import Launch, Ledger
from sendoff.report.comparison import HELD_OUT
from sendoff.report.statistics import Comparison, Values, compared_means, compared_shares
from sendoff.states import Verdict
from sendoff.warehouse import checked_text, is_text, sql_type_name, value_type

SENT_TO = "sent to"
"""The name of all who are not held out, where there are no variants."""

VALUE = "value"
FILE = "outcome.sql"

_ROWS_AT_ONCE = 1_000_000
_AGREED = ("approved", "released")


def measure_outcome(
    ledger: Ledger, launch_key: str, source: warehouse.Source, sql: str, *, what: str = "converted"
) -> Comparison:
    """Ask the warehouse what the people of a launch did, and compare its variants and its holdout by that.

    Each person counts in the side that chance put them in, sent to or not. ``what``: the outcome's name in the
    comparison. Raises QueryError for a query that fails or gives other columns, AudienceError where its people cannot
    be those of the launch; and NotFoundError.
    """
    launch = ledger.launches.get(launch_key)
    sides = sides_of(ledger, launch)
    if launch.is_chosen_by_service or len(sides) < 2:
        alone = "the service chose its people" if launch.is_chosen_by_service else "it has one side alone"
        return Comparison(
            what,
            "share",
            (),
            remarks=(f"Nothing can be compared in this launch: {alone}, and nobody is held out.",),
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
    return _compared(what, sides, intake, _remarks(ledger, launch_key, sides))


def sent_at(ledger: Ledger, launch: Launch) -> datetime:
    """Give the moment after which somebody may have got the message: when it was made, agreed to, and to be sent."""
    agreed = [
        each.decided_at for each in ledger.audit_log.of_launch(launch.launch_key) if each.kind in _AGREED
    ]
    return max([launch.created_at, *agreed, *([launch.sends_at] if launch.sends_at else [])])


def sides_of(ledger: Ledger, launch: Launch) -> dict[str, Identifiers]:
    """Give the people of each variant, or of all that are sent to where there are none; and the holdout.

    Each is in the side that chance put them in, whatever became of their request.
    """
    variants = ledger.dispatch_queries.variants(launch.launch_key)
    found: defaultdict[str, list[Identifiers]] = defaultdict(list)
    for dispatch, people in ledger.dispatch_queries.segments(launch.launch_key):
        found[variants.get(dispatch.segment, SENT_TO)].append(people)
    sides = {name: union(launch.kind, parts) for name, parts in sorted(found.items())}
    held_out = ledger.launches.suppressed(launch.launch_key, "holdout").get("holdout")
    return sides | ({HELD_OUT: held_out} if held_out is not None and len(held_out) else {})


@dataclass(slots=True)
class _OutcomeReader:
    """The rows taken so far: whom they list, and their values by side."""

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
                f"{FILE}: found the columns {', '.join(names)}; allowed: {self.identified_by}, as in audience.sql, and "
                f"{VALUE} or nothing else"
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
                f"{FILE}: found a person in several rows; allowed: one row with a value for each, as GROUP BY "
                f"{self.identified_by} gives"
            )
        some = builder(self.kind)
        some.add(people)
        for name, side in self.sides.items():
            inside = some.identifiers() & side
            if len(inside):
                places = pc.index_in(_column(inside), value_set=people)
                self.values[name] = self.values[name].and_(_values(numbers.take(places).to_numpy()))


def _compared(
    what: str, sides: Mapping[str, Identifiers], intake: _OutcomeReader, remarks: tuple[str, ...]
) -> Comparison:
    control = HELD_OUT if HELD_OUT in sides else ""
    if intake.values is None:
        listed = intake.counter.identifiers()
        counts = [(name, len(people & listed), len(people)) for name, people in sides.items()]
        found = compared_shares(what, counts, control=control)
    else:
        values = [(name, intake.values[name], len(people)) for name, people in sides.items()]
        found = compared_means(f"{VALUE} of {what}", values, control=control)
    inside = sum(side.count or 0 for side in found.sides)
    rows = intake.counter.rows
    seen = (
        f"{FILE} gave {rows:,} rows: {inside:,} people of this launch"
        f" and {len(intake.counter.identifiers()) - inside:,} others, who are passed over."
    )
    return replace(found, remarks=(seen, *found.remarks, *remarks))


def _remarks(ledger: Ledger, launch_key: str, sides: Mapping[str, Identifiers]) -> tuple[str, ...]:
    not_sent = ledger.verdicts.sets(launch_key).get(Verdict.NOT_SENT)
    counts = {
        name: len(people & not_sent) if not_sent is not None else 0
        for name, people in sides.items()
        if name != HELD_OUT
    }
    said = [
        f"{count:,} of {name} were not sent to. They count in it all the same: chance put them there."
        for name, count in counts.items()
        if count
    ]
    if HELD_OUT not in sides:
        said.append(
            "Nobody is held out: this compares the variants, and does not say what the launch as a whole did."
        )
    return tuple(said)


def _typed(column: pa.Array, kind: Kind, name: str) -> pa.Array:
    """Give a column of people as sets of their kind are gathered from."""
    type_ = value_type(column)
    if column.null_count == len(column):
        return pa.nulls(len(column), pa.uint64() if kind == "integer" else pa.large_string())
    if kind == "integer" and pa.types.is_integer(type_):
        return column.cast(type_) if type_ == pa.uint64() else column.cast(pa.int64()).view(pa.uint64())
    if kind == "string" and (is_text(type_) or pa.types.is_integer(type_)):
        return checked_text(column.cast(pa.large_string()), name)
    wanted = "whole numbers" if kind == "integer" else "text"
    raise AudienceError(
        f"{FILE}: column {name} holds {sql_type_name(type_)}; allowed: {wanted}, as in the launch"
    )


def _numbers(column: pa.Array) -> pa.DoubleArray:
    type_ = value_type(column)
    is_number = any(
        is_one(type_) for is_one in (pa.types.is_integer, pa.types.is_floating, pa.types.is_decimal, pa.types.is_null)
    )  # fmt: skip
    if not is_number:
        raise QueryError(f"{FILE}: column {VALUE} holds {sql_type_name(type_)}; allowed: numbers")
    numbers = column.cast(pa.float64(), safe=False)
    if not pc.all(pc.is_finite(numbers), skip_nulls=True, min_count=0).as_py():
        raise QueryError(
            f"{FILE}: column {VALUE} holds a number that is not finite; allowed: numbers, and null"
        )
    return numbers


def _column(people: Identifiers) -> pa.Array:
    return people.column() if isinstance(people, StringIdentifiers) else pa.array(people.values())


def _values(numbers: np.ndarray[tuple[int], np.dtype[np.float64]]) -> Values:
    mean = float(numbers.mean())
    return Values(len(numbers), mean, float(np.square(numbers - mean).sum()))
