"""The pages of the service in a real browser: by keyboard, on a phone, in dark mode, and with hostile content."""

from __future__ import annotations

import http.server
import json
import sqlite3
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import closing
from datetime import datetime
from pathlib import Path
from zoneinfo import ZoneInfo

import pytest
import requests

from .browser import FAINT_TEXT, UNLABELLED_FIELDS, new_window, picture_folder

COMMAND = Path(sys.executable).with_name("messaging-service")
API = "/settings/integrations/api"
DEVICES = """device_id,platform,profile_id,user_id,language,time_zone,email,mobile_number,first_name
1,ios,10001,cust-1,en,Europe/Dublin,aoife@example.org,+353870000001,Aoife
2,android,10002,cust-2,en,Europe/Dublin,,,Conor
3,chrome,10003,cust-3,en,Europe/Dublin,,,Maeve
"""
HOSTILE_EMAIL = """<h1>Bulbs</h1>
<script>parent.document.title = 'ran'; fetch('EVIL/script')</script>
<img src="EVIL/picture" onerror="parent.document.title = 'ran'">
<meta http-equiv="refresh" content="0; url=EVIL/refresh">
<form action="EVIL/form"><button id="send">send</button></form>
<a id="link" href="EVIL/link">see them</a>
<a id="top" target="_top" href="EVIL/top">leave</a>"""
EVENING = """<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 600 300" width="600" height="300">
<defs><linearGradient id="s" x2="0" y2="1"><stop stop-color="#2b2f77"/><stop offset=".55" stop-color="#d9657d"/>
<stop offset="1" stop-color="#ffc27a"/></linearGradient></defs>
<rect width="600" height="300" fill="url(#s)"/><circle cx="430" cy="176" r="46" fill="#ffe3a8"/>
<path d="M0 205C120 150 210 235 330 200S520 150 600 190V300H0Z" fill="#5a3c6e"/>
<path d="M0 245C90 200 220 275 340 238S540 215 600 240V300H0Z" fill="#2f2a52"/>
<g stroke="#1d1a38" stroke-width="5" stroke-linecap="round"><path d="M96 268V226M136 274V216M176 270V232"/></g>
<g fill="#ff8f8f"><circle cx="96" cy="220" r="13"/><circle cx="136" cy="208" r="16"/>
<circle cx="176" cy="226" r="12"/></g></svg>"""


class Endpoint:
    """Take post-backs, and record the path of every other request."""

    def __init__(self) -> None:
        self.asked_for = asked_for = []

        class Handler(http.server.BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"  # connections stay open

            def do_POST(self) -> None:
                self.rfile.read(int(self.headers["Content-Length"]))
                if self.path not in ("", "/"):
                    asked_for.append(self.path)
                self.send_response(204)
                self.end_headers()

            def do_GET(self) -> None:
                asked_for.append(self.path)
                self.send_error(404)

            def log_message(self, *_: object) -> None:
                pass

        self.server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.thread = threading.Thread(target=self.server.serve_forever, args=(0.05,))
        self.thread.start()
        self.url = f"http://127.0.0.1:{self.server.server_address[1]}"

    def close(self) -> None:
        self.server.shutdown()
        self.thread.join()
        self.server.server_close()


class Service:
    """A running service with an app and devices. Every message arrives at once and is opened, or a share of them."""

    def __init__(self, folder: Path, devices: str = DEVICES, share: str = "1") -> None:
        self.file = folder / "service.db"
        self.database = ("--database", f"sqlite:///{self.file}")
        (folder / "devices.csv").write_text(devices)
        app = self.command("apps", "add", "--name", "Fernhill", "--time-zone", "Europe/Dublin")
        self.app_token = app["apptoken"]
        self.command("devices", "import", str(folder / "devices.csv"))
        at_once = ("--delivered", share, "--opened", share, "--delay-from", "0", "--delay-to", "0")
        self.process = subprocess.Popen(
            [COMMAND, "serve", "--port", "0", *at_once, *self.database], stdout=subprocess.PIPE, text=True
        )
        assert self.process.stdout is not None
        self.url = json.loads(self.process.stdout.readline())["listening"]
        self.endpoint = Endpoint()

    def command(self, *arguments: str) -> dict:
        done = subprocess.run(
            [COMMAND, *arguments, *self.database], check=True, capture_output=True, timeout=120
        )
        return json.loads(done.stdout)

    def send(self, **fields: object) -> str:
        """Create a campaign, wait until it is finished, and return the URL of its first message."""
        posted = {"webhook_delivery": self.endpoint.url, "webhook_open": self.endpoint.url}
        body = {"apptoken": self.app_token, "title": "A campaign", **posted, **fields}
        answer = requests.post(f"{self.url}/api/external/create/campaign", json=body, timeout=120)
        assert answer.status_code == 200, answer.text
        deadline = time.monotonic() + 120
        while not requests.get(f"{self.url}/admin/progress", timeout=120).json()["quiet"]:
            assert time.monotonic() < deadline
            time.sleep(0.05)
        with closing(sqlite3.connect(self.file, timeout=120)) as connection:
            query = "SELECT min(id) FROM sends WHERE campaign_id = ?"
            (send,) = connection.execute(query, (answer.json()["model"]["id"],)).fetchone()
        return f"/messages/{send}"

    def newest(self) -> int:
        """Return the id of the newest campaign."""
        return requests.get(f"{self.url}/admin/campaigns?count=1", timeout=120).json()["campaigns"][0]["id"]

    def hostile_email(self) -> str:
        """Return HTML that tries in every way to reach the endpoint, and forget earlier requests."""
        self.endpoint.asked_for.clear()
        return HOSTILE_EMAIL.replace("EVIL", self.endpoint.url)

    def close(self) -> None:
        self.process.terminate()
        self.process.wait(120)
        assert self.process.stdout is not None
        self.process.stdout.close()
        self.endpoint.close()


@pytest.fixture(scope="module")
def service(browser, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Service]:
    started = Service(tmp_path_factory.mktemp("service"))
    yield started
    started.close()


@pytest.fixture
def visit(browser, service):
    """Open pages in new windows that collect their warnings and errors in ``complaints``."""
    windows = []

    def open_page(path, width=1280, height=840, **how):
        window = new_window(browser, viewport={"width": width, "height": height}, **how)
        windows.append(window)
        window.on("dialog", lambda dialog: (window.complaints.append("dialog"), dialog.dismiss()))
        window.goto(service.url + path)
        return window

    yield open_page
    for window in windows:
        window.context.close()


@pytest.fixture(scope="module")
def pages(service):
    """Return the URLs of pages of every kind, each with some content."""
    text = {
        "push_title": "Your evening",
        "push_text": "Hi {{first_name}}",
        "url": "https://fernhill.example/a",
    }
    push = service.send(**text, ios_push=1, android_push=1, web_push=1, broadcast=1, colour="green")
    inbox = service.send(**text, inbox=1, device_ids=[1])
    browser_inbox = service.send(**text, inbox=1, device_ids=[3])
    sms = {"9": {"sms": {"from": "Fernhill", "text": "Hi {{first_name}}"}}}
    email = {"7": {"email_subject": "Bulbs", "email_html": "<h1>Bulbs</h1>", "email_text": "Bulbs"}}
    number = int(push.removeprefix("/messages/"))
    for key in range(2):
        service.send(**text, title=f"Welcome back [{key:032x}]", android_push=1, device_ids=[2])
    launch = service.newest() - 1
    return [
        "/campaigns",
        f"/launches/{launch}",
        "/campaigns/1",
        "/campaigns/1/runs",
        "/campaigns/1/post-backs",
        "/campaigns/1/request",
        *(f"/messages/{number + n}" for n in range(3)),
        inbox,
        browser_inbox,
        service.send(sms=1, messages=sms, device_ids=[1]),
        service.send(email=1, messages=email, device_ids=[1]),
        "/search?q=cust-1",
        "/search?q=nobody",
        "/devices/1",
        "/requests",
        "/requests/1",
        "/faults",
        API,
        f"{API}/add-client-id",
        "/campaigns/999",
    ]


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [360, 1280])
def test_every_page_fits_its_window_and_is_readable_there(visit, pages, width, scheme):
    window = visit(pages[0], width=width, color_scheme=scheme)
    for path in pages:
        window.goto(visit_address(window, path))
        needed = window.evaluate("document.documentElement.scrollWidth")
        assert needed <= width, f"{path} needs {needed} of {width} pixels"
        assert window.evaluate(UNLABELLED_FIELDS) == [], path
        assert window.evaluate(FAINT_TEXT) == [], path
    ground = window.evaluate("getComputedStyle(document.body).backgroundColor")
    assert ground == {"light": "rgb(255, 255, 255)", "dark": "rgb(20, 23, 27)"}[scheme]
    assert [text for text in window.complaints if "404" not in text] == []


def visit_address(window, path):
    return window.evaluate("location.origin") + path


def test_a_list_refreshes_itself_and_keeps_focus_scroll_and_selection(visit, service):
    title = "Live [{:032x}]"
    for number in range(3):
        service.send(title=title.format(number), push_text="x", android_push=1, device_ids=[2])
    first = f"/launches/{service.newest() - 2}"
    window = visit("/campaigns", height=240)
    link = window.locator(f'a[href="{first}"]')
    link.focus()
    window.evaluate("getSelection().selectAllChildren(document.querySelector('h1')); scrollTo(0, 40)")
    service.send(title=title.format(9), push_text="x", android_push=1, device_ids=[1, 2])
    service.send(title="Another", push_text="x", android_push=1, device_ids=[2])
    window.get_by_role("link", name="Another", exact=True).wait_for()
    row = window.locator(f'tr[data-key="{first.rpartition("/")[2]}"]')
    row.get_by_text("4 requests").wait_for()
    assert window.evaluate("document.activeElement.getAttribute('href')") == first
    assert window.evaluate("[getSelection().toString(), scrollY]") == ["Campaigns", 40]
    assert window.locator("tr[data-key]").first.text_content().strip().startswith("Another")
    assert window.complaints == []


def test_a_page_that_cannot_refresh_says_so_until_it_can(visit, service):
    window = visit("/faults")
    window.fill("#by", "3h")
    window.context.set_offline(True)
    window.get_by_text("No connection.").wait_for()
    window.context.set_offline(False)
    window.locator("#stale").wait_for(state="hidden")
    service.command("faults", "add", "500", "--count", "3", "--at", "token")
    window.get_by_text("3 more times").last.wait_for(state="attached")
    assert window.input_value("#by") == "3h"
    window.get_by_role("button", name="Remove all").click()
    window.get_by_text("No fault is switched on.").wait_for()


def test_a_client_id_is_added_by_keyboard_and_its_secret_seen_once(visit):
    window = visit(f"{API}/add-client-id")
    window.keyboard.press("Tab")
    assert window.evaluate("document.activeElement.textContent") == "Skip to the content"
    window.get_by_label("Name", exact=True).focus()
    window.keyboard.type("nightly")
    window.keyboard.press("Tab")
    window.get_by_label("Add Key").wait_for()
    window.keyboard.press("ArrowDown")
    assert window.get_by_role("radio", name="Secret").is_checked()
    window.get_by_label("Add Key").wait_for(state="hidden")
    outline = window.evaluate("getComputedStyle(document.activeElement).outlineStyle")
    assert outline not in ("none", "")
    window.keyboard.press("Enter")
    secret = window.locator("#client-secret").input_value()
    assert len(secret) >= 40
    assert secret not in window.url
    window.reload()
    assert secret not in window.content()
    assert "is not shown again" in window.content()
    window.goto(visit_address(window, API))
    assert window.get_by_role("rowheader", name="nightly").count() == 1
    assert secret not in window.content()
    assert window.evaluate("document.cookie + JSON.stringify(localStorage)") == "{}"


def test_a_hostile_email_does_nothing(visit, service):
    messages = {"7": {"email_subject": "<b>Bulbs</b>", "email_html": service.hostile_email()}}
    message = service.send(title="<script>alert(1)</script>", email=1, messages=messages, device_ids=[1])
    window = visit(f"{message}?pictures=load")
    email = window.frame_locator("iframe[title='The email']")
    email.get_by_role("heading", name="Bulbs").wait_for()
    window.get_by_role("heading", name="<b>Bulbs</b>").wait_for()
    for link in ("#link", "#top", "#send"):
        email.locator(link).click()
    window.wait_for_timeout(300)
    assert email.get_by_role("heading", name="Bulbs").is_visible()
    assert window.url.endswith(f"{message}?pictures=load")
    assert window.title() != "ran"
    assert len(window.context.pages) == 1
    assert service.endpoint.asked_for == ["/picture"]
    assert "dialog" not in window.complaints


def test_a_hostile_email_opened_by_itself_does_nothing_either(visit, service):
    message = service.send(
        email=1, messages={"7": {"email_subject": "s", "email_html": service.hostile_email()}}, device_ids=[1]
    )
    window = visit(f"{message}/email")
    window.wait_for_timeout(300)
    assert window.evaluate("document.title") == ""
    assert service.endpoint.asked_for == []


def test_the_picture_of_a_message_is_taken(visit, service, tmp_path):
    message = service.send(
        title="Evening offer",
        push_title="Your evening, 20% off",
        push_text="Hi {{first_name}}, everything for the garden is 20% off until midnight. See you at Fernhill!",
        push_picture="https://pictures.example.org/evening.svg",
        url="https://fernhill.example.org/offers/evening",
        payload_add=[{"key": "offer", "value": "evening-20"}],
        ios_push=1,
        device_ids=[1],
    )
    number = message.removeprefix("/messages/")
    evening = datetime(2026, 9, 18, 18, 30, 4, tzinfo=ZoneInfo("Europe/Dublin")).timestamp()
    with closing(sqlite3.connect(service.file, timeout=120)) as connection, connection:
        times = "sent_at = :at, delivered_at = :at + 1.2, opened_at = :at + 49"
        connection.execute(f"UPDATE sends SET {times} WHERE id = :id", {"at": evening, "id": number})
    window = visit("/campaigns", device_scale_factor=1.5, height=850, color_scheme="light", locale="en-IE")
    window.route(
        "https://pictures.example.org/**",
        lambda route: route.fulfill(content_type="image/svg+xml", body=EVENING),
    )
    window.goto(f"{service.url}{message}?pictures=load")
    picture = window.get_by_alt_text("Picture of the message")
    assert picture.evaluate("image => image.decode().then(() => image.naturalWidth)") == 600
    window.get_by_text("Hi Aoife, everything for the garden").wait_for()
    target = picture_folder(tmp_path) / "message.png"
    window.screenshot(path=target)
    assert len(window.screenshot()) > 50_000
    assert target.stat().st_size > 50_000


@pytest.fixture
def busy_service(browser, tmp_path):
    """A service with launches of several requests, and two faults."""
    platforms = ("ios", "android", "chrome", "firefox")
    rows = [f"{number},{platforms[number % 4]},,,en,,,," for number in range(1, 601)]
    service = Service(tmp_path, "\n".join([DEVICES.partition("\n")[0], *rows, ""]), share="0.7")
    push = {"push_text": "Hello", "ios_push": 1, "android_push": 1, "web_push": 1}
    inbox = {"push_title": "Shipped", "push_text": "Hello", "inbox": 1}
    titles = [
        ("Spring sale", push, 3),
        ("Welcome back", push, 2),
        ("Order shipped", inbox, 1),
        ("Evening offer", push, 4),
    ]
    for place, (title, content, requests_made) in enumerate(titles):
        for part in range(requests_made):
            key = f"{100 * place + part:032x}"
            ids = list(range(1 + part * 150, 1 + (part + 1) * 150))
            service.send(title=f"{title} [{key}]", **content, device_ids=ids)
    service.command("faults", "add", "503", "--count", "2", "--retry-after", "30")
    service.command("faults", "add", "delay", "--probability", "0.1", "--seconds", "20")
    with closing(sqlite3.connect(service.file, timeout=120)) as connection, connection:
        evening = datetime(2026, 9, 18, 17, 30, 4, tzinfo=ZoneInfo("UTC")).timestamp()
        connection.execute("UPDATE campaigns SET created_at = ? + id * 3", (evening,))
    yield service
    service.close()


def test_pictures_of_the_lists_are_taken(browser, busy_service, tmp_path):
    folder = picture_folder(tmp_path)
    for name, path, scheme, width in (
        ("service-launches", "/campaigns", "light", 1280),
        ("service-launches-dark", "/campaigns", "dark", 1280),
        ("service-faults", "/faults", "light", 1280),
        ("service-phone", "/campaigns", "light", 390),
    ):
        how = {"device_scale_factor": 1.5, "color_scheme": scheme, "locale": "en-IE"}
        window = new_window(browser, viewport={"width": width, "height": 640}, **how)
        window.goto(busy_service.url + path)
        assert window.locator("tr[data-key]").count() == (2 if path == "/faults" else 4)
        window.screenshot(path=folder / f"{name}.png")
        assert window.complaints == []
        window.context.close()
