"""Journeys on a ledger: who takes each step, who leaves, and when a step is due."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable
from contextlib import closing
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from sendoff.campaign import JourneyFolder, Period, load_journey
from sendoff.dispatch.control import stop
from sendoff.errors import AudienceError, GateError, LateError, NobodyLeftError, NotFoundError, NotYetError
from sendoff.launch import LaunchOptions, prepare_launch, step_due_at
from sendoff.ledger import LaunchRecord, Ledger
from sendoff.postbacks import aggregate, reconcile_launch
from sendoff.states import Accepted, InDoubt

from ...factories import NOW, PERIOD, post_back, send, store

DAY = timedelta(days=1)
AGAIN = {"resend": 1, "reason": "a wrong link"}
STEP = "    message: {title: Hello, text: Welcome}\n    channels: {android_push: {}}\n"
FILE = f"""title: Welcome
connection: service
exits: [{{kind: verdicts, are: [engaged]}}, {{kind: query, file: bought.sql}}]
steps:
  - name: a
{STEP}  - name: b
    wait: {{length: 2, unit: days}}
    when: {{of: a, are: [delivered], unknowable: include}}
{STEP}  - name: c
    when: {{of: b, are: [delivered], unknowable: include}}
{STEP}"""
Step = Callable[..., LaunchRecord]


@pytest.fixture
def shop(tmp_path: Path) -> Path:
    """Return a warehouse with ten devices."""
    file = tmp_path / "shop.db"
    with closing(sqlite3.connect(file)) as db, db:
        db.execute("CREATE TABLE devices (device_id INTEGER, bought INTEGER)")
        db.executemany("INSERT INTO devices VALUES (?, 0)", [(number,) for number in range(1, 11)])
    return file


def buy(shop: Path, device: int) -> None:
    with closing(sqlite3.connect(shop)) as db, db:
        db.execute("UPDATE devices SET bought = 1 WHERE device_id = ?", (device,))


@pytest.fixture
def journey(tmp_path: Path) -> JourneyFolder:
    return load_journey(written(tmp_path, FILE))


def written(tmp_path: Path, text: str) -> Path:
    folder = tmp_path / "welcome"
    folder.mkdir(exist_ok=True)
    (folder / "journey.yaml").write_text(text)
    (folder / "audience.sql").write_text("SELECT device_id FROM devices")
    (folder / "bought.sql").write_text("SELECT device_id FROM devices WHERE bought")
    return folder


@pytest.fixture
def step(ledger: Ledger, journey: JourneyFolder, shop: Path) -> Step:
    """Return a function that freezes a step for a period."""

    def freeze(
        number: int, period: Period = PERIOD, of: JourneyFolder = journey, **options: Any
    ) -> LaunchRecord:
        url = f"sqlite:///{shop}"
        folder = of.campaigns[number]
        how = LaunchOptions(**options)
        return prepare_launch(ledger, folder, period=period, warehouses=lambda _: url, options=how, now=NOW)

    return freeze


def sent(ledger: Ledger, launch: LaunchRecord) -> tuple[str, list[int]]:
    """Send a launch of one request, and return its dispatch and recipients."""
    (dispatch,) = send(ledger, launch.launch_key, Accepted(200, 17))
    return dispatch, sorted(map(int, ledger.launches.sent(launch.launch_key)))


@pytest.mark.promise("steps/once")
def test_each_takes_a_step_at_most_once_and_leaves_when_an_exit_holds(
    ledger: Ledger, step: Step, shop: Path
) -> None:
    dispatch, people = sent(ledger, step(0))
    assert people == list(range(1, 11))
    store(ledger, *(post_back(dispatch, "open", who) for who in (1, 2)), post_back(dispatch, "delivery", 3))
    buy(shop, 8)
    dispatch, people = sent(ledger, step(1))
    assert people == [3, 4, 5, 6, 7, 9, 10]
    store(ledger, post_back(dispatch, "open", 4))
    first = ledger.launches.search(campaign="welcome.a")[0]
    (of_first,) = ledger.dispatch_queries.of_launch(first.launch_key)
    store(ledger, post_back(of_first.dispatch_key, "open", 5))  # late, of an earlier step than the one before
    assert sent(ledger, step(2))[1] == [3, 6, 7, 9, 10]
    later = Period(PERIOD.start + DAY, PERIOD.end + DAY)
    with pytest.raises(NobodyLeftError, match=r"1 query bought.sql, 9 took it before"):
        step(0, later)


def test_a_step_before_the_earlier_one_names_the_step_to_send_first(step: Step) -> None:
    with pytest.raises(NotFoundError, match=r"welcome.a has no launch .*\. Send step a first$"):
        step(1)


@pytest.mark.promise("steps/exits")
def test_an_exit_counts_until_the_request_is_claimed(ledger: Ledger, step: Step) -> None:
    of_a, _ = sent(ledger, step(0))
    of_b, _ = sent(ledger, step(1))
    launch = step(2)
    assert {source.leaves_out for source in ledger.launches.sources(launch.launch_key)} == {("engaged",)}
    store(ledger, post_back(of_a, "open", 1), post_back(of_b, "open", 2))
    aggregate(ledger, now=NOW)
    claim = ledger.dispatches.claim(launch.launch_key, worker="w", now=NOW, lease=DAY)
    assert claim
    assert list(claim.content.identifiers or ()) == list(range(3, 11))
    ledger.dispatches.record(claim, Accepted(200, 18), NOW)
    assert reconcile_launch(ledger, launch.launch_key, now=NOW).not_sent_because == {"opened since": 2}


def test_who_begins_again_is_said_in_the_file(ledger: Ledger, step: Step, tmp_path: Path) -> None:
    again = FILE.replace("steps:", "again: {length: 1, unit: days}\nsteps:", 1)
    journey = load_journey(written(tmp_path, again))
    sent(ledger, step(0, of=journey))
    later = Period(PERIOD.start + 2 * DAY, PERIOD.end + 2 * DAY)
    with pytest.raises(NobodyLeftError):
        step(0, later, journey)
    folder = journey.campaigns[0]
    launch = prepare_launch(
        ledger,
        folder,
        period=later,
        warehouses=lambda _: f"sqlite:///{tmp_path / 'shop.db'}",
        options=LaunchOptions(),
        now=NOW + 2 * DAY,
    )
    assert launch.audience == 10


@pytest.mark.parametrize(
    ("column", "later"),
    [
        (
            "language",
            "    language: en\n    channels: {sms: {sender: Shop, text: Hi, translations: {de: {text: Moin}}}}\n",
        ),
        (
            "time_zone",
            STEP
            + "    gates: {window: {earliest: '09:00', latest: '10:00', time_zone: query, default_time_zone: UTC}}\n",
        ),
    ],
)
def test_the_first_step_keeps_the_columns_that_a_later_one_needs(
    ledger: Ledger, step: Step, tmp_path: Path, column: str, later: str
) -> None:
    text = FILE.partition("  - name: c")[0]
    folder = written(tmp_path, text[: text.rindex(STEP)] + later)
    with pytest.raises(
        AudienceError, match=rf"welcome[.]a: audience[.]sql: step b: .* no column {column}; add"
    ):
        step(0, of=load_journey(folder))
    values = {"language": "CASE device_id % 2 WHEN 0 THEN 'de' ELSE 'en' END", "time_zone": "'Asia/Tokyo'"}
    (folder / "audience.sql").write_text(f"SELECT device_id, {values[column]} AS {column} FROM devices")
    journey = load_journey(folder)
    dispatch, _ = sent(ledger, step(0, of=journey))
    store(ledger, post_back(dispatch, "delivery", 3), post_back(dispatch, "delivery", 4))
    launch = step(1, of=journey)
    groups = ledger.launches.groups(launch.launch_key, column)
    assert sum(map(len, groups.values())) == launch.audience
    assert launch.segments == (2 if column == "language" else 1)


def test_a_step_is_due_after_its_wait_since_the_earlier_step_was_sent(
    ledger: Ledger, journey: JourneyFolder, step: Step
) -> None:
    assert step_due_at(ledger, journey, 0, PERIOD) is None
    for number in (1, 2):
        with pytest.raises(
            GateError, match=r"step b: the step welcome.a has no launch for this period\. Send"
        ):
            step_due_at(ledger, journey, number, PERIOD)
    launch = step(0)
    with pytest.raises(NotYetError, match=r"is not sent completely") as early:
        step_due_at(ledger, journey, 1, PERIOD)
    assert early.value.until > datetime.now(UTC)  # however long nothing was sent
    send(ledger, launch.launch_key, Accepted(200, 17), at=NOW + timedelta(hours=3))
    assert step_due_at(ledger, journey, 1, PERIOD) == NOW + timedelta(hours=3) + 2 * DAY
    with pytest.raises(GateError, match=r"step c: the step welcome.b has no launch"):
        step_due_at(ledger, journey, 2, PERIOD)


def test_no_step_is_due_after_one_without_recipients(
    ledger: Ledger, journey: JourneyFolder, step: Step, shop: Path
) -> None:
    with closing(sqlite3.connect(shop)) as db, db:
        db.execute("DELETE FROM devices")
    with pytest.raises(NobodyLeftError):
        step(0)
    for number in (1, 2):
        with pytest.raises(NobodyLeftError, match=r"the step welcome.a was sent to no one in this period"):
            step_due_at(ledger, journey, number, PERIOD)


@pytest.mark.promise("steps/once")
@pytest.mark.parametrize("is_stopped", [False, True])
def test_a_step_takes_no_recipients_of_another_period_that_ends_in_its_own(
    ledger: Ledger, step: Step, shop: Path, is_stopped: bool
) -> None:
    """The schedule was changed, or a person sent a longer period from a shell."""
    day, week = Period(PERIOD.end - DAY, PERIOD.end), Period(PERIOD.end - 7 * DAY, PERIOD.end)
    sent(ledger, step(0, day))
    with closing(sqlite3.connect(shop)) as db, db:
        db.execute("INSERT INTO devices VALUES (11, 0)")
    launch = step(0, week)
    if is_stopped:
        stop(ledger, launch.launch_key, "ann", "a wrong link", now=NOW)
        with pytest.raises(
            NobodyLeftError, match=r"audience.source: step a was sent to no one in this period"
        ):
            step(1, week)
    else:
        sent(ledger, launch)
        assert sent(ledger, step(1, week))[1] == [11]
    assert sent(ledger, step(1, day))[1] == list(range(1, 11))


def test_no_step_is_due_after_one_that_was_stopped_before_its_first_request(
    ledger: Ledger, journey: JourneyFolder, step: Step
) -> None:
    stop(ledger, step(0).launch_key, "ann", "a wrong link", now=NOW)
    with pytest.raises(NobodyLeftError, match=r"was sent to no one"):
        step_due_at(ledger, journey, 1, PERIOD)


@pytest.mark.parametrize("is_first", [False, True])
def test_a_step_sent_again_after_a_stop_or_with_its_first_launch_is_the_earlier_step(
    ledger: Ledger, journey: JourneyFolder, step: Step, is_first: bool
) -> None:
    if not is_first:
        stop(ledger, step(0).launch_key, "ann", "a wrong link", now=NOW)
    sent(ledger, step(0, **AGAIN))
    if is_first:
        with pytest.raises(LateError, match="already sent with a resend number"):
            step(0)
    assert step_due_at(ledger, journey, 1, PERIOD) == NOW + 2 * DAY
    assert step(1).audience == 10


def test_the_wait_begins_when_the_last_resend_of_the_earlier_step_was_sent(
    ledger: Ledger, journey: JourneyFolder, step: Step
) -> None:
    sent(ledger, step(0, size_limit=4))
    rest = step(0, only_unsent=True, **AGAIN).launch_key
    with pytest.raises(NotYetError, match=f"launch {rest} is not sent completely"):
        step_due_at(ledger, journey, 1, PERIOD)
    send(ledger, rest, Accepted(200, 18), at=NOW + DAY)
    assert step_due_at(ledger, journey, 1, PERIOD) == NOW + 3 * DAY
    stop(ledger, step(0, **(AGAIN | {"resend": 2})).launch_key, "ann", "no", now=NOW + 2 * DAY)
    assert step_due_at(ledger, journey, 1, PERIOD) == NOW + 3 * DAY


def test_a_doubt_that_is_settled_later_does_not_delay_the_next_step(
    ledger: Ledger, journey: JourneyFolder, step: Step
) -> None:
    (dispatch,) = send(ledger, step(0).launch_key, InDoubt("no answer"))
    assert ledger.doubts.accept(dispatch, 17, "the service lists it", NOW + DAY)
    assert step_due_at(ledger, journey, 1, PERIOD) == NOW + 2 * DAY
