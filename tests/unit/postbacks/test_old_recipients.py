"""Deletion of old launches' recipients: nothing names them, figures stay, and nothing is sent again."""

from __future__ import annotations

import json
import os
import shutil
import signal
from collections.abc import Callable
from contextlib import closing
from dataclasses import replace
from datetime import datetime, timedelta
from functools import partial
from multiprocessing import get_context
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import sqlalchemy as sa
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from sendoff.audience import Segment
from sendoff.audience.identifiers import Kind, from_bytes, integers
from sendoff.audience.identifiers import deleted_before as marker
from sendoff.campaign import Period, Variation, campaign_from, launch_key
from sendoff.comparison import comparisons_of
from sendoff.errors import RecipientsDeletedError
from sendoff.launch import NewRequest, prepare_launch, prepare_request, preview_launch
from sendoff.ledger import LaunchRecord, Ledger
from sendoff.ledger.erasure import old_recipients
from sendoff.ledger.erasure.person_columns import SETS
from sendoff.ledger.storage.schema import dispatches, metadata
from sendoff.ledger.suppression.active_verdicts import LaunchSource
from sendoff.ledger.suppression.suppressions import SuppressionChange
from sendoff.postbacks import (
    aggregate,
    delete_recipients,
    forget,
    maintain,
    reconcile_launch,
    request_erasure,
)
from sendoff.report import as_text, describe_launch
from sendoff.service.postbacks import PostBack
from sendoff.states import Accepted, InDoubt, LaunchState, Outcome, Refused, Verdict

from ...examples import examples
from ...factories import (
    KEY,
    NOW,
    PERIOD,
    make_accepted,
    make_audience,
    make_campaign,
    make_launch,
    make_warehouse,
    post_back,
    send,
    store,
)
from ...waiting import PATIENCE
from .test_erasure import (
    PEOPLE,
    ROWS,
    SECRET,
    _bytes_of,
    _ends_before,
    _of,
    as_texts,
    make_everything,
    named_in,
    refuse,
)

if TYPE_CHECKING:
    from tests.conftest import Command

KEEP = timedelta(days=100)
LATER = NOW + timedelta(days=101)
FIELDS: dict[str, Any] = {
    "title": "Spring",
    "connection": "service",
    "message": {"title": "Hello", "text": "It is spring"},
    "channels": {"android_push": {}},
}


@pytest.fixture(autouse=True)
def _secret(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SENDOFF_ERASURE_SECRET", SECRET)


def delete(ledger: Ledger) -> Any:
    return delete_recipients(ledger, KEEP, now=LATER)


def finish(ledger: Ledger) -> None:
    """Finish what :func:`make_everything` left open: a request in flight, a planned one, and a parked post-back."""
    with ledger._database.write() as db:
        db.execute(sa.delete(metadata.tables["parked_post_backs"]))
    for state in ("in_flight", "planned"):
        with ledger._database.write() as db:
            db.execute(sa.update(dispatches).where(dispatches.c.state == state).values(state="accepted"))


def report(ledger: Ledger, key: str = KEY) -> str:
    figures = ledger.verdicts.figures(key)
    comparisons = comparisons_of(ledger, figures)
    return as_text(describe_launch(figures, comparisons, title=ledger.launches.get(key).title))


@pytest.mark.parametrize("kind", ["integer", "string"])
def test_nothing_names_a_recipient_and_the_counts_stay(ledger: Ledger, kind: Kind) -> None:
    people = integers(PEOPLE) if kind == "integer" else as_texts(PEOPLE)
    make_everything(ledger, people)
    refused = refuse(ledger, _of(people, list(people)[:4]))
    finish(ledger)
    maintain(ledger, timedelta(days=90), now=LATER)
    reconcile_launch(ledger, KEY, now=NOW)
    reports, counts = [report(ledger)], counted(ledger, KEY)
    held = {("uploaded_list_chunks", "identifiers"), ("suppressions", "identifier")}
    assert len(named_in(ledger, people) - held) > 8
    gone = delete(ledger)
    assert (gone.launches, gone.recipients, gone.stay) == (2, 36 + 4, {})
    assert named_in(ledger, people) == held  # lists that people made; they do not tell who was sent to
    assert [report(ledger)] == reports
    assert counted(ledger, KEY) == counts
    assert ledger.dispatch_queries.reasons(refused, "refused") == ["…"]
    assert reconcile_launch(ledger, KEY, now=LATER) == ledger.verdicts.figures(KEY)
    assert ledger.verdicts.stale(LATER) == []


def counted(ledger: Ledger, key: str) -> list[Any]:
    """Return what pages and tables count of a launch."""
    launch = ledger.launches.get(key)
    return [
        replace(launch, recipients_deleted_before=None),
        ledger.launches.suppressed_sizes(key),
        ledger.launch_counts.requests(key),
        ledger.launch_counts.largest_segment(key),
        ledger.launch_counts.opt_outs([key]),
        ledger.dispatch_queries.counts(key).recipients,
        ledger.dispatch_queries.segment_sizes(key),
        ledger.dispatch_queries.requests(key),
        ledger.aggregates.newest(key),
        ledger.aggregates.timeline(key),
        ledger.verdicts.figures(key),
    ]


def test_each_column_of_a_launch_that_may_name_people_is_emptied() -> None:
    """A new table of sets belongs to a launch, a request or a list; otherwise the deletion must learn its owner."""
    owners = {"launch_key", "dispatch_key"}
    assert {column.table.name for column in SETS if not owners & set(column.table.c.keys())} == {
        "uploaded_list_chunks"
    }


@pytest.mark.parametrize("kind", ["integer", "string"])
def test_a_deleted_set_is_never_taken_for_an_empty_one(kind: Kind) -> None:
    with pytest.raises(RecipientsDeletedError, match="before 2026-03-02 were deleted"):
        from_bytes(kind, marker(NOW.date()))


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")  # cursors that end early
def test_who_needs_the_recipients_gets_an_error_that_says_why(ledger: Ledger) -> None:
    make_everything(ledger, integers(PEOPLE))
    finish(ledger)
    delete(ledger)
    reads: list[Callable[[], object]] = [
        lambda: ledger.launches.audience(KEY),
        lambda: ledger.launches.sent(KEY),
        lambda: ledger.launches.suppressed(KEY),
        lambda: ledger.launches.groups(KEY, "platform"),
        lambda: ledger.launches.recipients_among(KEY, integers(PEOPLE)),
        lambda: ledger.verdicts.snapshot(KEY),
        lambda: list(ledger.dispatch_queries.segments(KEY)),
        lambda: ledger.dispatch_queries.segment(KEY, 1),
        lambda: ledger.dispatch_queries.withheld_by_verdict(KEY) or ledger.aggregates.totals(KEY),
        lambda: list(ledger.launch_counts.accepted(KEY)),
        lambda: preview_launch(ledger, KEY),
    ]
    for read in reads:
        with pytest.raises(RecipientsDeletedError, match="launches from before 2026-03-03 were deleted"):
            read()
    status = ledger.launches.recipient(KEY, PEOPLE[0])
    assert not status.is_known
    assert "not known: the recipients of launches from before 2026-03-03 were deleted" in str(status)
    export = ledger.persons.export("device_id", PEOPLE[0], who="anna", why="asked", now=LATER)
    assert export["launches"] == []


@pytest.fixture
def prepare(ledger: Ledger, tmp_path: Path) -> Callable[..., LaunchRecord]:
    """Return a function that makes a launch of a campaign, or plans it, for two people of a warehouse."""
    warehouse = make_warehouse(tmp_path / "w.db", "people (device_id INTEGER)", [(1,), (2,)])

    def make(
        name: str = "spring", period: Period = PERIOD, now: datetime = NOW, **audience: Any
    ) -> LaunchRecord:
        fields = FIELDS | {"audience": audience}
        folder = campaign_from(fields, name, None if "source" in audience else "SELECT device_id FROM people")
        return prepare_launch(ledger, folder, period=period, warehouses=lambda _: warehouse, now=now)

    return make


def test_a_period_whose_recipients_were_deleted_is_not_sent_again(
    ledger: Ledger, prepare: Callable[..., LaunchRecord]
) -> None:
    launch = prepare()
    send(ledger, launch.launch_key, Accepted(200, 17))
    delete(ledger)
    with pytest.raises(RecipientsDeletedError, match=r"period .*before 2026-03-03 .* Nothing is sent again"):
        prepare(now=LATER)
    assert ledger.launches.count("service") == 1
    assert ledger.dispatches.claim(launch.launch_key, worker="w", now=LATER, lease=KEEP) is None


def test_a_deletion_that_deletes_launches_too_is_noticed(
    ledger: Ledger, prepare: Callable[..., LaunchRecord], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(old_recipients, "empty_launch", without_a_trace)
    with pytest.raises(pytest.fail.Exception, match="DID NOT RAISE"):
        test_a_period_whose_recipients_were_deleted_is_not_sent_again(ledger, prepare)


def without_a_trace(database: Any, launch_key: str) -> None:
    """Delete a launch as a whole: the broken version of the deletion, after which the period is sent again."""
    with database.write() as db:
        of = sa.select(dispatches.c.dispatch_key).where(dispatches.c.launch_key == launch_key)
        for table in reversed(metadata.sorted_tables):
            if "dispatch_key" in table.c and table is not dispatches:
                db.execute(sa.delete(table).where(table.c.dispatch_key.in_(of)))
        for table in reversed(metadata.sorted_tables):
            if "launch_key" in table.c:
                db.execute(sa.delete(table).where(table.c.launch_key == launch_key))


def test_a_request_of_your_own_is_not_made_again(ledger: Ledger) -> None:
    body = {"title": "A", "device_ids": [1_000_001]}
    own = NewRequest(body=body, mode="create", name="own", request_key="a")
    launch = prepare_request(ledger, own, period=PERIOD, now=NOW)
    send(ledger, launch.launch_key, Accepted(200, 17))
    delete(ledger)
    assert named_in(ledger, integers([1_000_001])) == set()
    with pytest.raises(RecipientsDeletedError, match="Nothing is sent again"):
        prepare_request(ledger, own, period=PERIOD, now=LATER)


LATER_PERIOD = Period(LATER - timedelta(days=1), LATER)


@pytest.mark.parametrize(
    ("rule", "words"),
    [
        (
            {"exclude": [{"kind": "campaign", "name": "spring", "days": 200}]},
            "a rule depends on who got campaign spring",
        ),
        ({"cap": {"messages": 1, "days": 200}}, "Give the rule a shorter time"),
        (
            {"source": {"kind": "verdicts", "of": "spring", "are": ["missing"], "days": 200}},
            "launch .* of campaign spring",
        ),
        (
            {"exclude": [{"kind": "verdicts", "of": "spring", "are": ["engaged"], "days": 200}]},
            "launch .* of campaign spring",
        ),
    ],
)
def test_a_rule_that_needs_deleted_recipients_stops_the_launch(
    ledger: Ledger, prepare: Callable[..., LaunchRecord], rule: dict[str, Any], words: str
) -> None:
    make_accepted(ledger, [1, 2])
    delete(ledger)
    with pytest.raises(
        RecipientsDeletedError, match=f"{words}.*from before 2026-03-03|before 2026-03-03.*{words}"
    ):
        prepare("summer", LATER_PERIOD, LATER, **rule)
    assert ledger.launches.count("service") == 1


@pytest.mark.parametrize(
    "rule",
    [
        {"exclude": [{"kind": "campaign", "name": "spring", "days": 100}]},
        {"cap": {"messages": 1, "days": 100}},
    ],
)
def test_a_rule_within_the_limit_needs_no_deleted_recipients(
    ledger: Ledger, prepare: Callable[..., LaunchRecord], rule: dict[str, Any]
) -> None:
    make_accepted(ledger, [1, 2])
    delete(ledger)
    assert prepare("summer", LATER_PERIOD, LATER, **rule).audience == 2


def test_a_preview_says_that_the_last_launch_cannot_be_compared(
    ledger: Ledger, prepare: Callable[..., LaunchRecord]
) -> None:
    make_accepted(ledger, [1, 2])
    delete(ledger)
    launch = prepare("spring", LATER_PERIOD, LATER)
    preview = preview_launch(ledger, launch.launch_key)
    assert preview.change is None
    assert any("no comparison with the campaign's last launch" in each for each in preview.warnings)


STAYS: dict[str, Callable[[Ledger], object]] = {
    "requests are still to be made": lambda ledger: make_launch(ledger, [1]),
    "requests are in progress": lambda ledger: (make_launch(ledger, [1]), send(ledger, KEY, None)),
    "requests are in doubt": lambda ledger: (make_launch(ledger, [1]), send(ledger, KEY, InDoubt("lost"))),
    "post-backs are parked": lambda ledger: park(ledger, make_accepted(ledger, [1])),
    "another launch goes to its recipients, and is not finished": lambda ledger: (
        make_accepted(ledger, [1]),
        make_launch(
            ledger,
            [1],
            name="b",
            created_at=LATER,
            sends_at=LATER,
            sources=[LaunchSource(KEY, None, (Verdict.ENGAGED,))],
        ),
    ),
    "the tables in the warehouse are older than the report": lambda ledger: (
        make_accepted(ledger, [1]),
        ledger.verdicts.note_tables(KEY, NOW),
    ),
    "the service sends it repeatedly": lambda ledger: (
        make_launch(ledger, [1], sends_at=None),
        send(ledger, KEY, Accepted(200, 17)),
    ),
    "an erasure is not finished: run sendoff forget --continue": lambda ledger: (
        make_accepted(ledger, [1]),
        request_erasure(ledger, [2], identified_by="device_id", **ROWS),
    ),
}


def park(ledger: Ledger, key: str) -> None:
    parked = metadata.tables["parked_post_backs"]
    row = {"receiver": 99, "first": 1, "last": 1, "dispatch_key": key, "post_backs": 1, "newest_at": NOW}
    with ledger._database.write() as db:
        db.execute(sa.insert(parked), row)


@pytest.mark.parametrize("why", STAYS)
def test_a_launch_that_is_not_complete_stays(
    ledger: Ledger, why: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    STAYS[why](ledger)
    if "parked" in why:
        monkeypatch.setattr("sendoff.postbacks.retention.aggregate", lambda *_, **__: 0)
        monkeypatch.setattr("sendoff.postbacks.reconcile.aggregate", lambda *_, **__: 0)
    gone = delete(ledger)
    assert (gone.launches, gone.stay) == (0, {why: 1})
    assert list(ledger.launches.audience(KEY)) == [1]


def test_a_stopped_launch_and_a_repeated_one_that_ended_do_not_stay(ledger: Ledger) -> None:
    make_launch(ledger, [1], state=LaunchState.STOPPED)
    weekly = {
        "kind": "recurring",
        "time": "09:00",
        "time_zone": "UTC",
        "start": "2026-02-01",
        "end": "2026-03-02",
    }
    launch = make_launch(ledger, [2], name="weekly", sends_at=None, campaign=make_campaign(send=weekly))
    send(ledger, launch.launch_key, Accepted(200, 17))
    gone = delete(ledger)
    assert (gone.launches, gone.stay) == (2, {})


@pytest.mark.parametrize("younger", ["created_at", "sends_at", "attempt"])
def test_a_younger_launch_stays_and_is_not_counted(ledger: Ledger, younger: str) -> None:
    fields = {} if younger == "attempt" else {younger: NOW + timedelta(days=2)}
    make_launch(ledger, [1], **fields)
    send(ledger, KEY, Accepted(200, 17), at=NOW + timedelta(days=2 if younger == "attempt" else 0))
    gone = delete(ledger)
    assert (gone.launches, gone.stay) == (0, {})
    assert delete_recipients(ledger, KEEP, now=LATER + timedelta(days=2)).launches == 1


def test_late_post_backs_are_ignored(ledger: Ledger, caplog: pytest.LogCaptureFixture) -> None:
    key = make_accepted(ledger, [1, 2, 3])
    other = make_accepted(ledger, [1, 2], name="b", at=LATER)
    store(ledger, post_back(key, "delivery", 1))
    delete(ledger)
    before, [launch, *_] = ledger.verdicts.figures(KEY), ledger.launches.search(KEY)
    store(ledger, post_back(key, "open", 2), post_back(other, "open", 2), unreadable(key), at=LATER)
    with caplog.at_level("INFO"):
        assert aggregate(ledger, now=LATER) == 1
    assert "2 post-backs are too late to count" in caplog.text
    assert ledger.post_backs.pending() == []
    assert ledger.launches.get(KEY) == launch
    assert reconcile_launch(ledger, KEY, now=LATER) == before
    assert ledger.aggregates.newest(launch_key("service", "b", PERIOD)).opens == 1


def unreadable(key: str) -> PostBack:
    return PostBack.received("delivery", key, LATER, b"broken")


def test_what_was_read_before_the_deletion_is_not_stored_after_it(
    ledger: Ledger, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An aggregation and a reconciliation that read the recipients before must not bring them back."""
    key = make_accepted(ledger, [1_000_001, 1_000_002])
    store(ledger, post_back(key, "delivery", 1_000_001))
    for _ in range(2):  # the first report counts as old
        reconcile_launch(ledger, KEY, now=NOW)
    store(ledger, post_back(key, "open", 1_000_002))
    stored, is_deleted = ledger.aggregates.store_run, False

    def delete_first(run: Any) -> bool:
        nonlocal is_deleted
        if not is_deleted:
            is_deleted = True
            old = ledger.old_recipients
            assert old.mark([KEY], LATER - KEEP) == [KEY]
            old.delete(KEY, "old", LATER)
        return stored(run)

    monkeypatch.setattr(ledger.aggregates, "store_run", delete_first)
    aggregate(ledger, now=LATER)
    maintain(ledger, timedelta(days=90), now=LATER)
    assert named_in(ledger, integers([1_000_001, 1_000_002])) == set()


def test_verdicts_that_were_computed_before_the_deletion_are_not_stored_after_it(
    ledger: Ledger, monkeypatch: pytest.MonkeyPatch
) -> None:
    make_accepted(ledger, [1_000_001, 1_000_002])
    before = reconcile_launch(ledger, KEY, now=NOW)
    stored = ledger.verdicts.store

    def delete_first(*args: Any, **how: Any) -> None:
        monkeypatch.undo()
        assert delete(ledger).launches == 1
        stored(*args, **how)

    monkeypatch.setattr(ledger.verdicts, "store", delete_first)
    assert reconcile_launch(ledger, KEY, now=LATER).verdicts == before.verdicts
    assert named_in(ledger, integers([1_000_001, 1_000_002])) == set()


def test_an_erasure_passes_over_deleted_recipients_and_finishes_an_interrupted_deletion(
    ledger: Ledger,
) -> None:
    make_everything(ledger, integers(PEOPLE))
    finish(ledger)
    maintain(ledger, timedelta(days=90), now=LATER)
    reconcile_launch(ledger, KEY, now=LATER)
    assert ledger.old_recipients.mark([KEY], LATER - KEEP) == [KEY]
    forget(ledger, [PEOPLE[3]], identified_by="device_id", **ROWS)
    assert named_in(ledger, integers([PEOPLE[3]])) == set()
    assert delete(ledger).launches == 1
    assert ledger.verdicts.figures(KEY).erased == 0


def test_opt_outs_stay_and_are_counted_and_lose_their_launch(ledger: Ledger) -> None:
    make_accepted(ledger, [1, 2])
    change = SuppressionChange("account", "device_id", "opt-out", author="recipient", launch_key=KEY)
    ledger.suppressions.add(change, ["1"], NOW)
    delete(ledger)
    ledger.suppressions.add(change, ["2"], LATER)  # a late one
    delete(ledger)
    assert ledger.launch_counts.opt_outs([KEY]) == {KEY: 1}
    found = [each for who in "12" for each in ledger.suppressions.of_person("device_id", who)]
    assert [(each.source, each.launch_key) for each in found] == [("opt-out", None)] * 2


def test_the_audit_log_has_counts_only(ledger: Ledger) -> None:
    make_accepted(ledger, [1, 2])
    delete(ledger)
    delete(ledger)
    [entry] = [each for each in ledger.audit_log.of_launch(KEY) if each.kind == "recipients_deleted"]
    assert (entry.who, entry.why, entry.detail) == (
        "sendoff",
        "older than 100 days",
        {"recipients": 2, "opted_out": 0},
    )


def test_recipients_are_kept_for_thirty_days_at_least(ledger: Ledger) -> None:
    least = timedelta(days=30)
    assert delete_recipients(ledger, least, now=LATER).launches == 0
    with pytest.raises(ValueError, match="30 days or longer"):
        delete_recipients(ledger, least - timedelta(seconds=1))


@pytest.mark.parametrize(
    ("event", "step", "least"),
    [("commit", 1, 5), pytest.param("before_cursor_execute", 3, 30, marks=pytest.mark.proof)],
)
def test_a_deletion_that_breaks_off_at_any_statement_is_finished_by_the_next(
    tmp_path: Path, migrated_file: Path, event: str, step: int, least: int
) -> None:
    full = shutil.copy(migrated_file, tmp_path / "full.db")
    with closing(Ledger(f"sqlite:///{full}")) as ledger:
        make_everything(ledger, integers(PEOPLE))
        finish(ledger)
        maintain(ledger, timedelta(days=90), now=LATER)
        held = named_in(ledger, integers(PEOPLE))
        expected = reconcile_launch(ledger, KEY, now=NOW)
    for point in range(1, 2_000, step):
        file = Path(shutil.copy(full, tmp_path / f"{point}.db"))
        with closing(Ledger(f"sqlite:///{file}")) as ledger:
            ended = _ends_before(ledger, event, point, partial(delete, ledger))
            delete(ledger)
            left = {("uploaded_list_chunks", "identifiers"), ("suppressions", "identifier")}
            assert named_in(ledger, integers(PEOPLE)) == left < held, f"at {event} {point}"
            assert ledger.verdicts.figures(KEY).verdicts == expected.verdicts
            kinds = [each.kind for each in ledger.audit_log.of_launch(KEY)]
            assert kinds.count("recipients_deleted") == 1, f"at {event} {point}"
        file.unlink()
        if ended:
            assert point > least
            return
    pytest.fail("the deletion never ended")


@pytest.mark.proof
def test_a_deletion_that_is_killed_is_finished_by_the_next(ledger: Ledger) -> None:
    make_everything(ledger, integers(PEOPLE))
    finish(ledger)
    maintain(ledger, timedelta(days=90), now=LATER)
    before = reconcile_launch(ledger, KEY, now=NOW).verdicts
    url = ledger._database._engine.url.render_as_string(hide_password=False)
    for point in (1, 2, 3):
        process = get_context("spawn").Process(target=die_at_deletion, args=(url, point))
        process.start()
        process.join(PATIENCE)
        assert process.exitcode == -signal.SIGKILL
    assert ledger.old_recipients.unfinished() == [KEY]
    assert delete(ledger).launches == 1
    assert named_in(ledger, integers(PEOPLE)) == {
        ("uploaded_list_chunks", "identifiers"),
        ("suppressions", "identifier"),
    }
    assert ledger.verdicts.figures(KEY).verdicts == before


def die_at_deletion(url: str, point: int) -> None:
    """Delete recipients, and be killed when some tables have lost them, but before the change is committed."""
    tables = 0

    def kill(_db: object, _cursor: object, text: str, *_: object) -> None:
        nonlocal tables
        tables += text.startswith("UPDATE") and any(f"UPDATE {column.table.name} " in text for column in SETS)
        if tables == point:
            os.kill(os.getpid(), signal.SIGKILL)

    with closing(Ledger(url)) as ledger:
        sa.event.listen(ledger._database._engine, "after_cursor_execute", kill)
        delete(ledger)


def test_the_files_of_sqlite_have_no_byte_of_a_recipient_after_reclaiming(
    tmp_path: Path, migrated_file: Path
) -> None:
    people = as_texts(PEOPLE)
    file = Path(shutil.copy(migrated_file, tmp_path / "ledger.db"))
    with closing(Ledger(f"sqlite:///{file}")) as ledger:
        launch = make_launch(
            ledger,
            segments=[Segment(part) for part in people.slices(8)],
            audience=make_audience(people, groups={"platform": {"email": people}}),
        )
        keys = send(
            ledger,
            launch.launch_key,
            *[Accepted(200, 17)] * 4,
            Refused(400, f"{next(iter(people))} has no email"),
        )
        store(ledger, *(post_back(keys[0], "open", who) for who in people))
        maintain(ledger, timedelta(days=90), now=LATER)
        reconcile_launch(ledger, KEY, now=NOW)
        assert any(_bytes_of(file, people))
        delete(ledger)
        ledger.erasures.reclaim()
        assert list(_bytes_of(file, people)) == []


@settings(
    suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=examples(20), deadline=None
)
@given(
    outcomes=st.lists(st.sampled_from([Accepted(200, 17), Refused(400, "…")]), min_size=3, max_size=3),
    events=st.lists(
        st.tuples(
            st.sampled_from([*range(1, 13), 99]), st.sampled_from(["delivery", "open"]), st.integers(0, 2)
        ),
        max_size=8,
    ),
    forgotten=st.none() | st.sampled_from(range(1, 13)),
)
def test_figures_are_the_same_whatever_happened_before(
    ledger: Ledger, outcomes: list[Outcome], events: list[tuple[int, str, int]], forgotten: int | None
) -> None:
    """The report of a launch is the same before and after, whatever it has: verdicts, groups, variants, holdout."""
    number = ledger.launches.count("service")
    period = Period(PERIOD.start + timedelta(minutes=number), PERIOD.end + timedelta(minutes=number))
    people = list(range(1, 13))
    segments = [
        replace(Segment(part), variation=Variation(variant="ab"[place % 2]))
        for place, part in enumerate(integers(people[:10]).slices(4))
    ]
    launch = make_launch(
        ledger,
        segments=segments,
        audience=make_audience(integers(people), groups={"platform": {"ios": integers(people[:6])}}),
        suppressed={"holdout": integers(people[10:]), "cap": integers([50, 51])},
        period=period,
    )
    keys = send(ledger, launch.launch_key, *outcomes)
    for who, kind, place in events:
        store(ledger, post_back(keys[place], kind, who))
    if forgotten:
        forget(ledger, [forgotten], identified_by="device_id", **ROWS)
    for _ in range(2):  # the first report counts as old
        reconcile_launch(ledger, launch.launch_key, now=NOW + timedelta(hours=1))
    before = ledger.verdicts.figures(launch.launch_key)
    text, counts = report(ledger, launch.launch_key), counted(ledger, launch.launch_key)
    assert delete(ledger).launches == 1
    assert ledger.verdicts.figures(launch.launch_key) == before
    assert reconcile_launch(ledger, launch.launch_key, now=LATER) == before
    assert (report(ledger, launch.launch_key), counted(ledger, launch.launch_key)) == (text, counts)


def test_the_command_says_what_was_deleted_and_what_stays(
    sendoff: Command, migrated_url: str, tmp_path: Path
) -> None:
    with closing(Ledger(migrated_url)) as ledger:
        make_accepted(ledger, [1, 2], period=PERIOD)
        make_launch(ledger, [1], name="open")
    reports = [json.loads(sendoff("report", KEY, "--json", "--ledger", migrated_url).stdout)]
    done = sendoff("maintain", "--keep-recipients-days", "90", "--ledger", migrated_url)
    assert "deleted: the 2 recipients of 1 launch" in done.stdout
    assert "the recipients of 1 older launch stay: requests are still to be made" in done.stdout
    with closing(Ledger(migrated_url)) as ledger:
        assert ledger.launches.get(KEY).deleted
    reports.append(json.loads(sendoff("report", KEY, "--json", "--ledger", migrated_url).stdout))
    for each in reports:
        del each["as_of"]
    assert reports[0] == reports[1]
    export = sendoff("verdicts", KEY, "--out", f"{tmp_path}/v.csv", "--ledger", migrated_url)
    assert export.returncode == 1
    assert "the recipients of launches from before" in export.stderr
    wrong = sendoff("maintain", "--keep-recipients-days", "60", "--ledger", migrated_url)
    assert wrong.returncode == 2
    assert "use at least as many days as --keep-days" in wrong.stderr
