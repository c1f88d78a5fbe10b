"""Restrict files that identify people, so that other users of the machine cannot read them."""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path

_OTHERS = 0o007
# Suffixes of a database and of the files that SQLite keeps next to it, with the same mode.
_BESIDE = ("", "-wal", "-shm", "-journal")


def make_private(database: Path) -> None:
    """Create an SQLite file with mode 0600, or remove the rights of other users from an existing one.

    The rights of the file's group stay as they are. If the file cannot be created, SQLite reports the reason later.
    """
    try:
        os.close(os.open(database, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600))
    except FileExistsError:
        for ending in _BESIDE:
            _close_to_others(Path(f"{database}{ending}"))
    except OSError:
        return


def _close_to_others(file: Path) -> None:
    with suppress(OSError):  # the file does not exist, or belongs to another user
        mode = file.stat().st_mode
        if file.is_file() and mode & _OTHERS:
            file.chmod(mode & 0o770)
