"""Sets in chunks: cut, stored, and read back, in every table that holds them, on every database."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager
from datetime import UTC, datetime, timedelta
from threading import Barrier
from unittest import mock

import pytest
import sqlalchemy as sa
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from sendoff.audience.build import Audience
from sendoff.audience.identifiers import Identifiers, IntegerIdentifiers, empty, from_bytes, integers, strings
from sendoff.audience.segmentation import Segment
from sendoff.campaign import Period, launch_key
from sendoff.figures import ANOMALIES, LaunchStats
from sendoff.ledger import Ledger, NewLaunch
from sendoff.ledger.storage import stored_sets
from sendoff.ledger.storage.schema import audience_groups, suppressed, uploaded_list_chunks, verdicts
from sendoff.ledger.storage.stored_sets import LARGEST, batches, cut, joined
from sendoff.states import Verdict

from ...examples import examples
from ...factories import NOW, PUSH

FIRST = datetime(2026, 3, 1, tzinfo=UTC)
LONG = [f"{number:0>9}" * 40 for number in range(60)]  # texts of 360 bytes
STRANGER = {"integer": 2**63 - 1, "string": "nobody"}

numbers = st.lists(st.integers(1, 2**63 - 2) | st.integers(1, 200_000), max_size=60).map(integers)
texts = st.lists(st.sampled_from(LONG) | st.sampled_from(["ann", "zoë", "007"]), max_size=60).map(strings)
# In bytes; a single text takes more than 1,024 with its overhead.
limits = st.integers(1, 200) | st.integers(1_024, 6_000)


def parts_of_at_most(limit: int) -> AbstractContextManager[int]:
    return mock.patch.object(stored_sets, "LARGEST", limit)


def freeze(
    ledger: Ledger,
    people: Identifiers,
    *,
    limit: int = LARGEST,
    groups: dict[str, Identifiers] | None = None,
    out: dict[str, Identifiers] | None = None,
    period: int = 0,
) -> str:
    start = FIRST + timedelta(days=period)
    days = Period(start, start + timedelta(days=1))
    key = launch_key("service", "spring", days)
    column = "device_id" if people.kind == "integer" else "user_id"
    launch = NewLaunch(
        key,
        connection="service",
        campaign="spring",
        period=days,
        resend=0,
        definition=PUSH.model_dump_json(),
        audience=Audience(column, people, len(people), {}, {"platform": groups or {}}),
        segments=[Segment(segment) for segment in people.slices(7)],
        created_at=NOW,
        sends_at=NOW,
        suppressed=out,
    )
    with parts_of_at_most(limit):
        ledger.launches.freeze(launch)
    return key


def figures(key: str) -> LaunchStats:
    return LaunchStats(
        launch_key=key,
        campaign="spring",
        period="2026-03-01",
        as_of=NOW,
        rows=0,
        dropped={},
        audience=0,
        segments=0,
        dispatches={},
        verdicts=dict.fromkeys(Verdict, 0),
        by_platform={},
        anomalies=dict.fromkeys(ANOMALIES, 0),
        post_backs={},
        timeline=[],
    )


def parts_of(ledger: Ledger, table: sa.Table, *key: str) -> list[int]:
    with ledger._database.read() as db:
        return list(db.scalars(sa.select(table.c.chunk).order_by(*(table.c[name] for name in key), "chunk")))


# Cutting and joining


@given(numbers | texts, limits)
def test_the_parts_of_a_set_are_runs_in_order_that_make_it_up(people: Identifiers, limit: int) -> None:
    parts = list(cut(people, limit))
    assert [member for part in parts for member in part] == list(people)
    assert joined(people.kind, parts) == people
    assert len(parts) == 1 or all(len(part) for part in parts)


@given(numbers | texts, limits)
def test_a_part_is_no_larger_than_the_limit_unless_it_is_one_member(people: Identifiers, limit: int) -> None:
    for part in cut(people, limit):
        blob = part.to_bytes()
        assert len(blob) <= part.stored_bytes
        assert len(blob) <= limit or len(part) < 2
        assert from_bytes(people.kind, blob) == part


def test_a_part_holds_as_many_as_the_limit_allows() -> None:
    # Each takes 58 bytes in the buffer, with its offset.
    texts = strings(f"{number:0>50}" for number in range(10_000))
    assert [len(part) for part in cut(texts, 10_000 * 58 + 2_000)] == [10_000]
    assert [len(part) for part in cut(texts, 5_000 * 58 + 2_000)] == [5_000, 5_000]
    assert len(list(cut(integers(range(1, 10_000_001)), LARGEST))) == 1


def test_texts_of_very_different_lengths_are_cut_where_they_are_long() -> None:
    texts = strings(
        [*(f"a{number}" for number in range(1_000)), *("z" * length for length in (9_000, 9_001))]
    )
    parts = list(cut(texts, 12_000))
    assert [len(part) for part in parts][-2:] == [1, 1]
    assert all(part.stored_bytes <= 12_000 for part in parts)
    assert joined("string", parts) == texts


@pytest.mark.parametrize("kind", ["integer", "string"])
def test_nobody_is_one_part(kind: str) -> None:
    nobody = integers([]) if kind == "integer" else strings([])
    assert list(cut(nobody, 1)) == [nobody]
    assert joined(nobody.kind, []) == nobody


def test_sets_are_joined_as_they_come_in_any_order_and_with_overlap() -> None:
    taken: list[int] = []

    def come() -> Iterator[Identifiers]:
        for number in range(1_000, 0, -1):
            taken.append(number)
            yield integers([number, number + 1])

    assert joined("integer", come()) == integers(range(1, 1_002))
    assert len(taken) == 1_000
    assert joined("string", (strings([name]) for name in ("b", "a", "b"))) == strings(["a", "b"])


def test_rows_are_inserted_in_batches_that_end_by_count_or_by_bytes() -> None:
    assert [len(batch) for batch in batches({"n": number} for number in range(1_001))] == [500, 500, 1]
    large = [{"identifiers": bytes(size)} for size in (6, 6, 1, 20, 1)]
    with parts_of_at_most(10):
        assert [len(batch) for batch in batches(large)] == [2, 2, 1]
    assert list(batches([])) == []


# Every table


periods = iter(range(10_000))


# Each example makes its own launch, so all can share a ledger.
@settings(
    max_examples=examples(25), deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(people=st.tuples(numbers, numbers, numbers) | st.tuples(texts, texts, texts), limit=limits)
def test_what_is_stored_with_any_limit_reads_back_equal(
    ledger: Ledger, people: tuple[Identifiers, Identifiers, Identifiers], limit: int
) -> None:
    first, second, third = people
    groups = {"chrome": first, "fire fox": second}
    out = {"cap": second, "holdout": third}
    key = freeze(ledger, first, limit=limit, groups=groups, out=out, period=next(periods))
    assert ledger.launches.groups(key, "platform") == groups
    assert ledger.launches.groups(key, "language") == {}
    assert ledger.launches.suppressed(key) == {reason: found for reason, found in out.items() if len(found)}
    assert ledger.launches.suppressed_sizes(key) == {
        reason: len(found) for reason, found in out.items() if len(found)
    }
    assert ledger.launches.audience(key) == first | third
    assert ledger.launches.sent(key) == first

    judged = dict(zip(Verdict, [first, second, third, empty(first.kind)], strict=False))
    for sets in (judged, dict(reversed(judged.items())), dict.fromkeys(judged, second)):
        with parts_of_at_most(limit):
            ledger.verdicts.store(figures(key), sets)
        assert ledger.verdicts.sets(key) == sets

    for found in people:
        with parts_of_at_most(limit):
            uploaded = ledger.uploaded_lists.store("staff", "user_id", found, "ann", NOW)
        assert ledger.uploaded_lists.get("staff") == (uploaded, found)
        assert uploaded.size == len(found)


def test_the_sizes_of_parts_add_up(ledger: Ledger) -> None:
    key = freeze(ledger, strings(["ann"]), limit=2_000, out={"cap": strings(LONG)})
    with ledger._database.read() as db:
        sizes = list(db.scalars(sa.select(suppressed.c.size)))
    assert len(sizes) > 1
    assert sum(sizes) == len(LONG)
    assert ledger.launches.suppressed_sizes(key) == {"cap": len(LONG)}


@pytest.mark.parametrize("few", [strings(LONG[:1]), strings([])])
def test_a_set_that_replaces_a_larger_one_leaves_none_of_its_parts(ledger: Ledger, few: Identifiers) -> None:
    key = freeze(ledger, strings(["ann"]))
    for people, parts in ((strings(LONG), range(60)), (few, range(1))):
        with parts_of_at_most(1):
            ledger.verdicts.store(figures(key), {"missing": people})
            ledger.uploaded_lists.store("staff", "user_id", people, "ann", NOW)
        for table in (verdicts, uploaded_list_chunks):
            assert parts_of(ledger, table) == list(parts)
    assert ledger.verdicts.sets(key) == {"missing": few}
    assert ledger.uploaded_lists.get("staff")[1] == few


def test_only_verdicts_that_changed_are_written_again(ledger: Ledger) -> None:
    key = freeze(ledger, integers([1]))
    ledger.verdicts.store(figures(key), {"missing": integers(range(1, 9)), "engaged": integers([10, 20])})
    written: list[str] = []

    def note(_: object, __: object, statement: str, parameters: object, *___: object) -> None:
        if statement.startswith("INSERT INTO verdicts"):
            written.append(str(parameters))

    engine = ledger._database._engine
    sa.event.listen(engine, "before_cursor_execute", note)
    after = {"missing": integers(range(1, 9)), "engaged": integers([10, 30]), "in_doubt": integers([])}
    ledger.verdicts.store(figures(key), after)
    sa.event.remove(engine, "before_cursor_execute", note)
    assert "engaged" in str(written)
    assert "missing" not in str(written)
    assert ledger.verdicts.sets(key) == after
    ledger.verdicts.store(figures(key), {"missing": integers(range(1, 9))})
    assert ledger.verdicts.sets(key) == {"missing": integers(range(1, 9))}


def test_the_verdicts_of_another_launch_stay(ledger: Ledger) -> None:
    keys = [freeze(ledger, integers([1]), period=period) for period in (0, 1)]
    for key in keys:
        ledger.verdicts.store(figures(key), {"missing": integers([1])})
    ledger.verdicts.store(figures(keys[0]), {"engaged": integers([1])})
    assert ledger.verdicts.sets(keys[1]) == {"missing": integers([1])}


def test_processes_that_store_the_verdicts_of_one_launch_wait_for_each_other(ledger: Ledger) -> None:
    key = freeze(ledger, integers([1]))
    found = [{"missing": integers(range(start, start + 9))} for start in (1, 101)]
    barrier = Barrier(2, timeout=120)

    def store(sets: dict[str, IntegerIdentifiers]) -> None:
        for _ in range(20):
            barrier.wait()
            ledger.verdicts.store(figures(key), sets)

    with parts_of_at_most(1), ThreadPoolExecutor(2) as threads:
        list(threads.map(store, found))
    assert ledger.verdicts.sets(key) in found


def test_a_list_that_is_deleted_leaves_no_part(ledger: Ledger) -> None:
    with parts_of_at_most(1):
        ledger.uploaded_lists.store("staff", "device_id", integers(range(1, 9)), "ann", NOW)
    ledger.uploaded_lists.delete("staff")
    assert parts_of(ledger, uploaded_list_chunks) == []


# One identifier


@pytest.mark.parametrize("people", [integers(range(1, 61)), strings(LONG)])
def test_somebody_is_found_in_whichever_part_they_stand(ledger: Ledger, people: Identifiers) -> None:
    members: Sequence[int | str] = list(people)
    alone = next(people.slices(1))
    left = people - alone
    key = freeze(ledger, alone, limit=1, out={"cap": left})
    with parts_of_at_most(1):
        ledger.verdicts.store(figures(key), {"missing": people})
    assert len(parts_of(ledger, suppressed)) == len(left)
    assert {ledger.launches.recipient(key, member).reason for member in members[1:]} == {"cap"}
    assert ledger.launches.recipient(key, members[0]).verdict == "missing"
    assert not ledger.launches.recipient(key, STRANGER[people.kind]).is_named


def test_parts_behind_the_one_that_holds_somebody_are_not_read(
    ledger: Ledger,
) -> None:
    key = freeze(ledger, integers([100]), limit=1, out={"cap": integers(range(1, 61))})
    with ledger._database.write() as db:  # reading this chunk fails
        db.execute(sa.update(suppressed).where(suppressed.c.chunk == 40).values(identifiers=b""))
    assert ledger.launches.recipient(key, 40).reason == "cap"
    with pytest.raises(ValueError, match="not a set of identifiers"):
        ledger.launches.recipient(key, 42)


def test_a_set_that_stood_in_one_value_before_is_read_as_before(ledger: Ledger) -> None:
    key = freeze(ledger, integers([1]))
    row = {"launch_key": key, "name": "language", "value": "fr", "size": 2}
    with ledger._database.write() as db:
        blob = integers([7, 8]).to_bytes()
        db.execute(sa.insert(audience_groups), {**row, "identifiers": blob})  # its chunk is 0 by default
    assert ledger.launches.groups(key, "language") == {"fr": integers([7, 8])}
