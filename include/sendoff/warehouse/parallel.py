"""Merge readers, each in its own thread, into one stream of batches."""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextlib import ExitStack, closing, suppress
from queue import Empty, SimpleQueue
from threading import Event, Semaphore

import pyarrow as pa

_BETWEEN_CANCELS = 0.05  # seconds
_BETWEEN_SIGNALS = 0.5  # seconds


def together(
    readers: Sequence[Generator[pa.RecordBatch, None, None]],
    cancels: Sequence[Callable[[], None]],
    stack: ExitStack,
) -> Iterator[pa.RecordBatch]:
    """Yield the batches of readers as they arrive. If a reader raises an error, raise it and end all readers.

    At most two batches per reader are waiting. ``cancels`` interrupt each reader from another thread. Closing the stack
    ends and closes all readers.
    """
    queue: SimpleQueue[pa.RecordBatch | Future[None]] = SimpleQueue()
    room, may_begin, is_over = Semaphore(2 * len(readers)), Event(), Event()
    ends: list[Future[None]] = []

    def bring(reader: Generator[pa.RecordBatch, None, None]) -> None:
        may_begin.wait()
        if is_over.is_set():
            return
        with closing(reader):
            for batch in reader:
                room.acquire()
                if is_over.is_set():
                    return
                queue.put(batch)

    def end() -> None:
        is_over.set()
        may_begin.set()
        room.release(len(readers))
        # Repeatedly, because a reader may have begun to wait just after it was cancelled.
        while wait(ends, timeout=0).not_done:
            for reading, cancel in zip(ends, cancels, strict=True):
                if not reading.done():
                    cancel()
            wait(ends, timeout=_BETWEEN_CANCELS)

    threads = stack.enter_context(ThreadPoolExecutor(len(readers), "warehouse"))
    stack.callback(end)
    # A signal may raise an error at any line. Each query must be known before it begins, so that it can be cancelled.
    ends += [threads.submit(bring, reader) for reader in readers]
    may_begin.set()
    return _batches(queue, room, ends)


def _batches(
    queue: SimpleQueue[pa.RecordBatch | Future[None]], room: Semaphore, ends: Sequence[Future[None]]
) -> Iterator[pa.RecordBatch]:
    for end in ends:
        end.add_done_callback(queue.put)
    reading = len(ends)
    while reading:
        item = _next(queue)
        if isinstance(item, Future):
            item.result()  # raises the reader's error, if any
            reading -= 1
        else:
            room.release()
            yield item


def _next(queue: SimpleQueue[pa.RecordBatch | Future[None]]) -> pa.RecordBatch | Future[None]:
    while True:  # between waits, this thread notices a signal that another thread received
        with suppress(Empty):
            return queue.get(timeout=_BETWEEN_SIGNALS)
