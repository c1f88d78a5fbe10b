"""Sort texts by their UTF-8 bytes and remove duplicates, without Python objects for the texts.

Texts are sorted in runs as they arrive. The runs are then merged range by range: each range is cut out of every run,
sorted, and written behind the range before it. Threads sort several ranges at once. What a range has used is released,
so that a merge takes little more memory than its texts.
"""

from __future__ import annotations

import mmap
import os
from bisect import bisect_left
from collections import deque
from collections.abc import Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

SortedRun = deque[pa.LargeStringArray]
"""Sorted texts without duplicates, in consecutive pieces."""

_KEY = 8  # bytes of each text to compare as one number
_OWN_BITS = np.array([(1 << 64) - (1 << 8 * (_KEY - size)) for size in range(_KEY + 1)], np.uint64)
_PIECE = 1 << 17  # bytes of a piece, which a merge releases at once
_MOST_PIECES = 32  # of a run; a larger run has larger pieces
_SAMPLES = 8  # texts of each piece among which the limits of ranges are chosen
_RANGE = 1 << 20  # bytes of text to merge at once in one thread
_MOST_RANGES = 256  # of a merge, because it searches each run for the start of each range
_THREADS = min(4, os.cpu_count() or 1)  # numpy and Arrow sort without Python's lock


def sorted_once(chunks: list[pa.LargeStringArray]) -> pa.LargeStringArray:
    """Join arrays without nulls into one sorted array without duplicates."""
    column = pa.concat_arrays(chunks)
    order = None if _rises(column) else _order(column, _shared_prefix(column))
    return column if order is None else _taken(column, order)


def sorted_run(chunks: list[pa.LargeStringArray]) -> SortedRun:
    """Sort arrays without nulls; each piece of the run has its own memory."""
    column = sorted_once(chunks)
    return deque(_written([piece], len(piece), _size(piece)) for piece in run_of(column))


def run_of(column: pa.LargeStringArray) -> SortedRun:
    """Return an array that is sorted and has no duplicates as a run."""
    pieces = min(_MOST_PIECES, column.nbytes // _PIECE + 1)
    rows = max(1, -(-len(column) // pieces))
    return deque(column.slice(at, rows) for at in range(0, len(column), rows))


def merged(runs: Iterable[SortedRun]) -> pa.LargeStringArray:
    """Merge runs into one sorted array without duplicates; the runs are empty afterwards."""
    waiting = [run for run in runs if run]
    pieces = [piece for run in waiting for piece in run]
    if len(pieces) < 2:
        return pieces[0] if pieces else pa.array([], pa.large_string())
    rows, size, limits = sum(map(len, pieces)), sum(map(_size, pieces)), _limits(pieces)
    del pieces
    return _written(_ranges(waiting, limits), rows, size)


def lengths_and_text(column: pa.LargeStringArray) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.uint8]]:
    """Return the length of each text in bytes, and the bytes of all texts in one array."""
    ends, text = _ends_and_text(column)
    return np.diff(ends), text[ends[0] : ends[-1]]


def _written(columns: Iterable[pa.LargeStringArray], rows: int, size: int) -> pa.LargeStringArray:
    """Join arrays of at most ``rows`` texts and ``size`` bytes as they arrive, in memory of their own."""
    # Pages that are not written take no memory, and all pages are released at once. Arrow would keep them for a while.
    memory = mmap.mmap(-1, (rows + 1) * 8 + size, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    ends = np.frombuffer(memory, np.int64, rows + 1)
    text = np.frombuffer(memory, np.uint8, offset=ends.nbytes)
    count = end = 0
    for column in columns:
        own_ends, own_text = _ends_and_text(column)
        more, start = count + len(column), own_ends[0]
        np.add(own_ends[1:], end - start, out=ends[count + 1 : more + 1])
        text[end : ends[more]] = own_text[start : own_ends[-1]]
        count, end = more, int(ends[more])
    buffers = pa.py_buffer(ends[: count + 1]), pa.py_buffer(text[:end])
    return pa.LargeStringArray.from_buffers(count, *buffers)


def _limits(pieces: list[pa.LargeStringArray]) -> list[str]:
    """Return the first text of each range but the first, so that the ranges are about equally large."""
    samples = sorted({text.as_py() for piece in pieces for text in piece[:: -(-len(piece) // _SAMPLES)]})
    ranges = min(_MOST_RANGES, sum(piece.nbytes for piece in pieces) // _RANGE + 1)
    return samples[:: -(-len(samples) // ranges)][1:]


def _ranges(runs: list[SortedRun], limits: list[str]) -> Iterator[pa.LargeStringArray]:
    """Yield the texts of all runs in order, range by range."""
    coming: deque[Future[list[pa.LargeStringArray]]] = deque()
    with ThreadPoolExecutor(_THREADS, "sort") as threads:
        for limit in [*limits, None]:
            coming.append(threads.submit(_joined, [part for run in runs if (part := _before(run, limit))]))
            if len(coming) > _THREADS:
                yield from coming.popleft().result()
        while coming:
            yield from coming.popleft().result()


def _joined(parts: list[list[pa.LargeStringArray]]) -> list[pa.LargeStringArray]:
    """Return one range of several runs in order; ``parts`` has the pieces of each."""
    if len(parts) < 2:
        return parts[0] if parts else []
    least = min(part[0][0].as_py() for part in parts)
    most = max(part[-1][-1].as_py() for part in parts)
    column = pa.concat_arrays([piece for part in parts for piece in part])
    parts.clear()
    order = _order(column, _in_common(least, most))
    return [column if order is None else _taken(column, order)]


def _before(run: SortedRun, limit: str | None) -> list[pa.LargeStringArray]:
    """Take the texts before a limit out of a run; without a limit, all texts."""
    found = []
    while run:
        piece = run.popleft()
        size = len(piece)
        if limit is not None:
            size = bisect_left(piece, limit, key=lambda text: text.as_py())
        if size:
            found.append(piece.slice(0, size))
        if size < len(piece):
            run.appendleft(piece.slice(size))
            break
    return found


def _order(column: pa.LargeStringArray, skip: int) -> npt.NDArray[np.intp] | None:
    """Return the positions of the texts in sorted order, each text once; None if the array is like this already.

    All texts must have the same first ``skip`` bytes.
    """
    # Sorting numbers is several times faster than sorting texts. Each number consists of the first bytes after the
    # prefix that all texts share, so few numbers are equal. Texts with equal numbers are then sorted as texts.
    keys = _keys(column, skip)
    if np.all(keys[:-1] <= keys[1:]) and _rises(column):
        return None
    order = np.argsort(keys)
    keys = keys[order]
    equal = keys[1:] == keys[:-1]
    tied = np.flatnonzero(np.append(equal, False) | np.append(False, equal))
    if not len(tied):
        return order
    texts = column.take(pa.array(order[tied]))
    places = pc.sort_indices(texts)
    order[tied] = order[tied][places.to_numpy()]
    texts = texts.take(places)
    repeats = pc.equal(texts[1:], texts[:-1]).to_numpy(zero_copy_only=False)
    return np.delete(order, tied[1:][repeats])


def _taken(column: pa.LargeStringArray, order: npt.NDArray[np.intp]) -> pa.LargeStringArray:
    """Return the texts at some positions."""
    ends, text = _ends_and_text(column)
    size = int(ends[1] - ends[0])
    if not size or np.any(np.diff(ends) != size):
        return column.take(pa.array(order))
    # Texts of the same length, such as UUIDs, are moved whole, which is about ten times as fast.
    taken = text[ends[0] : ends[-1]].view(f"V{size}").take(order).view(np.uint8)
    places = np.arange(0, len(taken) + 1, size, dtype=np.int64)
    return pa.LargeStringArray.from_buffers(len(order), pa.py_buffer(places), pa.py_buffer(taken))


def _rises(column: pa.LargeStringArray) -> bool:
    return bool(pc.all(pc.less(column[:-1], column[1:]), min_count=0).as_py())


def _keys(column: pa.LargeStringArray, skip: int) -> npt.NDArray[np.uint64]:
    """Return the eight bytes of each text after the first ``skip`` ones as a number, with zeros after its end."""
    ends, text = _ends_and_text(column)
    padded = np.append(text[ends[0] : ends[-1]], np.zeros(_KEY, np.uint8))
    words = np.ndarray(len(padded) - _KEY + 1, ">u8", padded, strides=(1,))  # the eight bytes at each place
    starts = ends[:-1] - (ends[0] - skip)
    keys: npt.NDArray[np.uint64] = words[starts].astype(np.uint64)
    keys &= _OWN_BITS[np.minimum(ends[1:] - (ends[0] + starts), _KEY)]
    return keys


def _shared_prefix(column: pa.LargeStringArray) -> int:
    """Return the number of bytes at the start that are the same in all texts."""
    skip, shortest = 0, int(np.diff(_ends_and_text(column)[0]).min(initial=1 << 31))
    while len(column) and skip < shortest:
        keys = _keys(column, skip)
        same = _KEY - ((int(keys.min()) ^ int(keys.max())).bit_length() + 7) // 8
        skip += same
        if same < _KEY:
            break
    return min(skip, shortest)


def _in_common(least: str, most: str) -> int:
    """Return the number of bytes at the start that are the same in both texts, and so in all between them."""
    one, other = least.encode(), most.encode()
    return next((place for place, (a, b) in enumerate(zip(one, other, strict=False)) if a != b), len(one))


def _size(column: pa.LargeStringArray) -> int:
    ends, _ = _ends_and_text(column)
    return int(ends[-1] - ends[0])


def _ends_and_text(column: pa.LargeStringArray) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.uint8]]:
    if not len(column):
        return np.zeros(1, np.int64), np.empty(0, np.uint8)
    _, offsets, text = column.buffers()
    ends = np.frombuffer(offsets, np.int64)[column.offset : column.offset + len(column) + 1]
    return ends, np.frombuffer(text, np.uint8)
