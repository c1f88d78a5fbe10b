"""Blocks of post-backs: every field comes back as it was, in little space, and damage is noticed."""

from __future__ import annotations

import random
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sendoff.errors import UnusableLedgerError
from sendoff.ledger.post_backs.block_batches import as_batch
from sendoff.ledger.post_backs.blocks import (
    LONGEST,
    BlockSelection,
    StoredPostBack,
    blocks_of,
    decode,
    encode,
    without_people,
)
from sendoff.service.postbacks import PostBack
from sendoff.service.wire import PostBackBody

from ...examples import examples

NOW = datetime(2026, 3, 1, 9, 0, 0, 123_456, UTC)
COLUMNS = ["device_id", "user_id"]

_moments = st.datetimes(timezones=st.just(UTC))
_identifiers = st.none() | st.integers(-(2**63), 2**63 - 1) | st.integers(0, 300)
_users = (
    st.none()
    | st.integers(0, 10**20).map(str)
    | st.integers(0, 10**6).map("customer-{}".format)
    | st.sampled_from(
        ["", "0", "007", "-1", "١٢", "½", "customer-", "customer-01", "a\0b", "9" * 18, "9" * 19]
    )
    | st.text(st.characters(exclude_categories=["Cs"]), max_size=20)
)
_keys = st.sampled_from(["0123456789abcdef" * 2, "f" * 32]) | st.uuids().map(lambda each: each.hex)
_odd_keys = _keys | st.sampled_from(["", "F" * 32, "é" * 16, "f" * 31, "not hex"])
_fields = st.builds(
    PostBackBody,
    time=_moments,
    device_id=_identifiers,
    profile_id=_identifiers,
    user_id=_users,
    send_id=_identifiers,
    campaign_id=_identifiers,
)


def _lists_of(keys: st.SearchStrategy[str]) -> st.SearchStrategy[list[PostBack]]:
    each = st.builds(
        PostBack,
        kind=st.sampled_from(["delivery", "open"]),
        dispatch_key=keys,
        received_at=_moments,
        body=st.binary(max_size=30),
        fields=st.none() | _fields,
    )
    return st.lists(each, min_size=1, max_size=12)


_some = _lists_of(_keys) | _lists_of(_odd_keys)


def expected(post_backs: Sequence[PostBack], first: int = 1, receiver: int = 7) -> list[StoredPostBack]:
    return [
        StoredPostBack(
            receiver=receiver,
            number=number,
            kind=each.kind,
            dispatch_key=each.dispatch_key,
            received_at=each.received_at,
            occurred_at=each.fields and each.fields.time,
            device_id=each.fields and each.fields.device_id,
            profile_id=each.fields and each.fields.profile_id,
            user_id=each.fields and each.fields.user_id,
            send_id=each.fields and each.fields.send_id,
            campaign_id=each.fields and each.fields.campaign_id,
            readable=each.fields is not None,
            body=None if each.fields else each.body,
        )
        for number, each in enumerate(post_backs, first)
    ]


@given(_some, st.integers(1, 2**62))
@settings(max_examples=examples(200), deadline=None)
def test_every_field_comes_back_as_it_was(post_backs: list[PostBack], first: int) -> None:
    assert decode(7, first, encode(post_backs)) == expected(post_backs, first)


@given(st.lists(_some, min_size=1, max_size=4), st.data())
@settings(max_examples=examples(100), deadline=None)
def test_many_blocks_are_read_as_one_batch(commits: list[list[PostBack]], data: st.DataObject) -> None:
    parts, wanted = [], []
    for number, post_backs in enumerate(commits, 1):
        stored = expected(post_backs, 10 * number, number)
        some = data.draw(st.none() | st.sets(st.sampled_from([each.number for each in stored])))
        parts.append(
            BlockSelection(number, 10 * number, encode(post_backs), None if some is None else frozenset(some))
        )
        wanted += [each for each in stored if some is None or each.number in some]
    batch = as_batch(parts, COLUMNS)
    batch.validate(full=True)
    names = ("receiver", "number", "dispatch_key", "received_at", "campaign_id", *COLUMNS)
    for name in names:
        assert batch[name].to_pylist() == [getattr(each, name) for each in wanted]
    assert batch["what"].to_pylist() == [(each.kind == "open") + 2 * each.readable for each in wanted]
    assert [each for part in parts for each in part.post_backs()] == wanted


@given(_some, st.data())
@settings(max_examples=examples(100), deadline=None)
def test_a_scrubbed_post_back_names_no_one_and_the_others_stay(
    post_backs: list[PostBack], data: st.DataObject
) -> None:
    gone = data.draw(st.sets(st.integers(0, len(post_backs) + 1)))
    block = without_people(7, 1, encode(post_backs), gone)
    nothing: dict[str, Any] = dict.fromkeys(("device_id", "profile_id", "user_id", "send_id"))
    assert decode(7, 1, block) == [
        replace(each, **nothing, body=None if each.readable else b"") if each.number in gone else each
        for each in expected(post_backs)
    ]
    what = as_batch([BlockSelection(7, 1, block)], COLUMNS)["what"].to_pylist()
    assert [bool(each & 4) for each in what] == [
        number in gone and each.fields is not None for number, each in enumerate(post_backs, 1)
    ]


@given(_some, st.data())
@settings(max_examples=examples(200), deadline=None)
def test_a_damaged_block_is_an_error_that_says_where(post_backs: list[PostBack], data: st.DataObject) -> None:
    block = encode(post_backs)
    cut = block[: data.draw(st.integers(0, len(block) - 1))]
    place = data.draw(st.integers(0, len(block) - 1))
    flipped = bytearray(block)
    flipped[place] ^= data.draw(st.integers(1, 255))
    with pytest.raises(UnusableLedgerError, match=r"receiver 7 from number 40 on are damaged .*backup"):
        decode(7, 40, cut)
    with pytest.raises(UnusableLedgerError, match=r"receiver 7 from number 40 on are damaged .*backup"):
        as_batch([BlockSelection(7, 40, cut)], COLUMNS)
    with suppress(UnusableLedgerError):  # unless the byte says nothing about the content
        assert decode(7, 40, bytes(flipped)) == expected(post_backs, 40)


def test_a_block_of_a_later_version_is_an_error() -> None:
    block = encode(make(3))
    with pytest.raises(UnusableLedgerError, match="compression has the unknown number 3"):
        decode(1, 1, b"\x03" + block[1:])


def test_a_block_with_texts_is_compressed_by_zstandard_which_makes_them_much_smaller() -> None:
    numbered, named = make(500), make(500, user="{}@example.com")
    assert (encode(numbered)[0], encode(named)[0]) == (2, 1)
    assert decode(7, 1, encode(named)) == expected(named, 1)


def test_a_block_of_an_earlier_checkout_is_still_read() -> None:
    """Then, all blocks were compressed by Zstandard."""
    post_backs = make(30)
    head, content = encode(post_backs)[:9], unpacked(encode(post_backs))
    block = b"\x01" + head[1:] + pa.Codec("zstd", 1).compress(content, asbytes=True)
    assert decode(7, 1, block) == expected(post_backs, 1)


def unpacked(block: bytes) -> bytes:
    """Return the content of a block of numbers."""
    size = int.from_bytes(block[1:5], "little")
    content: bytes = pa.Codec("lz4_raw").decompress(block[9:], size, asbytes=True)
    return content


def make(count: int, *, dispatches: int = 4, user: str = "customer-{}") -> list[PostBack]:
    """Return post-backs as many recipients of a few requests cause them, in random order."""
    chance = random.Random(1)
    keys = [chance.randbytes(16).hex() for _ in range(dispatches)]
    found, at = [], NOW
    for _ in range(count):
        at += timedelta(microseconds=chance.randrange(1_000))
        person = chance.randrange(10_000_000)
        fields = PostBackBody(
            at.replace(microsecond=0),
            20_000_000 + person,
            person,
            user.format(person),
            chance.randrange(2_000_000),
            45_678,
        )
        kind = chance.choice(("delivery", "delivery", "open"))
        found.append(PostBack(kind, chance.choice(keys), at, b"a body" * 30, fields))
    return found


@pytest.mark.parametrize("user", ["customer-{}", "{}"])
@pytest.mark.parametrize(
    ("count", "dispatches", "most"), [(24, 4, 25), (24, 24, 35), (500, 4, 17), (1, 1, 130)]
)
def test_a_post_back_takes_few_bytes(user: str, count: int, dispatches: int, most: int) -> None:
    assert len(encode(make(count, dispatches=dispatches, user=user))) / count <= most


def test_a_block_lies_in_one_day_and_has_no_gap_and_is_not_endless() -> None:
    midnight = datetime(2026, 3, 2, tzinfo=UTC)
    zone = datetime.now().astimezone().tzinfo
    times = [
        midnight - timedelta(microseconds=1),
        midnight,
        midnight.astimezone(zone),
        midnight - timedelta(1),
    ]
    (one,) = make(1)
    numbered = [(number, replace(one, received_at=at)) for number, at in enumerate(times, 1)]
    numbered += [(9, numbered[-1][1]), (10, numbered[-1][1])]
    assert [(each.first, each.last, each.received_at) for each in blocks_of(7, numbered)] == [
        (1, 1, times[0]),
        (2, 3, midnight),
        (4, 4, times[3]),
        (9, 10, times[3]),
    ]
    assert list(blocks_of(7, [])) == []
    many = list(blocks_of(7, list(enumerate([one] * (LONGEST + 1), 1))))
    assert [(each.first, each.last) for each in many] == [(1, LONGEST), (LONGEST + 1, LONGEST + 1)]


@pytest.mark.parametrize(
    "unfit",
    [
        {"device_id": 2**63},
        {"user_id": "\ud800"},
        {"time": NOW.replace(tzinfo=None)},
    ],
)
def test_a_value_that_does_not_fit_is_an_error(unfit: dict[str, Any]) -> None:
    (one,) = make(1)
    assert one.fields is not None
    with pytest.raises((OverflowError, UnicodeEncodeError, TypeError)):
        encode([one, replace(one, fields=replace(one.fields, **unfit))])
