"""The outcome query of a campaign: compare what the people of each variant and of the control group did afterwards.

``outcome.sql`` in the campaign's folder returns the same identifier column as the audience query. Without another
column, everyone listed counts as converted. With a column ``value``, each person counts with their number, and people
who are not listed count with 0. Being listed with 0 is the same. The parameters are ``:period_start``,
``:period_end``, ``:partition`` and ``:sent_at``.

``before.sql`` beside it is optional, and adjusts the means of ``value``. It returns what the people did before the
launch: the identifier column and a column ``value``. People who are not listed count with 0 there too.
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
from sendoff.audience import typed_column
from sendoff.audience.identifiers import (
    Identifiers,
    Kind,
    RowCounter,
    StringIdentifiers,
    builder,
    trimmed,
    union,
)
from sendoff.campaign import Campaign
from sendoff.comparison import (
    BEFORE,
    NOTICEABLE,
    Asked,
    Comparison,
    SideOutcome,
    Values,
    asked_about,
    compared_adjusted,
    compared_means,
    compared_shares,
    mismatch_of_assigned,
    without_mismatch,
)
from sendoff.errors import AudienceError, QueryError
from sendoff.figures import CONTROL_GROUP, counted
from sendoff.launch import send_times_of
from sendoff.ledger import LaunchRecord, Ledger
from sendoff.states import DecisionKind, Verdict
from sendoff.warehouse import sql_type_name, value_type

SENT_TO = "sent to"
"""The name of the side that gets the message, for launches without variants."""

VALUE = "value"
FILE = "outcome.sql"
_OUTCOME = "converted"  # its name in comparisons
_MEAN = f"{VALUE} of {_OUTCOME}"

_ROWS_AT_ONCE = 1_000_000
_PEOPLE_AT_ONCE = 1 << 20
_AGREED = (DecisionKind.APPROVED, DecisionKind.RELEASED)


_Numbers = np.ndarray[tuple[int], np.dtype[np.float64]]


def measure_outcome(
    ledger: Ledger,
    launch_key: str,
    source: warehouse.Source,
    sql: str,
    before_sql: str | None = None,
    detect: float = NOTICEABLE,
) -> Comparison:
    """Run the outcome query and compare the variants and the holdout of a launch by its result.

    Each person counts in the side that chance assigned them to, whether they were sent to or not. ``before_sql``: the
    query of what they did before the launch, which adjusts means; people without a row in it count with 0. ``detect``:
    the relative difference that the outlook is about.

    Raise QueryError if a query fails or returns other columns, AudienceError if its identifiers are of another type
    than the launch's, NotFoundError for an unknown launch.
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
    parameters = {**launch.period.parameters, "sent_at": sent_at(ledger, launch)}
    asked = asked_about(launch, detect, CONTROL_GROUP)
    outcome = _Rows(FILE, launch, sides, kept=None if before_sql is None else {})
    outcome.read(source, sql, parameters)
    seen = [outcome.seen()]
    if before_sql is not None and outcome.values is not None:
        before = _Rows(BEFORE, launch, sides, outcome=outcome)
        before.read(source, before_sql, parameters)
        seen.append(before.seen())
        found = _adjusted(outcome, before, asked)
    else:
        found = _compared(outcome, asked)
        if before_sql is not None:
            seen.append(
                f"{BEFORE} is not used, because it adjusts means, and {FILE} returns no column {VALUE}. Return 1 AS "
                f"{VALUE} to compare adjusted means instead of shares."
            )
    people = {name: len(side) for name, side in sides.items()}
    campaign = Campaign.frozen(launch.definition)
    mismatch = mismatch_of_assigned(campaign, people, launch.dropped, launch.noun[1])
    remarks = (*seen, *found.remarks, *_remarks(ledger, launch_key, sides))
    found = replace(found, remarks=remarks, is_final=False)  # no one knows when outcomes end
    return without_mismatch(found, mismatch)


def store_outcome(ledger: Ledger, launch_key: str, compared: Comparison, now: datetime | None = None) -> None:
    """Keep a comparison in the ledger for the pages, in place of the earlier one of the launch."""
    if compared.sides:
        ledger.comparisons.store(launch_key, compared.what, compared.to_json(), now or datetime.now(UTC))


def stored_outcomes(ledger: Ledger, launch_key: str) -> list[tuple[datetime, Comparison]]:
    """Return the kept comparisons of a launch, each with the time when it was made."""
    return [
        (each.compared_at, Comparison.from_json(each.result))
        for each in ledger.comparisons.of_launch(launch_key)
    ]


def sent_at(ledger: Ledger, launch: LaunchRecord) -> datetime:
    """Return the earliest time the message can have arrived: the latest of creation, approval and first send time.

    Releases after the first message do not count, and neither does the choice of a winner.
    """
    first = ledger.dispatch_queries.first_sent(launch.launch_key)
    decisions = [each for each in ledger.audit_log.of_launch(launch.launch_key) if each.kind in _AGREED]
    agreed = [each.decided_at for each in decisions if first is None or each.decided_at <= first]
    variations = (part.variation for part in ledger.dispatch_queries.segment_sizes(launch.launch_key))
    times = send_times_of(Campaign.frozen(launch.definition), variations, launch.period.end)
    planned = times.first_at or launch.sends_at
    return max([launch.created_at, *agreed, *([planned] if planned else [])])


def sides_of(ledger: Ledger, launch: LaunchRecord) -> dict[str, Identifiers]:
    """Return the people of each variant, or of all who are sent to if there are no variants, and the holdout.

    Each person is in the side that chance assigned them to, whatever happened to their request. The people who get the
    winner of a test share are on no side.
    """
    variants = ledger.dispatch_queries.variants(launch.launch_key)
    has_rest = Campaign.frozen(launch.definition).decide is not None
    found: defaultdict[str, list[Identifiers]] = defaultdict(list)
    for dispatch, people, _ in ledger.dispatch_queries.frozen_segments(launch.launch_key):
        if dispatch.segment in variants or not has_rest:
            found[variants.get(dispatch.segment, SENT_TO)].append(people)
    sides = {name: union(launch.kind, parts) for name, parts in sorted(found.items())}
    held_out = ledger.launches.suppressed(launch.launch_key, "holdout").get("holdout")
    return sides | ({CONTROL_GROUP: held_out} if held_out is not None and len(held_out) else {})


@dataclass(slots=True)
class _Rows:
    """The rows of a query read so far: the people they list, and their values by side, without those that are 0.

    ``kept``: the value of each person of a side, in the order of their identifiers; None unless another query needs
    them. ``outcome``: for what people did before, the rows of what they did afterwards. ``products``: by side, the
    sum of both values of each person, multiplied, the later one less the mean of its side.
    """

    file: str
    launch: LaunchRecord
    sides: Mapping[str, Identifiers]
    kept: dict[str, _Numbers] | None = None
    outcome: _Rows | None = None
    products: defaultdict[str, float] = field(default_factory=lambda: defaultdict(float))
    counter: RowCounter = field(init=False)
    incomplete: int = 0  # rows without an identifier or a value
    values: dict[str, Values] | None = None

    def __post_init__(self) -> None:
        self.counter = RowCounter(self.launch.kind)

    def read(self, source: warehouse.Source, sql: str, parameters: Mapping[str, warehouse.Parameter]) -> None:
        """Read all rows of the query. Errors name the campaign and the file."""
        try:
            with warehouse.read(source, sql, parameters=parameters, batch_rows=_ROWS_AT_ONCE) as batches:
                for batch in batches:
                    self._add(batch)
        except (AudienceError, QueryError) as error:
            raise type(error)(f"campaign {self.launch.campaign}: {self.file}: {error}") from None

    def _add(self, batch: pa.RecordBatch) -> None:
        names, key = [name.lower() for name in batch.schema.names], self.launch.identified_by
        is_optional = self.outcome is None
        if sorted(names) != sorted([key, VALUE]) and not (is_optional and names == [key]):
            raise QueryError(
                f"the query returns the columns {', '.join(names)}. Return {key}, as audience.sql did for this "
                f"launch, and {'optionally ' if is_optional else ''}{VALUE}."
            )
        people = _typed(batch.column(names.index(key)), self.launch.kind, key)
        if VALUE not in names:
            self.counter.add(people)
            return
        numbers = _numbers(batch.column(names.index(VALUE)))
        is_known = pc.and_(people.is_valid(), numbers.is_valid())
        self.incomplete += len(is_known) - is_known.true_count
        self._add_values(people.filter(is_known), numbers.filter(is_known))

    def _add_values(self, people: pa.Array, numbers: pa.DoubleArray) -> None:
        self.values = self.values or dict.fromkeys(self.sides, Values())
        usable = self.counter.add(people)
        if usable is not None:
            people, numbers = people.filter(usable), numbers.filter(usable)
        if self.counter.duplicate:
            raise QueryError(
                "the query returns several rows for one person. Return one row per person, "
                f"for example with GROUP BY {self.launch.identified_by}."
            )
        some = builder(self.launch.kind)
        some.add(people)
        for name, side in self.sides.items():
            inside = some.identifiers() & side
            if len(inside):
                places = pc.index_in(inside.column(), value_set=people)
                found = numbers.take(places).to_numpy()
                self.values[name] = self.values[name].and_(_values(found[found != 0]))
                if self.kept is not None:
                    self.kept.setdefault(name, np.zeros(len(side)))[_places(inside, side)] = found
                if self.outcome:
                    self.products[name] += self.outcome.product(name, inside, found)

    def product(self, name: str, people: Identifiers, numbers: _Numbers) -> float:
        """Return the sum of numbers of some people of a side, each multiplied by the value less the side's mean."""
        if self.kept is None or self.values is None or name not in self.kept:
            return 0.0
        side = self.sides[name]
        mean = self.values[name].with_zeros(len(side)).mean
        return float(np.dot(numbers, self.kept[name][_places(people, side)] - mean))

    def seen(self) -> str:
        """Return a sentence on how many rows the query returned, and how many people of the launch are in them."""
        listed = self.counter.identifiers()
        inside = sum(len(people & listed) for people in self.sides.values())
        unusable = self.incomplete + self.counter.null + self.counter.invalid
        more = f" {counted(unusable, 'row')} had no usable identifier or no value." if unusable else ""
        return (
            f"{self.file} returned {self.incomplete + self.counter.rows:,} rows: {inside:,} {self.launch.noun[1]} of "
            f"this launch and {len(listed) - inside:,} others, which are ignored.{more}"
        )


def _compared(rows: _Rows, asked: Asked) -> Comparison:
    if rows.values is None:
        listed = rows.counter.identifiers()
        counts = [(name, len(people & listed), len(people)) for name, people in rows.sides.items()]
        return compared_shares(_OUTCOME, counts, **asked)
    values = [(name, rows.values[name], len(people)) for name, people in rows.sides.items()]
    return compared_means(_MEAN, values, **asked)


def _adjusted(outcome: _Rows, before: _Rows, asked: Asked) -> Comparison:
    values, numbers = outcome.values or {}, before.values or {}
    sides = [
        SideOutcome(name, len(people), values[name], numbers[name], before.products[name])
        for name, people in outcome.sides.items()
    ]
    return compared_adjusted(_MEAN, sides, **asked)


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
    typed = typed_column(column, kind, name)
    if typed is None:
        wanted, found = "whole numbers" if kind == "integer" else "text", sql_type_name(value_type(column))
        raise AudienceError(f"column {name} holds {found}, but the launch has {wanted}. Return {wanted}.")
    return trimmed(typed) if kind == "string" else typed


def _numbers(column: pa.Array) -> pa.DoubleArray:
    if getattr(column.type, "type_name", None) == "numeric":  # PostgreSQL's, as text
        return _finite(column.storage.cast(pa.float64()))
    type_ = value_type(column)
    is_number = any(
        is_one(type_) for is_one in (pa.types.is_integer, pa.types.is_floating, pa.types.is_decimal, pa.types.is_null)
    )  # fmt: skip
    if not is_number:
        raise QueryError(f"column {VALUE} holds {sql_type_name(type_)}. Return numbers.")
    return _finite(column.cast(pa.float64(), safe=False))


def _finite(numbers: pa.DoubleArray) -> pa.DoubleArray:
    if not pc.all(pc.is_finite(numbers), skip_nulls=True, min_count=0).as_py():
        raise QueryError(f"column {VALUE} holds a number that is not finite. Return finite numbers or null.")
    return numbers


def _places(people: Identifiers, side: Identifiers) -> np.ndarray[tuple[int], np.dtype[np.intp]]:
    """Return the places of some people of a side in the order of its identifiers."""
    if isinstance(people, StringIdentifiers) or isinstance(side, StringIdentifiers):
        is_one = pc.is_in(side.column(), value_set=people.column())
        return np.flatnonzero(is_one.to_numpy(zero_copy_only=False))
    numbers, found, start = people.values(), np.empty(len(people), np.intp), 0
    for part in side.slices(_PEOPLE_AT_ONCE):
        members = part.values()
        low, high = np.searchsorted(numbers, members[0]), np.searchsorted(numbers, members[-1], "right")
        found[low:high] = start + np.searchsorted(members, numbers[low:high])
        start += len(members)
    return found


def _values(numbers: _Numbers) -> Values:
    if not len(numbers):
        return Values()
    mean = float(numbers.mean())
    return Values(len(numbers), mean, float(np.square(numbers - mean).sum()))
