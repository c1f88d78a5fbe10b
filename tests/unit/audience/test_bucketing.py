"""Random shares: fixed by identifier and salt, exact, disjoint and complete."""

from __future__ import annotations

import hashlib
from fractions import Fraction
from math import ceil
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sendoff.audience.bucketing import _ranges, hashes, sample, sample_exactly, split
from sendoff.audience.identifiers import Identifiers, empty, integers, strings

numbers = st.sets(st.integers(1, 2**63 - 1) | st.integers(1, 100_000), max_size=60).map(integers)
words = st.sets(st.text(min_size=1, max_size=8).filter(lambda word: bool(word.strip())), max_size=60).map(
    lambda texts: strings(text for text in texts if text.isprintable())
)
sets = numbers | words
salts = st.text(st.characters(codec="utf-8"), max_size=10)
percents = st.floats(0, 100)

MANY = integers(np.arange(1, 100_001))
MANY_TEXTS = strings(f"person-{number}" for number in range(20_000))


def as_documented(identifier: int | str, salt: str) -> int:
    """Return a hash in plain Python, as the module's docstring describes it."""
    s = hashlib.blake2b(salt.encode(), digest_size=8).digest()
    if isinstance(identifier, str):
        return int.from_bytes(hashlib.blake2b(identifier.encode(), key=s, digest_size=8).digest(), "big")
    z = ((identifier ^ int.from_bytes(s, "big")) + 0x9E3779B97F4A7C15) % 2**64
    z = ((z ^ (z >> 30)) * 0xBF58476D1CE4E5B9) % 2**64
    z = ((z ^ (z >> 27)) * 0x94D049BB133111EB) % 2**64
    return z ^ (z >> 31)


def test_positions_never_change() -> None:
    """Recipients stay in the holdout over all launches and versions of Sendoff."""
    assert [f"{each:016x}" for each in hashes(integers([1, 2, 10**12, 2**63 - 1]), "spring")] == KNOWN_NUMBERS
    assert [f"{each:016x}" for each in hashes(strings(["ann", "zoë"]), "spring")] == KNOWN_TEXTS


KNOWN_NUMBERS = ["b38cabfc73d88804", "a5b612ed8ac2918b", "502b85d3868c2e4e", "bd20a1e895133161"]
KNOWN_TEXTS = ["539eccf4638e18b9", "7ec0208bfaea32ab"]


def test_numbers_are_mixed_as_splitmix64_does() -> None:
    """Compare with the first output of the published generator for the seed 1234567."""
    salt = int.from_bytes(hashlib.blake2b(b"summer", digest_size=8).digest(), "big")
    assert list(hashes(integers([1234567 ^ salt]), "summer")) == [6457827717110365317]


@given(sets, salts)
def test_positions_are_those_of_the_documented_hash_in_the_order_of_values(
    people: Identifiers, salt: str
) -> None:
    members: list[Any] = [each if people.kind == "string" else int(each) for each in people.values()]
    assert [int(each) for each in hashes(people, salt)] == [as_documented(each, salt) for each in members]


@given(sets, salts, percents)
def test_below_gives_whose_position_is_below_the_percent(
    people: Identifiers, salt: str, percent: float
) -> None:
    chosen = sample(people, salt, percent)
    assert set(chosen) == {
        each for each in people if as_documented(each, salt) < Fraction(str(percent)) / 100 * 2**64
    }


@given(sets, salts, percents, percents)
def test_a_larger_percent_only_adds_people(people: Identifiers, salt: str, one: float, other: float) -> None:
    small, large = sample(people, salt, min(one, other)), sample(people, salt, max(one, other))
    assert len(small - large) == 0
    assert sample(people, salt, 0) == empty(people.kind)
    assert sample(people, salt, 100) == people


@given(sets, salts, st.lists(st.floats(0, 40), min_size=1, max_size=5))
def test_a_split_has_everybody_exactly_once(people: Identifiers, salt: str, parts: list[float]) -> None:
    shares = split(people, salt, parts)
    assert len(shares) == len(parts)
    assert sorted(each for share in shares for each in share) == sorted(people)


def test_a_split_begins_with_whom_below_gives_and_its_last_share_takes_the_rest() -> None:
    first, second, rest = split(MANY, "sides", [20, 30, 1])
    assert first == sample(MANY, "sides", 20)
    assert first | second == sample(MANY, "sides", 50)
    assert rest == MANY - first - second
    assert split(MANY, "sides", [100]) == [MANY]
    with pytest.raises(ValueError, match="at least one share"):
        split(MANY, "sides", [])


@given(sets, salts, st.integers(0, 70))
def test_the_smallest_are_exactly_so_many_and_those_with_the_smallest_positions(
    people: Identifiers, salt: str, size: int
) -> None:
    in_order = sorted(people, key=lambda each: as_documented(each, salt))
    assert set(sample_exactly(people, salt, size)) == set(in_order[:size])


def test_the_smallest_of_many_are_found_over_all_blocks() -> None:
    everybody = integers(np.arange(1, 2_200_000))
    chosen = sample_exactly(everybody, "size limit", 1_234_567)
    assert len(chosen) == 1_234_567
    assert hashes(chosen, "size limit").max() < hashes(everybody - chosen, "size limit").min()


@given(sets, salts, st.integers(0, 70), st.sampled_from([2, 20]))
def test_the_smallest_of_people_who_are_all_in_one_share_are_as_exact(
    people: Identifiers, salt: str, size: int, percent: int
) -> None:
    crowd = sample(people, salt, percent)
    in_order = sorted(crowd, key=lambda each: as_documented(each, salt))
    assert set(sample_exactly(crowd, salt, size)) == set(in_order[:size])


@pytest.mark.parametrize("size", [1, 700, 1_500])
def test_the_smallest_are_exact_where_positions_are_not_spread_as_chance_would(size: int) -> None:
    """The hashes of this crowd are in a narrow range, so an estimate from its size is far off."""
    crowd = split(MANY, "spring", [40, 1.7, 58.3])[1]
    expected = np.sort(crowd.values()[np.argsort(hashes(crowd, "spring"))[:size]])
    assert np.array_equal(sample_exactly(crowd, "spring", size).values(), expected)


@pytest.mark.parametrize(
    "people",
    [
        integers(np.arange(1, 3_000_001)),
        integers(np.arange(1, 3_000_001) * 3),  # most numbers in a range are not members
        integers(np.arange(1, 1_500_001) * 50),
        integers(np.concatenate([np.arange(2**32 - 99_999, 2**32 + 99_999), np.arange(1, 2**62, 2**46)])),
    ],
    ids=["close together", "every third", "far apart", "of all kinds"],
)
@pytest.mark.parametrize("shares", [[5, 95], [0, 33.3, 0, 66.7], [0.01, 99, 0.99], [60, 60, 60]])
def test_shares_of_many_are_those_of_each_ones_position(people: Identifiers, shares: list[float]) -> None:
    found = hashes(people, "spring")
    *first, rest = split(people, "spring", shares)
    start, total = 0, Fraction(0)
    for share, percent in zip(first, shares, strict=False):
        total += Fraction(str(percent))
        end = ceil(total * 2**64 / 100)
        assert np.array_equal(share.values(), people.values()[(start <= found) & (found < end)])
        start = end
    assert np.array_equal(rest.values(), people.values()[found >= start])


@pytest.mark.parametrize("people", [MANY, MANY_TEXTS], ids=["numbers", "texts"])
def test_who_is_at_the_end_of_a_range_is_in_the_next_one(people: Identifiers) -> None:
    end = int(hashes(people, "spring").min())
    before, rest = _ranges(people, "spring", [end, 2**64])
    assert (len(before), rest) == (0, people)


@pytest.mark.parametrize("people", [MANY, MANY_TEXTS], ids=["numbers", "texts"])
@pytest.mark.parametrize("percent", [0.1, 5, 50, 99.5])
def test_a_share_is_about_its_percent(people: Identifiers, percent: float) -> None:
    share = percent / 100
    deviation = (len(people) * share * (1 - share)) ** 0.5
    assert abs(len(sample(people, "spring", percent)) - len(people) * share) < 4 * deviation


@pytest.mark.parametrize("people", [MANY, MANY_TEXTS], ids=["numbers", "texts"])
def test_shares_of_two_salts_have_nothing_to_do_with_each_other(people: Identifiers) -> None:
    """Test salts that differ by one character too."""
    for first, second in [("spring", "sprinh"), ("a", "b"), ("", "size limit"), ("holdout", "variants")]:
        both = len(sample(people, first, 30) & sample(people, second, 30))
        expected = len(people) * 0.09
        assert abs(both - expected) < 4 * expected**0.5


@pytest.mark.parametrize("step", [2, 3, 1024, 2**20, 2**32])
def test_numbers_at_any_distance_are_shared_out_as_evenly(step: int) -> None:
    """Identifiers may be assigned one by one, in steps, or by shards; shares must not depend on it."""
    people = integers(np.arange(1, 20_001) * step)
    counts = np.bincount((hashes(people, "spring") >> np.uint64(57)).astype(np.intp), minlength=128)
    chi_square = ((counts - 156.25) ** 2 / 156.25).sum()
    assert 75 < chi_square < 195  # 127 degrees of freedom; the inputs are fixed, and so is the result


def test_nobody_has_no_positions() -> None:
    for kind in ("integer", "string"):
        nobody = empty(kind)  # type: ignore[arg-type]
        assert len(hashes(nobody, "spring")) == 0
        assert sample(nobody, "spring", 50) == nobody
        assert sample_exactly(nobody, "spring", 3) == nobody


def test_a_negative_share_is_refused() -> None:
    with pytest.raises(ValueError, match="must not be negative"):
        sample(MANY, "spring", -1)
