"""Rows that no query reads: a DataFrame, an Arrow table or a file, as Arrow batches."""

from __future__ import annotations

import csv
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass, field
from io import TextIOWrapper
from itertools import chain
from os import PathLike
from pathlib import Path
from typing import Any, BinaryIO

import pyarrow as pa
from pyarrow import csv as arrow_csv
from pyarrow import ipc, parquet

from sendoff.errors import AudienceError

_TABLES = (".parquet", ".csv", ".arrow", ".feather")
_FILES = (".sql", *_TABLES)
# Numbers in these columns of a CSV file are texts: 007 is not 7. Other columns get the type that all of them fit.
_TEXTS = {"device_token", "device_uuid", "external_id", "user_id", "platform", "time_zone", "language"}


@dataclass(frozen=True, slots=True)
class Rows:
    """Rows that no query reads.

    ``origin``: where they come from, for errors, such as the path of a file. ``open``: opens them and yields their
    batches; at least one, which may be empty.
    """

    origin: str
    open: Callable[[], AbstractContextManager[Iterator[pa.RecordBatch]]] = field(repr=False)


def audience_source(given: Any) -> str | Rows:
    """Return the SQL of a query as it is, and the rows of anything else that can be an audience.

    ``given`` is one of these:

    - SQL
    - the path of a ``.sql``, ``.parquet``, ``.csv``, ``.arrow`` or ``.feather`` file, as text, as ``Path``, or as
      another kind of path that has ``open`` and ``suffix``, such as Airflow's ``ObjectStoragePath``
    - an object that exports an Arrow stream, such as a DataFrame of pandas or Polars, or a table of Arrow
    - rows, such as those of this function

    Raise AudienceError for anything else, and for a ``.sql`` file that cannot be read. Other files are read later.
    """
    if isinstance(given, Rows):
        return given
    if hasattr(given, "__arrow_c_stream__"):
        return Rows(f"the {type(given).__name__}", lambda: _stream(given))
    if isinstance(given, str) and (len(given.split()) != 1 or not given.lower().endswith(_FILES)):
        return given
    if isinstance(given, str | PathLike) or hasattr(given, "open"):
        return _of_path(Path(given) if isinstance(given, str) else given)
    raise AudienceError(
        f"found {type(given).__name__} as an audience. Use SQL, a path, a DataFrame or an Arrow table"
    )


def _of_path(path: Any) -> str | Rows:
    suffix = str(path.suffix).lower()
    if suffix not in _FILES:
        raise AudienceError(f"{path}: this type of file is not an audience. Use {', '.join(_FILES)}")
    if suffix != ".sql":
        return Rows(str(path), lambda: _file(path, suffix))
    with _problems_of(path), path.open("rb") as file:
        return str(file.read().decode())


@contextmanager
def _stream(frame: Any) -> Iterator[Iterator[pa.RecordBatch]]:
    with pa.RecordBatchReader.from_stream(frame) as reader:
        yield _at_least_one(reader, reader.schema)


@contextmanager
def _file(path: Any, suffix: str) -> Iterator[Iterator[pa.RecordBatch]]:
    with ExitStack() as stack:
        with _problems_of(path):
            file = stack.enter_context(path.open("rb"))
        yield _batches(path, file, suffix)


def _batches(path: Any, file: BinaryIO, suffix: str) -> Iterator[pa.RecordBatch]:
    with _problems_of(path):
        if suffix == ".parquet":
            table = parquet.ParquetFile(file)
            yield from _at_least_one(table.iter_batches(), table.schema_arrow)
        elif suffix == ".csv":
            reader = _csv_reader(file)
            yield from _at_least_one(reader, reader.schema)
        elif file.read(6) == b"ARROW1":  # the format with random access starts so
            random_access = ipc.open_file(file)
            batches = map(random_access.get_batch, range(random_access.num_record_batches))
            yield from _at_least_one(batches, random_access.schema)
        else:
            file.seek(0)
            stream = ipc.open_stream(file)
            yield from _at_least_one(stream, stream.schema)


def _csv_reader(file: BinaryIO) -> arrow_csv.CSVStreamingReader:
    text = TextIOWrapper(file, encoding="utf-8-sig", newline="")
    names = next(csv.reader(text), [])
    text.detach().seek(0)
    types = {name: pa.large_string() for name in names if name.strip().lower() in _TEXTS}
    types |= {name: pa.int64() for name in names if name.strip().lower() == "device_id"}
    return arrow_csv.open_csv(
        file,
        parse_options=arrow_csv.ParseOptions(newlines_in_values=True),
        convert_options=arrow_csv.ConvertOptions(column_types=types, strings_can_be_null=True),
    )


def _at_least_one(batches: Iterable[pa.RecordBatch], schema: pa.Schema) -> Iterator[pa.RecordBatch]:
    others = iter(batches)
    first = next(others, None)
    return chain([pa.RecordBatch.from_pylist([], schema) if first is None else first], others)


@contextmanager
def _problems_of(path: Any) -> Iterator[None]:
    """Translate the errors of reading a file. Arrow's messages may quote its values, so they are not shown."""
    try:
        yield
    except (pa.ArrowException, csv.Error, UnicodeDecodeError):
        problem = "it is damaged, or not what its name says"
    except OSError as error:
        problem = error.strerror or "the reason is not known"
    else:
        return
    raise AudienceError(f"{path}: the file cannot be read ({problem})")
