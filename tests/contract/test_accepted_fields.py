"""Fields of campaigns that pass the checks, against the service's own checks of their requests."""

from __future__ import annotations

import json
from datetime import UTC, date, datetime
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import ValidationError

from messaging_service.campaigns.create import plan_campaign
from messaging_service.campaigns.fields import is_language
from messaging_service.undocumented_names import Names
from sendoff.audience.identifiers import integers
from sendoff.campaign import Campaign, check_campaign
from sendoff.campaign.field_types import WEEKDAYS
from sendoff.campaign.model import campaign_schema
from sendoff.errors import CampaignError
from sendoff.service.wire import PostBackAddresses, Targeting, create_body

from ..examples import examples

NOW = datetime(2026, 11, 20, 6, tzinfo=UTC)
DEVICE_2 = Targeting("device_id", integers([2]))
MANY = settings(max_examples=examples(400))
WORDS = {"title": "T", "text": "W"}

letters = st.sampled_from("aZ09-_ :;{}\t\n\r\v\x1c\x85\u2028ü")
texts = st.text(letters, max_size=4)
hosts = st.sampled_from(["shop.example.com", "127.0.0.1", "[::1]", "[::1", "ü.example", "{{host}}", ""])
ports = st.sampled_from(["", ":", ":0", ":443", ":65535", ":65536", ":x", ":-1", ":{{port}}"])
paths = st.sampled_from(["", "/", "/a?b=c", "/{{path}}", "#frag", "/a b"])
addresses = st.builds(
    "{}://{}{}{}".format, st.sampled_from(["https", "HTTPS", "http", "app"]), hosts, ports, paths
)
days = st.one_of(
    st.dates(date(2026, 11, 20), date(2026, 12, 10)),
    st.dates(date(2038, 1, 17), date(2038, 1, 21)),
    st.dates(date(2026, 11, 20), date.max),
).map(str)
times = st.times().map(lambda time: f"{time:%H:%M}")
zones = st.sampled_from(["UTC", "Pacific/Kiritimati", "Pacific/Pago_Pago", "America/New_York"])
untils = st.fixed_dictionaries({"time": times, "time_zone": zones, "date": days})


def check(**fields: Any) -> None:
    """Check that the service accepts the request of a campaign, unless the campaign itself is refused."""
    try:
        made = Campaign.model_validate({"title": "A", **fields})
        check_campaign(made)
        resolved = made.resolved(NOW)
        made.check_not_over(NOW, NOW)
    except (ValidationError, CampaignError):
        return
    body = create_body(resolved, title="A", targeting=DEVICE_2, post_backs=PostBackAddresses(None, None))
    plan_campaign(json.loads(body), Names(), "UTC", NOW)


@MANY
@given(name=texts, value=texts, address=addresses)
def test_the_service_accepts_the_webhooks_that_the_checks_accept(name: str, value: str, address: str) -> None:
    webhook = {"address": "https://shop.example.com/"}
    for headers in ({name: "a"}, {"X-Shop": value}):
        check(channels={"webhook": {**webhook, "headers": headers}})
    check(channels={"webhook": {"address": address}})


@MANY
@given(address=addresses)
def test_the_service_accepts_the_addresses_that_the_checks_accept(address: str) -> None:
    check(message={**WORDS, "picture": address}, channels={"ios_push": {}})
    check(message={**WORDS, "url": address}, channels={"ios_push": {}})


@MANY
@given(until=untils)
def test_the_service_accepts_the_deadlines_that_the_checks_accept(until: dict[str, str]) -> None:
    check(message=WORDS, channels={"ios_push": {}}, push_expiry={"until": until})
    check(message=WORDS, channels={"inbox": {"keep": {"until": until}}})


@MANY
@given(
    start=days,
    end=days | st.just("never"),
    time=times,
    zone=zones,
    on=st.sets(st.sampled_from(WEEKDAYS), max_size=2),
)
def test_the_service_accepts_the_days_that_the_checks_accept(
    start: str, end: str, time: str, zone: str, on: set[str]
) -> None:
    send = {"kind": "recurring", "time": time, "time_zone": zone, "start": start, "end": end}
    check(message=WORDS, channels={"ios_push": {}}, send={**send, **({"days": sorted(on)} if on else {})})


def test_the_languages_of_campaigns_are_those_of_the_service() -> None:
    codes = campaign_schema()["$defs"]["Message"]["properties"]["translations"]["propertyNames"]["enum"]
    assert len(codes) == 183
    assert not [code for code in codes if is_language(code)]
