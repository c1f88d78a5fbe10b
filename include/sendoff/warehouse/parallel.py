"""Several readers, each in a thread of its own, become one stream of batches."""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextlib import ExitStack, closing
from queue import SimpleQueue
from threading import Event, Semaphore

import pyarrow as pa

_BETWEEN_CANCELS = 0.05  # seconds


def together(
    readers: Sequence[Generator[pa.RecordBatch, None, None]],
    cancels: Sequence[Callable[[], None]],
    stack: ExitStack,
) -> Iterator[pa.RecordBatch]:
    """Give the batches of several readers as they come; what one raises is raised here, and ends all.

    Two batches of each reader wait at most. ``cancels`` end what a reader waits for, from another thread. When the
    stack is closed, all readers have ended and are closed.
    """
    meeting = _Meeting(len(readers))
    threads = stack.enter_context(ThreadPoolExecutor(len(readers), "warehouse"))
    ends = [threads.submit(meeting.bring, reader) for reader in readers]
    stack.callback(meeting.end, ends, cancels)
    return meeting.batches(ends)


class _Meeting:
    """Where readers bring their batches, and wait while too many are there."""

    def __init__(self, readers: int) -> None:
        self._brought: SimpleQueue[pa.RecordBatch | Future[None]] = SimpleQueue()
        self._room = Semaphore(2 * readers)
        self._is_over = Event()

    def bring(self, reader: Generator[pa.RecordBatch, None, None]) -> None:
        with closing(reader):
            for batch in reader:
                self._room.acquire()
                if self._is_over.is_set():
                    return
                self._brought.put(batch)

    def batches(self, ends: Sequence[Future[None]]) -> Iterator[pa.RecordBatch]:
        for each in ends:
            each.add_done_callback(self._brought.put)
        reading = len(ends)
        while reading:
            brought = self._brought.get()
            if isinstance(brought, Future):
                brought.result()  # raises what ended this reader
                reading -= 1
            else:
                self._room.release()
                yield brought

    def end(self, ends: Sequence[Future[None]], cancels: Sequence[Callable[[], None]]) -> None:
        self._is_over.set()
        self._room.release(len(ends))
        # Again and again, for a reader may have begun to wait just after it was told not to.
        while wait(ends, timeout=0).not_done:
            for reading, cancel in zip(ends, cancels, strict=True):
                if not reading.done():
                    cancel()
            wait(ends, timeout=_BETWEEN_CANCELS)
