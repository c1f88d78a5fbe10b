"""The rules of an audience: the recipients that each leaves out, in order, and notes on launches not compared."""

from __future__ import annotations

import logging
import sqlite3
from collections.abc import Callable, Iterable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from sendoff.audience.bucketing import sample, sample_exactly
from sendoff.audience.build import Audience
from sendoff.audience.identifiers import Identifiers, empty, integers, strings, union
from sendoff.audience.segmentation import Segment
from sendoff.campaign import Campaign, CampaignFolder, Period
from sendoff.errors import AudienceError, QueryError, UsageError
from sendoff.launch.plan import LaunchOptions, Plan, plan_launch, prepare_launch
from sendoff.launch.suppression import apply_rules
from sendoff.ledger import Ledger, SuppressionChange
from sendoff.ledger.launches.launch_record import LaunchRecord
from sendoff.states import Accepted, Refused

from ...factories import NOW, PERIOD, make_launch

DAY = timedelta(days=1)
PEOPLE = integers(range(1, 11))
SQL = "SELECT device_id FROM devices WHERE seen < :period_end"


def campaign(audience: dict[str, Any] | None = None, **fields: Any) -> Campaign:
    return Campaign.model_validate(
        {
            "title": "Spring",
            "message": {"title": "Hello", "text": "It is spring"},
            "channels": {"android_push": {}},
            "connection": "service",
            "segment_size": 3,
            "audience": audience or {},
            **fields,
        }
    )


@pytest.fixture
def warehouse(tmp_path: Path) -> str:
    """A warehouse with ten devices, two of them returned (2 and 3), and users."""
    file = tmp_path / "warehouse.db"
    with sqlite3.connect(file) as db:
        db.executescript("""
            CREATE TABLE devices (device_id INTEGER, seen TEXT);
            CREATE TABLE returned (Device_ID INTEGER, platform TEXT, day TEXT);
            CREATE TABLE users (user_id TEXT);
            INSERT INTO returned VALUES
                (2, 'ios', '2026-03-01 00:00:00'),
                (3, 'ios', '2026-03-01 12:00:00'),
                (NULL, 'ios', '2026-03-01 12:00:00'),
                (77, NULL, '2026-03-01 12:00:00'),
                (9, 'ios', '2026-02-01 00:00:00');
            INSERT INTO users VALUES ('ann'), ('zoë');
        """)
        db.executemany("INSERT INTO devices VALUES (?, '2026-02-01 00:00:00')", [(n,) for n in PEOPLE])
    db.close()
    return f"sqlite:///{file}"


@pytest.fixture
def plan(tmp_path: Path, warehouse: str) -> Callable[..., Plan]:
    def make(
        audience: dict[str, Any] | None = None,
        *,
        ledger: Ledger | None = None,
        files: dict[str, str] | None = None,
        sql: str = SQL,
        size_limit: int | None = None,
        warehouses: Callable[[str], str] = lambda _: warehouse,
        **fields: Any,
    ) -> Plan:
        return plan_launch(
            ledger,
            folder(tmp_path, audience, files=files, sql=sql, **fields),
            period=PERIOD,
            warehouses=warehouses,
            options=LaunchOptions(size_limit=size_limit),
            now=NOW,
        )

    return make


def folder(
    tmp_path: Path,
    audience: dict[str, Any] | None = None,
    *,
    files: dict[str, str] | None = None,
    sql: str = SQL,
    name: str = "spring",
    **fields: Any,
) -> CampaignFolder:
    for file, text in (files or {}).items():
        (tmp_path / file).write_text(text, encoding="utf-8")
    queries = {file: text for file, text in (files or {}).items() if file.endswith(".sql")}
    return CampaignFolder(name, campaign(audience, **fields), sql, tmp_path, queries)


def other(
    ledger: Ledger,
    name: str,
    people: Identifiers | None,
    sends_at: datetime | None = NOW,
    *,
    made: Campaign | None = None,
    connection: str = "service",
    state: str = "released",
    left_out: dict[str, Identifiers] | None = None,
    number: int = 0,
    waits: bool = False,
    period: Period = PERIOD,
) -> LaunchRecord:
    """Freeze a launch of another campaign, and accept its requests if ``sends_at`` is past.

    Without ``people``, the service chooses the recipients.
    """
    is_named = people is not None
    people = people if people is not None else empty("integer")
    identified_by = "device_id" if people.kind == "integer" else "user_id"
    audience = Audience(identified_by, people, len(people), {}, {})
    launch = make_launch(
        ledger,
        segments=[Segment(part) for part in people.slices(3)] if is_named else [Segment(None)],
        audience=audience if is_named else None,
        campaign=(made or campaign()),
        name=name,
        connection=connection,
        period=period,
        resend=number,
        sends_at=sends_at,
        state=state,
        suppressed=left_out,
    )
    while sends_at is not None and sends_at < NOW and not waits and accept(ledger, launch, sends_at):
        pass
    return launch


def accept(ledger: Ledger, launch: LaunchRecord, at: datetime) -> bool:
    """Record the next dispatch of a launch as accepted, and return whether there was one."""
    claim = ledger.dispatches.claim(launch.launch_key, worker="w", now=at, lease=DAY)
    if claim is not None:
        ledger.dispatches.record(claim, Accepted(200, 1), at)
    return claim is not None


def sent(plan: Plan) -> list[Any]:
    return sorted(each for segment in plan.segments for each in segment.identifiers or ())


def left_out(plan: Plan) -> dict[str, list[Any]]:
    return {reason: list(people) for reason, people in plan.suppressed.items()}


def exclude(**exclusion: Any) -> dict[str, Any]:
    return {"exclude": [exclusion]}


# Queries and files


def test_the_people_of_another_query_are_left_out_with_the_same_parameters(plan: Callable[..., Plan]) -> None:
    returned = "SELECT Device_ID, platform FROM returned WHERE day >= :period_start"
    made = plan(exclude(kind="query", file="returned.sql"), files={"returned.sql": returned})
    assert left_out(made) == {"query returned.sql": [2, 3]}  # a null and an unknown device are ignored
    assert sent(made) == [1, 4, 5, 6, 7, 8, 9, 10]
    assert made.audience is not None
    assert (made.audience.rows, made.audience.dropped["query returned.sql"]) == (10, 2)
    assert not made.not_compared


def test_a_query_of_exclusion_runs_on_its_own_warehouse(
    plan: Callable[..., Plan], warehouse: str, tmp_path: Path
) -> None:
    with sqlite3.connect(tmp_path / "support.db") as db:
        db.execute("CREATE TABLE open AS SELECT 5 AS device_id")
    db.close()
    asked = {"sendoff_warehouse": warehouse, "support": f"sqlite:///{tmp_path / 'support.db'}"}
    made = plan(
        exclude(kind="query", file="open.sql", warehouse="support", reason="open case"),
        files={"open.sql": "SELECT device_id FROM open"},
        warehouses=asked.__getitem__,
    )
    assert left_out(made) == {"open case": [5]}
    made = plan(
        exclude(kind="query", file="returned.sql", reason="returned"),
        files={"returned.sql": "SELECT device_id FROM returned"},
        warehouses=asked.__getitem__,
    )
    assert left_out(made) == {"returned": [2, 3, 9]}


# Mistakes in an exclusion's query or file, and their errors.
WRONG = [
    ("x.sql", "SELECT user_id FROM users", "x.sql: found the identifier column user_id. Use device_id"),
    ("x.sql", "SELECT day FROM returned", "x.sql: the query has no identifier column"),
    ("x.sql", "SELECT CAST('a' AS TEXT) AS device_id", "x.sql: column device_id must contain whole numbers"),
    ("x.csv", "device\n4711\n", "x.csv: found no column device_id"),
    (
        "x.csv",
        "device_id\nann4711\n",
        "x.csv, line 2: the value in the column device_id is not a whole number",
    ),
]


@pytest.mark.parametrize(("file", "text", "said"), WRONG)
def test_people_who_are_not_named_as_the_audience_is_are_told_with_their_file(
    plan: Callable[..., Plan], file: str, text: str, said: str
) -> None:
    kind = "query" if file.endswith(".sql") else "file"
    with pytest.raises(AudienceError, match=said) as error:
        plan(exclude(kind=kind, file=file), files={file: text})
    assert "4711" not in str(error.value)


def test_a_broken_query_of_exclusion_is_told_with_its_file(plan: Callable[..., Plan]) -> None:
    with pytest.raises(QueryError, match=r"^campaign \w+: x.sql: the warehouse said"):
        plan(exclude(kind="query", file="x.sql"), files={"x.sql": "SELECT device_id FROM nowhere"})


def test_the_people_of_a_file_are_left_out(plan: Callable[..., Plan]) -> None:
    made = plan(
        exclude(kind="file", file="staff.csv"), files={"staff.csv": "name,DEVICE_ID\nann,7\nbob,\nzoë,99\n"}
    )
    assert left_out(made) == {"file staff.csv": [7]}


def test_texts_are_left_out_as_numbers_are(plan: Callable[..., Plan]) -> None:
    made = plan(
        exclude(kind="file", file="staff.csv"),
        files={"staff.csv": "user_id\nzoë\n"},
        sql="SELECT user_id FROM users",
        template={"id": 7, "channels": ["email"]},
        message=None,
        channels={},
    )
    assert (left_out(made), sent(made)) == ({"file staff.csv": ["zoë"]}, ["ann"])


def test_who_is_in_two_exclusions_counts_for_the_first_and_one_reason_may_have_two(
    plan: Callable[..., Plan],
) -> None:
    files = {"a.csv": "device_id\n1\n2\n", "b.csv": "device_id\n2\n3\n", "c.csv": "device_id\n3\n4\n"}
    rules = {
        "exclude": [
            {"kind": "file", "file": "a.csv", "reason": "staff"},
            {"kind": "file", "file": "b.csv"},
            {"kind": "file", "file": "c.csv", "reason": "staff"},
        ]
    }
    made = plan(rules, files=files)
    assert left_out(made) == {"staff": [1, 2, 4], "file b.csv": [3]}
    assert made.audience is not None
    assert {reason: count for reason, count in made.audience.dropped.items() if count} == {
        "staff": 3,
        "file b.csv": 1,
    }


# Lists


def test_the_people_of_an_uploaded_list_are_left_out(plan: Callable[..., Plan], ledger: Ledger) -> None:
    ledger.uploaded_lists.store("complaints", "device_id", integers([3, 99]), "ann", NOW)
    assert left_out(plan(exclude(kind="list", name="complaints"), ledger=ledger)) == {"list complaints": [3]}


def test_a_list_that_is_not_there_is_an_error_that_says_how_to_upload_it(
    plan: Callable[..., Plan], ledger: Ledger
) -> None:
    with pytest.raises(
        AudienceError, match="no list 'complaints'; upload it: sendoff lists upload complaints"
    ):
        plan(exclude(kind="list", name="complaints"), ledger=ledger)


@pytest.mark.parametrize(
    ("column", "value", "option"),
    [
        ("device_id", "device_id", "--column device_id"),
        ("device_token", "device_id", "--column device_token --numbers"),
        ("device_token", "device_id || ''", "--column device_token"),
    ],
)
def test_a_list_of_other_people_is_an_error(
    plan: Callable[..., Plan], ledger: Ledger, column: str, value: str, option: str
) -> None:
    ledger.uploaded_lists.store("complaints", "user_id", strings(["ann"]), "ann", NOW)
    with pytest.raises(AudienceError) as error:
        plan(
            exclude(kind="list", name="complaints"),
            ledger=ledger,
            sql=f"SELECT {value} AS {column} FROM devices",
        )
    assert str(error.value) == (
        "campaign spring: list complaints: found the identifier column user_id. "
        f"Use {column}, as in the audience. Upload the list again with {option}"
    )


@pytest.mark.parametrize(
    ("people", "token", "found"),
    [
        (
            strings(["7"]),
            "device_id",
            "text. Use whole numbers, as in the audience. Upload the list again with --numbers",
        ),
        (
            integers([7]),
            "device_id || ''",
            "whole numbers. Use text, as in the audience. Upload the list again without --numbers",
        ),
    ],
)
def test_tokens_that_are_texts_are_not_compared_with_tokens_that_are_numbers(
    plan: Callable[..., Plan], ledger: Ledger, people: Identifiers, token: str, found: str
) -> None:
    ledger.uploaded_lists.store("complaints", "device_token", people, "ann", NOW)
    with pytest.raises(AudienceError) as error:
        plan(
            exclude(kind="list", name="complaints"),
            ledger=ledger,
            sql=f"SELECT {token} AS device_token FROM devices",
        )
    assert str(error.value) == f"campaign spring: list complaints: found device_token as {found}"


# Other campaigns


def test_whom_another_campaign_was_sent_to_in_so_many_days_is_left_out(
    plan: Callable[..., Plan], ledger: Ledger
) -> None:
    since = NOW - 7 * DAY + timedelta(hours=2)
    other(ledger, "winter", integers([1]), since)  # a moment too long ago
    other(ledger, "winter", integers([2]), since + timedelta(seconds=1), number=1)
    other(ledger, "winter", integers([3]), NOW + 2 * DAY, number=2)  # planned for later
    other(ledger, "autumn", integers([4]))
    other(ledger, "winter", integers([5]), connection="other")
    made = plan(exclude(kind="campaign", name="winter", days=7), ledger=ledger)
    assert left_out(made) == {"campaign winter": [2, 3]}
    assert not made.not_compared


@pytest.mark.parametrize(
    "rules", [{"cap": {"messages": 1, "days": 7}}, exclude(kind="campaign", name="winter", days=7)]
)
@pytest.mark.parametrize(
    "sooner", [timedelta(minutes=5), timedelta(hours=1, minutes=5)]
)  # clocks went forward
def test_a_weekly_campaign_reaches_everyone_each_week_even_if_it_starts_a_little_sooner(
    plan: Callable[..., Plan], ledger: Ledger, rules: dict[str, Any], sooner: timedelta
) -> None:
    other(ledger, "winter", integers([1]), NOW - 7 * DAY + sooner)
    assert [people for people in left_out(plan(rules, ledger=ledger)).values() if people] == []


def test_a_period_that_is_sent_again_on_purpose_does_not_leave_out_its_own_recipients(
    plan: Callable[..., Plan], ledger: Ledger
) -> None:
    before = Period(PERIOD.start - DAY, PERIOD.start)
    other(ledger, "spring", integers([1]), NOW - DAY, period=before)
    other(ledger, "spring", integers([2]), NOW - DAY)
    made = plan(exclude(kind="campaign", name="spring", days=7), ledger=ledger)
    assert left_out(made) == {"campaign spring": [1]}


def test_a_campaign_of_which_there_is_no_launch_leaves_out_nobody_and_that_is_told(
    plan: Callable[..., Plan], ledger: Ledger
) -> None:
    other(ledger, "winter", integers([1]))
    other(ledger, "wintre", integers([2]), connection="other")
    made = plan(exclude(kind="campaign", name="wintre", days=7), ledger=ledger)
    assert left_out(made) == {"campaign wintre": []}
    assert tuple(made.not_compared) == (
        "campaign wintre leaves out no one: the ledger has no launch of that campaign on service",
    )


def test_the_first_launch_of_a_campaign_that_leaves_out_its_own_recipients_is_nothing_special(
    plan: Callable[..., Plan], ledger: Ledger, caplog: pytest.LogCaptureFixture
) -> None:
    made = plan(exclude(kind="campaign", name="spring", days=7), ledger=ledger)
    assert (left_out(made), made.not_compared) == ({"campaign spring": []}, {})
    assert caplog.messages == []


def test_who_was_refused_or_held_out_was_not_sent_to(plan: Callable[..., Plan], ledger: Ledger) -> None:
    launch = other(ledger, "winter", integers([1, 2, 3, 4]), left_out={"holdout": integers([9])})
    for outcome in (Refused(400, "no"), Accepted(200, 1)):
        claim = ledger.dispatches.claim(launch.launch_key, worker="w", now=NOW, lease=DAY)
        assert claim is not None
        ledger.dispatches.record(claim, outcome, NOW)
    made = plan(exclude(kind="campaign", name="winter", days=7), ledger=ledger)
    assert left_out(made) == {"campaign winter": [4]}


def test_what_cannot_be_compared_is_told_by_the_name_of_its_campaign_and_leaves_nobody_out(
    plan: Callable[..., Plan], ledger: Ledger, caplog: pytest.LogCaptureFixture
) -> None:
    weekly = {"kind": "recurring", "time": "09:00", "time_zone": "UTC", "start": "2026-01-05"}
    other(ledger, "by_user", strings(["ann4711"]))
    other(ledger, "chosen", None)
    other(ledger, "weekly", PEOPLE, None, made=campaign(send={**weekly, "end": "never"}))
    other(ledger, "last", PEOPLE, None, made=campaign(send={**weekly, "end": "2026-02-22"}))
    other(ledger, "over", PEOPLE, None, made=campaign(send={**weekly, "end": "2026-02-21"}))
    with caplog.at_level(logging.WARNING):
        made = plan({"cap": {"messages": 1, "days": 7}}, ledger=ledger)
    assert left_out(made) == {"cap": []}
    both = "it identifies people by user_id (string), this one by device_id (integer)"
    assert sorted(made.not_compared) == [
        f"cap does not count campaign by_user: {both}, so they cannot be compared",
        "cap does not count campaign chosen: the service chooses its recipients",
        "cap does not count campaign last: the service sends it repeatedly, at times that are not known",
        "cap does not count campaign weekly: the service sends it repeatedly, at times that are not known",
    ]
    assert len(caplog.records) == 4
    assert "4711" not in caplog.text


def test_without_a_ledger_what_needs_it_is_told(plan: Callable[..., Plan]) -> None:
    rules = {
        "exclude": [
            {"kind": "list", "name": "complaints"},
            {"kind": "campaign", "name": "winter", "days": 7},
            {"kind": "file", "file": "staff.csv"},
        ],
        "priority": {"rank": 1},
        "cap": {"messages": 1, "days": 7},
    }
    made = plan(rules, files={"staff.csv": "device_id\n7\n"}, size_limit=4)
    assert tuple(made.not_compared) == tuple(
        f"{reason} was not applied: no ledger was given"
        for reason in ("list complaints", "campaign winter", "priority", "cap")
    )
    assert {reason: len(people) for reason, people in made.suppressed.items()} == {
        "file staff.csv": 1,
        "size_limit": 5,
    }


# The cap


def test_who_has_as_many_messages_as_the_cap_allows_gets_no_more(
    plan: Callable[..., Plan], ledger: Ledger
) -> None:
    other(ledger, "a", integers([1, 2, 3, 99]))
    other(ledger, "b", integers([2, 3, 4]), NOW - DAY)
    other(ledger, "spring", integers([3]), NOW - 2 * DAY, number=1)  # an earlier launch of its own counts
    other(ledger, "c", PEOPLE, NOW - 7 * DAY)  # a moment too long ago
    for messages, expected in [(1, [1, 2, 3, 4]), (2, [2, 3]), (3, [3]), (4, []), (2**31 - 1, [])]:
        made = plan({"cap": {"messages": messages, "days": 7}}, ledger=ledger)
        assert left_out(made) == {"cap": expected}


@pytest.mark.parametrize(
    ("scope", "expected"),
    [
        (None, [2, 3, 4]),
        ("account", [2, 3, 4]),
        ("everything", [1, 2, 3, 4]),
        ("topic:news", [3]),
        ("channel:sms", [4]),
    ],
)
def test_a_cap_counts_the_messages_of_its_scope(
    plan: Callable[..., Plan], ledger: Ledger, scope: str | None, expected: list[int]
) -> None:
    other(ledger, "receipt", integers([1, 2]), made=campaign(transactional="order confirmations"))
    other(ledger, "winter", integers([2]))
    other(ledger, "newsletter", integers([3]), made=campaign(topic="news"))
    other(
        ledger,
        "code",
        integers([4]),
        made=campaign(channels={"android_push": {}, "sms": {"text": "Spring", "sender": "Shop"}}),
    )
    cap = {"messages": 1, "days": 7} | ({"scope": scope} if scope else {})
    assert left_out(plan({"cap": cap}, ledger=ledger)) == {"cap": expected}


def test_each_of_several_caps_holds(plan: Callable[..., Plan], ledger: Ledger) -> None:
    other(ledger, "today", integers([1, 2]))
    other(ledger, "before", integers([2, 3]), NOW - 3 * DAY)
    other(ledger, "long before", integers([3]), NOW - 4 * DAY)
    caps = [{"messages": 1, "days": 1}, {"messages": 2, "days": 7}]
    assert left_out(plan({"cap": caps}, ledger=ledger)) == {"cap": [1, 2, 3]}


def test_messages_that_are_due_later_count_in_every_stretch_of_days(
    plan: Callable[..., Plan], ledger: Ledger
) -> None:
    """With a cap of two in seven days, one message before and one after are too many only within seven days."""
    other(ledger, "before", integers([1, 2, 3]), NOW - 4 * DAY)
    other(ledger, "soon", integers([1, 4]), NOW + 2 * DAY)
    other(ledger, "later", integers([2, 4]), NOW + 5 * DAY)
    other(ledger, "much later", PEOPLE, NOW + 7 * DAY)
    other(ledger, "much later", PEOPLE, NOW + 8 * DAY, number=1)
    made = plan({"cap": {"messages": 2, "days": 7}}, ledger=ledger)
    assert left_out(made) == {"cap": [1, 4]}


def test_the_moment_that_counts_is_that_at_which_the_service_sends(
    plan: Callable[..., Plan], ledger: Ledger
) -> None:
    other(ledger, "a", integers([1]), NOW - DAY - timedelta(hours=1))
    once = {"kind": "once", "time": "09:30", "time_zone": "UTC"}
    rules = {"cap": {"messages": 1, "days": 1}}
    assert left_out(plan(rules, ledger=ledger, send={**once, "date": "2026-03-02"})) == {"cap": []}
    other(ledger, "b", integers([2]), NOW - DAY + timedelta(hours=3))
    assert left_out(plan(rules, ledger=ledger, send={**once, "date": "2026-03-02"})) == {"cap": [2]}
    assert left_out(plan(rules, ledger=ledger, send={**once, "date": "2026-03-04"})) == {"cap": []}
    each_day = {
        "kind": "recurring",
        "time": "20:30",
        "time_zone": "UTC",
        "start": "2026-03-02",
        "end": "never",
    }
    assert left_out(plan(rules, ledger=ledger, send=each_day)) == {"cap": [2]}


@pytest.mark.parametrize("state", ["held", "released", "paused"])
def test_what_is_to_be_sent_at_once_and_waits_counts_as_sent_now(
    plan: Callable[..., Plan], ledger: Ledger, state: str
) -> None:
    long_ago = NOW - 9 * DAY
    better = campaign({"priority": {"rank": 1}})
    other(ledger, "winter", integers([1, 2]), long_ago, made=better, state=state, waits=True)
    other(ledger, "winter", integers([3]), long_ago, made=better, state="stopped", waits=True, number=1)
    other(ledger, "winter", integers([4]), long_ago, made=better, number=2)  # it did not wait
    at = {"kind": "once", "time": "09:30", "time_zone": "UTC", "date": "2026-03-20"}
    other(
        ledger, "winter", integers([5]), long_ago, made=campaign(send=at), state=state, waits=True, number=3
    )
    for rules, reason in [
        ({"cap": {"messages": 1, "days": 7}}, "cap"),
        ({"priority": {"rank": 2}}, "priority"),
        (exclude(kind="campaign", name="winter", days=7), "campaign winter"),
    ]:
        assert left_out(plan(rules, ledger=ledger)) == {reason: [1, 2]}


def test_what_is_in_flight_counts_as_sent_now_and_what_is_accepted_by_its_plan(
    plan: Callable[..., Plan], ledger: Ledger
) -> None:
    winter = other(ledger, "winter", integers([1, 2]), NOW - 9 * DAY, waits=True)
    claim = ledger.dispatches.claim(winter.launch_key, worker="w", now=NOW, lease=DAY)
    assert claim is not None
    rules = {"cap": {"messages": 1, "days": 7}}
    assert left_out(plan(rules, ledger=ledger)) == {"cap": [1, 2]}
    ledger.dispatches.record(claim, Accepted(200, 1), NOW)
    assert left_out(plan(rules, ledger=ledger)) == {"cap": []}


# Priority


def test_whom_a_better_campaign_of_the_same_day_is_sent_to_is_left_out(
    plan: Callable[..., Plan], ledger: Ledger
) -> None:
    midnight = datetime(2026, 3, 2, tzinfo=UTC)

    def competitor(name: str, person: int, at: datetime, number: int = 0, **priority: Any) -> None:
        made = campaign({"priority": priority} if priority else None)
        other(ledger, name, integers([person]), at, made=made, number=number)

    competitor("better", 1, midnight, rank=1)
    competitor("equal", 2, midnight + DAY - timedelta(seconds=1), rank=2)
    competitor("worse", 3, NOW, rank=3)
    competitor("other group", 4, NOW, rank=1, group="news")
    competitor("no rank", 5, NOW)
    competitor("yesterday", 6, midnight - timedelta(seconds=1), rank=1)
    competitor("tomorrow", 7, midnight + DAY, rank=1)
    competitor("spring", 8, NOW, number=1, rank=1)  # its own earlier launch is no competitor
    made = plan({"priority": {"rank": 2}}, ledger=ledger)
    assert left_out(made) == {"priority": [1, 2]}
    assert left_out(plan({"priority": {"rank": 9, "group": "news"}}, ledger=ledger)) == {"priority": [4]}


# Size limit and holdout


def test_a_size_limit_keeps_exactly_so_many_always_the_same(plan: Callable[..., Plan]) -> None:
    made = plan(size_limit=4)
    assert sent(made) == list(sample_exactly(PEOPLE, "size limit", 4))
    assert len(sent(made)) == 4
    assert list(made.suppressed) == ["size_limit"]
    assert left_out(plan(size_limit=10)) == {"size_limit": []}
    with pytest.raises(UsageError, match=r"size_limit: found 0\. Use a whole number from 1"):
        plan(size_limit=0)


def test_a_size_limit_does_not_hold_for_people_whom_the_service_chooses(tmp_path: Path) -> None:
    made = campaign(targeting={"kind": "broadcast"})
    everybody = CampaignFolder("spring", made, None, tmp_path)
    with pytest.raises(AudienceError, match="a size limit is not possible"):
        plan_launch(
            None, everybody, period=PERIOD, warehouses=str, options=LaunchOptions(size_limit=5), now=NOW
        )


def test_a_holdout_stays_in_the_audience_and_is_in_no_segment(plan: Callable[..., Plan]) -> None:
    made = plan({"holdout": {"percent": 40}})
    expected = sample(PEOPLE, "holdout spring", 40)
    assert 0 < len(expected) < 10
    assert made.suppressed["holdout"] == expected
    assert made.audience is not None
    assert made.audience.identifiers == PEOPLE
    assert (made.audience.fingerprint, made.audience.rows) == (plan().audience.fingerprint, 10)  # type: ignore[union-attr]
    assert "holdout" not in made.audience.dropped
    assert sent(made) == list(PEOPLE - expected)
    assert made.people == 10 - len(expected)


def test_campaigns_that_share_a_salt_hold_out_the_same_people(plan: Callable[..., Plan]) -> None:
    rules = {"holdout": {"percent": 40, "salt": "winter"}}
    assert plan(rules).suppressed["holdout"] == sample(PEOPLE, "holdout winter", 40)


def test_a_renamed_campaign_keeps_the_holdout_variants_and_waves_of_its_oldest_name(
    plan: Callable[..., Plan],
) -> None:
    fields: dict[str, Any] = {
        "variants": {"a": {"percent": 50}, "b": {"percent": 50}},
        "gates": {"rollout": {"shares": [50], "wait": {"length": 1, "unit": "hours"}}},
    }
    first = plan({"holdout": {"percent": 40}}, **fields)
    renamed = plan({"holdout": {"percent": 40}}, name="summer", formerly=["spring", "early_summer"], **fields)
    assert renamed.suppressed["holdout"] == first.suppressed["holdout"]
    assert renamed.segments == first.segments


def test_a_launch_of_which_nobody_is_left_is_an_error_that_counts_the_reasons(
    plan: Callable[..., Plan], ledger: Ledger
) -> None:
    other(ledger, "a", integers([1, 2, 3]))
    rules = {"cap": {"messages": 1, "days": 7}, "holdout": {"percent": 100}}
    with pytest.raises(
        AudienceError, match=r"spring: none of the 10 rows is left \(3 cap, 7 holdout\); nothing was sent"
    ):
        plan(rules, ledger=ledger)


# The remaining audience


@pytest.mark.parametrize("kind", [int, str])
def test_what_is_left_is_the_audience_of_those_who_are_left(tmp_path: Path, kind: type) -> None:
    """Its groups, fingerprint and counts equal those of an audience built from the remaining recipients only."""

    def of(members: Iterable[int]) -> Identifiers:
        return integers(list(members)) if kind is int else strings(map(str, members))

    everybody, even, small = of(range(1, 301)), of(range(2, 301, 2)), of(range(1, 101))
    named_by = "device_id" if kind is int else "user_id"
    whole = Audience(named_by, everybody, 300, {"null": 0}, {"platform": {"ios": even, "none": of([])}})
    rules = {
        "exclude": [{"kind": "file", "file": "a.csv"}, {"kind": "file", "file": "b.csv", "reason": "again"}],
        "holdout": {"percent": 30},
    }
    made = folder(tmp_path, rules)
    first, second = made.campaign.audience.exclude
    kept = apply_rules(
        made, whole, excluded={first: small, second: of(range(90, 111))}, ledger=None, sends_at=NOW, now=NOW
    )

    left = of(range(111, 301))
    held_out = sample(left, "holdout spring", 30)
    assert kept.suppressed == {"file a.csv": small, "again": of(range(101, 111)), "holdout": held_out}
    for made_of, people, dropped in (
        (kept.audience, left, {"null": 0, "file a.csv": 100, "again": 10}),
        (
            kept.sent_to,
            left - held_out,
            {"null": 0, "file a.csv": 100, "again": 10, "holdout": len(held_out)},
        ),
    ):
        groups = {"platform": {"ios": even & people, "none": of([])}}
        assert made_of == Audience(named_by, people, 300, dropped, groups)
        assert made_of.fingerprint == Audience(named_by, people, 300, {}, {}).fingerprint


# Everything together, frozen


def test_the_ledger_keeps_who_was_left_out_and_says_why(
    ledger: Ledger, tmp_path: Path, warehouse: str
) -> None:
    ledger.uploaded_lists.store("complaints", "device_id", integers([1]), "ann", NOW)
    best = campaign({"priority": {"rank": 1}})
    other(ledger, "best", integers([1, 2]), made=best)
    other(ledger, "often", integers([2, 3]))
    rules = {
        "exclude": [{"kind": "list", "name": "complaints"}],
        "priority": {"rank": 2},
        "cap": {"messages": 1, "days": 7},
        "holdout": {"percent": 30},
    }
    launch = prepare_launch(
        ledger,
        folder(tmp_path, rules),
        period=PERIOD,
        warehouses=lambda _: warehouse,
        options=LaunchOptions(size_limit=6),
        now=NOW,
    )
    stored = ledger.launches.suppressed(launch.launch_key)
    assert [list(stored[reason]) for reason in ("list complaints", "priority", "cap")] == [[1], [2], [3]]
    assert len(stored["size_limit"]) == 1
    assert len(stored["holdout"]) >= 1
    assert launch.rows == launch.audience + sum(launch.dropped.values()) == 10
    assert launch.audience == 6
    assert ledger.launches.audience(launch.launch_key) == PEOPLE - union(
        "integer", (people for reason, people in stored.items() if reason != "holdout")
    )
    why = {n: ledger.launches.recipient(launch.launch_key, n) for n in range(1, 12)}
    assert [why[n].reason for n in (1, 2, 3)] == ["list complaints", "priority", "cap"]
    assert all(why[n].reason in ("size_limit", "holdout", None) and why[n].is_named for n in range(4, 11))
    assert not why[11].is_named


# Sending a period again


def test_a_resend_needs_a_reason_which_the_ledger_keeps(
    ledger: Ledger, tmp_path: Path, warehouse: str
) -> None:
    def resend(reason: str | None) -> LaunchRecord:
        return prepare_launch(
            ledger,
            folder(tmp_path),
            period=PERIOD,
            warehouses=lambda _: warehouse,
            options=LaunchOptions(resend=1, reason=reason, who="ann"),
            now=NOW,
        )

    for reason in (None, " "):
        with pytest.raises(UsageError, match=r"resend 1 .* Add a reason, as text"):
            resend(reason)
    assert ledger.launches.search() == []
    launch = resend("the link was broken")
    assert resend(None) == launch  # it exists already
    kept = [each for each in ledger.audit_log.of_launch(launch.launch_key) if each.kind == "resend"]
    assert [(each.who, each.why, each.detail) for each in kept] == [
        ("ann", "the link was broken", {"resend": 1})
    ]


def test_the_suppression_list_comes_first_and_applies_to_every_campaign(
    plan: Callable[..., Plan], ledger: Ledger
) -> None:
    def suppress(scope: str, *people: int) -> None:
        ledger.suppressions.add(SuppressionChange(scope, "device_id", "csv", "ada"), people, NOW)

    suppress("account", 2, 77)
    suppress("topic:news", 4)
    suppress("everything", 5)
    exclude = {"exclude": [{"kind": "query", "file": "returned.sql"}]}
    files = {"returned.sql": "SELECT device_id FROM returned"}
    planned = plan(exclude, ledger=ledger, files=files, topic="news")
    assert {reason: list(people) for reason, people in planned.suppressed.items()} == {
        "suppressed": [2, 4, 5],
        "query returned.sql": [3, 9],
    }
    planned = plan(ledger=ledger, transactional="receipt")
    assert {reason: list(people) for reason, people in planned.suppressed.items()} == {"suppressed": [5]}
