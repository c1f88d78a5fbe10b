"""Blocks: the post-backs of one commit as one compressed value, which is a fraction of what rows take.

:mod:`~sendoff.ledger.post_backs.block_format` describes the bytes.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from itertools import pairwise
from operator import attrgetter
from typing import Any, NamedTuple

import numpy as np

from sendoff.ledger.post_backs.block_format import (
    OPEN,
    PRESENT,
    READABLE,
    SCRUBBED,
    SECOND,
    Columns,
    Integers,
    Planes,
    content_of,
    packed,
    split,
    unpacked,
)
from sendoff.service import PostBack
from sendoff.states import PostBackKind

LONGEST = 10_000
"""The maximum number of post-backs in a block."""

_DAY = 86_400 * SECOND
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MICROSECOND = timedelta(microseconds=1)
_KINDS = {PostBackKind.DELIVERY.value: 0, PostBackKind.OPEN.value: OPEN}


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
    for name, bit in PRESENT.items():
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
    return packed(
        Columns(
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


def _microseconds(moments: Sequence[datetime]) -> Integers:
    return np.array([(moment - _EPOCH) // _MICROSECOND for moment in moments], np.int64)


def decode(receiver: int, first: int, block: bytes) -> list[StoredPostBack]:
    """Return the post-backs of a block. Raise UnusableLedgerError if it is damaged."""
    columns = unpacked(receiver, first, block)
    bodies = iter(columns.bodies)
    found = []
    of_numbers = {name: values.tolist() for name, values in columns.numbers.items()}
    for place, what in enumerate(columns.what.tolist()):
        is_readable = bool(what & READABLE)
        of_numbers["user_id"] = columns.users
        identifiers = {name: of_numbers[name][place] if what & bit else None for name, bit in PRESENT.items()}
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
    columns = unpacked(receiver, first, block)
    places = [number - first for number in numbers if first <= number < first + len(columns.what)]
    is_gone = np.zeros(len(columns.what), np.bool_)
    is_gone[places] = True
    is_readable = (columns.what & READABLE).astype(np.bool_)
    columns.what[is_gone & is_readable] |= SCRUBBED
    for name in ("device_id", "profile_id", "user_id", "send_id"):
        columns.what[is_gone] &= 0xFF ^ PRESENT[name]
        if name != "user_id":
            columns.numbers[name][is_gone] = 0
    columns.users = [None if gone else user for gone, user in zip(is_gone, columns.users, strict=True)]
    gone_bodies = is_gone[~is_readable]
    columns.bodies = [b"" if gone else body for gone, body in zip(gone_bodies, columns.bodies, strict=True)]
    return packed(columns)


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
        content = content_of(self.receiver, self.first, self.block)
        places = np.flatnonzero(Planes([content], 1).what & READABLE == 0).tolist()
        bodies = split(content.bodies, len(places))
        return [(self.first + place, body) for place, body in zip(places, bodies, strict=True)]
