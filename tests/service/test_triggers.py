"""Campaigns that wait for a location or an event (sections 2.10, 2.11)."""

from __future__ import annotations

from datetime import datetime, timedelta

import pytest

PUSH = {"android_push": 1, "ios_push": 1, "web_push": 1}
HEADER = "device_id,platform,profile_id,user_id,language,time_zone,first_name"
PEOPLE = [
    "1001,android,1,u1,en,UTC,Ann",
    "1002,chrome,1,u1,en,UTC,Ann",
    "1003,ios,3,u3,en,Asia/Tokyo,Cé",
]
ENTER, EXIT, DWELL = 1, 2, 3


@pytest.fixture(scope="module")
def people(people):
    go_to_morning(people)
    return people


def go_to_morning(service):
    """Advance to 09:00 UTC of the next day, so that no test crosses midnight unintentionally."""
    service.go_to(service.now().replace(hour=9, minute=0, second=0, microsecond=0) + timedelta(days=1))


@pytest.fixture
def shop(people):
    return people.post("/admin/locations", json={"title": "Shop"}).json()["id"]


@pytest.fixture
def waiting(people):
    """Creates campaigns, and stops them after the test, so that later hits do not trigger them."""
    created = []

    def create(**fields):
        body = {**PUSH, "broadcast": 1, "send_type": 2, "timezone": "UTC", **fields}
        created.append(people.created(**body))
        return created[-1]

    yield create
    for campaign in created:
        people.post(f"/admin/campaigns/{campaign}/stop")


def at_location(service, location, device=1001, action="enter"):
    body = {"device_id": device, "location_id": location, "action": action}
    answer = service.post("/admin/hits/location", json=body)
    assert answer.status_code == 200, answer.text
    service.wait_until_quiet()
    return answer.json()["campaigns"]


def reasons(found):
    return [item["reason"] for item in found]


def texts(service, campaign, device=1001):
    found = service.admin(f"campaigns/{campaign}/devices/{device}")["messages"]
    return [message["message"]["text"] for message in found]


@pytest.mark.rule("2.10/locations", "2.10/trigger", "4.4/created_before", side="service")
def test_entering_a_location_sends_to_who_enters(people, shop, waiting):
    campaign = waiting(
        locations=[shop], location_trigger=ENTER, trigger=1, push_text="Hi {{first_name}} at {{location}}"
    )
    assert texts(people, campaign) == []
    [started] = at_location(people, shop)
    assert (started["campaign"], started["reason"]) == (campaign, None)
    assert texts(people, campaign) == ["Hi Ann at Shop"]
    assert people.admin(f"campaigns/{campaign}/truth")["targeted"] == [1001]


@pytest.mark.rule("2.10/trigger", "2.10/limit_nth_hit", "8/location_limits", side="service")
def test_locations_alone_make_a_campaign_that_they_trigger(people, shop, waiting):
    campaign = waiting(locations=[shop])
    at_location(people, shop)
    assert texts(people, campaign) == ["hello"]


def test_another_location_starts_nothing(people, shop, waiting):
    waiting(locations=[shop])
    other = people.command("locations", "add", "--title", "Elsewhere")["id"]
    assert other in [location["id"] for location in people.admin("locations")["locations"]]
    assert at_location(people, other) == []


def test_who_is_not_targeted_gets_nothing(people, shop, waiting):
    waiting(locations=[shop], broadcast=0, device_ids=[1003])
    assert reasons(at_location(people, shop)) == ["not targeted"]
    assert reasons(at_location(people, shop, device=1003)) == [None]


@pytest.mark.rule("2.10/limit_per_user", "2.10/limit_per_user_period", "8/location_limits", side="service")
def test_a_person_gets_one_a_day(people, shop, waiting):
    campaign = waiting(locations=[shop])
    assert reasons(at_location(people, shop)) == [None]
    assert reasons(at_location(people, shop)) == ["location_limit_per_user is reached"]
    assert reasons(at_location(people, shop, device=1002)) == [
        "location_limit_per_user is reached"
    ]  # the same user
    assert reasons(at_location(people, shop, device=1003)) == [None]
    go_to_morning(people)
    assert reasons(at_location(people, shop)) == [None]
    assert len(texts(people, campaign)) == 2


@pytest.mark.rule("2.10/limit_per_user_period", side="service")
def test_a_limit_may_hold_for_the_whole_campaign(people, shop, waiting):
    waiting(locations=[shop], location_limit_per_user_period="campaign")
    assert reasons(at_location(people, shop)) == [None]
    go_to_morning(people)
    assert reasons(at_location(people, shop)) == ["location_limit_per_user is reached"]


@pytest.mark.rule("2.10/limit_per_location", "8/location_limits", side="service")
def test_each_location_has_a_limit_of_its_own(people, shop, waiting):
    other = people.post("/admin/locations", json={"title": "Café"}).json()["id"]
    waiting(locations=[shop, other], location_limit_per_user=3)
    assert reasons(at_location(people, shop)) == [None]
    assert reasons(at_location(people, shop)) == ["location_limit_per_location is reached"]
    assert reasons(at_location(people, other)) == [None]
    waiting(locations=[other], location_limit_per_user=3, location_limit_per_location=2)
    found = [reasons(at_location(people, other))[-1] for _ in range(3)]
    assert found == [None, None, "location_limit_per_location is reached"]


@pytest.mark.rule("2.10/limit_nth_hit", "2.10/limit_nth_hit_period", side="service")
def test_the_nth_hit_triggers(people, shop, waiting):
    waiting(locations=[shop], location_limit_nth_hit=2)
    assert reasons(at_location(people, shop)) == ["location_limit_nth_hit is not reached"]
    go_to_morning(people)  # the limit's period is a day
    found = [reasons(at_location(people, shop))[0] for _ in range(3)]
    assert found == ["location_limit_nth_hit is not reached"] * 2 + [None]
    for period in ("campaign", "day"):
        waiting(locations=[shop], location_limit_nth_hit=1, location_limit_nth_hit_period=period)
        found = [reasons(at_location(people, shop))[-1] for _ in range(2)]
        assert found == ["location_limit_nth_hit is not reached", None]  # earlier hits were for no campaign


def test_leaving_soon_after_entering_triggers(people, shop, waiting):
    waiting(locations=[shop], location_trigger=EXIT, location_limit_per_user=9, location_limit_per_location=9)
    assert reasons(at_location(people, shop, action="exit")) == [
        "left later than 30 minutes after entering, or never entered"
    ]
    assert at_location(people, shop) == []
    assert reasons(at_location(people, shop, action="exit")) == [None]
    at_location(people, shop)
    people.advance("31m")
    assert reasons(at_location(people, shop, action="exit"))[0].startswith("left later")


@pytest.mark.rule("2.10/dwell_time", side="service")
def test_staying_triggers_after_the_dwell_time(people, shop, waiting):
    campaign = waiting(locations=[shop], location_trigger=DWELL, dwell_time=30)
    before = people.now()
    [foreseen] = at_location(people, shop)
    dwell = timedelta(minutes=30)
    assert before + dwell <= datetime.fromisoformat(foreseen["due_at"]) <= people.now() + dwell
    people.advance("15m")
    assert texts(people, campaign) == []
    people.advance("16m")
    assert texts(people, campaign) == ["hello"]


def test_leaving_before_the_dwell_time_calls_the_message_off(people, shop, waiting):
    campaign = waiting(locations=[shop], location_trigger=DWELL, dwell_time=10)
    at_location(people, shop)
    assert reasons(at_location(people, shop, action="exit")) == ["left before the dwell time"]
    people.advance("20m")
    assert texts(people, campaign) == []
    assert reasons(at_location(people, shop)) == [None]  # a cancelled stay does not count towards the limits


@pytest.mark.rule(
    "2.11/send_type", "2.11/triggered", "2.11/start_date", "2.11/end_date", "2.11/send_days",
    "2.11/start_time", "2.11/end_time", side="service",
)  # fmt: skip
def test_a_triggered_campaign_keeps_its_window(people, shop, waiting):
    now = people.now()
    today, weekday = f"{now:%Y-%m-%d}", now.isoweekday()
    windows = {
        None: {
            "start_time": f"{now:%H:%M}",
            "end_time": "23:59",
            "send_days": [weekday],
            "start_date": today,
        },
        "before start_date": {"start_date": f"{now + timedelta(days=1):%Y-%m-%d}"},
        "after end_date": {"start_date": "2001-01-01", "end_date": "2001-02-01"},
        "not on one of send_days": {"send_days": [weekday % 7 + 1]},
        "not between start_time and end_time": {"start_time": "00:00", "end_time": "00:01"},
    }
    for window in windows.values():
        waiting(locations=[shop], **window)
    assert reasons(at_location(people, shop)) == list(windows)


@pytest.mark.rule("2.11/own_timezone", side="service")
def test_the_window_follows_the_persons_zone(people, shop, waiting):
    body = {"locations": [shop], "start_time": "17:00", "end_time": "23:00"}  # 09:00 UTC is 18:00 in Tokyo
    fields = {**PUSH, "broadcast": 1, "send_type": 2, **body}
    go_to_morning(people)
    campaign = people.create(**fields).json()["model"]["id"]
    assert reasons(at_location(people, shop)) == ["not between start_time and end_time"]
    assert reasons(at_location(people, shop, device=1003)) == [None]
    people.post(f"/admin/campaigns/{campaign}/stop")


@pytest.mark.rule("3/until_stopped", side="service")
def test_a_stopped_campaign_is_not_triggered(people, shop, waiting):
    campaign = waiting(locations=[shop])
    people.advance("50d")
    assert reasons(at_location(people, shop)) == [None]
    people.command("campaigns", "stop", str(campaign))
    go_to_morning(people)
    assert at_location(people, shop) == []


@pytest.mark.rule(
    "2.10/locations", "2.10/dwell_time", "2.10/limit_per_user", "2.10/limit_per_user_period",
    "2.10/limit_per_location", "2.10/limit_per_location_period", "2.10/limit_nth_hit",
    "2.10/limit_nth_hit_period", "8/dwell_time", side="service",
)  # fmt: skip
@pytest.mark.parametrize(
    ("fields", "field"),
    [
        ({"trigger": 1}, "locations"),
        ({"locations": [999_999]}, "locations"),
        ({"locations": ["SHOP"]}, "locations"),
        ({"location_trigger": 4}, "location_trigger"),
        ({"location_trigger": DWELL}, "dwell_time"),
        ({"location_trigger": DWELL, "dwell_time": 0}, "dwell_time"),
        ({"location_trigger": DWELL, "dwell_time": 31}, "dwell_time"),
        ({"location_limit_per_user": 0}, "location_limit_per_user"),
        ({"location_limit_per_user_period": "week"}, "location_limit_per_user_period"),
        ({"location_limit_per_location": "1"}, "location_limit_per_location"),
        ({"location_limit_per_location_period": 1}, "location_limit_per_location_period"),
        ({"location_limit_nth_hit": -1}, "location_limit_nth_hit"),
        ({"location_limit_nth_hit_period": ""}, "location_limit_nth_hit_period"),
        ({"broadcast": 0}, "broadcast"),
    ],
    ids=str,
)
def test_a_wrong_geo_campaign_is_refused(people, shop, fields, field):
    body = {**PUSH, "broadcast": 1, "send_type": 2, "locations": [shop], **fields}
    if fields.get("trigger"):
        body.pop("locations")
    answer = people.create(**body)
    assert answer.status_code == 400
    assert field in [problem["field"] for problem in answer.json()["errors"]]


@pytest.mark.parametrize(
    ("body", "code"),
    [
        ({"device_id": 999_999, "location_id": "SHOP"}, 404),
        ({"device_id": 1001, "location_id": 999_999}, 404),
        ({"device_id": 1001, "location_id": "SHOP", "action": "jump"}, 400),
        ({"device_id": 1001}, 400),
        ({"device_id": 2**70, "location_id": "SHOP"}, 400),
        ({"device_id": 1001, "location_id": 2**63}, 400),
        ({"device_id": 1001, "location_id": 0}, 400),
    ],
)
def test_a_wrong_hit_is_refused(people, shop, body, code):
    body = {**body, **({"location_id": shop} if body.get("location_id") == "SHOP" else {})}
    assert people.post("/admin/hits/location", json=body).status_code == code


@pytest.mark.rule("2.11/triggered_by_event", "2.11/triggered", side="service")
def test_an_event_reaches_every_device_of_its_user(people, waiting):
    campaign = waiting(trigger=2, event="order", push_text="{{first_name}}: {{total}}")
    value = {"total": 12}
    answer = people.post("/admin/hits/event", json={"event": "order", "user_id": "u1", "value": value})
    assert reasons(answer.json()["campaigns"]) == [None]
    people.wait_until_quiet()
    assert texts(people, campaign) == texts(people, campaign, 1002) == ["Ann: 12"]
    assert texts(people, campaign, 1003) == []
    said = people.command(
        "hits", "event", "--event", "order", "--device-id", "1003", "--value", '{"total": 7}'
    )
    assert reasons(said["campaigns"]) == [None]
    people.wait_until_quiet()
    assert texts(people, campaign, 1003) == ["Cé: 7"]
    other = people.post("/admin/hits/event", json={"event": "visit", "user_id": "u1"}).json()
    assert other["campaigns"] == []


@pytest.mark.rule("2.11/triggered_by_event", "2.11/triggered", "3/until_stopped", side="service")
def test_a_campaign_waits_for_its_event_within_its_window_until_it_is_stopped(people, waiting):
    go_to_morning(people)
    campaign = waiting(trigger=2, event="paid", broadcast=0, device_ids=[1003], start_time="09:30")
    u1, u3 = ({"event": "paid", "user_id": user} for user in ("u1", "u3"))

    def happens(body):
        return reasons(people.post("/admin/hits/event", json=body).json()["campaigns"])

    assert happens(u3) == ["not between start_time and end_time"]
    people.advance("1h")
    assert (happens(u1), happens(u3)) == (["not targeted"], [None])
    people.wait_until_quiet()
    assert texts(people, campaign, 1003) == ["hello"]
    people.post(f"/admin/campaigns/{campaign}/stop")
    assert happens(u3) == []


def test_an_event_campaign_without_an_event_is_refused(people):
    answer = people.create(**PUSH, broadcast=1, trigger=2)
    assert answer.status_code == 400
    assert [problem["field"] for problem in answer.json()["errors"]] == ["event"]


@pytest.mark.parametrize(
    ("body", "code"),
    [
        ({"event": "order"}, 400),
        ({"event": "", "user_id": "u1"}, 400),
        ({"event": "order", "user_id": "u1", "device_id": 1001}, 400),
        ({"event": "order", "user_id": "nobody"}, 404),
        ({"event": "order", "device_id": 2**63 - 1}, 404),
        ({"event": "order", "device_id": 2**63}, 400),
    ],
)
def test_a_wrong_event_is_refused(people, body, code):
    assert people.post("/admin/hits/event", json=body).status_code == code


def test_hits_are_told_by_command_too(people, shop, waiting):
    campaign = waiting(locations=[shop], location_trigger=DWELL, dwell_time=30)
    hit = ("hits", "location", "--device-id", "1001", "--location-id", str(shop))
    assert [item["campaign"] for item in people.command(*hit)["campaigns"]] == [campaign]
    assert reasons(people.command(*hit, "--action", "exit")["campaigns"]) == ["left before the dwell time"]


@pytest.mark.parametrize("value", ["{", "[" * 300 + "]" * 300, '"\\u0000"'], ids=["no JSON", "deep", "NUL"])
def test_a_value_that_cannot_be_stored_is_refused_by_the_command(people, value):
    said = people.command("hits", "event", "--event", "e", "--user-id", "u1", "--value", value, expect=1)
    assert said["error"].startswith("--value ")


def test_conditions_may_ask_for_hits(people, shop):
    at_location(people, shop)
    people.post("/admin/hits/event", json={"event": "bought", "user_id": "u3"})
    kinds = {"location": ["location", "=", shop, ["hits", ">", 0]], "tags": ["tags", "=", "bought"]}
    found = {}
    for kind, condition in kinds.items():
        conditions = {"operator": "AND", "0": condition}
        campaign = people.created(**PUSH, conditions=conditions)
        people.wait_until_quiet()
        found[kind] = people.admin(f"campaigns/{campaign}/truth")["targeted"]
    assert found == {"location": [1001, 1002], "tags": [1003]}
