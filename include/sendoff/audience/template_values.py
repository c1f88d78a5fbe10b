"""Template values: each recipient's own values for the variables of a template, from columns of the audience query.

They stay in Arrow columns from the query to the request. Texts, dates and times are stored as text, numbers and
booleans as JSON text, so that decimals keep every digit. The metadata of each field says which of the two it contains.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import orjson
import pyarrow as pa
import pyarrow.compute as pc

from sendoff.errors import AudienceError
from sendoff.warehouse import Wording, checked_text, is_text, sql_type_name, value_type

if TYPE_CHECKING:
    from sendoff.audience.identifiers import Identifiers, Kind
    from sendoff.campaign import Campaign

_TEXT, _JSON = "text", "json"
_HOLDS = b"holds"
_MOMENT = r"^\d\d(\d\d-\d\d-\d\d|:)"  # a date, with or without a time, or only a time
_NUMBER = r"^-?[0-9]+(\.[0-9]+)?([eE][-+]?[0-9]+)?$"
_PEOPLE: dict[Kind, pa.DataType] = {"integer": pa.uint64(), "string": pa.large_string()}


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class TemplateValues:
    """The template values of an audience: sorted identifiers without duplicates, and a column for each variable."""

    _people: pa.Array
    _values: pa.Table

    def __len__(self) -> int:
        return len(self._people)

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, TemplateValues):
            return NotImplemented
        return bool(
            self._people.equals(other._people) and self._values.equals(other._values, check_metadata=True)
        )

    __hash__ = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        return f"<{', '.join(self.columns)} of {len(self):,} people>"

    @property
    def columns(self) -> tuple[str, ...]:
        """The names of the variables."""
        return tuple(self._values.column_names)

    def of(self, identifiers: Identifiers) -> bytes:
        """Return the values of some recipients in the order of ``identifiers.values()``, without the identifiers.

        The result is an Arrow IPC stream, compressed with Zstandard, for ``Segment.template_values`` and
        :func:`read_template_values`. Raise ValueError if a recipient has no values.
        """
        wanted = identifiers.column()
        start = stop = 0
        if len(wanted):
            # Narrow the search first: a segment is a run of the audience or of one variant.
            start = bisect_left(self._people, wanted[0].as_py(), key=lambda person: person.as_py())
            stop = bisect_right(self._people, wanted[-1].as_py(), lo=start, key=lambda person: person.as_py())
        # Arrow builds a hash table of value_set, so it gets the smaller set. Both sets are sorted.
        is_wanted = pc.is_in(self._people[start:stop], value_set=wanted)
        if lacking := len(wanted) - is_wanted.true_count:
            raise ValueError(f"{lacking} of these recipients have no template values")
        return _stream(self._values.slice(start, stop - start).filter(is_wanted))


class TemplateValuesBuilder:
    """Builds the template values of an audience, batch by batch.

    ``columns``: the columns to take. ``given``: all columns in lower case. ``wording``: how errors speak of the place
    that they come from. Raise AudienceError if one of ``columns`` is missing there, or is there twice.
    """

    def __init__(self, columns: Sequence[str], given: Sequence[str], wording: Wording) -> None:
        if missing := [column for column in columns if column.lower() not in given]:
            columns_of = (
                f"its columns {', '.join(given)}" if wording.has_names else "columns of its first line"
            )
            raise AudienceError(
                f"template.columns: found {', '.join(missing)}, which {wording.subject} does not have. "
                f"Use {columns_of}"
            )
        if twice := [column for column in columns if given.count(column.lower()) > 1]:
            raise AudienceError(f"{wording.subject} has the column {twice[0]} more than once")
        self._wording = wording
        self._places = {column: given.index(column.lower()) for column in columns}
        self._holds: dict[str, str] = {}
        self._batches: list[pa.RecordBatch] = []

    def add(self, batch: pa.RecordBatch, identifiers: pa.Array, usable: pa.BooleanArray | None) -> None:
        """Add a batch of the query, with its identifiers in the type of their kind and the mask of usable ones."""
        given = [identifiers, *(batch.column(place) for place in self._places.values())]
        people, *columns = given if usable is None else [column.filter(usable) for column in given]
        values = [self._values(name, column) for name, column in zip(self._places, columns, strict=True)]
        names = [str(place) for place in range(len(given))]
        self._batches.append(pa.record_batch([people, *values], names=names))

    def build(self, kind: Kind) -> tuple[TemplateValues, int]:
        """Return the template values, and the number of recipients with rows whose values differ.

        For such a recipient, the smallest row counts: rows are compared as text, column by column, and a row with a
        value comes before one without.
        """
        fields = [_PEOPLE[kind], *(pa.large_string() for _ in self._places)]
        schema = pa.schema([(str(place), type_) for place, type_ in enumerate(fields)])
        table = pa.Table.from_batches(self._batches, schema)
        self._batches = []
        table = table.sort_by([(name, "ascending") for name in table.column_names]).combine_chunks()
        again, differs = _compared_with_the_row_before(table)
        ambiguous = len(pc.unique(table.column(0)[1:].filter(pc.and_(again, differs))))
        first = pa.concat_arrays([pa.array([True] * min(1, len(table)), pa.bool_()), pc.invert(again)])
        people, *values = map(_in_one, table.filter(first).columns)
        holds = [{_HOLDS: self._holds.get(column, _TEXT)} for column in self._places]
        fields = [
            pa.field(name, pa.large_string(), metadata=meta)
            for name, meta in zip(self._places, holds, strict=True)
        ]
        return TemplateValues(people, pa.table(values, pa.schema(fields))), ambiguous

    def _values(self, name: str, column: pa.Array) -> pa.LargeStringArray:
        if column.null_count == len(column):
            return pa.nulls(len(column), pa.large_string())
        holds, values = _written(name, column, self._wording)
        if self._holds.setdefault(name, holds) != holds:
            raise AudienceError(
                f"column {name} has text in some rows and numbers or booleans in others, but a variable needs one "
                f"type; {self._wording.conversion(name)}"
            )
        return values


def template_columns(campaign: Campaign) -> tuple[str, ...]:
    """Return the query's columns with values for the templates of a campaign and its variants."""
    templates = [campaign.template, *(variant.template for variant in campaign.variants.values())]
    return tuple(dict.fromkeys(column for each in templates if each for column in each.columns))


def read_template_values(blob: bytes, columns: Sequence[str] | None = None) -> list[dict[str, Any]]:
    """Return each recipient's values by variable, ready for orjson, without variables that have no value.

    ``columns``: the columns to read; all by default. Numbers and booleans are ``orjson.Fragment``, exactly as given.
    Raise ValueError if ``blob`` is not a stream of template values, or lacks one of the columns.
    """
    table = _table(blob)
    names = table.column_names if columns is None else list(columns)
    if missing := len(set(names) - set(table.column_names)):
        raise ValueError(f"these template values lack {missing} of the columns")
    columns_of_values: list[list[Any]] = []
    for name in names:
        texts = table.column(name).to_pylist()
        is_text_column = table.schema.field(name).metadata[_HOLDS].decode() == _TEXT
        columns_of_values.append(
            texts if is_text_column else [text and orjson.Fragment(text) for text in texts]
        )
    return [
        {name: value for name, value in zip(names, row, strict=True) if value is not None}
        for row in zip(*columns_of_values, strict=True)
    ]


def first_template_values(blob: bytes, count: int) -> bytes:
    """Return the template values of the first ``count`` recipients only."""
    return _stream(_table(blob).slice(0, count))


def template_values_without(blob: bytes, identifiers: Identifiers, gone: Identifiers) -> bytes:
    """Return template values without those of ``gone``. ``identifiers``: the recipients that ``blob`` is for."""
    is_gone = pc.is_in(identifiers.column(), value_set=gone.column())
    return _stream(_table(blob).filter(pc.invert(is_gone)))


def _written(name: str, column: pa.Array, wording: Wording) -> tuple[str, pa.LargeStringArray]:
    """Return values as text or as JSON, and which of the two. Raise AudienceError if the type allows neither."""
    type_, text = value_type(column), pa.large_string()
    column = column.dictionary_decode() if pa.types.is_dictionary(column.type) else column
    if is_text(type_):
        return _TEXT, checked_text(column.cast(text), name)
    if pa.types.is_integer(type_) or pa.types.is_boolean(type_):
        return _JSON, column.cast(text)
    if pa.types.is_floating(type_) or pa.types.is_decimal(type_):
        return _JSON, _checked_numbers(column.cast(text), name)
    if getattr(type_, "type_name", None) == "numeric":  # PostgreSQL's, which its driver returns as text
        return _JSON, _checked_numbers(column.storage.cast(text), name)
    if pa.types.is_timestamp(type_) and type_.tz is not None:
        return _TEXT, _iso(column.cast(pa.timestamp(type_.unit, "UTC")), name)
    if pa.types.is_temporal(type_) and not (pa.types.is_duration(type_) or pa.types.is_interval(type_)):
        return _TEXT, _iso(column, name)
    raise AudienceError(
        f"column {name} has the type {sql_type_name(type_)}, which is not allowed for a variable; "
        f"{wording.conversion(name)}"
    )


def _checked_numbers(column: pa.LargeStringArray, name: str) -> pa.LargeStringArray:
    if pc.all(pc.match_substring_regex(column, _NUMBER)).as_py():
        return column
    raise AudienceError(
        f"column {name} contains a number that is infinite or not a number (NaN); use NULL instead"
    )


def _iso(column: pa.Array, name: str) -> pa.LargeStringArray:
    text = pc.replace_substring(column.cast(pa.large_string()), " ", "T")
    if not pc.all(pc.match_substring_regex(text, _MOMENT)).as_py():
        raise AudienceError(
            f"column {name} contains a date outside of the years 1 to 9999, such as infinity; use NULL instead"
        )
    return pc.replace_substring_regex(text, r"\.0+(Z?)$", r"\1")


def _compared_with_the_row_before(table: pa.Table) -> tuple[pa.BooleanArray, pa.BooleanArray]:
    """Compare each row with the one before: return whether the person is the same, and whether values differ."""
    people, *columns = (_in_one(column) for column in table.columns)
    differs = pa.array([False] * max(0, len(table) - 1), pa.bool_())
    for column in columns:
        one, other = column[1:], column[:-1]
        differs = pc.or_(
            differs, pc.coalesce(pc.not_equal(one, other), pc.xor(one.is_null(), other.is_null()))
        )
    return pc.equal(people[1:], people[:-1]), differs


def _in_one(column: pa.ChunkedArray) -> pa.Array:
    return column.chunk(0) if column.num_chunks == 1 else column.combine_chunks()


def _stream(table: pa.Table) -> bytes:
    sink = pa.BufferOutputStream()
    options = pa.ipc.IpcWriteOptions(compression="zstd")
    with pa.ipc.new_stream(sink, table.schema, options=options) as writer:
        writer.write_table(table)
    return bytes(sink.getvalue())


def _table(blob: bytes) -> pa.Table:
    try:
        return pa.ipc.open_stream(blob).read_all()
    except (OSError, pa.ArrowInvalid):
        problem = "this value is not a stream of template values"
    raise ValueError(problem)
