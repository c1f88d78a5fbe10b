"""Executions of templates: targets, variables, time, overrides and new profiles (section 4.3)."""

from __future__ import annotations

from datetime import datetime, timedelta

import pytest

PUSH = {"android_push": 1, "ios_push": 1, "web_push": 1}
SMS = {"sms": 1, "messages": {"9": {"sms": {"from": "Shop", "text": "Hi {{user_id}}"}}}}
HEADER = "device_id,platform,profile_id,user_id,language,time_zone,external_id,token,email,tier"
PEOPLE = [
    "1001,android,1,u1,en,UTC,e1,t1,a@example.org,gold",
    "1002,chrome,2,u2,en,UTC,e2,t2,b@example.org,silver",
    "1003,ios,2,u2,en,UTC,e3,t3,,silver",
]


def template(service, **fields):
    return service.created(**{**PUSH, "trigger": 3, **fields})


def execute(service, campaign, **fields):
    answer = service.execute(id=campaign, **fields)
    assert answer.status_code == 200, answer.text
    service.wait_until_quiet()
    return answer.json()["model"]["action_id"]


def texts(service, campaign):
    return {
        device: [
            m["message"]["text"] if m["message"] else m["error"]
            for m in service.admin(f"campaigns/{campaign}/devices/{device}")["messages"]
        ]
        for device in (1001, 1002, 1003)
    }


@pytest.mark.rule("4.3/one_to_one", side="service")
def test_variables_of_a_target_stand_over_those_of_all(people):
    campaign = template(people, push_text="{{gate}} {{flight}} {{tier}}")
    execute(
        people,
        campaign,
        target_by="user_id",
        target_with_params={"u1": {"gate": "B4"}, "u2": {"flight": "X9", "gate": "C1"}, "u9": {}},
        params={"flight": "A1", "gate": "unknown"},
    )
    assert texts(people, campaign) == {1001: ["B4 A1 gold"], 1002: ["C1 X9 silver"], 1003: ["C1 X9 silver"]}
    assert people.admin(f"campaigns/{campaign}/truth")["unknown"] == ["u9"]


def test_a_target_without_its_variables_gets_nothing(people):
    campaign = template(people, push_text="{{gate}}")
    execute(people, campaign, target_with_params={"1001": {"gate": "B4"}, "1002": {}})
    assert texts(people, campaign) == {1001: ["B4"], 1002: ["Not personalized"], 1003: []}


def test_each_execution_keeps_its_own_words(people):
    campaign = template(people, push_text="{{n}}")
    for number in (1, 2):
        execute(people, campaign, target=[1001], params={"n": number})
    execute(people, campaign, target=[1001], push_text="three")
    assert texts(people, campaign)[1001] == ["1", "2", "three"]


@pytest.mark.rule("4.3/one_to_one", side="service")
@pytest.mark.parametrize(
    ("kind", "target", "devices"),
    [
        (None, "1001", [1001]),
        ("id", 1002, [1002]),
        ("token", "t3", [1003]),
        ("external_id", "e1", [1001]),
        ("email", "b@example.org", [1002]),
        ("user_id", "u2", [1002, 1003]),
    ],
)
def test_target_by_says_what_the_identifiers_are(people, kind, target, devices):
    campaign = template(people)
    execute(people, campaign, target=[target], **({"target_by": kind} if kind else {}))
    assert people.admin(f"campaigns/{campaign}/truth")["targeted"] == devices


@pytest.mark.rule("2.9/conditions", side="service")
def test_the_conditions_of_a_template_hold(people):
    gold = {"operator": "AND", "0": ["tags_attribute", "=", "tier", ["value", "=", "gold"]]}
    campaign = template(people, conditions=gold)
    execute(people, campaign, target=[1001, 1002])
    assert people.admin(f"campaigns/{campaign}/truth")["targeted"] == [1001]
    alone = template(
        people, conditions=gold | {"1": ["tags_attribute", "=", "user_id", ["value", "=", "u1"]]}
    )
    execute(people, alone)  # the template's targeting selects the audience
    assert people.admin(f"campaigns/{alone}/truth")["targeted"] == [1001]


def test_an_execution_waits_for_its_time(people):
    now = people.now()
    campaign = template(people)
    execute(people, campaign, target=[1001], time=f"{now + timedelta(hours=2):%Y-%m-%d %H:%M} UTC")
    assert texts(people, campaign)[1001] == []
    people.command("clock", "advance", "2h")
    people.wait_until_quiet()
    assert texts(people, campaign)[1001] == ["hello"]


def test_missing_profiles_are_created_and_others_updated(people):
    campaign = template(people, **SMS, android_push=0, ios_push=0, web_push=0)
    targets = {
        "new-1": {"mobile_number": "353900", "mobile_subscription": 1},
        "new-2": {"mobile_number": "353901", "mobile_subscription": 0},
        "u1": {"mobile_number": "353902"},
    }
    both = {"target_by": "user_id", "target_with_params": targets}
    execute(people, campaign, **both)
    truth = people.admin(f"campaigns/{campaign}/truth")
    assert (truth["targeted"], truth["unknown"]) == ([1001], ["new-1", "new-2"])
    action = execute(people, campaign, **both, target_existing_only=0)
    assert action > 0
    created = [d for d in people.admin(f"campaigns/{campaign}/truth")["targeted"] if d != 1001]
    assert len(created) == 2
    errors = [
        people.admin(f"campaigns/{campaign}/devices/{device}")["messages"][-1]["error"] for device in created
    ]
    assert (errors[0] != "NO_CHANNEL", errors[1]) == (
        True,
        "NO_CHANNEL",
    )  # the second is unsubscribed from SMS
    last = people.admin(f"campaigns/{campaign}/devices/1001")["messages"][-1]
    assert (last["message_type"], last["message"]["text"]) == (9, "Hi u1")


@pytest.mark.rule("4.3/post_backs", side="service")
@pytest.mark.parametrize(
    ("fields", "field"),
    [
        ({}, "target"),
        ({"target": []}, "target"),
        ({"target": [1], "target_by": "device"}, "target_by"),
        ({"target": {"1": {}}}, "target"),
        ({"target_with_params": ["1"]}, "target_with_params"),
        ({"target_with_params": {"1": "x"}}, "target_with_params"),
        ({"target": [1], "params": []}, "params"),
        ({"target": [1], "time": "soon"}, "time"),
        ({"target": [1], "time": "0001-01-01 00:00+14:00"}, "time"),  # beyond the calendar in UTC
        ({"target": [1], "time": "9999-12-31 23:59-12:00"}, "time"),
        ({"target": [1], "time": "9999-12-31 23:00 UTC"}, "time"),  # beyond the calendar in Kiritimati
        ({"target": [1], "target_existing_only": 2}, "target_existing_only"),
        ({"target": [1], "target_existing_only": 0}, "target_by"),
        ({"target": [1], "push_expiry": 3}, "push_expiry_unit"),
        ({"target": [1], "segment_ids": [999_999]}, "segment_ids"),
        ({"target": [1], "webhook_open": "open"}, "webhook_open"),
    ],
    ids=str,
)
def test_a_wrong_execution_names_its_field(people, fields, field):
    answer = people.execute(id=template(people, timezone="Pacific/Kiritimati"), **fields)
    assert answer.status_code == 400
    assert field in [problem["field"] for problem in answer.json()["errors"]]


@pytest.mark.rule("2.11/triggered", "2.11/start_date", side="service")
def test_a_template_outside_its_window_is_not_executed(people):
    campaign = template(people, send_type=2, start_date="2090-01-01", timezone="UTC")
    answer = people.execute(id=campaign, target=[1])
    assert (answer.status_code, "start_date" in answer.json()["message"]) == (400, True)
    assert people.execute(id=campaign, target=[1], time="2090-01-02 10:00 UTC").status_code == 200


@pytest.mark.rule("2.11/own_timezone", side="service")
def test_the_window_of_a_template_follows_the_zone_of_each_target(people, tmp_path):
    file = tmp_path / "far.csv"
    file.write_text(f"{HEADER}\n2001,android,21,far,en,Asia/Tokyo,,,,\n2002,android,22,near,en,,,,,\n")
    people.command("devices", "import", str(file))
    morning = people.now().replace(hour=9, minute=0, second=0, microsecond=0) + timedelta(days=1)
    people.go_to(morning)  # 18:00 in Tokyo
    hours = {"start_time": "17:00", "end_time": "23:00"}
    campaign = template(people, **hours)
    for closed in ({"target": [2002]}, {"target": [1001, 2002]}, {"target": [99]}):
        answer = people.execute(id=campaign, **closed)
        assert (answer.status_code, "start_time" in answer.json()["message"]) == (400, True)
    execute(people, campaign, target=[2001, 2002])
    errors = [
        [m["error"] for m in people.admin(f"campaigns/{campaign}/devices/{device}")["messages"]]
        for device in (2001, 2002)
    ]
    [[sent], [left_out]] = errors
    assert (sent in (None, "DEVICE_UNREGISTERED"), left_out) == (True, "not between start_time and end_time")
    in_utc = template(people, **hours, timezone="UTC")
    assert people.execute(id=in_utc, target=[2001]).status_code == 400
    later = f"{morning:%Y-%m-%d} 17:00 UTC"  # 02:00 in Tokyo
    execute(people, in_utc, target=[2001], time=later)
    assert people.execute(id=campaign, target=[2001], time=later).status_code == 400


def test_a_stopped_template_is_not_executed(people):
    campaign = template(people)
    people.command("campaigns", "stop", str(campaign))
    assert people.execute(id=campaign, target=[1]).status_code == 400


def test_other_spellings_are_taken_where_they_are_set(service_start):
    names = {
        "device_ids": "deviceIds",
        "timezone": "time_zone",
        "send_days_monday": "2",
        "location_trigger_exit": "3",
        "location_trigger_dwell": "2",
        "target_by_user_id": "customer",
        "target_by": "by",
        "message_android_push": "12",
    }
    service = service_start(*(part for key, name in names.items() for part in ("--name", f"{key}={name}")))
    fields = {"send_type": 2, "send_time": "10:00", "send_days": [1], "time_zone": "UTC"}
    answer = service.create(**PUSH, deviceIds=[1], messages={"12": {"push_text": "a"}}, **fields)
    assert answer.status_code == 200
    [campaign] = service.admin("campaigns")["campaigns"]
    assert (
        datetime.fromisoformat(campaign["runs"][0]["due_at"]).isoweekday() == 7
    )  # 2 is Monday, so 1 is Sunday
    assert campaign["warnings"] == []
    executed = service.execute(id=template(service), target=["cust-1"], by="customer")
    assert executed.status_code == 200
    location = service.post("/admin/locations", json={"title": "x"}).json()["id"]
    answer = service.create(**PUSH, broadcast=1, send_type=2, locations=[location], location_trigger=2)
    assert [problem["field"] for problem in answer.json()["errors"]] == ["dwell_time"]
