"""Files and folders that name people: no other user of the machine may read them."""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path

_OTHERS = 0o007
_BESIDE = (
    "",
    "-wal",
    "-shm",
    "-journal",
)  # what SQLite keeps beside a database, with the database's own mode


def make_private(database: Path) -> None:
    """Make an SQLite file with mode 0600, or take the rights of everybody else from one that is there.

    A file that somebody opened for a group stays open for that group. Where the file cannot be made, SQLite says why.
    """
    try:
        os.close(os.open(database, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600))
    except FileExistsError:
        for ending in _BESIDE:
            _close_to_others(database.with_name(f"{database.name}{ending}"))
    except OSError:
        return


def _close_to_others(file: Path) -> None:
    with suppress(OSError):  # it is not there, or belongs to another user
        mode = file.stat().st_mode
        if file.is_file() and mode & _OTHERS:
            file.chmod(mode & 0o770)
