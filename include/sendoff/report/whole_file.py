"""Write files that appear only when they are complete."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, suppress
from pathlib import Path
from tempfile import mkstemp
from typing import IO

from sendoff.errors import SettingsError


@contextmanager
def whole_file(path: Path, mode: int = 0o600) -> Iterator[IO[bytes]]:
    """Open a temporary file for writing and rename it to ``path`` at the end. Until then only its owner can read it.

    Raise SettingsError if it cannot be written.
    """
    try:
        number, name = mkstemp(dir=path.parent, prefix=f".{path.name}.")
        try:
            with os.fdopen(number, "wb") as file:
                yield file
                file.flush()
                os.fsync(file.fileno())
            Path(name).chmod(mode)
            Path(name).replace(path)
        except BaseException:
            Path(name).unlink()
            raise
    except OSError as error:
        raise SettingsError(f"{path} cannot be written: {error.strerror or type(error).__name__}.") from None


def page_file(path: Path) -> AbstractContextManager[IO[bytes]]:
    """Open a file like :func:`whole_file` for a page or a picture, which anyone may read. Create its folder."""
    with suppress(OSError):  # writing the file reports the error
        path.parent.mkdir(parents=True, exist_ok=True)
    return whole_file(path, 0o644)
