"""Show the demo's progress: a line for each finished step, and the progress of the current one."""

from __future__ import annotations

import time
from collections.abc import Callable
from types import TracebackType
from typing import Self

from rich.console import Console, RenderableType
from rich.status import Status

_EVERY = 5.0  # seconds between two lines of progress, if the output is no terminal
_SHOWN_FROM = 0.1  # seconds


class ProgressDisplay:
    """Write progress to standard output: one updated line on a terminal, a line now and then in a file."""

    def __init__(self, console: Console | None = None, clock: Callable[[], float] = time.monotonic) -> None:
        self._console = console or Console(highlight=False)
        self._clock = clock
        self._status: Status | None = None
        self._began = clock()
        self._last_line = ("", float("-inf"))

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stop_status()

    def doing(self, text: str) -> None:
        """Show the progress of the current step."""
        if self._console.is_terminal:
            self._status = self._status or self._console.status("")
            self._status.update(text)
            self._status.start()
        elif text != self._last_line[0] and self._clock() - self._last_line[1] >= _EVERY:
            self._last_line = (text, self._clock())
            self._line(f"  ... {text}")

    def done(self, title: str, text: str) -> None:
        """Print the result of a step, and the time since the last one."""
        self._stop_status()
        now = self._clock()
        took, self._began = now - self._began, now
        self._line(f"{title:<10} {text}  [{took:.1f} s]" if took >= _SHOWN_FROM else f"{title:<10} {text}")

    def print_line(self, text: str) -> None:
        """Print a line."""
        self._stop_status()
        self._line(text)

    def show(self, thing: RenderableType) -> None:
        """Print a table."""
        self._stop_status()
        self._console.print(thing)

    def _line(self, text: str) -> None:
        self._console.print(text, markup=False, soft_wrap=True)  # a path stays in one piece

    def _stop_status(self) -> None:
        if self._status:
            self._status.stop()
            self._status = None
