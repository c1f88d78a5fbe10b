"""Batches of a query become an audience: deduplicated identifiers, less exclusions, with every row accounted for.

A query names its people by exactly one of the columns of section 2.9 of the service's document, and may give groups
and each person's own values for a template beside it. Names of columns are compared without regard to case. Every
other column is ignored; its name is kept, so that a preview can say so.
"""

from __future__ import annotations

import hashlib
import logging
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from sendoff import metrics
from sendoff.audience.identifiers import Collector, Gathering, Identifiers, Kind, empty, gathering, union
from sendoff.audience.template_values import ParameterGathering, Parameters
from sendoff.errors import AudienceError
from sendoff.warehouse import checked_text, is_text, spoken, value_type

IDENTIFIER_COLUMNS = ("device_id", "device_token", "device_uuid", "external_id", "user_id")
GROUP_COLUMNS = ("platform", "time_zone", "language")
MOST_GROUPS = 1_000

# Section 2.9 calls tokens and UUIDs integers. They follow the type that the warehouse gives: elsewhere they are text.
_KINDS: Mapping[str, Kind] = {"device_id": "integer", "external_id": "string", "user_id": "string"}
_CASTS: Mapping[Kind, str] = {"integer": "BIGINT", "string": "TEXT"}

_KNOWN = "known fingerprint"

_log = logging.getLogger(__name__)


class _Fingerprint:
    """What an audience has as its fingerprint where none is given: made when it is first asked for."""

    def __get__(self, audience: Audience | None, _: type[Audience] | None = None) -> str:
        if audience is None:
            return ""
        known = vars(audience)
        known[_KNOWN] = known[_KNOWN] or _fingerprint(audience.identified_by, audience.identifiers)
        return str(known[_KNOWN])

    def __set__(self, audience: Audience, given: str) -> None:
        vars(audience)[_KNOWN] = given


@dataclass(frozen=True)
class Audience:
    """Whom a launch reaches, and why others of the query are not among them.

    ``identified_by``: the identifier column. ``rows``: what the query gave; always ``len(identifiers)`` plus the sum of
    ``dropped``. ``dropped``: rows that are ``null``, ``invalid`` or ``duplicate``, and people taken out for each other
    reason. ``groups``: column to value to the members with that value; one who came with two values is in both, one who
    came with none is in no group. ``fingerprint``: depends on ``identified_by`` and ``identifiers`` alone; made when it
    is first asked for.
    ``ignored_columns``: columns that nothing was made of. ``parameters``: each person's own values, also of those who
    were taken out since; None where none were asked for. ``ambiguous``: how many people the query gave in several rows
    whose values differ.
    """

    identified_by: str
    identifiers: Identifiers
    rows: int
    dropped: Mapping[str, int]
    groups: Mapping[str, Mapping[str, Identifiers]]
    fingerprint: str = _Fingerprint()  # type: ignore[assignment]
    ignored_columns: tuple[str, ...] = ()
    parameters: Parameters | None = None
    ambiguous: int = 0

    def less(self, left_out: Mapping[str, Identifiers]) -> Audience:
        """Give it less some of its own people, who are counted as dropped by reason, each under one."""
        dropped = dict(self.dropped)
        for reason, members in left_out.items():
            dropped[reason] = dropped.get(reason, 0) + len(members)
        gone = union(self.identifiers.kind, left_out.values())
        if not len(gone):
            return replace(self, dropped=dropped, fingerprint=vars(self)[_KNOWN])
        return replace(
            self,
            identifiers=self.identifiers - gone,
            dropped=dropped,
            groups={
                name: {value: members - gone for value, members in values.items()}
                for name, values in self.groups.items()
            },
            fingerprint="",
        )


def those_among(people: Identifiers, reason: str, named: Identifiers) -> Identifiers:
    """Give those of some people whom a reason names; AudienceError where it names them by another kind."""
    if not len(named) or not len(people):
        return empty(people.kind)
    if named.kind != people.kind:
        raise AudienceError(f"{reason} has {named.kind} identifiers, the audience {people.kind} ones")
    return people & named


def build_audience(batches: Iterable[pa.RecordBatch], *, columns: Sequence[str] = ()) -> Audience:
    """Gather the rows of a query into an audience; the same rows in any order and any batches give the same one.

    ``batches`` is what ``warehouse.read`` gives: at least one, so that the columns are known. ``columns`` hold each
    person's own values for the variables of a template; of several rows of one person that differ the smallest counts.
    An empty audience is allowed.

    Raises AudienceError when no column or more than one identifies people, when one of ``columns`` is missing, or when
    a column has the wrong type.
    """
    intake: _Intake | None = None
    for batch in batches:
        intake = intake or _Intake([name.lower() for name in batch.schema.names], columns)
        intake.add(batch)
    if intake is None:
        raise AudienceError("the query gave no columns")
    audience = intake.audience()
    metrics.audience_rows(len(audience.identifiers), audience.dropped)
    _log.info(
        "audience of %d from %d rows, dropped %s", len(audience.identifiers), audience.rows, audience.dropped
    )
    return audience


class _Intake:
    """The rows taken so far, of a query with these columns."""

    def __init__(self, names: list[str], columns: Sequence[str]) -> None:
        self._names = names
        self._identified_by = _the_identifier(names)
        self._rows = self._before_kind = 0
        self._collector: Collector | None = None
        self._groups: dict[str, _Groups] = {}
        self._parameters = ParameterGathering(columns, names) if columns else None
        self._used = {self._identified_by, *GROUP_COLUMNS, *(column.lower() for column in columns)}

    def add(self, batch: pa.RecordBatch) -> None:
        column = batch.column(self._names.index(self._identified_by))
        if self._collector is None and column.null_count == len(column):
            self._before_kind += len(column)  # nothing but nulls says nothing of the kind
        else:
            collector = self._collector or self._begin(column)
            identifiers = _typed(column, collector.kind, self._identified_by, self._rows)
            usable = collector.add(identifiers)
            self._add_groups(batch, identifiers, usable)
            if self._parameters:
                self._parameters.add(batch, identifiers, usable)
        self._rows += len(column)

    def audience(self) -> Audience:
        collector = self._collector or Collector(_KINDS.get(self._identified_by, "integer"))
        identifiers = collector.identifiers()
        parameters, ambiguous = self._parameters.parameters(collector.kind) if self._parameters else (None, 0)
        return Audience(
            identified_by=self._identified_by,
            identifiers=identifiers,
            rows=self._rows,
            dropped={
                "null": collector.null + self._before_kind,
                "invalid": collector.invalid,
                "duplicate": collector.duplicate,
            },
            groups={name: groups.among(identifiers) for name, groups in self._groups.items()},
            ignored_columns=tuple(name for name in self._names if name not in self._used),
            parameters=parameters,
            ambiguous=ambiguous,
        )

    def _begin(self, column: pa.Array) -> Collector:
        kind = _KINDS.get(self._identified_by) or _kind_of(column)
        self._groups = {name: _Groups(name, kind) for name in GROUP_COLUMNS if name in self._names}
        self._collector = Collector(kind)
        return self._collector

    def _add_groups(
        self, batch: pa.RecordBatch, identifiers: pa.Array, usable: pa.BooleanArray | None
    ) -> None:
        for name, groups in self._groups.items():
            values = _typed(batch.column(self._names.index(name)), "string", name, self._rows)
            if usable is None:
                groups.add(values, identifiers)
            else:
                groups.add(values.filter(usable), identifiers.filter(usable))


class _Groups:
    """The identifiers of one column's values."""

    def __init__(self, column: str, kind: Kind) -> None:
        self._column = column
        self._kind = kind
        self._members: dict[str, Gathering] = {}

    def add(self, values: pa.LargeStringArray, identifiers: pa.Array) -> None:
        for value, rows in _rows_by_value(values):
            if value not in self._members:
                self._begin(value)
            self._members[value].add(identifiers.take(pa.array(rows)))

    def among(self, identifiers: Identifiers) -> dict[str, Identifiers]:
        return {value: self._members[value].identifiers() & identifiers for value in sorted(self._members)}

    def _begin(self, value: str) -> None:
        if len(self._members) == MOST_GROUPS:
            raise AudienceError(
                f"column {self._column} has more than {MOST_GROUPS:,} values, too many for groups"
            )
        self._members[value] = gathering(self._kind)


def _rows_by_value(values: pa.LargeStringArray) -> Iterator[tuple[str, npt.NDArray[np.intp]]]:
    encoded = values.dictionary_encode()
    size = len(encoded.dictionary)
    indices = encoded.indices.fill_null(size) if values.null_count else encoded.indices
    codes = indices.to_numpy(zero_copy_only=False)
    # numpy sorts numbers of 16 bits by radix; a stable sort keeps identifiers that came sorted sorted.
    codes = codes.astype(np.uint16 if size < 2**16 else np.uint32)
    order = np.argsort(codes, kind="stable")
    ends = np.searchsorted(codes, np.arange(size + 1), sorter=order)
    for code, value in enumerate(encoded.dictionary.to_pylist()):
        if value.strip():
            yield value, order[ends[code] : ends[code + 1]]


def _the_identifier(names: list[str]) -> str:
    for name in (*IDENTIFIER_COLUMNS, *GROUP_COLUMNS):
        if names.count(name) > 1:
            raise AudienceError(f"the query gives column {name} more than once")
    found = [name for name in names if name in IDENTIFIER_COLUMNS]
    if len(found) == 1:
        return found[0]
    allowed = ", ".join(IDENTIFIER_COLUMNS)
    if not found:
        given = ", ".join(names[:20]) or "none"
        raise AudienceError(
            f"no column of the query says who its people are; found {given}; it needs exactly one of {allowed}"
        )
    raise AudienceError(
        f"the query gives {' and '.join(found)}; exactly one of {allowed} may say who its people are"
    )


def _fingerprint(identified_by: str, identifiers: Identifiers) -> str:
    named = f"{identified_by} {identifiers.fingerprint()}"
    return hashlib.blake2b(named.encode(), digest_size=16).hexdigest()


def _typed(column: pa.Array, kind: Kind, name: str, rows_before: int) -> pa.Array:
    """Give a column the one Arrow type that sets of its kind are gathered from."""
    type_ = value_type(column)
    if column.null_count == len(column):
        return pa.nulls(len(column), pa.uint64() if kind == "integer" else pa.large_string())
    if kind == "integer" and pa.types.is_integer(type_):
        # Through 64 bits with a sign, a negative number becomes one above 2**63, as unusable as it was.
        return column.cast(type_) if type_ == pa.uint64() else column.cast(pa.int64()).view(pa.uint64())
    if kind == "string" and (is_text(type_) or pa.types.is_integer(type_)):
        return checked_text(column.cast(pa.large_string()), name)
    raise AudienceError(_wrong_type(column, kind, name, rows_before))


def _wrong_type(column: pa.Array, kind: Kind, name: str, rows_before: int) -> str:
    row = rows_before + pc.index(column.is_valid(), True).as_py() + 1
    wanted = "whole numbers" if kind == "integer" else "text"
    return (
        f"column {name} must hold {wanted}, but row {row} of the result holds {spoken(value_type(column))}; "
        f"write CAST({name} AS {_CASTS[kind]}) AS {name} in the query"
    )


def _kind_of(column: pa.Array) -> Kind:
    return "integer" if pa.types.is_integer(value_type(column)) else "string"
