"""Rows that no query reads: a DataFrame, an Arrow table, dictionaries or a file, as Arrow batches."""

from __future__ import annotations

import csv
import hashlib
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from io import TextIOWrapper
from itertools import chain
from os import PathLike
from pathlib import Path
from typing import Any, BinaryIO, TextIO

import pyarrow as pa
from pyarrow import csv as arrow_csv
from pyarrow import ipc, parquet

from sendoff.errors import AudienceError
from sendoff.warehouse.column_types import Wording, value_type
from sendoff.warehouse.query import is_blank

_TABLES = (".parquet", ".csv", ".arrow", ".feather")
_FILES = (".sql", *_TABLES)
_QUERY = re.compile(r"\s*(?:--|/\*|\(|(?:select|with|from|table|values)\b)", re.IGNORECASE)
_BAD_VALUE = re.compile(r"In CSV column #(\d+): .*?CSV conversion error to (\w+)")
_BAD_COLUMN = re.compile(r"Conversion failed for column (.+) with type")
_INDEX = re.compile(r"__index_level_\d+__")  # the index of pandas, if it has no name

_DIGESTED_AT_ONCE = 1 << 16  # rows

_ARROW = {
    "boolean": pa.bool_(),
    "date": pa.date32(),
    "integer": pa.int64(),
    "number": pa.float64(),
    "text": pa.large_string(),
    "timestamp": pa.timestamp("us", "UTC"),
}
_IN_WORDS = {
    "bool": "a boolean. Write true or false",
    "date32": "a date. Write it as 2026-11-16",
    "double": "a number. Correct it",
    "int64": f"a whole number of at most {2**63 - 1:,}. Correct it, or write 7 instead of 7.0",
    "timestamp": "a time. Write it as 2026-11-16T08:00Z",
}

_DELIMITERS = {",": "commas", ";": "semicolons", "\t": "tabs"}
"""What may be between the values of a CSV file. Spreadsheets write semicolons where a comma is the decimal sign."""

_ALLOWED = "Use SQL, a path, a DataFrame, an Arrow table or a list of dictionaries"
_DAMAGED = "it is damaged, or not what its name says"

_IN_A_FILE = Wording("it", "store {name} as 64-bit integers", "store {name} as text")
_IN_CSV = replace(_IN_A_FILE, has_names=False)
_IN_ARROW = Wording("it", "cast {name} to pa.int64()", "cast {name} to pa.string()")
_IN_DICTIONARIES = Wording(
    "it",
    'convert it first, and keep None: row["{name}"] = int(row["{name}"])',
    'convert it first, and keep None: row["{name}"] = str(row["{name}"])',
)
_IN_FRAMES = {
    "pandas": Wording(
        "it",
        'convert it first: frame["{name}"] = frame["{name}"].astype("Int64")',
        'convert it first: frame["{name}"] = frame["{name}"].astype("string")',
    ),
    "polars": Wording(
        "it",
        'convert it first: frame.with_columns(pl.col("{name}").cast(pl.Int64))',
        'convert it first: frame.with_columns(pl.col("{name}").cast(pl.String))',
    ),
}
"""How errors speak of a data frame, by the library that made it. pandas turns whole numbers with gaps into floats."""


@dataclass(frozen=True, slots=True)
class Rows:
    """Rows that no query reads.

    ``origin``: where they come from, for errors, such as the path of a file. ``wording``: how errors speak of it.
    """

    origin: str
    wording: Wording
    read: Callable[[Mapping[str, str]], AbstractContextManager[Iterator[pa.RecordBatch]]] = field(repr=False)

    def open(
        self, types: Mapping[str, str] | None = None
    ) -> AbstractContextManager[Iterator[pa.RecordBatch]]:
        """Open the rows and yield their batches; at least one, which may be empty.

        ``types``: of columns of a CSV file, by name, as in ``audience.columns``. Its other columns are texts.
        """
        return self.read(types or {})

    def digest(self) -> str:
        """Return a digest of the rows. It depends on their order, but not on how they are divided into batches."""
        found = hashlib.blake2b(digest_size=16)
        with self.open() as batches, _problems_of_stream(self.wording):
            table = pa.Table.from_batches(batches)
            found.update(repr(table.schema.names).encode())
            for start in range(0, table.num_rows, _DIGESTED_AT_ONCE):
                for column in table.slice(start, _DIGESTED_AT_ONCE).columns:
                    found.update(repr(column.to_pylist()).encode())
        return found.hexdigest()


def audience_source(given: Any) -> str | Rows:
    """Return the SQL of a query as it is, and the rows of anything else that can be an audience.

    ``given`` is one of these:

    - SQL
    - the path of a ``.sql``, ``.parquet``, ``.csv``, ``.arrow`` or ``.feather`` file, as text, as ``Path``, or as
      another kind of path that has ``open`` and ``suffix``, such as Airflow's ``ObjectStoragePath``
    - a table, as in :func:`table_of`
    - rows, such as those of this function

    Raise AudienceError for anything else, and for a ``.sql`` file that cannot be read. Other files are read later.
    """
    if isinstance(given, Rows):
        return given
    if (table := table_of(given)) is not None:
        return table
    if isinstance(given, str):
        return _of_path(Path(given)) if _is_path(given) else given
    if isinstance(given, PathLike) or (hasattr(given, "open") and hasattr(given, "suffix")):
        return _of_path(given)
    if isinstance(given, list | tuple) and not given:
        raise AudienceError(
            "the audience is an empty list, so its columns are not known. Use pd.DataFrame([], columns=[...])"
        )
    is_statement = type(given).__module__.startswith("sqlalchemy.sql.")
    remedy = "pd.read_sql(statement, engine)" if is_statement else "pd.DataFrame(rows, columns=[...])"
    raise AudienceError(
        f"found {type(given).__name__} as an audience. {_ALLOWED}. Make other rows a DataFrame first, such as {remedy}"
    )


def table_of(given: Any) -> Rows | None:
    """Return the rows of a table in Python, or None if it is something else.

    A table is an object that exports an Arrow stream, such as a DataFrame of pandas or Polars, or a table of Arrow. A
    LazyFrame of Polars is one too, and so is a list of dictionaries with the same keys, which are the names of columns.
    """
    kind = type(given)
    library = kind.__module__.partition(".")[0]
    wording = _IN_FRAMES.get(library, _IN_ARROW)
    if hasattr(given, "__arrow_c_stream__") and not isinstance(given, type):
        return Rows(f"the {kind.__name__}", wording, lambda _: _stream(given, wording))
    if (library, kind.__name__) == ("polars", "LazyFrame"):
        return Rows("the LazyFrame", wording, lambda _: _stream(_collected(given), wording))
    if isinstance(given, list | tuple) and given and isinstance(given[0], Mapping):
        return Rows(
            "the list", _IN_DICTIONARIES, lambda _: _stream(_of_dictionaries(given), _IN_DICTIONARIES)
        )
    return None


def _collected(frame: Any) -> Any:
    try:
        return frame.collect()
    except Exception as error:  # its text may quote values
        problem = f"Polars cannot compute it ({type(error).__name__}). Call collect() on it to see why"
    raise AudienceError(problem)


def _of_dictionaries(rows: Sequence[Any]) -> pa.Table:
    names = rows[0].keys()
    if not all(isinstance(name, str) for name in names):
        raise AudienceError("row 1 has a key that is not a text. Use the names of columns as keys")
    for number, row in enumerate(rows, 1):
        if not isinstance(row, Mapping):
            raise AudienceError(f"row {number} is a {type(row).__name__}. Use a dictionary, like row 1")
        if row.keys() != names:
            raise AudienceError(
                f"row {number} has other keys than row 1. Use the same keys in all rows, with None for a missing value"
            )
    return pa.table({name: _column(name, [row[name] for row in rows]) for name in names})


def _column(name: str, values: list[Any]) -> pa.Array:
    """Return the values of a column. The errors of Arrow may quote them, so they are not shown."""
    try:
        return pa.array(values)
    except OverflowError:
        problem = f"column {name} has a whole number that is too large for 64 bits. Correct it, or leave the row out"
    except UnicodeError:
        problem = f"column {name} contains text that is not UTF-8"
    except (pa.ArrowException, TypeError, ValueError):
        conversion = _IN_DICTIONARIES.conversion(name, to_integer=name.lower() == "device_id")
        problem = f"column {name} holds values of several types, or of one that is no type of a column; {conversion}"
    raise AudienceError(problem)


def _is_path(text: str) -> bool:
    """Check whether a text is a path: one word, or a known suffix behind words that begin no query."""
    words = text.split()
    if not words:
        raise AudienceError(f"the audience is empty. {_ALLOWED}")
    return len(words) == 1 or (text.lower().endswith(_FILES) and not _QUERY.match(text))


def _of_path(path: Any) -> str | Rows:
    suffix = str(path.suffix).lower()
    if suffix not in _FILES:
        raise AudienceError(f"{path}: this type of file is not an audience. Use {', '.join(_FILES)}")
    if suffix != ".sql":
        wording = _IN_CSV if suffix == ".csv" else _IN_A_FILE
        return Rows(str(path), wording, lambda types: _file(path, suffix, types))
    try:
        with _problems_of_file(), path.open("rb") as file:
            sql = str(file.read().decode("utf-8-sig"))
    except AudienceError as error:
        raise AudienceError(f"{path}: {error}") from None
    if is_blank(sql):
        raise AudienceError(f"{path}: the file is empty. Write the query of the recipients")
    return sql


@contextmanager
def _stream(frame: Any, wording: Wording) -> Iterator[Iterator[pa.RecordBatch]]:
    with ExitStack() as stack:
        with _problems_of_stream(wording):
            names = [name for name in getattr(getattr(frame, "index", None), "names", ()) if name is not None]
            if names:  # an index with a name is a column like any other, unless it is one already
                frame = frame.reset_index(names, drop=set(names) <= set(frame.columns))
            reader = stack.enter_context(pa.RecordBatchReader.from_stream(frame))
        yield _without_index(reader, wording)


def _without_index(reader: pa.RecordBatchReader, wording: Wording) -> Iterator[pa.RecordBatch]:
    names = [name for name in reader.schema.names if not _INDEX.fullmatch(name)]
    with _problems_of_stream(wording):
        for batch in _at_least_one(reader, reader.schema):
            yield batch if len(names) == batch.num_columns else batch.select(names)


@contextmanager
def _problems_of_stream(wording: Wording) -> Iterator[None]:
    """Translate the errors of an Arrow stream. Their messages may quote its values, so they are not shown."""
    try:
        yield
    except (pa.ArrowException, OverflowError, TypeError, ValueError) as error:
        if (found := _BAD_COLUMN.search(str(error))) is not None:
            problem = f"column {found[1]} holds values of several types; {wording.conversion(found[1])}"
        elif "Duplicate column names" in str(error):
            problem = "it has a column more than once"
        elif isinstance(error, OverflowError):
            problem = (
                "it has a whole number that is too large for a column of objects. Convert this column to text"
            )
        else:
            problem = "it cannot be read as a table. Use a DataFrame or an Arrow table"
        raise AudienceError(problem) from None


@contextmanager
def _file(path: Any, suffix: str, types: Mapping[str, str]) -> Iterator[Iterator[pa.RecordBatch]]:
    with ExitStack() as stack:
        with _problems_of_file():
            file = stack.enter_context(path.open("rb"))
        yield _batches(file, suffix, types)


def _batches(file: BinaryIO, suffix: str, types: Mapping[str, str]) -> Iterator[pa.RecordBatch]:
    if suffix == ".csv":
        yield from _csv_batches(file, types)
        return
    with _problems_of_file():
        if suffix == ".parquet":
            table = parquet.ParquetFile(file)
            yield from _at_least_one(table.iter_batches(), table.schema_arrow)
        elif file.read(6) == b"ARROW1":  # the format with random access starts so
            random_access = ipc.open_file(file)
            batches = map(random_access.get_batch, range(random_access.num_record_batches))
            yield from _at_least_one(batches, random_access.schema)
        else:
            file.seek(0)
            stream = ipc.open_stream(file)
            yield from _at_least_one(stream, stream.schema)


def _csv_batches(file: BinaryIO, types: Mapping[str, str]) -> Iterator[pa.RecordBatch]:
    with _problems_of_file():
        names, delimiter = csv_header(file)
        problem = quoting_problem(file, delimiter)
    trimmed = [name.strip() for name in names]
    if problem:
        raise AudienceError(problem)
    try:
        with _problems_of_file(trimmed):
            reader = _csv_reader(file, names, delimiter, types)
            for batch in _at_least_one(reader, reader.schema):
                yield batch.rename_columns(trimmed)
    except AudienceError as error:
        problem = wrong_csv_row(file, delimiter) or str(error)
    else:
        return
    raise AudienceError(problem)


def csv_header(file: BinaryIO) -> tuple[list[str], str]:
    """Return the names of a CSV file's columns, and the character between the values.

    Raise AudienceError if it has no names, and UnicodeDecodeError if it is not UTF-8.
    """
    headers = []
    with _as_text(file) as text:
        for delimiter in _DELIMITERS:
            text.seek(0)
            headers.append((next(filter(None, csv.reader(text, delimiter=delimiter)), []), delimiter))
    names, delimiter = next((each for each in headers if len(each[0]) > 1), headers[0])
    if not names:
        raise AudienceError("the file is empty. Write the names of its columns into the first line")
    return names, delimiter


def quoting_problem(file: BinaryIO, delimiter: str) -> str | None:
    """Return the first wrong row of a CSV file with quotation marks, as :func:`wrong_csv_row` does, or None.

    Arrow accepts a value that begins with a quotation mark and has no end, and takes all further rows for a part of it.
    """
    has_marks = any(b'"' in part for part in iter(lambda: file.read(1 << 20), b""))
    file.seek(0)
    return wrong_csv_row(file, delimiter) if has_marks else None


def wrong_csv_row(file: BinaryIO, delimiter: str) -> str | None:
    """Return the line of the first row of a CSV file that cannot be read, with the problem and the remedy, or None."""
    line, size = 1, 0
    with _as_text(file) as text:
        rows = csv.reader(text, delimiter=delimiter, strict=True)
        try:
            for row in rows:
                size = size or len(row)
                if len(row) not in (0, size):
                    return (
                        f"line {line}: the number of values is {len(row)}, but the header has {size}. "
                        f"Put quotation marks around values with {_DELIMITERS[delimiter]}"
                    )
                line = rows.line_num + 1
        except csv.Error as error:
            if "field limit" in str(error):  # it may also be a quotation mark without an end
                return (
                    f"line {line}: a value has more than {csv.field_size_limit():,} characters. Shorten it, or add the "
                    "quotation mark that ends it"
                )
            return f"line {line}: a quotation mark begins a value and none ends it. Double each one within a value"
        except UnicodeDecodeError:
            pass
    return None


@contextmanager
def _as_text(file: BinaryIO) -> Iterator[TextIO]:
    """Read a file as text from its beginning, and leave it there."""
    file.seek(0)
    text = TextIOWrapper(file, encoding="utf-8-sig", newline="")
    try:
        yield text
    finally:
        text.detach().seek(0)


def _csv_reader(
    file: BinaryIO, names: Sequence[str], delimiter: str, types: Mapping[str, str]
) -> arrow_csv.CSVStreamingReader:
    known = {"device_id": "integer"} | {name.lower(): type_ for name, type_ in types.items()}
    arrow = {name: _ARROW[known.get(name.strip().lower(), "text")] for name in names}
    return arrow_csv.open_csv(
        file,
        parse_options=arrow_csv.ParseOptions(delimiter=delimiter, newlines_in_values=True),
        convert_options=arrow_csv.ConvertOptions(
            column_types=arrow, null_values=[""], strings_can_be_null=True
        ),
    )


def _at_least_one(batches: Iterable[pa.RecordBatch], schema: pa.Schema) -> Iterator[pa.RecordBatch]:
    others = iter(batches)
    first = next(others, None)
    some = chain([pa.RecordBatch.from_pylist([], schema) if first is None else first], others)
    return map(_without_views, some)


def _without_views(batch: pa.RecordBatch) -> pa.RecordBatch:
    """Return a batch with the texts of polars, which are views, as those that all of Arrow's functions take."""
    return pa.record_batch([_without_view(column) for column in batch.columns], names=batch.schema.names)


def _without_view(column: pa.Array) -> pa.Array:
    if pa.types.is_string_view(column.type):
        return column.cast(pa.large_string())
    if pa.types.is_string_view(value_type(column)):
        return pa.DictionaryArray.from_arrays(column.indices, column.dictionary.cast(pa.large_string()))
    return column


@contextmanager
def _problems_of_file(names: Sequence[str] = ()) -> Iterator[None]:
    """Translate the errors of reading a file with these columns. Arrow's messages may quote values: they are not shown.

    The file is then damaged, unless a value does not fit the type of its column.
    """
    try:
        yield
    except (pa.ArrowException, csv.Error, UnicodeDecodeError) as error:
        found = _BAD_VALUE.search(str(error))
        if found is not None and int(found[1]) < len(names):
            name = names[int(found[1])]
            wanted = _IN_WORDS.get(found[2], "of its type in audience.columns")
            problem = f"column {name} has a value that is not {wanted}"
        elif isinstance(error, UnicodeDecodeError) or "UTF8" in str(error):
            problem = "the file has text that is not UTF-8. Save it in UTF-8"
        else:
            problem = f"the file cannot be read ({_DAMAGED})"
        raise AudienceError(problem) from None
    except OSError as error:  # Arrow's own has no strerror, if a file ends too early
        raise AudienceError(f"the file cannot be read ({error.strerror or _DAMAGED})") from None
