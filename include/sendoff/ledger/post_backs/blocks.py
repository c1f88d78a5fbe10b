"""Blocks: the post-backs of one commit as one compressed value, which is a fraction of what rows take.

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
from collections.abc import Collection, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from functools import lru_cache
from itertools import pairwise, takewhile
from operator import attrgetter
from struct import Struct
from struct import error as StructError  # noqa: N812 - it is lower case there
from typing import Any, NamedTuple
from zlib import crc32

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from sendoff.errors import UnusableLedgerError
from sendoff.service import PostBack
from sendoff.states import PostBackKind

OPEN, READABLE, SCRUBBED = 1, 2, 4
"""The bits of the column ``what`` that aggregation reads. One number costs less than a text and a flag.

A post-back is scrubbed if it named a person who was erased since.
"""

LONGEST = 10_000
"""The maximum number of post-backs in a block."""

_HEAD = Struct("<BII")  # compression, size of the content, checksum of the content
_COUNTS = Struct(
    "<IHBqqIIIQ"
)  # post-backs, keys, form, start of both times, bytes of keys, users, bodies; planes
_TEXT_KEYS, _TEXT_USERS, _WHOLE_SECONDS = 1, 2, 4  # bits of the form
_PRESENT = {"device_id": 8, "profile_id": 16, "user_id": 32, "send_id": 64, "campaign_id": 128}
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
_AGGREGATED = 43  # planes that aggregation reads; the others follow
_PLANES |= {"profile_id": 43, "send_id": 51}
_ALL = 59
_LARGEST = 1 << 30  # bytes of a content
_SECOND = 1_000_000
_DAY = 86_400 * _SECOND
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MICROSECOND = timedelta(microseconds=1)
_FOR_TEXTS, _FOR_NUMBERS = 1, 2
_CODECS = {_FOR_TEXTS: pa.Codec("zstd", 1), _FOR_NUMBERS: pa.Codec("lz4_raw")}
_KINDS = {PostBackKind.DELIVERY.value: 0, PostBackKind.OPEN.value: OPEN}

_Bytes = npt.NDArray[np.uint8]
_Integers = npt.NDArray[np.int64]
_Marks = npt.NDArray[np.bool_]


class EncodedBlock(NamedTuple):
    """A block of one receiver's post-backs with consecutive numbers, all received on one day in UTC."""

    receiver: int
    last: int
    first: int
    received_at: datetime  # of the newest
    block: bytes


@dataclass(frozen=True, slots=True)
class StoredPostBack:
    """One post-back as the ledger keeps it. Only an unreadable one has a body."""

    receiver: int
    number: int
    kind: str
    dispatch_key: str
    received_at: datetime
    occurred_at: datetime | None  # the time in the body
    device_id: int | None = field(repr=False)
    profile_id: int | None = field(repr=False)
    user_id: str | None = field(repr=False)
    send_id: int | None = field(repr=False)
    campaign_id: int | None
    readable: bool
    body: bytes | None = field(repr=False)


@dataclass(slots=True)
class _Columns:
    """The columns of a block. Times are in microseconds; numbers that are missing are 0."""

    what: _Bytes  # with the bits of the identifiers that are present
    keys: Sequence[str]
    key: npt.NDArray[np.uint16]
    received_at: _Integers
    occurred_at: _Integers
    numbers: dict[str, _Integers]
    users: Sequence[str | None]
    bodies: Sequence[bytes]  # of the unreadable ones


def blocks_of(receiver: int, numbered: Sequence[tuple[int, PostBack]]) -> Iterator[EncodedBlock]:
    """Yield post-backs as blocks: one, unless they were received on several days or their numbers have gaps.

    The same numbers always come into the same day's blocks. Raise an exception if a value does not fit.
    """
    if not numbered:
        return
    numbers = np.array([number for number, _ in numbered], np.int64)
    received_at = _microseconds([post_back.received_at for _, post_back in numbered])
    is_next = (np.diff(numbers) == 1) & (np.diff(received_at // _DAY) == 0)
    begins = [0, *(np.flatnonzero(~is_next) + 1).tolist(), len(numbered)]
    for begin, next_begin in pairwise(begins):
        for start in range(begin, next_begin, LONGEST):
            some = [post_back for _, post_back in numbered[start : min(start + LONGEST, next_begin)]]
            newest = max(post_back.received_at for post_back in some)
            first = numbered[start][0]
            yield EncodedBlock(receiver, first + len(some) - 1, first, newest, encode(some))


def encode(post_backs: Sequence[PostBack]) -> bytes:
    """Return post-backs as a block. Raise an exception if a value does not fit."""
    bodies = [post_back.body for post_back in post_backs if post_back.fields is None]
    what = np.array([_KINDS[post_back.kind] for post_back in post_backs], np.uint8)
    if bodies:
        is_readable = np.array([post_back.fields is not None for post_back in post_backs])
        what |= is_readable * np.uint8(READABLE)
        fields = [post_back.fields or _NO_FIELDS for post_back in post_backs]
    else:
        what |= READABLE
        fields = [post_back.fields for post_back in post_backs]
    numbers = {}
    for name, bit in _PRESENT.items():
        values = list(map(attrgetter(name), fields))
        if None in values:
            what |= np.array([value is not None for value in values]) * np.uint8(bit)
        else:
            what |= np.uint8(bit)
        if name == "user_id":
            users = values
        else:
            numbers[name] = np.array([value or 0 for value in values], np.int64)
    codes: dict[str, int] = {}
    key = [codes.setdefault(post_back.dispatch_key, len(codes)) for post_back in post_backs]
    return _packed(
        _Columns(
            what=what,
            keys=list(codes),
            key=np.array(key, np.uint16),
            received_at=_microseconds([post_back.received_at for post_back in post_backs]),
            occurred_at=_microseconds([each.time for each in fields]),
            numbers=numbers,
            users=users,
            bodies=bodies,
        )
    )


class _NoFields:
    """The fields of an unreadable post-back."""

    time = _EPOCH
    device_id = profile_id = user_id = send_id = campaign_id = None


_NO_FIELDS: Any = _NoFields()


def _microseconds(moments: Sequence[datetime]) -> _Integers:
    return np.array([(moment - _EPOCH) // _MICROSECOND for moment in moments], np.int64)


def _packed(columns: _Columns) -> bytes:
    count, form = len(columns.what), 0
    stored_keys = _raw(columns.keys)
    if stored_keys is None:
        form |= _TEXT_KEYS
        stored_keys = _joined([each.encode() for each in columns.keys])
    prefix, users = _divided(columns.users)
    stored_users = prefix.encode()
    if users is None:
        form |= _TEXT_USERS
        texts = [(user or "").encode() for user in columns.users]
        users, stored_users = list(map(len, texts)), b"".join(texts)
    occurred = columns.occurred_at
    if not (occurred % _SECOND).any():
        form |= _WHOLE_SECONDS
        occurred = occurred // _SECOND
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
    compression = _FOR_TEXTS if form & _TEXT_USERS or bodies else _FOR_NUMBERS
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


def _split(joined: bytes, count: int) -> list[bytes]:
    lengths = np.frombuffer(joined, "<u4", count)
    ends = 4 * count + np.cumsum(lengths, dtype=np.int64)
    if (ends[-1] if count else 0) != len(joined):
        raise ValueError("the parts have another length")
    starts = ends - lengths
    return [joined[start:end] for start, end in zip(starts.tolist(), ends.tolist(), strict=True)]


def _steps(moments: _Integers) -> _Integers:
    """Return the distance of each moment from the one before; negative ones as odd numbers."""
    steps = np.zeros_like(moments)
    np.subtract(moments[1:], moments[:-1], out=steps[1:])
    return (steps << 1) ^ (steps >> 63)


class _Content(NamedTuple):
    """The parts of a block's content."""

    size: int  # post-backs
    keys: int
    form: int
    received_at: int  # of the first
    occurred_at: int
    stored: list[int]  # the numbers of the planes that are not zero
    planes: _Bytes  # those
    stored_keys: bytes
    users: bytes
    bodies: bytes


def _content(receiver: int, first: int, block: bytes) -> _Content:
    """Return the parts of a block. Raise UnusableLedgerError if it is damaged."""
    try:
        return _parts(block)
    except (StructError, ValueError, OSError, MemoryError) as error:
        why = error
    raise UnusableLedgerError(
        f"the post-backs of receiver {receiver} from number {first} on are damaged ({why}). "
        "Restore the ledger from a backup"
    )


def _parts(block: bytes) -> _Content:
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
    return _Content(
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


class _Planes:
    """The planes of several blocks, joined. Those that all blocks left out take no memory."""

    def __init__(self, contents: Sequence[_Content], most: int = _ALL) -> None:
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
    def what(self) -> _Bytes:
        """The kind of each post-back, and the identifiers that are present."""
        row = self._row_of.get(0)
        return np.zeros(self._size, np.uint8) if row is None else self._joined[row]

    def has(self, name: str) -> _Marks:
        """Mark the post-backs that have an identifier."""
        marked: _Marks = (self.what & _PRESENT[name]).astype(np.bool_)
        return marked

    def numbers(self, name: str, size: int = _NUMBER) -> _Integers:
        """Return a column of whole numbers. ``size``: its number of planes."""
        numbers = np.zeros(self._size, "<i8")
        by_byte = numbers.view(np.uint8).reshape(-1, _NUMBER)
        for byte in range(size):
            if (row := self._row_of.get(_PLANES[name] + byte)) is not None:
                by_byte[:, byte] = self._joined[row]
        return numbers

    def keys(self) -> _Integers:
        """Return the number of each post-back's dispatch key within its block."""
        return self.numbers("key", 2)


def _moments(steps: _Integers, counts: Sequence[int], starts: Sequence[int]) -> _Integers:
    """Return the times of several blocks from their steps. ``starts``: the first time of each block."""
    steps = (steps >> 1) ^ -(steps & 1)
    so_far = np.cumsum(steps)
    begins = np.cumsum([0, *counts[:-1]])
    moments: _Integers = so_far + np.repeat(np.array(starts, np.int64) - so_far[begins], counts)
    return moments


def _unpacked(receiver: int, first: int, block: bytes) -> _Columns:
    content = _content(receiver, first, block)
    planes, count = _Planes([content]), content.size
    unit = _SECOND if content.form & _WHOLE_SECONDS else 1
    lengths = planes.numbers("user_id")
    if content.form & _TEXT_USERS:
        ends = np.cumsum(lengths).tolist()
        users = [content.users[a:b].decode() for a, b in zip([0, *ends], ends, strict=False)]
    else:
        prefix = content.users.decode()
        users = [f"{prefix}{each}" for each in lengths.tolist()]
    unreadable = int(count - np.count_nonzero(planes.what & READABLE))
    return _Columns(
        what=planes.what,
        keys=_keys(content),
        key=planes.keys().astype(np.uint16),
        received_at=_moments(planes.numbers("received_at"), [count], [content.received_at]),
        occurred_at=unit * _moments(planes.numbers("occurred_at"), [count], [content.occurred_at]),
        numbers={name: planes.numbers(name) for name in _PRESENT if name != "user_id"},
        users=[user if has else None for user, has in zip(users, planes.has("user_id"), strict=True)],
        bodies=_split(content.bodies, unreadable),
    )


def _keys(content: _Content) -> list[str]:
    if content.form & _TEXT_KEYS:
        return [key.decode() for key in _split(content.stored_keys, content.keys)]
    keys = content.stored_keys.hex()
    return [keys[at : at + 32] for at in range(0, len(keys), 32)]


def decode(receiver: int, first: int, block: bytes) -> list[StoredPostBack]:
    """Return the post-backs of a block. Raise UnusableLedgerError if it is damaged."""
    columns = _unpacked(receiver, first, block)
    bodies = iter(columns.bodies)
    found = []
    of_numbers = {name: values.tolist() for name, values in columns.numbers.items()}
    for place, what in enumerate(columns.what.tolist()):
        is_readable = bool(what & READABLE)
        of_numbers["user_id"] = columns.users
        identifiers = {
            name: of_numbers[name][place] if what & bit else None for name, bit in _PRESENT.items()
        }
        found.append(
            StoredPostBack(
                receiver=receiver,
                number=first + place,
                kind=(PostBackKind.OPEN if what & OPEN else PostBackKind.DELIVERY).value,
                dispatch_key=columns.keys[columns.key[place]],
                received_at=_EPOCH + timedelta(microseconds=int(columns.received_at[place])),
                occurred_at=_EPOCH + timedelta(microseconds=int(columns.occurred_at[place]))
                if is_readable
                else None,
                **identifiers,
                readable=is_readable,
                body=None if is_readable else next(bodies),
            )
        )
    return found


def without_people(receiver: int, first: int, block: bytes, numbers: Collection[int]) -> bytes:
    """Return a block whose post-backs with these numbers name no one. They still count, as those of erased people."""
    columns = _unpacked(receiver, first, block)
    places = [number - first for number in numbers if first <= number < first + len(columns.what)]
    is_gone = np.zeros(len(columns.what), np.bool_)
    is_gone[places] = True
    is_readable = (columns.what & READABLE).astype(np.bool_)
    columns.what[is_gone & is_readable] |= SCRUBBED
    for name in ("device_id", "profile_id", "user_id", "send_id"):
        columns.what[is_gone] &= 0xFF ^ _PRESENT[name]
        if name != "user_id":
            columns.numbers[name][is_gone] = 0
    columns.users = [None if gone else user for gone, user in zip(is_gone, columns.users, strict=True)]
    gone_bodies = is_gone[~is_readable]
    columns.bodies = [b"" if gone else body for gone, body in zip(gone_bodies, columns.bodies, strict=True)]
    return _packed(columns)


@dataclass(frozen=True, slots=True)
class BlockSelection:
    """A block to read. ``wanted``: the numbers of its post-backs to read; None: all."""

    receiver: int
    first: int
    block: bytes = field(repr=False)
    wanted: Collection[int] | None = None

    def post_backs(self) -> Iterator[StoredPostBack]:
        """Yield its post-backs. Raise UnusableLedgerError if it is damaged."""
        for post_back in decode(self.receiver, self.first, self.block):
            if self.wanted is None or post_back.number in self.wanted:
                yield post_back

    def unreadable_bodies(self) -> list[tuple[int, bytes]]:
        """Return the numbers and bodies of its unreadable post-backs, whether wanted or not."""
        content = _content(self.receiver, self.first, self.block)
        places = np.flatnonzero(_Planes([content], 1).what & READABLE == 0).tolist()
        bodies = _split(content.bodies, len(places))
        return [(self.first + place, body) for place, body in zip(places, bodies, strict=True)]


def as_batch(parts: Sequence[BlockSelection], named_by: Collection[str]) -> pa.RecordBatch:
    """Return the post-backs of blocks as one batch with the columns that aggregation reads.

    ``named_by``: ``device_id`` and ``user_id`` are added if they are in it. Raise UnusableLedgerError if a block is
    damaged.
    """
    contents = [_content(part.receiver, part.first, part.block) for part in parts]
    planes = _Planes(contents, _AGGREGATED)
    what, counts = planes.what, planes.counts
    starts = [content.received_at for content in contents]
    begins = np.cumsum([0, *counts[:-1]])
    firsts = np.array([part.first for part in parts], np.int64)
    number = np.arange(len(what)) + np.repeat(firsts - begins, counts)
    units = [_SECOND if content.form & _WHOLE_SECONDS else 1 for content in contents]
    occurred = _moments(planes.numbers("occurred_at"), counts, [content.occurred_at for content in contents])
    columns = {
        "what": _array((what & (OPEN | READABLE | SCRUBBED)).astype(np.int16), pa.int16()),
        "receiver": _array(np.repeat(np.array([part.receiver for part in parts], np.int64), counts)),
        "number": _array(number),
        "dispatch_key": _dispatch_keys(contents, planes, counts),
        "received_at": _array(
            _moments(planes.numbers("received_at"), counts, starts), pa.timestamp("us", "UTC")
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
    values: npt.NDArray[Any], type_: pa.DataType | None = None, present: _Marks | None = None
) -> pa.Array:
    """Return a column. Unlike ``pa.array``, it does not import pandas."""
    validity = None
    if present is not None and not present.all():
        validity = pa.py_buffer(np.packbits(present, bitorder="little"))
    data = pa.py_buffer(np.ascontiguousarray(values))
    return pa.Array.from_buffers(type_ or pa.int64(), len(values), [validity, data])


def _identifiers(planes: _Planes, name: str) -> pa.Array:
    return _array(planes.numbers(name), present=planes.has(name))


def _dispatch_keys(
    contents: Sequence[_Content], planes: _Planes, counts: Sequence[int]
) -> pa.DictionaryArray:
    """Return the dispatch keys of blocks, each once in the dictionary."""
    sizes = [content.keys for content in contents]
    places = planes.keys() + np.repeat(np.cumsum([0, *sizes[:-1]]), counts)
    if any(content.form & _TEXT_KEYS for content in contents):
        keys = pa.array([key for content in contents for key in _keys(content)], pa.string())
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


def _users(contents: Sequence[_Content], planes: _Planes, counts: Sequence[int]) -> pa.StringArray:
    present, numbers = planes.has("user_id"), planes.numbers("user_id")
    has_text = [bool(content.form & _TEXT_USERS) for content in contents]
    if not any(has_text):
        return _prefixed(contents, counts, _array(numbers, present=present))
    is_text = np.repeat(has_text, counts)
    ends = np.cumsum(np.where(is_text, numbers, 0), dtype=np.int32)
    buffers = [
        pa.py_buffer(np.packbits(present, bitorder="little")),
        pa.py_buffer(np.concatenate([np.zeros(1, np.int32), ends])),
        pa.py_buffer(b"".join(content.users for content in contents if content.form & _TEXT_USERS)),
    ]
    texts = pa.Array.from_buffers(pa.string(), len(numbers), buffers)
    if all(has_text):
        return texts
    return pc.if_else(
        _array(is_text.view(np.uint8), pa.uint8()).cast(pa.bool_()),
        texts,
        _prefixed(contents, counts, _array(numbers, present=present)),
    )


def _prefixed(contents: Sequence[_Content], counts: Sequence[int], numbers: pa.Int64Array) -> pa.StringArray:
    """Return user IDs that are whole numbers after a prefix of their block."""
    prefixes = ["" if content.form & _TEXT_USERS else content.users.decode() for content in contents]
    texts = numbers.cast(pa.string())
    if not any(prefixes):
        return texts
    of_row = pa.array(prefixes, pa.string()).take(_array(np.repeat(np.arange(len(contents)), counts)))
    return pc.binary_join_element_wise(of_row, texts, "")
