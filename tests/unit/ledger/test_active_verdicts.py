"""Verdicts in another launch that change after a launch is frozen: each claim asks them again."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from datetime import timedelta
from typing import Any

import pytest
import sqlalchemy as sa

from sendoff.audience.identifiers import integers, strings
from sendoff.comparison.balance import _CAUSES
from sendoff.figures import LaunchStats, spoken_reason
from sendoff.ledger import Claim, LaunchSource, Ledger, SuppressionChange
from sendoff.ledger.storage.schema import dispatches
from sendoff.ledger.suppression.active_verdicts import SOURCES_REVISION, ActiveVerdicts
from sendoff.postbacks import aggregate, reconcile_launch
from sendoff.states import Accepted, DispatchState, InDoubt, NotProcessed, Verdict

from ...factories import KEY, LEASE, NOW, make_audience, make_launch, post_back, send, store

ACCEPTED = Accepted(200, 17)
DELIVERED_ONLY = (("delivered",), ("engaged",))


@pytest.fixture
def noted() -> Iterator[Callable[[Ledger], list[str]]]:
    """Return a function that starts to note the statements of a ledger, and returns their texts."""
    seen: list[str] = []
    engines = []

    def note(_link: Any, _cursor: Any, statement: str, *_: Any) -> None:
        seen.append(statement)

    def begin(ledger: Ledger) -> list[str]:
        engines.append(ledger._database._engine)
        sa.event.listen(engines[-1], "before_cursor_execute", note)
        return seen

    yield begin
    for engine in engines:
        sa.event.remove(engine, "before_cursor_execute", note)


class Reminder:
    """A source whose recipients all got its message, and a launch to them in requests of two."""

    def __init__(
        self,
        ledger: Ledger,
        people: int = 6,
        source: tuple[tuple[str, ...], tuple[str, ...]] = DELIVERED_ONLY,
    ) -> None:
        self.ledger = ledger
        make_launch(ledger, range(1, people + 1), size=3)
        self.of_source = send(ledger, KEY, *[ACCEPTED] * (people // 3))
        accepted, leaves_out = (tuple(map(Verdict, each)) for each in source)
        self.key = make_launch(
            ledger,
            range(1, people + 1),
            size=2,
            name="reminder",
            sources=[LaunchSource(KEY, accepted, leaves_out)],
        ).launch_key

    def post(self, kind: str, *people: int) -> None:
        """Store and aggregate post-backs of the source."""
        store(self.ledger, *(post_back(self.of_source[(who - 1) // 3], kind, who) for who in people))
        aggregate(self.ledger, now=NOW)

    def claim(self, worker: str = "w") -> Claim | None:
        return self.ledger.dispatches.claim(self.key, worker=worker, now=NOW, lease=LEASE)

    def claimed(self) -> list[int]:
        """Claim the next request, record that it was accepted, and return its recipients."""
        claim = self.claim()
        assert claim
        assert claim.content.identifiers is not None
        self.ledger.dispatches.record(claim, ACCEPTED, NOW)
        return list(map(int, claim.content.identifiers))

    def report(self) -> LaunchStats:
        figures = reconcile_launch(self.ledger, self.key, now=NOW)
        assert figures.unaccounted_identifiers == 0
        assert sum(figures.not_sent_because.values()) == figures.verdicts[Verdict.NOT_SENT]
        return figures


@pytest.mark.promise("hands/opened")
def test_who_opens_after_the_freeze_is_left_out_of_later_requests(ledger: Ledger) -> None:
    reminder = Reminder(ledger)
    assert reminder.claimed() == [1, 2]
    reminder.post("open", 1, 3)
    assert reminder.claimed() == [4]
    assert reminder.claimed() == [5, 6]
    figures = reminder.report()
    assert figures.not_sent_because == {"opened since": 1}
    assert spoken_reason("opened since") == "opened an earlier message since" == _CAUSES["opened since"]
    status = ledger.launches.recipient(reminder.key, 3)
    assert status.sentence == "not sent: opened or clicked an earlier message before the request was due"
    assert list(ledger.launches.sent(reminder.key)) == [1, 2, 4, 5, 6]


@pytest.mark.promise("hands/opened")
def test_a_claim_that_comes_with_the_record_of_another_leaves_them_out_too(ledger: Ledger) -> None:
    reminder = Reminder(ledger)
    claim = reminder.claim("w/1")
    reminder.post("open", 3)
    rows = []
    while claim:
        assert claim.content.identifiers is not None
        rows.append(list(claim.content.identifiers))
        claim = ledger.dispatches.record_and_claim(claim, ACCEPTED, NOW, worker="w/1", lease=LEASE)
        if len(rows) == 1:
            reminder.post("open", 5, 6)
    assert rows == [[1, 2], [4]]
    assert reminder.report().not_sent_because == {"opened since": 3}


def test_an_open_between_reading_the_verdicts_and_the_claim_counts(ledger: Ledger) -> None:
    reminder, active = Reminder(ledger), ActiveVerdicts()
    with ledger._database.read() as db:
        active.load(db, reminder.key)
    reminder.post("open", 3)
    with ledger._database.read() as db:
        revision = db.execute(sa.select(SOURCES_REVISION), {"launch": reminder.key}).scalar_one()
        found = active.among(db, reminder.key, integers([3, 4]), revision)
    assert found == {Verdict.ENGAGED: integers([3])}


@pytest.mark.code_decides
def test_only_so_many_launches_are_kept_in_memory(ledger: Ledger, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sendoff.ledger.suppression.active_verdicts._MOST_LAUNCHES", 2)
    reminder, active = Reminder(ledger), ActiveVerdicts()
    source = LaunchSource(KEY, (Verdict.DELIVERED,), (Verdict.ENGAGED,))
    keys = [make_launch(ledger, [1], name=name, sources=[source]).launch_key for name in ("a", "b")]
    reminder.post("open", 1)
    with ledger._database.read() as db:
        for key, kept in ((reminder.key, 1), (keys[0], 2), (keys[0], 2), (keys[1], 1), (reminder.key, 2)):
            active.load(db, key)
            assert len(active._newest) == kept
            revision = db.execute(sa.select(SOURCES_REVISION), {"launch": key}).scalar_one()
            assert active.among(db, key, integers([1, 2]), revision) == {Verdict.ENGAGED: integers([1])}


def test_a_request_without_remaining_recipients_is_not_made(ledger: Ledger) -> None:
    reminder = Reminder(ledger)
    reminder.post("open", 1, 2, 3, 5)
    ledger.suppressions.add(SuppressionChange("account", "device_id", "csv", "ann"), [4], NOW)
    assert reminder.claimed() == [6]
    assert reminder.claim() is None
    states = ledger.dispatch_queries.states(reminder.key)
    assert states == {DispatchState.SUPPRESSED: 2, DispatchState.ACCEPTED: 1}
    assert reminder.report().not_sent_because == {"suppressed": 1, "opened since": 4}
    sentences = [ledger.launches.recipient(reminder.key, who).sentence for who in (2, 4)]
    assert sentences == [
        "not sent: opened or clicked an earlier message before the request was due",
        "not sent: on the suppression list when the request was due",
    ]


def test_only_verdicts_that_are_not_accepted_are_left_out(ledger: Ledger) -> None:
    reminder = Reminder(ledger, source=(("missing", "engaged"), ("delivered",)))
    reminder.post("open", 1)
    reminder.post("delivery", 1, 2, 3)
    assert reminder.claimed() == [1]
    reminder.post("open", 3)  # who opens is engaged, and no longer only delivered
    assert reminder.claimed() == [3, 4]
    figures = reminder.report()
    assert figures.not_sent_because == {"delivered since": 1, "not requested": 2}
    sentence = ledger.launches.recipient(reminder.key, 2).sentence
    assert sentence == "not sent: got an earlier message before the request was due"


def test_each_is_counted_once_who_was_left_out_for_several_reasons(ledger: Ledger) -> None:
    reminder = Reminder(ledger, source=(("missing",), ("engaged", "delivered")))
    reminder.post("delivery", 1, 2)
    reminder.post("open", 1)
    claim = ledger.dispatches.claim(reminder.key, worker="w", now=NOW, lease=LEASE)
    assert claim
    assert list(claim.content.identifiers or ()) == [3, 4]  # the first request has no recipients left
    ledger.dispatches.record(claim, NotProcessed("later"), NOW)
    reminder.post("delivery", 3)
    assert reminder.claimed() == [4]
    reminder.post("open", 3)
    ledger.suppressions.add(SuppressionChange("account", "device_id", "csv", "ann"), [1, 2, 3], NOW)
    reminder.claimed()
    assert reminder.report().not_sent_because == {"opened since": 1, "delivered since": 2}


def test_who_is_left_out_of_a_repeated_request_may_have_got_the_first(ledger: Ledger) -> None:
    reminder = Reminder(ledger)
    claim = reminder.claim()
    assert claim
    ledger.dispatches.record(claim, InDoubt("lost"), NOW)
    reminder.post("open", 1)
    assert ledger.doubts.resolve(claim.dispatch_key, "resend", "ann", "asked", NOW, doubts=1)
    assert reminder.claimed() == [2]
    assert reminder.report().verdicts[Verdict.IN_DOUBT] == 1


def test_a_worker_that_asks_for_its_claim_again_gets_it_as_it_is_now(ledger: Ledger) -> None:
    reminder = Reminder(ledger)
    first = reminder.claim("w/1")
    assert first
    second = ledger.dispatches.record_and_claim(first, ACCEPTED, NOW, worker="w/1", lease=LEASE)
    assert second
    reminder.post("open", 3)
    again = ledger.dispatches.record_and_claim(first, ACCEPTED, NOW, worker="w/1", lease=LEASE)
    assert again
    assert list(again.content.identifiers or ()) == [4]


def test_only_dispatches_with_new_post_backs_are_read_again(
    ledger: Ledger, noted: Callable[[Ledger], list[str]]
) -> None:
    reminder = Reminder(ledger)
    reminder.post("delivery", 1)
    seen = noted(ledger)
    assert reminder.claimed() == [1, 2]
    assert sum("dispatch_totals.engaged" in text for text in seen) == 1
    seen.clear()
    assert reminder.claimed() == [3, 4]
    assert not any("dispatch_totals.opens" in text for text in seen)
    with ledger._database.write() as db:  # a revision may rise for other reasons
        db.execute(sa.text("UPDATE launches SET revision = revision + 1"))
    seen.clear()
    assert reminder.claimed() == [5, 6]
    assert not any("dispatch_totals.engaged" in text for text in seen)


def test_identifiers_may_be_text(ledger: Ledger) -> None:
    people = strings(["ann", "bob"])
    make_launch(ledger, people, audience=make_audience(people))
    (of_source,) = send(ledger, KEY, ACCEPTED)
    source = LaunchSource(KEY, (Verdict.DELIVERED,), (Verdict.ENGAGED,))
    key = make_launch(ledger, people, name="reminder", sources=[source]).launch_key
    store(ledger, post_back(of_source, "open", "bob"))
    aggregate(ledger, now=NOW)
    claim = ledger.dispatches.claim(key, worker="w", now=NOW + timedelta(minutes=1), lease=LEASE)
    assert claim
    assert list(claim.content.identifiers or ()) == ["ann"]


def test_without_a_source_nothing_is_read(ledger: Ledger, noted: Callable[[Ledger], list[str]]) -> None:
    make_launch(ledger, integers([1, 2]), size=1)
    seen = noted(ledger)
    send(ledger, KEY, ACCEPTED, ACCEPTED)
    assert not any("dispatch_totals.engaged" in text for text in seen)
    with ledger._database.read() as db:
        assert db.scalar(sa.select(sa.func.count()).select_from(dispatches)) == 2
