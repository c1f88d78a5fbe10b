"""The example campaigns, from their folders to the service's record of recipients, messages and times."""

from __future__ import annotations

import csv
import hashlib
import re
import sqlite3
from collections.abc import Callable, Iterable, Iterator
from contextlib import closing
from dataclasses import dataclass, replace
from datetime import UTC, date, datetime, time, timedelta
from pathlib import Path
from shutil import copytree
from typing import Any
from zoneinfo import ZoneInfo

import pytest
import requests

from sendoff.audience.identifiers import integers
from sendoff.campaign import Period, load_campaign
from sendoff.dispatch.request import ServiceConnection
from sendoff.dispatch.worker import send_launch
from sendoff.errors import GateError, NotYetError
from sendoff.launch.plan import LaunchRecord, prepare_launch
from sendoff.ledger import Decision, Ledger
from sendoff.service.client import Client
from sendoff.service.credentials import ClientSecret
from sendoff.service.postbacks import PostBackSigner
from sendoff.service.tokens import TokenSource

pytestmark = pytest.mark.proof  # each example is sent as a whole

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"
TODAY = datetime.now(UTC).replace(hour=0, minute=0, second=0, microsecond=0)
TOMORROW = TODAY + timedelta(days=1)
PERIOD = Period(TOMORROW - timedelta(days=3), TOMORROW)
DIRECTORY = """
SELECT d.device_id, d.platform, c.customer_id AS profile_id, c.user_id, c.language, c.time_zone, d.email,
       d.mobile_number, c.first_name, c.plan, c.language AS reads
FROM devices AS d JOIN customers AS c ON c.customer_id = d.customer_id
"""
NOWHERE = "http://127.0.0.1:9"
SECRETS = ["x" * 32]
IOS, ANDROID, WEB, INBOX, EMAIL, WEBHOOK, SMS = 1, 2, 3, 6, 7, 8, 9


def phone(customer: int) -> int:
    return 100_000 + 10 * customer + 1


def browser(customer: int) -> int:
    return 100_000 + 10 * customer + 2


def mailbox(customer: int) -> int:
    return 100_000 + 10 * customer + 3


@dataclass
class Shop:
    """The warehouse of the examples, a service that knows its people, and everything else that a launch needs."""

    service: Any
    warehouse: Path
    ledger: Ledger
    connection: ServiceConnection

    def launch(self, folder: Path, **how: Any) -> LaunchRecord:
        campaign = load_campaign(folder)
        period = campaign.campaign.fixed_period or PERIOD
        url = f"sqlite:///{self.warehouse}"
        return prepare_launch(self.ledger, campaign, period=period, warehouses=lambda _: url, **how)

    def send(self, folder: Path) -> None:
        send_launch(self.ledger, self.launch(folder).launch_key, self.connection)

    def rows(self, sql: str) -> list[tuple[Any, ...]]:
        parameters = {
            "period_start": f"{PERIOD.start:%Y-%m-%d %H:%M:%S}",
            "period_end": f"{PERIOD.end:%Y-%m-%d %H:%M:%S}",
        }
        with closing(sqlite3.connect(self.warehouse)) as warehouse:
            return warehouse.execute(sql, parameters).fetchall()

    def named(self, name: str) -> list[Any]:
        """Return the recipients that an example's query selects, without using Sendoff."""
        sql = (EXAMPLES / "campaigns" / name / "audience.sql").read_text(encoding="utf-8")
        return sorted(row[0] for row in self.rows(sql))

    def made(self, title: str) -> list[Made]:
        """Return the campaigns with a title, oldest first; the service must have recognised all members."""
        self.service.wait_until_quiet()
        found = [
            each
            for each in self.service.admin("campaigns?count=500")["campaigns"]
            if each["title"].partition(" [")[0] == title
        ]
        assert not [each["warnings"] for each in found if each["warnings"]]
        return [Made(self.service, each) for each in reversed(found)]


@dataclass
class Made:
    """A campaign in the service's record."""

    service: Any
    record: dict[str, Any]

    @property
    def send_type(self) -> int:
        return int(self.record["send_type"])

    @property
    def due(self) -> list[datetime]:
        return [datetime.fromisoformat(run["due_at"]) for run in self.record["runs"]]

    def people(self) -> list[int]:
        found: list[int] = self.service.admin(f"campaigns/{self.record['id']}/truth")["targeted"]
        return found

    def messages(self, device: int) -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = self.service.admin(f"campaigns/{self.record['id']}/devices/{device}")[
            "messages"
        ]
        return found

    def words(self, device: int, message_type: int) -> dict[str, Any]:
        """Return the content of the only message to a device."""
        [sent] = self.messages(device)
        assert sent["message_type"] == message_type
        assert sent["message"] is not None, sent["error"]
        said: dict[str, Any] = sent["message"]
        return said


def new_shop(service: Any, folder: Path) -> Shop:
    warehouse = folder / "shop.db"
    with closing(sqlite3.connect(warehouse)) as db:
        db.executescript((EXAMPLES / "warehouse.sql").read_text(encoding="utf-8"))
        rows = db.execute(DIRECTORY)
        with (folder / "directory.csv").open("w", newline="", encoding="utf-8") as file:
            writer = csv.writer(file)
            writer.writerow([column[0] for column in rows.description])
            writer.writerows(rows)
    service.command("devices", "import", str(folder / "directory.csv"))
    ledger = Ledger(f"sqlite:///{folder / 'ledger.db'}")
    ledger.migrate()
    session = requests.Session()
    tokens = TokenSource(ClientSecret(service.client_id, service.client_secret), service.base_url, session)
    client = Client(service.base_url, session, tokens)
    connection = ServiceConnection(
        client, PostBackSigner(NOWHERE, SECRETS), requests_at_once=1
    )  # so that campaigns are created in order
    return Shop(service, warehouse, ledger, connection)


@pytest.fixture(scope="module")
def opened(service_process: Any, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Shop]:
    made = new_shop(service_process, tmp_path_factory.mktemp("shop"))
    yield made
    made.ledger.close()


@pytest.fixture
def shop(opened: Shop, service_listener: Any) -> Shop:
    """A shop for campaigns that are sent at once."""
    return replace(
        opened, connection=replace(opened.connection, signer=PostBackSigner(service_listener.url, SECRETS))
    )


@pytest.fixture
def later(service_start: Callable[..., Any], service_listener: Any, tmp_path: Path) -> Iterator[Shop]:
    """A shop whose clock the test may advance."""
    made = new_shop(service_start(), tmp_path)
    yield replace(
        made, connection=replace(made.connection, signer=PostBackSigner(service_listener.url, SECRETS))
    )
    made.ledger.close()


def example(name: str) -> Path:
    return EXAMPLES / "campaigns" / name


def test_a_push_with_a_picture_shows_on_three_platforms(shop: Shop) -> None:
    shop.send(example("push_with_picture"))
    [made] = shop.made("Spring sale")
    assert made.send_type == 0
    assert made.people() == shop.named("push_with_picture")
    android, ios, chrome = (
        made.words(phone(2), ANDROID),
        made.words(phone(3), IOS),
        made.words(browser(3), WEB),
    )
    assert [said["text"] for said in (android, ios, chrome)] == [
        "Ten per cent off until Sunday, Greta.",
        "Ten per cent off in the app, Noah.",
        "Ten per cent off until Sunday, Noah.",
    ]
    for said in (android, ios, chrome):
        assert said["title"] == "Spring is here"
        assert said["picture"] == "https://shop.example.com/pictures/spring.jpg"
        assert said["url"] == "https://shop.example.com/spring"
    assert android["payload"] == ios["payload"] == [["screen", "sale"]]


def test_a_web_push_reaches_browsers(shop: Shop) -> None:
    shop.send(example("web_push"))
    [made] = shop.made("Back in stock")
    assert made.people() == shop.named("web_push")
    for customer in (1, 2, 3):  # Firefox, Safari, Chrome
        assert made.words(browser(customer), WEB)["text"] == "The shoes that you liked are here again."


def test_an_inbox_message_lies_in_the_inbox(later: Shop) -> None:
    later.send(example("inbox"))
    [made] = later.made("Your year with us")
    assert made.people() == later.named("inbox")
    assert made.words(phone(6), INBOX)["title"] == "Your year with us, Grace"
    [sent] = made.messages(phone(6))
    left = datetime.fromisoformat(sent["removed_at"]) - datetime.fromisoformat(sent["delivered_at"])
    assert left == timedelta(weeks=2)


def test_a_push_in_languages_says_to_each_their_own(shop: Shop) -> None:
    shop.send(example("push_in_languages"))
    [made] = shop.made("New collection")
    assert made.people() == shop.named("push_in_languages")
    english, french, german = (made.words(phone(number), kind) for number, kind in ((6, 2), (1, 1), (2, 2)))
    assert english["title"] == "The new collection"
    assert (french["title"], french["language"]) == ("La nouvelle collection", "fr")
    assert (german["title"], german["language"]) == ("Die neue Kollektion", "de")
    assert german["url"] == "https://shop.example.com/de/neu"


def test_an_email_in_languages_is_one_campaign_for_each(shop: Shop) -> None:
    shop.send(example("email_in_languages"))
    english, french = shop.made("Welcome")
    in_french = [device for device in shop.named("email_in_languages") if (device // 10) % 10_000 % 3 == 1]
    assert french.people() == in_french
    assert english.people() == sorted(set(shop.named("email_in_languages")) - set(in_french))
    said = english.words(mailbox(2), EMAIL)  # the user reads German
    assert said["subject"] == "Welcome, Greta"
    assert "<p>Hello Greta,</p>" in said["html"]
    said = french.words(mailbox(1), EMAIL)
    assert said["subject"] == "Bienvenue, Hugo"
    assert "Bonjour Hugo," in said["text"]


def test_a_text_message_reaches_whose_order_is_ready(shop: Shop) -> None:
    shop.send(example("sms"))
    [made] = shop.made("Parcel is ready")
    assert made.people() == shop.named("sms")
    said = made.words(100_014, SMS)
    assert (said["sender"], said["text"]) == ("Shop", "Hello Hugo, your parcel is ready at the counter.")


@pytest.mark.proof
def test_a_webhook_is_called_once_for_each_member(shop: Shop) -> None:
    shop.send(example("webhook"))
    [made] = shop.made("Points for gold members")
    assert made.people() == shop.named("webhook")
    called = made.words(phone(4), WEBHOOK)["webhook"]
    assert called["url"] == "https://loyalty.example.com/points"
    assert called["get_params"] == [{"key": "source", "value": "campaign"}]
    assert called["request_headers"] == "X-Source: sendoff"
    assert called["request_body_data"] == {"json": '{"member": "C0004", "points": 10}'}


def test_saved_segments_and_conditions_are_looked_up_by_the_service(later: Shop) -> None:
    for number, plan in enumerate(("gold", "basic"), 1):
        conditions = {"operator": "AND", "0": ["tags_attribute", "=", "plan", ["value", "=", plan]]}
        saved = later.service.post("/admin/segments", json={"title": plan, "conditions": conditions}).json()
        assert saved["id"] == number
    later.send(example("saved_segments"))
    later.send(example("conditions"))
    [segments], [conditions] = (
        later.made("Gold members' evening"),
        later.made("Gold members who read French or German"),
    )
    assert segments.people() == [row[0] for row in later.rows("SELECT device_id FROM devices ORDER BY 1")]
    assert conditions.people() == [
        row[0]
        for row in later.rows(
            "SELECT device_id FROM devices d JOIN customers c USING (customer_id) "
            "WHERE c.plan = 'gold' AND c.language IN ('fr', 'de') ORDER BY 1"
        )
    ]
    assert conditions.words(phone(4), ANDROID)["title"] == "Votre soirée"


def test_a_location_sends_to_who_stays_there(later: Shop) -> None:
    later.service.post("/admin/locations", json={"title": "Shop"})
    later.send(example("at_a_location"))
    [made] = later.made("Coffee in the shop")
    assert (made.send_type, made.record["trigger"], made.due) == (2, 1, [])
    later.service.go_to(TOMORROW.replace(hour=12))
    hit = {"device_id": phone(6), "location_id": 1}
    later.service.post("/admin/hits/location", json={**hit, "action": "enter"})
    later.service.advance("6m")
    [made] = later.made("Coffee in the shop")
    assert made.people() == [phone(6)]
    assert made.words(phone(6), ANDROID)["text"] == "Show this at the counter for a coffee."


def test_an_event_sends_to_the_person_who_caused_it(later: Shop) -> None:
    later.send(example("triggered_by_event"))
    [made] = later.made("Basket left behind")
    assert (made.send_type, made.record["trigger"], made.due) == (2, 2, [])
    for event in ("order", "basket_left"):
        answer = later.service.post("/admin/hits/event", json={"event": event, "user_id": "C0006"})
        assert answer.status_code == 200, answer.text
    [made] = later.made("Basket left behind")
    assert made.people() == [phone(6)]
    assert made.words(phone(6), ANDROID)["text"] == "Everything that you chose is still there, Grace."


def test_a_once_off_is_sent_in_the_evening_of_its_zone(later: Shop) -> None:
    later.send(example("once_in_a_zone"))
    [made] = later.made("Tonight only")
    assert made.send_type == 1
    assert made.due == [at(TOMORROW.date(), "18:30", "Europe/Dublin")]
    assert made.people() == []
    later.service.advance("2d")
    assert made.people() == later.named("once_in_a_zone")


def test_what_recurs_is_sent_on_its_days_by_each_persons_clock(later: Shop) -> None:
    later.service.go_to(TOMORROW.replace(hour=12))  # which is not a send time in any time zone
    later.send(example("recurring"))
    [made] = later.made("Weekend reminder")
    assert made.send_type == 2
    later.service.advance("8d")
    [made] = later.made("Weekend reminder")
    assert made.people() == later.named("recurring")
    sent = [datetime.fromisoformat(each["sent_at"]) for each in made.messages(phone(1))]
    local = [moment.astimezone(ZoneInfo("Europe/Paris")) for moment in sent]
    assert {f"{moment:%A %H:%M}" for moment in local} == {"Friday 16:00", "Saturday 16:00"}


def test_a_broadcast_waits_for_a_person_and_reaches_everybody(shop: Shop) -> None:
    launch = shop.launch(example("broadcast"))
    with pytest.raises(GateError):
        send_launch(shop.ledger, launch.launch_key, shop.connection)
    assert shop.made("We have moved") == []
    approve(shop, launch)
    send_launch(shop.ledger, launch.launch_key, shop.connection)
    [made] = shop.made("We have moved")
    assert set(made.people()) > {row[0] for row in shop.rows("SELECT device_id FROM devices")}
    assert made.words(phone(2), ANDROID)["text"] == "From today on you find us at 5 Quay Street."


def approve(shop: Shop, launch: LaunchRecord) -> None:
    assert shop.ledger.audit_log.decide(
        Decision(launch.launch_key, "approved", "a person", None, datetime.now(UTC))
    )


def test_local_time_is_a_campaign_for_each_zone_at_its_own_moment(later: Shop) -> None:
    later.send(example("at_local_time"))
    day = TOMORROW.date()
    named = later.rows((example("at_local_time") / "audience.sql").read_text(encoding="utf-8"))
    expected: dict[datetime, list[int]] = {}
    for device, _, zone in named:
        due = at(day, "07:30", zone or "Europe/Dublin").astimezone(UTC)
        expected.setdefault(due, []).append(device)
    assert len(expected) == 3  # Paris and Berlin share a time zone offset, in two campaigns
    made = later.made("Good morning")
    assert len(made) == 4
    assert {each.send_type for each in made} == {1}
    assert {moment for each in made for moment in each.due} == set(expected)
    later.service.advance("2d")
    sent: dict[datetime, list[int]] = {}
    for each in made:
        [due] = each.due
        sent.setdefault(due, []).extend(each.people())
    assert {due: sorted(people) for due, people in sent.items()} == {
        due: sorted(people) for due, people in expected.items()
    }
    assert each_title(made, phone(2)) == ["Good morning, Greta"]


def each_title(made: Iterable[Made], device: int) -> list[str]:
    return [sent["message"]["title"] for each in made for sent in each.messages(device)]


def test_a_template_is_executed_with_what_belongs_to_each_person(shop: Shop, tmp_path: Path) -> None:
    shop.send(example("triggered_by_api"))
    [template] = shop.made("Order shipped")
    assert (template.send_type, template.record["trigger"], template.due) == (2, 3, [])
    folder = copytree(example("template_executions"), tmp_path / "template_executions")
    file = folder / "campaign.yaml"
    text = file.read_text(encoding="utf-8")
    assert "id: 4711" in text
    file.write_text(text.replace("id: 4711", f"id: {template.record['id']}"), encoding="utf-8")
    shop.send(folder)
    [template] = shop.made("Order shipped")
    users = shop.named("template_executions")
    assert {f"C{(device // 10) % 10_000:04}" for device in template.people()} == set(users)
    assert template.words(mailbox(3), EMAIL)["text"] == (
        "Your order has left our house: https://parcels.example.com/5003"
    )
    assert template.words(mailbox(6), EMAIL)["subject"] == "On its way, Grace"


def test_the_rules_of_an_audience_leave_people_out(later: Shop) -> None:
    name = example("audience_rules").name
    later.send(example("push_with_picture"))
    colleagues = [phone(12), phone(13)]
    later.ledger.uploaded_lists.store(
        "colleagues", "device_id", integers(colleagues), "a test", datetime.now(UTC)
    )
    later.send(example(name))
    returned = later.rows((example(name) / "returned.sql").read_text(encoding="utf-8"))
    out = {
        "returned": {row[0] for row in returned},
        "sent to": set(later.named("push_with_picture")),
        "colleagues": set(colleagues),
        "complained": {phone(4), phone(5)},
    }
    named = set(later.named(name))
    for reason, people in out.items():
        assert named & people, reason
    left = named.difference(*out.values())
    held_out = {device for device in left if position(device, f"holdout {name}") < 2**64 // 10}
    assert held_out
    [made] = later.made("Lapsed buyers")
    assert made.people() == sorted(left - held_out)


def position(device: int, salt: str) -> int:
    """Compute a device's random position, as documented in ``sendoff.audience.bucketing``."""
    every = 2**64 - 1
    seed = int.from_bytes(hashlib.blake2b(salt.encode(), digest_size=8).digest(), "big")
    z = ((device ^ seed) + 0x9E3779B97F4A7C15) & every
    z = ((z ^ (z >> 30)) * 0xBF58476D1CE4E5B9) & every
    z = ((z ^ (z >> 27)) * 0x94D049BB133111EB) & every
    return z ^ (z >> 31)


def test_variants_share_the_people_and_say_different_words(shop: Shop) -> None:
    shop.send(example("variants"))
    plain, personal = sorted(
        shop.made("Which words work"), key=lambda made: each_title([made], made.people()[0])[0], reverse=True
    )
    assert sorted(plain.people() + personal.people()) == shop.named("variants")
    assert min(len(plain.people()), len(personal.people())) > 70  # of 200
    assert {title for device in plain.people() for title in each_title([plain], device)} == {
        "Ten per cent off"
    }
    for device in personal.people():
        [[name]] = shop.rows(
            f"SELECT first_name FROM customers JOIN devices USING (customer_id) WHERE device_id = {device}"
        )
        assert each_title([personal], device) == [f"For you, {name}"]


def test_the_rest_gets_the_winner_two_hours_after_the_test_share(shop: Shop) -> None:
    noon = TOMORROW.replace(hour=12)
    launch = shop.launch(example("winner"), now=noon)
    with pytest.raises(NotYetError) as early:
        send_launch(shop.ledger, launch.launch_key, shop.connection, now=lambda: noon)
    later = early.value.until
    assert later - noon >= timedelta(hours=2)
    first = [device for made in shop.made("The words that work") for device in made.people()]
    assert 10 < len(first) < 80  # of 200
    send_launch(shop.ledger, launch.launch_key, shop.connection, now=lambda: later)
    made = shop.made("The words that work")
    assert sorted(device for each in made for device in each.people()) == shop.named("winner")
    rest = [each for each in made if each.people()[0] not in first]
    assert {title for each in rest for title in each_title([each], each.people()[0])} == {"Ten per cent off"}
    assert shop.ledger.launches.get(launch.launch_key).winner == "plain"  # there were no opens


def test_a_careful_launch_waits_for_a_person_for_its_hours_and_for_its_first_wave(shop: Shop) -> None:
    noon = TOMORROW.replace(hour=12)
    launch = shop.launch(example("careful_launch"), now=noon)
    approve(shop, launch)
    midnight = TOMORROW.replace(hour=1)
    with pytest.raises(NotYetError):
        send_launch(shop.ledger, launch.launch_key, shop.connection, now=lambda: midnight)
    assert shop.made("Prices change") == []
    with pytest.raises(NotYetError):
        send_launch(shop.ledger, launch.launch_key, shop.connection, now=lambda: noon)
    first = [device for made in shop.made("Prices change") for device in made.people()]
    assert 0 < len(first) < 50  # of 200
    send_launch(shop.ledger, launch.launch_key, shop.connection, now=lambda: noon + timedelta(minutes=31))
    made = shop.made("Prices change")
    assert max(len(each.people()) for each in made) == 20
    assert sorted(device for each in made for device in each.people()) == shop.named("careful_launch")


def at(day: date, hour_minute: str, zone: str) -> datetime:
    return datetime.combine(day, time.fromisoformat(hour_minute), ZoneInfo(zone))


def test_each_example_is_sent_by_a_test() -> None:
    sent = set(re.findall(r'example\("(\w+)"\)', Path(__file__).read_text(encoding="utf-8")))
    assert sent == {folder.name for folder in (EXAMPLES / "campaigns").iterdir()}
