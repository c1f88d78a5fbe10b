"""The pages about what goes out today, and about periods that were not sent."""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta
from html import unescape
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from zoneinfo import ZoneInfo

import pytest
from airflow.cli.cli_parser import get_parser as airflow_commands
from airflow.models.dag import DagModel
from airflow.models.dagrun import DagRun
from airflow.models.errors import ParseImportError
from airflow.utils.session import create_session
from airflow.utils.types import DagRunType
from fastapi.testclient import TestClient

from sendoff.campaign import Period, launch_key
from sendoff.launch import NewRequest, prepare_request
from sendoff.ledger import Decision, Ledger, NotLaunched
from sendoff.states import Accepted
from sendoff_airflow.views.airflow_state.airflow_dags import _problem_of
from sendoff_airflow.views.airflow_state.missed import MOST_PERIODS, missed_of, paused_since

from ..launches import NOW, freeze, send
from .test_views import NEWEST, NOBODY, ByDag, Person, Run, as_, olga, server, vera  # noqa: F401


def words_of(text: str) -> str:
    return unescape(re.sub(r"\s+", " ", re.sub(r"<[^>]+>", " ", text)))


def tomorrow_of(text: str) -> str:
    """Return the words of the section *Tomorrow*."""
    return words_of(text.partition('id="tomorrow"')[2].partition("</section>")[0])


def days(first: int, last: int) -> tuple[str, str]:
    """Return the dates in a page of the periods that ended from ``first`` to ``last`` days ago."""
    return (NEWEST - timedelta(days=first + 1)).isoformat(), (NEWEST - timedelta(days=last)).isoformat()


def set_runs(name: str, *ago: int, state: str = "success", newest: datetime = NEWEST) -> None:
    """Make the scheduled runs of the periods that ended some days before the newest one."""
    with create_session() as session:
        for number in ago:
            end = newest - timedelta(days=number)
            run = DagRun(
                dag_id=name,
                run_id=f"scheduled__{number}",
                logical_date=end - timedelta(days=1),
                data_interval=(end - timedelta(days=1), end),
                run_after=end,
                run_type=DagRunType.SCHEDULED,
                state=state,
            )
            session.add(run)


def check_only(ledger: Ledger, name: str, end: datetime) -> None:
    """Store that the launch of a day was checked and not made."""
    period = Period(end - timedelta(days=1), end)
    key = launch_key("service", name, period)
    ledger.not_launched.store(NotLaunched(key, name, "Sale", period, 0, NOW, "no one is in it"))


def change(name: str, **values: Any) -> None:
    with create_session() as session:
        session.query(DagModel).filter_by(dag_id=name).update(values)


def pause_all() -> None:
    """Pause the campaigns of other tests, which run today or tomorrow."""
    with create_session() as session:
        session.query(DagModel).update({"is_paused": True})


@pytest.mark.airflow_database
def test_a_paused_campaign_says_since_when_and_which_periods_it_missed(
    server: TestClient,  # noqa: F811
    vera: Person,  # noqa: F811
    ledger: Ledger,
    tmp_path: Path,
) -> None:
    run = Run(server, tmp_path, "paused_sale", NOBODY)
    set_runs("paused_sale", 6, 5, 2)
    change("paused_sale", next_dagrun_create_after=NEWEST)
    run.pause()
    start, end = days(1, 0)
    earlier = days(4, 3)
    for path in ("", "campaigns", "campaigns/paused_sale"):
        text = vera.get(path).text
        flat = words_of(text)
        assert re.search(r"Paused in Airflow since .* 2 periods were not sent", flat), path
        assert f'datetime="{start}" data-until="{end}"' in text, path
    page = vera.get("campaigns/paused_sale").text
    assert "Not sent earlier: 2 periods" in words_of(page)
    assert f'datetime="{earlier[0]}" data-until="{earlier[1]}"' in page
    assert "Runs <time" not in page
    # A launch of a missed period, such as one of a manual run, means that it was sent.
    check_only(ledger, "paused_sale", NEWEST)
    assert "Not sent earlier: 3 periods" in words_of(vera.get("campaigns/paused_sale").text)
    run.pause(False)
    assert "Paused in Airflow" not in vera.get("campaigns/paused_sale").text


@pytest.mark.airflow_database
def test_a_gap_stays_known_after_the_next_run_however_long_it_was(
    server: TestClient,  # noqa: F811
    ledger: Ledger,
    tmp_path: Path,
) -> None:
    Run(server, tmp_path, "long_sale", NOBODY).pause()
    set_runs("long_sale", MOST_PERIODS + 50)
    [before] = missed_of(ledger, ["long_sale"]).values()
    assert (len(before.periods), len(before.earlier), before.is_cut) == (MOST_PERIODS - 1, 0, True)
    set_runs("long_sale", 2, 1, 0)
    [after] = missed_of(ledger, ["long_sale"]).values()
    assert (after.periods, after.earlier) == ([], before.periods)


@pytest.mark.airflow_database
@pytest.mark.parametrize("name", ["own_body", "own_bodies.notice", "tested_sale-test"])
def test_a_launch_without_a_period_of_its_own_hides_no_failed_run(
    server: TestClient,  # noqa: F811
    ledger: Ledger,
    tmp_path: Path,
    name: str,
) -> None:
    dag_id = name.partition(".")[0].removesuffix("-test")
    Run(server, tmp_path, dag_id, NOBODY)
    set_runs(dag_id, 3, 2, state="failed")
    before = missed_of(ledger, [dag_id])
    moment = NEWEST - timedelta(days=9)
    request = NewRequest(
        body={"title": "Hello", "device_id": [7]},
        mode="create",
        name=name,
        request_key=name,
        connection="service",
    )
    prepare_request(ledger, request, period=Period(moment, moment))
    assert missed_of(ledger, [dag_id]) == before
    assert len(before[dag_id].failed) == 2


@pytest.mark.airflow_database
@pytest.mark.filterwarnings("ignore:Could not import graphviz")
def test_a_campaign_that_a_command_paused_says_since_when(
    server: TestClient,  # noqa: F811
    vera: Person,  # noqa: F811
    tmp_path: Path,
) -> None:
    run = Run(server, tmp_path, "typed_sale", NOBODY)
    run.pause()
    [by_request] = paused_since(["typed_sale"]).values()
    for word in ("unpause", "pause"):
        given = airflow_commands().parse_args(["dags", word, "typed_sale", "--yes"])
        given.func(given)
        assert ("typed_sale" in paused_since(["typed_sale"])) is (word == "pause")
    assert paused_since(["typed_sale"])["typed_sale"] > by_request


@pytest.mark.airflow_database
def test_whole_days_that_were_not_sent_are_dates(
    server: TestClient,  # noqa: F811
    vera: Person,  # noqa: F811
    ledger: Ledger,
    tmp_path: Path,
) -> None:
    midnight = NOW.replace(hour=0, minute=0, second=0) - timedelta(days=1)
    run = Run(server, tmp_path, "daily_sale", NOBODY, hour=0)
    set_runs("daily_sale", 3, newest=midnight)
    run.pause()
    first = midnight - timedelta(days=3)
    for path in ("", "campaigns", "campaigns/daily_sale"):
        assert f"were not sent : {first.day} {first:%b %Y} to" in words_of(vera.get(path).text), path


@pytest.mark.airflow_database
def test_a_campaign_with_an_error_in_its_files_says_so_and_what_it_missed(
    server: TestClient,  # noqa: F811
    vera: Person,  # noqa: F811
    ledger: Ledger,
    tmp_path: Path,
) -> None:
    Run(server, tmp_path, "broken_sale", NOBODY)
    freeze(ledger, "broken_sale", day=9)
    set_runs("broken_sale", 1)
    change("broken_sale", is_stale=True)
    with create_session() as session:
        bundle = session.query(DagModel).filter_by(dag_id="broken_sale").one().bundle_name
        trace = 'Traceback ...\n  File "/dags/broken_sale/helpers.py", line 3, in <module>\nKeyError: 1\n'
        error = ParseImportError(filename="own.py", bundle_name=bundle, timestamp=NOW, stacktrace=trace)
        session.add(error)
    assert "Airflow has no DAG" in vera.get("campaigns/broken_sale").text
    for why in ("broken_sale/vip.txt: the file does not exist", "broken_sale/hello: found a folder"):
        assert (
            _problem_of(SimpleNamespace(dag_id="broken_sale", bundle_name=bundle), [(bundle, "a", why)])
            == why
        )
    why = "broken_sale/campaign.yaml, line 3: `chanels` is not a field. Did you mean `channels`?"
    trace = f"Traceback ...\nsendoff.errors.CampaignError: /dags/other_sale/campaign.yaml: no\n/dags/{why}\n"
    with create_session() as session:
        error = ParseImportError(filename="check.py", bundle_name=bundle, timestamp=NOW, stacktrace=trace)
        session.add(error)
    for path in ("", "campaigns", "campaigns/broken_sale"):
        flat = words_of(vera.get(path).text)
        assert "Its files have an error" in flat, path
        assert re.search("1 period was not sent", flat), path
    page = words_of(vera.get("campaigns/broken_sale").text)
    assert f"The error: {why}" in page
    assert "other_sale" not in page
    with create_session() as session:
        session.query(ParseImportError).delete()


@pytest.mark.airflow_database
def test_a_run_that_failed_before_its_launch_is_on_the_page_of_its_campaign(
    server: TestClient,  # noqa: F811
    vera: Person,  # noqa: F811
    ledger: Ledger,
    tmp_path: Path,
) -> None:
    Run(server, tmp_path, "failed_sale", NOBODY)
    set_runs("failed_sale", 1)
    set_runs("failed_sale", 0, state="failed")
    page = vera.get("campaigns/failed_sale").text
    assert "failed before anything was sent" in words_of(page)
    assert "dags/failed_sale/runs/scheduled__0" in page
    assert "not sent" not in page


@pytest.mark.airflow_database
def test_a_campaign_whose_newest_run_failed_before_its_launch_is_among_those_that_need_someone(
    server: TestClient,  # noqa: F811
    vera: Person,  # noqa: F811
    ledger: Ledger,
    tmp_path: Path,
) -> None:
    Run(server, tmp_path, "failing_sale", NOBODY)
    set_runs("failing_sale", 1)
    set_runs("failing_sale", 0, state="failed")
    soon = NOW + timedelta(days=1)
    change("failing_sale", is_paused=False, next_dagrun_create_after=soon)
    why = "failed before anything was sent"

    def item() -> str:
        box = vera.get("").text.partition('class="attention"')[2].partition("</section>")[0]
        return next((words_of(item) for item in box.split("<li>") if "campaigns/failing_sale" in item), "")

    def row() -> str:
        rows = vera.get("campaigns").text.split("<tr>")
        return next(row.partition("</tr>")[0] for row in rows if "campaigns/failing_sale" in row)

    assert re.search(rf" Spring sale : The run for \d.* {why}[.] ", item()), item()
    assert re.search(f"{why}[.].* failed ", words_of(row())), row()
    assert f'datetime="{soon.isoformat()}"' in row()
    change("failing_sale", is_paused=True)
    assert re.search(rf" Paused in Airflow[.] The run for \d.* {why}[.] ", item()), item()
    assert re.search(rf"Paused in Airflow.* {why}[.].* paused ", words_of(row())), row()
    change("failing_sale", is_paused=False, next_dagrun_create_after=NOW - timedelta(days=2))
    assert re.search(rf" Was due .*has not started yet.*The run for \d.* {why}[.] ", item()), item()
    change("failing_sale", next_dagrun_create_after=soon)
    check_only(ledger, "failing_sale", NEWEST)  # the run failed after it, or another run made up for it
    assert item() == ""
    assert why not in words_of(row())
    assert " scheduled " in words_of(row())


@pytest.mark.airflow_database
def test_the_first_page_counts_the_campaigns_with_a_problem_that_it_does_not_name(
    server: TestClient,  # noqa: F811
    vera: Person,  # noqa: F811
    ledger: Ledger,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    names = [f"failing_{number}" for number in range(7)]
    monkeypatch.setattr(ByDag, "seen", frozenset(names))
    for name in names:
        Run(server, tmp_path / name, name, NOBODY)
        set_runs(name, 0, state="failed")
        change(name, is_paused=False, next_dagrun_create_after=NOW + timedelta(days=1))
    text = vera.get("").text
    assert text.count("failed before anything was sent") == 5
    assert ">2 other campaigns with a problem</a>" in text


@pytest.mark.airflow_database
def test_a_new_campaign_that_is_still_paused_has_missed_nothing(
    server: TestClient,  # noqa: F811
    vera: Person,  # noqa: F811
    ledger: Ledger,
    tmp_path: Path,
) -> None:
    Run(server, tmp_path, "new_sale", NOBODY).pause()
    assert "not sent" not in vera.get("campaigns/new_sale").text
    assert "campaigns/new_sale" not in vera.get("").text


@pytest.mark.airflow_database
def test_the_list_begins_with_what_went_out_and_goes_out_today_in_the_readers_zone(
    server: TestClient,  # noqa: F811
    vera: Person,  # noqa: F811
    ledger: Ledger,
    tmp_path: Path,
) -> None:
    pause_all()
    assert "Nothing went out today" in vera.get("").text
    now = datetime.now(UTC)  # the tests may have begun minutes ago
    midnight = now.replace(hour=0, minute=0, second=0)
    past, coming = midnight + (now - midnight) / 2, now + (midnight + timedelta(days=1) - now) / 2
    made = now - timedelta(days=3)
    early = freeze(ledger, "early_sale", made=made, sends=past, definition={"title": "Early sale"} | MESSAGE)
    send(ledger, early, *[Accepted(200, 1)] * 6, at=made)
    late = freeze(ledger, "late_sale", made=made, sends=coming, definition={"title": "Late sale"} | MESSAGE)
    send(ledger, late, *[Accepted(200, 1)] * 6, at=made)
    freeze(ledger, "other_sale", made=made, sends=now + timedelta(days=3))
    Run(server, tmp_path, "runs_today", NOBODY)
    at = datetime.now(UTC) + timedelta(seconds=5)
    change("runs_today", is_paused=False, next_dagrun_create_after=at)

    def section(zone: str) -> str:
        page = server.get(
            "/sendoff/", headers={"Cookie": f"{vera.login['Cookie']}; sendoff-zone={zone}"}
        ).text
        assert f'data-zone="{zone}"' in page
        return words_of(page.partition('id="today"')[2].partition("</section>")[0])

    in_utc = section("UTC")
    assert re.search("Went out .* Early sale .* Runs .* Goes out .* Late sale ", in_utc), in_utc
    assert "Times are in UTC ." in in_utc
    assert "other_sale" not in in_utc
    for zone in ("Pacific/Honolulu", "Pacific/Kiritimati"):
        shown, today = section(zone), datetime.now(ZoneInfo(zone)).date()
        for title, moment in (("Early sale", past), ("Late sale", coming)):
            assert (title in shown) is (moment.astimezone(ZoneInfo(zone)).date() == today), (zone, title)
    wrong = server.get("/sendoff/", headers={"Cookie": f"{vera.login['Cookie']}; sendoff-zone=../etc"})
    assert 'data-zone="UTC"' in wrong.text


@pytest.mark.airflow_database
def test_today_is_in_the_order_of_time_and_has_the_launches_that_wait_for_someone(
    server: TestClient,  # noqa: F811
    vera: Person,  # noqa: F811
    ledger: Ledger,
    tmp_path: Path,
) -> None:
    now = datetime.now(UTC)
    midnight = now.replace(hour=0, minute=0, second=0)
    tomorrow = midnight + timedelta(days=1)
    made, coming = now - timedelta(days=3), now + (tomorrow - now) / 2
    past = midnight + (now - midnight) / 2
    freeze(ledger, "late_sale", made=made, sends=coming, people=20, holdout=7)
    period = Period(midnight - timedelta(days=1), midnight)
    ledger.not_launched.store(
        NotLaunched(NOBODY, "price_drop", "Price drop", period, 0, past, "no one is in it")
    )
    waiting = freeze(
        ledger, "winter_sale", state="held", holdout=2, definition={"title": "Winter sale"} | MESSAGE
    )
    failing = freeze(ledger, "digest", made=made, day=3)
    send(ledger, failing, Accepted(200, 1), at=made)
    ledger.audit_log.decide(Decision(failing, "held", "sendoff", "3 requests were refused", now))
    freeze(ledger, "next_sale", state="held", made=made, sends=tomorrow + timedelta(hours=9))
    run = Run(server, tmp_path, "winter_sale", waiting)
    text = vera.get("").text
    flat = words_of(text.partition('id="today"')[2].partition("</section>")[0])
    wanted = (
        " not launched Price drop : no one is in it.",
        "Once approved waiting for approval Winter sale winter_sale to 10 devices , waits for an approval ",
        " stuck Spring sale late_sale to 13 devices",
    )
    places = [flat.find(words) for words in wanted]
    assert -1 not in places, flat
    assert places == sorted(places), flat
    decided = "Once released waiting for a decision Spring sale digest , 1 of 6 requests made , waits for a decision "
    assert places[0] < flat.find(decided) < places[2], flat
    assert "next_sale" not in flat
    assert "Spring sale next_sale" in tomorrow_of(text)
    assert "until" not in flat
    run.ask()
    run.again().ask()  # the launch rejects itself when the first of the two questions ends
    assert f'waits for an approval until <time datetime="{run.asks_until.isoformat()}">' in vera.get("").text
    assert (
        f'Rejects itself <time datetime="{run.asks_until.isoformat()}">'
        in vera.get(f"launches/{waiting}").text
    )
    listed = words_of(text.partition('id="all"')[2])
    assert " 13 devices " in listed
    assert '<option value="price_drop">Price drop (price_drop)</option>' in text
    assert "no one is in it" in words_of(vera.get("?campaign=price_drop").text)


def test_today_has_a_launch_whose_first_request_is_about_to_be_made(
    vera: Person,  # noqa: F811
    ledger: Ledger,
) -> None:
    freeze(ledger, "new_sale", made=datetime.now(UTC))
    today = words_of(vera.get("").text.partition('id="today"')[2].partition("</section>")[0])
    assert "Goes out soon sending Spring sale new_sale to 12 devices" in today


def test_the_list_says_went_out_for_the_past_and_goes_out_for_what_comes(
    vera: Person,  # noqa: F811
    ledger: Ledger,
) -> None:
    early = freeze(ledger, "early_sale", made=NOW - timedelta(days=3), sends=NOW - timedelta(days=2))
    assert "Was due" in words_of(vera.get("?words=early").text.partition("<tbody>")[2])
    send(ledger, early, *[Accepted(200, 1)] * 6, at=NOW - timedelta(days=3))
    key = freeze(ledger, "late_sale", made=NOW - timedelta(days=3), sends=NOW + timedelta(days=2))
    rows = {
        name: words_of(vera.get(f"?words={name}").text.partition("<tbody>")[2]) for name in ("early", "late")
    }
    assert "Went out" in rows["early"]
    assert "Goes out" not in rows["early"]
    assert "Goes out" not in rows["late"]
    assert "Due" in rows["late"]  # it is stuck, as nothing works on it
    send(ledger, key, *[Accepted(200, 1)] * 6, at=NOW - timedelta(days=3))
    assert "Goes out" in words_of(vera.get("?words=late").text.partition("<tbody>")[2])


def test_today_has_the_launches_whose_window_opens_today_and_the_rest_of_those_that_have_begun(
    server: TestClient,  # noqa: F811
    vera: Person,  # noqa: F811
    ledger: Ledger,
) -> None:
    zone = f"Etc/GMT{NOW.hour - 12:+d}"  # where it is about noon now
    local = NOW.astimezone(ZoneInfo(zone))
    opening = f"{local + timedelta(hours=2):%H}:00"

    def waiting(campaign: str, earliest: str = opening, latest: str = "23:00") -> str:
        gates = {"window": {"time_zone": zone, "earliest": earliest, "latest": latest}}
        definition = {"title": campaign.replace("_", " ").capitalize(), "gates": gates} | MESSAGE
        return freeze(ledger, campaign, made=NOW - timedelta(days=2), definition=definition)

    waiting("early_sale")
    send(ledger, waiting("late_sale"), Accepted(200, 1), at=NOW - timedelta(days=2))
    waiting("other_sale", earliest="06:00", latest="07:00")  # opens tomorrow
    text = server.get("/sendoff/", headers={"Cookie": f"{vera.login['Cookie']}; sendoff-zone={zone}"}).text
    today = words_of(text.partition('id="today"')[2].partition("</section>")[0])
    assert re.search("Goes out [^.]*scheduled Early sale early_sale to 12 devices", today), today
    assert re.search("Goes on [^.]*scheduled Late sale late_sale , 1 of 6 requests made", today), today
    assert "Other sale" not in today
    assert re.search("Goes out [^.]*scheduled Other sale other_sale to 12 devices", tomorrow_of(text))


@pytest.mark.airflow_database
def test_tomorrow_has_the_launches_that_go_out_and_the_runs_that_start_then(
    server: TestClient,  # noqa: F811
    vera: Person,  # noqa: F811
    ledger: Ledger,
    tmp_path: Path,
) -> None:
    pause_all()
    assert "So far, nothing goes out tomorrow." in tomorrow_of(vera.get("").text)
    at = datetime.now(UTC).replace(hour=9, minute=0, second=0, microsecond=0) + timedelta(days=1)
    for name, days_later in (("morning_sale", 0), ("later_sale", 1)):
        sends = at + timedelta(days=days_later, hours=1)
        key = freeze(ledger, name, made=NOW - timedelta(days=3), sends=sends)
        send(ledger, key, *[Accepted(200, 1)] * 6, at=NOW - timedelta(days=3))
    names = ("runs_tomorrow", "runs_later")
    for name in names:
        Run(server, tmp_path, name, NOBODY, hour=at.hour)
    for days_later, name in enumerate(names):
        begin, end = (at + timedelta(days=days_later - 1), at + timedelta(days=days_later))
        next_run = {"next_dagrun_data_interval_start": begin, "next_dagrun_data_interval_end": end}
        change(name, is_paused=False, next_dagrun_create_after=end, **next_run)
    text = vera.get("").text
    assert re.search("Runs .* Goes out .* morning_sale", tomorrow_of(text)), tomorrow_of(text)
    assert "campaigns/runs_tomorrow" in text.partition('id="tomorrow"')[2].partition("</section>")[0]
    assert "later_sale" not in tomorrow_of(text)
    assert "campaigns/runs_later" not in text
    assert "sale" not in words_of(text.partition('id="today"')[2].partition("</section>")[0])
    assert 'id="tomorrow"' not in vera.get("?words=sale").text


MESSAGE = {
    "message": {"title": "Spring is here", "text": "Come"},
    "channels": {"android_push": {}},
}
