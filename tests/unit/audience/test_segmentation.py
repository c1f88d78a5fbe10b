"""Cutting an audience by wave, variant, language and time zone, with each recipient in one segment."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyroaring import BitMap64

from sendoff.audience.bucketing import hashes, sample
from sendoff.audience.build import Audience, build_audience
from sendoff.audience.identifiers import Identifiers, IntegerIdentifiers, integers, strings
from sendoff.audience.segmentation import DEFAULT_VARIATION, Segment, in_unknown_zones, segments_of
from sendoff.campaign import Campaign, Variation
from sendoff.errors import AudienceError

PUSH: dict[str, Any] = {
    "title": "Spring",
    "message": {"title": "Hello", "text": "It is spring"},
    "channels": {"android_push": {}},
}
EMAIL: dict[str, Any] = {
    "title": "Spring",
    "language": "en",
    "channels": {
        "email": {
            "from_address": 1,
            "subject": "Hello",
            "text": "It is spring",
            "translations": {
                "de": {"subject": "Hallo", "text": "Es ist Frühling"},
                "fr": {"subject": "Bonjour", "text": "C'est le printemps"},
            },
        }
    },
}
TWO = {"a": {"percent": 50}, "b": {"percent": 50}}
EVERY_ZONE = {"kind": "once", "time": "18:30", "time_zone": "query", "default_time_zone": "Europe/Dublin"}
WINDOW = {
    "earliest": "09:00",
    "latest": "20:00",
    "time_zone": "query",
    "default_time_zone": "Europe/Dublin",
}
MANY = integers(range(1, 40_001))


def campaign(base: Mapping[str, Any] = PUSH, **fields: Any) -> Campaign:
    return Campaign.model_validate({**base, "segment_size": 1_000_000, **fields})


def audience(
    identifiers: Identifiers, groups: Mapping[str, Mapping[str, Identifiers]] | None = None
) -> Audience:
    return Audience("device_id", identifiers, len(identifiers), {}, groups or {})


def cut(segments: Iterable[Segment]) -> list[tuple[Variation, int, list[int | str]]]:
    return [
        (segment.variation, segment.wave, list(segment.identifiers or []))  # type: ignore[call-overload]
        for segment in segments
    ]


def zones_of(segments: Iterable[Segment]) -> dict[str | None, list[Any]]:
    return {variation.time_zone: people for variation, _, people in cut(segments)}


# Each recipient is in one segment, the right one

people = st.lists(st.integers(1, 200), unique=True, min_size=1, max_size=60)
languages = st.sets(st.sampled_from(["en", "en-GB ", " FR", "fr_CA", "de   ", "es"]), max_size=3)
zones = st.sets(
    st.sampled_from(["Asia/Tokyo", "Europe/Dublin", " Asia/Tokyo ", "Mars/Base", "../etc"]), max_size=3
)
speakers = st.lists(st.tuples(languages, zones), min_size=60, max_size=60)
variants = st.sampled_from([{}, TWO, {"a": {"percent": 1}, "b": {"percent": 29.5}, "c": {"percent": 69.5}}])
spreads = st.sampled_from([None, {"shares": [1, 10]}, {"shares": [50]}])


def expected(
    identifier: Any, known: tuple[set[str], set[str]], cell: Campaign, kind: type
) -> tuple[Variation, float]:
    """Compute in plain Python which variation a recipient gets, and their position among the waves in percent."""
    spoken = {value.strip().replace("_", "-").partition("-")[0].lower() for value in known[0]}
    language = next(
        each for each in ("en", "de", "fr", "en") if each in spoken or not spoken & {"en", "de", "fr"}
    )
    real = sorted({zone.strip() for zone in known[1]} & {"Asia/Tokyo", "Europe/Dublin"})
    alone = integers([identifier]) if kind is int else strings([identifier])

    def percent(salt: str) -> float:
        return int(hashes(alone, salt)[0]) / 2**64 * 100

    variant, end = None, 0.0
    for name, each in cell.variants.items():
        end += each.percent
        if variant is None and percent("variant spring") < end:
            variant = name
    return Variation(language, variant, real[0] if real else "Europe/Dublin"), percent("rollout spring")


@given(people, speakers, variants, spreads, st.sampled_from([int, str]), st.integers(1, 9))
@pytest.mark.promise("twice/apart")
def test_everybody_is_in_one_segment_with_those_who_get_the_same(
    members: list[int],
    known: list[tuple[set[str], set[str]]],
    variants: dict[str, Any],
    spread: dict[str, Any] | None,
    kind: type,
    size: int,
) -> None:
    gates = {"window": WINDOW, **({"rollout": spread} if spread else {})}
    made = campaign(EMAIL, variants=variants, gates=gates, segment_size=size)
    who = dict(zip(map(kind, members), known, strict=False))
    gathered = integers if kind is int else strings
    groups: dict[str, dict[str, Identifiers]] = {
        column: {
            value: gathered([each for each, values in who.items() if value in values[place]])
            for value in sorted({value for values in who.values() for value in values[place]})
        }
        for place, column in enumerate(("language", "time_zone"))
    }
    found = cut(segments_of(made, audience(gathered(list(who)), groups), name="spring"))

    assert sorted(each for _, _, segment in found for each in segment) == sorted(who)
    assert all(0 < len(segment) <= size for _, _, segment in found)
    waves = [wave for _, wave, _ in found]
    assert waves == sorted(waves)
    assert set(waves) == set(range(1, max(waves) + 1))
    steps = [*(spread["shares"] if spread else []), 100]
    filled = sorted(
        {
            next(step for step in steps if expected(each, *rest)[1] < step)
            for each, *rest in ((each, known, made, kind) for each, known in who.items())
        }
    )
    for variation, wave, segment in found:
        for each in segment:
            should, place = expected(each, who[each], made, kind)  # type: ignore[index]
            assert variation == should
            assert filled[wave - 1] == next(step for step in steps if place < step)


def _rows(column: str, values: np.ndarray[Any, Any]) -> list[pa.RecordBatch]:
    """Return rows in no order, one in five of them twice and with other groups."""
    chance = np.random.default_rng(5)
    values = chance.permutation(np.concatenate([values, values[::5]]))
    spoken = np.array(["en", "de", "fr-CA", "es"])[chance.integers(0, 4, len(values))]
    zones = np.array(["Asia/Tokyo", "Europe/Dublin", "Mars/Base", ""])[chance.integers(0, 4, len(values))]
    whole = pa.table({column: values, "language": spoken, "time_zone": zones})
    return whole.to_batches(max_chunksize=3_000)


_LOW = np.arange(1, 200_000, 13)
_SCATTERED = (_LOW.astype(np.uint64) * np.uint64(0x9E3779B97F4A7C15)) >> np.uint64(1)


@pytest.mark.parametrize(
    ("column", "values", "digest"),
    [
        ("device_id", _LOW, "275f66659737c5ea"),
        ("device_id", _SCATTERED.astype(np.int64), "8668530512d7891a"),
        ("device_id", np.concatenate([_LOW, _SCATTERED.astype(np.int64)]), "22b710992bd59706"),
        ("external_id", np.char.add("customer-", _LOW.astype(str)), "032f6de648a7b093"),
        ("external_id", np.char.add(_SCATTERED.astype(str), "-a"), "acef5ea2617e948d"),
    ],
)
@pytest.mark.promise("twice/apart")
def test_rows_become_the_same_segments_in_every_release(
    column: str, values: np.ndarray[Any, Any], digest: str
) -> None:
    # Dispatch keys are derived from fingerprints and order: a change here would send every launch again.
    made = build_audience(_rows(column, values))
    held_out = sample(made.identifiers, "holdout spring", 7)
    planned = made.less({"holdout": held_out, "cap": sample(made.identifiers - held_out, "cap", 3)})
    gates = {"window": WINDOW, "rollout": {"shares": [10, 50]}}
    cell = campaign(EMAIL, variants=TWO, gates=gates, segment_size=400)
    found = hashlib.blake2b(f"{made.fingerprint} {dict(planned.dropped)}".encode(), digest_size=8)
    for segment in segments_of(cell, planned, name="spring"):
        identifiers = segment.identifiers
        assert identifiers is not None
        found.update(f"{segment.variation} {segment.wave} {len(segment)} {segment.fingerprint()}".encode())
        if isinstance(identifiers, IntegerIdentifiers):
            bitmap = BitMap64(identifiers)
            bitmap.run_optimize()
            found.update(bitmap.serialize())
    assert found.hexdigest() == digest


def test_a_campaign_that_is_the_same_for_all_is_only_sliced() -> None:
    found = cut(segments_of(campaign(segment_size=2), audience(integers([3, 1, 2]))))
    assert found == [(DEFAULT_VARIATION, 1, [1, 2]), (DEFAULT_VARIATION, 1, [3])]


def test_nobody_makes_no_segment() -> None:
    made = campaign(variants=TWO, gates={"rollout": {}})
    assert list(segments_of(made, audience(integers([])))) == []


# Variants and waves


def variant_of(made: Campaign, whom: Identifiers, name: str) -> dict[Any, str | None]:
    return {
        each: variation.variant
        for variation, _, segment in cut(segments_of(made, audience(whom), name=name))
        for each in segment
    }


def test_somebodys_variant_is_the_same_in_every_launch_whoever_else_is_in_it() -> None:
    made = campaign(variants=TWO)
    first, later = (
        variant_of(made, MANY, "spring"),
        variant_of(made, integers(range(5_000, 90_000, 7)), "spring"),
    )
    assert [first[each] for each in first.keys() & later.keys()] == [
        later[each] for each in first.keys() & later.keys()
    ]
    assert first != variant_of(made, MANY, "summer")


def test_variants_are_of_the_size_that_the_file_says() -> None:
    made = campaign(variants={"few": {"percent": 5}, "rest": {"percent": 95}})
    found = list(variant_of(made, MANY, "spring").values())
    assert 0.045 < found.count("few") / len(found) < 0.055


def test_each_wave_and_what_is_held_out_has_its_part_of_each_variant() -> None:
    made = campaign(variants=TWO, gates={"rollout": {"shares": [5, 20]}})
    sizes: dict[int, dict[str | None, int]] = {}
    for variation, wave, segment in cut(segments_of(made, audience(MANY), name="spring")):
        sizes.setdefault(wave, {})[variation.variant] = len(segment)
    assert list(sizes) == [1, 2, 3]
    assert [round(sum(each.values()) / len(MANY), 2) for each in sizes.values()] == [0.05, 0.15, 0.8]
    assert all(0.45 < each["a"] / sum(each.values()) < 0.55 for each in sizes.values())

    assigned = variant_of(made, MANY, "spring")
    held_out = [assigned[each] for each in sample(MANY, "holdout spring", 10)]
    assert 0.45 < held_out.count("a") / len(held_out) < 0.55


def test_a_wave_of_nobody_is_left_out_and_the_others_follow_on_each_other() -> None:
    for size in range(1, 30):
        waves = [
            segment.wave
            for segment in segments_of(
                campaign(gates={"rollout": {}}), audience(integers(range(size)[1:] or [1])), name="s"
            )
        ]
        assert waves == list(range(1, len(waves) + 1))


def test_a_wave_comes_whole_before_the_next() -> None:
    made = campaign(EMAIL, variants=TWO, gates={"rollout": {"shares": [10]}}, segment_size=500)
    groups = {"language": {"fr": integers(range(1, 20_000))}}
    waves = [segment.wave for segment in segments_of(made, audience(MANY, groups), name="spring")]
    assert waves == sorted(waves)


# Time zones


@pytest.mark.parametrize("fields", [{"send": EVERY_ZONE}, {"gates": {"window": WINDOW}}])
def test_each_zone_of_the_query_is_cut_apart_and_who_has_none_gets_the_default(
    fields: dict[str, Any],
) -> None:
    groups = {
        "time_zone": {
            "asia/tokyo": integers([1, 2, 3]),
            "America/New_York": integers([3, 4]),
            "Europe/Dublin": integers([5]),
            "GMT+1 (Paris)": integers([6]),
            "Europe": integers([4, 7]),
            "posix/Asia/Tokyo": integers([7]),
            "localtime": integers([8]),
        }
    }
    found = zones_of(segments_of(campaign(**fields), audience(integers(range(1, 10)), groups)))
    assert found == {
        "America/New_York": [3, 4],  # 3 has two zones, and gets the first in the alphabet
        "Asia/Tokyo": [1, 2],
        "Europe/Dublin": [5, 6, 7, 8, 9],
    }
    made = audience(integers(range(1, 10)), groups)
    assert in_unknown_zones(campaign(**fields), made) == (3, "Europe")  # 4 has a zone that exists, too
    groups["time_zone"]["America/Los_Angeles"] = integers([6, 7, 8])
    assert in_unknown_zones(campaign(**fields), audience(integers(range(1, 10)), groups)) is None
    assert in_unknown_zones(campaign(EMAIL), made) is None


def test_a_zone_with_blanks_around_it_is_that_zone() -> None:
    groups = {"time_zone": {"Asia/Tokyo  ": integers([1]), "Asia/Tokyo": integers([2])}}
    found = zones_of(segments_of(campaign(send=EVERY_ZONE), audience(integers([1, 2]), groups)))
    assert found == {"Asia/Tokyo": [1, 2]}


def test_a_campaign_in_one_zone_is_not_cut_by_the_column() -> None:
    groups = {"time_zone": {"Asia/Tokyo": integers([1])}}
    made = campaign(send={"kind": "once", "time": "18:30", "time_zone": "Asia/Tokyo"})
    assert zones_of(segments_of(made, audience(integers([1, 2]), groups))) == {None: [1, 2]}


def test_a_query_without_the_column_is_told_what_to_add() -> None:
    with pytest.raises(
        AudienceError, match=r"has no column time_zone; add time_zone to the columns of the audience"
    ):
        list(segments_of(campaign(send=EVERY_ZONE), audience(integers([1]))))
    with pytest.raises(
        AudienceError, match=r"requests in en, de, fr, .* has no column language; add language"
    ):
        list(segments_of(campaign(EMAIL), audience(integers([1]))))


DECIDE = {"share": 20, "after": {"length": 2, "unit": "hours"}, "otherwise": "a"}


def test_a_test_share_gets_the_variants_and_the_rest_waits_for_the_winner() -> None:
    made = campaign(variants=TWO, decide=DECIDE)
    found = cut(segments_of(made, audience(MANY), name="spring"))
    assert [(variation.variant, wave) for variation, wave, _ in found] == [("a", 1), ("b", 1), (None, 2)]
    a, b, rest = (set(people) for _, _, people in found)
    assert a | b | rest == set(range(1, 40_001))
    assert len(a) + len(b) + len(rest) == 40_000
    assert {*a, *b} == {*map(int, sample(MANY, "decide spring", 20).values())}
    # The same people are in the same variant without a test share, so both splits are independent.
    everyone = {
        variation.variant: set(who)
        for variation, _, who in cut(segments_of(campaign(variants=TWO), audience(MANY), name="spring"))
    }
    assert a < everyone["a"]
    assert abs(len(a) - len(b)) < 400


def test_the_keys_of_a_launch_with_a_test_share_are_derived() -> None:
    made = campaign(variants=TWO, decide=DECIDE, segment_size=500)
    first, again = (
        [each.fingerprint() for each in segments_of(made, audience(MANY), name="spring")] for _ in "12"
    )
    assert first == again
    assert len(set(first)) == len(first)


def test_a_rest_is_never_sent_first_even_if_nobody_is_in_the_test_share() -> None:
    made = campaign(variants=TWO, decide={**DECIDE, "share": 0.001})
    assert [
        (variation.variant, wave)
        for variation, wave, _ in cut(segments_of(made, audience(integers([1, 2])), name="x"))
    ] == [(None, 2)]
