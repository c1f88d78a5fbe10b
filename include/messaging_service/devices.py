"""The import of devices from CSV files."""

from __future__ import annotations

import csv
import shutil
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from tempfile import TemporaryFile
from typing import Any
from zoneinfo import available_timezones

from messaging_service.store import Store, upsert
from messaging_service.tables import devices

PLATFORMS = ("android", "ios", "chrome", "firefox", "opera", "safari", "edge", "email", "sms")
BROWSERS = ("chrome", "firefox", "opera", "safari", "edge")
REQUIRED = ("device_id", "platform", "profile_id", "user_id", "language", "time_zone")
OPTIONAL = ("external_id", "token", "uuid", "email", "mobile_number")
_ROWS_AT_ONCE = 5_000
_PROBLEMS_SHOWN = 20


class ImportRefusedError(ValueError):
    """A file of devices was not imported; ``problems`` describes the first wrong lines."""

    def __init__(self, message: str, problems: Sequence[str] = ()) -> None:
        super().__init__(message)
        self.problems = tuple(problems)


@dataclass(frozen=True, slots=True)
class Imported:
    """The number of devices in a file, and the columns that became attributes."""

    devices: int
    attributes: tuple[str, ...]


def import_devices(store: Store, path: Path) -> Imported:
    """Import every device of a CSV file with a header, replacing those with the same device_id.

    ``platform`` is one of PLATFORMS. All columns except REQUIRED and OPTIONAL become attributes; empty values are
    left out. If any line is wrong, nothing is imported: raise ImportRefusedError with the first twenty wrong lines.
    Rows are stored in many short transactions, so that a running service can work meanwhile.
    """
    try:
        with (
            path.open(newline="", encoding="utf-8-sig") as given,
            TemporaryFile("w+", newline="", encoding="utf-8") as copy,
        ):
            shutil.copyfileobj(given, copy)  # a pipe can be read only once
            copy.seek(0)
            checked = _read(csv.reader(copy), lambda _: None)
            copy.seek(0)
            _read(csv.reader(copy), lambda rows: _store(store, rows))
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise ImportRefusedError(f"{path} cannot be read: {error}") from None
    return checked


def _read(lines: Iterator[list[str]], take: Callable[[list[dict[str, Any]]], None]) -> Imported:
    """Pass the rows to ``take``, some at a time. Raise ImportRefusedError at the end if lines were wrong."""
    header = [name.strip() for name in next(lines, [])]
    _check_header(header)
    reader = _Reader(header)
    count = 0
    while chunk := list(islice(lines, _ROWS_AT_ONCE)):
        rows = reader.read(chunk)
        count += len(rows)
        take(rows)
    if reader.problems:
        raise ImportRefusedError("nothing was imported, because some lines are wrong", reader.problems)
    return Imported(count, reader.attributes)


def _store(store: Store, rows: list[dict[str, Any]]) -> None:
    if rows:
        with store.write() as connection:
            upsert(connection, devices, rows)


def _check_header(header: Sequence[str]) -> None:
    missing = [name for name in REQUIRED if name not in header]
    if missing:
        raise ImportRefusedError(
            f"the header lacks the columns {', '.join(missing)}; it has {', '.join(header)}"
        )
    if len(set(header)) != len(header):
        raise ImportRefusedError("the header contains a column twice")


class _Reader:
    """Turns the lines of a file into rows, and collects the first problems."""

    def __init__(self, header: Sequence[str]) -> None:
        self.header = header
        self.attributes = tuple(name for name in header if name not in REQUIRED + OPTIONAL)
        self.problems: list[str] = []
        self.line = 1
        self._zones = available_timezones()
        self._seen: set[int] = set()

    def read(self, lines: Sequence[list[str]]) -> list[dict[str, Any]]:
        rows = []
        for line in lines:
            self.line += 1
            if not line:
                continue
            try:
                rows.append(self._row(line))
            except ValueError as error:
                self._complain(str(error))
        return rows

    def _complain(self, problem: str) -> None:
        if len(self.problems) < _PROBLEMS_SHOWN:
            self.problems.append(f"line {self.line}: {problem}")

    def _row(self, line: list[str]) -> dict[str, Any]:
        if len(line) != len(self.header):
            raise ValueError(f"{len(line)} values for {len(self.header)} columns")
        values = dict(zip(self.header, line, strict=True))
        platform = values["platform"].strip().lower()
        if platform not in PLATFORMS:
            raise ValueError(f"platform must be one of {', '.join(PLATFORMS)}")
        if values["time_zone"] and values["time_zone"] not in self._zones:
            raise ValueError("time_zone must be an IANA name")
        device_id = _identifier(values["device_id"], "device_id")
        if device_id in self._seen:
            raise ValueError("an earlier line has the same device_id")
        self._seen.add(device_id)
        return {
            "device_id": device_id,
            "platform": platform,
            "profile_id": _identifier(values["profile_id"], "profile_id") if values["profile_id"] else None,
            "user_id": values["user_id"] or None,
            "language": values["language"] or None,
            "time_zone": values["time_zone"] or None,
            **{name: values.get(name) or None for name in OPTIONAL},
            "attributes": {name: values[name] for name in self.attributes if values[name]},
        }


def _identifier(text: str, name: str) -> int:
    if text.isascii() and text.isdigit() and 0 < int(text) < 2**63:
        return int(text)
    raise ValueError(f"{name} must be a whole number greater than 0")
