"""For any audience and rules, each identifier of the query is in exactly one place."""

from __future__ import annotations

import sqlite3
from collections import Counter
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest
from hypothesis import event, given, settings
from hypothesis import strategies as st

from sendoff.audience.bucketing import sample, sample_exactly
from sendoff.audience.identifiers import Identifiers, integers, union
from sendoff.campaign import Campaign, CampaignFolder
from sendoff.errors import AudienceError
from sendoff.launch.plan import LaunchOptions, prepare_launch
from sendoff.ledger import Ledger

from ...examples import examples
from ...factories import NOW, PERIOD, make_launch

CONTENT = {"title": "Spring", "message": {"text": "Hello"}, "channels": {"android_push": {}}}

ONCE = {"kind": "once", "time": "09:30", "time_zone": "UTC"}

Launched = tuple[str, set[int], int, str, int]
"""A launch of another campaign: its name, recipients, days from this one, state, and rank.

A waiting launch sends at once, but not before this one.
"""

people = st.sets(st.integers(1, 40), max_size=30)
rows = st.lists(st.one_of(st.integers(1, 80), st.integers(-1, 0), st.none()), min_size=5, max_size=60)
exclusions = st.lists(
    st.one_of(
        st.fixed_dictionaries({"kind": st.just("list"), "name": st.sampled_from(["a", "b"])}),
        st.fixed_dictionaries({"kind": st.just("file"), "file": st.sampled_from(["a.csv", "b.csv"])}),
        st.fixed_dictionaries({"kind": st.just("query"), "file": st.just("a.sql")}),
        st.fixed_dictionaries(
            {
                "kind": st.just("campaign"),
                "name": st.sampled_from(["first", "second"]),
                "days": st.integers(1, 4),
                "reason": st.sampled_from(["just written to", "other"]),
            }
        ),
    ),
    max_size=4,
)
rules = st.fixed_dictionaries(
    {"exclude": exclusions},
    optional={
        "priority": st.fixed_dictionaries({"rank": st.integers(1, 3)}),
        "cap": st.fixed_dictionaries({"messages": st.integers(1, 3), "days": st.integers(1, 4)}),
        "holdout": st.fixed_dictionaries({"percent": st.sampled_from([0.5, 30, 80, 100])}),
    },
)
variants = st.sampled_from([{}, {"a": {"percent": 40}, "b": {"percent": 60}}])
launched = st.lists(
    st.tuples(
        st.sampled_from(["first", "second", "third"]),
        people.filter(bool),
        st.integers(-4, 4),
        st.sampled_from(["released", "held", "waits"]),
        st.integers(1, 3),
    ),
    max_size=8,
)


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("rules")


@pytest.fixture(scope="module")
def shared_ledger(place: Path) -> Iterator[Ledger]:
    """One ledger for all examples; each example has its own connection."""
    ledger = Ledger(f"sqlite:///{place / 'ledger.db'}")
    ledger.migrate()
    yield ledger
    ledger.close()


@pytest.mark.proof
@settings(max_examples=examples(100), deadline=None)
@given(rows, rules, variants, launched, people, people, st.none() | st.integers(1, 20))
@pytest.mark.promise("twice/apart")
def test_everybody_is_left_out_for_one_reason_or_held_out_or_in_one_segment(
    place: Path,
    shared_ledger: Ledger,
    rows: list[int | None],
    rules: dict[str, Any],
    variants: dict[str, Any],
    launched: list[Launched],
    first: set[int],
    second: set[int],
    size_limit: int | None,
) -> None:
    ledger, connection = shared_ledger, uuid4().hex
    warehouse = _warehouse(place, rows, first)
    for name, members in (("a", first), ("b", second)):
        ledger.uploaded_lists.store(name, "device_id", integers(members), "ann", NOW)
        (place / f"{name}.csv").write_text("device_id\n" + "".join(f"{each}\n" for each in members))
    _launch(ledger, connection, launched)
    made = Campaign.model_validate(
        {**CONTENT, "connection": connection, "segment_size": 4, "audience": rules, "variants": variants}
    )
    folder = CampaignFolder(
        "spring", made, "SELECT device_id FROM devices", place, {"a.sql": "SELECT device_id FROM excluded"}
    )
    named = {each for each in rows if each is not None and each > 0}
    expected = _expected(rules, named, launched, size_limit, first, second)
    try:
        launch = prepare_launch(
            ledger,
            folder,
            period=PERIOD,
            warehouses=lambda _: warehouse,
            options=LaunchOptions(size_limit=size_limit),
            now=NOW,
        )
    except AudienceError:
        event("nobody is left")
        assert ledger.launches.count(connection) == len(launched)
        assert named == {each for who in expected.values() for each in who}
        return

    left_out = ledger.launches.suppressed(launch.launch_key)
    segments = [members for _, members in ledger.dispatch_queries.segments(launch.launch_key)]
    places = Counter(each for members in [*left_out.values(), *segments] for each in members)
    assert places == Counter(named)
    audience = ledger.launches.audience(launch.launch_key)
    assert audience == union("integer", [*segments, left_out.get("holdout", integers([]))])
    assert launch.rows == len(rows) == launch.audience + sum(launch.dropped.values())
    assert {reason: set(who) for reason, who in left_out.items()} == expected
    assert {
        reason: count
        for reason, count in launch.dropped.items()
        if count and reason not in ("null", "invalid", "duplicate")
    } == {reason: len(who) for reason, who in expected.items() if reason != "holdout"}


def _expected(
    rules: dict[str, Any],
    named: set[int],
    launched: list[Launched],
    size_limit: int | None,
    first: set[int],
    second: set[int],
) -> dict[str, set[int]]:
    """Compute in plain Python which recipients the rules leave out, by reason."""
    launched = [
        (name, members, max(days, 0) if state == "waits" else days, state, rank)
        for name, members, days, state, rank in launched
    ]
    left: set[int] = set(named)
    out: dict[str, set[int]] = {}

    def leave_out(reason: str, who: set[int]) -> None:
        out[reason] = out.get(reason, set()) | (left & who)
        left.difference_update(who)

    lists = {"a": first, "b": second}
    for reason, who in [*_excluded(rules, launched, lists), *_competed(rules, launched)]:
        leave_out(reason, who)
    if size_limit is not None:
        leave_out("size_limit", left - set(sample_exactly(integers(left), "size limit", size_limit)))
    if "holdout" in rules:
        leave_out("holdout", set(sample(integers(left), "holdout spring", rules["holdout"]["percent"])))
    return {reason: who for reason, who in out.items() if who}


def _excluded(
    rules: dict[str, Any], launched: list[Launched], lists: dict[str, set[int]]
) -> Iterator[tuple[str, set[int]]]:
    for rule in rules["exclude"]:
        if rule["kind"] == "campaign":
            for name, members, days, _, _ in launched:
                if name == rule["name"] and days > -rule["days"]:
                    yield rule["reason"], members
        else:
            name = rule.get("name") or rule["file"]
            yield f"{rule['kind']} {name}", lists[name[0]]


def _competed(rules: dict[str, Any], launched: list[Launched]) -> Iterator[tuple[str, set[int]]]:
    if "priority" in rules:
        for _, members, days, _, rank in launched:
            if days == 0 and rank <= rules["priority"]["rank"]:
                yield "priority", members
    if "cap" in rules:
        messages, length = rules["cap"]["messages"], rules["cap"]["days"]
        for end in range(length):  # of each stretch of days that includes this launch
            within = [members for _, members, days, _, _ in launched if end - length < days <= end]
            got = Counter(each for members in within for each in members)
            yield "cap", {each for each, count in got.items() if count >= messages}


def _warehouse(place: Path, rows: list[int | None], excluded: set[int]) -> str:
    file = place / f"{uuid4().hex}.db"
    with sqlite3.connect(file) as db:
        db.execute("CREATE TABLE devices (device_id INTEGER)")
        db.execute("CREATE TABLE excluded (device_id INTEGER)")
        db.executemany("INSERT INTO devices VALUES (?)", [(each,) for each in rows])
        db.executemany("INSERT INTO excluded VALUES (?)", [(each,) for each in excluded])
    db.close()
    return f"sqlite:///{file}"


def _launch(ledger: Ledger, connection: str, launched: list[Launched]) -> None:
    for number, (name, members, days, state, rank) in enumerate(launched):
        everybody: Identifiers = integers(members)
        make_launch(
            ledger,
            everybody,
            size=5,
            campaign=Campaign.model_validate(
                {
                    **CONTENT,
                    "audience": {"priority": {"rank": rank}},
                    **({} if state == "waits" else {"send": ONCE}),
                }
            ),
            name=name,
            connection=connection,
            resend=number,
            sends_at=NOW + timedelta(days=days),
            state="paused" if state == "waits" else state,
        )
