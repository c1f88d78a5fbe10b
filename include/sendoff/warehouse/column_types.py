"""The types of columns, in words, and a check of text columns."""

from __future__ import annotations

from dataclasses import dataclass

import pyarrow as pa

from sendoff.errors import AudienceError


@dataclass(frozen=True, slots=True)
class Wording:
    """How errors speak of the place that rows come from.

    ``subject``: the place. ``integer`` and ``text``: how its author converts the column ``{name}``. ``has_names``:
    whether its columns surely have names. Those of a CSV file without a header are the data of a recipient.
    """

    subject: str
    integer: str
    text: str
    has_names: bool = True

    def conversion(self, name: str, *, to_integer: bool = False) -> str:
        """Return how to convert a column to whole numbers, or else to text."""
        return (self.integer if to_integer else self.text).replace("{name}", name)


QUERY = Wording(
    "the query",
    "write CAST({name} AS BIGINT) AS {name} in the query",
    "write CAST({name} AS TEXT) AS {name} in the query",
)


def value_type(column: pa.Array) -> pa.DataType:
    """Return the type of a column's values, also if they are dictionary-encoded."""
    return column.type.value_type if pa.types.is_dictionary(column.type) else column.type


def is_text(type_: pa.DataType) -> bool:
    """Check whether a type is one of Arrow's text types."""
    return bool(
        pa.types.is_string(type_) or pa.types.is_large_string(type_) or pa.types.is_string_view(type_)
    )


def is_number(type_: pa.DataType) -> bool:
    """Check whether a type is one of numbers that may have a fraction, also PostgreSQL's ``numeric``."""
    return (
        pa.types.is_floating(type_)
        or pa.types.is_decimal(type_)
        or getattr(type_, "type_name", None) == "numeric"
    )


def checked_text(column: pa.LargeStringArray, name: str) -> pa.LargeStringArray:
    """Return the column unchanged. Raise AudienceError with its name if a text is not UTF-8."""
    try:
        column.validate(full=True)
    except pa.ArrowInvalid:
        problem = f"column {name} contains text that is not UTF-8"
    else:
        return column
    raise AudienceError(problem)


def sql_type_name(type_: pa.DataType) -> str:
    """Return the name of a type as the author of a query would know it."""
    if is_text(type_):
        return "text"
    if pa.types.is_floating(type_):
        return "a number that may have a fraction"
    for name in ("type_name", "extension_name"):  # of a database's own type, and of an Arrow extension type
        if hasattr(type_, name):
            return str(getattr(type_, name))
    return str(type_)
