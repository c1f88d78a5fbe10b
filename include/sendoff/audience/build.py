"""Build an audience from batches of rows: deduplicated identifiers, with a count for every row.

The rows must have exactly one of the identifier columns of section 2.9 of the service's document. They may also have
group columns and template values. The case of column names does not matter. Other columns are ignored; the audience
keeps their names, so that a preview can list them.
"""

from __future__ import annotations

import hashlib
import logging
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from sendoff.audience.identifiers import (
    Identifiers,
    IdentifierSetBuilder,
    IntegerIdentifiers,
    Kind,
    RowCounter,
    as_member,
    builder,
    empty,
    trimmed,
    union,
)
from sendoff.audience.template_values import TemplateValues, TemplateValuesBuilder
from sendoff.errors import AudienceError
from sendoff.warehouse import QUERY, Wording, checked_text, is_number, is_text, sql_type_name, value_type

# Section 2.9 calls tokens and UUIDs integers, but elsewhere they are text. So they keep the type of the warehouse.
KINDS: Mapping[str, tuple[Kind, ...]] = {
    "device_id": ("integer",),
    "device_token": ("string", "integer"),
    "device_uuid": ("string", "integer"),
    "external_id": ("string",),
    "user_id": ("string",),
}
"""The kinds that audiences of each identifier column may have, the usual one first."""

IDENTIFIER_COLUMNS = tuple(KINDS)
GROUP_COLUMNS = ("platform", "time_zone", "language")
MOST_GROUPS = 1_000

_NOT_PLAIN = "those without a plain name"
"""Stands for unused columns that a warehouse names after their expressions, which may hold identifiers."""

_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Audience:
    """The recipients of a launch, and the counts of rows that were dropped.

    ``identified_by``: the identifier column. ``rows``: rows of the query; always ``len(identifiers)`` plus the sum of
    ``dropped``. ``dropped``: rows that are ``null``, ``invalid`` or ``duplicate``, and recipients suppressed for each
    other reason. ``groups``: members by group column and value. A recipient with two values is in both groups, and one
    without a value is in none. ``ignored_columns``: columns that are not used, without names that may be expressions.
    ``template_values``: each recipient's own values, including those suppressed since; None if no template columns were
    requested. ``ambiguous``: number of recipients whose rows have different template values.
    """

    identified_by: str
    identifiers: Identifiers
    rows: int
    dropped: Mapping[str, int]
    groups: Mapping[str, Mapping[str, Identifiers]]
    ignored_columns: tuple[str, ...] = ()
    template_values: TemplateValues | None = None
    ambiguous: int = 0

    @cached_property
    def fingerprint(self) -> str:
        """32 hexadecimal digits that depend on ``identified_by`` and ``identifiers`` only."""
        text = f"{self.identified_by} {self.identifiers.fingerprint()}"
        return hashlib.blake2b(text.encode(), digest_size=16).hexdigest()

    def less(self, suppressed: Mapping[str, Identifiers]) -> Audience:
        """Return the audience without suppressed recipients, and count them as dropped.

        ``suppressed``: recipients by reason; each of them must be under one reason only.
        """
        counts = {reason: self.dropped.get(reason, 0) + len(people) for reason, people in suppressed.items()}
        dropped = {**self.dropped, **counts}
        gone = _within(union(self.identifiers.kind, suppressed.values()), self.identifiers)
        if not len(gone):
            return replace(self, dropped=dropped)
        groups = {
            name: {value: members - gone for value, members in values.items()}
            for name, values in self.groups.items()
        }
        return replace(self, identifiers=self.identifiers - gone, dropped=dropped, groups=groups)


def those_among(people: Identifiers, reason: str, named: Identifiers) -> Identifiers:
    """Return the members of ``people`` that are in ``named``. Raise AudienceError if the kinds of the sets differ.

    ``reason`` describes ``named`` in the error.
    """
    if not len(named) or not len(people):
        return empty(people.kind)
    if named.kind != people.kind:
        raise AudienceError(f"{reason} has {named.kind} identifiers, but the audience has {people.kind} ones")
    return _within(named, people)


def _within(some: Identifiers, people: Identifiers) -> Identifiers:
    """Return the members of ``some`` that are in ``people``, in their memory. Raise TypeError if the kinds differ."""
    if isinstance(some, IntegerIdentifiers) and isinstance(people, IntegerIdentifiers):
        return some.within(people)
    return some & people


def typed_column(column: pa.Array, kind: Kind, name: str) -> pa.Array | None:
    """Return a column in the Arrow type of identifier sets of a kind, or None if its type does not fit.

    Raise AudienceError for text that is not UTF-8. ``name``: that of the column, for the error.
    """
    type_ = value_type(column)
    if column.null_count == len(column):
        return pa.nulls(len(column), pa.uint64() if kind == "integer" else pa.large_string())
    if kind == "integer" and pa.types.is_integer(type_):
        # Viewed as unsigned, a negative number becomes one above 2**63, and stays unusable.
        return column.cast(type_) if type_ == pa.uint64() else column.cast(pa.int64()).view(pa.uint64())
    if kind == "string" and (is_text(type_) or pa.types.is_integer(type_)):
        return checked_text(column.cast(pa.large_string()), name)
    return None


def build_audience(
    batches: Iterable[pa.RecordBatch],
    *,
    columns: Sequence[str] = (),
    groups: Collection[str] = GROUP_COLUMNS,
    wording: Wording = QUERY,
) -> Audience:
    """Build an audience from rows, such as those of a query; their order and batches do not matter.

    White space around identifiers is removed. The audience may be empty.

    ``batches``: from ``warehouse.read``; at least one batch, so that the columns are known. ``columns``: the columns of
    template values. If a recipient's rows have different values, the smallest row counts. ``groups``: the group columns
    to gather, if the rows have them. ``wording``: how errors speak of the place that the rows come from.

    Raise AudienceError if the rows do not have exactly one identifier column, if one of ``columns`` is missing, or
    if a column has the wrong type.
    """
    intake: _AudienceBuilder | None = None
    for batch in batches:
        intake = intake or _AudienceBuilder(
            [name.lower() for name in batch.schema.names], columns, groups, wording
        )
        intake.add(batch)
    if intake is None:
        raise AudienceError(f"{wording.subject} has no columns")
    audience = intake.build()
    if intake.rows_trimmed:
        _log.info("Removed white space around the identifiers of %d rows", intake.rows_trimmed)
    _log.info(
        "Audience of %d from %d rows, dropped %s", len(audience.identifiers), audience.rows, audience.dropped
    )
    return audience


class _AudienceBuilder:
    """Builds an audience from batches with the columns ``names``."""

    def __init__(
        self, names: list[str], columns: Sequence[str], groups: Collection[str], wording: Wording
    ) -> None:
        self._names = names
        self._wording = wording
        self._identified_by = _the_identifier(names, wording)
        self._rows = self._before_kind = self.rows_trimmed = 0
        self._counter: RowCounter | None = None
        self._groups: dict[str, dict[str, IdentifierSetBuilder]] = {
            name: {} for name in GROUP_COLUMNS if name in names and name in groups
        }
        self._template_values = TemplateValuesBuilder(columns, names, wording) if columns else None
        self._used = {self._identified_by, *GROUP_COLUMNS, *(column.lower() for column in columns)}

    def add(self, batch: pa.RecordBatch) -> None:
        rows_before, self._rows = self._rows, self._rows + len(batch)
        column = batch.column(self._names.index(self._identified_by))
        if self._counter is None:
            if column.null_count == len(column):
                self._before_kind += len(column)  # a column of nulls does not show the kind
                return
            kinds = KINDS[self._identified_by]
            is_integer = pa.types.is_integer(value_type(column)) and "integer" in kinds
            self._counter = RowCounter("integer" if is_integer else kinds[0])
        identifiers = self._typed(column, self._counter.kind, self._identified_by, rows_before)
        if self._counter.kind == "string":
            given, identifiers = identifiers, trimmed(identifiers)
            changed = pc.not_equal(pc.binary_length(given), pc.binary_length(identifiers))
            self.rows_trimmed += pc.sum(changed).as_py() or 0
        usable = self._counter.add(identifiers)
        for name, members in self._groups.items():
            values = self._typed(batch.column(self._names.index(name)), "string", name, rows_before)
            if usable is None:
                self._add_group(name, members, values, identifiers)
            else:
                self._add_group(name, members, values.filter(usable), identifiers.filter(usable))
        if self._template_values:
            self._template_values.add(batch, identifiers, usable)

    def build(self) -> Audience:
        counter = self._counter or RowCounter(KINDS[self._identified_by][-1])
        everybody = counter.identifiers()
        values, ambiguous = self._template_values.build(counter.kind) if self._template_values else (None, 0)
        unused = (
            name if name.isidentifier() else _NOT_PLAIN for name in self._names if name not in self._used
        )
        null, invalid, duplicate = counter.null + self._before_kind, counter.invalid, counter.duplicate
        return Audience(
            self._identified_by,
            everybody,
            self._rows,
            dropped={"null": null, "invalid": invalid, "duplicate": duplicate},
            groups={
                name: {
                    value: _within(members.pop(value).identifiers(), everybody) for value in sorted(members)
                }
                for name, members in self._groups.items()
            },
            ignored_columns=tuple(dict.fromkeys(unused)),
            template_values=values,
            ambiguous=ambiguous,
        )

    def _typed(self, column: pa.Array, kind: Kind, name: str, rows_before: int) -> pa.Array:
        """Return a column in the Arrow type of identifier sets of a kind. Raise AudienceError if its type differs."""
        typed = typed_column(column, kind, name)
        if typed is not None:
            return typed
        type_, is_integer = value_type(column), kind == "integer"
        row = rows_before + pc.index(column.is_valid(), True).as_py() + 1
        # The text of the number 101.0 would name no one, but a whole number is taken as text.
        cure = self._wording.conversion(name, to_integer=is_integer or is_number(type_))
        if is_integer and is_text(type_):
            cure += ". If some texts are not numbers, make them null first"
        raise AudienceError(
            f"column {name} must contain {'whole numbers' if is_integer else 'text'}, but row {row} has "
            f"{sql_type_name(type_)}; {cure}"
        )

    @staticmethod
    def _add_group(
        name: str, members: dict[str, IdentifierSetBuilder], values: pa.Array, identifiers: pa.Array
    ) -> None:
        for value, rows in _rows_by_value(values):
            if name == "platform":
                value = value.strip().lower()  # noqa: PLW2901 - the service has them in lower case
            if value not in members:
                if len(members) == MOST_GROUPS:
                    raise AudienceError(
                        f"column {name} has more than {MOST_GROUPS:,} values, too many for groups"
                    )
                members[value] = builder("integer" if pa.types.is_integer(identifiers.type) else "string")
            members[value].add(identifiers.take(pa.array(rows)))


def _rows_by_value(values: pa.LargeStringArray) -> Iterator[tuple[str, npt.NDArray[np.intp]]]:
    encoded = values.dictionary_encode()
    size = len(encoded.dictionary)
    indices = encoded.indices.fill_null(size) if values.null_count else encoded.indices
    codes = indices.to_numpy(zero_copy_only=False)
    # numpy sorts 16-bit numbers by radix. A stable sort keeps sorted identifiers in order.
    codes = codes.astype(np.uint16 if size < 2**16 else np.uint32)
    order = np.argsort(codes, kind="stable")
    ends = np.searchsorted(codes, np.arange(size + 1), sorter=order)
    for code, value in enumerate(encoded.dictionary.to_pylist()):
        if as_member("string", value) is not None:
            yield value, order[ends[code] : ends[code + 1]]


def _the_identifier(names: list[str], wording: Wording) -> str:
    subject = wording.subject
    for name in (*IDENTIFIER_COLUMNS, *GROUP_COLUMNS):
        if names.count(name) > 1:
            raise AudienceError(f"{subject} has the column {name} more than once")
    identifiers = [name for name in names if name in IDENTIFIER_COLUMNS]
    if len(identifiers) == 1:
        return identifiers[0]
    allowed = f"exactly one of {', '.join(IDENTIFIER_COLUMNS)}"
    if identifiers:
        raise AudienceError(f"{subject} has {' and '.join(identifiers)}, but must have {allowed}")
    if not wording.has_names:
        raise AudienceError(f"its first line names no identifier column. Add a header with {allowed}")
    found = ", ".join(names[:20]) or "none"
    raise AudienceError(f"{subject} has no identifier column: found {found}; it must have {allowed}")
