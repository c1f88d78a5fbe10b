"""Sort texts by their UTF-8 bytes and remove duplicates, without Python objects for the texts."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

_KEY = 8  # bytes of each text to compare as one number
_KEYS_AT_ONCE = 1 << 18


def sorted_once(chunks: list[pa.LargeStringArray]) -> pa.LargeStringArray:
    """Join arrays without nulls into one sorted array without duplicates."""
    column = pa.concat_arrays(chunks)
    if len(column) < 2 or pc.all(pc.less(column[:-1], column[1:])).as_py():
        return column
    column = column.take(pa.array(_order(column)))
    differs = pc.not_equal(column[1:], column[:-1])
    if differs.false_count == 0:
        return column
    return column.filter(pa.concat_arrays([pa.array([True]), differs]))


def lengths_and_text(column: pa.LargeStringArray) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.uint8]]:
    """Return the length of each text in bytes, and the bytes of all texts in one array."""
    ends, text = _ends_and_text(column)
    return np.diff(ends), text[ends[0] : ends[-1]]


def _order(column: pa.LargeStringArray) -> npt.NDArray[np.intp]:
    # Sorting numbers is several times faster than sorting texts. Each number consists of the first bytes after the
    # prefix that all texts share, so few numbers are equal. Texts with equal numbers are then sorted as texts.
    keys = _keys(column, _shared_prefix(column))
    order = np.argsort(keys)
    keys = keys[order]
    equal = keys[1:] == keys[:-1]
    tied = np.flatnonzero(np.append(equal, False) | np.append(False, equal))
    if len(tied):
        rows = order[tied]
        order[tied] = rows[pc.sort_indices(column.take(pa.array(rows))).to_numpy()]
    return order


def _shared_prefix(column: pa.LargeStringArray) -> int:
    bounds = pc.min_max(column)
    least, most = (bounds[end].as_py().encode() for end in ("min", "max"))
    return next((place for place, (a, b) in enumerate(zip(least, most, strict=False)) if a != b), len(least))


def _keys(column: pa.LargeStringArray, skip: int) -> npt.NDArray[np.uint64]:
    ends, text = _ends_and_text(column)
    keys = np.empty(len(column), np.uint64)
    for start in range(0, len(column), _KEYS_AT_ONCE):
        some = ends[start : start + _KEYS_AT_ONCE + 1]
        digits: npt.NDArray[Any] = np.zeros((len(some) - 1, _KEY), np.uint8)
        for place in range(_KEY):
            at = some[:-1] + skip + place
            digits[:, place] = np.where(at < some[1:], text[np.minimum(at, len(text) - 1)], 0)
        keys[start : start + len(digits)] = digits.view(">u8")[:, 0]
    return keys


def _ends_and_text(column: pa.LargeStringArray) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.uint8]]:
    _, offsets, text = column.buffers()
    ends = np.frombuffer(offsets, np.int64)[column.offset : column.offset + len(column) + 1]
    return ends, np.frombuffer(text, np.uint8)
