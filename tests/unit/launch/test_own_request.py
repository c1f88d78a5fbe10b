"""Freezing a request that someone else wrote: once for each request key, and exactly as it was written."""

from __future__ import annotations

import json
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from datetime import timedelta
from typing import Any, Literal

import pytest

from sendoff.campaign import Campaign, Channel, OwnRequest, Period, request_launch_key
from sendoff.dispatch import check_doubts, how_to_continue, resolve
from sendoff.errors import AmbiguousError, CampaignError
from sendoff.launch import NewRequest, prepare_request, preview_launch
from sendoff.ledger import LaunchRecord, Ledger, SuppressionChange
from sendoff.postbacks.reconcile import reconcile_launch
from sendoff.report import as_markdown, describe_launch, describe_preview
from sendoff.service.wire import FieldNames
from sendoff.states import Accepted, InDoubt, Outcome, Refused, Resolution, Verdict

from ...factories import NOW, PERIOD, post_back, send, store

BODY = {"title": "Order 17", "push_text": "It is on its way", "android_push": 1, "device_ids": [5, 3]}
ORDER = NewRequest(body=BODY, mode="create", name="shop.order", request_key="order 17", connection="service")


def prepare(ledger: Ledger, request: NewRequest = ORDER, **more: Any) -> LaunchRecord:
    return prepare_request(ledger, request, **{"period": PERIOD, "now": NOW, **more})


@pytest.mark.promise("twice/launch")
def test_a_request_is_one_launch_with_one_segment_and_one_dispatch(ledger: Ledger) -> None:
    launch = prepare(ledger)
    assert launch.launch_key == request_launch_key("service", "shop.order", "order 17")
    assert (launch.connection, launch.campaign, launch.state) == ("service", "shop.order", "released")
    assert launch.period.key == f"{PERIOD.key}/order 17"
    assert (launch.identified_by, launch.audience, launch.rows, launch.segments) == ("device_id", 2, 2, 1)
    assert (launch.sends_at, launch.is_chosen_by_service) == (NOW, False)
    [dispatch] = ledger.dispatch_queries.of_launch(launch.launch_key)
    claim = ledger.dispatches.claim(launch.launch_key, worker="w", now=NOW, lease=timedelta(minutes=1))
    assert claim is not None
    assert claim.dispatch_key == dispatch.dispatch_key
    assert claim.content.body == json.dumps(BODY, separators=(",", ":")).encode()
    assert list(ledger.launches.audience(launch.launch_key).values()) == [3, 5]


@pytest.mark.promise("twice/launch")
def test_the_same_key_is_one_launch_in_every_period(ledger: Ledger) -> None:
    first = prepare(ledger)
    later = Period(PERIOD.end, PERIOD.end + timedelta(days=1))
    assert prepare(ledger, period=later, now=NOW + timedelta(days=1)) == first
    others = [
        prepare(ledger, replace(ORDER, **{name: value}))
        for name, value in {"request_key": "order 18", "name": "shop.other", "connection": "other"}.items()
    ]
    assert len({launch.launch_key for launch in (first, *others)}) == 4


@pytest.mark.promise("twice/launch")
def test_processes_that_freeze_at_once_get_one_launch(ledger: Ledger) -> None:
    with ThreadPoolExecutor(4) as pool:
        launches = list(pool.map(lambda _: prepare(ledger), range(8)))
    assert len({launch.launch_key for launch in launches}) == 1
    assert ledger.launches.count("service") == 1


def test_the_dispatch_key_comes_from_the_body(ledger: Ledger) -> None:
    keys = set()
    for number, body in enumerate([BODY, {**BODY, "push_text": "It is here"}]):
        launch = prepare(ledger, replace(ORDER, body=body, request_key=f"order {number}"))
        segment = ledger.dispatch_queries.segment(launch.launch_key, 1)
        keys.add(segment.fingerprint())
    assert len(keys) == 2


def test_the_definition_describes_the_request(ledger: Ledger) -> None:
    launch = prepare(ledger, replace(ORDER, body={**BODY, "webhook_open": "https://me.example.com"}))
    campaign = Campaign.frozen(launch.definition)
    assert isinstance(campaign, OwnRequest)
    assert (campaign.title, campaign.send_mode, campaign.connection) == ("Order 17", "create", "service")
    assert campaign.channels_used() == (Channel.ANDROID_PUSH,)
    assert campaign.post_backs.kinds == ("delivery",)
    execution = replace(ORDER, mode="execute", body={"id": 7}, request_key="an execution")
    campaign = Campaign.frozen(prepare(ledger, execution).definition)
    assert (campaign.title, campaign.send_mode) == ("shop.order", "execute")
    assert campaign.channels_used() == tuple(Channel)


def test_no_campaign_file_can_hold_the_fields_of_a_request() -> None:
    assert not {"body", "sends_with", "known_channels"} & set(Campaign.model_json_schema()["properties"])


def test_the_service_chooses_recipients_that_the_body_does_not_name(ledger: Ledger) -> None:
    body = {"title": "Everyone", "broadcast": 1, "send_type": 2}
    launch = prepare(ledger, replace(ORDER, body=body))
    assert (launch.is_chosen_by_service, launch.audience, launch.sends_at) == (True, 0, None)


def test_the_connection_can_spell_the_lists_differently(ledger: Ledger) -> None:
    launch = prepare(ledger, names=FieldNames({"device_ids": "devices"}))
    assert launch.is_chosen_by_service


@pytest.mark.promise("twice/frozen")
@pytest.mark.parametrize(
    "fields", [{"body": {**BODY, "push_text": "It is late"}}, {"mode": "execute"}], ids=["body", "mode"]
)
@pytest.mark.parametrize(
    ("outcome", "fate"),
    [
        (None, "was not sent yet"),
        (Refused(400, "no"), "was refused by the service"),
        (Accepted(200, 17), "was accepted by the service"),
        (InDoubt("lost"), "is in doubt"),
    ],
)
def test_another_request_under_the_key_is_an_error_and_the_frozen_one_counts(
    ledger: Ledger, outcome: Outcome | None, fate: str, fields: Any
) -> None:
    launch = prepare(ledger)
    if outcome:
        send(ledger, launch.launch_key, outcome)
    with pytest.raises(CampaignError, match=f"another request under this request key, which {fate}") as error:
        prepare(ledger, replace(ORDER, **fields))
    assert "late" not in str(error.value)
    assert prepare(ledger) == launch


def test_another_process_that_freezes_first_counts(ledger: Ledger) -> None:
    bodies = [{**BODY, "push_text": f"text {number}"} for number in range(6)]

    def freeze(body: dict[str, Any]) -> bytes | None:
        try:
            return ledger.dispatch_queries.segment(
                prepare(ledger, replace(ORDER, body=body)).launch_key, 1
            ).body
        except CampaignError:
            return None

    with ThreadPoolExecutor(4) as pool:
        frozen = [body for body in pool.map(freeze, bodies) if body]
    assert len(frozen) == 1


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"name": "shop/order"}, "name: found 'shop/order'. Use at most 100 letters"),
        (
            {"request_key": ""},
            "request_key: found an empty text. Use a text of up to 500 printable characters",
        ),
        ({"request_key": " "}, "request_key: found a key that cannot be used"),
        ({"request_key": "a\nb"}, "request_key: found a key that cannot be used"),
        ({"request_key": "x" * 501}, "request_key: found a key that cannot be used"),
        ({"body": {"title": 7}}, "body.title: found a number"),
    ],
)
def test_an_unusable_request_freezes_nothing(ledger: Ledger, fields: Any, message: str) -> None:
    with pytest.raises(CampaignError) as error:
        prepare(ledger, replace(ORDER, **fields))
    assert str(error.value).startswith(message)
    assert ledger.launches.search() == []


def test_the_repr_holds_no_texts_or_recipients() -> None:
    assert "on its way" not in repr(ORDER)


SECRET = "zoe@example.com"


def test_the_preview_describes_the_request_and_names_nobody(ledger: Ledger) -> None:
    body = {
        **BODY,
        "apptoken": SECRET,
        "webhook_open": f"https://{SECRET}.example",
        "people": [SECRET],
        "params": {"name": SECRET},
        "messages": {"8": {"webhook": {"url": SECRET}}, "7": SECRET},
        "device_ids": [7_000_001, 7_000_001, 7_000_002],
    }
    key = prepare(ledger, replace(ORDER, body=body)).launch_key
    preview = preview_launch(ledger, key)
    assert preview.is_own_request
    assert (preview.rows, preview.people, preview.requests) == (3, 2, 1)
    assert preview.request == {
        "title": "Order 17",
        "push_text": "It is on its way",
        "android_push": 1,
        "device_ids": "<3 values>",
        "apptoken": "<text>",
        "webhook_open": "<text>",
        "people": "<1 value>",
        "params": {"name": "<text>"},
        "messages": {"8": {"webhook": "<not shown>"}, "7": "<text>"},
    }
    text = as_markdown(describe_preview(preview))
    assert "A request of your own: its JSON is sent as it was written." in text
    assert "identifiers in the request" in text
    assert "of up to" not in text
    assert SECRET not in text
    assert "7000001" not in text
    assert SECRET not in json.dumps(preview.to_json())
    assert preview.to_json(whole_request=True)["request"] == body


def test_the_preview_shows_only_the_types_of_an_executions_variables(ledger: Ledger) -> None:
    body = {"id": 7, "target_by": "id", "target_with_params": {"5": {"name": SECRET}}, "params": [SECRET]}
    key = prepare(ledger, replace(ORDER, mode="execute", body=body)).launch_key
    assert preview_launch(ledger, key).request == {
        "id": 7,
        "target_by": "id",
        "target_with_params": "<1 value>",
        "params": "<1 value>",
    }


@pytest.mark.parametrize(
    ("members", "words"),
    [
        ({}, "At once, as soon as the service accepts a request."),
        ({"send_type": 2}, "Repeatedly or on an event, as the request says."),
        (
            {"send_type": 1, "send_date": "2026-03-09", "send_time": "10:00", "timezone": "UTC"},
            "2026-03-09 10:00 UTC",
        ),
    ],
)
def test_the_preview_says_when_the_service_sends(ledger: Ledger, members: dict[str, Any], words: str) -> None:
    key = prepare(ledger, replace(ORDER, body={**BODY, **members})).launch_key
    assert words in as_markdown(describe_preview(preview_launch(ledger, key)))


def test_a_preview_without_known_recipients_says_so(ledger: Ledger) -> None:
    key = prepare(ledger, replace(ORDER, body={"title": "Everyone", "broadcast": 1})).launch_key
    text = as_markdown(describe_preview(preview_launch(ledger, key)))
    assert "has no single list of people, so their number is not known here" in text


def test_the_report_describes_the_request(ledger: Ledger) -> None:
    key = prepare(ledger).launch_key
    [dispatch] = send(ledger, key, Accepted(200, 17))
    store(ledger, post_back(dispatch, "open", 5))
    figures = reconcile_launch(ledger, key, now=NOW + timedelta(hours=1))
    assert figures.verdicts == {**dict.fromkeys(Verdict, 0), "engaged": 1, "unknowable": 1}
    text = as_markdown(describe_launch(figures))
    for words in (
        "A request of your own: its JSON was sent as it was written.",
        "2 | identifiers in the request",
        "a request of your own names no platforms",
    ):
        assert words in text
    assert "query" not in text
    silent, opened, other = (ledger.launches.recipient(key, who).sentence for who in (3, 5, 6))
    assert silent == (
        "sent, and it cannot be known whether it arrived: a request of your own names no platforms, and deliveries on "
        "some are not reported reliably"
    )
    assert opened == "got it: opened or clicked"
    assert other == "not selected: the request does not name it"


def test_the_report_says_what_another_address_hides(ledger: Ledger) -> None:
    key = prepare(
        ledger, replace(ORDER, body={**BODY, "webhook_delivery": "https://me.example.com"})
    ).launch_key
    send(ledger, key, Accepted(200, 17))
    figures = reconcile_launch(ledger, key)
    assert figures.unmeasured == ("delivery",)
    assert "the request names another address for post-backs of deliveries" in as_markdown(
        describe_launch(figures)
    )


def test_a_reliable_channel_makes_silence_mean_something(ledger: Ledger) -> None:
    body = {"title": "Mail", "email": 1, "device_ids": [3, 5]}
    key = prepare(ledger, replace(ORDER, body=body)).launch_key
    send(ledger, key, Accepted(200, 17))
    assert reconcile_launch(ledger, key).verdicts["missing"] == 2


def test_the_report_of_a_broadcast_says_that_nobody_is_listed(ledger: Ledger) -> None:
    key = prepare(ledger, replace(ORDER, body={"title": "Everyone", "broadcast": 1})).launch_key
    text = as_markdown(describe_launch(reconcile_launch(ledger, key)))
    assert "The request has no single list of people, so their number is not known." in text


def test_a_doubt_is_reported_and_says_how_to_go_on_after_a_decision(ledger: Ledger) -> None:
    key = prepare(ledger).launch_key
    [dispatch] = send(ledger, key, InDoubt("lost"))
    with pytest.raises(AmbiguousError, match=r"dispatches in doubt: 1\. The service may have processed them"):
        check_doubts(ledger, key)
    resolve(ledger, dispatch, Resolution.RESEND, "ann", "the service shows no such campaign", now=NOW)
    check_doubts(ledger, key)
    [line] = how_to_continue(ledger.doubts.pending_resends(key))
    assert line.endswith("not sent yet; clear its task in Airflow, or run again what sent shop.order")


@pytest.mark.parametrize(
    ("mode", "body", "sent"),
    [
        ("create", BODY | {"tags": ["3", "x"]}, BODY | {"tags": ["3", "x"], "device_ids": [5]}),
        ("create", BODY | {"device_ids": ["5", "0003"]}, BODY | {"device_ids": ["5"]}),
        ("create", BODY | {"locations": [5, 3]}, BODY | {"locations": [5, 3], "device_ids": [5]}),
        ("create", BODY | {"data": [3, 5]}, BODY | {"data": [3, 5], "device_ids": [5]}),
        (
            "execute",
            {"target_by": "id", "target_with_params": {"5": {"a": 3}, "3": {"a": 1}}},
            {"target_by": "id", "target_with_params": {"5": {"a": 3}}},
        ),
    ],
)
def test_recipients_on_the_suppression_list_are_taken_out_of_the_json(
    ledger: Ledger, mode: Literal["create", "execute"], body: dict[str, Any], sent: dict[str, Any]
) -> None:
    key = prepare(ledger, replace(ORDER, body=body, mode=mode)).launch_key
    ledger.suppressions.add(SuppressionChange("account", "device_id", "opt-out", "ann"), [3, 7], NOW)
    claim = ledger.dispatches.claim(key, worker="w", now=NOW, lease=timedelta(minutes=1))
    assert claim is not None
    assert claim.content.body is not None
    assert json.loads(claim.content.body) == sent
    ledger.dispatches.record(claim, Accepted(200, 17), NOW)
    verdicts = reconcile_launch(ledger, key, now=NOW).verdicts
    assert (verdicts["not_sent"], verdicts["unknowable"]) == (1, 1)


def test_a_list_of_recipients_is_known_under_another_name(ledger: Ledger) -> None:
    body = {"title": "Hi", "devices": [5, 3], "locations": [5, 3], "data": {"3": 1}}
    key = prepare(ledger, replace(ORDER, body=body), names=FieldNames({"device_ids": "devices"})).launch_key
    ledger.suppressions.add(SuppressionChange("account", "device_id", "opt-out", "ann"), [3], NOW)
    claim = ledger.dispatches.claim(key, worker="w", now=NOW, lease=timedelta(minutes=1))
    assert claim is not None
    assert json.loads(claim.content.body or b"") == body | {"devices": [5]}


def test_no_request_is_made_if_it_is_not_clear_which_list_has_its_recipients(ledger: Ledger) -> None:
    body = {"title": "Hi", "devices": [5, 3], "orders": [5, 3]}
    key = prepare(ledger, replace(ORDER, body=body), names=FieldNames({"device_ids": "devices"})).launch_key
    ledger.suppressions.add(SuppressionChange("account", "device_id", "opt-out", "ann"), [3], NOW)
    assert ledger.dispatches.claim(key, worker="w", now=NOW, lease=timedelta(minutes=1)) is None
    assert ledger.dispatch_queries.states(key) == {"suppressed": 1}
    figures = reconcile_launch(ledger, key, now=NOW)
    assert (figures.verdicts["not_sent"], figures.unaccounted_identifiers) == (2, 0)


def test_no_request_is_made_if_all_recipients_are_on_the_suppression_list(ledger: Ledger) -> None:
    key = prepare(ledger).launch_key
    ledger.suppressions.add(SuppressionChange("account", "device_id", "opt-out", "ann"), [3, 5], NOW)
    assert ledger.dispatches.claim(key, worker="w", now=NOW, lease=timedelta(minutes=1)) is None
    assert ledger.dispatch_queries.states(key) == {"suppressed": 1}


def test_evidence_settles_a_doubt(ledger: Ledger) -> None:
    key = prepare(ledger).launch_key
    [dispatch] = send(ledger, key, InDoubt("lost"))
    store(ledger, post_back(dispatch, "open", 5))
    check_doubts(ledger, key)
    assert ledger.dispatch_queries.states(key) == {"accepted": 1}
