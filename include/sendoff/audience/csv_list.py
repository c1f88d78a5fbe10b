"""Read identifiers from a CSV file with a header: for a campaign's exclusion, or for a list."""

from __future__ import annotations

import csv
import re
from collections.abc import Callable, Iterator
from io import BytesIO, TextIOWrapper
from pathlib import Path
from typing import BinaryIO, TextIO

import pyarrow as pa
from pyarrow import csv as arrow_csv

from sendoff.audience.build import IDENTIFIER_COLUMNS, KINDS
from sendoff.audience.identifiers import Identifiers, Kind, RowCounter, trimmed
from sendoff.errors import AudienceError, UsageError
from sendoff.warehouse import csv_header, quoting_problem, wrong_csv_row

_TYPES = {"integer": pa.int64(), "string": pa.large_string()}
_SPOKEN = {"integer": "whole numbers", "string": "texts in UTF-8"}
_NUMBER = re.compile(r"\s*-?[0-9]{1,19}\s*")
_NOTHING = frozenset(arrow_csv.ConvertOptions().null_values)


def read_people(file: Path, column: str, kind: Kind) -> Identifiers:
    """Read the identifiers in one column of a CSV file, and skip rows without a usable one.

    White space around identifiers and the case of the column's name do not matter. Raise AudienceError with the file,
    the column and the line, but without values.
    """
    return count_people(file, column, kind).identifiers()


def count_people(file: Path | bytes, column: str, kind: Kind) -> RowCounter:
    """Read the same as :func:`read_people`, also from the content of a file, and count its rows.

    Raise the same errors.
    """

    def opened() -> BinaryIO:
        return BytesIO(file) if isinstance(file, bytes) else file.open("rb")

    name = "the file" if isinstance(file, bytes) else str(file)
    # Such as a pipe, which is read only once.
    if isinstance(file, Path) and file.exists() and not file.is_file():
        try:
            file = file.read_bytes()
        except OSError as error:
            raise AudienceError(f"{name}: cannot be read ({error.strerror})") from None
    counter, delimiter = RowCounter(kind), ","
    try:
        header, delimiter = _header(opened, column, name)
        with opened() as content:
            if problem := quoting_problem(content, delimiter):
                raise AudienceError(f"{name}, {problem}")
        for batch in _batches(opened, header, delimiter, kind):
            people = batch.column(0)
            counter.add(people.view(pa.uint64()) if kind == "integer" else trimmed(people))
    except FileNotFoundError:
        raise AudienceError(f"{name}: the file does not exist. Add a CSV file with a header") from None
    except (pa.ArrowException, OSError, UnicodeDecodeError, csv.Error):  # their messages quote the file
        problem = _problem(opened, column, delimiter, kind)
        raise AudienceError(
            f"{name}, {problem}"
            if problem
            else f"{name}: cannot be read as CSV with {_SPOKEN[kind]} in the column {column}"
        ) from None
    return counter


def kind_of(column: str, *, numbers: bool = False) -> Kind:
    """Return the kind of an identifier column; tokens and UUIDs are strings unless ``numbers`` is set.

    Raise UsageError if the column is not an identifier column, or if its identifiers cannot be ``numbers``.
    """
    if column not in IDENTIFIER_COLUMNS:
        raise UsageError(f"found column {column}. Use {', '.join(IDENTIFIER_COLUMNS)}")
    if numbers and "integer" not in KINDS[column]:
        raise UsageError(f"found {column} as numbers. Use {column} as text, as audiences do")
    return "integer" if numbers else KINDS[column][0]


def _header(opened: Callable[[], BinaryIO], column: str, file: str) -> tuple[str, str]:
    """Return the name of the column in the file, and the character between the values."""
    with opened() as content:
        try:
            names, delimiter = csv_header(content)
        except AudienceError as error:
            raise AudienceError(f"{file}: {error}") from None
    columns = [name for name in names if _is(name, column)]
    others = [name for name in IDENTIFIER_COLUMNS if any(_is(each, name) for each in names)]
    if others and not columns:
        raise AudienceError(
            f"{file}: found no column {column} in the first line, but {' and '.join(others)}. Use a file with "
            f"{column}, or choose the other column"
        )
    if len(columns) != 1:
        found = f"column {column} {len(columns)} times" if columns else f"no column {column}"
        raise AudienceError(f"{file}: found {found} in the first line. Use a header with one such column")
    return columns[0], delimiter


def _is(name: str, column: str) -> bool:
    return name.strip().lower() == column.lower()


def _batches(
    opened: Callable[[], BinaryIO], name: str, delimiter: str, kind: Kind
) -> Iterator[pa.RecordBatch]:
    options = arrow_csv.ConvertOptions(include_columns=[name], column_types={name: _TYPES[kind]})
    parsing = arrow_csv.ParseOptions(delimiter=delimiter, newlines_in_values=True)
    with opened() as file, arrow_csv.open_csv(file, parse_options=parsing, convert_options=options) as reader:
        yield from reader


def _problem(opened: Callable[[], BinaryIO], column: str, delimiter: str, kind: Kind) -> str | None:
    """Return the number of the first wrong line, with the problem and the remedy. Return None if no line is wrong.

    This reads the file once more, because Arrow's messages quote values and often have no line.
    """
    try:
        with opened() as file:
            for number, line in enumerate(file, 1):
                try:
                    line.decode()
                except UnicodeDecodeError:
                    return f"line {number}: found text that is not UTF-8. Save the file as CSV in UTF-8"
        with opened() as file:
            if problem := wrong_csv_row(file, delimiter):
                return problem
        with TextIOWrapper(opened(), encoding="utf-8-sig", newline="") as text:
            return _no_number(text, column, delimiter) if kind == "integer" else None
    except (OSError, csv.Error):
        return None


def _no_number(text: TextIO, column: str, delimiter: str) -> str | None:
    rows = filter(None, reader := csv.reader(text, delimiter=delimiter))
    header = next(rows, [])
    place = next((place for place, name in enumerate(header) if _is(name, column)), None)
    for row in rows:
        if place is not None and not _is_number(row[place]):
            return (
                f"line {reader.line_num}: the value in the column {column} is not a whole number "
                f"of at most {2**63 - 1:,}. Correct or delete this line"
            )
    return None


def _is_number(text: str) -> bool:
    return text in _NOTHING or (_NUMBER.fullmatch(text) is not None and -(2**63) <= int(text) < 2**63)
