"""Simulated outcomes, names, keys, schedules and checks, without a process."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path

import orjson
import pytest
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import rsa

from messaging_service.api.request_log import redact
from messaging_service.auth.public_keys import read_public_key
from messaging_service.campaigns.fields import moment
from messaging_service.campaigns.schedule import sending_moment
from messaging_service.campaigns.targeting import is_delivery_posted
from messaging_service.delivery.behaviour import Behaviour
from messaging_service.delivery.postbacks import Retry
from messaging_service.delivery.worker import WorkerSettings, from_line
from messaging_service.envelope import FieldProblem
from messaging_service.undocumented_names import UNDOCUMENTED_NAMES, Names, UnknownNameError, parse_overrides

NOW = datetime(2030, 3, 1, 12, 0, 30, tzinfo=UTC)


def test_a_fate_depends_on_nothing_but_its_arguments():
    outcomes = [Behaviour(seed=3).draw(1, 1, device, 2) for device in range(1_000)]
    assert outcomes == [Behaviour(seed=3).draw(1, 1, device, 2) for device in range(1_000)]
    delivered = [outcome for outcome in outcomes if outcome.delivered_after is not None]
    opened = [outcome for outcome in outcomes if outcome.opened_after is not None]
    assert 860 < len(delivered) < 940
    assert 220 < len(opened) < 320
    assert all(0.5 <= outcome.delivered_after <= 5 for outcome in delivered)


def test_speed_divides_the_delays():
    slow, fast = (Behaviour(delivered=1, speed=speed).draw(1, 1, 9, 2) for speed in (1, 10))
    assert fast.delivered_after == pytest.approx(slow.delivered_after / 10)


@pytest.mark.parametrize(
    "wrong",
    [{"delivered": 1.1}, {"opened": -0.1}, {"delay_from": 6}, {"delay_from": -1}, {"speed": 0}],
    ids=str,
)
def test_an_impossible_behaviour_is_refused(wrong):
    with pytest.raises(ValueError, match=r"share|delays|speed"):
        Behaviour(**wrong)


@pytest.mark.rule("6/no_deliveries", "6/web_deliveries", side="service")
@pytest.mark.parametrize(
    ("message_type", "platform", "posted"),
    [
        (1, "ios", False),
        (2, "android", False),
        (3, "safari", False),
        (3, "chrome", True),
        (3, "opera", True),
        (3, "firefox", True),
        (3, "edge", False),  # the document names three browsers with tracking, and Edge is not among them
        (6, "ios", True),
        (7, "android", True),
        (9, "android", True),
    ],
)
def test_deliveries_are_posted_by_the_channel_rules(message_type, platform, posted):
    assert is_delivery_posted(message_type, platform) is posted


def test_pauses_double_up_to_the_longest():
    retry = Retry(first_pause=1, longest_pause=5)
    assert [retry.pause_after(n) for n in (1, 2, 3, 4, 1_000)] == [1, 2, 4, 5, 5]


def test_no_two_names_that_are_not_shown_share_a_spelling_in_one_request():
    in_executions = {"execute_id", "target", "target_by", "target_with_params", "params", "execute_time"}
    shared = [
        name.default
        for key, name in UNDOCUMENTED_NAMES.items()
        if key not in in_executions and not name.is_value
    ]
    assert len(set(shared)) == len(shared)


def test_the_page_on_the_service_lists_every_name_that_is_not_shown():
    page = (Path(__file__).parents[2] / "docs/reference/service-names.md").read_text()
    rows = [
        f"| `{key}` | `{name.default}` | {name.meaning} | {name.section} |"
        for key, name in UNDOCUMENTED_NAMES.items()
    ]
    assert [row for row in rows if row not in page] == []


def test_names_are_changed_by_pairs():
    names = parse_overrides(["device_ids=deviceIds"])
    assert (names["device_ids"], names["external_ids"]) == ("deviceIds", "external_ids")
    for wrong in ("title=x", "device_ids", "device_ids="):
        with pytest.raises(UnknownNameError):
            parse_overrides([wrong])
    assert Names()["push_icon"] == "push_icon"


@pytest.mark.parametrize(("bits", "allowed"), [(2048, ("RS256",)), (4096, ("RS256", "RS384"))])
def test_a_key_may_sign_with_the_algorithms_that_it_is_long_enough_for(bits, allowed):
    public = rsa.generate_private_key(65537, bits).public_key()
    pem = public.public_bytes(serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo)
    assert read_public_key(pem.decode()).algorithms == allowed


@pytest.mark.parametrize(
    ("fields", "zone", "moment"),
    [
        ({}, "UTC", NOW),
        ({"send_type": 0, "send_date": "2031-01-01"}, "UTC", NOW),
        (
            {"send_type": 1, "send_date": "2030-07-01", "send_time": "10:00"},
            "UTC",
            datetime(2030, 7, 1, 10, tzinfo=UTC),
        ),
        # the time zone of the app, in summer
        (
            {"send_type": 1, "send_date": "2030-07-01", "send_time": "10:00"},
            "Europe/Dublin",
            datetime(2030, 7, 1, 9, tzinfo=UTC),
        ),
        # 01:30 occurs twice on this night: the first one counts
        (
            {"send_type": 1, "send_date": "2030-10-27", "send_time": "01:30", "timezone": "Europe/Dublin"},
            "UTC",
            datetime(2030, 10, 27, 0, 30, tzinfo=UTC),
        ),
        # the current minute is not in the past
        (
            {"send_type": 1, "send_date": "2030-03-01", "send_time": "12:00"},
            "UTC",
            datetime(2030, 3, 1, 12, tzinfo=UTC),
        ),
    ],
)
def test_a_campaign_is_sent_at_its_moment(fields, zone, moment):
    assert sending_moment(fields, zone, NOW) == moment


def test_a_moment_in_the_past_is_a_problem():
    fields = {"send_type": 1, "send_date": "2030-03-01", "send_time": "11:59"}
    assert isinstance(sending_moment(fields, "UTC", NOW), FieldProblem)


@pytest.mark.parametrize(
    ("text", "read"),
    [
        ("2027-03-04 09:30 UTC", datetime(2027, 3, 4, 9, 30, tzinfo=UTC)),
        ("2027-03-04T09:30:00+02:00", datetime(2027, 3, 4, 7, 30, tzinfo=UTC)),
        ("1700000000", datetime(2023, 11, 14, 22, 13, 20, tzinfo=UTC)),
        ("tomorrow", None),
    ],
)
def test_moments_are_read_in_each_form(text, read):
    assert moment(text) == read


def test_secrets_are_redacted_at_any_depth_and_arrays_are_shortened():
    shown = redact({"apptoken": "a", "in": [{"client_secret": "b"}], "device_ids": list(range(1_500))})
    assert shown["apptoken"] == "[redacted]"
    assert shown["in"] == [{"client_secret": "[redacted]"}]
    assert shown["device_ids"][-1] == "... and 1,490 more"


def test_the_secrets_of_a_webhook_message_are_redacted_and_the_rest_is_shown():
    webhook = {
        "url": "https://u:PASS@example.org/x?token=TOKEN",
        "get_params": [{"key": "key", "value": "PARAMETER"}],
        "request_headers": "Authorization: Bearer HEADER\nX-Api-Key: KEY",
        "request_body_type": "raw",
    }
    body = {"webhook": 1, "url": "https://example.org/shop", "messages": {"8": {"webhook": webhook}}}
    shown = redact(body)
    assert shown["messages"]["8"]["webhook"] == {
        "url": "[redacted]",
        "get_params": "[redacted]",
        "request_headers": "[redacted]",
        "request_body_type": "raw",
    }
    assert (shown["webhook"], shown["url"]) == (1, "https://example.org/shop")


def test_the_worker_reads_the_settings_that_were_written():
    settings = WorkerSettings("sqlite:///x.db", Behaviour(seed=9), Retry(attempts=2), 7)
    assert from_line(orjson.dumps(settings)) == settings
