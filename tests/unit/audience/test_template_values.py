"""Template values: from a column of a query to the variable of a template, without loss."""

from __future__ import annotations

import sqlite3
from datetime import date, datetime, time, timedelta, timezone
from decimal import Decimal
from pathlib import Path
from typing import Any

import orjson
import pyarrow as pa
import pytest
import sqlalchemy as sa

from sendoff import warehouse
from sendoff.audience.build import Audience, build_audience
from sendoff.audience.identifiers import integers, strings
from sendoff.audience.segmentation import Segment, with_template_values
from sendoff.audience.template_values import (
    first_template_values,
    read_template_values,
    template_columns,
)
from sendoff.campaign import Campaign, CampaignFolder
from sendoff.errors import AudienceError
from sendoff.launch.build_preview import preview_campaign
from sendoff.launch.plan import plan_launch, prepare_launch
from sendoff.launch.sample import sample_request
from sendoff.ledger import Ledger

from ...factories import NOW, PERIOD

TEMPLATE = {"id": 88, "channels": ["email"], "parameters": {"shop": "Dublin"}}
DUBLIN_IN_SUMMER = timezone(timedelta(hours=1))


def of_one(values: pa.Array) -> Any:
    """Return one recipient's value as in JSON."""
    made = build_audience([pa.record_batch({"device_id": pa.array([1]), "own": values})], columns=["own"])
    assert made.template_values is not None
    return orjson.dumps(read_template_values(made.template_values.of(made.identifiers))).decode()


@pytest.mark.parametrize(
    ("value", "written"),
    [
        (pa.array(["Ann"]), '"Ann"'),
        (pa.array(['"é\n']), '"\\"é\\n"'),
        (pa.array([""]), '""'),
        (pa.array(["Ann"], pa.string_view()), '"Ann"'),
        (pa.array(["Ann"]).dictionary_encode(), '"Ann"'),
        (pa.array([7], pa.int8()), "7"),
        (pa.array([-7]).dictionary_encode(), "-7"),
        (pa.array([2**64 - 1], pa.uint64()), "18446744073709551615"),
        (pa.array([1.5]), "1.5"),
        (pa.array([100.0]), "100"),
        (pa.array([1e-7]), "1e-7"),
        (pa.array([1e300]), "1e+300"),
        (pa.array([0.1], pa.float32()), "0.1"),
        (pa.array([Decimal("12.50")]), "12.50"),
        (pa.array([Decimal(12345678901234567890)]), "12345678901234567890"),
        (pa.array([Decimal("-0.0000000001")]), "-1E-10"),
        (pa.array([True]), "true"),
        (pa.array([False]), "false"),
        (pa.array([date(2026, 3, 1)]), '"2026-03-01"'),
        (pa.array([date(2026, 3, 1)], pa.date64()), '"2026-03-01"'),
        (pa.array(["2026-03-01 09:05"]).cast(pa.timestamp("us")), '"2026-03-01T09:05:00"'),
        (pa.array(["2026-03-01 09:05"]).cast(pa.timestamp("s")), '"2026-03-01T09:05:00"'),
        (pa.array(["2026-03-01 09:05:00.12"]).cast(pa.timestamp("us")), '"2026-03-01T09:05:00.120000"'),
        (pa.array([datetime(2026, 7, 1, 9, 5, tzinfo=DUBLIN_IN_SUMMER)]), '"2026-07-01T08:05:00Z"'),
        (pa.array([time(9, 5)]), '"09:05:00"'),
    ],
)
def test_a_value_is_sent_as_the_json_that_fits(value: pa.Array, written: str) -> None:
    assert of_one(value) == f'[{{"own":{written}}}]'


@pytest.mark.parametrize(
    "nothing", [pa.array([None]), pa.array([None], pa.int64()), pa.array([None], pa.string())]
)
def test_what_nobody_has_a_value_for_is_left_out(nothing: pa.Array) -> None:
    assert of_one(nothing) == "[{}]"


@pytest.mark.parametrize(
    ("value", "problem"),
    [
        (
            pa.array([b"Ann"]),
            "column own has the type binary, which is not allowed for a variable; write CAST.own AS TEXT. AS own",
        ),
        (pa.array([[4711]]), "column own has the type list"),
        (pa.array([{"a": 4711}]), "column own has the type struct"),
        (pa.array([timedelta(days=4711)]), "column own has the type duration"),
        (pa.array([float("nan")]), "column own contains a number that is infinite or not"),
        (pa.array([float("-inf")]), "column own contains a number that is infinite or not"),
        (pa.array([b"4711\xff"]).view(pa.string()), "column own contains text that is not UTF-8"),
    ],
)
def test_a_value_that_json_does_not_have_is_refused_without_being_shown(
    value: pa.Array, problem: str
) -> None:
    with pytest.raises(AudienceError, match=problem) as caught:
        of_one(value)
    assert "4711" not in str(caught.value)


def test_a_value_of_nobody_refuses_nothing() -> None:
    batch = pa.record_batch({"device_id": [1, None, -1], "own": [1.5, float("nan"), float("inf")]})
    made = build_audience([batch], columns=["own"])
    assert own(made) == {1: {"own": 1.5}}


def test_a_column_of_texts_and_numbers_is_refused() -> None:
    batches = [
        pa.record_batch({"device_id": [1], "own": ["4711"]}),
        pa.record_batch({"device_id": [2], "own": pa.array([None], pa.string())}),
        pa.record_batch({"device_id": [3], "own": [4712]}),
    ]
    with pytest.raises(
        AudienceError, match=r"column own has text in some rows and numbers .* write CAST\(own AS TEXT\)"
    ) as caught:
        build_audience(batches, columns=["own"])
    assert "471" not in str(caught.value)


def test_numbers_of_several_types_are_one_column() -> None:
    batches = [
        pa.record_batch({"device_id": [1], "own": [Decimal("1.10")]}),
        pa.record_batch({"device_id": [2], "own": [Decimal("200.125")]}),
        pa.record_batch({"device_id": [3], "own": [3]}),
    ]
    assert own(build_audience(batches, columns=["own"])) == {
        1: {"own": 1.1},
        2: {"own": 200.125},
        3: {"own": 3},
    }


@pytest.mark.parametrize("other", [([1, 3], ["1", "2"]), ([1, 2], ["1", "3"]), ([1, 2], [1, 2])])
def test_template_values_are_equal_with_the_same_people_values_and_types(other: tuple[Any, Any]) -> None:
    def made(people: list[int], values: list[Any]) -> Any:
        batch = pa.record_batch({"device_id": people, "own": values})
        return build_audience([batch], columns=["own"]).template_values

    assert made([1, 2], ["1", "2"]) == made([2, 1], ["2", "1"])
    assert made([1, 2], ["1", "2"]) != made(*other)


# Values of some recipients


def test_any_people_have_their_values_in_the_order_of_their_identifiers() -> None:
    numbers = list(range(1, 1_001))
    batch = pa.record_batch({"device_id": numbers[::-1], "own": [f"of {n}" for n in numbers[::-1]]})
    made = build_audience([batch], columns=["own"])
    for some in (numbers, numbers[:10], numbers[-10:], [1, 500, 1_000], [500], numbers[::7]):
        assert values_of(made, integers(some)) == [{"own": f"of {n}"} for n in some]
    assert values_of(made, integers([])) == []


def test_texts_have_their_values_in_the_order_of_their_bytes() -> None:
    people = ["é", "b", "Z", "ab", "a", "\U0001f600", "\uffee"]
    made = build_audience([pa.record_batch({"user_id": people, "own": people})], columns=["own"])
    assert own(made) == {person: {"own": person} for person in people}
    assert values_of(made, strings(["ab", "é"])) == [{"own": "ab"}, {"own": "é"}]


def test_people_without_values_are_an_error_that_shows_nobody() -> None:
    made = build_audience([pa.record_batch({"device_id": [1, 2], "own": ["a", "b"]})], columns=["own"])
    with pytest.raises(ValueError, match="1 of these recipients have no template values"):
        values_of(made, integers([2, 4711]))


def test_values_may_be_read_for_some_people_and_columns() -> None:
    batch = pa.record_batch({"device_id": [1, 2, 3], "name": ["Ann", "Bo", "Cy"], "points": [1, 2, 3]})
    made = build_audience([batch], columns=["name", "points"])
    assert made.template_values is not None
    blob = made.template_values.of(made.identifiers)
    assert read_template_values(first_template_values(blob, 2), ["name"]) == [{"name": "Ann"}, {"name": "Bo"}]
    assert read_template_values(first_template_values(blob, 9), ["name"])[2] == {"name": "Cy"}
    with pytest.raises(ValueError, match="lack 1 of the columns"):
        read_template_values(blob, ["name", "gate"])


@pytest.mark.parametrize("blob", [b"", b"not a stream of template values"])
def test_what_is_no_stream_of_template_values_is_refused(blob: bytes) -> None:
    with pytest.raises(ValueError, match="not a stream of template values"):
        read_template_values(blob)


def test_each_segment_takes_the_values_of_its_people() -> None:
    batch = pa.record_batch({"device_id": [1, 2, 3], "own": ["a", "b", "c"]})
    made = build_audience([batch], columns=["own"]).less({"cap": integers([2])})
    cut = [Segment(integers([1])), Segment(integers([3]), wave=2), Segment(None)]
    first, second, nobody = with_template_values(cut, made)
    assert read_template_values(first.template_values or b"") == [{"own": "a"}]
    assert (read_template_values(second.template_values or b""), second.wave) == ([{"own": "c"}], 2)
    assert nobody == Segment(None)


def test_segments_of_an_audience_without_values_stay_as_they_are() -> None:
    made = build_audience([pa.record_batch({"device_id": [1]})])
    assert list(with_template_values([Segment(made.identifiers)], made)) == [Segment(made.identifiers)]


def test_the_columns_of_all_variants_are_wanted_once() -> None:
    variants = {
        "a": {"percent": 50, "template": {**TEMPLATE, "columns": ["seat", "gate"]}},
        "b": {"percent": 50},
    }
    made = Campaign.model_validate(
        {"title": "T", "template": {**TEMPLATE, "columns": ["name", "gate"]}, "variants": variants}
    )
    assert template_columns(made) == ("name", "gate", "seat")
    assert template_columns(Campaign.model_validate({"title": "T", "template": TEMPLATE})) == ()


# Through a warehouse, a launch and the ledger


@pytest.fixture
def shop(tmp_path: Path) -> str:
    file = tmp_path / "warehouse.db"
    with sqlite3.connect(file) as db:
        db.execute("CREATE TABLE people (user_id TEXT, FIRST_NAME TEXT, points INTEGER, due REAL)")
        rows = [(f"cust-{n}", f"Name {n}", n * 10, n + 0.25) for n in range(1, 6)]
        db.executemany("INSERT INTO people VALUES (?, ?, ?, ?)", [*rows, ("cust-1", "Other", 5, 1.0)])
    db.close()
    return f"sqlite:///{file}"


def folder(*columns: str, **more: Any) -> CampaignFolder:
    campaign = {"title": "Points", "template": {**TEMPLATE, "columns": columns}, "segment_size": 2, **more}
    sql = "SELECT user_id, first_name, points, due FROM people"
    return CampaignFolder("points", Campaign.model_validate(campaign), sql, Path("points"))


def test_a_launch_keeps_each_persons_values_until_they_are_sent(ledger: Ledger, shop: str) -> None:
    made = prepare_launch(
        ledger, folder("first_name", "points", "due"), period=PERIOD, warehouses=lambda _: shop, now=NOW
    )
    kept = []
    while claim := ledger.dispatches.claim(
        made.launch_key, worker="one", now=NOW, lease=timedelta(minutes=5)
    ):
        rows = orjson.loads(orjson.dumps(read_template_values(claim.content.template_values or b"")))
        assert claim.content.identifiers is not None
        kept.append(dict(zip(claim.content.identifiers, rows, strict=True)))
        assert ledger.dispatch_queries.segment(made.launch_key, claim.segment) == claim.content
    assert kept == [
        {
            "cust-1": {"first_name": "Name 1", "points": 10, "due": 1.25},
            "cust-2": {"first_name": "Name 2", "points": 20, "due": 2.25},
        },
        {
            "cust-3": {"first_name": "Name 3", "points": 30, "due": 3.25},
            "cust-4": {"first_name": "Name 4", "points": 40, "due": 4.25},
        },
        {"cust-5": {"first_name": "Name 5", "points": 50, "due": 5.25}},
    ]


def test_a_plan_says_how_many_came_with_two_sets_of_values(shop: str) -> None:
    plan = plan_launch(None, folder("points"), period=PERIOD, warehouses=lambda _: shop, now=NOW)
    assert plan.audience is not None
    assert (plan.audience.ambiguous, plan.audience.dropped["duplicate"]) == (1, 1)
    assert plan.audience.template_values is not None
    first = plan.audience.template_values.of(strings(["cust-1"]))
    sent = orjson.loads(orjson.dumps(read_template_values(first)))
    assert sent == [{"points": 10}]  # as text, 10 comes before 5
    shown = preview_campaign(folder("points"), period=PERIOD, warehouses=lambda _: shop, now=NOW)
    assert [
        each for each in shown.warnings if "1 person; the row that comes first in the order of texts" in each
    ]


def test_a_column_that_the_query_lacks_stops_a_launch_before_it_is_frozen(ledger: Ledger, shop: str) -> None:
    with pytest.raises(
        AudienceError, match=r"template\.columns: found gate.* user_id, first_name, points, due"
    ):
        prepare_launch(ledger, folder("gate"), period=PERIOD, warehouses=lambda _: shop, now=NOW)
    assert ledger.launches.search() == []


def test_a_sample_shows_the_types_of_three_peoples_values(shop: str) -> None:
    made = folder("first_name", "points", segment_size=5)
    plan = plan_launch(None, made, period=PERIOD, warehouses=lambda _: shop, now=NOW)
    shown = sample_request(plan.campaign, plan.segments[0], identified_by="user_id", period_end=PERIOD.end)
    types = {"first_name": "<text>", "points": "<number>"}
    assert shown["target_with_params"] == {"cust-1": types, "cust-2": types, "cust-3": types}
    assert shown["params"] == {"shop": "Dublin"}


@pytest.mark.parametrize("through", ["adbc", "sqlalchemy"])
def test_the_types_of_postgresql_come_as_the_json_that_fits(postgres_url: str, through: str) -> None:
    sql = """SELECT 1::bigint AS device_id, 12.50::numeric(10, 2) AS price, sum(5::bigint) AS points, true AS vip,
        date '2026-03-01' AS born, timestamptz '2026-03-01 09:05+01' AS due, 1.5::float8 AS share, 'Ann'::text AS name,
        NULL::text AS nothing"""
    engine = sa.create_engine(postgres_url)
    source = sa.make_url(postgres_url).set(drivername="postgresql").render_as_string(hide_password=False)
    columns = ["price", "points", "vip", "born", "due", "share", "name", "nothing"]
    with warehouse.read(source if through == "adbc" else engine, sql) as batches:
        made = build_audience(batches, columns=columns)
    engine.dispose()
    assert made.template_values is not None
    assert orjson.dumps(read_template_values(made.template_values.of(made.identifiers))) == (
        b'[{"price":12.50,"points":5,"vip":true,"born":"2026-03-01","due":"2026-03-01T08:05:00Z","share":1.5,'
        b'"name":"Ann"}]'
    )


@pytest.mark.parametrize(
    ("value", "problem"),
    [
        ("'NaN'::numeric", "contains a number that is infinite or not"),
        ("'infinity'::date", "contains a date outside of the years 1 to 9999, such as infinity"),
        ("'infinity'::timestamptz", "contains a date outside of the years 1 to 9999"),
        ("'0044-03-15 BC'::date", "contains a date outside of the years 1 to 9999"),
        ("'12.50'::money", "has the type money, which is not allowed for a variable; write CAST.own AS TEXT"),
    ],
)
def test_a_value_of_postgresql_that_json_does_not_have_is_refused(
    postgres_url: str, value: str, problem: str
) -> None:
    source = sa.make_url(postgres_url).set(drivername="postgresql").render_as_string(hide_password=False)
    with (
        pytest.raises(AudienceError, match=f"column own {problem}"),
        warehouse.read(source, f"SELECT 1::bigint AS device_id, {value} AS own") as batches,
    ):
        build_audience(batches, columns=["own"])


def values_of(made: Audience, people: Any) -> Any:
    assert made.template_values is not None
    return orjson.loads(orjson.dumps(read_template_values(made.template_values.of(people))))


def own(made: Audience) -> dict[Any, Any]:
    return dict(zip(made.identifiers, values_of(made, made.identifiers), strict=True))
