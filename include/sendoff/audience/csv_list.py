"""People in a CSV file with a header: a campaign's exclusion, or a list that is uploaded."""

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
    """Read the people of one column of a CSV file; rows where it is empty or unusable are passed over.

    The header is compared without regard to case. Raises AudienceError, which names file and column and no value.
    """
    counter = RowCounter(kind)
    try:
        name = _header(file, column)
        for batch in _batches(file, name, kind):
            people = batch.column(0)
            counter.add(people.view(pa.uint64()) if kind == "integer" else people)
    except FileNotFoundError:
        raise AudienceError(f"{file}: found no such file; allowed: a CSV file with a header") from None
    except (pa.ArrowException, OSError, UnicodeDecodeError, csv.Error):  # their texts quote the file
        raise AudienceError(
            f"{file}: it cannot be read as CSV whose column {column} holds {_SPOKEN[kind]}"
        ) from None
    return counter.identifiers()


def kind_of(column: str, *, numbers: bool = False) -> Kind:
    """Return the kind of a column that names people; tokens and UUIDs are texts unless they are said to be ``numbers``.

    Raises AudienceError for a column that names nobody, and for numbers where a query would make texts of them.
    """
    if column not in IDENTIFIER_COLUMNS:
        raise AudienceError(f"found column {column}; allowed: {', '.join(IDENTIFIER_COLUMNS)}")
    if numbers and column in ("external_id", "user_id"):
        raise AudienceError(f"found {column} as numbers; allowed: {column} as text, as every audience has it")
    return "integer" if numbers or column == "device_id" else "string"


def _header(file: Path, column: str) -> str:
    with file.open(encoding="utf-8-sig", newline="") as text:
        names = next(csv.reader(text), [])
    columns = [name for name in names if name.strip().lower() == column.lower()]
    if len(columns) != 1:
        found = f"column {column} {len(columns)} times" if columns else f"no column {column}"
        raise AudienceError(f"{file}: found {found} in its first line; allowed: a header with one")
    return columns[0]


def _batches(file: Path, name: str, kind: Kind) -> Iterator[pa.RecordBatch]:
    options = arrow_csv.ConvertOptions(include_columns=[name], column_types={name: _TYPES[kind]})
    parsing = arrow_csv.ParseOptions(newlines_in_values=True)
    with arrow_csv.open_csv(file, parse_options=parsing, convert_options=options) as reader:
        yield from reader
