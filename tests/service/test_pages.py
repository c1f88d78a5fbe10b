"""Section 2.2 of the document, and the content and protection of the pages, over HTTP against a real process."""

from __future__ import annotations

import html
import re
import sqlite3
from contextlib import closing
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
import requests
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec, rsa
from fastapi import HTTPException, Request
from fastapi.testclient import TestClient
from markupsafe import escape

from messaging_service.api.access import only_own_forms, only_this_machine
from messaging_service.api.external import Service
from messaging_service.app import create_app
from messaging_service.clock import ServiceClock
from messaging_service.store import Store
from messaging_service.undocumented_names import Names

from ..waiting import PATIENCE, until

API = "/settings/integrations/api"
ADD = f"{API}/add-client-id"
HOSTILE = "<script>alert('title')</script>\"><img src=x onerror=alert(1)>"
SECRET = re.compile(r'id="client-secret"[^>]* value="([^"]+)"')
FORM = re.compile(r'name="form" value="([^"]+)"')
EMAIL = {
    "7": {
        "email_subject": "A letter",
        "email_html": f'<p>Hello</p>{HOSTILE}<a href="https://example.org">link</a>',
        "email_text": "Hello",
    }
}


def get(service, path, **how):
    return requests.get(service.base_url + path, timeout=PATIENCE, **how)


def page(service, path):
    answer = get(service, path)
    assert answer.status_code == 200, answer.text
    return answer.text


def submit(service, path, headers=None, **fields):
    """Send a form like a page of the service."""
    own = {"Origin": service.base_url, "Sec-Fetch-Site": "same-origin"}
    sent = own if headers is None else headers
    return service.post(path, data=fields, headers=sent, allow_redirects=False)


def client_form(service, **fields):
    """Return the fields of the form when only these are filled in."""
    shown = page(service, ADD)
    scopes = re.findall(r'name="scopes" value="([^"]+)" checked', shown)
    return {"form": FORM.search(shown)[1], "type": "secret", "scopes": scopes, **fields}


def clients(service):
    return {one["name"]: one for one in service.command("client-ids", "list")["client_ids"]}


def create(service, **fields):
    campaign = service.created(**fields)
    service.wait_until_quiet()
    return campaign


def message_of(service, campaign):
    """Return the URL of the first message of a campaign."""
    return re.search(r"/messages/\d+", page(service, f"/campaigns/{campaign}"))[0]


def spki(key):
    return (
        key.public_key()
        .public_bytes(serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo)
        .decode()
    )


def certificate(key, ends):
    name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "client")])
    return (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(1)
        .not_valid_before(datetime.now(UTC) - timedelta(days=40))
        .not_valid_after(ends)
        .sign(key, hashes.SHA256())
        .public_bytes(serialization.Encoding.PEM)
        .decode()
    )


@pytest.mark.rule("2.2/add", side="service")
@pytest.mark.rule("2.2/name", side="service")
@pytest.mark.rule("2.2/client_secret", side="service")
def test_a_client_secret_is_shown_once_and_works(service_process):
    form = client_form(service_process, name="nightly")
    added = submit(service_process, ADD, **form)
    secret = html.unescape(SECRET.search(added.text)[1])
    assert added.headers["Cache-Control"] == "no-store"
    asked = {"grant_type": "client_credentials", "client_secret": secret}
    client_id = clients(service_process)["nightly"]["client_id"]
    answer = service_process.post("/api/oauth/token", data={**asked, "client_id": client_id})
    assert answer.status_code == 200
    assert secret not in page(service_process, API) + page(service_process, "/requests")
    again = submit(service_process, ADD, **form)
    assert again.status_code == 409
    assert not SECRET.search(again.text)
    for file in Path(service_process.database.removeprefix("sqlite:///")).parent.iterdir():
        assert secret.encode() not in file.read_bytes()


@pytest.mark.rule("2.2/scopes_default", side="service")
def test_all_scopes_are_selected_by_default(service_process):
    submit(service_process, ADD, **client_form(service_process, name="everything"))
    with closing(sqlite3.connect(service_process.database.removeprefix("sqlite:///"))) as connection:
        stored = connection.execute("SELECT scopes FROM client_ids WHERE name = 'tests'").fetchone()[0]
        assert connection.execute("SELECT scopes FROM client_ids WHERE name = 'everything'").fetchone() == (
            stored,
        )


@pytest.mark.rule("2.2/scopes", side="service")
def test_a_scope_left_out_on_the_form_is_left_out_of_the_client_id(service_process):
    submit(service_process, ADD, **client_form(service_process, name="creator", scopes=["create"]))
    assert clients(service_process)["creator"]["scopes"] == ["create"]
    refused = submit(service_process, ADD, **client_form(service_process, name="none", scopes=[]))
    assert refused.status_code == 400
    assert "none" not in clients(service_process)


@pytest.mark.rule("2.2/type", side="service")
@pytest.mark.rule("2.2/key", side="service")
@pytest.mark.rule("2.2/expires_at", side="service")
@pytest.mark.rule("5.1/spki_expiry", side="service")
def test_an_spki_key_is_pasted_and_its_expiry_set_by_hand(service_process):
    key = spki(ec.generate_private_key(ec.SECP384R1()))
    form = client_form(service_process, name="spki", type="public-key", key=key, expires_at="2031-05-06")
    added = submit(service_process, ADD, **form)
    assert added.status_code == 200
    assert not SECRET.search(added.text)
    assert "ES384" in added.text
    assert clients(service_process)["spki"]["expires_at"] == "2031-05-07T00:00:00+00:00"
    for shown in (added.text, page(service_process, "/settings/integrations/api")):
        assert "6 May 2031</time>" in shown
        assert "7 May 2031</time>" not in shown


@pytest.mark.rule("2.2/expires_at", side="service")
def test_an_expiry_date_is_the_end_of_that_day_on_the_page_and_in_the_command(service_process):
    submit(service_process, ADD, **client_form(service_process, name="by page", expires_at="2031-05-06"))
    arguments = ("--type", "secret", "--expires-at", "2031-05-06")
    service_process.command("client-ids", "add", "--name", "by command", *arguments)
    ends = {name: clients(service_process)[name]["expires_at"] for name in ("by page", "by command")}
    assert ends == dict.fromkeys(ends, "2031-05-07T00:00:00+00:00")


@pytest.mark.rule("5.1/x509_expiry", side="service")
def test_the_expiry_of_a_certificate_is_read_from_it_and_shown(service_process):
    ends = datetime.now(UTC).replace(microsecond=0) + timedelta(days=9, hours=1)
    pasted = certificate(ec.generate_private_key(ec.SECP256R1()), ends)
    form = client_form(service_process, name="x509", type="public-key", key=pasted)
    assert ends.isoformat() in submit(service_process, ADD, **form).text
    listed = page(service_process, API)
    assert ends.isoformat() in listed
    assert "expires in 9 days" in listed


@pytest.mark.rule("5.1/x509_upload", side="service")
@pytest.mark.parametrize(
    ("key", "reason"),
    [
        (lambda: spki(rsa.generate_private_key(65_537, 1024)), "2048"),
        (lambda: certificate(ec.generate_private_key(ec.SECP256R1()), datetime.now(UTC)), "expired"),
        (lambda: "-----BEGIN PRIVATE KEY-----", "private key"),
        (lambda: HOSTILE, "BEGIN CERTIFICATE"),
        (lambda: "", "paste"),
    ],
)
def test_a_refused_key_says_why_and_the_form_keeps_what_was_given(service_process, key, reason):
    form = client_form(service_process, name=HOSTILE, type="public-key", key=key())
    refused = submit(service_process, ADD, **form)
    assert refused.status_code == 400
    assert reason in refused.text
    assert f'value="{escape(HOSTILE)}"' in refused.text
    assert "<script" not in refused.text


def test_an_expiry_in_the_past_or_of_no_date_is_refused(service_process):
    for day in ("2020-01-01", "soon", "9999-12-31"):
        form = client_form(service_process, name="late", expires_at=day)
        assert submit(service_process, ADD, **form).status_code == 400
    assert "late" not in clients(service_process)


def test_an_app_is_added_and_its_token_shown(service_process):
    assert submit(service_process, f"{API}/add-app", name="garden").status_code == 303
    token = re.search(r">garden</th>.*?<code>([^<]+)", page(service_process, API), re.DOTALL)[1]
    answer = service_process.post(
        "/api/external/create/campaign",
        json={"apptoken": token, "title": "t", "push_text": "x", "android_push": 1, "broadcast": 1},
    )
    assert answer.status_code == 200
    assert submit(service_process, f"{API}/add-app", name="garden").status_code == 400


@pytest.mark.parametrize(
    "headers",
    [
        {"Sec-Fetch-Site": "cross-site"},
        {"Sec-Fetch-Site": "same-site", "Origin": "http://127.0.0.1:1"},
        {"Origin": "https://elsewhere.example"},
        {"Origin": "null"},
        {},
    ],
)
def test_a_form_from_elsewhere_changes_nothing(service_process, headers):
    form = client_form(service_process, name="intruder")
    for path in (ADD, f"{API}/add-app", "/campaigns/1/stop"):
        assert submit(service_process, path, headers, **form).status_code == 403
    assert "intruder" not in page(service_process, API)


@pytest.mark.parametrize(
    "headers",
    [
        {"Sec-Fetch-Site": "cross-site"},
        {"Sec-Fetch-Site": "same-site"},
        {"Origin": "https://elsewhere.example"},
        {"Origin": "null"},
        {"Origin": "http://[::1"},
        {"Sec-Fetch-Site": "none", "Origin": "https://elsewhere.example"},
    ],
)
def test_another_site_changes_nothing_by_admin(service_process, headers):
    campaign = create(service_process, android_push=1, trigger=3)
    for method, path in (
        ("POST", f"campaigns/{campaign}/stop"),
        ("POST", "clock/advance"),
        ("DELETE", "faults"),
    ):
        address = f"{service_process.base_url}/admin/{path}"
        answer = requests.request(method, address, headers=headers, timeout=PATIENCE, json={"by": "1s"})
        assert answer.status_code == 403
    assert service_process.execute(id=campaign, target_by="id", target=[1]).status_code == 200
    assert get(service_process, "/admin/progress", headers=headers).status_code == 200


def test_who_says_nothing_of_sites_and_the_own_site_may_stop_a_campaign(service_process):
    own = {"Sec-Fetch-Site": "same-origin", "Origin": service_process.base_url}
    for headers in ({}, {"Sec-Fetch-Site": "none"}, own):
        campaign = create(service_process, android_push=1, trigger=3)
        stopped = service_process.post(f"/admin/campaigns/{campaign}/stop", headers=headers)
        assert stopped.status_code == 200


def test_pages_answer_only_under_a_name_of_this_machine(service_process):
    port = service_process.base_url.rsplit(":")[-1]
    for host, status in (("localhost", 200), ("127.0.0.1", 200), ("rebound.example", 403), ("10.0.0.1", 403)):
        headers = {"Host": f"{host}:{port}"}
        assert get(service_process, "/campaigns", headers=headers).status_code == status
        assert get(service_process, "/admin/progress", headers=headers).status_code == status


def visitor(address, **headers):
    raw = [(name.lower().encode(), value.encode()) for name, value in headers.items()]
    return Request({"type": "http", "client": (address, 1), "headers": raw})


def test_another_machine_is_refused_unless_all_are_let_in():
    only_this_machine(False)(visitor("127.0.0.1", Host="localhost:8025"))
    only_this_machine(False)(visitor("::1", Host="[::1]:8025"))
    only_this_machine(True)(visitor("192.0.2.1", Host="service:8025"))
    for address, host in (("192.0.2.1", "localhost"), ("127.0.0.1", ""), ("127.0.0.1", "[::1")):
        with pytest.raises(HTTPException):
            only_this_machine(False)(visitor(address, Host=host))


def test_what_the_service_calls_itself_is_never_let_in():
    own = {"Host": "localhost:8025", "User-Agent": "messaging-service"}
    for for_all in (False, True):
        with pytest.raises(HTTPException):
            only_this_machine(for_all)(visitor("127.0.0.1", **own))


def test_a_form_without_a_host_is_not_the_services_own():
    with pytest.raises(HTTPException):
        only_own_forms(visitor("127.0.0.1", Origin=""))


def test_hostile_content_is_shown_as_text(service_process):
    campaign = create(
        service_process,
        title=HOSTILE,
        push_title=HOSTILE,
        push_text=HOSTILE,
        android_push=1,
        device_ids=[7],
        **{HOSTILE: 1},
    )
    message = message_of(service_process, campaign)
    for path in (
        "/campaigns",
        f"/campaigns/{campaign}",
        f"/campaigns/{campaign}/request",
        "/requests",
        message,
        "/devices/7",
        "/search?q=%3Cscript%3E%22%3E",
        "/search?q=7",
    ):
        shown = re.sub(
            r'<script src="/static/live.js\?v=\w{12}" defer></script>', "", page(service_process, path)
        )
        assert "<script" not in shown
        assert "<img" not in shown
    assert html.escape("<script>alert(") in page(service_process, message)


LIVE = ["/campaigns", "/requests", "/faults"]
PAGES = [
    "/search?q=1",
    "/devices/1",
    API,
    ADD,
    "/campaigns/99999999",
    "/devices/0",
]


@pytest.mark.parametrize("path", [*PAGES, *LIVE])
def test_no_page_runs_scripts_of_others_or_lies_in_a_frame(service_process, path):
    headers = get(service_process, path).headers
    policy = headers["Content-Security-Policy"].split("; ")
    assert "default-src 'none'" in policy
    assert "frame-ancestors 'none'" in policy
    refreshes = ["script-src 'self'", "connect-src 'self'"] if path in LIVE else []
    assert [rule for rule in policy if rule.startswith(("script-src", "connect-src"))] == refreshes
    assert "unsafe" not in headers["Content-Security-Policy"]
    assert headers["X-Content-Type-Options"] == "nosniff"
    assert headers["Cache-Control"] == "no-store"


def test_only_the_services_own_files_are_static(service_process):
    script = get(service_process, "/static/live.js")
    assert script.headers["Content-Type"] == "text/javascript; charset=utf-8"
    assert script.headers["X-Content-Type-Options"] == "nosniff"
    assert get(service_process, "/static/layout.py").status_code == 404


def test_an_email_lies_in_a_sandbox_that_allows_nothing(service_process):
    campaign = create(service_process, email=1, messages=EMAIL, device_ids=[2])
    message = message_of(service_process, campaign)
    frame = re.search(r"<iframe[^>]*>", page(service_process, message))[0]
    assert 'sandbox=""' in frame
    assert f'src="{message}/email"' in frame
    email = get(service_process, f"{message}/email")
    assert HOSTILE in email.text
    rules = email.headers["Content-Security-Policy"].split("; ")
    assert "sandbox" in rules
    assert "default-src 'none'" in rules
    assert "img-src data:" in rules
    assert not [rule for rule in rules if rule.startswith("script-src")]


def test_pictures_from_elsewhere_are_loaded_only_when_asked(service_process):
    picture = "https://pictures.example.org/a.jpg"
    campaign = create(
        service_process, push_text="x", push_picture=picture, android_push=1, device_ids=[7, 14]
    )
    message = message_of(service_process, campaign)
    plain, loading = get(service_process, message), get(service_process, f"{message}?pictures=load")
    assert "<img" not in plain.text
    assert "https:" not in plain.headers["Content-Security-Policy"]
    assert f'<img class="picture" src="{picture}"' in loading.text
    assert "https:" in loading.headers["Content-Security-Policy"]


def test_a_campaign_shows_its_request_without_secrets_and_its_warnings(service_process):
    body = {"title": "all of it", "push_text": "x", "android_push": 1, "device_ids": [7], "colour": "red"}
    service_process.create(**body, apptoken=service_process.app_token)
    service_process.wait_until_quiet()
    campaign = re.search(r'/campaigns/(\d+)">all of it', page(service_process, "/campaigns"))[1]
    assert "colour" in page(service_process, f"/campaigns/{campaign}")
    request = page(service_process, f"/campaigns/{campaign}/request")
    assert "[redacted]" in request
    assert service_process.app_token not in request + page(service_process, "/requests")


def test_post_backs_are_shown_with_kind_device_state_and_attempts(service_process, service_listener):
    service_listener.statuses[:] = [500] * 3
    campaign = create(
        service_process,
        push_text="x",
        web_push=1,
        device_ids=list(range(1, 60)),
        webhook_delivery=f"{service_listener.url}/d",
        webhook_open=f"{service_listener.url}/o",
    )
    shown = page(service_process, f"/campaigns/{campaign}/post-backs")
    assert ">Delivery</th>" in shown
    assert ">Open/click</th>" in shown
    attempts = [int(count) for count in re.findall(r'<td class="number">(\d+)</td>', shown)]
    assert sum(attempts) == len(attempts) + 3
    assert "state-sent" in shown
    assert f"{service_listener.url}/d" in page(service_process, f"/campaigns/{campaign}/runs")


def test_a_message_is_found_by_device_by_user_and_by_campaign(service_process):
    campaign = create(
        service_process, title="Needle 50%_off", push_text="x", android_push=1, device_ids=[7, 21]
    )
    for asked in ("7", "cust-7", "ext-7", "10007"):
        shown = page(service_process, f"/search?q={asked}")
        assert "Needle 50%_off" in shown
        assert 'href="/devices/7"' in shown
        assert 'href="/devices/21"' not in shown
    for asked in ("needle", "50%25_", f"%23{campaign}"):
        assert f'href="/campaigns/{campaign}"' in page(service_process, f"/search?q={asked}")
    assert f'href="/campaigns/{campaign}"' not in page(service_process, "/search?q=needle_50")
    assert "Needle 50%_off" in page(service_process, "/devices/21")


def test_messages_are_filtered_by_state_and_counted_alike(service_process):
    campaign = create(service_process, push_text="x", android_push=1, device_ids=list(range(7, 700, 7)))
    decided = service_process.admin("campaigns?count=1")["campaigns"][0]["messages"]
    expected = {
        "opened": decided["opened"],
        "delivered": decided["delivered"] - decided["opened"],
        "failed": decided["sent"] - decided["delivered"],
    }
    until(lambda: states_told(service_process, campaign) == expected)
    for state, count in expected.items():
        shown = page(service_process, f"/campaigns/{campaign}?state={state}&page=1")
        assert len(re.findall(r'href="/messages/\d+"', shown)) == min(count, 50)


def states_told(service, campaign):
    shown = page(service, f"/campaigns/{campaign}")
    return {state: int(count) for state, count in re.findall(r"\?state=[^>]*>([a-z ]+) (\d+)</a>", shown)}


@pytest.mark.parametrize("number", ["-1", "0", "x", "99999999999999999999", "9999999", "%00"])
def test_a_page_number_out_of_reason_is_no_error(service_process, number):
    for path in ("/campaigns", "/requests", "/search"):
        assert get(service_process, f"{path}?page={number}").status_code == 200


@pytest.mark.parametrize(
    "path", ["/campaigns/99999999999999999999999", "/messages/0", "/messages/99999999999999999999999/email"]
)
def test_what_is_not_there_is_a_page_that_says_so(service_process, path):
    answer = get(service_process, path)
    assert answer.status_code == 404
    assert answer.headers["Content-Type"].startswith("text/html")
    assert "There is no such" in answer.text


def test_a_campaign_that_lies_ahead_is_stopped_by_its_button(service_process):
    campaign = create(
        service_process,
        push_text="x",
        android_push=1,
        broadcast=1,
        send_type=1,
        send_date=f"{datetime.now(UTC) + timedelta(days=2):%Y-%m-%d}",
        send_time="09:00",
    )
    shown = page(service_process, f"/campaigns/{campaign}")
    assert "messaging-service clock advance" in shown
    assert ">Stop</button>" in shown
    assert submit(service_process, f"/campaigns/{campaign}/stop").status_code == 303
    stopped = page(service_process, f"/campaigns/{campaign}")
    assert "state-stopped" in stopped
    assert ">Stop</button>" not in stopped


def test_an_empty_service_says_what_to_do_next(service_start):
    service = service_start(name="empty")
    front = page(service, "/")
    assert f"curl {service.base_url}/api/external/create/campaign" in front
    assert "700 devices are ready" in front
    assert "No requests yet" in page(service, "/requests")
    assert "No messages yet" in page(service, "/devices/1")


def keyed(title, number):
    """Return a title as Sendoff writes it, with the key of a request."""
    return f"{title} [{number:032x}]"


def launches_of(service, path="/campaigns"):
    """Return the address and title of each launch in a list."""
    found = re.findall(r'href="(/(?:campaigns|launches)/\d+)">([^<]+)</a>', page(service, path))
    return [(address, html.unescape(title)) for address, title in found]


def check_launches(service):
    """Check that the requests of a launch are one row of the list, with a page of their own."""
    push = {"push_text": "x", "android_push": 1}
    first = create(service, title=keyed("Spring <sale>", 1), device_ids=[7], **push)
    create(service, title=keyed("Spring <sale>", 2), device_ids=[14, 21], **push)
    other = create(service, title=keyed("Autumn sale", 3), device_ids=[7], **push)
    last = create(service, title=keyed("Spring <sale>", 4), device_ids=[28], colour="green", **push)
    own = [create(service, title="Spring <sale>", device_ids=[7], **push) for _ in range(2)]
    service.post("/admin/clock/advance", json={"by": "31m"})
    later = create(service, title=keyed("Spring <sale>", 5), device_ids=[7], **push)
    spring = "Spring <sale>"
    assert launches_of(service)[:5] == [
        (f"/campaigns/{later}", spring),
        *((f"/campaigns/{one}", spring) for one in reversed(own)),
        (f"/campaigns/{other}", "Autumn sale"),
        (f"/launches/{first}", spring),
    ]
    overview = page(service, "/campaigns")
    row = overview[overview.index(f'<tr data-key="{first}">') :].partition("</tr>")[0]
    assert "3 requests" in row
    assert "1 warning<" in row
    assert 'class="number">4<' in row
    launch = page(service, f"/launches/{first}")
    assert re.findall(r'href="/campaigns/(\d+)">#\1<', launch) == [str(last), str(first + 1), str(first)]
    assert "<dt>Messages</dt><dd>4</dd>" in launch
    assert keyed("Spring", 1)[-34:] not in overview + launch + page(service, f"/campaigns/{first}")
    for nothing in (last, other + 10_000, 10**30):
        assert get(service, f"/launches/{nothing}").status_code == 404
    assert (f"/launches/{first}", spring) in launches_of(service, "/search?q=Spring")
    assert (f"/campaigns/{last}", f"#{last} {spring}") in launches_of(service, f"/search?q=%23{last}")


def test_the_requests_of_a_launch_are_one_row(service_start):
    service = service_start(name="launches")
    check_launches(service)
    assert "5 launches, newest first" in page(service, "/campaigns")


def test_a_launch_is_in_the_state_of_the_request_that_is_furthest_behind(service_start):
    service = service_start(name="states")
    day = f"{datetime.now(UTC) + timedelta(days=2):%Y-%m-%d}"
    when = {"send_type": 1, "send_date": day, "send_time": "09:00"}
    push = {"push_text": "x", "android_push": 1, "device_ids": [7]}
    first = create(service, title=keyed("Soon", 1), **push)
    second = create(service, title=keyed("Soon", 2), **push, **when)
    assert "state-scheduled" in page(service, "/campaigns")
    submit(service, f"/campaigns/{second}/stop")
    assert "state-sent" in page(service, f"/launches/{first}")
    assert "state-scheduled" not in page(service, "/campaigns")


def test_pages_are_no_part_of_the_api(service_process):
    paths = get(service_process, "/openapi.json").json()["paths"]
    assert not [path for path in paths if path.startswith(("/campaigns", "/settings", "/messages"))]


def test_pages_work_on_postgresql(postgres_url, service_on, tmp_path):
    service = service_on(postgres_url, tmp_path, "--attempts", "1")
    campaign = create(
        service,
        title="on PostgreSQL",
        push_text="x",
        android_push=1,
        device_ids=[7, 14, 21],
        webhook_open="http://127.0.0.1:9",
    )
    message = message_of(service, campaign)
    tabs = [
        f"/campaigns/{campaign}{tab}" for tab in ("", "?state=failed", "/runs", "/post-backs", "/request")
    ]
    for path in (
        "/campaigns",
        *tabs,
        message,
        "/requests",
        "/search?q=7",
        "/search?q=postgresql",
        "/devices/7",
        API,
        "/search?q=%00",
    ):
        assert "<main" in page(service, path)
    assert submit(service, ADD, **client_form(service, name="\0")).status_code == 400
    form = client_form(service, name="once")
    assert [submit(service, ADD, **form).status_code for _ in range(2)] == [200, 409]
    check_launches(service)


def test_a_browser_gets_errors_as_pages_and_a_program_as_json(service_process):
    browser = {"Accept": "text/html,application/xhtml+xml,*/*;q=0.8"}
    for path, code, text in (
        ("/nowhere", 404, "There is no such page."),
        ("/admin/campaigns/999999/truth", 404, "There is no such campaign."),
        ("/admin/campaigns?count=x", 400, "The address is not valid."),
        ("/api/external/create/campaign", 405, "This address is for programs."),
        ("/api/oauth/token", 405, "This address is for programs."),
    ):
        shown = get(service_process, path, headers=browser)
        assert shown.status_code == code
        assert shown.headers["Content-Type"].startswith("text/html")
        assert "default-src 'none'" in shown.headers["Content-Security-Policy"]
        assert f"<h1>{text}" in shown.text
        plain = get(service_process, path)
        assert plain.status_code == code
        assert plain.headers["Content-Type"] == "application/json"
        assert shown.headers.get("Allow") == plain.headers.get("Allow")


def test_a_request_that_sends_something_gets_json_whatever_it_accepts(service_process):
    accept = {
        "Accept": "text/html, image/gif, */*; q=.2",
        "Authorization": "Bearer wrong",
    }  # as programs in Java
    for path, code in (("/api/external/create/campaign", 401), ("/api/external/nowhere", 404)):
        answer = service_process.post(path, json={"title": "x"}, headers=accept)
        assert answer.status_code == code
        assert answer.json()["code"] == code


@pytest.mark.parametrize(
    ("code", "text"), [(401, "Log in first."), (500, "The service failed. See its log.")]
)
def test_every_error_of_the_service_is_a_page_in_a_browser(tmp_path, code, text):
    store = Store(f"sqlite:///{tmp_path / 'service.db'}")
    app = create_app(Service(store, ServiceClock(store), Names(), post_backs_anywhere=False))

    @app.get("/broken")
    def broken() -> None:
        if code == 401:
            raise HTTPException(401, text, {"WWW-Authenticate": "Bearer"})
        raise ZeroDivisionError

    client = TestClient(app, raise_server_exceptions=False)
    shown = client.get("/broken", headers={"Accept": "text/html"})
    assert shown.status_code == code
    assert f"<h1>{text}</h1>" in shown.text
    plain = client.get("/broken", headers={"Accept": "*/*"})
    assert plain.json() == {"success": False, "code": code, "message": text}
    assert shown.headers.get("WWW-Authenticate") == plain.headers.get("WWW-Authenticate")
    store.close()


def test_the_clock_is_advanced_from_its_page(service_start):
    service = service_start(name="clock")
    assert "the time of this machine" in page(service, "/faults")
    assert submit(service, "/faults/clock", by="1d3h").status_code == 303
    assert "1d3h ahead of this machine" in page(service, "/faults")
    assert get(service, "/admin/clock").json()["ahead"] == 97_200
    wrong = submit(service, "/faults/clock", by="tomorrow<b>")
    assert wrong.status_code == 400
    assert "&#39;tomorrow&lt;b&gt;&#39; is not a duration" in wrong.text
    assert 'value="tomorrow&lt;b&gt;"' in wrong.text


def test_faults_are_switched_on_and_off_on_their_page(service_start):
    service = service_start(name="faults")
    assert "No fault is switched on." in page(service, "/faults")
    form = {"kind": "503", "at": ["create"], "count": "2", "retry_after": "7"}
    assert submit(service, "/faults/add", **form).status_code == 303
    assert submit(service, "/faults/add", kind="lose", percent="12.5").status_code == 303
    first, second = service.command("faults", "list")["faults"]
    wanted = {"kind": "503", "at": ["create"], "remaining": 2, "retry_after": 7, "after": False}
    assert {name: first[name] for name in wanted} == wanted
    assert (second["at"], second["probability"]) == (["delivery", "open"], 0.125)
    assert service.create(push_text="x", android_push=1, broadcast=1).status_code == 503
    shown = page(service, "/faults")
    assert "1 more time<" in shown
    assert "12.5 % of the time" in shown
    service.create(push_text="x", android_push=1, broadcast=1)
    assert ">used up<" in page(service, "/faults")

    assert submit(service, f"/faults/{first['id']}/remove").status_code == 303
    assert submit(service, f"/faults/{first['id']}/remove").status_code == 404
    assert submit(service, "/faults/remove").status_code == 303
    assert service.command("faults", "list")["faults"] == []


@pytest.mark.parametrize(
    ("fields", "problem"),
    [
        ({"kind": "503", "count": "2", "percent": "5"}, "Give a probability or a count, not both."),
        ({"kind": "503", "count": "many"}, "Times is not a number."),
        ({"kind": "503", "percent": "nan"}, "Share is not a number."),
        ({"kind": "lose", "at": ["token"]}, "Lose can only happen at delivery, open."),
    ],
)
def test_a_wrong_fault_says_what_to_change_and_the_form_keeps_it(service_process, fields, problem):
    answer = submit(service_process, "/faults/add", **fields)
    assert answer.status_code == 400
    assert problem in answer.text
    assert f'value="{fields["kind"]}" selected' in answer.text
    assert service_process.command("faults", "list")["faults"] == []


@pytest.mark.parametrize("path", ["/faults/clock", "/faults/add", "/faults/remove", "/faults/1/remove"])
def test_a_form_of_another_site_changes_no_fault_and_no_clock(service_process, path):
    evil = {"Origin": "http://evil.example", "Sec-Fetch-Site": "cross-site"}
    assert submit(service_process, path, headers=evil, by="3h", kind="500").status_code == 403
    assert service_process.command("faults", "list")["faults"] == []
