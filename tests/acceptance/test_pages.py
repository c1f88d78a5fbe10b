"""Sendoff's pages in a real browser, in the UI of a real Airflow that is served under a path."""

from __future__ import annotations

import json
import os
import sqlite3
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, closing
from datetime import UTC, datetime, timedelta
from io import BytesIO
from itertools import count, product
from pathlib import Path
from typing import Any
from zoneinfo import ZoneInfo

import pytest
import requests
from PIL import Image

from sendoff.audience.identifiers import integers
from sendoff.campaign import load_journey
from sendoff.demo.processes import Supervisor, answers
from sendoff.dispatch.control import reject
from sendoff.ledger import Ledger, SuppressionChange
from sendoff.postbacks import reconcile_launch
from sendoff.states import Accepted, InDoubt, Refused

from ..launches import FIRST_DEVICE, NOW, PUSH, TIMED_OUT, answer, fill, freeze, send
from ..ports import reserve_ports
from .browser import (
    FAINT_TEXT,
    ODD_HEADINGS,
    SMALL_TARGETS,
    UNLABELLED_FIELDS,
    new_window,
    picture_folder,
)

PATH = "/air"
PEOPLE = {"olga": "op", "vera": "viewer"}
CAMPAIGN = """
title: Spring sale
message: {title: Spring is here, text: Everything for the garden is 20 % off until Sunday.}
channels:
  android_push:
  ios_push:
  web_push: {browsers: [chrome, firefox, safari]}
variants:
  short: {percent: 50}
  long: {percent: 50, message: {text: Everything for the garden is 20 % off. Come and see us on Sunday.}}
gates:
  least: 100
  change: 50
approval: {needed: above, above: 10000}
schedule: 0 9 * * *
schedule_time_zone: UTC
"""
JOURNEY = """
title: Welcome to the shop
schedule: 0 9 * * *
exits: [{kind: verdicts, are: [engaged]}, {kind: list, name: bought}]
steps:
  - name: hello
    message: {title: Welcome, text: Good to have you here.}
    channels: {android_push: , web_push: {browsers: [chrome, firefox, safari]}}
  - name: three_tips
    wait: {length: 2, unit: days}
    when: {of: hello, are: [delivered], unknowable: include}
    message: {title: Three tips, text: Find what you need faster.}
    channels: {android_push: , web_push: {browsers: [chrome, firefox, safari]}}
  - name: discount
    wait: {length: 1, unit: weeks}
    when: {of: three_tips, are: [delivered, missing]}
    message: {title: Ten per cent off, text: Until Sunday.}
    channels: {android_push: , web_push: {browsers: [chrome, firefox, safari]}}
"""
DAGS = """
from pathlib import Path

from sendoff_airflow.dags import campaign_dags, send_test_dag

folder = Path(__file__).with_name("campaigns")
globals().update(campaign_dags(folder))
send_test = send_test_dag(campaigns=folder, recipients=[{"device_id": 7}])
"""
LOAD = """
from airflow.dag_processing.bundles.manager import DagBundlesManager
from airflow.dag_processing.dagbag import DagBag, sync_bag_to_db

DagBundlesManager().sync_bundles_to_db()
bag = DagBag(dag_folder={folder!r})
assert not bag.import_errors and "spring_sale" in bag.dags, bag.import_errors
sync_bag_to_db(bag, "dags-folder", None)
"""


SHOWN = """token => { const shown = document.createElement('i');
  shown.style.color = `var(--chakra-${token})`; document.body.append(shown);
  const colour = getComputedStyle(shown).color; shown.remove(); return colour; }"""
COLOURS = """() => { const of = place => getComputedStyle(document.querySelector(place));
  return [of('body').backgroundColor, of('body').color, of('main a').color]; }"""


def contrast(one: Sequence[float], other: Sequence[float]) -> float:
    """Return the contrast of two colours as WCAG defines it."""

    def light(colour: Sequence[float]) -> float:
        parts = [
            c / 255 / 12.92 if c / 255 <= 0.03928 else ((c / 255 + 0.055) / 1.055) ** 2.4 for c in colour
        ]
        return 0.2126 * parts[0] + 0.7152 * parts[1] + 0.0722 * parts[2]

    low, high = sorted((light(one), light(other)))
    return (high + 0.05) / (low + 0.05)


def take_steps(ledger: Ledger, folder: Path) -> None:
    """Send the first two steps of a journey for three days, the newest without the second step."""
    steps = {each.name: each.campaign.model_dump() for each in load_journey(folder).campaigns}
    for day in (3, 2, 1):
        sent = [("hello", 4_000 - 500 * day, {}), ("three_tips", 1_500 - 100 * day, {"list bought": 40})]
        for step, people, dropped in sent[: 1 if day == 1 else 2]:
            name = f"welcome.{step}"
            key = freeze(
                ledger, name, people=people, size=500, day=day, dropped=dropped, definition=steps[name]
            )
            requests = range(-(-people // 500))
            send(ledger, key, *(Accepted(200, 50 + number) for number in requests))
            answer(ledger, key, since=NOW)
            reconcile_launch(ledger, key)


def fill_month(airflow: Airflow) -> None:
    """Send campaigns on some days of the last weeks, and have the DAGs run on the next days."""
    morning = datetime.now(UTC).replace(hour=9, minute=0, second=0, microsecond=0)
    sent = [(f"{word}_sale", 1_500 * n, 2 * n + 1) for n, word in enumerate(("winter", "member"), 1)]
    with airflow.ledger() as ledger:
        for (name, people, every), week in product(sent, range(1, 25)):
            if week % every:
                continue
            at = morning - timedelta(days=week, hours=-every)
            title = f"{name.replace('_', ' ').capitalize()}"
            of_day = {"people": people + 90 * week, "size": 5_000, "day": week + 40}
            key = freeze(ledger, name, made=at, sends=at, definition=PUSH | {"title": title}, **of_day)
            send(ledger, key, Accepted(200, week), at=at)
            reconcile_launch(ledger, key)
    for name, days in (("spring_sale", 1), ("welcome", 2)):
        airflow.runs_from(name, morning + timedelta(days))


ERASURE_SECRET = "0123456789abcdef" * 4


class Airflow:
    """A running API server of Airflow, with the DAG of one campaign and a ledger with launches in every state."""

    def __init__(self, folder: Path, port: int, supervisor: Supervisor) -> None:
        self.url = f"http://127.0.0.1:{port}{PATH}"
        self._ledger_url = f"sqlite:///{folder / 'ledger.db'}"
        self._folder, self._minutes = folder, count()
        self._environment = {
            **{
                name: value
                for name, value in os.environ.items()
                if not name.startswith(("AIRFLOW", "SENDOFF"))
            },
            "AIRFLOW_HOME": str(folder),
            "AIRFLOW__API__BASE_URL": self.url,
            "AIRFLOW__API__HOST": "127.0.0.1",
            "AIRFLOW__API__PORT": str(port),
            "AIRFLOW__API__WORKERS": "1",
            "AIRFLOW__API_AUTH__JWT_SECRET": "0123456789abcdef" * 4,
            "AIRFLOW__CORE__DAGS_FOLDER": str(folder / "dags"),
            "AIRFLOW__CORE__LOAD_EXAMPLES": "False",
            "AIRFLOW__CORE__PLUGINS_FOLDER": str(folder / "plugins"),
            "AIRFLOW__CORE__SIMPLE_AUTH_MANAGER_USERS": ",".join(
                f"{name}:{role}" for name, role in PEOPLE.items()
            ),
            "AIRFLOW__CORE__SIMPLE_AUTH_MANAGER_PASSWORDS_FILE": str(folder / "passwords.json"),
            "AIRFLOW__DATABASE__SQL_ALCHEMY_CONN": f"sqlite:///{folder / 'airflow.db'}",
            "SENDOFF_ERASURE_SECRET": ERASURE_SECRET,
            "SENDOFF_LEDGER_URL": self._ledger_url,
        }
        (folder / "passwords.json").write_text(json.dumps({name: name for name in PEOPLE}))
        campaign = folder / "dags/campaigns/spring_sale"
        campaign.mkdir(parents=True)
        (folder / "plugins").mkdir()
        (campaign / "campaign.yaml").write_text(CAMPAIGN)
        (campaign / "audience.sql").write_text("SELECT device_id, platform FROM devices")
        journey = campaign.with_name("welcome")
        journey.mkdir()
        (journey / "journey.yaml").write_text(JOURNEY)
        (journey / "audience.sql").write_text("SELECT device_id, platform FROM devices")
        (folder / "dags/campaigns.py").write_text(DAGS)
        self._run("-m", "airflow", "db", "migrate")
        self._run("-c", LOAD.format(folder=str(folder / "dags")))
        with self.ledger() as ledger:
            ledger.migrate()
            self.keys = fill(ledger)
            take_steps(ledger, journey)
        line = [sys.executable, "-m", "airflow", "api-server"]
        health = f"{self.url}/api/v2/monitor/health"
        self.server = supervisor.start("api-server", line, self._environment, ready=lambda: answers(health))

    def ledger(self) -> AbstractContextManager[Ledger]:
        """Open the ledger, with the secret that the pages use."""
        return closing(Ledger(self._ledger_url, erasure_secret=ERASURE_SECRET))

    def _run(self, *arguments: str) -> None:
        done = subprocess.run(
            [sys.executable, *arguments],
            env=self._environment,
            capture_output=True,
            text=True,
            timeout=600,
            check=False,
        )
        assert done.returncode == 0, done.stderr[-3_000:]

    def token(self, who: str) -> str:
        answer = requests.post(f"{self.url}/auth/token", json={"username": who, "password": who}, timeout=120)
        assert answer.status_code == 201, answer.text
        return answer.json()["access_token"]

    def api(self, method: str, path: str, body: Any = None) -> Any:
        headers = {"Authorization": f"Bearer {self.token('olga')}"}
        answer = requests.request(
            method, f"{self.url}/api/v2/{path}", json=body, headers=headers, timeout=120
        )
        assert answer.status_code < 300, answer.text
        return answer.json() if answer.content else None

    def run_of(self, key: str) -> str:
        """Create a run of the campaign's DAG for a launch."""
        at = datetime(2026, 1, 1, tzinfo=UTC) + timedelta(minutes=next(self._minutes))
        body = {"logical_date": at.isoformat(), "dag_run_id": f"run-of-{key[:8]}"}
        run = self.api("POST", "dags/spring_sale/dagRuns", body)["dag_run_id"]
        path = f"dags/spring_sale/dagRuns/{run}/taskInstances"
        self.found(f"{path}/audience", key, "spring_sale")
        return run

    def found(self, task: str, key: str, campaign: str) -> None:
        """Do what a task does that found its launch."""
        for name, value in (("launch_key", key), ("campaign", campaign)):
            self.api("POST", f"{task}/xcomEntries", {"key": name, "value": value})

    def journey_run(self) -> str:
        """Create a run of the journey's DAG for its launches, once, and return its ID."""
        body = {"logical_date": datetime(2026, 1, 1, tzinfo=UTC).isoformat(), "dag_run_id": "of-welcome"}
        if any(
            run["dag_run_id"] == "of-welcome" for run in self.api("GET", "dags/welcome/dagRuns")["dag_runs"]
        ):
            return "of-welcome"
        self.api("POST", "dags/welcome/dagRuns", body)
        with self.ledger() as ledger:
            for step in ("hello", "three_tips"):
                newest = ledger.launches.page([f"welcome.{step}"])
                launch = newest[1 if step == "hello" else 0]  # both for the same period
                task = f"dags/welcome/dagRuns/of-welcome/taskInstances/{step}.audience"
                self.found(task, launch.launch_key, launch.campaign)
        return "of-welcome"

    def runs_from(self, name: str, first: datetime) -> None:
        """Have the next run of a daily DAG at a moment."""
        start = first - timedelta(days=1)
        moments = [f"{moment:%Y-%m-%d %H:%M:%S.%f}" for moment in (start, first, start, first)]
        columns = (
            "next_dagrun",
            "next_dagrun_create_after",
            "next_dagrun_data_interval_start",
            "next_dagrun_data_interval_end",
        )
        with closing(sqlite3.connect(self._folder / "airflow.db", timeout=60)) as db, db:
            db.execute(
                f"UPDATE dag SET is_paused = 0, {' = ?, '.join(columns)} = ? WHERE dag_id = ?",
                (*moments, name),
            )

    def fail(self, run: str) -> None:
        """End the sending task, as after a request in doubt when nothing else is left."""
        path = f"dags/spring_sale/dagRuns/{run}/taskInstances/dispatch/0"
        self.api("PATCH", path, {"new_state": "failed"})

    def outside(self, window: Any) -> list[str]:
        """Return the requests of a window to other servers."""
        own = self.url.removesuffix(PATH)
        return [url for url in window.asked_for if not url.removeprefix("blob:").startswith(own)]


@pytest.fixture(scope="module")
def airflow(browser: Any, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Airflow]:
    folder = tmp_path_factory.mktemp("airflow")
    with Supervisor(folder) as supervisor:
        yield Airflow(folder, *reserve_ports(), supervisor)


@pytest.fixture
def visit(browser: Any, airflow: Airflow) -> Iterator[Any]:
    """Open pages as a user, in new windows that collect their requests and complaints."""
    windows = []

    def open_page(path: str, who: str = "olga", width: int = 1280, height: int = 900, **how: Any) -> Any:
        window = new_window(browser, viewport={"width": width, "height": height}, **how)
        windows.append(window)
        window.context.add_cookies(
            [{"name": "_token", "value": airflow.token(who), "url": airflow.url, "httpOnly": True}]
        )
        window.asked_for = []
        window.on("request", lambda sent: window.asked_for.append(sent.url))
        window.goto(f"{airflow.url}/{path}")
        return window

    yield open_page
    for window in windows:
        window.context.close()


CUT_OFF = """() => [...document.querySelectorAll("main .scroll, main .grid")]
    .filter((each) => each.scrollWidth > each.clientWidth + 1).map((each) => each.outerHTML.slice(0, 80))"""
"""The tables that are wider than their place."""


@pytest.fixture(scope="module")
def pages(airflow: Airflow) -> dict[str, str]:
    keys = airflow.keys
    return {
        "launches": "sendoff/",
        "launch": f"sendoff/launches/{keys['reported']}",
        "running": f"sendoff/launches/{keys['running']}",
        "held": f"sendoff/launches/{keys['approval']}",
        "chosen": f"sendoff/launches/{keys['chosen']}",
        "preview": f"sendoff/launches/{keys['reported']}/preview",
        "calendar": "sendoff/calendar",
        "waiting": "sendoff/waiting",
        "doubts": f"sendoff/waiting?launch={keys['failing']}",
        "campaigns": "sendoff/campaigns",
        "campaign": "sendoff/campaigns/spring_sale",
        "journey": "sendoff/campaigns/welcome",
        "step": "sendoff/campaigns/welcome.three_tips",
        "journey_run": f"sendoff/dag?dag_id=welcome&run_id={airflow.journey_run()}",
        "person": "sendoff/person",
        "suppression": "sendoff/suppression",
        "missing": "sendoff/launches/nothing",
    }


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [320, 390, 1280])
def test_every_page_fits_its_window_and_is_readable_there(
    visit: Any, airflow: Airflow, pages: dict[str, str], width: int, scheme: str
) -> None:
    with airflow.ledger() as ledger:
        freeze(ledger, "reactivation_of_customers_who_lapsed_before_spring", day=30)
        large = freeze(ledger, "large", people=2_400_000, size=100_000, dropped={"duplicate": 1_234_567})
    window = visit(pages["launches"], width=width, color_scheme=scheme)
    for name, path in {**pages, "large": f"sendoff/launches/{large}"}.items():
        window.goto(f"{airflow.url}/{path}")
        for summary in window.locator("details > summary").all():
            summary.click()  # check the opened content too
        needed = window.evaluate("document.documentElement.scrollWidth")
        assert needed <= width, f"{name} needs {needed} of {width} pixels"
        assert window.evaluate(UNLABELLED_FIELDS) == [], name
        assert window.evaluate(FAINT_TEXT) == [], name
        assert window.evaluate(ODD_HEADINGS) == [], name
        assert window.evaluate(SMALL_TARGETS) == [], name
    window.goto(f"{airflow.url}/{pages['person']}")
    for device in (FIRST_DEVICE + 77, 4):  # someone with messages, and no one
        window.get_by_label("Identifier").fill(str(device))
        window.keyboard.press("Enter")
        window.locator("#found").get_by_text(
            "Got it" if device > 4 else "had this identifier"
        ).first.wait_for()
        assert window.evaluate("document.documentElement.scrollWidth") <= width
        assert window.evaluate(FAINT_TEXT) == []
    ground = window.evaluate("getComputedStyle(document.body).backgroundColor")
    assert ground == {"light": "rgb(255, 255, 255)", "dark": "rgb(20, 23, 27)"}[scheme]
    assert [text for text in window.complaints if "404" not in text] == []
    own = airflow.url.removesuffix(PATH) + PATH + "/"
    assert [url for url in window.asked_for if not url.startswith(own)] == []


def test_a_title_from_right_to_left_stays_before_its_date(visit: Any, airflow: Airflow) -> None:
    title = "عرض الربيع للعملاء"
    with airflow.ledger() as ledger:
        key = freeze(
            ledger, "arabic", people=8, day=31, state="rejected", definition={**PUSH, "title": title}
        )
    window = visit(f"sendoff/launches/{key}")
    ends = window.evaluate("""() => { const range = document.createRange(), head = document.querySelector('h1');
      range.selectNodeContents(head.firstChild); const date = head.querySelector('time').firstChild;
      const digits = document.createRange(); digits.setStart(date, 0); digits.setEnd(date, 2);
      return [range.getBoundingClientRect().right, digits.getBoundingClientRect().left]; }""")
    assert ends[0] <= ends[1] + 1


def test_a_viewer_sees_no_button_that_decides(visit: Any, airflow: Airflow, pages: dict[str, str]) -> None:
    window = visit(pages["waiting"], who="vera")
    for name in ("waiting", "held", "running", "campaign"):
        window.goto(f"{airflow.url}/{pages[name]}")
        assert window.locator("form[data-act], button[data-airflow-method]").count() == 0, name


def test_a_period_is_sent_again_with_a_reason(visit: Any, airflow: Airflow, pages: dict[str, str]) -> None:
    window = visit(pages["launch"])
    form = window.locator("#act-send-again")
    form.locator("summary").click()
    form.get_by_label("Why?").fill("  ")
    form.get_by_role("button", name="Send again", exact=True).click()
    assert form.get_attribute("open") is not None  # a reason is required
    form.get_by_label("Why?").fill("  the title was too long")
    form.get_by_role("button", name="Send again", exact=True).click()
    window.locator("#said").get_by_text("Its launch appears here").wait_for()
    assert form.get_attribute("open") is None
    (run,) = (
        each
        for each in airflow.api("GET", "dags/spring_sale/dagRuns")["dag_runs"]
        if each["conf"].get("resend")
    )
    assert run["conf"]["reason"] == "the title was too long"
    airflow.api("DELETE", f"dags/spring_sale/dagRuns/{run['dag_run_id']}")  # other pages would show it


def test_a_test_is_sent_from_the_page_where_the_text_is(
    visit: Any, airflow: Airflow, pages: dict[str, str]
) -> None:
    window = visit(pages["campaign"])
    window.get_by_text("Everything for the garden").first.wait_for()
    window.get_by_role("button", name="Send a test").click()
    window.locator("#said").get_by_text("The test waits until someone unpauses its DAG").wait_for()
    [run] = airflow.api("GET", "dags/sendoff_test/dagRuns")["dag_runs"]
    assert (run["conf"]["campaign"], run["triggering_user_name"]) == ("spring_sale", "olga")
    window.get_by_role("link", name="Earlier tests").click()
    window.get_by_text("No launches match.").wait_for()
    assert window.complaints == []


def test_in_airflow_the_pages_follow_its_light_and_dark_and_lead_back_to_it(
    visit: Any, airflow: Airflow
) -> None:
    key = airflow.keys["reported"]
    run = airflow.run_of(key)
    window = visit("", color_scheme="light")
    window.get_by_role("link", name="Sendoff").click()
    frame = window.frame_locator("iframe")
    frame.get_by_role("heading", name="Launches", exact=True).wait_for()
    root = "document.querySelector('iframe').contentDocument.documentElement"
    framed = window.frames[1]
    for theme in ("dark", "light"):
        window.evaluate(f"document.documentElement.className = '{theme}'")
        window.wait_for_function(f"{root}.dataset.theme === '{theme}'")
        theirs = "getComputedStyle(document.documentElement).getPropertyValue('--chakra-{}')".format
        assert window.evaluate(theirs("colors-bg"))
        assert framed.evaluate(COLOURS) == [
            window.evaluate(SHOWN, theirs_of) for theirs_of in ("colors-bg", "colors-fg", "colors-fg-info")
        ]
        font = framed.evaluate("getComputedStyle(document.body).fontFamily")
        assert font == window.evaluate("getComputedStyle(document.body).fontFamily")
        assert framed.evaluate(FAINT_TEXT) == [], theme
    frame.locator(f"table a[href*='{key}']").first.click()
    link = frame.get_by_role("link", name="Its run in Airflow")
    link.click()
    window.wait_for_url(f"**{PATH}/dags/spring_sale/runs/{run}**")
    # ... and the page of the run has a tab with the launch, beside the link to all pages.
    window.locator("a[href$='/plugin/sendoff-launch']").click()
    window.wait_for_url("**/plugin/sendoff-launch")
    window.frame_locator("iframe").get_by_role("heading", name="Spring sale", level=1).wait_for()
    assert airflow.outside(window) == []


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_the_entry_in_airflows_navigation_is_seen_whether_its_page_is_open_or_not(
    visit: Any, scheme: str
) -> None:
    window = visit("", color_scheme=scheme)
    entry = window.get_by_role("link", name="Sendoff")
    entry.wait_for()
    grounds = set()
    for is_open in (False, True):
        if is_open:
            entry.click()
            window.frame_locator("iframe").get_by_role("heading", name="Launches", exact=True).wait_for()
            window.mouse.move(640, 450)
        image = entry.locator("img")
        image.evaluate("image => image.decode()")  # it is loaded after the entry is there
        icon = Image.open(BytesIO(image.screenshot())).convert("RGB")
        pixels = [icon.getpixel((x, y)) for y in range(icon.height) for x in range(icon.width)]
        grounds.add(pixels[0])
        seen = [pixel for pixel in pixels if contrast(pixel, pixels[0]) >= 4.5]
        assert len(seen) > len(pixels) / 20, (scheme, is_open)
    assert len(grounds) == 2  # Airflow marks the open page


def test_times_are_shown_in_the_zone_that_was_chosen_in_airflow(visit: Any, airflow: Airflow) -> None:
    window = visit("", timezone_id="Asia/Kolkata")
    window.get_by_role("link", name="Sendoff").click()
    frame = window.frame_locator("iframe")
    frame.get_by_text("Times are in Asia/").first.wait_for()  # the browser's zone: no one has chosen another
    window.evaluate("document.querySelector('iframe').contentWindow.untouched = true")
    window.get_by_role("button", name="+05:30").click()
    window.get_by_role("combobox").last.fill("Honolulu")
    window.keyboard.press("Enter")
    frame.get_by_text("Times are in Pacific/Honolulu.").first.wait_for()
    assert window.evaluate("document.querySelector('iframe').contentWindow.untouched")

    now = datetime.now(UTC).replace(hour=11, minute=30, second=0, microsecond=0)
    with airflow.ledger() as ledger:
        key = freeze(ledger, "welcome_back", day=20, made=now)
    here = ZoneInfo("Pacific/Honolulu")
    window.clock.set_fixed_time(now + timedelta(hours=1))
    window.goto(f"{airflow.url}/sendoff/launches/{key}")
    made = window.locator("time", has_text="today 01:30").first
    local = now.astimezone(here)
    assert (
        made.get_attribute("title") == f"{local:%A}, {local.day} {local:%B %Y} at 01:30:00 (Pacific/Honolulu)"
    )
    for hours, words in ((-11, "tomorrow 01:30"), (23, "yesterday 01:30")):
        window.clock.set_fixed_time(now + timedelta(hours=hours))
        window.reload()
        window.locator("time", has_text=words).first.wait_for()
    window.evaluate("localStorage.setItem('timezone', '\"Nowhere/Else\"')")
    window.reload()
    window.get_by_text("Times are in Asia/").first.wait_for()
    assert [text for text in window.complaints if "sandbox" not in text] == []  # Airflow's own frame


def test_a_launch_is_released_by_keyboard_alone(visit: Any, airflow: Airflow) -> None:
    with airflow.ledger() as ledger:
        key = freeze(ledger, "spring_sale", state="held", day=9, made=NOW)
        window = visit(f"sendoff/launches/{key}")
        window.keyboard.press("Tab")
        assert window.evaluate("document.activeElement.textContent") == "Skip to the content"
        window.locator("summary", has_text="Approve").focus()
        window.keyboard.press("Enter")
        window.get_by_text("This cannot be taken back.").wait_for()
        window.locator("[name=reason]:focus").wait_for()
        window.keyboard.type("not yet")
        window.keyboard.press("Escape")
        assert window.evaluate("document.activeElement.textContent").startswith("Approve")
        assert window.locator("details.act[open]").count() == 0
        window.keyboard.press("Enter")
        window.locator("[name=reason]:focus").wait_for()
        assert window.evaluate("document.activeElement.value") == ""
        window.keyboard.type("the numbers are right")
        window.keyboard.press("Tab")
        assert window.evaluate("document.activeElement.textContent") == "Approve"
        assert window.evaluate("getComputedStyle(document.activeElement).outlineStyle") == "solid"
        window.keyboard.press("Enter")
        window.get_by_text("Approved: the launch may now be sent.").wait_for()
        window.locator("#said:focus").wait_for()
        window.locator("h1 .badge", has_text="sending").wait_for()
        decision = ledger.audit_log.of_launch(key)[-1]
        assert (decision.kind, decision.who, decision.why) == ("released", "olga", "the numbers are right")
        window.locator("summary", has_text="Stop for good").click()
        window.get_by_role("button", name="Stop for good").click()  # without a reason
        window.locator("[name=reason]:focus").wait_for()
        assert ledger.launches.get(key).state == "released"
        assert airflow.outside(window) == []
        assert window.complaints == []


def test_what_somebody_else_was_faster_with_is_said(visit: Any, airflow: Airflow) -> None:
    with airflow.ledger() as ledger:
        key = freeze(ledger, "spring_sale", state="held", day=10, made=NOW)
        window = visit(f"sendoff/launches/{key}")
        reject(ledger, key, "ann", "no")
        window.locator("summary", has_text="Approve").click()
        window.get_by_label("Why?").first.fill("yes")
        window.get_by_role("button", name="Approve").click()
        window.get_by_role("alert").get_by_text("the launch is now rejected").wait_for()
        window.locator("h1 .badge", has_text="rejected").wait_for()


def test_a_form_is_cancelled_and_the_focus_goes_back(visit: Any, pages: dict[str, str]) -> None:
    window = visit(pages["waiting"])
    for form in window.locator("details.act").all():
        form.locator("summary").click()
        form.locator("select, textarea").first.wait_for()
        window.locator("select:focus, textarea:focus").wait_for()
        form.get_by_role("button", name="Cancel").click()
        assert form.get_attribute("open") is None
        assert form.locator("summary").evaluate("each => each === document.activeElement")
    assert window.complaints == []


def test_requests_in_doubt_are_selected_together_and_the_buttons_count_them(
    visit: Any, airflow: Airflow
) -> None:
    with airflow.ledger() as ledger:
        key = freeze(ledger, "spring_sale", people=7, day=12)
        send(ledger, key, TIMED_OUT, TIMED_OUT, TIMED_OUT)
        sizes = [part.people for part in ledger.dispatch_queries.segment_sizes(key)][:3]
        window = visit(f"sendoff/waiting#doubt-{key}")
        card = window.locator(f"#doubt-{key}")
        card.locator("summary").click()
        resend, write_off = card.locator("button[data-verb]").all()
        assert resend.text_content() == f"Resend 3 requests to {sum(sizes)} devices"
        whole = card.get_by_role("checkbox", name="All requests")
        card.get_by_role("checkbox", name="segment 1").uncheck()
        assert resend.text_content() == f"Resend 2 requests to {sum(sizes[1:])} devices"
        assert write_off.text_content() == f"Write off 2 requests to {sum(sizes[1:])} devices"
        assert whole.evaluate("each => each.indeterminate")
        whole.check()
        assert resend.text_content() == f"Resend 3 requests to {sum(sizes)} devices"
        whole.uncheck()
        assert (resend.text_content(), resend.is_disabled()) == ("Resend", True)
        assert not card.get_by_role("checkbox", name="segment 2").is_checked()
        card.get_by_role("checkbox", name="segment 2").check()
        one = "device" if sizes[1] == 1 else "devices"
        assert resend.text_content() == f"Resend 1 request to {sizes[1]} {one}"
        card.get_by_label("Why?").fill("nobody got it")
        resend.click()
        window.get_by_text("1 request planned again.").wait_for()
        assert ledger.dispatch_queries.states(key)["in_doubt"] == 2
        card.locator("summary").click()
        card.get_by_role("button", name="Write off 2 requests").wait_for()
        assert window.complaints == []


def test_who_is_logged_out_logs_in_and_comes_back(
    visit: Any, airflow: Airflow, pages: dict[str, str]
) -> None:
    window = visit("sendoff/waiting")
    window.context.clear_cookies()
    window.goto(f"{airflow.url}/{pages['campaign']}?page=1")
    window.get_by_role("heading", name="Log in to see this").wait_for()
    window.get_by_role("link", name="Log in").click()
    window.get_by_label("Username").fill("olga")
    window.get_by_label("Password").fill("olga")
    window.get_by_role("button", name="Sign in").click()
    window.frame_locator("iframe").get_by_role("heading", name="Spring sale", level=1).wait_for()


def test_a_doubt_is_resent_and_the_task_that_sends_is_cleared(visit: Any, airflow: Airflow) -> None:
    with airflow.ledger() as ledger:
        key = freeze(ledger, "spring_sale", people=6, day=11)
        send(ledger, key, TIMED_OUT, TIMED_OUT)
        run = airflow.run_of(key)
        airflow.fail(run)
        window = visit(f"sendoff/waiting#doubt-{key}")
        card = window.locator(f"#doubt-{key}")
        card.get_by_role("checkbox", name="segment 1").uncheck()
        card.locator("summary").click()
        card.get_by_text("twice").wait_for()
        card.get_by_label("Why?").fill("nobody got it")
        card.get_by_role("button", name="Resend").click()
        window.get_by_text("1 request planned again.").wait_for()
        assert ledger.dispatch_queries.states(key) == {"in_doubt": 1, "planned": 2}
        window.get_by_text("continues: its remaining 2 requests go out").wait_for()
        task = airflow.api("GET", f"dags/spring_sale/dagRuns/{run}/taskInstances/dispatch/0")
        assert task["state"] is None


def test_a_stuck_launch_is_continued_step_by_step(visit: Any, airflow: Airflow) -> None:
    with airflow.ledger() as ledger:
        key = freeze(ledger, "spring_sale", people=6, day=14)
        airflow.fail(airflow.run_of(key))
        window = visit(f"sendoff/launches/{key}")
        window.locator("h1 .badge", has_text="stuck").wait_for()
        window.get_by_role("button", name="Unpause the DAG").click()
        window.get_by_text("Unpaused. Airflow continues its runs.").wait_for()
        try:
            window.reload()
            window.get_by_role("button", name="Continue").click()
            window.get_by_text(
                "continues: its 3 requests go out as soon as Airflow has a free worker."
            ).wait_for()
            link = window.locator("#said").get_by_role("link", name="Spring sale")
            assert link.evaluate("each => each.href") == f"{airflow.url}/sendoff/launches/{key}"
            window.locator("h1 .badge", has_text="sending").wait_for()
        finally:
            airflow.api("PATCH", "dags/spring_sale", {"is_paused": True})


def test_the_page_looks_again_by_itself_and_disturbs_nobody(visit: Any, airflow: Airflow) -> None:
    with airflow.ledger() as ledger:
        key = freeze(ledger, "welcome_back", people=8, size=1, day=12, made=datetime.now(UTC))
        window = visit("about:blank")
        window.clock.install()
        window.goto(f"{airflow.url}/sendoff/launches/{key}")
        window.get_by_text("0 of 8 requests made").wait_for()
        window.evaluate("window.untouched = true")
        window.locator("#each-request > summary").click()
        window.locator("#state").focus()
        window.evaluate("document.activeElement.blur()")
        window.get_by_role("link", name="What it sends").focus()
        send(ledger, key, Accepted(200, 1))
        window.clock.run_for(5_000)
        window.get_by_text("1 of 8 requests made").wait_for()
        assert window.evaluate("document.activeElement.textContent") == "What it sends"

        window.locator("summary", has_text="Pause").click()
        window.get_by_label("Why?").first.fill("wait a mo")
        send(ledger, key, Accepted(200, 2))
        before = len(window.asked_for)
        window.clock.run_for(60_000)
        assert len(window.asked_for) == before
        assert window.get_by_label("Why?").first.input_value() == "wait a mo"
        window.get_by_label("Why?").first.fill("")
        window.locator("summary", has_text="Pause").click()
        window.evaluate("document.activeElement.blur()")
        window.clock.run_for(5_000)
        window.get_by_text("2 of 8 requests made").wait_for()

        hide = "is => { Object.defineProperty(document, 'hidden', {value: is, configurable: true});"
        hide += " document.dispatchEvent(new Event('visibilitychange')); }"
        window.evaluate(hide, True)
        before = len(window.asked_for)
        window.clock.run_for(60_000)
        assert len(window.asked_for) == before
        send(ledger, key, Accepted(200, 3))
        window.evaluate(hide, False)
        window.get_by_text("3 of 8 requests made").wait_for()
        assert window.evaluate("window.untouched")

        window.route("**/sendoff/**", lambda route: route.abort())
        window.clock.run_for(5_000)
        window.get_by_text("No connection").wait_for()
        window.unroute("**/sendoff/**")
        window.clock.run_for(30_000)
        window.get_by_text("No connection").wait_for(state="hidden")


def test_an_email_is_shown_in_a_frame_that_does_nothing(visit: Any, airflow: Airflow) -> None:
    html = "<h1 style='color: #ff0000'>Spring</h1><script>top.document.title = 'run'</script>"
    html += "<img src='https://elsewhere.example/pixel.png' alt='tulips'><a href='https://elsewhere.example/'>Shop</a>"
    email = {"from_address": 1, "subject": "Spring is here", "html": html}
    with airflow.ledger() as ledger:
        definition = {"title": "A", "channels": {"email": email}}
        made = datetime.now(UTC) - timedelta(days=1)
        key = freeze(ledger, "letter", people=8, size=1, made=made, definition=definition)
        window = visit("about:blank")
        window.clock.install()
        window.goto(f"{airflow.url}/sendoff/launches/{key}")
        frame = window.frame_locator("iframe[title='Email: Spring is here']")
        heading = frame.get_by_role("heading", name="Spring")
        heading.wait_for()
        assert heading.evaluate("getComputedStyle(document.querySelector('h1')).color") == "rgb(255, 0, 0)"
        frame.get_by_role("link", name="Shop").click()
        parts = window.locator("main > *").count()
        window.evaluate("window.first = document.querySelector('iframe')")
        send(ledger, key, Accepted(200, 1), at=made)
        window.clock.run_for(5_000)
        window.get_by_text("1 of 8 requests made").wait_for()
        assert window.locator("main > *").count() != parts
        assert window.evaluate("window.first.isConnected"), "a part that did not change was replaced"
    assert "run" not in window.title()
    assert [url for url in airflow.outside(window) if not url.startswith("https://elsewhere.example/")] == []
    assert any("violates" in each and "img-src" in each for each in window.complaints)
    assert any("Blocked script" in each for each in window.complaints)


def test_a_report_is_downloaded_from_the_page_in_airflow(visit: Any, airflow: Airflow) -> None:
    window = visit("plugin/sendoff")
    frame = window.frame_locator("iframe")
    with window.expect_download() as started:
        frame.get_by_role("link", name="as a table").click()
    assert started.value.suggested_filename.startswith("launches-")
    assert "spring_sale,Spring sale," in started.value.path().read_text(encoding="utf-8-sig")
    frame.locator(f"table a[href*='{airflow.keys['reported']}']").first.click()
    for name, end in (("a page", ".html"), ("a picture", ".png"), ("a table", ".csv")):
        with window.expect_download() as started:
            frame.get_by_role("link", name=name).click()
        assert started.value.suggested_filename.startswith("spring_sale-")
        assert started.value.suggested_filename.endswith(end)
        assert started.value.path().stat().st_size > 500


def test_a_person_is_looked_up_without_standing_in_an_address(visit: Any, airflow: Airflow) -> None:
    device = str(FIRST_DEVICE + 77)
    window = visit("sendoff/person")
    window.get_by_label("Identifier").fill(device)
    window.keyboard.press("Enter")
    window.get_by_text("Got it: delivered").first.wait_for()
    assert window.get_by_text("the launch was stopped").count() == 1
    assert device not in window.url
    assert [url for url in window.asked_for if device in url] == []
    assert device not in airflow.server.log.read_text()
    kept = window.evaluate("document.cookie + JSON.stringify(localStorage) + JSON.stringify(sessionStorage)")
    assert kept == "sendoff-zone=UTC{}{}"


def test_a_recipient_is_suppressed_and_looked_up_without_standing_in_an_address(
    visit: Any, airflow: Airflow
) -> None:
    device = str(FIRST_DEVICE + 31)
    window = visit("sendoff/suppression", width=390)
    window.get_by_text("Suppress a recipient…").click()
    form = window.locator("#act-add")
    form.get_by_label("Identifier", exact=True).fill(device)
    assert not form.get_by_label("Topic", exact=True).is_visible()
    form.get_by_label("Campaigns").select_option("topic")
    form.get_by_label("Topic", exact=True).fill("news")
    form.get_by_label("Why?").fill("asked on the phone")
    form.get_by_role("button", name="Suppress", exact=True).click()
    window.get_by_text("Suppressed for campaigns on the topic news.").wait_for()
    window.get_by_text("1 device added").first.wait_for()
    find = window.locator("form[data-into=found]")
    find.get_by_label("Identifier", exact=True).fill(device)
    find.get_by_role("button", name="Search").click()
    found = window.locator("#found")
    found.get_by_text("asked on the phone").wait_for()
    assert "olga" in found.inner_text()
    assert window.evaluate("document.documentElement.scrollWidth") <= 390
    assert window.evaluate(FAINT_TEXT) == []
    assert device not in window.url
    assert [url for url in window.asked_for if device in url] == []
    assert device not in airflow.server.log.read_text()
    assert window.complaints == []


def test_what_is_held_about_a_person_is_downloaded_and_then_erased(visit: Any, airflow: Airflow) -> None:
    device = str(FIRST_DEVICE + 32)
    window = visit("sendoff/suppression")
    window.get_by_text("Export…").click()
    form = window.locator("#act-export")
    form.get_by_label("Identifier", exact=True).fill(device)
    form.get_by_label("Why?").fill("a letter")
    with window.expect_download() as started:
        form.get_by_role("button", name="Download").click()
    assert started.value.suggested_filename == "person.json"
    held = json.loads(started.value.path().read_text())
    assert held["identifier"] == device
    assert held["launches"]
    window.get_by_text("The file is downloaded.").wait_for()
    window.get_by_text("Erase…").click()
    form = window.locator("#act-erase")
    form.get_by_label("Identifier", exact=True).fill(device)
    form.get_by_label("The same identifier again").fill(f"{device}0")
    form.get_by_label("Why?").fill("a letter")
    form.get_by_role("button", name="Erase").click()
    window.get_by_text("the two identifiers differ").wait_for()
    form.get_by_label("The same identifier again").fill(device)
    form.get_by_role("button", name="Erase").click()
    window.get_by_text("The erasure is requested").wait_for()
    with airflow.ledger() as ledger:
        assert [request.who for request in ledger.erasures.pending()] == ["olga"]
    assert all("422" in text for text in window.complaints)
    assert not any(device in url for url in window.asked_for)
    assert device not in airflow.server.log.read_text()


def test_an_uploaded_file_shows_its_counts_before_anything_changes(
    visit: Any, airflow: Airflow, tmp_path: Path
) -> None:
    file = tmp_path / "opted-out.csv"
    devices = range(8_000_000_001, 8_000_000_041)
    file.write_text("device_id\n" + "\n".join(map(str, devices)))

    def members() -> int:
        with airflow.ledger() as ledger:
            now = datetime.now(UTC)
            return sum(each.entries for each in ledger.suppressions.sizes(now) if each.source == "crm")

    window = visit("sendoff/suppression")

    def check(words: str) -> None:
        window.get_by_text("Upload a file…").click()
        form = window.locator("#act-file")
        form.get_by_label("File", exact=True).set_input_files(file)
        form.get_by_label("What to do").select_option("replace")
        form.get_by_label("Source").fill("crm")
        form.get_by_label("Why?").fill("the weekly file")
        form.get_by_role("button", name="Check the file").click()
        form.get_by_text(words).wait_for()
        assert window.evaluate(FAINT_TEXT) == []

    check("40 devices would be added, 0 removed")
    assert members() == 0
    window.get_by_role("button", name="Add 40").click()
    window.get_by_text("40 devices added, for every campaign, except transactional ones.").wait_for()
    window.locator("main").get_by_text("40 devices added").wait_for()  # the page shows the new state
    assert members() == 40
    file.write_text("device_id\n")
    check("0 devices would be added, 40 removed")
    window.get_by_role("button", name="Remove 40").click()
    window.get_by_text("select the box that confirms").wait_for()
    assert members() == 40
    window.get_by_label("is the file complete?").check()
    window.get_by_role("button", name="Remove 40").click()
    window.get_by_text("40 devices removed, for every campaign, except transactional ones.").wait_for()
    window.locator("main").get_by_text("40 devices removed").wait_for()
    assert members() == 0
    file.write_text("device_id\n8000000001\nforty\n")
    check("line 3: the value in the column device_id is not a whole number")
    assert all("422" in text for text in window.complaints)
    assert not any("80000000" in url for url in window.asked_for)


def test_the_pictures_are_taken(visit: Any, airflow: Airflow, pages: dict[str, str], tmp_path: Path) -> None:
    folder = picture_folder(tmp_path)
    shots = {
        "ui-launches": ("plugin/sendoff", 1280, False),
        "ui-launch": (pages["launch"], 1280, True),
        "ui-waiting": (pages["waiting"], 1280, True),
        "ui-campaign": (pages["campaign"], 1280, True),
        "ui-phone": (pages["launches"], 390, False),
        "ui-calendar": (pages["calendar"], 1280, True),
    }
    for (name, (path, width, whole)), scheme in product(shots.items(), ("light", "dark")):
        if name == "ui-calendar" and scheme == "light":
            fill_month(airflow)
        window = visit(path, color_scheme=scheme, width=width, height=860)
        if path.startswith("plugin"):
            frame = window.frame_locator("iframe")
            frame.get_by_role("heading", name="Launches", exact=True).wait_for()
        if name == "ui-waiting":
            window.locator("article[id^=doubt] summary").last.click()
        picture = folder / f"{name}{'-dark' if scheme == 'dark' else ''}.png"
        window.screenshot(path=picture, full_page=whole)
        assert picture.stat().st_size > 20_000


@pytest.mark.parametrize("width", [390, 1280])
def test_long_words_are_broken_and_not_cut_off(visit: Any, airflow: Airflow, width: int) -> None:
    name = f"{width}_" + "c" * 146
    with airflow.ledger() as ledger:
        key = freeze(ledger, name)
        send(ledger, key, InDoubt("d" * 200), Refused(400, "r" * 200))
        source = SuppressionChange("account", "device_id", "s" * 60, "ann", "asked for it")
        ledger.suppressions.add(source, integers([width]), NOW, is_audited=True)
    window = visit("sendoff/campaigns", width=width)
    for path in ("campaigns", f"waiting?launch={key}", f"launches/{key}?state=all", "suppression"):
        window.goto(f"{airflow.url}/sendoff/{path}")
        window.evaluate("document.querySelectorAll('main details').forEach((each) => { each.open = true; })")
        assert window.evaluate("document.documentElement.scrollWidth") <= width, path
        assert window.evaluate(CUT_OFF) == [], path
