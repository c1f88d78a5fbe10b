"""Reading the files of a campaign's folder, whose author may not be the one who runs them."""

from __future__ import annotations

import io
import os
import stat
from pathlib import Path

MOST_YAML = 256 * 1024
"""Most bytes of campaign.yaml; a megabyte of YAML takes longer to read than Airflow lets a DAG file take."""

MOST_SQL = 1024 * 1024
"""Most bytes of a query."""


class UnfitFileError(Exception):
    """A file that is not read. ``found`` and ``allowed`` are the two halves of what is told of it."""

    def __init__(self, found: str, allowed: str) -> None:
        super().__init__(f"found {found}; allowed: {allowed}")
        self.found = found
        self.allowed = allowed


def read_text(file: Path, kind: str, most: int) -> str:
    """Read a file of at most ``most`` bytes; ``kind`` says in errors what it holds, such as SQL.

    Waits for nobody and touches no device: what is no regular file is not read. Raises FileNotFoundError, and
    UnfitFileError for what else keeps it from being read.
    """
    try:
        with open(file, "rb", opener=_without_waiting) as opened:
            if not stat.S_ISREG(os.fstat(opened.fileno()).st_mode):
                raise UnfitFileError("what is no regular file", f"{kind} in UTF-8")
            content = opened.read(most + 1)
    except FileNotFoundError:
        raise
    except OSError as error:
        raise UnfitFileError(f"a file that cannot be read ({error.strerror})", f"{kind} in UTF-8") from None
    if len(content) > most:
        raise UnfitFileError("a file that is too large", f"at most {most // 1024} KiB")
    try:
        text = io.TextIOWrapper(io.BytesIO(content), "utf-8").read()  # with one kind of line end
    except UnicodeDecodeError:
        raise UnfitFileError("bytes that are not UTF-8", "UTF-8") from None
    if "\0" in text:
        raise UnfitFileError("a character that no database takes (NUL)", f"{kind} without it")
    return text


def _without_waiting(path: str, flags: int) -> int:
    return os.open(path, flags | os.O_NONBLOCK)  # a pipe would wait for its writer
