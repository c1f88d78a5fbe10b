"""What the demo shows: a line for each thing that is done, and between them how far the next one is."""

from __future__ import annotations

import time
from collections.abc import Callable
from types import TracebackType
from typing import Self

from rich.console import Console, RenderableType
from rich.status import Status

_EVERY = 5.0  # seconds between two lines of progress where a line cannot be written over
_WORTH_TELLING = 0.1  # seconds


class Screen:
    """Standard output: a terminal, where progress is one moving line, or a file, where it is a line now and then."""

    def __init__(self, console: Console | None = None, clock: Callable[[], float] = time.monotonic) -> None:
        self._console = console or Console(highlight=False)
        self._clock = clock
        self._status: Status | None = None
        self._began = clock()
        self._said = ("", float("-inf"))

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._still()

    def doing(self, text: str) -> None:
        """Say how far it is with what takes a while."""
        if self._console.is_terminal:
            self._status = self._status or self._console.status("")
            self._status.update(text)
            self._status.start()
        elif text != self._said[0] and self._clock() - self._said[1] >= _EVERY:
            self._said = (text, self._clock())
            self._line(f"  ... {text}")

    def done(self, title: str, text: str) -> None:
        """Say what came of it, and how long it took since the last line of this kind."""
        self._still()
        now = self._clock()
        took, self._began = now - self._began, now
        self._line(f"{title:<10} {text}  [{took:.1f} s]" if took >= _WORTH_TELLING else f"{title:<10} {text}")

    def say(self, text: str) -> None:
        """Say something in a line of its own."""
        self._still()
        self._line(text)

    def show(self, thing: RenderableType) -> None:
        """Show a table."""
        self._still()
        self._console.print(thing)

    def _line(self, text: str) -> None:
        self._console.print(text, markup=False, soft_wrap=True)  # a path stays in one piece

    def _still(self) -> None:
        if self._status:
            self._status.stop()
            self._status = None
