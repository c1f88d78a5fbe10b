"""The ledger on every available database: freezing, claims, outcomes, post-backs, and aggregation."""

from __future__ import annotations

import threading
import time
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta
from itertools import pairwise
from pathlib import Path

import pytest
import sqlalchemy as sa

from sendoff.audience.build import Audience
from sendoff.audience.identifiers import integers
from sendoff.errors import (
    LedgerUnavailableError,
    NotFoundError,
    RateLimitedLocallyError,
    SettingsError,
    UnusableLedgerError,
)
from sendoff.ledger import Claim, Ledger
from sendoff.ledger.control.rate_limits import LOOKAHEAD
from sendoff.ledger.launches.launch_record import LaunchRecord
from sendoff.ledger.post_backs.post_backs import PendingRun
from sendoff.ledger.requests import dispatches
from sendoff.ledger.requests.dispatch_queries import RecentOutcomes
from sendoff.ledger.storage import database
from sendoff.service.postbacks import PostBack
from sendoff.states import Accepted, InDoubt, NotProcessed, Outcome, Refused, Resolution

from ...factories import KEY, LEASE, NOW, PERIOD, make_launch
from ...leases import expire
from ...waiting import until


def audience(*members: int) -> Audience:
    identifiers = integers(members)
    return Audience(
        identified_by="device_id",
        identifiers=identifiers,
        rows=len(members) + 2,
        dropped={"null": 2},
        groups={"platform": {"chrome": integers(members[:2])}},
    )


def freeze(ledger: Ledger, *members: int, segment_size: int = 2) -> LaunchRecord:
    frozen = audience(*(members or (1, 2, 3, 4, 5)))
    return make_launch(ledger, frozen.identifiers, size=segment_size, audience=frozen)


def test_a_launch_comes_back_as_it_was_frozen(ledger: Ledger) -> None:
    freeze(ledger)
    launch = ledger.launches.get(KEY)
    assert (launch.rows, launch.audience, launch.dropped, launch.segments) == (7, 5, {"null": 2}, 3)
    assert launch.period == PERIOD
    assert launch.created_at == NOW
    assert ledger.launches.audience(KEY) == integers([1, 2, 3, 4, 5])
    assert ledger.launches.groups(KEY, "platform") == {"chrome": integers([1, 2])}


@pytest.mark.promise("twice/frozen")
def test_a_second_freeze_of_the_same_launch_changes_nothing(ledger: Ledger) -> None:
    freeze(ledger)
    assert freeze(ledger, 7, 8, 9).audience == 5
    assert ledger.launches.audience(KEY) == integers([1, 2, 3, 4, 5])


@pytest.mark.promise("twice/apart")
def test_segments_are_the_audience_without_overlap(ledger: Ledger) -> None:
    freeze(ledger)
    segments = [ledger.dispatch_queries.segment(KEY, number) for number in (1, 2, 3)]
    assert sum(len(segment) for segment in segments) == 5
    assert [list(segment.identifiers) for segment in segments] == [[1, 2], [3, 4], [5]]


def test_segments_are_stored_many_at_once_and_in_order(ledger: Ledger) -> None:
    inserted: list[str] = []

    def note(_connection: object, _cursor: object, statement: str, *_: object) -> None:
        inserted.extend(name for name in ("segments", "dispatches") if f"INSERT INTO {name} " in statement)

    engine = ledger._database._engine
    sa.event.listen(engine, "before_cursor_execute", note)
    freeze(ledger, *range(1, 1002), segment_size=1)
    sa.event.remove(engine, "before_cursor_execute", note)
    assert inserted == ["segments", "dispatches"] * 3
    kept = list(ledger.dispatch_queries.segments(KEY))
    assert [dispatch.segment for dispatch, _ in kept] == list(range(1, 1002))
    assert [list(people) for _, people in kept] == [[n] for n in range(1, 1002)]


def test_an_unknown_launch_is_not_found(ledger: Ledger) -> None:
    assert ledger.launches.find("0" * 32) is None
    with pytest.raises(NotFoundError):
        ledger.launches.get("0" * 32)


def test_a_launch_is_found_by_the_beginning_of_its_key(ledger: Ledger) -> None:
    freeze(ledger)
    assert [launch.launch_key for launch in ledger.launches.search(KEY[:6])] == [KEY]
    assert ledger.launches.search("%") == []


@pytest.mark.promise("twice/intent")
def test_a_claim_commits_the_intent_and_hands_over_the_segment(ledger: Ledger) -> None:
    freeze(ledger)
    claim = ledger.dispatches.claim(KEY, worker="w", now=NOW, lease=LEASE)
    assert claim is not None
    assert list(claim.content.identifiers) == [1, 2]
    assert ledger.dispatch_queries.states(KEY) == {"in_flight": 1, "planned": 2}


@pytest.mark.promise("twice/intent")
def test_each_dispatch_is_claimed_by_one_worker_only(ledger: Ledger) -> None:
    freeze(ledger, *range(1, 41), segment_size=1)
    barrier = threading.Barrier(4)

    def work(name: str) -> list[str]:
        barrier.wait()
        taken = []
        while claim := ledger.dispatches.claim(KEY, worker=name, now=NOW, lease=LEASE):
            taken.append(claim.dispatch_key)
        return taken

    with ThreadPoolExecutor(4) as pool:
        taken = [key for keys in pool.map(work, "abcd") for key in keys]
    assert len(taken) == len(set(taken)) == 40


@pytest.mark.parametrize(
    ("outcome", "state"),
    [
        (Accepted(200, 17), "accepted"),
        (Refused(400, "no such app"), "refused"),
        (NotProcessed("no connection"), "planned"),
        (InDoubt("no answer"), "in_doubt"),
    ],
)
def test_an_outcome_moves_its_dispatch(ledger: Ledger, outcome: Outcome, state: str) -> None:
    freeze(ledger, 1, 2)
    claim = ledger.dispatches.claim(KEY, worker="w", now=NOW, lease=LEASE)
    assert claim is not None
    ledger.dispatches.record(claim, outcome, NOW)
    assert ledger.dispatch_queries.states(KEY) == {state: 1}
    assert ledger.dispatch_queries.newest_outcome(KEY) == NOW


@pytest.mark.promise("twice/doubt")
def test_a_dispatch_in_doubt_is_not_claimed_again(ledger: Ledger) -> None:
    freeze(ledger, 1, 2)
    claim = ledger.dispatches.claim(KEY, worker="w", now=NOW, lease=LEASE)
    assert claim is not None
    ledger.dispatches.record(claim, InDoubt("no answer"), NOW)
    assert ledger.dispatches.claim(KEY, worker="w", now=NOW, lease=LEASE) is None


def test_a_dead_workers_dispatch_goes_into_doubt(ledger: Ledger) -> None:
    freeze(ledger, 1, 2)
    ledger.dispatches.claim(KEY, worker="w", now=NOW, lease=LEASE)
    assert ledger.doubts.expire_leases(KEY, NOW) == 0
    assert expire(ledger, KEY, NOW) == 1
    assert ledger.dispatch_queries.states(KEY) == {"in_doubt": 1}


@pytest.mark.parametrize("ahead", [timedelta(days=-1), timedelta(hours=1)], ids=["behind", "ahead"])
@pytest.mark.promise("twice/doubt")
def test_the_ledgers_clock_judges_leases_whatever_the_clocks_of_workers_show(
    ledger: Ledger, ahead: timedelta
) -> None:
    freeze(ledger, 1, 2)
    moment = datetime.now(UTC)
    ledger.dispatches.claim(KEY, worker="w", now=moment + ahead, lease=LEASE)
    assert ledger.doubts.expire_leases(KEY, moment + 12 * LEASE) == 0
    assert ledger.doubts.expire_leases(KEY, moment - 12 * LEASE) == 0
    left = ledger.doubts.next_expiry(KEY)
    assert left is not None
    assert LEASE - timedelta(minutes=2) < left <= LEASE


def test_a_lease_is_over_when_the_ledgers_clock_says_so(ledger: Ledger) -> None:
    freeze(ledger, 1, 2)
    ledger.dispatches.claim(KEY, worker="w", now=NOW, lease=timedelta(milliseconds=1))
    until(lambda: ledger.doubts.expire_leases(KEY, NOW) == 1)
    assert ledger.doubts.next_expiry(KEY) is None


def test_an_outcome_that_comes_after_the_lease_still_counts(ledger: Ledger) -> None:
    freeze(ledger, 1, 2)
    claim = ledger.dispatches.claim(KEY, worker="w", now=NOW, lease=LEASE)
    assert claim is not None
    expire(ledger, KEY, NOW + timedelta(hours=1))
    ledger.dispatches.record(claim, Accepted(200, 17), NOW + timedelta(hours=1))
    assert ledger.dispatch_queries.of_launch(KEY)[0].state == "accepted"
    assert ledger.dispatch_queries.of_launch(KEY)[0].campaign_id == 17


@pytest.mark.parametrize(
    ("late", "recent"),
    [
        (Accepted(200, 17), RecentOutcomes(2, 1, 0)),
        (Refused(400, "no such app"), RecentOutcomes(2, 2, 0)),
        (InDoubt("no answer"), RecentOutcomes(2, 1, 1)),
        (NotProcessed("no connection"), RecentOutcomes(1, 1, 0)),
    ],
)
def test_a_request_of_which_two_things_were_recorded_counts_once(
    ledger: Ledger, late: Outcome, recent: RecentOutcomes
) -> None:
    freeze(ledger, 1, 2, 3, 4)
    refused, slow = (ledger.dispatches.claim(KEY, worker="w", now=NOW, lease=LEASE) for _ in range(2))
    assert refused is not None
    assert slow is not None
    ledger.dispatches.record(refused, Refused(400, "no such app"), NOW)
    assert expire(ledger, KEY, NOW + 2 * LEASE) == 1
    assert ledger.dispatch_queries.recent_outcomes(KEY, 10, None) == RecentOutcomes(2, 1, 1)
    ledger.dispatches.record(slow, late, NOW + 2 * LEASE)
    assert ledger.dispatch_queries.recent_outcomes(KEY, 10, None) == recent


def test_an_attempt_that_went_into_doubt_twice_is_one_doubt(ledger: Ledger) -> None:
    freeze(ledger, 1, 2)
    slow = ledger.dispatches.claim(KEY, worker="w", now=NOW, lease=LEASE)
    assert slow is not None
    assert expire(ledger, KEY, NOW + 2 * LEASE) == 1
    ledger.dispatches.record(slow, InDoubt("no answer"), NOW + 2 * LEASE)
    assert ledger.doubts.resolve(slow.dispatch_key, Resolution.RESEND, "sendoff", "again", NOW, doubts=1)
    assert ledger.dispatch_queries.states(KEY) == {"planned": 1}


def test_an_attempt_that_was_not_made_after_all_is_no_doubt(ledger: Ledger) -> None:
    freeze(ledger, 1, 2)
    for outcome in (NotProcessed("the claim is too old"), InDoubt("no answer")):
        slow = ledger.dispatches.claim(KEY, worker="w", now=NOW, lease=LEASE)
        assert slow is not None
        assert expire(ledger, KEY, NOW + 2 * LEASE) == 1
        ledger.dispatches.record(slow, outcome, NOW + 2 * LEASE)
    assert ledger.doubts.resolve(slow.dispatch_key, Resolution.RESEND, "sendoff", "again", NOW, doubts=1)


def test_an_outcome_of_an_earlier_attempt_moves_nothing(ledger: Ledger) -> None:
    freeze(ledger, 1, 2)
    first = ledger.dispatches.claim(KEY, worker="w", now=NOW, lease=LEASE)
    assert first is not None
    ledger.dispatches.record(first, NotProcessed("no connection"), NOW)
    ledger.dispatches.claim(KEY, worker="w", now=NOW, lease=LEASE)
    ledger.dispatches.record(first, Refused(400, "late"), NOW)
    assert ledger.dispatch_queries.states(KEY) == {"in_flight": 1}


def sent_again(ledger: Ledger) -> tuple[Claim, Claim]:
    """Return both attempts of a dispatch: the first worker was silent, and a resend is in flight."""
    freeze(ledger, 1, 2)
    first = ledger.dispatches.claim(KEY, worker="silent", now=NOW, lease=LEASE)
    assert first is not None
    assert expire(ledger, KEY, NOW + 2 * LEASE) == 1
    assert ledger.doubts.resolve(first.dispatch_key, Resolution.RESEND, "ann", "again", NOW)
    second = ledger.dispatches.claim(KEY, worker="other", now=NOW, lease=LEASE)
    assert second is not None
    return first, second


NOT_ACCEPTED = (Refused(400, "no"), NotProcessed("patience", is_rate_limited=True), InDoubt("no answer"))


@pytest.mark.promise("twice/once")
@pytest.mark.parametrize("is_late", [False, True], ids=["first", "last"])
@pytest.mark.parametrize("outcome", NOT_ACCEPTED, ids=[each.kind for each in NOT_ACCEPTED])
def test_that_an_earlier_attempt_was_accepted_stands_whatever_becomes_of_a_later_one(
    ledger: Ledger, outcome: Outcome, is_late: bool
) -> None:
    first, second = sent_again(ledger)
    recorded = [(first, Accepted(200, 17)), (second, outcome)]
    for claim, became in reversed(recorded) if is_late else recorded:
        ledger.dispatches.record(claim, became, NOW)
    dispatch = ledger.dispatch_queries.of_launch(KEY)[0]
    assert (dispatch.state, dispatch.campaign_id) == ("accepted", 17)
    assert ledger.dispatches.claim(KEY, worker="w", now=NOW, lease=LEASE) is None
    assert ledger.doubts.open(KEY) == []


@pytest.mark.promise("twice/once")
def test_a_later_attempt_whose_worker_dies_is_no_doubt_where_an_earlier_one_was_accepted(
    ledger: Ledger,
) -> None:
    first, _ = sent_again(ledger)
    ledger.dispatches.record(first, Accepted(200, 17), NOW)
    assert ledger.dispatch_queries.states(KEY) == {"in_flight": 1}
    assert expire(ledger, None, NOW + 2 * LEASE) == 1
    assert ledger.dispatch_queries.states(KEY) == {"accepted": 1}


def test_the_campaign_of_the_newest_attempt_is_kept_where_several_were_accepted(ledger: Ledger) -> None:
    first, second = sent_again(ledger)
    ledger.dispatches.record(second, Accepted(200, 18), NOW)
    ledger.dispatches.record(first, Accepted(200, 17), NOW)
    assert ledger.dispatch_queries.of_launch(KEY)[0].campaign_id == 18


@pytest.mark.promise("twice/once")
@pytest.mark.parametrize("ledger", ["postgresql"], indirect=True)  # SQLite admits one writer at a time
def test_an_acceptance_that_is_being_recorded_stands_over_what_becomes_of_a_later_attempt(
    ledger: Ledger,
) -> None:
    first, second = sent_again(ledger)
    with ThreadPoolExecutor(1) as pool:
        with ledger._database.write() as db:
            dispatches._record(db, first, Accepted(200, 17), NOW)
            waiting = pool.submit(ledger.dispatches.record, second, NotProcessed("patience"), NOW)
            wait_until_somebody_waits(ledger)
        waiting.result()
    assert ledger.dispatch_queries.states(KEY) == {"accepted": 1}


def wait_until_somebody_waits(ledger: Ledger) -> None:
    """Wait until a transaction of this database waits for a lock."""
    waiting = sa.text(
        "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND wait_event_type = 'Lock'"
    )
    deadline = time.monotonic() + 120
    while time.monotonic() < deadline:
        with ledger._database.read() as db:
            if db.scalar(waiting):
                return
        time.sleep(0.05)
    raise AssertionError("nobody waits")


def test_receivers_have_numbers_of_their_own(ledger: Ledger) -> None:
    numbers = {ledger.post_backs.register_receiver("r", NOW) for _ in range(3)}
    assert len(numbers) == 3


def test_storing_the_same_post_backs_again_is_harmless(ledger: Ledger) -> None:
    receiver = ledger.post_backs.register_receiver("r", NOW)
    first = PostBack.received("open", "a" * 32, NOW, b'{"time": 1, "device": {"id": 5}}')
    ledger.post_backs.store(receiver, [(1, first)])
    ledger.post_backs.store(receiver, [(1, first), (2, first)])
    assert _devices(ledger, receiver, after=0) == [5, 5]
    assert _devices(ledger, receiver, after=1) == [5]


def _devices(ledger: Ledger, receiver: int, *, after: int) -> list[int | None]:
    run = PendingRun(receiver, after, 10)
    with ledger.post_backs.read([run], named_by=["device_id"]) as batches:
        return [device for batch in batches for device in batch["device_id"].to_pylist()]


@pytest.mark.parametrize(
    "body",
    [
        b"\xff\xfe",
        b'{"time": 1, "device": {"id": 5}, "profile": {"user_id": "a\\u0000b"}}',  # PostgreSQL stores no NUL
        b'{"time": 253402300799, "device": {"id": 9223372036854775807}}',
    ],
)
def test_a_strange_body_is_stored_all_the_same(ledger: Ledger, body: bytes) -> None:
    receiver = ledger.post_backs.register_receiver("r", NOW)
    ledger.post_backs.store(receiver, [(1, PostBack.received("open", "a" * 32, NOW, body))])
    assert len(_devices(ledger, receiver, after=0)) == 1


def test_an_error_of_the_database_shows_no_identifier(ledger: Ledger) -> None:
    body = b'{"time": 1, "device": {"id": 424242}}'
    with ledger._database.write() as db:
        db.execute(sa.text("ALTER TABLE post_backs RENAME TO elsewhere"))
    with pytest.raises(UnusableLedgerError) as caught:
        ledger.post_backs.store(1, [(1, PostBack.received("open", "a" * 32, NOW, body))])
    with ledger._database.write() as db:
        db.execute(sa.text("ALTER TABLE elsewhere RENAME TO post_backs"))
    assert "sendoff migrate" in str(caught.value)
    assert "424242" not in str(caught.value)


def test_a_ledger_without_tables_says_how_to_make_them(tmp_path: Path) -> None:
    with pytest.raises(UnusableLedgerError, match="sendoff migrate"):
        Ledger(f"sqlite:///{tmp_path / 'new.db'}").launches.find(KEY)


def test_an_unreachable_ledger_is_retryable(free_port: int) -> None:
    with pytest.raises(LedgerUnavailableError):
        Ledger(f"postgresql+psycopg://nobody@127.0.0.1:{free_port}/none").ping()


@pytest.mark.parametrize("url", ["nonsense", "oracle+nothing://x", "mysql+pymysql://root@127.0.0.1/x"])
def test_a_url_that_cannot_be_used_says_what_one_looks_like(url: str) -> None:
    with pytest.raises(SettingsError, match="sqlite:////"):
        Ledger(url)


@pytest.mark.promise("hands/rate")
def test_a_rate_is_kept_by_all_workers_together(ledger: Ledger) -> None:
    """No clock is needed: the moments of all claims differ by at least the minimum interval."""
    freeze(ledger, *range(1, 41), segment_size=1)
    barrier = threading.Barrier(4)

    def work(name: str) -> list[datetime]:
        barrier.wait()
        moments, now = [], NOW
        while True:
            try:
                claim = ledger.dispatches.claim(KEY, worker=name, now=now, lease=LEASE, rate=30)
            except RateLimitedLocallyError as early:
                now = max(now, early.until)
                continue
            if claim is None and ledger.dispatch_queries.states(KEY).get("planned"):
                now += LOOKAHEAD  # other workers took the near moments
                continue
            if claim is None:
                return moments
            assert claim.not_before is not None
            assert claim.not_before <= now + LOOKAHEAD
            moments.append(claim.not_before)

    with ThreadPoolExecutor(4) as pool:
        moments = sorted(moment for made in pool.map(work, "abcd") for moment in made)
    assert len(moments) == 40
    assert min(later - earlier for earlier, later in pairwise(moments)) >= timedelta(microseconds=33_334)
    following = ledger.rate_limits.next_at("service")
    assert following == moments[-1] + timedelta(microseconds=33_334)


def test_what_the_rate_does_not_allow_stays_planned(ledger: Ledger) -> None:
    freeze(ledger)
    first = ledger.dispatches.claim(KEY, worker="a", now=NOW, lease=LEASE, rate=0.1)
    assert first is not None
    assert first.not_before == NOW
    assert ledger.dispatches.claim(KEY, worker="b", now=NOW, lease=LEASE, rate=0.1) is None
    assert ledger.dispatch_queries.states(KEY) == {"in_flight": 1, "planned": 2}
    assert ledger.rate_limits.next_at("service") == NOW + timedelta(seconds=10)


def test_a_wish_for_patience_moves_all_workers_of_a_connection(ledger: Ledger) -> None:
    freeze(ledger)
    later = NOW + timedelta(seconds=90)
    ledger.rate_limits.delay("another", later + timedelta(hours=1))
    ledger.rate_limits.delay("service", later)
    ledger.rate_limits.delay("service", NOW)  # an earlier time changes nothing
    for rate in (None, 100.0):
        assert ledger.dispatches.claim(KEY, worker="a", now=NOW, lease=LEASE, rate=rate) is None
    claim = ledger.dispatches.claim(KEY, worker="a", now=later, lease=LEASE)
    assert claim is not None
    assert claim.not_before is None


@pytest.mark.code_decides
@pytest.mark.parametrize("rate", [0, -1, float("nan"), float("inf")])
def test_a_rate_that_cannot_be_kept_is_refused(ledger: Ledger, rate: float) -> None:
    freeze(ledger)
    with pytest.raises(ValueError, match="requests per second"):
        ledger.dispatches.claim(KEY, worker="a", now=NOW, lease=LEASE, rate=rate)
    assert ledger.dispatch_queries.states(KEY) == {"planned": 3}


def test_a_series_of_transactions_leaves_the_lock_of_sqlite_free_most_of_the_time(
    ledger: Ledger, monkeypatch: pytest.MonkeyPatch
) -> None:
    pauses: list[float] = []
    monkeypatch.setattr(database, "_SHARE", 0.2)  # other tests go on at once
    monkeypatch.setattr(database, "sleep", pauses.append)
    clock = iter([100.0, 102.0])
    monkeypatch.setattr(database, "monotonic", lambda: next(clock, 200.0))
    with ledger._database.write_in_turn():
        pass
    assert pauses == ([8.0] if ledger.name.startswith("sqlite") else [])
