"""The columns that aggregation reads, from the blocks of many commits at once."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from sendoff.ledger.post_backs.block_format import (
    AGGREGATED,
    OPEN,
    READABLE,
    SCRUBBED,
    SECOND,
    TEXT_KEYS,
    TEXT_USERS,
    WHOLE_SECONDS,
    Content,
    Marks,
    Planes,
    content_of,
    keys_of,
    moments,
)
from sendoff.ledger.post_backs.blocks import BlockSelection


def as_batch(parts: Sequence[BlockSelection], named_by: Collection[str]) -> pa.RecordBatch:
    """Return the post-backs of blocks as one batch with the columns that aggregation reads.

    ``named_by``: ``device_id`` and ``user_id`` are added if they are in it. Raise UnusableLedgerError if a block is
    damaged.
    """
    contents = [content_of(part.receiver, part.first, part.block) for part in parts]
    planes = Planes(contents, AGGREGATED)
    what, counts = planes.what, planes.counts
    starts = [content.received_at for content in contents]
    begins = np.cumsum([0, *counts[:-1]])
    firsts = np.array([part.first for part in parts], np.int64)
    number = np.arange(len(what)) + np.repeat(firsts - begins, counts)
    units = [SECOND if content.form & WHOLE_SECONDS else 1 for content in contents]
    occurred = moments(planes.numbers("occurred_at"), counts, [content.occurred_at for content in contents])
    columns = {
        "what": _array((what & (OPEN | READABLE | SCRUBBED)).astype(np.int16), pa.int16()),
        "receiver": _array(np.repeat(np.array([part.receiver for part in parts], np.int64), counts)),
        "number": _array(number),
        "dispatch_key": _dispatch_keys(contents, planes, counts),
        "received_at": _array(
            moments(planes.numbers("received_at"), counts, starts), pa.timestamp("us", "UTC")
        ),
        "occurred_at": _array(occurred * np.repeat(units, counts), pa.timestamp("us", "UTC")),
        "campaign_id": _identifiers(planes, "campaign_id"),
    }
    if "device_id" in named_by:
        columns["device_id"] = _identifiers(planes, "device_id")
    if "user_id" in named_by:
        columns["user_id"] = _users(contents, planes, counts)
    batch = pa.record_batch(columns)
    if any(part.wanted is not None for part in parts):
        is_wanted = np.ones(len(number), np.bool_)
        for part, begin, count in zip(parts, begins.tolist(), counts, strict=True):
            if part.wanted is not None:
                is_wanted[begin : begin + count] = np.isin(number[begin : begin + count], list(part.wanted))
        batch = batch.take(_array(np.flatnonzero(is_wanted)))
    return batch


def _array(
    values: npt.NDArray[Any], type_: pa.DataType | None = None, present: Marks | None = None
) -> pa.Array:
    """Return a column. Unlike ``pa.array``, it does not import pandas."""
    validity = None
    if present is not None and not present.all():
        validity = pa.py_buffer(np.packbits(present, bitorder="little"))
    data = pa.py_buffer(np.ascontiguousarray(values))
    return pa.Array.from_buffers(type_ or pa.int64(), len(values), [validity, data])


def _identifiers(planes: Planes, name: str) -> pa.Array:
    return _array(planes.numbers(name), present=planes.has(name))


def _dispatch_keys(contents: Sequence[Content], planes: Planes, counts: Sequence[int]) -> pa.DictionaryArray:
    """Return the dispatch keys of blocks, each once in the dictionary."""
    sizes = [content.keys for content in contents]
    places = planes.keys() + np.repeat(np.cumsum([0, *sizes[:-1]]), counts)
    if any(content.form & TEXT_KEYS for content in contents):
        keys = pa.array([key for content in contents for key in keys_of(content)], pa.string())
        encoded = keys.dictionary_encode()
        names = encoded.dictionary
    else:
        stored = b"".join(content.stored_keys for content in contents)
        raw = pa.Array.from_buffers(pa.binary(16), len(stored) // 16, [None, pa.py_buffer(stored)])
        encoded = raw.dictionary_encode()
        names = _hex(encoded.dictionary)
    return pa.DictionaryArray.from_arrays(encoded.indices.take(_array(places)), names)


def _hex(keys: pa.FixedSizeBinaryArray) -> pa.StringArray:
    digits = keys.buffers()[1].to_pybytes()[: 16 * len(keys)].hex().encode()
    offsets = np.arange(0, 32 * len(keys) + 1, 32, dtype=np.int32)
    return pa.Array.from_buffers(pa.string(), len(keys), [None, pa.py_buffer(offsets), pa.py_buffer(digits)])


def _users(contents: Sequence[Content], planes: Planes, counts: Sequence[int]) -> pa.StringArray:
    present, numbers = planes.has("user_id"), planes.numbers("user_id")
    has_text = [bool(content.form & TEXT_USERS) for content in contents]
    if not any(has_text):
        return _prefixed(contents, counts, _array(numbers, present=present))
    is_text = np.repeat(has_text, counts)
    ends = np.cumsum(np.where(is_text, numbers, 0), dtype=np.int32)
    buffers = [
        pa.py_buffer(np.packbits(present, bitorder="little")),
        pa.py_buffer(np.concatenate([np.zeros(1, np.int32), ends])),
        pa.py_buffer(b"".join(content.users for content in contents if content.form & TEXT_USERS)),
    ]
    texts = pa.Array.from_buffers(pa.string(), len(numbers), buffers)
    if all(has_text):
        return texts
    return pc.if_else(
        _array(is_text.view(np.uint8), pa.uint8()).cast(pa.bool_()),
        texts,
        _prefixed(contents, counts, _array(numbers, present=present)),
    )


def _prefixed(contents: Sequence[Content], counts: Sequence[int], numbers: pa.Int64Array) -> pa.StringArray:
    """Return user IDs that are whole numbers after a prefix of their block."""
    prefixes = ["" if content.form & TEXT_USERS else content.users.decode() for content in contents]
    texts = numbers.cast(pa.string())
    if not any(prefixes):
        return texts
    of_row = pa.array(prefixes, pa.string()).take(_array(np.repeat(np.arange(len(contents)), counts)))
    return pc.binary_join_element_wise(of_row, texts, "")
