"""Campaigns of every kind, sent by the real client and checked against the service's own record."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, date, datetime, time, timedelta
from pathlib import Path
from typing import Any
from zoneinfo import ZoneInfo

import pytest
import requests

from sendoff.audience.identifiers import Identifiers, integers, strings
from sendoff.campaign import Campaign, Variation
from sendoff.campaign.yaml_document import read_document
from sendoff.service.client import Client
from sendoff.service.credentials import ClientSecret
from sendoff.service.tokens import TokenSource
from sendoff.service.wire import FieldNames, PostBackAddresses, Targeting, create_body, execute_body
from sendoff.states import Accepted, Outcome, Refused

FILES = sorted((Path(__file__).resolve().parents[2] / "dags/campaigns").glob("*/campaign.yaml"))
TOMORROW = datetime.now(UTC) + timedelta(days=1)
MESSAGE = {"title": "Title", "text": "Text", "url": "https://shop.example.com"}
PICTURE = "https://shop.example.com/p.png"
MIDNIGHT = {"time": "23:59", "time_zone": "UTC"}
WEBHOOK = {
    "address": "http://127.0.0.1:9/",  # nothing listens there
    "query": {"shop": "ie"},
    "headers": {"X-One": "1", "X-Two": "2"},
    "body": {"kind": "json", "content": '{"a": 1}'},
}
EMAIL = {"from_address": 1, "subject": "Hello", "text": "Words"}
FROM_TODAY = {"start": f"{datetime.now(UTC):%Y-%m-%d}", "end": "never"}
NOBODY = PostBackAddresses(None, None)
DEVICE_2 = Targeting("device_id", integers([2]))
GOLD = {"attribute": "tier", "value": "gold"}  # all devices whose number is not divisible by 3
USER_2, USER_3, USER_4, USER_5 = ({"attribute": "user_id", "value": f"cust-{n}"} for n in (2, 3, 4, 5))


@contextmanager
def client_of(service: Any) -> Iterator[Client]:
    with requests.Session() as session:
        credentials = ClientSecret(service.client_id, service.client_secret)
        tokens = TokenSource(credentials, service.base_url, session)
        yield Client(service.base_url, session, tokens)


@pytest.fixture
def client(service_process: Any) -> Iterator[Client]:
    with client_of(service_process) as made:
        yield made


def campaign(**fields: Any) -> Campaign:
    return Campaign.model_validate({"title": "A campaign", **fields})


def created(client: Client, made: Campaign, targeting: Targeting | None, **more: Any) -> Outcome:
    made = made.resolved(TOMORROW.replace(hour=0, minute=1))
    body = create_body(made, title=made.title, targeting=targeting, **{"post_backs": NOBODY, **more})
    return client.create_campaign(body)


def record(service: Any, outcome: Outcome) -> Any:
    """Return the service's record of the campaign it created; it must have recognised all members."""
    assert isinstance(outcome, Accepted), outcome
    (found,) = [
        each
        for each in service.admin("campaigns?count=500")["campaigns"]
        if each["id"] == outcome.campaign_id
    ]
    assert not found["warnings"]
    return found


def targeted(service: Any, outcome: Outcome) -> list[int]:
    service.wait_until_quiet()
    devices: list[int] = service.admin(f"campaigns/{record(service, outcome)['id']}/truth")["targeted"]
    return devices


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.parent.name)
def test_the_campaigns_of_the_tree_are_understood(service_process: Any, client: Client, file: Path) -> None:
    made = Campaign.model_validate(read_document(file).tree)
    for language in made.separate_languages() or (None,):
        variation = made.variation(Variation(language), datetime(2026, 3, 2, tzinfo=UTC))
        outcome = created(client, variation, Targeting("device_id", integers(range(1, 30))))
        assert record(service_process, outcome)["title"] == made.title


@pytest.mark.rule("4.2/fields", "9/syntax", side="client")
@pytest.mark.parametrize(
    ("channels", "more"),
    [
        ({"android_push": {}, "ios_push": {"sandbox": True}}, {}),
        ({"android_push": {"text": "Own"}, "ios_push": {"text": "Own"}}, {}),
        ({"web_push": {"browsers": ["chrome", "firefox", "opera", "safari"]}}, {}),
        ({"web_push": {"browsers": ["chrome"], "text": "Own"}, "android_push": {}}, {}),
        ({"inbox": {"style": "card", "keep": {"length": 3, "unit": "days"}}}, {}),
        ({"ios_push": {}}, {"message": {**MESSAGE, "picture": PICTURE, "icon": PICTURE}}),
        ({"ios_push": {}}, {"message": {**MESSAGE, "open_in": "browser", "payload": {"a": "b"}}}),
        ({"ios_push": {}}, {"message": {**MESSAGE, "page": "<p>Hello</p>"}}),
        ({"ios_push": {}}, {"language": "en", "message": {**MESSAGE, "translations": {"fr": MESSAGE}}}),
        ({"ios_push": {}}, {"push_expiry": {"length": 2, "unit": "weeks", "until": MIDNIGHT}}),
        ({"email": EMAIL}, {"message": None}),
        ({"sms": {"sender": "Shop", "text": "Hello"}}, {"message": None}),
        ({"webhook": WEBHOOK}, {"message": None}),
        ({"webhook": {**WEBHOOK, "body": {"kind": "form", "content": "a=b"}}}, {"message": None}),
    ],
)
def test_every_kind_of_content_is_understood(
    service_process: Any, client: Client, channels: dict[str, Any], more: dict[str, Any]
) -> None:
    made = campaign(channels=channels, **{"message": MESSAGE, **more})
    outcome = created(client, made, Targeting("device_id", integers(range(1, 30))))
    assert record(service_process, outcome)["send_type"] == 0


@pytest.mark.rule("2.9/device_ids", "2.9/external_ids", side="client")
@pytest.mark.parametrize(
    ("identified_by", "identifiers", "devices"),
    [
        ("device_id", integers([4, 2]), [2, 4]),
        ("external_id", strings(["ext-8", "ext-6"]), [6, 8]),
    ],
)
def test_people_are_reached_by_each_kind_of_identifier(
    service_process: Any, client: Client, identified_by: str, identifiers: Identifiers, devices: list[int]
) -> None:
    outcome = created(client, campaign(channels={"email": EMAIL}), Targeting(identified_by, identifiers))
    assert targeted(service_process, outcome) == devices


@pytest.mark.rule("2.3/broadcast", "2.9/broadcast", side="client")
def test_a_broadcast_reaches_everybody(service_process: Any, client: Client) -> None:
    made = campaign(channels={"email": EMAIL}, targeting={"kind": "broadcast"})
    assert targeted(service_process, created(client, made, None)) == list(range(1, 701))


@pytest.mark.rule("2.9/segment_ids", "2.9/conditions", "4.4/created_before", side="client")
def test_people_are_reached_by_saved_segments_and_by_conditions(service_process: Any, client: Client) -> None:
    conditions = {"operator": "AND", "0": ["tags_attribute", "=", "tier", ["value", "=", "gold"]]}
    saved = service_process.post("/admin/segments", json={"title": "gold", "conditions": conditions}).json()
    where = {"all": [{"attribute": "tier", "value": "gold"}]}
    gold = [device for device in range(1, 701) if device % 3]
    for targeting in (
        {"kind": "saved_segments", "ids": [saved["id"]]},
        {"kind": "conditions", "where": where},
    ):
        made = campaign(channels={"email": EMAIL}, targeting=targeting)
        assert targeted(service_process, created(client, made, None)) == gold


@pytest.mark.rule("2.9/group", "2.9/operator", side="client")
@pytest.mark.parametrize(
    ("where", "devices"),
    [
        # (one of three users) and gold; the "all" alone would reach no device, the "any" alone 467
        ({"all": [{"any": [USER_2, USER_3, USER_4]}, GOLD]}, [2, 4]),
        ({"any": [{"all": [USER_2, GOLD]}, {"all": [USER_3, GOLD]}, USER_5]}, [2, 5]),
        ({"any": [{"all": [GOLD, {"any": [USER_3, {"all": [USER_4, GOLD]}]}]}, USER_3]}, [3, 4]),
    ],
)
def test_a_group_of_conditions_may_hold_groups(
    service_process: Any, client: Client, where: dict[str, Any], devices: list[int]
) -> None:
    made = campaign(channels={"email": EMAIL}, targeting={"kind": "conditions", "where": where})
    assert targeted(service_process, created(client, made, None)) == devices


@pytest.mark.proof
@pytest.mark.rule("3/until_stopped", side="client")
def test_what_never_ends_runs_until_it_is_stopped(service_start: Callable[..., Any]) -> None:
    service = service_start()
    daily = {"kind": "recurring", "time": "12:00", "time_zone": "UTC", **FROM_TODAY}
    waiting = {
        "kind": "triggered",
        "time_zone": "UTC",
        "trigger": {"kind": "event", "name": "order"},
        **FROM_TODAY,
    }
    with client_of(service) as client:
        ids = [
            record(service, created(client, campaign(channels={"email": EMAIL}, send=send), DEVICE_2))["id"]
            for send in (daily, waiting)
        ]

    def sent_in_days(count: int) -> list[int]:
        """Return how many messages of each campaign are sent within ``count`` days; each day starts with an event."""
        before = [len(service.admin(f"campaigns/{each}/devices/2")["messages"]) for each in ids]
        for _ in range(count):
            service.post("/admin/hits/event", json={"event": "order", "user_id": "cust-2"})
            service.advance("1d")
        after = [len(service.admin(f"campaigns/{each}/devices/2")["messages"]) for each in ids]
        return [now - then for then, now in zip(before, after, strict=True)]

    assert sent_in_days(3) == [3, 3]
    service.advance("400d")
    assert sent_in_days(3) == [3, 3]
    for each in ids:
        assert service.post(f"/admin/campaigns/{each}/stop").status_code == 200
    assert sent_in_days(3) == [0, 0]


@pytest.mark.rule("2.11/recurring", side="client")
def test_a_recurring_campaign_is_understood(service_process: Any, client: Client) -> None:
    send = {"kind": "recurring", "time": "08:00", "time_zone": "UTC", "days": ["monday"], **FROM_TODAY}
    outcome = created(
        client, campaign(channels={"email": EMAIL}, send=send), Targeting("device_id", integers([2]))
    )
    assert record(service_process, outcome)["send_type"] == 2


@pytest.mark.rule("2.10/locations", "2.10/dwell_time", "2.11/triggered", "4.4/created_before", side="client")
def test_a_campaign_waits_at_a_location_that_was_created_before(service_process: Any, client: Client) -> None:
    shop = service_process.post("/admin/locations", json={"title": "Shop"}).json()["id"]
    trigger = {"kind": "location", "locations": [shop], "when": "dwell", "dwell_minutes": 5}
    send = {"kind": "triggered", "time_zone": "UTC", "days": ["monday"], **FROM_TODAY, "trigger": trigger}
    made = campaign(channels={"email": EMAIL}, send=send)
    outcome = created(client, made, Targeting("device_id", integers([2])))
    assert record(service_process, outcome)["send_type"] == 2


@pytest.mark.rule("2.11/triggered_by_event", "2.11/triggered", side="client")
def test_a_campaign_waits_for_an_event(service_process: Any, client: Client) -> None:
    trigger = {"kind": "event", "name": "order"}
    send = {"kind": "triggered", "time_zone": "UTC", **FROM_TODAY, "trigger": trigger}
    made = campaign(channels={"email": EMAIL}, send=send, encryption="0")
    outcome = created(client, made, Targeting("device_id", integers([2])))
    assert record(service_process, outcome)["trigger"] == 2
    for user in ("cust-2", "cust-4"):  # the campaign does not target the second
        answer = service_process.post("/admin/hits/event", json={"event": "order", "user_id": user})
        assert answer.status_code == 200, answer.text
    assert targeted(service_process, outcome) == [2]


@pytest.mark.rule("2.11/once", "2.11/timezone", side="client")
def test_a_once_off_is_due_at_its_local_time(service_process: Any, client: Client) -> None:
    made = campaign(
        channels={"email": EMAIL}, send={"kind": "once", "time": "18:30", "time_zone": "Europe/Dublin"}
    )
    found = record(service_process, created(client, made, Targeting("device_id", integers([2]))))
    day: date = TOMORROW.date()
    due = datetime.combine(day, time(18, 30), ZoneInfo("Europe/Dublin"))
    assert [datetime.fromisoformat(run["due_at"]) for run in found["runs"]] == [due]


@pytest.mark.rule("6/create", "6/delivery", "6/open", side="client")
def test_post_backs_come_to_the_addresses_of_the_request(
    service_process: Any, client: Client, service_listener: Any
) -> None:
    addresses = PostBackAddresses(f"{service_listener.url}/d", f"{service_listener.url}/o")
    people = Targeting("device_id", integers(range(2, 100, 2)))
    outcome = created(client, campaign(channels={"email": EMAIL}), people, post_backs=addresses)
    assert isinstance(outcome, Accepted)
    service_process.wait_until_quiet()
    truth = service_process.admin(f"campaigns/{outcome.campaign_id}/truth")
    assert service_listener.devices("/d") == truth["delivered"]
    assert service_listener.devices("/o") == truth["opened"]


@pytest.mark.rule("4.3/post_backs", "4.3/one_to_one", "6/execute", side="client")
def test_a_template_is_executed_for_people_with_addresses_of_their_own(
    service_process: Any, client: Client, service_listener: Any
) -> None:
    send = {"kind": "triggered", "time_zone": "UTC", **FROM_TODAY, "trigger": {"kind": "api"}}
    template = created(
        client, campaign(channels={"email": EMAIL}, send=send), Targeting("device_id", integers([2]))
    )
    assert isinstance(template, Accepted)
    made = campaign(template={"id": template.campaign_id, "channels": ["email"]})
    for user in ("cust-4", "cust-8"):
        addresses = PostBackAddresses(f"{service_listener.url}/{user}", None)
        people = Targeting("user_id", strings([user]))
        body = execute_body(made, targeting=people, post_backs=addresses)
        assert isinstance(client.execute_campaign(body), Accepted)
    assert set(targeted(service_process, template)) >= {4, 8}
    truth = service_process.admin(f"campaigns/{template.campaign_id}/truth")["delivered"]
    assert service_listener.devices("/cust-4") == [device for device in truth if device == 4]
    assert service_listener.devices("/cust-8") == [device for device in truth if device == 8]


def test_what_the_service_refuses_is_refused_with_its_words(service_process: Any, client: Client) -> None:
    made = campaign(channels={"email": EMAIL})
    outcome = created(
        client, made, Targeting("device_id", integers([2])), names=FieldNames({"device_ids": "send_type2"})
    )
    assert isinstance(outcome, Refused), outcome
    assert outcome.status == 400
    assert outcome.message
    assert client.execute_campaign(b'{"id": 999999, "target": [1]}').kind == "refused"
    assert client.create_campaign(b"no json").kind == "refused"
