"""The places of recipients, for numbers without gaps, numbers far apart, and texts."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from sendoff.audience.identifiers import Identifiers, integers, strings
from sendoff.postbacks.recipient_index import PlaceSet, RecipientIndex

FAR = 10**9
PEOPLE: dict[str, Identifiers] = {
    "a": integers(range(10, 20)),
    "b": integers([*range(20, 25), *range(26, 30)]),  # directly after a
    "far": integers([5, 5 + FAR, 5 + 2 * FAR]),
    "farther": integers([6 + 2 * FAR, 7 + 9 * FAR]),
    "one": integers([7]),
    "texts": strings(["ann", "bob"]),
    "more": strings(["bob", "cy"]),
}


def read(keys: Iterable[str]) -> Iterator[tuple[str, Identifiers]]:
    return ((key, PEOPLE[key]) for key in keys)


def located(asked: list[tuple[str, int | str]]) -> tuple[RecipientIndex, np.ndarray, np.ndarray, np.ndarray]:
    """Look up recipients of dispatches: return the index, the codes, the places and which are known."""
    index = RecipientIndex(read)
    index.codes(pa.array(list(PEOPLE)))
    codes = index.codes(pa.array([key for key, _ in asked]))
    index.load(range(len(PEOPLE)))
    numbers = [who if isinstance(who, int) else None for _, who in asked]
    names = [who if isinstance(who, str) else None for _, who in asked]
    batch = pa.record_batch(
        {"device_id": pa.array(numbers, pa.int64()), "user_id": pa.array(names, pa.string())}
    )
    return index, codes, *index.locate(codes, batch)


@pytest.mark.parametrize("line", [1 << 62, FAR])
def test_each_recipient_has_a_place_of_their_own_that_leads_back(
    line: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sendoff.postbacks.recipient_index._LINE", line)
    asked = [(key, who) for key, people in PEOPLE.items() for who in people]
    index, codes, places, known = located(asked)
    assert known.all()
    assert len(set(places.tolist())) == len(asked)
    in_order = np.array(sorted(set(codes.tolist()), key=lambda code: index.begins[code]))
    heard = PlaceSet()
    heard.add(places)
    for back in (index.people(in_order, np.sort(places)), index.people_in(in_order, heard)):
        assert {index.keys[code]: list(some) for code, some in back} == {
            key: list(people) for key, people in PEOPLE.items()
        }


@pytest.mark.parametrize("line", [1 << 62, FAR])
def test_nobody_else_has_a_place(line: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sendoff.postbacks.recipient_index._LINE", line)
    strangers: dict[str, list[int | str]] = {
        "a": [0, 9, 20, 25, 10 + FAR],
        "b": [10, 19, 25, 30],
        "far": [4, 6, 6 + 2 * FAR, 5 + 3 * FAR, 7 + 9 * FAR],
        "farther": [5, 5 + 2 * FAR, 7 + 2 * FAR, 8 + 9 * FAR],
        "one": [6, 8],
        "texts": ["cy", "Ann", ""],
        "more": ["ann"],
    }
    *_, known = located([(key, who) for key, some in strangers.items() for who in some])
    assert not known.any()


def test_texts_beyond_the_limit_are_read_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sendoff.postbacks.recipient_index._TEXT_BYTES", 1)
    index, codes, places, known = located(
        [("texts", "ann"), ("texts", "bob"), ("more", "bob"), ("more", "cy")]
    )
    assert known.all()
    assert len(index._texts) == 1
    found = {index.keys[code]: list(some) for code, some in index.people(np.unique(codes), np.sort(places))}
    assert found == {"texts": ["ann", "bob"], "more": ["bob", "cy"]}


def test_nobody_has_a_place_in_a_dispatch_whose_recipients_were_all_erased() -> None:
    index = RecipientIndex(lambda keys: ((key, integers([])) for key in keys))
    codes = index.codes(pa.array(["nobody"]))
    index.load(codes.tolist())
    _, known = index.locate(codes, pa.record_batch({"device_id": pa.array([7])}))
    assert not known.any()


@pytest.mark.parametrize(("line", "groups"), [(60_000, 1), (59_999, 2), (30_000, 2)])
def test_a_group_is_at_most_as_long_as_a_line(
    line: int, groups: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sendoff.postbacks.recipient_index._LINE", line)
    people = {key: integers([start, start + 29_999]) for key, start in (("x", 1), ("y", 7))}
    index = RecipientIndex(lambda keys: ((key, people[key]) for key in keys))
    codes = index.codes(pa.array(["x", "y"]))
    index.load(codes.tolist())
    assert len(index._groups) == groups


PLACES = st.integers(0, 300)


@given(additions=st.lists(st.lists(PLACES)), begin=PLACES, end=PLACES)
def test_a_set_of_places_has_what_was_added_in_any_order(
    additions: list[list[int]], begin: int, end: int
) -> None:
    some, near = PlaceSet(), PlaceSet()
    everything = {place for places in additions for place in places}
    for places in additions:
        some.add(np.array(places, np.uint64))
        near.add_near(np.array(sorted(set(places)), np.uint64))
    for bits in (some.between(begin, end), near.between(begin, end)):
        found = begin // 8 * 8 + np.flatnonzero(np.unpackbits(bits, bitorder="little"))
        assert found.tolist() == [each for each in sorted(everything) if begin <= each < end]
    asked = np.arange(max(everything, default=0) + 1, dtype=np.uint64)
    assert some.marked(asked).tolist() == [each in everything for each in asked.tolist()]


@given(
    starts=st.lists(st.tuples(st.integers(1, 300), st.integers(1, 40)), min_size=1, max_size=5),
    named=st.lists(st.integers(0, 199)),
)
@example(starts=[(1, 20)], named=[5])  # the set ends before the dispatch
def test_each_dispatch_has_its_own_part_of_a_set_of_places(
    starts: list[tuple[int, int]], named: list[int]
) -> None:
    """Dispatches of consecutive numbers share bytes with their neighbours."""
    people = {str(at): integers(range(low, low + size)) for at, (low, size) in enumerate(starts)}
    index = RecipientIndex(lambda keys: ((key, people[key]) for key in keys))
    codes = index.codes(pa.array(list(people)))
    index.load(codes.tolist())
    wanted = {
        key: sorted({who for each in named for who in [list(of)[each % len(of)]] if each % 3})
        for key, of in people.items()
    }
    heard = PlaceSet()
    for key, code in zip(people, codes.tolist(), strict=True):
        asked = np.full(len(wanted[key]), code)
        places, known = index.locate(asked, pa.record_batch({"device_id": pa.array(wanted[key], pa.int64())}))
        assert known.all()
        heard.add(places)
    for start in (0, len(codes) // 2):
        found = dict(index.people_in(codes[start:], heard))
        assert {index.keys[code]: list(of) for code, of in found.items()} == {
            key: wanted[key] for key in list(people)[start:] if wanted[key]
        }
