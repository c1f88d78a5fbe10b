"""The recipients of a campaign: identifiers, saved segments and conditions (section 2.9)."""

from __future__ import annotations

import json

import pytest

from sendoff.campaign import Campaign
from sendoff.service.wire import PostBackAddresses, create_body

PUSH = {"android_push": 1, "ios_push": 1, "web_push": 1}
HEADER = (
    "device_id,platform,profile_id,user_id,language,time_zone,external_id,token,uuid,tier,age,vip,age.months"
)
PEOPLE = [
    "1001,android,1,u1,fr,Europe/Paris,e1,100001,11-aa,gold,41,1,500",
    "1002,chrome,2,u2,de,Europe/Vienna,e2,100002,22-bb,silver,9,0,110",
    "1003,ios,3,u3,ja,Asia/Tokyo,e3,100003,33-cc,bronze,100,,",
    "1004,ios,4,u4,,,e4,,44,,,,",
    f"{2**63 - 1},ios,5,u5,,,e5,,55,,,,",
]
EVERYONE = [1001, 1002, 1003, 1004, 2**63 - 1]


def targeted(service, **fields):
    campaign = service.created(**PUSH, **fields)
    service.wait_until_quiet()
    truth = service.admin(f"campaigns/{campaign}/truth")
    return [device for device in truth["targeted"] if device > 1_000]


def condition(name, comparator, value):
    return ["tags_attribute", "=", name, ["value", comparator, value]]


def group(operator, *members):
    return {"operator": operator, **{str(number): member for number, member in enumerate(members)}}


@pytest.mark.rule(
    "2.9/broadcast", "2.9/device_ids", "2.9/device_tokens", "2.9/device_uuids", "2.9/external_ids",
    side="service",
)  # fmt: skip
@pytest.mark.parametrize(
    ("fields", "devices"),
    [
        ({"device_ids": [1003, 1001]}, [1001, 1003]),
        ({"device_ids": [2**63 - 1, 2**63]}, [2**63 - 1]),
        ({"device_tokens": [100_002, 100_001]}, [1001, 1002]),
        ({"device_tokens": [100_001, "100002"]}, [1001, 1002]),  # real tokens and UUIDs are strings
        ({"device_uuids": [44]}, [1004]),
        ({"device_uuids": ["33-cc"]}, [1003]),
        ({"external_ids": ["e4"]}, [1004]),
        ({"device_ids": [1001], "external_ids": ["e4"]}, [1001, 1004]),
        ({"broadcast": True}, EVERYONE),
        ({"broadcast": 1, "device_ids": [1001]}, EVERYONE),  # broadcast overrides the identifiers
        ({"broadcast": 0, "device_ids": [1001]}, [1001]),
    ],
    ids=str,
)
def test_every_kind_of_identifier_reaches_its_devices(people, fields, devices):
    assert targeted(people, **fields) == devices


@pytest.mark.rule("2.9/device_tokens", "2.9/device_uuids", side="service")
@pytest.mark.parametrize("field", ["device_tokens", "device_uuids"])
@pytest.mark.parametrize("wrong", [44, "44", [1.5], [True], [[44]], {"0": 44}], ids=str)
def test_tokens_and_uuids_are_arrays(people, field, wrong):
    answer = people.create(**PUSH, **{field: wrong})
    assert answer.status_code == 400
    assert field in [problem["field"] for problem in answer.json()["errors"]]


@pytest.mark.rule("2.3/segmentation", side="service")
@pytest.mark.parametrize("nobody", [{}, {"broadcast": 0}, {"device_ids": [], "segment_ids": []}], ids=str)
def test_a_campaign_without_a_segmentation_is_refused(people, nobody):
    answer = people.create(**PUSH, **nobody)
    assert answer.status_code == 400
    assert [problem["field"] for problem in answer.json()["errors"]] == ["broadcast"]
    assert targeted(people, **{**nobody, "broadcast": 1}) == EVERYONE


@pytest.mark.rule("2.9/conditions", "2.9/operator", "2.9/group", "2.9/condition", side="service")
@pytest.mark.parametrize(
    ("conditions", "devices"),
    [
        (group("AND", condition("tier", "=", "gold")), [1001]),
        (group("AND", condition("age", ">", 40), condition("age", "<=", 41)), [1001]),
        (
            group("AND", condition("age", ">", "9"), condition("language", "!=", "fr")),
            [1003],
        ),  # compared as numbers
        (group("OR", condition("age", "<", 10), condition("tier", "=", "bronze")), [1002, 1003]),
        (group("AND", condition("tier", "IN", ["gold", "silver"])), [1001, 1002]),
        (
            group("AND", condition("tier", "NOT IN", ["gold", "silver"]), condition("user_id", ">", "u1")),
            [1003, 1004],
        ),
        (
            group(
                "AND",
                group("OR", condition("tier", "=", "gold"), condition("tier", "=", "silver")),
                condition("platform", "=", "chrome"),
            ),
            [1002],
        ),
        (
            group(
                "AND", ["tags_attribute", "!=", "age", ["value", "<", 101]], condition("user_id", "=", "u4")
            ),
            [1004],
        ),
        (group("AND", ["tags_flag", "=", "vip", ["status", "=", "on"]]), [1001]),
    ],
    ids=str,
)
def test_conditions_are_asked_of_each_device(people, conditions, devices):
    only_these = group("AND", conditions, condition("user_id", "IN", ["u1", "u2", "u3", "u4"]))
    assert targeted(people, conditions=only_these) == devices


@pytest.mark.rule("2.9/conditions", "2.9/condition", side="service")
@pytest.mark.rule("2.9/conditions", "2.9/condition", side="client")
@pytest.mark.parametrize(
    ("where", "devices"),
    [
        ({"attribute": "age", "field": "years", "comparison": ">", "value": 17}, [1001, 1003]),
        ({"attribute": "age", "field": "years", "comparison": "<=", "value": 17}, [1002]),
        (
            {"attribute": "age", "field": "months", "comparison": ">", "value": 109},
            [1001, 1002],
        ),  # age.months
        ({"attribute": "tier", "field": "name", "value": "gold"}, [1001]),
        ({"attribute": "vip", "value": True}, [1001]),
        ({"attribute": "vip", "value": False}, [1002]),
    ],
    ids=str,
)
def test_conditions_as_sendoff_writes_them_are_asked_of_each_device(people, where, devices):
    made = Campaign.model_validate(
        {
            "title": "A campaign",
            "message": {"title": "Title", "text": "Text"},
            "channels": {"android_push": None, "ios_push": None, "web_push": {"browsers": ["chrome"]}},
            "targeting": {"kind": "conditions", "where": {"all": [where]}},
        }
    )
    body = create_body(made, title="A campaign", targeting=None, post_backs=PostBackAddresses(None, None))
    assert targeted(people, conditions=json.loads(body)["conditions"]) == devices


@pytest.mark.rule("2.9/conditions", side="service")
def test_conditions_keep_the_named_devices_for_which_they_hold(people):
    gold = group("AND", condition("tier", "=", "gold"))
    assert targeted(people, device_ids=EVERYONE, conditions=gold) == [1001]


@pytest.mark.rule("2.9/operator", "2.9/group", "2.9/condition", side="service")
@pytest.mark.parametrize(
    ("conditions", "field"),
    [
        ({}, "conditions.operator"),
        ({"operator": "AND"}, "conditions"),
        ({"operator": "XOR", "0": condition("tier", "=", "gold")}, "conditions.operator"),
        ({"operator": "AND", "1": condition("tier", "=", "gold")}, "conditions"),
        ({"operator": "AND", "0": "tier"}, "conditions.0"),
        ({"operator": "AND", "0": {"operator": "OR"}}, "conditions.0"),
        (group("AND", ["moon", "=", "full", ["value", "=", 1]]), "conditions.0"),
        (group("AND", ["tags_attribute", "=", "tier"]), "conditions.0"),
        (group("AND", ["tags_attribute", ">", "tier", ["value", "=", "x"]]), "conditions.0"),
        (group("AND", ["tags_attribute", "=", "tier", ["", "=", "x"]]), "conditions.0"),
        (group("AND", ["tags_attribute", "=", "tier", [1, "=", "x"]]), "conditions.0"),
        (group("AND", ["tags_attribute", "=", "tier", ["value", "="]]), "conditions.0"),
        (group("AND", condition("tier", "LIKE", "g%")), "conditions.0"),
        (group("AND", condition("tier", "=", ["gold"])), "conditions.0"),
        (group("AND", condition("tier", "=", {"a": 1})), "conditions.0"),
        (group("AND", ["segment", "=", "four"]), "conditions.0"),
        (group("AND", ["segment", "=", 999_999]), "conditions"),
        (group("AND", condition("tier", "=", "x" * 263_000)), "conditions"),
        ("tier = gold", "conditions"),
    ],
    ids=lambda value: str(value)[:60],
)
def test_wrong_conditions_are_refused_where_they_are_wrong(people, conditions, field):
    answer = people.create(**PUSH, conditions=conditions)
    assert answer.status_code == 400
    assert field in [problem["field"] for problem in answer.json()["errors"]]


def test_conditions_without_end_are_refused(people):
    conditions = condition("tier", "=", "gold")
    for _ in range(60):
        conditions = group("AND", conditions)
    assert people.create(**PUSH, conditions=conditions).status_code == 400


@pytest.mark.rule("2.9/segment_ids", "4.4/created_before", side="service")
def test_saved_segments_are_reached_together_with_identifiers(people, tmp_path):
    gold = people.post(
        "/admin/segments", json={"title": "gold", "conditions": group("AND", condition("tier", "=", "gold"))}
    ).json()["id"]
    file = tmp_path / "conditions.json"
    file.write_text(json.dumps(group("OR", condition("tier", "=", "bronze"), ["segment", "=", gold])))
    both = people.command("segments", "add", "--title", "both", "--conditions", str(file))["id"]
    assert [segment["title"] for segment in people.admin("segments")["segments"]] == ["gold", "both"]
    assert targeted(people, segment_ids=[gold]) == [1001]
    assert targeted(people, segment_ids=[gold], device_ids=[1002]) == [1001, 1002]
    assert targeted(people, segment_ids=[both]) == [1001, 1003]
    young = group("AND", condition("age", "<", 50))
    assert targeted(people, segment_ids=[both], conditions=young) == [1001]
    answer = people.create(**PUSH, segment_ids=[gold, 999_999])
    assert (answer.status_code, answer.json()["errors"][0]["field"]) == (400, "segment_ids")


def test_the_api_creates_a_segment(people):
    body = {"title": "api", "conditions": group("AND", condition("tier", "=", "silver"))}
    answer = people.post("/api/external/create/segment", json=body, headers=people.bearer())
    assert answer.status_code == 200
    assert targeted(people, segment_ids=[answer.json()["model"]["id"]]) == [1002]
    assert people.post("/api/external/create/segment", json=body).status_code == 400


@pytest.mark.parametrize(
    "segment", [{"title": "", "conditions": {}}, {"title": "x"}, {"title": "x", "conditions": []}]
)
def test_a_wrong_segment_is_refused(people, segment):
    answer = people.post("/admin/segments", json=segment)
    assert (answer.status_code, answer.json()["success"]) == (400, False)
    answer = people.post("/api/external/create/segment", json=segment, headers=people.bearer())
    assert (answer.status_code, answer.json()["success"]) == (400, False)
