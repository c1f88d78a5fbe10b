"""Progress of long work on standard error: a bar in a terminal, and a line now and then elsewhere or as JSON."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress

from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    SpinnerColumn,
    TextColumn,
    TimeElapsedColumn,
)

from sendoff.errors import SendoffError
from sendoff.telemetry import logs

_EVERY_IN_TERMINAL = 0.5  # seconds between two looks
_EVERY = 10.0


class Steps:
    """Shows the steps of long work, one after another."""

    def __init__(self, console: Console | None = None, every: float = _EVERY) -> None:
        self._console = console or Console(stderr=True, highlight=False)
        self._has_bar = self._console.is_terminal and not logs.is_json()
        self._every = _EVERY_IN_TERMINAL if self._has_bar else every
        self._step = self._wait = ""  # the newest of each

    @contextmanager
    def step(
        self,
        text: str,
        total: int | None = None,
        done: Callable[[], int] | None = None,
        *,
        is_often_short: bool = False,
    ) -> Iterator[None]:
        """Show one step while the block runs.

        ``done``: the part of ``total`` that is done; another thread calls it. ``is_often_short``: outside a terminal,
        the step is a line only if it takes long. The same step again, after a wait, is one only then too.
        """
        is_repeated, self._step = text == self._step, text
        if not self._has_bar:
            late = (lambda: self._line(text)) if is_often_short or is_repeated else None
            if not late:
                self._line(text)
            with self._watched(done, lambda count: self._line(f"{text}: {count:,} of {total:,}"), late):
                yield
            return
        columns = [SpinnerColumn(), TextColumn("{task.description}", markup=False)]
        if done:
            columns += [BarColumn(), MofNCompleteColumn()]
        with Progress(*columns, TimeElapsedColumn(), console=self._console, transient=True) as bar:
            task = bar.add_task(text, total=total)
            with self._watched(done, lambda count: bar.update(task, completed=count)):
                yield

    def wait(self, text: str, seconds: float) -> None:
        """Sleep. Outside a terminal, a wait with the text of the wait before is not another line."""
        is_repeated, self._wait = text == self._wait, text
        if self._has_bar:
            with self.step(text):
                time.sleep(seconds)
            return
        if not is_repeated:
            self._line(text)
        time.sleep(seconds)

    def _line(self, text: str) -> None:
        if logs.is_json():
            logs.note(text)
        else:
            self._console.print(text, markup=False, soft_wrap=True)

    @contextmanager
    def _watched(
        self,
        done: Callable[[], int] | None,
        show: Callable[[int], None],
        late: Callable[[], None] | None = None,
    ) -> Iterator[None]:
        """Call ``late`` once if the block takes long. Show the part that is done, each time it has changed."""
        stop = threading.Event()

        def watch() -> None:
            last = 0
            if late and not stop.wait(self._every):
                late()
            while done and not stop.wait(self._every):
                with suppress(SendoffError):  # the work itself reports it
                    if (count := done()) != last:
                        show(last := count)

        watcher = threading.Thread(target=watch, name="progress", daemon=True)
        watcher.start()
        try:
            yield
        finally:
            stop.set()
            watcher.join()
