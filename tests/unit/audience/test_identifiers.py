"""Sets of identifiers of both kinds, compared with Python's own sets."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import Any

import numpy as np
import orjson
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pyroaring import BitMap64

from sendoff.audience.identifiers import (
    Identifiers,
    Kind,
    RowCounter,
    empty,
    from_bytes,
    integers,
    strings,
    union,
)

from ...examples import examples

numbers = st.integers(1, 2**63 - 1) | st.integers(1, 200_000)
words = st.text(st.characters(codec="utf-8"), min_size=1, max_size=12).filter(lambda word: bool(word.strip()))
members = st.lists(numbers, max_size=60).map(lambda values: ("integer", values)) | st.lists(
    words, max_size=60
).map(lambda values: ("string", values))
pairs = st.tuples(st.lists(numbers, max_size=60), st.lists(numbers, max_size=60)).map(
    lambda both: (integers, *both)
) | st.tuples(st.lists(words, max_size=60), st.lists(words, max_size=60)).map(lambda both: (strings, *both))

Members = tuple[Kind, Sequence[Any]]


def make(kind: Kind, values: Sequence[Any]) -> Identifiers:
    return integers(values) if kind == "integer" else strings(values)


def by_bytes(values: Sequence[Any]) -> list[Any]:
    return sorted(set(values), key=lambda value: value.encode() if isinstance(value, str) else value)


@settings(deadline=None)
@given(members)
def test_a_set_has_each_value_once_and_in_order(given: Members) -> None:
    kind, values = given
    made = make(kind, values)
    assert list(made) == by_bytes(values)
    assert len(made) == len(set(values))
    assert [int(v) if kind == "integer" else v for v in made.values()] == by_bytes(values)
    assert all(value in made for value in values)


@settings(deadline=None)
@given(pairs)
def test_union_intersection_and_difference_are_those_of_python(given: Any) -> None:
    of, left, right = given
    a, b = of(left), of(right)
    assert set(a | b) == set(left) | set(right)
    assert set(a & b) == set(left) & set(right)
    assert set(a - b) == set(left) - set(right)
    assert list(a | b) == by_bytes([*left, *right])
    assert union(a.kind, [a, b, a]) == a | b


@settings(deadline=None)
@given(members, st.integers(1, 25))
def test_slices_are_the_set_again_in_order_and_all_but_the_last_are_full(given: Members, size: int) -> None:
    made = make(*given)
    slices = list(made.slices(size))
    assert [value for part in slices for value in part] == list(made)
    assert all(len(part) == size for part in slices[:-1])
    assert all(0 < len(part) <= size for part in slices)


def test_slices_reach_over_the_blocks_in_which_they_are_cut() -> None:
    everybody = integers(np.arange(1, 3_300_000, 3))
    for size in (10_000, 1_048_576, 999_983):
        parts = [part.values() for part in everybody.slices(size)]
        assert np.array_equal(np.concatenate(parts), np.arange(1, 3_300_000, 3))
        assert {len(part) for part in parts[:-1]} <= {size}


@pytest.mark.parametrize(
    "values",
    [
        np.arange(1, 2**62, 2**45),  # scattered: no two share a container
        np.concatenate(
            [np.arange(1, 700_000), np.arange(2**50, 2**50 + 700_000)]
        ),  # two dense ranges far apart
        np.concatenate([np.arange(1, 300_000, 65_536), np.arange(2**62, 2**62 + 90_000)]),
    ],
)
def test_slices_are_right_however_the_numbers_lie(values: np.ndarray[Any, Any]) -> None:
    everybody = integers(values)
    parts = [part.values() for part in everybody.slices(9_999)]
    assert np.array_equal(np.concatenate(parts), values)
    assert {len(part) for part in parts[:-1]} == {9_999}
    assert (
        integers(values[::-1].copy()).fingerprint()
        == everybody.fingerprint()
        != integers(values[1:]).fingerprint()
    )


def test_a_set_does_not_grow_with_the_collector_that_gave_it() -> None:
    counter = RowCounter("integer")
    counter.add(pa.array([1, 2], pa.uint64()))
    early = counter.identifiers()
    counter.add(pa.array([3], pa.uint64()))
    assert (list(early), list(counter.identifiers())) == ([1, 2], [1, 2, 3])


@settings(deadline=None)
@given(members, st.randoms())
def test_a_fingerprint_depends_on_the_members_alone(given: Members, random: Any) -> None:
    kind, values = given
    shuffled = [*values, *values[: len(values) // 2]]
    random.shuffle(shuffled)
    assert make(kind, shuffled).fingerprint() == make(kind, values).fingerprint()
    if values:
        assert make(kind, by_bytes(values)[1:]).fingerprint() != make(kind, values).fingerprint()


def test_a_fingerprint_is_the_same_in_every_release() -> None:
    # Dispatch keys are derived from fingerprints: a change here would send every launch again.
    assert integers([1, 2, 2**40]).fingerprint() == "397e19dcf7818ac60745364b39f7a182"
    assert strings(["a", "b", "ß"]).fingerprint() == "59ed873217cdf31d9689fdf682ee8b1b"


def test_fingerprints_of_texts_tell_where_one_text_ends() -> None:
    assert strings(["ab", "c"]).fingerprint() != strings(["a", "bc"]).fingerprint()


def test_numbers_and_the_same_numbers_as_texts_differ() -> None:
    assert integers([1, 2]).fingerprint() != strings(["1", "2"]).fingerprint()
    assert integers([1]) != strings(["1"])


@settings(deadline=None)
@given(members)
def test_a_set_survives_being_stored(given: Members) -> None:
    made = make(*given)
    again = from_bytes(made.kind, made.to_bytes())
    assert again == made
    assert again.fingerprint() == made.fingerprint()


def test_a_slice_is_stored_without_the_rest() -> None:
    everybody = strings([f"device-{number:08}" for number in range(100_000)])
    part = next(everybody.slices(10))
    assert len(part.to_bytes()) < 1_000
    assert from_bytes("string", part.to_bytes()) == part


@pytest.mark.promise("sound/small")
def test_a_hundred_million_neighbours_are_stored_in_a_few_bytes() -> None:
    assert len(integers(np.arange(1, 2_000_000)).to_bytes()) < 1_000


@pytest.mark.parametrize("kind", ["integer", "string"])
@pytest.mark.parametrize("blob", [b"", b"nonsense", b"\xff" * 64])
def test_what_is_no_stored_set_is_refused(kind: Kind, blob: bytes) -> None:
    with pytest.raises(ValueError, match=r"\w"):
        from_bytes(kind, blob)


@pytest.mark.parametrize("made", [integers(range(1, 5_000)), strings(map(str, range(1, 5_000)))])
def test_a_stored_set_that_was_cut_short_is_refused(made: Identifiers) -> None:
    blob = made.to_bytes()
    with pytest.raises(ValueError, match=r"\w"):
        from_bytes(made.kind, blob[: len(blob) // 2])


@pytest.mark.parametrize("kind", ["integer", "string"])
def test_the_empty_set_behaves(kind: Kind) -> None:
    nobody = empty(kind)
    assert (len(nobody), list(nobody), list(nobody.slices(5))) == (0, [], [])
    assert nobody == nobody | nobody == union(kind, []) == from_bytes(kind, nobody.to_bytes())
    assert orjson.dumps(nobody.values(), option=orjson.OPT_SERIALIZE_NUMPY) == b"[]"
    assert nobody.fingerprint()


def test_values_are_what_the_encoder_takes() -> None:
    for made, encoded in (
        (integers([3, 1, 2**63 - 1]), b"[1,3,9223372036854775807]"),
        (strings(["b", "a"]), b'["a","b"]'),
    ):
        assert orjson.dumps(made.values(), option=orjson.OPT_SERIALIZE_NUMPY) == encoded


@pytest.mark.parametrize("stranger", [0, -1, 2**63, 2**70, "1", None, 1.0])
def test_what_cannot_be_a_member_is_none(stranger: object) -> None:
    assert stranger not in integers([1, 2])


def test_the_numbers_of_numpy_can_be_members() -> None:
    assert np.uint64(2) in integers([1, 2])
    assert np.int64(3) not in integers([1, 2])


@pytest.mark.parametrize(
    ("make", "values"), [(integers, [0]), (integers, [-5]), (strings, [""]), (strings, [" \t"])]
)
def test_unusable_values_make_no_set(make: Callable[[Any], Identifiers], values: list[Any]) -> None:
    with pytest.raises(ValueError, match="an identifier must"):
        make(values)


def test_sets_of_two_kinds_do_not_mix() -> None:
    with pytest.raises(TypeError):
        integers([1]) | strings(["1"])
    with pytest.raises(TypeError):
        union("integer", [integers([1]), strings(["1"])])


def test_a_set_shows_its_size_and_no_member() -> None:
    assert repr(integers([123456, 99])) == "<2 integer identifiers>"
    assert repr(strings(["ann@example.com"])) == "<1 string identifiers>"


@settings(deadline=None)
@given(st.lists(st.lists(st.none() | st.integers(-3, 20) | st.just(2**63), max_size=12), max_size=6))
@pytest.mark.promise("honest/rows")
def test_a_collector_accounts_for_every_number(batches: list[list[int | None]]) -> None:
    counter = RowCounter("integer")
    for batch in batches:
        usable = counter.add(pa.array([None if v is None else v % 2**64 for v in batch], pa.uint64()))
        assert (usable is None) == all(v is not None and 0 < v < 2**63 for v in batch)
    rows = [value for batch in batches for value in batch]
    good = [value for value in rows if value is not None and 0 < value < 2**63]
    assert counter.rows == len(rows)
    assert counter.null == rows.count(None)
    assert counter.invalid == len(rows) - rows.count(None) - len(good)
    assert counter.duplicate == len(good) - len(set(good))
    assert set(counter.identifiers()) == set(good)


@settings(deadline=None)
@given(st.lists(st.lists(st.none() | st.sampled_from(["", " ", "a", "b", "ä"]), max_size=12), max_size=6))
@pytest.mark.promise("honest/rows")
def test_a_collector_accounts_for_every_text(batches: list[list[str | None]]) -> None:
    counter = RowCounter("string")
    for batch in batches:
        counter.add(pa.array(batch, pa.large_string()))
    rows = [value for batch in batches for value in batch]
    good = [value for value in rows if value is not None and value.strip()]
    assert (counter.rows, counter.null) == (len(rows), rows.count(None))
    assert counter.invalid == len(rows) - rows.count(None) - len(good)
    assert counter.duplicate == len(good) - len(set(good))
    assert set(counter.identifiers()) == set(good)


def test_a_slice_of_an_arrow_array_gives_only_its_own_rows() -> None:
    counter = RowCounter("integer")
    counter.add(pa.array([1, 2, 3, 4], pa.uint64()).slice(1, 2))
    assert list(counter.identifiers()) == [2, 3]


tails = st.text("ab\0é😀", max_size=11) | st.sampled_from(["aaaaaaaa", "aaaaaaaab", "aaaaaaaabaaaaaaaab"])


@settings(max_examples=examples(200), deadline=None)
@given(
    st.lists(
        st.lists(
            st.tuples(st.sampled_from(["", "same-", "same-beginning-"]), tails).map("".join), max_size=30
        ),
        max_size=12,
    ),
    st.sampled_from([1, 100, 2_000]),
)
def test_texts_that_are_merged_from_many_runs_are_each_there_once_and_in_order(
    batches: list[list[str]], size: int
) -> None:
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr("sendoff.audience.identifiers.string_sets._RUN", size)
        for limit in ("_PIECE", "_RANGE"):
            patched.setattr(f"sendoff.audience.identifiers.string_sort.{limit}", size)
        counter = RowCounter("string")
        early, before, good = counter.identifiers(), set[str](), set[str]()
        for batch in batches:
            if len(batch) % 3 == 0:
                early, before = counter.identifiers(), set(good)
            counter.add(pa.array(batch, pa.large_string()))
            good.update(value for value in batch if value.strip() and "\0" not in value)
        made = counter.identifiers()
        assert list(early) == by_bytes(list(before))
        assert list(made) == by_bytes(list(good))
        assert made.to_bytes() == strings(good).to_bytes()
        assert made.fingerprint() == strings(good).fingerprint()
        parts = [strings(set(batch) & good) for batch in batches]
        assert union("string", parts) == made


@settings(max_examples=examples(200), deadline=None)
@given(st.lists(st.text("ab\0é😀", max_size=11).map(lambda tail: "same-" + tail), min_size=2, max_size=40))
def test_texts_that_share_their_beginning_are_in_the_order_of_their_bytes(values: list[str]) -> None:
    assert list(strings(values)) == by_bytes(values)


@pytest.mark.proof
@pytest.mark.promise("sound/small")
def test_a_hundred_million_numbers_take_less_than_300_mebibytes() -> None:
    # In a separate process, so that the peak is that of the set, its fingerprint and its slices.
    # Read from /proc, because getrusage also counts the process that this one was forked from.
    program = """
import numpy as np, pyarrow as pa
from sendoff.audience.identifiers import RowCounter
counter = RowCounter("integer")
for start in range(1, 110_000_001, 1_000_000):
    part = np.arange(start, start + 1_000_000, dtype=np.uint64)
    counter.add(pa.array(part[part % 11 != 0]))
everybody = counter.identifiers()
everybody.fingerprint()
assert sum(len(part) for part in everybody.slices(10_000)) == len(everybody) == 100_000_000
print(next(line.split()[1] for line in open("/proc/self/status") if line.startswith("VmHWM")))
"""
    ended = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert int(ended.stdout) < 300 * 1024


# Dense numbers, scattered numbers, and both in one set

near_and_far = st.lists(
    st.tuples(st.sampled_from([1, 65_000, 2**40]), st.integers(0, 500), st.sampled_from([1, 3, 2_000]))
    | st.tuples(st.integers(1, 2**63 - 1), st.just(1), st.just(1)),
    max_size=12,
).map(lambda runs: {start + step * place for start, size, step in runs for place in range(size)})


@pytest.mark.proof
@settings(max_examples=examples(100), deadline=None)
@given(near_and_far, near_and_far, st.integers(1, 700))
def test_near_and_far_numbers_make_the_sets_of_python(one: set[int], other: set[int], size: int) -> None:
    a, b = integers(one), integers(other)
    for made, expected in (
        (a, one),
        (a | b, one | other),
        (a & b, one & other),
        (a - b, one - other),
        (b - a, other - one),
        (union("integer", [a, b, a - b]), one | other),
    ):
        assert list(made) == list(made.values()) == sorted(expected)
        assert (len(made), made) == (len(expected), integers(expected))
        assert made.fingerprint() == integers(expected).fingerprint()
        assert [each for part in made.slices(size) for each in part] == sorted(expected)
        assert all(each in made for each in expected)
        assert not any(each in made for each in (one | other) - expected)
    assert (a == b) == (one == other)


@settings(max_examples=examples(100), deadline=None)
@given(near_and_far)
def test_a_stored_set_is_the_same_bytes_however_it_was_held(members: set[int]) -> None:
    bitmap = BitMap64(members)
    bitmap.run_optimize()
    made = integers(members)
    stored = made.to_bytes()
    assert stored in (bitmap.serialize(), made.within(integers({*members, 7, 2**62})).to_bytes())
    assert made.stored_bytes >= len(stored)
    assert from_bytes("integer", stored) == from_bytes("integer", BitMap64(members).serialize()) == made


@settings(max_examples=examples(100), deadline=None)
@given(st.sets(st.integers(1, 2**63 - 1), min_size=1), st.data())
def test_far_numbers_take_the_bytes_of_their_widest_gap(members: set[int], data: st.DataObject) -> None:
    ordered = sorted(members)
    widest = max((b - a for a, b in pairwise(ordered)), default=0)
    blob = integers(members).to_bytes()
    assert len(blob) == 24 + (len(members) - 1) * ((widest.bit_length() + 7) // 8)
    assert list(from_bytes("integer", blob)) == ordered
    for broken in (blob[: data.draw(st.integers(0, len(blob) - 1))], blob + b"\1"):
        with pytest.raises(ValueError, match=r"\w"):
            from_bytes("integer", broken)


@settings(max_examples=examples(100), deadline=None)
@given(st.lists(near_and_far, max_size=6))
def test_a_gathering_may_turn_out_to_hold_far_numbers_or_near_ones(batches: list[set[int]]) -> None:
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr("sendoff.audience.identifiers.integer_sets._FIRST_LOOK", 30)
        patched.setattr("sendoff.audience.identifiers.integer_sets._WAITING", 300)
        counter = RowCounter("integer")
        early, expected = counter.identifiers(), set[int]()
        for batch in batches:
            counter.add(pa.array(list(batch), pa.uint64()))
            assert list(early) == sorted(expected)
            early, expected = counter.identifiers(), expected | batch
        assert list(early) == sorted(expected)
        assert counter.duplicate == sum(map(len, batches)) - len(expected)


@settings(max_examples=examples(100), deadline=None)
@given(
    near_and_far, near_and_far, near_and_far, st.lists(st.integers(0, 256), max_size=3), st.integers(1, 700)
)
def test_subsets_in_the_memory_of_another_set_are_the_sets_of_python(
    all_: set[int], one: set[int], other: set[int], limits: list[int], size: int
) -> None:
    everybody = integers(all_)
    a, b = integers(one).within(everybody), integers(other).within(everybody)
    one, other = one & all_, other & all_

    def rule(numbers: Any) -> list[Any]:
        return [(numbers * np.uint64(0x9E3779B97F4A7C15)) >> np.uint64(56) < limit for limit in limits]

    pairs: list[tuple[Any, set[int]]] = [
        (a, one),
        (a | b, one | other),
        (a & b, one & other),
        (a - b, one - other),
        (everybody - a, all_ - one),
        (everybody & a, one),
        (everybody | b, all_),
        (integers(other).within(a), other & one),
        (integers(other | {7}) & a, (other | {7}) & one),
        (a - integers(other | {7}), one - other - {7}),
        (a | integers({7}), one | {7}),
        (union("integer", [a, b, a - b]), one | other),
    ]
    ordered = np.array(sorted(one), np.uint64)
    for found, mask in zip(a.chosen(rule, len(limits)), rule(ordered), strict=True):
        pairs.append((found, set(ordered[mask].tolist())))
    for made, expected in pairs:
        plain = integers(expected)
        assert list(made) == made.values().tolist() == sorted(expected)
        assert (len(made), made, made.fingerprint()) == (len(expected), plain, plain.fingerprint())
        assert (made.to_bytes(), made.stored_bytes) == (plain.to_bytes(), plain.stored_bytes)
        slices = list(made.slices(size))
        assert [len(part) for part in slices] == [len(part) for part in plain.slices(size)]
        assert slices == list(plain.slices(size))
        assert all(each in made for each in expected)
        assert not any(each in made for each in (all_ | {1, 7, 2**63 - 1}) - expected)


def test_nobody_can_change_a_set_by_its_values() -> None:
    with pytest.raises(ValueError, match="read-only"):
        integers([1, 2**40]).values()[0] = 7


def test_a_set_that_loses_no_member_is_not_copied() -> None:
    one, more = integers([1, 2**40, 2**62]), integers([1, 2**40, 2**50, 2**62])
    assert (one & more).values() is (more & one).values() is one.values()


@pytest.mark.proof
@pytest.mark.promise("sound/small")
def test_two_million_scattered_numbers_take_less_than_90_mebibytes() -> None:
    program = """
import numpy as np, pyarrow as pa, pathlib
from sendoff.audience.identifiers import RowCounter

def held(what):
    return int(pathlib.Path("/proc/self/status").read_text().partition(what + ":")[2].split()[0])

chance, before = np.random.default_rng(1), held("VmRSS")
counter = RowCounter("integer")
for _ in range(40):
    counter.add(pa.array(chance.integers(1, 2**63, 50_000, dtype=np.uint64)))
everybody = counter.identifiers()
everybody.fingerprint()
assert sum(len(part) for part in (everybody - next(everybody.slices(10))).slices(10_000)) == 1_999_990
print(held("VmHWM") - before)
"""
    ended = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert int(ended.stdout) < 90 * 1024


@pytest.mark.proof
@pytest.mark.promise("sound/small")
def test_three_million_texts_take_less_than_twice_their_bytes() -> None:
    program = """
import numpy as np, pyarrow as pa, pathlib
from sendoff.audience.identifiers import RowCounter

def held(what):
    return int(pathlib.Path("/proc/self/status").read_text().partition(what + ":")[2].split()[0])

chance = np.random.default_rng(1)

def gathered(batches):
    counter = RowCounter("string")
    for _ in range(batches):
        texts = [bytes(each).hex() for each in chance.integers(0, 256, (50_000, 16), np.uint8)]
        counter.add(pa.array(texts, pa.large_string()))
    everybody = counter.identifiers()
    everybody.fingerprint()
    return everybody

gathered(4)  # loads the code
before = held("VmRSS")
assert len(gathered(60)) == 3_000_000
print(held("VmHWM") - before)
"""
    ended = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert int(ended.stdout) * 1024 < 2 * 32 * 3_000_000


# Choosing by a rule

heaps = st.tuples(
    st.sampled_from([1, 65_530, 2**16 * 7, 2**32 - 70_000, 2**40 - 5, 2**63 - 300_000]),  # start
    st.sampled_from([1, 3, 100, 4_096, 4_097, 65_536, 140_000]),  # length
    st.sampled_from([1, 2, 5]),  # step
)


@settings(max_examples=examples(60), deadline=None)
@given(st.lists(heaps, max_size=4), st.integers(1, 2**64 - 1), st.lists(st.integers(0, 256), max_size=3))
def test_a_rule_chooses_as_it_does_member_by_member(
    heaps: list[tuple[int, int, int]], odd: int, limits: list[int]
) -> None:
    """Test dense and scattered members, and ranges across the ends of containers and of their upper halves."""
    members = [np.arange(start, min(start + size * step, 2**63 - 1), step) for start, size, step in heaps]
    everybody = integers(np.concatenate([np.empty(0, np.int64), *members]))

    def rule(numbers: Any) -> list[Any]:
        return [(numbers * np.uint64(odd | 1)) >> np.uint64(56) < limit for limit in limits]

    found = everybody.chosen(rule, len(limits))
    values = everybody.values()
    assert [each.values().tolist() for each in found] == [values[mask].tolist() for mask in rule(values)]


@pytest.mark.parametrize("size", [0, 1, 4_095, 4_096, 4_097, 65_535, 65_536])
def test_a_rule_may_choose_any_number_of_a_container(size: int) -> None:
    everybody = integers(np.arange(2**33, 2**33 + 2**16))
    (found,) = everybody.chosen(lambda numbers: [(numbers & np.uint64(0xFFFF)) < size], 1)
    assert np.array_equal(found.values(), np.arange(2**33, 2**33 + size))
    assert from_bytes("integer", found.to_bytes()) == found


def test_a_member_of_another_type_is_not_in_a_set() -> None:
    assert 5 not in strings(["5"])
    assert "5" not in integers([5])
