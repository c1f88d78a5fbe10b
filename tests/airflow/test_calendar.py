"""The calendar: the launches and the coming runs of each day of a month."""

from __future__ import annotations

import re
from datetime import UTC, date, datetime, time, timedelta
from pathlib import Path
from zoneinfo import ZoneInfo

import pytest
from fastapi.testclient import TestClient

from sendoff.campaign import Period
from sendoff.dispatch.control import reject, stop
from sendoff.ledger import Decision, Ledger, NotLaunched, Selection
from sendoff.postbacks.reconcile import reconcile_launch
from sendoff.states import Accepted, Refused
from sendoff_airflow.views.airflow_state.timetables import Clock, coming_runs
from sendoff_airflow.views.facts.happenings import Days, moment_of
from sendoff_airflow.views.facts.launch_rows import rows_of
from sendoff_airflow.views.pages.calendar import MONTHS_AHEAD, _days

from ..launches import NOW, TIMED_OUT, freeze, send
from . import test_views
from .test_missed import MESSAGE, change, pause_all, words_of
from .test_views import CAMPAIGN, NEWEST, NOBODY, ByDag, Person, Run, as_, server, vera  # noqa: F401

pytestmark = pytest.mark.airflow_database


def month_of(day: date) -> str:
    return f"calendar?month={day:%Y-%m}"


def days_of(text: str) -> dict[date, str]:
    """Return the words of each day."""
    cells = re.findall(r'<td data-day="([^"]*)"[^>]*>(.*?)</td>', text, re.DOTALL)
    return {date.fromisoformat(day): words_of(cell) for day, cell in cells}


def noon(day: date) -> datetime:
    return datetime.combine(day, time(12), UTC)


def months_of(person: Person, first: date, last: date) -> dict[date, str]:
    """Return the words of each day of the months of two days."""
    return days_of(person.get(month_of(first)).text) | days_of(person.get(month_of(last)).text)


def schedule_from(name: str, first: datetime) -> None:
    """Have Airflow's next run of a daily campaign at a moment."""
    start = first - timedelta(days=1)
    change(
        name,
        is_paused=False,
        next_dagrun=start,
        next_dagrun_create_after=first,
        next_dagrun_data_interval_start=start,
        next_dagrun_data_interval_end=first,
    )


def test_a_day_has_what_went_out_then_and_how_many_got_it(
    server: TestClient,  # noqa: F811
    vera: Person,  # noqa: F811
    ledger: Ledger,
) -> None:
    pause_all()
    day = datetime.now(UTC).date() - timedelta(days=40)
    for name, people, hours in (("evening_sale", 20, 6), ("morning_sale", 6, 0)):
        at = noon(day) + timedelta(hours=hours)
        title = {"title": name.replace("_", " ").capitalize()} | MESSAGE
        key = freeze(ledger, name, people=people, size=people, made=at, sends=at, definition=title)
        send(ledger, key, Accepted(200, 1), at=at)
    rejected = freeze(
        ledger,
        "refused_sale",
        state="held",
        people=50,
        made=noon(day),
        sends=noon(day),
        definition=MESSAGE | {"title": "Never"},
    )
    ledger.audit_log.decide(Decision(rejected, "rejected", "ada", "no", noon(day)))
    period = Period(noon(day) - timedelta(days=1), noon(day))
    ledger.not_launched.store(
        NotLaunched(NOBODY, "price_drop", "Price drop", period, 0, noon(day), "no one is in it")
    )
    assert f"<h1>{day:%B %Y}</h1>" in vera.get(month_of(day)).text
    shown = months_of(vera, day - timedelta(days=1), day + timedelta(days=1))
    entries = shown[day]
    assert entries.startswith(f" {day:%A} {day.day} {day:%B} 26 "), entries
    assert re.search(r"Morning sale 12:00, 6 .*Evening sale 18:00, 20 ", entries), entries
    assert re.search(r"Price drop 12:00 not launched", entries), entries
    assert "Never" not in entries
    assert "sale" not in shown[day + timedelta(days=1)]
    assert "sale" not in shown[day - timedelta(days=1)]
    # The same moments are on the day of the reader's zone.
    far = ZoneInfo("Pacific/Kiritimati")  # 14 hours ahead
    there = server.get(
        f"/sendoff/{month_of(day + timedelta(days=1))}",
        headers={"Cookie": f"{vera.login['Cookie']}; sendoff-zone={far.key}"},
    ).text
    later = days_of(there)[day + timedelta(days=1)]
    assert re.search(r"Morning sale 02:00, 6 .*Evening sale 08:00, 20 ", later), later


def test_the_coming_runs_are_on_their_days_with_the_recipients_of_the_newest_launch(
    server: TestClient,  # noqa: F811
    vera: Person,  # noqa: F811
    ledger: Ledger,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    pause_all()
    freeze(
        ledger,
        "calendar_daily",
        people=7,
        made=NEWEST,
        sends=NEWEST,
        definition={"title": "Old title"} | MESSAGE,
    )
    Run(server, tmp_path, "calendar_daily", NOBODY)
    first = NEWEST + timedelta(days=2)
    schedule_from("calendar_daily", first)
    last = first + timedelta(days=32)
    around = months_of(vera, NEWEST.date(), first.date() + timedelta(days=1))
    shown = months_of(vera, first.date(), last.date()) | around
    for number in (0, 1, 32):
        assert f"Spring sale {NEWEST:%H:%M}, about 7 " in shown[(first + timedelta(days=number)).date()], (
            number
        )
    assert "about" not in shown[first.date() - timedelta(days=1)]
    assert "about" not in days_of(vera.get(month_of(NEWEST.date())).text)[NEWEST.date()]
    # Without its timetable, only the next run is known.
    with monkeypatch.context() as patch:
        patch.setattr(Clock, "runs", lambda *_: 1 / 0)
        coming_runs.cache_clear()
        shown = months_of(vera, first.date(), last.date())
    assert [day for day, words in shown.items() if "about 7" in words] == [first.date()]
    # The runs after an overdue one come all the same.
    schedule_from("calendar_daily", NEWEST)
    shown = months_of(vera, first.date(), last.date())
    assert "about 7" in shown[first.date()]
    change("calendar_daily", is_paused=True)
    assert "Spring sale" not in months_of(vera, first.date(), last.date())[last.date()]


def test_what_a_campaign_does_often_on_one_day_is_one_entry(
    server: TestClient,  # noqa: F811
    vera: Person,  # noqa: F811
    ledger: Ledger,
    tmp_path: Path,
) -> None:
    pause_all()
    day = datetime.now(UTC).date() - timedelta(days=50)
    for hour in range(3):
        at = noon(day) + timedelta(hours=hour)
        key = freeze(ledger, "calendar_often", people=4, size=4, day=51 + hour, made=at, sends=at)
        send(ledger, key, Accepted(200, 1), at=at)
    text = vera.get(month_of(day)).text
    assert "Spring sale 12:00, 3 times, 12 " in days_of(text)[day]
    assert f'href="./?campaign=calendar_often&amp;since={day}&amp;until={day}"' in text
    (tmp_path / "hourly").mkdir()
    hourly = CAMPAIGN.replace(f"0 {NEWEST.hour} *", "0 * *")
    Run(server, tmp_path / "hourly", "calendar_often", NOBODY, text=hourly)
    first = noon(datetime.now(UTC).date() + timedelta(days=1))
    schedule_from("calendar_often", first)
    change(
        "calendar_often",
        next_dagrun=first - timedelta(hours=1),
        next_dagrun_data_interval_start=first - timedelta(hours=1),
    )
    tomorrow = first.date()
    shown = months_of(vera, tomorrow, tomorrow + timedelta(days=1))
    assert "Spring sale 12:00, 12 times, about 48 " in shown[tomorrow]
    assert "Spring sale 00:00, 24 times, about 96 " in shown[tomorrow + timedelta(days=1)]
    assert "and 11 more times that day" in words_of(vera.get("").text)


def test_a_campaign_that_is_sending_is_not_shown_as_stopped(
    vera: Person,  # noqa: F811
    ledger: Ledger,
) -> None:
    now = datetime.now(UTC)
    stopped = freeze(ledger, "calendar_busy", day=2, made=now, sends=now)
    send(ledger, stopped, Accepted(200, 1), at=now)
    ledger.audit_log.decide(Decision(stopped, "stopped", "ada", "the wrong picture", now))
    running = freeze(ledger, "calendar_busy", made=now, sends=now)
    send(ledger, running, Accepted(200, 1), None, at=now)
    assert re.search(
        r"Spring sale [^a-z]*2 times, [0-9]+ +sending", days_of(vera.get("calendar").text)[now.date()]
    )


def test_a_launch_that_ended_part_way_counts_who_may_have_the_message(
    vera: Person,  # noqa: F811
    ledger: Ledger,
) -> None:
    now = datetime.now(UTC)
    requests = {
        "stopped_sale": (Accepted(200, 1), TIMED_OUT),
        "rejected_sale": (Accepted(200, 2), Refused(400, "no")),
        "refused_sale": (Refused(400, "no"),) * 3,
        "whole_sale": (Accepted(200, 3), Refused(400, "no"), Accepted(200, 4)),
    }
    for name, outcomes in requests.items():
        title = {"title": name.replace("_", " ").capitalize()}
        key = freeze(
            ledger, name, people=9, size=3, made=now, sends=now, definition=MESSAGE | title, decisions=False
        )
        send(ledger, key, *outcomes, at=now)
        if name == "stopped_sale":
            stop(ledger, key, "ada", "the wrong picture")
            assert "at most 6 of 9 devices have the message" in words_of(vera.get(f"launches/{key}").text)
            reconcile_launch(ledger, key)  # proves that no one was reached, and the number stays
        if name == "rejected_sale":
            ledger.audit_log.decide(Decision(key, "held", "sendoff", "too many refused", now))
            reject(ledger, key, "ada", "no more")
    today = days_of(vera.get("calendar").text)[now.date()]
    for title, shown in (("Stopped", 6), ("Rejected", 3), ("Whole", 9)):
        assert re.search(rf"{title} sale [0-9:]+, {shown} ", today), (title, today)
    assert re.search(r"Refused sale [0-9:]+ +refused", today), today
    assert ", today 18 " in today


def test_a_run_after_the_end_of_its_dag_is_not_shown(
    server: TestClient,  # noqa: F811
    vera: Person,  # noqa: F811
    ledger: Ledger,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    pause_all()
    first = NEWEST + timedelta(days=2)
    end = f"\nimport pendulum\ncalendar_ending.end_date = pendulum.parse('{first + timedelta(days=3)}')\n"
    monkeypatch.setattr(test_views, "DAGS", test_views.DAGS + end)
    Run(server, tmp_path, "calendar_ending", NOBODY)
    schedule_from("calendar_ending", first)
    shown = months_of(vera, first.date(), first.date() + timedelta(days=10))
    has_run = [day for day, words in shown.items() if "Spring sale" in words]
    days = [first.date() + timedelta(days=number) for number in range(5)]
    assert has_run == days  # Airflow's end is that of the beginning of a period


def test_a_launch_that_waits_is_on_today_until_it_is_too_late(
    vera: Person,  # noqa: F811
    ledger: Ledger,
) -> None:
    pause_all()
    now = datetime.now(UTC)
    freeze(ledger, "asking_sale", state="held", made=now, definition={"title": "Asking sale"} | MESSAGE)
    due = now - timedelta(days=45)
    late = {"title": "Late sale"} | MESSAGE
    made = due - timedelta(days=1)
    freeze(ledger, "late_sale", state="held", made=made, sends=due, definition=late)
    text = vera.get("calendar").text
    shown = days_of(text)
    [today] = re.findall(r'data-day="([^"]*)" aria-current', text)
    words = shown[date.fromisoformat(today)]
    assert "Asking sale about 12 waiting for approval" in words
    assert re.search(r"Late sale \d\d:\d\d, about 12 waiting for approval", words), words
    assert [sum(title in words for words in shown.values()) for title in ("Asking sale", "Late sale")] == [
        1,
        1,
    ]
    then = days_of(vera.get(month_of(due.date())).text)
    assert not any(title in words for title in ("Asking sale", "Late sale") for words in then.values())


def test_a_launch_that_goes_on_after_the_page_is_on_the_day_when_it_began(
    vera: Person,  # noqa: F811
    ledger: Ledger,
) -> None:
    pause_all()
    now = datetime.now(UTC)
    zone = f"Etc/GMT{NOW.hour - 12:+d}"  # where it is about noon now
    gates = {"window": {"time_zone": zone, "earliest": "06:00", "latest": "07:00"}}
    definition = {"title": "Wave", "gates": gates} | MESSAGE
    key = freeze(ledger, "wave_sale", made=now, sends=now, definition=definition)
    send(ledger, key, Accepted(200, 1), at=now)
    [row] = rows_of(ledger, ledger.overview.page(Selection(["wave_sale"])))
    assert row.is_to_continue
    until = row.standing.until
    assert until is not None
    assert moment_of(row, until + timedelta(seconds=1)) == until
    assert moment_of(row, until) == row.listed.sends_at


def test_what_was_due_before_the_days_shown_is_on_today() -> None:
    today = datetime.now(UTC).date()
    dates = [today - timedelta(days=1), today]
    at = noon(today - timedelta(days=9))
    early = NotLaunched(NOBODY, "early_sale", "Early", Period(at, at), 0, at, "no one is in it")
    before, after = _days(dates, Days(dates[0], dates[1], ZoneInfo("UTC")), [(at, early)], {}, {})
    assert (len(before.entries), [each.title for each in after.entries]) == (0, ["Early"])


def test_months_are_whole_weeks_and_lead_to_their_neighbours(
    vera: Person,  # noqa: F811
    ledger: Ledger,
) -> None:
    text = vera.get("calendar?month=2026-02").text
    dates = [*days_of(text)]
    assert (dates[0], dates[-1]) == (date(2026, 1, 26), date(2026, 3, 1))
    assert '<a rel="prev" href="?month=2026-01">← January</a>' in text
    assert '<a rel="next" href="?month=2026-03">March →</a>' in text
    assert 'aria-current="date"' not in text
    assert [*days_of(vera.get("calendar?month=2025-12").text)][-1] == date(2026, 1, 4)
    today = datetime.now(UTC).date()
    for wrong in ("", "2026-13", "2026-1", "x", "2026-02-01"):
        assert f"<h1>{today:%B %Y}</h1>" in vera.get(f"calendar?month={wrong}").text, wrong
    far = vera.get("calendar?month=2999-01").text  # as far as the calendar goes
    months = today.year * 12 + today.month - 1 + MONTHS_AHEAD
    assert f"<h1>{date(months // 12, months % 12 + 1, 1):%B %Y}</h1>" in far
    assert 'rel="next"' not in far
    assert 'rel="prev"' not in vera.get("calendar?month=1970-01").text


def test_it_has_only_the_campaigns_that_its_reader_sees(
    vera: Person,  # noqa: F811
    ledger: Ledger,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    at = datetime.now(UTC) - timedelta(days=45)
    for name in ("open_sale", "secret_sale"):
        key = freeze(ledger, name, size=12, made=at, sends=at, definition={"title": f"The {name}"} | MESSAGE)
        send(ledger, key, Accepted(200, 1), at=at)
    monkeypatch.setattr(ByDag, "seen", frozenset({"open_sale"}))
    words = days_of(vera.get(month_of(at.date())).text)[at.date()]
    assert "The open_sale" in words
    assert "secret" not in words
