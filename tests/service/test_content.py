"""The content of messages: languages, tags, payloads, email, SMS and webhooks (sections 2.4 to 2.8, 2.12)."""

from __future__ import annotations

import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from messaging_service.delivery.webhooks import NOT_CALLED

from ..waiting import until

PUSH = {"android_push": 1, "ios_push": 1, "web_push": 1}
EMAIL = {
    "email_address_id": 7,
    "email_subject": "For {{first_name}}",
    "email_html": "<p>{{first_name}}</p>",
    "email_text": "To {{first_name}}",
    "email_unsubscribe": 1,
    "email_type": 1,
    "email_template": 1,
}
# 1001 to 1004: one person for each language; the last has neither a name nor a number
HEADER = (
    "device_id,platform,profile_id,user_id,language,time_zone,email,mobile_number,first_name,ios_environment"
)
PEOPLE = [
    "1001,android,1,u1,fr,Europe/Paris,a@example.org,353801,Zoé <3,",
    "1002,chrome,2,u2,de-AT,Europe/Vienna,b@example.org,353802,Bo,",
    "1003,ios,3,u3,ja,Asia/Tokyo,c@example.org,353803,Cé,",
    "1004,ios,4,u4,,,,,,sandbox",
]


@pytest.fixture(scope="module")
def called():
    """A real endpoint for webhook messages, which records its requests."""
    received = []

    class Handler(BaseHTTPRequestHandler):
        def _take(self):
            body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
            received.append((self.command, self.path, self.headers, body.decode()))
            self.send_response(500 if "/broken" in self.path else 200)
            self.send_header("Content-Length", "0")
            self.end_headers()

        do_GET = do_POST = _take  # noqa: N815

        def log_message(self, *_):
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = False
    thread = threading.Thread(target=server.serve_forever, args=(0.05,))
    thread.start()
    server.received = received
    server.url = f"http://127.0.0.1:{server.server_address[1]}"
    yield server
    server.shutdown()
    thread.join()
    server.server_close()


def send(service, **fields):
    campaign = service.created(**fields)
    service.wait_until_quiet()
    return campaign


def shown(service, campaign, device):
    return service.admin(f"campaigns/{campaign}/devices/{device}")["messages"]


def only(service, campaign, device):
    [sent] = shown(service, campaign, device)
    return sent


def refusal(service, **fields):
    answer = service.create(**{"android_push": 1, "device_ids": [1], **fields})
    assert answer.status_code == 400, answer.text
    return [problem["field"] for problem in answer.json()["errors"]]


LANGUAGES = {
    "languages_multi": 1,
    "languages_list": ["en", "fr", "de"],
    "languages_default": "en",
    "push_text": "plain",
    "push_title": "plain",
    "url": "https://shop.example/",
    "push_text_languages": {"en": "hello", "fr": "salut", "de": "hallo"},
    "push_title_languages": {"fr": "titre"},
    "url_languages": {"fr": "https://shop.example/fr"},
}


@pytest.mark.rule(
    "2.5/languages_multi", "2.5/languages_list", "2.5/languages_default", "2.5/push_text_languages",
    "2.5/push_title_languages", "2.5/url_languages", "2.5/shared_url", side="service",
)  # fmt: skip
@pytest.mark.parametrize(
    ("device", "language", "title", "text", "url"),
    [
        (1001, "fr", "titre", "salut", "https://shop.example/fr"),
        (1002, "de", "plain", "hallo", "https://shop.example/"),  # de-AT; there is no German title
        (1003, "en", "plain", "hello", "https://shop.example/"),  # Japanese is not in the list
        (1004, "en", "plain", "hello", "https://shop.example/"),  # the language is unknown
    ],
)
def test_each_person_reads_their_language(people, device, language, title, text, url):
    campaign = send(
        people, **PUSH, ios_push_sandbox=1, ios_push_production=1, device_ids=[device], **LANGUAGES
    )
    message = only(people, campaign, device)["message"]
    assert (message["language"], message["title"], message["text"], message["url"]) == (
        language,
        title,
        text,
        url,
    )


@pytest.mark.rule("2.5/languages_multi", side="service")
def test_translations_are_not_looked_at_without_languages_multi(people):
    campaign = send(people, **PUSH, device_ids=[1001], **{**LANGUAGES, "languages_multi": 0})
    message = only(people, campaign, 1001)["message"]
    assert (message["language"], message["text"]) == (None, "plain")


@pytest.mark.rule(
    "2.5/languages_list", "2.5/languages_default", "2.5/push_text_languages", "2.5/url_languages",
    side="service",
)  # fmt: skip
@pytest.mark.parametrize(
    ("fields", "field"),
    [
        ({"languages_list": []}, "languages_list"),
        ({"languages_list": ["en", "eng"]}, "languages_list"),
        ({"languages_list": ["en", "xx"]}, "languages_list"),
        ({"languages_default": "ga"}, "languages_default"),
        ({"languages_default": "EN"}, "languages_default"),
        ({"push_text_languages": {"ga": "dia duit"}}, "push_text_languages"),
        ({"push_text_languages": {"fr": 1}}, "push_text_languages"),
        ({"push_text": "", "push_text_languages": {"fr": "salut"}}, "push_text_languages"),
        ({"url_languages": {"fr": "shop"}}, "url_languages"),
        ({"languages_multi": "1"}, "languages_multi"),
    ],
    ids=str,
)
def test_languages_that_do_not_fit_together_are_refused(people, fields, field):
    assert field in refusal(people, **{**LANGUAGES, **fields})


@pytest.mark.rule(
    "2.3/messages", "2.4/push_title", "2.4/push_text", "2.4/top_level", "2.4/messages", "2.4/messages_3",
    "2.4/messages_push", side="service",
)  # fmt: skip
def test_an_entry_of_messages_stands_over_the_top_level(people):
    messages = {"1": {"push_text": "ios"}, "2": {"push_text": "android"}, "3": {"push_title": "web"}}
    campaign = send(people, **PUSH, device_ids=[1001, 1002, 1003], push_title="all", messages=messages)
    said = [only(people, campaign, device)["message"] for device in (1001, 1002, 1003)]
    assert [(message["title"], message["text"]) for message in said] == [
        ("all", "android"),
        ("web", "hello"),
        ("all", "ios"),
    ]


@pytest.mark.rule(
    "2.4/push_title", "2.4/push_picture_type", "2.4/push_picture", "2.4/icon", "2.5/url",
    "2.5/payload_add", "2.5/url_browser", "2.5/page", side="service",
)  # fmt: skip
def test_a_push_carries_its_link_picture_and_payload(people):
    campaign = send(
        people,
        android_push=1,
        device_ids=[1001],
        push_title="t",
        url="https://shop.example/{{user_id}}",
        url_browser=1,
        push_picture_type="url",
        push_picture="https://shop.example/p.png",
        push_icon="https://shop.example/i.png",
        page="<b>{{first_name}}</b>",
        payload_add=[{"key": "screen", "value": "cart"}, {"key": "who", "value": "{{first_name}}"}],
    )
    message = only(people, campaign, 1001)["message"]
    expected = {
        "url": "https://shop.example/u1",
        "opens_in_browser": True,
        "picture": "https://shop.example/p.png",
        "icon": "https://shop.example/i.png",
        "page": "<b>Zoé &lt;3</b>",
        "payload": [["screen", "cart"], ["who", "Zoé <3"]],
    }
    assert {name: message[name] for name in expected} == expected


@pytest.mark.rule("2.5/url", "2.5/url_languages", side="service")
def test_a_push_may_lead_into_an_app(people):
    link = "myshop://basket/{{user_id}}"
    campaign = send(
        people,
        android_push=1,
        device_ids=[1001],
        push_text="t",
        url=link,
        languages_multi=1,
        languages_list=["fr"],
        languages_default="fr",
        push_text_languages={"fr": "t"},
        url_languages={"fr": link},
    )
    assert only(people, campaign, 1001)["message"]["url"] == "myshop://basket/u1"
    for wrong in ("myshop:", "://basket", "https://", "basket/42", 1):
        assert "url" in refusal(people, url=wrong)


@pytest.mark.rule(
    "2.3/encryption", "2.4/inbox_type", "2.4/push_picture", "2.5/url", "2.5/payload_add",
    "2.6/email_address_id", "2.6/email_unsubscribe", "2.6/email_type", "2.8/sms", side="service",
)  # fmt: skip
@pytest.mark.parametrize(
    ("fields", "field"),
    [
        ({"payload_add": {"a": 1}}, "payload_add"),
        ({"payload_add": [{"key": "a"}]}, "payload_add"),
        ({"payload_add": [{"key": "a", "value": {}}]}, "payload_add"),
        ({"push_picture": "p.png"}, "push_picture"),
        ({"url": "shop.example"}, "url"),
        ({"email": 1, "messages": {"7": {**EMAIL, "email_type": 2}}}, "messages.7.email_type"),
        ({"email": 1, "messages": {"7": {**EMAIL, "email_address_id": "7"}}}, "messages.7.email_address_id"),
        ({"email": 1, "messages": {"7": {**EMAIL, "email_unsubscribe": 2}}}, "messages.7.email_unsubscribe"),
        ({"sms": 1, "messages": {"9": {"sms": {"from": "me", "text": 1}}}}, "messages.9.sms"),
        ({"sms": 1, "messages": {"9": {"sms": "text"}}}, "messages.9.sms"),
        ({"encryption": 0}, "encryption"),
        ({"inbox": 1, "messages": {"6": {"inbox_type": 1}}}, "messages.6.inbox_type"),
    ],
    ids=str,
)
def test_content_of_the_wrong_form_is_refused(people, fields, field):
    assert field in refusal(people, **fields)


@pytest.mark.rule(
    "2.4/messages_7", "2.6/email_address_id", "2.6/email_subject", "2.6/email_html", "2.6/email_text",
    "2.6/email_unsubscribe", "2.6/email_type", "2.6/tags", side="service",
)  # fmt: skip
def test_an_email_is_personal(people):
    campaign = send(people, email=1, device_ids=[1001], messages={"7": EMAIL})
    message = only(people, campaign, 1001)["message"]
    expected = {
        "subject": "For Zoé <3",
        "html": "<p>Zoé &lt;3</p>",  # a value is text, not markup
        "text": "To Zoé <3",
        "email_address_id": 7,
        "unsubscribe_header": True,
    }
    assert {name: message[name] for name in expected} == expected


@pytest.mark.rule("2.3/sms", "2.4/messages_9", "2.8/sms", "2.8/from", "2.8/text", "2.8/tags", side="service")
def test_an_sms_is_personal(people):
    sms = {"sms": {"from": "Shop", "text": "Hi {{ first_name }}"}}
    campaign = send(people, sms=1, device_ids=[1001, 1004], messages={"9": sms})
    message = only(people, campaign, 1001)["message"]
    assert (message["sender"], message["text"]) == ("Shop", "Hi Zoé <3")
    assert only(people, campaign, 1004)["error"] == "NO_CHANNEL"


@pytest.mark.rule("2.6/tags", side="service")
def test_nobody_gets_a_message_whose_tags_lack_a_value(people):
    fields = {"push_text": "Hi {{first_name}}", "ios_push_sandbox": 1}
    campaign = send(people, **PUSH, device_ids=[1001, 1004], **fields)
    assert only(people, campaign, 1001)["message"]["text"] == "Hi Zoé <3"
    lacking = only(people, campaign, 1004)
    assert (lacking["error"], lacking["message"], lacking["delivered_at"]) == ("Not personalized", None, None)
    truth = people.admin(f"campaigns/{campaign}/truth")
    assert truth["targeted"] == [1001, 1004]
    assert 1004 not in truth["delivered"]


@pytest.mark.rule("2.3/ios_push", "2.3/ios_push_sandbox", side="service")
@pytest.mark.parametrize(
    ("flags", "reached"),
    [
        ({}, [1003]),
        ({"ios_push_sandbox": 1}, [1004]),
        ({"ios_push_sandbox": 1, "ios_push_production": 1}, [1003, 1004]),
    ],
)
def test_the_sandbox_flag_selects_the_environment(people, flags, reached):
    campaign = send(people, ios_push=1, device_ids=[1003, 1004], **flags)
    got = [d for d in (1003, 1004) if only(people, campaign, d)["message_type"] == 1]
    assert got == reached


@pytest.mark.rule(
    "2.3/webhook", "2.4/messages_8", "2.7/webhook", "2.7/url", "2.7/get_params", "2.7/request_body_type",
    "2.7/request_body_data", "2.7/request_headers", side="service",
)  # fmt: skip
@pytest.mark.parametrize(
    ("kind", "body", "content_type", "sent"),
    [
        ("raw", "{{first_name}}!", "text/plain", "Bo!"),
        ("post", "who={{email}}", "application/x-www-form-urlencoded", "who=b%40example.org"),
        ("json", '{"who": "{{first_name}}"}', "application/json", '{"who": "Bo"}'),
    ],
)
def test_a_webhook_message_is_called_once_for_each_device(people, called, kind, body, content_type, sent):
    called.received.clear()
    webhook = {
        "url": f"{called.url}/hook",
        "get_params": [{"key": "user", "value": "{{user_id}} &"}],
        "request_body_type": kind,
        "request_body_data": {kind: body},
        "request_headers": "X-Shop: {{user_id}}\nX-Two: b",
    }
    campaign = send(people, webhook=1, device_ids=[1002], messages={"8": {"webhook": webhook}})
    [(method, path, headers, got)] = called.received
    assert (method, path, got) == ("POST", "/hook?user=u2+%26", sent)
    assert (headers["X-Shop"], headers["X-Two"], headers["Content-Type"]) == ("u2", "b", content_type)
    assert people.admin(f"campaigns/{campaign}/truth")["delivered"] == [1002]


@pytest.mark.rule("2.7/url", "2.7/get_params", side="service")
@pytest.mark.parametrize(
    ("url", "path"),
    [
        ("/hook#top", "/hook?a=1"),
        ("/hook?b=2#top", "/hook?b=2&a=1"),
        ("/hook#top?b=2", "/hook?a=1"),
    ],
)
def test_the_parameters_of_a_webhook_are_sent_if_its_address_has_a_fragment(people, called, url, path):
    called.received.clear()
    webhook = {"url": called.url + url, "get_params": [{"key": "a", "value": 1}]}
    send(people, webhook=1, device_ids=[1002], messages={"8": {"webhook": webhook}})
    assert [received[1] for received in called.received] == [path]


@pytest.mark.rule("2.7/request_headers", side="service")
@pytest.mark.parametrize(
    "headers",
    [
        "X-Shop: {{user_id}}\nX-Two: 2",
        "X-Shop:{{user_id}}\r\n\r\nX-Two:2\r\n",
        '{"X-Shop": "{{user_id}}", "X-Two": 2}',
        ' {\n  "X-Shop": "{{user_id}}",\n  "X-Two": "2"\n}\n',
        '[{"key": "X-Shop", "value": "{{user_id}}"}, {"key": "X-Two", "value": 2}]',
    ],
    ids=str,
)
def test_the_headers_of_a_webhook_may_be_lines_or_json(people, called, headers):
    called.received.clear()
    webhook = {"url": f"{called.url}/hook", "request_headers": headers}
    send(people, webhook=1, device_ids=[1002], messages={"8": {"webhook": webhook}})
    [(_, _, got, _)] = called.received
    assert (got.get_all("X-Shop"), got.get_all("X-Two")) == (["u2"], ["2"])


def test_a_webhook_cannot_say_that_somebody_else_calls(people, called):
    called.received.clear()
    lines = "user-agent: curl/8\nHOST: localhost:1\nSec-Fetch-Site: same-origin\nX-Shop: a"
    webhook = {"url": f"{called.url}/hook", "request_headers": lines}
    send(people, webhook=1, device_ids=[1001], messages={"8": {"webhook": webhook}})
    [(_, _, headers, _)] = called.received
    assert headers.get_all("User-Agent") == ["messaging-service"]
    assert headers.get_all("Host") == [called.url.removeprefix("http://")]
    assert (headers["Sec-Fetch-Site"], headers["X-Shop"]) == (None, "a")


@pytest.mark.parametrize("length", ["", "\nTransfer-Encoding: chunked"])
def test_a_webhook_cannot_drive_the_service_itself(people, length):
    waiting = people.create(**PUSH, trigger=3).json()["model"]["id"]
    stop = f"/admin/campaigns/{waiting}/stop"
    hidden = "0\r\n\r\n" if length else ""
    webhook = {
        "url": people.base_url + ("/healthz" if length else stop),
        "request_body_type": "raw",
        "request_body_data": {"raw": f"{hidden}POST {stop} HTTP/1.1\r\nHost: localhost\r\n\r\n"},
        "request_headers": f"User-Agent: curl/8\nSec-Fetch-Site: same-origin{length}",
    }
    campaign = send(people, webhook=1, device_ids=[1001], messages={"8": {"webhook": webhook}})
    assert only(people, campaign, 1001)["error"] == ("HTTP 405" if length else "HTTP 403")
    time.sleep(0.2)  # the answer to a second request would come after the first
    assert people.execute(id=waiting, target_by="id", target=[1001]).status_code == 200


@pytest.mark.rule("6/delivery", side="service")
def test_only_a_webhook_that_is_accepted_is_delivered(people, called, service_listener):
    called.received.clear()
    fields = {"device_ids": [1001, 1002], "webhook_delivery": f"{service_listener.url}/d"}
    good, broken = ({"8": {"webhook": {"url": f"{called.url}/{path}"}}} for path in ("good", "broken"))
    accepted = send(people, webhook=1, messages=good, **fields)
    assert [(method, path) for method, path, _, _ in called.received] == [("GET", "/good")] * 2
    refused = send(people, webhook=1, messages=broken, **fields)
    assert service_listener.devices("/d") == [1001, 1002]
    assert {body["campaign"]["id"] for _, body in service_listener.received} == {accepted}
    assert only(people, refused, 1001)["error"] == "HTTP 500"


@pytest.mark.parametrize(
    "url",
    [
        "http://192.0.2.7/x",
        "http://[2001:db8::1]/x",
        "http://\uff11\uff19\uff12.0.2.1:9/",  # full-width digits, which the URL normalises
        "http://192\u30020\u30022\u30027/",  # ideographic full stops
        "http://192.0.\u2461.7/",  # a digit in a circle
        "http://3221225991/",  # 192.0.2.7 as one number
    ],
)
def test_a_webhook_elsewhere_is_not_called(people, url):
    campaign = send(people, webhook=1, device_ids=[1001], messages={"8": {"webhook": {"url": url}}})
    sent = only(people, campaign, 1001)
    assert (sent["delivered_at"], sent["error"]) == (None, NOT_CALLED)


def test_a_webhook_of_an_unknown_name_is_not_delivered(people):
    webhook = {"url": "http://example.invalid/x"}
    campaign = send(people, webhook=1, device_ids=[1001], messages={"8": {"webhook": webhook}})
    sent = only(people, campaign, 1001)
    assert sent["delivered_at"] is None
    assert sent["error"] in ("ClientConnectorDNSError", NOT_CALLED)


@pytest.mark.rule(
    "2.7/webhook", "2.7/url", "2.7/get_params", "2.7/request_body_type", "2.7/request_body_data",
    "2.7/request_headers", side="service",
)  # fmt: skip
@pytest.mark.parametrize(
    ("webhook", "field"),
    [
        ({}, "messages.8.webhook"),
        ({"url": "ftp://x/"}, "messages.8.webhook"),
        ({"request_body_type": "xml"}, "messages.8.webhook.request_body_type"),
        ({"request_body_type": "json"}, "messages.8.webhook.request_body_data"),
        ({"request_body_data": {"raw": 1}}, "messages.8.webhook"),
        ({"request_headers": "no colon"}, "messages.8.webhook.request_headers"),
        ({"request_headers": '{"X-Shop: 1'}, "messages.8.webhook.request_headers"),
        ({"request_headers": '{"X-Shop": {"a": 1}}'}, "messages.8.webhook.request_headers"),
        ({"request_headers": '{"X-Shop": null}'}, "messages.8.webhook.request_headers"),
        ({"request_headers": '{"X Shop": "1"}'}, "messages.8.webhook.request_headers"),
        ({"request_headers": '{"X-Shop": "1\\nX-Two: 2"}'}, "messages.8.webhook.request_headers"),
        ({"request_headers": '["X-Shop: 1"]'}, "messages.8.webhook.request_headers"),
        ({"request_headers": '"X-Shop": 1'}, "messages.8.webhook.request_headers"),
        ({"get_params": {"a": "b"}}, "messages.8.webhook"),
    ],
    ids=str,
)
def test_a_wrong_webhook_is_refused(people, webhook, field):
    whole = {"url": "http://127.0.0.1:9/", **webhook} if webhook else {}
    assert field in refusal(people, webhook=1, messages={"8": {"webhook": whole}})


@pytest.mark.rule("2.12/push_expiry", "2.12/push_expiry_unit", "2.12/push_expiry_time", side="service")
def test_a_push_that_would_come_too_late_expires(service_start):
    service = service_start("--delivered", "1", "--opened", "0", "--delay-from", "100", "--delay-to", "100")
    now = int(time.time())
    expected = {
        None: {},
        "EXPIRED": {"push_expiry": 99, "push_expiry_unit": "seconds"},
        "expired by its deadline": {"push_expiry_time": now + 99},
        "expired by the earlier of both": {
            "push_expiry": 2,
            "push_expiry_unit": "weeks",
            "push_expiry_time": now + 99,
        },
        "in time": {"push_expiry": 2, "push_expiry_unit": "minutes", "push_expiry_time": now + 900},
    }
    errors = []
    for fields in expected.values():
        campaign = service.create(**PUSH, device_ids=[1], **fields).json()["model"]["id"]
        errors.append(worked_through(service, campaign)["error"])
    assert errors == [None, "EXPIRED", "EXPIRED", "EXPIRED", None]


def worked_through(service, campaign):
    until(lambda: shown(service, campaign, 1))
    return only(service, campaign, 1)


@pytest.mark.rule("2.12/push_expiry", "2.12/push_expiry_unit", "2.12/inbox_expiry_unit", side="service")
@pytest.mark.parametrize(
    ("fields", "field"),
    [
        ({"push_expiry": 2}, "push_expiry_unit"),
        ({"push_expiry_unit": "days"}, "push_expiry"),
        ({"push_expiry": 0, "push_expiry_unit": "days"}, "push_expiry"),
        ({"push_expiry": 2, "push_expiry_unit": "months"}, "push_expiry_unit"),
        ({"inbox_expiry": 2}, "inbox_expiry_unit"),
        ({"inbox_expiry_time": 1_000}, "inbox_expiry_time"),
        ({"messages": {"2": {"push_expiry": 2}}}, "messages.2.push_expiry_unit"),
    ],
    ids=str,
)
def test_an_expiry_that_is_not_whole_is_refused(people, fields, field):
    assert field in refusal(people, **fields)


@pytest.mark.rule("2.3/inbox", "2.12/inbox_expiry", "2.12/inbox_expiry_unit", side="service")
def test_an_inbox_message_leaves_the_inbox(people):
    texts = {}
    for name, fields in {
        "stays": {},
        "an hour": {"inbox_expiry": 1, "inbox_expiry_unit": "hours"},
        "three days": {"inbox_expiry": 3, "inbox_expiry_unit": "days"},
    }.items():
        texts[name] = send(people, inbox=1, broadcast=1, push_text=name, **fields)
    truths = [set(people.admin(f"campaigns/{c}/truth")["delivered"]) for c in texts.values()]
    device = min(set.intersection(*truths))

    def lying():
        return [m["message"]["text"] for m in people.admin(f"devices/{device}/inbox")["messages"]]

    people.command("clock", "advance", "1s")  # all decided outcomes have happened by then
    assert sorted(lying()) == ["an hour", "stays", "three days"]
    people.command("clock", "advance", "2h")
    assert sorted(lying()) == ["stays", "three days"]
    people.command("clock", "advance", "3d")
    assert lying() == ["stays"]


@pytest.mark.rule("9/syntax", side="service")
def test_what_has_no_effect_is_reported(people):
    campaign = send(
        people,
        android_push=1,
        broadcast=1,
        device_ids=[1],
        web_push_chrome=1,
        send_time="10:00",
        messages={"9": {"sms": {"text": "x"}}},
    )
    [listed] = [c for c in people.admin("campaigns")["campaigns"] if c["id"] == campaign]
    said = " | ".join(listed["warnings"])
    for part in (
        "device_ids is ignored",
        "web_push is not 1",
        "send_time is ignored",
        "messages.9",
    ):
        assert part in said


@pytest.mark.rule("9/syntax", side="service")
@pytest.mark.parametrize(
    ("fields", "warnings"),
    [
        ({"event": "order"}, ["event is ignored: no event triggers the campaign"]),
        ({"location_trigger": 1}, ["location_trigger is ignored: no location triggers the campaign"]),
        ({"dwell_time": 5}, ["dwell_time is ignored: the trigger is not dwell time"]),
        (
            {"location_limit_per_user": 3, "location_limit_nth_hit_period": "day"},
            [
                "location_limit_per_user is ignored: no location triggers the campaign",
                "location_limit_nth_hit_period is ignored: no location triggers the campaign",
            ],
        ),
        (
            {"inbox_expiry": 3, "inbox_expiry_unit": "days"},
            [
                "inbox_expiry is ignored: inbox is not 1",
                "inbox_expiry_unit is ignored: inbox is not 1",
            ],
        ),
        ({"ios_push_sandbox": 1}, ["ios_push_sandbox is ignored: ios_push is not 1"]),
        (
            {"send_type": 2, "trigger": 2, "event": "e", "send_time": "09:00", "start_time": "08:00"},
            ["send_time is ignored with trigger 2"],
        ),
        (
            {"send_type": 2, "send_time": "09:00", "start_time": "08:00"},
            ["start_time is ignored with send_type 2"],
        ),
        (
            {"webhook": 1, "messages": {"8": {"webhook": {"url": "http://x.test", "request_body_data": {}}}}},
            ["request_body_data is ignored: request_body_type is missing"],
        ),
        ({"send_type": 2, "trigger": 3, "start_time": "08:00"}, []),
        ({"send_type": 2, "send_time": "09:00", "inbox": 1, "inbox_expiry_time": 2**31 - 1}, []),
    ],
    ids=str,
)
def test_each_member_without_effect_is_reported(people, fields, warnings):
    campaign = people.created(**{"android_push": 1, "device_ids": [1001], **fields})
    [listed] = [c for c in people.admin("campaigns")["campaigns"] if c["id"] == campaign]
    assert listed["warnings"] == warnings
    people.post(f"/admin/campaigns/{campaign}/stop")
