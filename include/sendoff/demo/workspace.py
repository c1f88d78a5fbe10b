"""The folder with all files of a demo. It is emptied at the start and kept at the end."""

from __future__ import annotations

import fcntl
import os
import shutil
from pathlib import Path
from types import TracebackType
from typing import Self

from sendoff.demo.options import DemoError

MARK = "this-folder-belongs-to-the-sendoff-demo"


class Workspace:
    """The paths of a demo's files. Entering the context locks the folder for this process and empties it.

    Raise DemoError if the folder holds files that no demo made, or if another demo runs in it.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder.absolute()
        self.logs = self.folder / "logs"
        self.warehouse = self.folder / "warehouse.db"
        self.devices = self.folder / "devices.csv"
        self.service = self.folder / "service.db"
        self.airflow = self.folder / "airflow"
        self.dags = self.folder / "dags"
        self.picture = self.folder / "report.png"

    @property
    def ledger_url(self) -> str:
        """The URL of the ledger."""
        return f"sqlite:///{self.folder / 'ledger.db'}"

    def __enter__(self) -> Self:
        mark = self.folder / MARK
        if self.folder.exists() and any(self.folder.iterdir()) and not mark.exists():
            raise DemoError(
                f"{self.folder} holds files that no demo made. Choose another folder with --workspace."
            )
        self.folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        self.folder.chmod(0o700)  # an older demo may have created it
        self._lock = os.open(mark, os.O_CREAT | os.O_RDWR, 0o600)
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(self._lock)
            raise DemoError(
                f"Another demo is running in {self.folder}. Choose another folder with --workspace."
            ) from None
        for entry in self.folder.iterdir():
            if entry.is_dir() and not entry.is_symlink():
                shutil.rmtree(entry)
            elif entry != mark:
                entry.unlink()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        os.close(self._lock)
