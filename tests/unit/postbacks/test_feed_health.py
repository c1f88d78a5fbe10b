"""Feed health: only certain states are reported, and each change once."""

from __future__ import annotations

import json
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, date, datetime, timedelta
from pathlib import Path
from threading import Barrier
from typing import Any

import pytest
import sqlalchemy as sa
from typer.testing import CliRunner

from sendoff.audience.identifiers import integers
from sendoff.campaign import Campaign, CampaignFolder, Period, launch_key
from sendoff.cli.commands import app
from sendoff.ledger import LaunchRecord, Ledger, NotLaunched
from sendoff.ledger.results.feed_states import Feed
from sendoff.ledger.storage.schema import launches
from sendoff.postbacks.feed_health import RECEIVER, Check, FeedChange, check_feeds, inspect_feeds
from sendoff.postbacks.reconcile import reconcile_launch
from sendoff.postbacks.silence import count_silence
from sendoff.service.postbacks import PostBack
from sendoff.states import Accepted, FeedHealth

from ...factories import EMAIL, KEY, make_accepted, make_audience, make_launch
from ...factories import send as send_requests

START = datetime(2026, 3, 2, 9, tzinfo=UTC)
HOUR = timedelta(hours=1)
LEASE = timedelta(minutes=5)
PUSH = Campaign.model_validate(
    {
        "title": "Spring",
        "message": {"title": "Hello", "text": "It is spring"},
        "channels": {"android_push": {}, "web_push": {"browsers": ["chrome", "safari"]}},
    }
)
DELIVERIES = Feed("service", "delivery")
OPENS = Feed("service", "open")


def send(
    ledger: Ledger,
    at: datetime,
    people: int = 100,
    *,
    campaign: Campaign = EMAIL,
    name: str = "spring",
    connection: str = "service",
    platforms: dict[str, Iterable[int]] | None = None,
) -> str:
    """Send a launch to recipients from 1 on, in one accepted request, and return its dispatch key."""
    period = Period(at - timedelta(days=1), at)
    groups = {"platform": {of: integers(who) for of, who in (platforms or {}).items()}}
    everybody = integers(range(1, people + 1))
    return make_accepted(
        ledger,
        everybody,
        audience=make_audience(everybody, groups=groups or {}),
        period=period,
        at=at,
        campaign=campaign,
        name=name,
        connection=connection,
    )


def receive(ledger: Ledger, key: str, kind: str, who: Iterable[int], at: datetime) -> None:
    receiver = ledger.post_backs.register_receiver("r", at)
    bodies = [{"time": 1772442000, "device": {"id": each}, "campaign": {"id": 17}} for each in who]
    post_backs = [PostBack.received(kind, key, at, json.dumps(body).encode()) for body in bodies]
    ledger.post_backs.store(receiver, list(enumerate(post_backs, start=1)))


def settle(ledger: Ledger, at: datetime, **more: Any) -> None:
    """Reconcile and settle the launch that was sent at a moment."""
    key = launch_key(
        more.get("connection", "service"), more.get("name", "spring"), Period(at - 24 * HOUR, at)
    )
    reconcile_launch(ledger, key, now=at + 2 * HOUR)
    ledger.launches.settle(key, at + 2 * HOUR)


def finding(ledger: Ledger, source: Feed, now: datetime) -> Check:
    (found,) = [each for each in inspect_feeds(ledger, now=now) if each.feed == source]
    return found


def state(ledger: Ledger, source: Feed, now: datetime) -> str:
    return finding(ledger, source, now).state


def test_not_one_delivery_an_hour_after_sending_is_silence(ledger: Ledger) -> None:
    send(ledger, START, people=50)
    assert state(ledger, DELIVERIES, START + HOUR) == "silent"


def test_one_delivery_is_as_expected(ledger: Ledger) -> None:
    receive(ledger, send(ledger, START), "delivery", [1], START)
    found = finding(ledger, DELIVERIES, START + HOUR)
    assert found.state == "as expected"
    assert found.why == "delivery reported for 1 of 100 recipients sent to since 2026-03-02 09:00 UTC"


@pytest.mark.parametrize(
    ("sent", "age", "why"),
    [
        ({"people": 49}, HOUR, "too few post-backs are due"),
        ({}, HOUR - timedelta(seconds=1), "no recent recipient's silence"),
        ({}, timedelta(days=1), None),  # nothing was sent recently, so the connection has no feed
        # Android reports no deliveries, and it is unknown who is on Chrome.
        ({"campaign": PUSH}, HOUR, "no recent recipient's silence"),
        ({"campaign": PUSH, "platforms": {"android": range(1, 101)}}, HOUR, "no recent recipient's silence"),
    ],
)
def test_what_is_not_certain_is_not_said(
    ledger: Ledger, sent: dict[str, Any], age: timedelta, why: str | None
) -> None:
    send(ledger, START, **sent)
    found = {each.feed: each for each in inspect_feeds(ledger, now=START + age)}
    if why is None:
        assert DELIVERIES not in found
    else:
        assert found[DELIVERIES].state == "cannot tell"
        assert why in found[DELIVERIES].why


@pytest.mark.parametrize(("kind", "expected"), [("delivery", "cannot tell"), ("open", "silent")])
def test_what_could_not_be_read_may_have_been_a_delivery_unless_it_came_for_an_open(
    ledger: Ledger, kind: str, expected: str
) -> None:
    key = send(ledger, START)
    receiver = ledger.post_backs.register_receiver("r", START)
    ledger.post_backs.store(receiver, [(1, PostBack.received(kind, key, START, b"{"))])
    assert state(ledger, DELIVERIES, START + HOUR) == expected


@pytest.mark.code_decides
def test_what_could_not_be_read_may_have_been_an_open(ledger: Ledger) -> None:
    usual(ledger, delivered=900, opened=200)
    key = send(ledger, START, 1_000)
    receive(ledger, key, "delivery", [1], START)
    receiver = ledger.post_backs.register_receiver("r", START)
    ledger.post_backs.store(receiver, [(2, PostBack.received("open", key, START, b"{"))])
    assert state(ledger, OPENS, START + HOUR) == "cannot tell"
    assert state(ledger, DELIVERIES, START + HOUR) == "degraded"


def test_each_reliable_platform_is_judged_by_itself(ledger: Ledger) -> None:
    platforms = {"chrome": range(1, 101), "email": range(101, 201), "android": range(201, 301)}
    key = send(ledger, START, 300, campaign=PUSH, platforms=platforms)
    receive(ledger, key, "delivery", range(101, 150), START)
    found = {each.feed: each.state for each in inspect_feeds(ledger, now=START + HOUR)}
    assert found[Feed("service", "delivery", "chrome")] == "silent"
    assert found[Feed("service", "delivery", "email")] == "as expected"
    assert Feed("service", "delivery", "android") not in found
    assert found[DELIVERIES] == "as expected"


def test_a_channel_that_falls_silent_is_judged_by_its_newest_hours(ledger: Ledger) -> None:
    receive(ledger, send(ledger, START), "delivery", range(1, 101), START)
    send(ledger, START + 3 * HOUR)
    assert state(ledger, DELIVERIES, START + 4 * HOUR) == "silent"


def test_small_launches_are_silent_together(ledger: Ledger) -> None:
    for hour in range(5):
        send(ledger, START + hour * HOUR, people=10)
    assert state(ledger, DELIVERIES, START + 4 * HOUR) == "cannot tell"
    assert state(ledger, DELIVERIES, START + 5 * HOUR) == "silent"


def test_what_was_silent_is_as_expected_with_the_first_delivery_of_a_newer_launch(ledger: Ledger) -> None:
    send(ledger, START)
    later = START + 3 * HOUR
    assert state(ledger, DELIVERIES, later) == "silent"
    receive(ledger, send(ledger, later, people=5), "delivery", [1], later)
    assert state(ledger, DELIVERIES, later) == "as expected"  # at once, not after an hour


def usual(ledger: Ledger, *, delivered: int, opened: int = 0, after: timedelta = timedelta(0)) -> None:
    """Add an earlier, successful launch to a thousand recipients."""
    at = START - timedelta(days=3)
    key = send(ledger, at, 1_000)
    receive(ledger, key, "delivery", range(1, delivered + 1), at + after)
    receive(ledger, key, "open", range(1, opened + 1), at + after)
    settle(ledger, at)


@pytest.mark.parametrize(
    ("heard", "expected"), [(90, "as expected"), (89, "degraded"), (1, "degraded"), (0, "silent")]
)
def test_below_a_tenth_of_what_is_usual_is_degraded(ledger: Ledger, heard: int, expected: str) -> None:
    usual(ledger, delivered=900)
    receive(ledger, send(ledger, START, 1_000), "delivery", range(1, heard + 1), START)
    found = finding(ledger, DELIVERIES, START + HOUR)
    assert found.state == expected
    assert found.why.endswith("usually about 900 by now")


@pytest.mark.code_decides
def test_opens_on_platforms_without_deliveries_are_not_usual_deliveries(ledger: Ledger) -> None:
    platforms = {"email": range(1, 501), "android": range(501, 1_001)}
    before = START - timedelta(days=3)
    key = send(ledger, before, 1_000, campaign=PUSH, platforms=platforms)
    receive(ledger, key, "delivery", range(1, 401), before)
    receive(ledger, key, "open", range(501, 901), before)
    settle(ledger, before)
    receive(ledger, send(ledger, START, 1_000, campaign=PUSH, platforms=platforms), "delivery", [1], START)
    assert finding(ledger, DELIVERIES, START + HOUR).why.endswith("usually about 400 by now")


@pytest.mark.code_decides
def test_what_is_usual_on_a_platform_is_what_came_from_its_own_recipients(ledger: Ledger) -> None:
    platforms = {"email": range(1, 501), "chrome": range(501, 1_001)}
    before = START - timedelta(days=3)
    key = send(ledger, before, 1_000, campaign=PUSH, platforms=platforms)
    receive(ledger, key, "delivery", [*range(1, 451), *range(501, 551)], before)
    settle(ledger, before)
    receive(ledger, send(ledger, START, 1_000, campaign=PUSH, platforms=platforms), "delivery", [1], START)
    for platform, usual in (("email", 450), ("chrome", 50)):
        found = finding(ledger, Feed("service", "delivery", platform), START + HOUR)
        assert found.why.endswith(f"usually about {usual} by now")


def test_what_usually_comes_later_is_not_missed_earlier(ledger: Ledger) -> None:
    usual(ledger, delivered=900, after=3 * HOUR)
    send(ledger, START, 1_000)
    assert state(ledger, DELIVERIES, START + 2 * HOUR) == "cannot tell"
    assert state(ledger, DELIVERIES, START + 3 * HOUR) == "silent"


@pytest.mark.parametrize("waited", [0, 5, 25])
def test_what_is_usual_is_counted_from_sending_however_long_the_launches_waited(
    ledger: Ledger, waited: int
) -> None:
    """An approval, a send window or a wave delays the requests of a launch after it was made."""

    def made_before(at: datetime) -> tuple[str, str]:
        made = at - waited * HOUR
        period = Period(made - 24 * HOUR, made)
        launch = make_launch(ledger, range(1, 1_001), period=period, created_at=made, sends_at=made)
        (key,) = send_requests(ledger, launch.launch_key, Accepted(200, 17), at=at)
        return launch.launch_key, key

    earlier = START - timedelta(days=7)
    launch, key = made_before(earlier)
    receive(ledger, key, "delivery", range(1, 901), earlier)
    reconcile_launch(ledger, launch, now=earlier + 2 * HOUR)
    ledger.launches.settle(launch, earlier + 2 * HOUR)
    made_before(START)
    found = finding(ledger, DELIVERIES, START + HOUR)
    assert found.state == "silent"
    assert found.why.endswith("usually about 900 by now")


def test_an_earlier_silence_is_no_yardstick(ledger: Ledger) -> None:
    usual(ledger, delivered=0)
    send(ledger, START, 1_000)
    assert state(ledger, DELIVERIES, START + HOUR) == "silent"


def test_opens_are_expected_only_where_earlier_launches_tell(ledger: Ledger) -> None:
    send(ledger, START, 1_000)
    assert state(ledger, OPENS, START + HOUR) == "cannot tell"
    usual(ledger, delivered=900, opened=200)
    assert state(ledger, OPENS, START + HOUR) == "silent"


def test_another_campaign_is_no_yardstick(ledger: Ledger) -> None:
    usual(ledger, delivered=900, opened=200)
    send(ledger, START, 1_000, name="other")
    assert state(ledger, OPENS, START + HOUR) == "cannot tell"


@pytest.mark.code_decides
def test_only_settled_launches_that_were_sent_before_are_a_yardstick(ledger: Ledger) -> None:
    for hours in (-3, -2, -1, 0, 1):
        at = START + hours * HOUR
        send(ledger, at)
        settle(ledger, at)
        send(ledger, at, name="other")
        send(ledger, at, connection="other")
    unsettled = START - 4 * HOUR
    send(ledger, unsettled)
    key = launch_key("service", "spring", Period(unsettled - 24 * HOUR, unsettled))
    reconcile_launch(ledger, key, now=START)
    launch = ledger.launches.get(launch_key("service", "spring", Period(START - 24 * HOUR, START)))
    found = [each.sent_at for each in ledger.feed_states.earlier(launch, 10)]
    assert found == [START - hours * HOUR for hours in (1, 2, 3)]
    assert [each.sent_at for each in ledger.feed_states.earlier(launch, 2)] == found[:2]


def test_connections_are_judged_apart(ledger: Ledger) -> None:
    receive(ledger, send(ledger, START), "delivery", [1], START)
    send(ledger, START, connection="other")
    assert state(ledger, Feed("other", "delivery"), START + HOUR) == "silent"
    assert state(ledger, DELIVERIES, START + HOUR) == "as expected"


def test_a_receiver_that_was_never_started_is_silent_once_post_backs_were_asked_for(ledger: Ledger) -> None:
    assert state(ledger, RECEIVER, START) == "cannot tell"
    send(ledger, START, people=1)
    assert state(ledger, RECEIVER, START + HOUR) == "silent"


def test_without_post_backs_nothing_is_expected_of_a_receiver(ledger: Ledger) -> None:
    update = {"post_backs": EMAIL.post_backs.model_copy(update={"kinds": ()})}
    send(ledger, START, campaign=EMAIL.model_copy(update=update))
    assert [each.state for each in inspect_feeds(ledger, now=START + HOUR)] == ["cannot tell"]


def test_a_receiver_without_post_backs_is_silent_where_some_certainly_should_have_come(
    ledger: Ledger,
) -> None:
    ledger.post_backs.register_receiver("r", START)
    send(ledger, START, people=49)
    assert state(ledger, RECEIVER, START + 2 * HOUR) == "cannot tell"
    send(ledger, START + HOUR, people=1)
    assert state(ledger, RECEIVER, START + 2 * HOUR) == "silent"
    receive(ledger, "f" * 32, "open", [1], START + 2 * HOUR)  # any post-back shows that the receiver works
    assert state(ledger, RECEIVER, START + 2 * HOUR) == "as expected"


def test_a_recipient_whose_delivery_and_open_are_due_counts_once_for_the_receiver(ledger: Ledger) -> None:
    ledger.post_backs.register_receiver("r", START)
    usual(ledger, delivered=1_000, opened=900)
    send(ledger, START, people=40)
    assert state(ledger, RECEIVER, START + HOUR) == "cannot tell"
    for connection, people in (("service", 10), ("other", 50)):
        send(ledger, START + HOUR, people, connection=connection)
    found = finding(ledger, RECEIVER, START + 2 * HOUR)
    assert found.state == "silent"
    assert "; 60 recipients were sent to since 2026-03-02 10:00 UTC" in found.why


@pytest.mark.code_decides
@pytest.mark.parametrize(
    ("age", "expected"), [(HOUR - timedelta(seconds=1), "as expected"), (HOUR, "cannot tell")]
)
def test_a_post_back_shows_for_an_hour_that_the_receiver_works(
    ledger: Ledger, age: timedelta, expected: str
) -> None:
    receive(ledger, "f" * 32, "open", [1], START)
    assert state(ledger, RECEIVER, START + age) == expected


@pytest.mark.code_decides
@pytest.mark.parametrize(("newest", "expected"), [(timedelta(minutes=59), "silent"), (HOUR, "as expected")])
def test_a_receiver_is_silent_if_what_was_sent_after_its_newest_post_back_is_due(
    ledger: Ledger, newest: timedelta, expected: str
) -> None:
    receive(ledger, "f" * 32, "open", [1], START + newest)
    send(ledger, START + HOUR)
    assert state(ledger, RECEIVER, START + 2 * HOUR) == expected


def test_each_change_is_given_once(ledger: Ledger) -> None:
    key = send(ledger, START)
    ledger.post_backs.register_receiver("r", START)
    now = START + HOUR
    changes = check_feeds(ledger, now=now)
    assert [(each.feed, each.before, each.after) for each in changes] == [
        (RECEIVER, None, "silent"),
        (DELIVERIES, None, "silent"),
    ]
    assert check_feeds(ledger, now=now + HOUR) == []
    receive(ledger, key, "delivery", [1], now + HOUR)
    changes = check_feeds(ledger, now=now + HOUR)
    assert [(each.feed, each.before, each.after) for each in changes] == [
        (RECEIVER, "silent", "as expected"),
        (DELIVERIES, "silent", "as expected"),
    ]
    known = {each.feed: each for each in ledger.feed_states.all()}
    assert known[DELIVERIES].since == now + HOUR


def daily(name: str = "spring", **fields: Any) -> CampaignFolder:
    update = {"schedule": "0 9 * * *", "start": date(2026, 1, 1), **fields}
    return CampaignFolder(name, EMAIL.model_copy(update=update), None, Path(name))


def test_a_campaign_that_is_not_launched_is_reported_once_and_so_is_its_next_launch(ledger: Ledger) -> None:
    campaigns = [daily(), daily("never_launched"), daily("after_another", after=("spring",))]
    for name in ("spring", "after_another"):
        make_launch(ledger, [1], name=name, period=Period(START - 24 * HOUR, START))

    def changes(hours: float) -> list[tuple[str, str | None, str]]:
        found = check_feeds(ledger, campaigns, now=START + timedelta(hours=hours))
        return [(str(each.feed), each.before, each.after) for each in found]

    assert changes(1) == changes(24.9) == []
    assert changes(25) == [("launches of spring", "as expected", "silent")]
    assert changes(26) == changes(49) == changes(73) == []
    assert {each.feed.kind for each in inspect_feeds(ledger, now=START)} == {"receiver"}
    assert ledger.feed_states.states() == {}  # metrics count feeds of post-backs
    why = "the query returned no one"
    entry = NotLaunched(
        "f" * 32, "spring", "Spring", Period(START + 48 * HOUR, START + 72 * HOUR), 0, START, why
    )
    ledger.not_launched.store(entry)
    assert changes(74) == [("launches of spring", "silent", "as expected")]
    (known,) = [each for each in ledger.feed_states.all() if each.feed.connection == "spring"]
    assert known.why == "the newest period ended 2026-03-05 09:00 UTC"


def test_a_renamed_campaign_that_is_not_launched_is_reported(ledger: Ledger) -> None:
    for name in ("spring", "kept"):
        make_launch(ledger, [1], name=name, period=Period(START - 24 * HOUR, START))
    make_launch(ledger, [1], name="kept", period=Period(START, START + 24 * HOUR))
    campaigns = [daily("summer", formerly=("spring", "kept")), daily("kept")]  # the last one still exists
    assert check_feeds(ledger, campaigns, now=START + HOUR) == []
    (change,) = check_feeds(ledger, campaigns, now=START + 25 * HOUR)
    assert (str(change.feed), change.after) == ("launches of summer", "silent")


def test_a_changed_schedule_misses_no_period_that_overlaps_an_earlier_launch(ledger: Ledger) -> None:
    make_launch(ledger, [1], period=Period(START - 24 * HOUR, START))
    later = [daily(schedule="0 8 * * *")]
    for hours in (1, 24, 47.9):
        assert check_feeds(ledger, later, now=START + timedelta(hours=hours)) == []
    (change,) = check_feeds(ledger, later, now=START + 48 * HOUR)
    assert change.why == "no launch for the period that ended 2026-03-04 08:00 UTC"
    assert (
        check_feeds(ledger, [daily(schedule=None), daily(start=date(2027, 1, 1))], now=START + 49 * HOUR)
        == []
    )


def test_as_expected_from_the_first_is_no_change(ledger: Ledger) -> None:
    receive(ledger, send(ledger, START), "delivery", [1], START)
    assert check_feeds(ledger, now=START + HOUR) == []
    assert [each.state for each in ledger.feed_states.all()] == ["as expected"] * 2


def test_a_source_of_which_nothing_can_be_told_any_more_stays_what_it_was(ledger: Ledger) -> None:
    send(ledger, START)
    check_feeds(ledger, now=START + HOUR)
    later = START + timedelta(days=2)
    assert check_feeds(ledger, now=later) == []
    found = finding(ledger, DELIVERIES, later)
    assert (found.state, found.why) == ("cannot tell", "nothing was sent in the last 24 hours")
    assert found.last is not None
    assert (found.last.state, found.last.since) == ("silent", START + HOUR)


def test_of_any_number_who_look_at_once_one_gets_the_change(ledger: Ledger) -> None:
    send(ledger, START)
    start = Barrier(4)

    def check(_: int) -> list[FeedChange]:
        start.wait()
        return check_feeds(ledger, now=START + HOUR)

    with ThreadPoolExecutor(4) as threads:
        changes = [each for found in threads.map(check, range(4)) for each in found]
    assert sorted(each.feed for each in changes) == [RECEIVER, DELIVERIES]


@pytest.mark.parametrize(
    ("before", "after", "is_alarm"),
    [
        (None, "silent", True),
        ("degraded", "silent", True),
        (None, "degraded", True),
        ("as expected", "degraded", True),
        ("silent", "degraded", False),
        ("silent", "as expected", False),
        (None, "as expected", False),
    ],
)
def test_only_a_feed_that_became_worse_raises_an_alarm(
    before: str | None, after: str, is_alarm: bool
) -> None:
    change = FeedChange(OPENS, FeedHealth(before) if before else None, FeedHealth(after), "why")
    assert change.is_alarm == is_alarm
    assert str(change) == f"{OPENS}: {before or 'cannot tell'} -> {after}: why"


def test_requests_that_are_not_sent_yet_are_not_waited_for(ledger: Ledger) -> None:
    made = make_launch(ledger, range(1, 201), size=100, campaign=EMAIL, created_at=START, sends_at=START)
    send_requests(ledger, made.launch_key, Accepted(200, 17), at=START)
    check_feeds(ledger, now=START + HOUR)
    found = finding(ledger, DELIVERIES, START + HOUR)
    assert found.state == "silent"
    assert "100 recipients" in found.why


def test_the_second_of_two_who_saw_the_same_state_changes_nothing(ledger: Ledger) -> None:
    move = ledger.feed_states.move
    assert move(DELIVERIES, None, "silent", "why", START)
    assert not move(DELIVERIES, None, "silent", "why", START + HOUR)
    assert move(DELIVERIES, "silent", "as expected", "why", START + HOUR)
    assert not move(DELIVERIES, "silent", "degraded", "why", START + HOUR)
    (known,) = ledger.feed_states.all()
    assert (known.state, known.since) == ("as expected", START + HOUR)


def test_the_command_shows_what_is_silent_and_alarms_nobody(
    ledger: Ledger, monkeypatch: pytest.MonkeyPatch
) -> None:
    send(ledger, datetime.now(UTC) - 2 * HOUR)
    receive(ledger, "f" * 32, "open", [1, 2], datetime.now(UTC))
    url = ledger._database._engine.url.render_as_string(hide_password=False)
    monkeypatch.setenv("SENDOFF_LEDGER_URL", url)
    shown = CliRunner().invoke(app, ["feeds"], env={"COLUMNS": "200"})
    assert shown.exit_code == 0, shown.output
    assert "deliveries of service" in shown.output
    assert "silent" in shown.output
    assert "parked: 2 post-backs of 1 dispatch that are not in this ledger" in shown.output
    told = json.loads(CliRunner().invoke(app, ["feeds", "--json"]).output)
    assert {"feed": {"connection": "service", "kind": "delivery", "platform": ""}}.items() <= told["feeds"][
        1
    ].items()
    assert told["feeds"][1]["state"] == "silent"
    assert told["orphans"]["post_backs"] == 2
    assert ledger.feed_states.all() == []
    assert [each.feed for each in check_feeds(ledger)] == [DELIVERIES]


def test_no_one_is_silent_before_the_service_sends(ledger: Ledger) -> None:
    send(ledger, START)
    launch = ledger.launches.get(launch_key("service", "spring", Period(START - timedelta(days=1), START)))
    for before, people in ((START - timedelta(microseconds=1), 0), (START, 100)):
        assert count_silence(ledger, launch, before=before, now=START + 2 * HOUR) == (people, people)


def test_requests_with_a_post_back_that_may_hide_a_delivery_are_left_out_of_the_silent(
    ledger: Ledger,
) -> None:
    later = START + HOUR
    for name, sends_at in (("now", START), ("later", later), ("weekly", None)):
        fields: dict[str, Any] = {"name": name, "created_at": START, "sends_at": sends_at}
        key = make_launch(ledger, range(1, 101), size=50, campaign=EMAIL, **fields).launch_key
        first, _ = send_requests(ledger, key, Accepted(200, 17), Accepted(200, 17), at=START)
        launch = ledger.launches.get(key)

        def silent(before: datetime, launch: LaunchRecord = launch) -> tuple[int, int]:
            return count_silence(ledger, launch, before=before, now=later)

        expected = {START: (100, 100), later: (0, 0), None: (0, 0)}[sends_at]
        assert silent(START) == expected
        receive(ledger, first, "delivery", [1, 2], START)
        receive(ledger, first, "open", [2, 3], START)
        assert silent(later) == ((0, 0) if sends_at is None else (100, 97))
        receiver = ledger.post_backs.register_receiver("r", START)
        ledger.post_backs.store(receiver, [(9, PostBack.received("delivery", first, START, b"{"))])
        assert silent(later) == ((0, 0) if sends_at is None else (50, 50))


@pytest.mark.parametrize(
    ("waited", "is_counted"),
    [(timedelta(days=7), True), (timedelta(days=7, microseconds=1), False)],
)
def test_a_request_counts_until_a_week_after_its_launch_was_due(
    ledger: Ledger, waited: timedelta, is_counted: bool
) -> None:
    key = make_accepted(ledger, [1, 2], at=START)
    with ledger._database.write() as db:
        db.execute(sa.update(launches).values(sends_at=START - waited))
    found = ledger.feed_states.sent(START - timedelta(microseconds=1))
    assert found == ({KEY: {key: START}} if is_counted else {})
