"""Building an audience from rows: kept and dropped rows, and results that are not an audience."""

from __future__ import annotations

import pickle
from collections.abc import Iterator, Sequence
from copy import copy
from dataclasses import replace
from typing import Any

import orjson
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sendoff.audience.build import IDENTIFIER_COLUMNS, Audience, build_audience, those_among
from sendoff.audience.identifiers import LONGEST_TEXT, empty, integers, strings
from sendoff.audience.template_values import read_template_values
from sendoff.errors import AudienceError

Row = tuple[int | None, str | None, str | None]

rows = st.lists(
    st.tuples(
        st.none() | st.integers(-2, 30) | st.just(2**40),
        st.none() | st.sampled_from(["android", "ios", "safari", ""]),
        st.none() | st.sampled_from(["en", "fr"]),
    ),
    max_size=60,
)


def batch(**columns: Any) -> pa.RecordBatch:
    return pa.record_batch({name: pa.array(values) for name, values in columns.items()})


def batches_of(people: Sequence[Row], size: int) -> Iterator[pa.RecordBatch]:
    for start in range(0, max(1, len(people)), size):
        part = people[start : start + size]
        yield pa.record_batch(
            {
                "device_id": pa.array([row[0] for row in part], pa.int64()),
                "platform": pa.array([row[1] for row in part], pa.string()),
                "language": pa.array([row[2] for row in part], pa.string()),
            }
        )


def audience(**columns: Any) -> Audience:
    return build_audience([batch(**columns)])


@given(rows, st.randoms(), st.integers(1, 20))
def test_the_same_rows_in_any_order_and_any_batches_are_the_same_audience(
    people: list[Row], random: Any, size: int
) -> None:
    shuffled = list(people)
    random.shuffle(shuffled)
    assert build_audience(batches_of(shuffled, size)) == build_audience(batches_of(people, 1_000))


@given(rows, st.sets(st.integers(1, 30)), st.sets(st.integers(1, 30)), st.integers(1, 20))
def test_every_row_is_kept_or_dropped_for_one_reason(
    people: list[Row], left: set[int], right: set[int], size: int
) -> None:
    own = build_audience(batches_of(people, size))
    complained = own.identifiers & integers(left)
    made = own.less({"complained": complained, "bounced": (own.identifiers & integers(right)) - complained})
    named = [row[0] for row in people if row[0] is not None]
    good = {value for value in named if value > 0}
    assert set(made.identifiers) == good - left - right
    assert made.dropped == {
        "null": len(people) - len(named),
        "invalid": sum(value <= 0 for value in named),
        "duplicate": sum(value > 0 for value in named) - len(good),
        "complained": len(good & left),
        "bounced": len((good - left) & right),
    }
    assert made.rows == len(people) == len(made.identifiers) + sum(made.dropped.values())


@given(rows, st.sets(st.integers(1, 30)))
def test_a_group_has_each_member_who_came_with_its_value(people: list[Row], excluded: set[int]) -> None:
    made = build_audience(batches_of(people, 7))
    made = made.less({"excluded": made.identifiers & integers(excluded)})
    for place, column in ((1, "platform"), (2, "language")):
        expected: dict[str, set[int]] = {}
        for row in people:
            if row[0] is not None and row[0] > 0 and row[place]:
                expected.setdefault(str(row[place]), set()).add(row[0])
        found = {value: set(members) for value, members in made.groups.get(column, {}).items()}
        assert found == {value: members - excluded for value, members in expected.items()}


def test_platforms_are_told_apart_by_their_letters_only() -> None:
    batch = pa.record_batch(
        {"device_id": [1, 2, 3, 4], "platform": ["android", "Android", " ANDROID ", "iOS"]}
    )
    assert build_audience([batch]).groups["platform"] == {
        "android": integers([1, 2, 3]),
        "ios": integers([4]),
    }


def test_a_device_that_came_with_two_platforms_is_in_both_groups() -> None:
    made = audience(device_id=[7, 7, 8], platform=["android", "chrome", "chrome"])
    assert {name: list(ids) for name, ids in made.groups["platform"].items()} == {
        "android": [7],
        "chrome": [7, 8],
    }
    assert (len(made.identifiers), made.dropped["duplicate"]) == (2, 1)


@pytest.mark.parametrize(
    ("column", "values", "members"),
    [
        ("device_id", pa.array([2, 1], pa.int16()), [1, 2]),
        ("device_id", pa.array([2, -1], pa.int8()), [2]),
        ("device_id", pa.array([2, 2**64 - 1], pa.uint64()), [2]),
        ("device_id", pa.array([2, 1]).dictionary_encode(), [1, 2]),
        ("DEVICE_ID", pa.array([2]), [2]),  # the spelling of Snowflake and Oracle
        ("external_id", pa.array(["b", "a", " "]), ["a", "b"]),
        ("external_id", pa.array([10, 9]), ["10", "9"]),  # whole numbers have one spelling as text
        ("external_id", pa.array(["b", "a"]).dictionary_encode(), ["a", "b"]),
        ("user_id", pa.array(["b", "a"], pa.string_view()), ["a", "b"]),
        ("device_token", pa.array([5]), [5]),  # as in the service's document
        ("device_token", pa.array(["f00d"]), ["f00d"]),  # as tokens are elsewhere
        ("device_uuid", pa.array(["0-1"], pa.large_string()), ["0-1"]),
    ],
)
def test_identifiers_come_in_many_types(column: str, values: pa.Array, members: list[Any]) -> None:
    made = build_audience([pa.record_batch({column: values})])
    assert made.identified_by == column.lower()
    assert list(made.identifiers) == members


@pytest.mark.parametrize(
    ("column", "values", "message"),
    [
        (
            "device_id",
            pa.array([None, "x1"]),
            "row 2 has text; write CAST(device_id AS BIGINT)",
        ),
        (
            "device_id",
            pa.array(["12"]),
            "AS device_id in the query. If some texts are not numbers, make them null first",
        ),
        ("device_id", pa.array([1.0]), "number that may have a fraction; write CAST(device_id AS BIGINT)"),
        ("device_id", pa.array([True]), "has bool; write CAST(device_id AS BIGINT)"),
        ("device_id", pa.array([1]).cast(pa.decimal128(38, 0)), "write CAST(device_id AS BIGINT)"),
        ("external_id", pa.array([1.5]), "column external_id must contain text, but row 1"),
        ("external_id", pa.array([b"x"]), "write CAST(external_id AS TEXT) AS external_id in the query"),
    ],
)
def test_a_column_of_the_wrong_type_is_named_with_its_row_and_its_cure(
    column: str, values: pa.Array, message: str
) -> None:
    with pytest.raises(AudienceError) as caught:
        build_audience([pa.record_batch({column: values})])
    assert message in str(caught.value)
    assert column in str(caught.value)


def test_the_row_of_a_wrong_type_is_counted_over_all_batches_and_its_value_not_shown() -> None:
    with pytest.raises(AudienceError, match="row 5 has") as caught:
        build_audience([batch(device_id=[1, 2, 3]), batch(device_id=[None, "ann@example.com"])])
    assert "ann" not in str(caught.value)


def test_a_group_column_of_the_wrong_type_is_named() -> None:
    with pytest.raises(
        AudienceError, match=r"column language must contain text, but row 1 .* CAST\(language AS TEXT\)"
    ):
        audience(device_id=[1], language=[b"en"])


def test_text_that_is_not_utf_8_is_refused() -> None:
    broken = pa.array([b"\xff\xfe"]).view(pa.string())
    with pytest.raises(AudienceError, match="external_id contains text that is not UTF-8"):
        build_audience([pa.record_batch({"external_id": broken})])


def test_a_query_without_an_identifier_column_is_told_which_there_are() -> None:
    with pytest.raises(AudienceError) as caught:
        audience(customer_id=[1], platform=["ios"])
    assert all(name in str(caught.value) for name in IDENTIFIER_COLUMNS)


def test_a_query_with_two_identifier_columns_is_refused() -> None:
    with pytest.raises(AudienceError, match="has device_id and user_id, but must have exactly one"):
        audience(device_id=[1], user_id=["a"])


def test_a_query_with_one_column_twice_is_refused() -> None:
    twice = pa.RecordBatch.from_arrays([pa.array([1]), pa.array([2])], names=["device_id", "DEVICE_ID"])
    with pytest.raises(AudienceError, match="device_id more than once"):
        build_audience([twice])


def test_no_batch_at_all_is_no_audience() -> None:
    with pytest.raises(AudienceError, match="the query has no columns"):
        build_audience([])


def test_an_audience_may_be_empty() -> None:
    made = audience(device_id=pa.array([], pa.null()), platform=pa.array([], pa.null()))
    assert (len(made.identifiers), made.rows, sum(made.dropped.values())) == (0, 0, 0)


def test_batches_of_nothing_but_nulls_may_have_any_type() -> None:
    batches = [batch(device_token=[None, None]), batch(device_token=["a", None]), batch(device_token=[None])]
    made = build_audience(batches)
    assert (list(made.identifiers), made.rows, made.dropped["null"]) == (["a"], 5, 4)


def test_other_columns_are_ignored_by_name() -> None:
    made = audience(device_id=[1], Score=[1.5], platform=["ios"], note=[b"\xff"])
    assert made.ignored_columns == ("score", "note")
    assert set(made.groups) == {"platform"}


def test_the_expressions_of_columns_without_a_name_are_not_kept() -> None:
    names = {"'ann@example.com' = mail": [True], "7340000001": [1], "größe": [2]}
    made = audience(device_id=[1], **names)
    assert made.ignored_columns == ("those without a plain name", "größe")


def test_groups_of_texts_work_like_groups_of_numbers() -> None:
    made = audience(external_id=["b", "a", "b", None], platform=["ios", "android", None, "ios"])
    assert {name: list(ids) for name, ids in made.groups["platform"].items()} == {
        "android": ["a"],
        "ios": ["b"],
    }


@pytest.mark.parametrize("odd", ["a\0b", "\0", "x" * (LONGEST_TEXT + 1), "é" * (LONGEST_TEXT // 2 + 1)])
def test_a_text_that_the_ledger_cannot_store_is_dropped_and_counted(odd: str) -> None:
    longest = "é" * (LONGEST_TEXT // 2)
    given = ["ann", odd, None, longest, " ", "", odd]
    made = audience(user_id=given, platform=["ios", "ios", None, "web", "ios", "ios", None])
    assert list(made.identifiers) == sorted(["ann", longest])
    assert made.dropped == {"null": 1, "invalid": 4, "duplicate": 0}
    assert {value: list(people) for value, people in made.groups["platform"].items()} == {
        "ios": ["ann"],
        "web": [longest],
    }


def test_white_space_around_identifiers_is_removed(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO")
    given = ["ann   ", "\tann", "b b\u00a0\n", None, "  ", "x" * LONGEST_TEXT + " "]
    made = audience(external_id=given, platform=["ios", "web", "ios", "ios", "ios", None])
    assert list(made.identifiers) == ["ann", "b b", "x" * LONGEST_TEXT]
    assert made.dropped == {"null": 1, "invalid": 1, "duplicate": 1}
    assert {value: list(people) for value, people in made.groups["platform"].items()} == {
        "ios": ["ann", "b b"],
        "web": ["ann"],
    }
    assert "Removed white space around the identifiers of 5 rows" in caplog.text


@pytest.mark.parametrize("odd", ["i\0s", "x" * (LONGEST_TEXT + 1)])
def test_a_group_that_the_ledger_cannot_store_is_no_group(odd: str) -> None:
    made = audience(user_id=["ann", "bob"], platform=[odd, "ios"], time_zone=[odd, odd])
    assert list(made.identifiers) == ["ann", "bob"]
    assert {name: list(values) for name, values in made.groups.items()} == {
        "platform": ["ios"],
        "time_zone": [],
    }


def test_a_column_with_too_many_values_makes_no_groups() -> None:
    with pytest.raises(AudienceError, match="time_zone has more than 1,000 values"):
        audience(device_id=range(1, 1_002), time_zone=[f"zone {n}" for n in range(1, 1_002)])


def test_people_of_the_other_kind_cannot_be_taken_out() -> None:
    with pytest.raises(
        AudienceError, match="complained has string identifiers, but the audience has integer ones"
    ) as caught:
        those_among(integers([4711]), "complained", strings(["4711"]))
    assert "4711" not in str(caught.value)


def test_nobody_of_either_kind_can_be_taken_out() -> None:
    assert those_among(integers([4711]), "complained", empty("string")) == empty("integer")
    assert those_among(empty("integer"), "complained", strings(["4711"])) == empty("integer")


def test_only_those_who_are_there_are_taken_out() -> None:
    assert list(those_among(integers([1, 2, 3]), "complained", integers([2, 3, 4]))) == [2, 3]


def test_reasons_stand_in_the_order_in_which_they_were_looked_at() -> None:
    nobody = integers([])
    made = audience(device_id=[1, 2, 3]).less({"complained": integers([1]), "bounced": nobody})
    made = made.less({"cap": integers([2]), "bounced": nobody})
    assert list(made.dropped.items())[-3:] == [("complained", 1), ("bounced", 0), ("cap", 1)]


def test_people_who_are_taken_out_for_one_reason_twice_are_counted_together() -> None:
    made = audience(device_id=[1, 2, 3]).less({"cap": integers([1])}).less({"cap": integers([2])})
    assert (list(made.identifiers), made.dropped["cap"]) == ([3], 2)


def test_a_fingerprint_tells_the_column_that_names_the_people() -> None:
    assert audience(external_id=["a"]).fingerprint != audience(user_id=["a"]).fingerprint
    assert (
        audience(device_id=[1]).fingerprint == audience(device_id=[1, 1], platform=["ios", "ios"]).fingerprint
    )


def test_a_fingerprint_is_that_of_whoever_is_left_whenever_it_is_asked_for() -> None:
    # Ledgers contain these fingerprints: with a change here, the same audience would count as another one.
    made = audience(device_id=[1, 2, 2**40, 7])
    assert made.less({"cap": integers([7])}).fingerprint == "132c894064a40a270b88cd7aa2321069"
    assert made.fingerprint == "70c37201081564f4baf562b05cdccb4a"
    assert made.less({"cap": integers([7])}).fingerprint == "132c894064a40a270b88cd7aa2321069"
    assert made.less({"cap": integers([])}).fingerprint == made.fingerprint
    assert replace(made, rows=9).fingerprint == made.fingerprint
    assert copy(made) == pickle.loads(pickle.dumps(made)) == made


def test_an_audience_that_was_read_back_has_the_same_fingerprint() -> None:
    people = integers([1, 2])
    assert Audience("device_id", people, 2, {}, {}).fingerprint == audience(device_id=[1, 2]).fingerprint


@given(rows, st.sets(st.integers(1, 30)), st.sets(st.integers(1, 30)))
def test_to_take_people_out_at_once_is_to_take_them_out_one_reason_after_the_other(
    people: list[Row], left: set[int], right: set[int]
) -> None:
    made = build_audience(batches_of(people, 7))
    own = made.identifiers
    reasons = {"complained": own & integers(left), "bounced": (own & integers(right)) - integers(left)}
    step = made
    for reason, members in reasons.items():
        step = step.less({reason: members})
    assert made.less(reasons) == step
    assert made.less({}) == made


def test_an_audience_shows_no_identifier() -> None:
    assert "4711" not in repr(audience(device_id=[4711, 4712], platform=["ios", "ios"]))


# Template values


def test_columns_of_a_template_are_gathered_and_no_longer_ignored() -> None:
    made = build_audience(
        [batch(device_id=[2, 1, None, 2], First_Name=["Bo", "Ann", "Nobody", "Bo"], score=[1, 2, 3, 4])],
        columns=["first_name"],
    )
    assert made.ignored_columns == ("score",)
    assert own_values(made) == {1: {"first_name": "Ann"}, 2: {"first_name": "Bo"}}
    assert (made.ambiguous, made.rows, made.dropped["duplicate"], made.dropped["null"]) == (0, 4, 1, 1)


def test_an_audience_without_columns_has_no_template_values() -> None:
    made = audience(device_id=[1], first_name=["Ann"])
    assert (made.template_values, made.ambiguous) == (None, 0)


def test_people_who_are_taken_out_leave_the_others_their_values() -> None:
    made = build_audience([batch(device_id=[1, 2, 3], name=["Ann", "Bo", "Cy"])], columns=["name"])
    left = made.less({"cap": integers([2])})
    assert own_values(left) == {1: {"name": "Ann"}, 3: {"name": "Cy"}}


def test_a_group_may_be_a_value_too() -> None:
    made = build_audience([batch(device_id=[1], language=["fr"])], columns=["language", "DEVICE_ID"])
    assert own_values(made) == {1: {"language": "fr", "DEVICE_ID": 1}}
    assert list(made.groups["language"]) == ["fr"]


@given(
    st.lists(
        st.tuples(
            st.none() | st.integers(-1, 5),
            st.none() | st.sampled_from(["Ann", "Bo", "", '"quoted"']),
            st.none() | st.integers(9, 11),
        ),
        max_size=30,
    ),
    st.randoms(),
    st.integers(1, 9),
)
def test_the_same_values_in_any_order_and_any_batches_are_the_same_template_values(
    people: list[tuple[int | None, str | None, int | None]], random: Any, size: int
) -> None:
    def made(rows: list[tuple[int | None, str | None, int | None]], size: int) -> Audience:
        parts = [rows[start : start + size] for start in range(0, max(1, len(rows)), size)]
        return build_audience(
            [
                batch(
                    device_id=pa.array([row[0] for row in part], pa.int64()),
                    name=pa.array([row[1] for row in part], pa.string()),
                    points=pa.array([row[2] for row in part], pa.int64()),
                )
                for part in parts
            ],
            columns=["name", "points"],
        )

    shuffled = list(people)
    random.shuffle(shuffled)
    found = made(shuffled, size)
    assert found == made(people, 1_000)
    sets: dict[int, set[tuple[str | None, int | None]]] = {}
    for person, name, points in people:
        if person is not None and person > 0:
            sets.setdefault(person, set()).add((name, points))
    assert found.ambiguous == sum(len(each) > 1 for each in sets.values())
    # The smallest by text, column by column; missing values come last.
    smallest = {
        person: min(rows, key=lambda row: [(value is None, str(value)) for value in row])
        for person, rows in sets.items()
    }
    assert own_values(found) == {
        person: {
            name: value for name, value in zip(["name", "points"], row, strict=True) if value is not None
        }
        for person, row in smallest.items()
    }


def test_a_missing_column_is_named_beside_those_that_the_query_gives() -> None:
    with pytest.raises(
        AudienceError,
        match=r"template\.columns: found points, gate, which the query does not have. "
        "Use its columns device_id, first_name",
    ):
        build_audience([batch(device_id=[1], First_Name=["Ann"])], columns=["points", "first_name", "gate"])


def test_a_column_that_the_query_gives_twice_is_no_variable() -> None:
    arrays = [pa.array([1]), pa.array(["Ann"]), pa.array(["Bo"])]
    twice = pa.RecordBatch.from_arrays(arrays, names=["device_id", "name", "NAME"])
    with pytest.raises(AudienceError, match="the query has the column name more than once"):
        build_audience([twice], columns=["name"])


def test_an_audience_shows_nobodys_values() -> None:
    made = build_audience([batch(device_id=[1], name=["Marguerite"])], columns=["name"])
    assert "Marguerite" not in repr(made)
    assert "<name of 1 people>" in repr(made)


def own_values(made: Audience) -> dict[Any, dict[str, Any]]:
    assert made.template_values is not None
    values = orjson.loads(orjson.dumps(read_template_values(made.template_values.of(made.identifiers))))
    return dict(zip(made.identifiers, values, strict=True))
