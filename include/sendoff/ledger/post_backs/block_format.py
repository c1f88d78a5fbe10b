"""The format of a block: the post-backs of one commit as one compressed value, a fraction of what rows take.

A block has a head and the compressed content: the columns of the post-backs one after the other. A column of whole
numbers is stored as planes: first the lowest byte of each number, then the next byte of each, up to the highest. Planes
of zeros, which most of the high bytes are, are left out. The columns of many blocks are joined without a loop.

The content is compressed by LZ4, which takes a quarter of Zstandard's time and a few percent more bytes. A block with
texts is compressed by Zstandard, because LZ4 makes it up to two thirds larger.

.. code-block:: text

    head ............. the compression (1: Zstandard, 2: LZ4), size and checksum of the content
    counts ........... of post-backs, dispatch keys, and the bytes of the parts at the end; a bit for each plane
    planes ........... flags, dispatch key, time of receiving, device, campaign, user, time in the body, profile, send
    dispatch keys .... each once
    user IDs ......... the prefix of all, if a whole number follows it in each; otherwise the texts, and the planes have
                       their lengths
    bodies ........... of unreadable post-backs only
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import lru_cache
from itertools import takewhile
from struct import Struct
from struct import error as StructError  # noqa: N812 - it is lower case there
from typing import Any, NamedTuple
from zlib import crc32

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from sendoff.errors import UnusableLedgerError

OPEN, READABLE, SCRUBBED = 1, 2, 4
"""The bits of the column ``what`` that aggregation reads. One number costs less than a text and a flag.

A post-back is scrubbed if it named a person who was erased since.
"""

_HEAD = Struct("<BII")  # compression, size of the content, checksum of the content
# Post-backs, keys, form, start of both times, bytes of keys, users, bodies; planes.
_COUNTS = Struct("<IHBqqIIIQ")
TEXT_KEYS, TEXT_USERS, WHOLE_SECONDS = 1, 2, 4  # bits of the form
PRESENT = {"device_id": 8, "profile_id": 16, "user_id": 32, "send_id": 64, "campaign_id": 128}
"""The bits that mark which identifiers a post-back has. They follow those of ``what`` in the same byte."""

_NUMBER = 8  # planes of a whole number
_FIRST = 3  # planes before the whole numbers
_PLANES = {
    "what": 0,
    "key": 1,
    "received_at": 3,
    "device_id": 11,
    "campaign_id": 19,
    "user_id": 27,
    "occurred_at": 35,
}
AGGREGATED = 43  # planes that aggregation reads; the others follow
_PLANES |= {"profile_id": 43, "send_id": 51}
_ALL = 59
_LARGEST = 1 << 30  # bytes of a content
SECOND = 1_000_000
_FOR_TEXTS, _FOR_NUMBERS = 1, 2
_CODECS = {_FOR_TEXTS: pa.Codec("zstd", 1), _FOR_NUMBERS: pa.Codec("lz4_raw")}

Bytes = npt.NDArray[np.uint8]
Integers = npt.NDArray[np.int64]
Marks = npt.NDArray[np.bool_]


@dataclass(slots=True)
class Columns:
    """The columns of a block. Times are in microseconds; numbers that are missing are 0."""

    what: Bytes  # with the bits of the identifiers that are present
    keys: Sequence[str]
    key: npt.NDArray[np.uint16]
    received_at: Integers
    occurred_at: Integers
    numbers: dict[str, Integers]
    users: Sequence[str | None]
    bodies: Sequence[bytes]  # of the unreadable ones


def packed(columns: Columns) -> bytes:
    """Return the bytes of a block. Raise an exception if a value does not fit."""
    count, form = len(columns.what), 0
    stored_keys = _raw(columns.keys)
    if stored_keys is None:
        form |= TEXT_KEYS
        stored_keys = _joined([each.encode() for each in columns.keys])
    prefix, users = _divided(columns.users)
    stored_users = prefix.encode()
    if users is None:
        form |= TEXT_USERS
        texts = [(user or "").encode() for user in columns.users]
        users, stored_users = list(map(len, texts)), b"".join(texts)
    occurred = columns.occurred_at
    if not (occurred % SECOND).any():
        form |= WHOLE_SECONDS
        occurred = occurred // SECOND
    bodies = _joined(columns.bodies)
    by_name = {
        **columns.numbers,
        "user_id": users,
        "received_at": _steps(columns.received_at),
        "occurred_at": _steps(occurred),
    }
    numbers = np.empty((len(by_name), count), "<i8")
    for name, values in by_name.items():
        numbers[(_PLANES[name] - _FIRST) // _NUMBER] = values
    planes = np.empty((_ALL, count), np.uint8)
    planes[0] = columns.what
    planes[1:_FIRST] = columns.key.astype("<u2", copy=False).view(np.uint8).reshape(count, 2).T
    by_byte = numbers.view(np.uint8).reshape(len(by_name), count, _NUMBER).transpose(0, 2, 1)
    planes[_FIRST:].reshape(len(by_name), _NUMBER, count)[:] = by_byte
    stored = np.flatnonzero(planes.any(axis=1))
    counts = _COUNTS.pack(
        count,
        len(columns.keys),
        form,
        int(columns.received_at[0]),
        int(occurred[0]),
        len(stored_keys),
        len(stored_users),
        len(bodies),
        sum(1 << plane for plane in stored.tolist()),
    )
    content = b"".join((counts, planes[stored].tobytes(), stored_keys, stored_users, bodies))
    compression = _FOR_TEXTS if form & TEXT_USERS or bodies else _FOR_NUMBERS
    compressed: bytes = _CODECS[compression].compress(content, asbytes=True)
    return _HEAD.pack(compression, len(content), crc32(content)) + compressed


def _raw(keys: Sequence[str]) -> bytes | None:
    """Return the bytes of keys with 32 lowercase hex digits; None if another one is among them."""
    joined = "".join(keys)
    with suppress(ValueError):
        raw = bytes.fromhex(joined)
        if raw.hex() == joined and all(len(key) == 32 for key in keys):
            return raw
    return None


def _divided(texts: Sequence[str | None]) -> tuple[str, list[int] | None]:
    """Return the prefix of the texts and the whole number after it in each; None if one has no such number."""
    prefix = _prefix([text for text in texts if text is not None]).rstrip("0123456789")
    numbers = []
    for text in texts:
        if text is None:
            numbers.append(0)
            continue
        digits = text[len(prefix) :]
        is_number = digits.isascii() and digits.isdigit() and len(digits) <= 18
        if not is_number or (digits[0] == "0" and digits != "0"):
            return "", None
        numbers.append(int(digits))
    return prefix, numbers


def _prefix(texts: Sequence[str]) -> str:
    lowest, highest = min(texts, default=""), max(texts, default="")
    alike = takewhile(lambda pair: pair[0] == pair[1], zip(lowest, highest, strict=False))
    return "".join(one for one, _ in alike)


def _joined(parts: Sequence[bytes]) -> bytes:
    return b"".join([*(len(part).to_bytes(4, "little") for part in parts), *parts])


def split(joined: bytes, count: int) -> list[bytes]:
    """Return parts that were joined with their lengths before them. Raise ValueError if the lengths are wrong."""
    lengths = np.frombuffer(joined, "<u4", count)
    ends = 4 * count + np.cumsum(lengths, dtype=np.int64)
    if (ends[-1] if count else 0) != len(joined):
        raise ValueError("the parts have another length")
    starts = ends - lengths
    return [joined[start:end] for start, end in zip(starts.tolist(), ends.tolist(), strict=True)]


def _steps(moments: Integers) -> Integers:
    """Return the distance of each moment from the one before; negative ones as odd numbers."""
    steps = np.zeros_like(moments)
    np.subtract(moments[1:], moments[:-1], out=steps[1:])
    return (steps << 1) ^ (steps >> 63)


class Content(NamedTuple):
    """The parts of a block's content."""

    size: int  # post-backs
    keys: int
    form: int
    received_at: int  # of the first
    occurred_at: int
    stored: list[int]  # the numbers of the planes that are not zero
    planes: Bytes  # those
    stored_keys: bytes
    users: bytes
    bodies: bytes


def content_of(receiver: int, first: int, block: bytes) -> Content:
    """Return the parts of a block. Raise UnusableLedgerError if it is damaged."""
    try:
        return _parts(block)
    except (StructError, ValueError, OSError, MemoryError) as error:
        why = error
    raise UnusableLedgerError(
        f"the post-backs of receiver {receiver} from number {first} on are damaged ({why}). "
        "Restore the ledger from a backup"
    )


def _parts(block: bytes) -> Content:
    compression, size, checksum = _HEAD.unpack_from(block)
    if compression not in _CODECS:
        raise ValueError(f"their compression has the unknown number {compression}")
    if size > _LARGEST:
        raise ValueError("their size is wrong")
    content = _CODECS[compression].decompress(memoryview(block)[_HEAD.size :], size, asbytes=True)
    if crc32(content) != checksum or len(content) != size:
        raise ValueError("their checksum is wrong")
    count, keys, form, received_at, occurred_at, of_keys, of_users, of_bodies, mask = _COUNTS.unpack_from(
        content
    )
    stored = _places(mask)
    keys_at = _COUNTS.size + len(stored) * count
    users_at = keys_at + of_keys
    bodies_at = users_at + of_users
    return Content(
        count,
        keys,
        form,
        received_at,
        occurred_at,
        stored,
        np.frombuffer(content, np.uint8, len(stored) * count, _COUNTS.size).reshape(-1, count),
        content[keys_at:users_at],
        content[users_at:bodies_at],
        content[bodies_at : bodies_at + of_bodies],
    )


@lru_cache(maxsize=1_000)  # many blocks have the same planes
def _places(mask: int) -> list[int]:
    places = [place for place in range(mask.bit_length()) if mask >> place & 1]
    if places and places[-1] >= _ALL:
        raise ValueError("they have unknown planes")
    return places


class Planes:
    """The planes of several blocks, joined. Those that all blocks left out take no memory."""

    def __init__(self, contents: Sequence[Content], most: int = _ALL) -> None:
        """``most``: read only the first planes, so many of them."""
        stored = sorted({place for content in contents for place in content.stored if place < most})
        self.counts = [content.size for content in contents]
        self._size = sum(self.counts)
        self._row_of = {place: row for row, place in enumerate(stored)}
        self._joined = np.zeros((len(stored), self._size), np.uint8)
        begin = 0
        for content in contents:
            end, few = begin + content.size, bisect_left(content.stored, most)
            rows: Any = [self._row_of[place] for place in content.stored[:few]]
            if len(rows) == len(stored):
                rows = slice(None)  # faster than a list
            self._joined[rows, begin:end] = content.planes[:few]
            begin = end

    @property
    def what(self) -> Bytes:
        """The kind of each post-back, and the identifiers that are present."""
        row = self._row_of.get(0)
        return np.zeros(self._size, np.uint8) if row is None else self._joined[row]

    def has(self, name: str) -> Marks:
        """Mark the post-backs that have an identifier."""
        marked: Marks = (self.what & PRESENT[name]).astype(np.bool_)
        return marked

    def numbers(self, name: str, size: int = _NUMBER) -> Integers:
        """Return a column of whole numbers. ``size``: its number of planes."""
        numbers = np.zeros(self._size, "<i8")
        by_byte = numbers.view(np.uint8).reshape(-1, _NUMBER)
        for byte in range(size):
            if (row := self._row_of.get(_PLANES[name] + byte)) is not None:
                by_byte[:, byte] = self._joined[row]
        return numbers

    def keys(self) -> Integers:
        """Return the number of each post-back's dispatch key within its block."""
        return self.numbers("key", 2)


def moments(steps: Integers, counts: Sequence[int], starts: Sequence[int]) -> Integers:
    """Return the times of several blocks from their steps. ``starts``: the first time of each block."""
    steps = (steps >> 1) ^ -(steps & 1)
    so_far = np.cumsum(steps)
    begins = np.cumsum([0, *counts[:-1]])
    moments: Integers = so_far + np.repeat(np.array(starts, np.int64) - so_far[begins], counts)
    return moments


def unpacked(receiver: int, first: int, block: bytes) -> Columns:
    """Return the columns of a block. Raise UnusableLedgerError if it is damaged."""
    content = content_of(receiver, first, block)
    planes, count = Planes([content]), content.size
    unit = SECOND if content.form & WHOLE_SECONDS else 1
    lengths = planes.numbers("user_id")
    if content.form & TEXT_USERS:
        ends = np.cumsum(lengths).tolist()
        users = [content.users[a:b].decode() for a, b in zip([0, *ends], ends, strict=False)]
    else:
        prefix = content.users.decode()
        users = [f"{prefix}{each}" for each in lengths.tolist()]
    unreadable = int(count - np.count_nonzero(planes.what & READABLE))
    return Columns(
        what=planes.what,
        keys=keys_of(content),
        key=planes.keys().astype(np.uint16),
        received_at=moments(planes.numbers("received_at"), [count], [content.received_at]),
        occurred_at=unit * moments(planes.numbers("occurred_at"), [count], [content.occurred_at]),
        numbers={name: planes.numbers(name) for name in PRESENT if name != "user_id"},
        users=[user if has else None for user, has in zip(users, planes.has("user_id"), strict=True)],
        bodies=split(content.bodies, unreadable),
    )


def keys_of(content: Content) -> list[str]:
    """Return the dispatch keys of a block, each once."""
    if content.form & TEXT_KEYS:
        return [key.decode() for key in split(content.stored_keys, content.keys)]
    keys = content.stored_keys.hex()
    return [keys[at : at + 32] for at in range(0, len(keys), 32)]
