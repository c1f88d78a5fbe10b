"""Read identifiers from a CSV file with a header, for a campaign's exclusion or an uploaded list."""

from __future__ import annotations

import csv
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
from pyarrow import csv as arrow_csv

from sendoff.audience.build import IDENTIFIER_COLUMNS
from sendoff.audience.identifiers import Identifiers, Kind, RowCounter
from sendoff.errors import AudienceError

_TYPES = {"integer": pa.int64(), "string": pa.large_string()}
_SPOKEN = {"integer": "whole numbers", "string": "texts in UTF-8"}


def read_people(file: Path, column: str, kind: Kind) -> Identifiers:
    """Read the identifiers in one column of a CSV file, and skip rows without a usable one.

    The case of the column's name does not matter. Raise AudienceError with the file and the column, but without values.
    """
    counter = RowCounter(kind)
    try:
        name = _header(file, column)
        for batch in _batches(file, name, kind):
            people = batch.column(0)
            counter.add(people.view(pa.uint64()) if kind == "integer" else people)
    except FileNotFoundError:
        raise AudienceError(f"{file}: the file does not exist. Add a CSV file with a header") from None
    except (pa.ArrowException, OSError, UnicodeDecodeError, csv.Error):  # their messages quote the file
        raise AudienceError(
            f"{file}: cannot be read as CSV with {_SPOKEN[kind]} in the column {column}"
        ) from None
    return counter.identifiers()


def kind_of(column: str, *, numbers: bool = False) -> Kind:
    """Return the kind of an identifier column; tokens and UUIDs are strings unless ``numbers`` is set.

    Raise AudienceError if the column is not an identifier column, or if its identifiers cannot be ``numbers``.
    """
    if column not in IDENTIFIER_COLUMNS:
        raise AudienceError(f"found column {column}. Use {', '.join(IDENTIFIER_COLUMNS)}")
    if numbers and column in ("external_id", "user_id"):
        raise AudienceError(f"found {column} as numbers. Use {column} as text, as audiences do")
    return "integer" if numbers or column == "device_id" else "string"


def _header(file: Path, column: str) -> str:
    with file.open(encoding="utf-8-sig", newline="") as text:
        names = next(csv.reader(text), [])
    columns = [name for name in names if name.strip().lower() == column.lower()]
    if len(columns) != 1:
        found = f"column {column} {len(columns)} times" if columns else f"no column {column}"
        raise AudienceError(f"{file}: found {found} in the first line. Use a header with one such column")
    return columns[0]


def _batches(file: Path, name: str, kind: Kind) -> Iterator[pa.RecordBatch]:
    options = arrow_csv.ConvertOptions(include_columns=[name], column_types={name: _TYPES[kind]})
    parsing = arrow_csv.ParseOptions(newlines_in_values=True)
    with arrow_csv.open_csv(file, parse_options=parsing, convert_options=options) as reader:
        yield from reader
