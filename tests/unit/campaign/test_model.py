"""Values derived from a campaign: messages of channels, languages, variants, and times."""

from __future__ import annotations

from datetime import UTC, date, datetime, timedelta
from typing import Any

import pytest

from sendoff.campaign import Campaign, Channel, Period, Variation
from sendoff.campaign.content import AndroidPush, Channels, Email, Message, WebPush
from sendoff.campaign.schedule import Once, Recurring, TimeToLive, Triggered, Until
from sendoff.errors import CampaignError, LateError

from .campaigns import (
    DAILY,
    EMAIL,
    ENDLESS,
    EVENING,
    EXECUTED,
    HALF,
    PUSHED,
    QUERY_ZONE,
    SMS,
    TONIGHT,
    WINDOW,
    broken,
    campaign,
    until,
)

FIXED = {"earliest": "09:00", "latest": "20:00", "time_zone": "America/New_York"}

# Messages of channels


def test_a_channel_says_what_is_shared_unless_it_has_words_of_its_own() -> None:
    whole = campaign(
        message={
            "title": "T",
            "text": "Shared",
            "url": "https://a.example",
            "picture": "https://a.example/p.png",
        },
        channels={
            "android_push": {},
            "ios_push": {"text": "Own"},
            "web_push": {"browsers": ["chrome"], "title": "W"},
        },
    )
    assert whole.message_for(Channel.ANDROID_PUSH).text == "Shared"
    ios = whole.message_for(Channel.IOS_PUSH)
    assert (ios.title, ios.text, ios.url, ios.picture) == (
        "T",
        "Own",
        "https://a.example",
        "https://a.example/p.png",
    )
    assert whole.message_for(Channel.WEB_PUSH).title == "W"
    assert whole.channels.own_words(Channel.ANDROID_PUSH) == {}


NIGHT = {
    "rules": {"quiet_hours": {"earliest": "09:00", "latest": "20:00"}, "default_time_zone": "Asia/Kolkata"}
}


@pytest.mark.parametrize(
    ("fields", "zone", "clock"),
    [
        ({}, None, "UTC"),
        ({"schedule": "@daily", "schedule_time_zone": "Asia/Tokyo"}, None, "Asia/Tokyo"),
        ({"schedule": "@daily", "schedule_time_zone": "Asia/Tokyo", **NIGHT}, None, "Asia/Kolkata"),
        ({"gates": {"window": {**WINDOW, "default_time_zone": "Asia/Tokyo"}}, **NIGHT}, None, "Asia/Kolkata"),
        ({"gates": {"window": FIXED}, **NIGHT}, None, "America/New_York"),
        ({"gates": {"window": FIXED}, **NIGHT}, "Europe/Dublin", "Europe/Dublin"),
    ],
)
def test_the_hours_of_recipients_are_those_of_their_clock(
    fields: dict[str, Any], zone: str | None, clock: str
) -> None:
    assert Campaign.model_validate({"title": "A", **PUSHED, **fields}).clock_zone(zone) == clock


@pytest.mark.parametrize(
    ("fields", "has_one"),
    [
        ({}, True),
        ({"send": TONIGHT}, True),
        ({"variants": {"a": HALF, "b": HALF}}, False),
        ({"send": {**TONIGHT, "time_zone": "query", "default_time_zone": "UTC"}}, False),
        ({"language": "en", "channels": {"sms": {**SMS, "translations": {"fr": {"text": "M"}}}}}, False),
    ],
)
def test_all_recipients_get_the_same_unless_something_divides_them(
    fields: dict[str, Any], has_one: bool
) -> None:
    assert Campaign.model_validate({"title": "A", **PUSHED, **fields}).has_one_variation is has_one


def test_a_language_keeps_what_its_translation_leaves_open() -> None:
    message = {"title": "T", "text": "W", "url": "https://a.example", "translations": {"fr": {"text": "M"}}}
    french = campaign(
        language="en",
        message={**message, "translations": {"fr": {"title": "T", "text": "M"}}},
        channels={"ios_push": {}},
    ).variation(Variation(language="fr"), EVENING)
    assert french.message
    assert (french.message.text, french.message.url, french.message.translations) == (
        "M",
        "https://a.example",
        {},
    )


def test_the_url_of_a_channel_or_variant_is_that_of_each_language() -> None:
    translations = {
        "fr": {"title": "T", "text": "M", "url": "https://a.example/fr"},
        "de": {"title": "T", "text": "M"},
    }
    made = campaign(
        language="en",
        message={"title": "T", "text": "W", "url": "https://a.example", "translations": translations},
        channels={
            "android_push": {"url": "myshop://basket/42"},
            "inbox": {"url": "myshop://inbox", "translations": translations},
            "ios_push": {"picture": "https://a.example/picture.png"},
        },
        variants={"a": {"percent": 50}, "b": {"percent": 50, "message": {"url": "https://b.example"}}},
    )
    links = {
        channel: [message.url, *(each.url for each in message.translations.values())]
        for channel in made.channels_used()
        for message in [made.message_for(channel)]
    }
    assert links == {
        Channel.ANDROID_PUSH: ["myshop://basket/42", "myshop://basket/42", None],
        Channel.IOS_PUSH: ["https://a.example", "https://a.example/fr", None],
        Channel.INBOX: ["myshop://inbox", "https://a.example/fr", None],  # which it sets itself
    }
    other = made.as_variant("b").message_for(Channel.IOS_PUSH)
    assert [other.url, other.translations["fr"].url] == ["https://b.example", "https://b.example"]


def test_a_campaign_can_be_made_in_python() -> None:
    made = Campaign(
        title="A",
        message=Message(title="T", text="W"),
        channels=Channels(android_push=AndroidPush(), web_push=WebPush(browsers=("chrome",))),
    )
    assert made.channels_used() == (Channel.ANDROID_PUSH, Channel.WEB_PUSH)


# Languages

PERIOD_END = datetime(2026, 3, 2, tzinfo=UTC)


def two_languages(**more: Any) -> Campaign:
    translations = {"fr": {"subject": "Bonjour", "text": "Mots"}, "de": {"subject": "Hallo", "text": "Worte"}}
    return campaign(language="en", channels={"email": {**EMAIL, "translations": translations}, **more})


def test_an_email_in_several_languages_has_a_variation_for_each_its_own_language_first() -> None:
    assert two_languages().separate_languages() == ("en", "de", "fr")


def test_a_variation_has_one_language_and_nothing_left_to_choose() -> None:
    french = two_languages().variation(Variation("fr"), PERIOD_END)
    assert french.channels.email == Email(from_address=7, subject="Bonjour", text="Mots")
    assert french.separate_languages() == ()
    assert two_languages().variation(Variation("en"), PERIOD_END).channels.email == Email(**EMAIL)


def test_a_variation_in_a_language_without_words_is_refused() -> None:
    with pytest.raises(CampaignError, match="no texts in the language 'es'"):
        two_languages().variation(Variation("es"), PERIOD_END)


def test_the_service_chooses_between_the_languages_of_a_push() -> None:
    push = campaign(
        language="en",
        message={"title": "T", "text": "W", "translations": {"fr": {"title": "T", "text": "M"}}},
        channels={"ios_push": {}},
    )
    assert push.languages() == ("en", "fr")
    assert push.separate_languages() == ()


# Variants


def test_a_variant_replaces_what_it_says_and_leaves_the_rest_also_after_the_ledger_kept_it() -> None:
    variants = {"a": HALF, "b": {**HALF, "message": {"text": "Other", "picture": "https://a.example/p.png"}}}
    made = campaign(
        message={"title": "T", "text": "W", "url": "https://a.example"},
        channels={"ios_push": {}, "android_push": {"title": "Own"}},
        variants=variants,
    )
    kept = Campaign.frozen(made.model_dump_json())
    for whole in (made, kept):
        other = whole.variation(Variation(variant="b"), PERIOD_END)
        assert other.message_for(Channel.IOS_PUSH) == Message(
            title="T", text="Other", url="https://a.example", picture="https://a.example/p.png"
        )
        assert other.message_for(Channel.ANDROID_PUSH).title == "Own"
        assert other.variants == {}
        assert whole.variation(Variation(variant="a"), PERIOD_END).message == made.message


def test_a_variant_replaces_a_channel_as_a_whole_and_a_template() -> None:
    channels = {"email": EMAIL, "sms": SMS}
    other = {**HALF, "channels": {"email": {**EMAIL, "subject": "Other"}}}
    made = campaign(channels=channels, variants={"a": HALF, "b": other}).variation(
        Variation(variant="b"), PERIOD_END
    )
    assert made.channels == Channels.model_validate({"email": {**EMAIL, "subject": "Other"}, "sms": SMS})
    template = {**HALF, "template": {"id": 5, "channels": ["email"]}}
    executed = campaign(**EXECUTED, variants={"a": HALF, "b": template})
    ids = [executed.variation(Variation(variant=name), PERIOD_END).template for name in ("a", "b")]
    assert [each and each.id for each in ids] == [4, 5]


def test_a_template_is_executed_only_for_identifiers_that_the_service_takes() -> None:
    made = campaign(**EXECUTED)
    assert made.refuses("user_id") is None
    assert made.refuses("device_uuid") == (
        "a template cannot be executed for recipients identified by device_uuid, only by device_id, device_token, "
        "external_id, user_id"
    )


def test_recipients_see_an_address_to_opt_out_only_if_a_template_shows_it() -> None:
    shows = {**HALF, "template": {**EXECUTED["template"], "unsubscribe_url": "stop"}}
    assert not campaign(**EXECUTED).shows_opt_outs
    assert campaign(**EXECUTED, variants={"a": HALF, "b": shows}).shows_opt_outs


def test_a_variant_that_the_campaign_lacks_is_refused() -> None:
    with pytest.raises(CampaignError, match="no variant 'c'"):
        campaign(**PUSHED).variation(Variation(variant="c"), PERIOD_END)


def test_the_dates_of_a_variants_inbox_follow_from_the_period_too() -> None:
    resolved = campaign(
        message={"title": "T", "text": "W"},
        channels={"inbox": {}},
        variants={"a": HALF, "b": {**HALF, "channels": {"inbox": {"keep": until(None)}}}},
    ).resolved(PERIOD_END)
    [(path, keep)] = resolved.expiries()
    assert path == ("variants", "b", "channels", "inbox", "keep")
    assert keep.ends_at() == datetime(2026, 3, 2, 10, tzinfo=UTC)


# Time


def once(**fields: Any) -> Campaign:
    send = {"kind": "once", "time": "18:30", "time_zone": "Europe/Dublin", **fields}
    return campaign(channels={"email": EMAIL}, send=send)


@pytest.mark.parametrize(
    ("zone", "period_end", "day"),
    [
        ("Europe/Dublin", "2026-11-20T06:00+00:00", date(2026, 11, 20)),
        # the day counts in the campaign's zone, not in the offset of the period
        ("Pacific/Auckland", "2026-11-20T02:00+00:00", date(2026, 11, 20)),
        ("America/Los_Angeles", "2026-11-20T02:00+00:00", date(2026, 11, 19)),
        ("Europe/Dublin", "2026-06-20T00:30+05:00", date(2026, 6, 19)),
        # each recipient's own zone: the day in the schedule's zone, which is UTC here
        ("user", "2026-11-20T23:30-05:00", date(2026, 11, 21)),
    ],
)
def test_a_once_off_is_on_the_day_that_the_period_ends(zone: str, period_end: str, day: date) -> None:
    resolved = once(time_zone=zone, time="23:00").resolved(datetime.fromisoformat(period_end))
    assert isinstance(resolved.send, Once)
    assert resolved.send.date == day


@pytest.mark.parametrize(
    ("time", "clock", "period_end", "day"),
    [
        ("23:00", "Asia/Tokyo", "2026-11-19T15:00Z", date(2026, 11, 20)),  # midnight in Tokyo
        ("23:00", "Asia/Tokyo", "2026-11-19T13:59Z", date(2026, 11, 19)),
        ("23:00", "America/Los_Angeles", "2026-11-20T04:00Z", date(2026, 11, 19)),  # eight in the evening
        ("09:00", "America/Los_Angeles", "2026-11-20T04:00Z", date(2026, 11, 20)),
        ("09:00", "Europe/Dublin", "2026-11-20T09:00Z", date(2026, 11, 21)),
    ],
)
def test_for_each_recipients_own_zone_the_day_is_that_of_the_next_such_time_of_the_schedule(
    time: str, clock: str, period_end: str, day: date
) -> None:
    send = {"kind": "once", "time": time, "time_zone": "user"}
    made = campaign(channels={"email": EMAIL}, send=send, schedule="@daily", schedule_time_zone=clock)
    resolved = made.resolved(datetime.fromisoformat(period_end))
    assert isinstance(resolved.send, Once)
    assert resolved.send.date == day


def test_a_once_off_with_a_date_keeps_it() -> None:
    resolved = once(date="2027-03-01").resolved(EVENING)
    assert isinstance(resolved.send, Once)
    assert resolved.send.date == date(2027, 3, 1)


def test_a_once_off_that_is_over_when_its_period_ends_is_refused() -> None:
    at_its_end = once().resolved(datetime(2026, 11, 20, 18, 30, tzinfo=UTC)).send
    assert isinstance(at_its_end, Once)
    assert at_its_end.date == date(2026, 11, 20)
    with pytest.raises(
        CampaignError, match=r"send: 18:30 on 2026-11-20 in Europe/Dublin is before the end of the period"
    ):
        once().resolved(datetime(2026, 11, 20, 18, 31, tzinfo=UTC))
    with pytest.raises(CampaignError, match="2026-11-19"):
        once(date="2026-11-19").resolved(EVENING)


def test_a_time_that_the_clocks_skip_becomes_the_one_an_hour_later() -> None:
    resolved = once(time="01:30", date="2027-03-28").resolved(EVENING)
    assert isinstance(resolved.send, Once)
    assert (resolved.send.time, resolved.send.date) == ("02:30", date(2027, 3, 28))


def test_a_time_that_comes_twice_is_the_first() -> None:
    until = Until(time="01:30", time_zone="Europe/Dublin", date=date(2026, 10, 25))
    assert datetime.fromtimestamp(until.timestamp(), UTC) == datetime(2026, 10, 25, 0, 30, tzinfo=UTC)


def test_a_period_without_a_time_zone_is_refused() -> None:
    with pytest.raises(CampaignError, match="aware"):
        once().resolved(datetime(2026, 11, 20))  # noqa: DTZ001


def test_resolving_twice_changes_nothing() -> None:
    resolved = once().resolved(EVENING)
    assert resolved.resolved(EVENING) == resolved


@pytest.mark.rule("2.11/start_date", side="client")
@pytest.mark.parametrize("kind", [{"time": "08:00"}, {"kind": "triggered", "trigger": {"kind": "api"}}])
def test_recurring_and_triggered_campaigns_start_on_a_day_of_their_own(kind: dict[str, Any]) -> None:
    send = {"kind": "recurring", "time_zone": "UTC", "end": "2026-12-24", **kind}
    assert "send." in broken(channels={"email": EMAIL}, send=send)
    running = campaign(channels={"email": EMAIL}, send={**send, "start": "2026-11-20"})
    assert isinstance(running.send, Recurring | Triggered)
    assert running.send.start == date(2026, 11, 20)
    assert running.resolved(EVENING) == running


class OwnDate(date):
    """A date such as pendulum's."""


def test_dates_are_pythons_own() -> None:
    running = campaign(channels={"email": EMAIL}, send={**DAILY, "start": OwnDate(2026, 11, 20)}).send
    assert isinstance(running, Recurring)
    assert type(running.start) is date


def test_a_launch_that_was_frozen_with_an_end_on_the_last_day_of_all_has_none() -> None:
    frozen = campaign(channels={"email": EMAIL}, send={**DAILY, "end": "2026-12-31"}).model_dump_json()
    running = Campaign.frozen(frozen.replace("2026-12-31", "9999-12-31")).send
    assert isinstance(running, Recurring)
    assert running.end == date.max
    assert running.ends_at() is None


def test_the_ends_of_expiry_and_inbox_follow_from_the_period() -> None:
    until = {"until": {"time": "23:00", "time_zone": "Europe/Dublin"}}
    resolved = campaign(
        message={"title": "T", "text": "W"},
        channels={"ios_push": {}, "inbox": {"keep": {"length": 3, "unit": "days", **until}}},
        push_expiry=until,
    ).resolved(EVENING)
    assert resolved.push_expiry == TimeToLive(
        until=Until(time="23:00", time_zone="Europe/Dublin", date=date(2026, 11, 20))
    )
    assert resolved.channels.inbox is not None
    assert resolved.channels.inbox.keep is not None
    assert resolved.channels.inbox.keep.until == resolved.push_expiry.until


def test_an_expiry_before_the_end_of_the_period_is_refused() -> None:
    made = campaign(**PUSHED, push_expiry=until("2026-11-20"))  # at 10:00
    assert made.resolved(datetime(2026, 11, 20, 10, tzinfo=UTC)) == made
    problem = r"push_expiry\.until: 10:00 on 2026-11-20 in UTC is before the end of the period"
    with pytest.raises(CampaignError, match=problem):
        made.resolved(datetime(2026, 11, 20, 10, 1, tzinfo=UTC))


def test_a_moment_without_a_date_has_no_timestamp() -> None:
    with pytest.raises(ValueError, match="resolve the campaign first"):
        Until(time="23:00", time_zone="UTC").timestamp()


# Ends that have passed

TRIGGERED = {"kind": "triggered", "trigger": {"kind": "api"}, **ENDLESS}


@pytest.mark.parametrize(
    ("fields", "found", "ends"),
    [
        ({"send": {**TRIGGERED, "end": "2026-12-24"}}, "send.end", "2026-12-25T00:00+00:00"),
        ({"send": {**TRIGGERED, "end": "2026-12-24", "time_zone": "Asia/Tokyo"}}, "send.end", "2026-12-24T15:00+00:00"),
        # each recipient's own zone: the last zone to end that day
        ({"send": {**TRIGGERED, "end": "2026-12-24", "time_zone": "user"}}, "send.end", "2026-12-25T12:00+00:00"),
        ({"push_expiry": until("2026-12-24")}, "push_expiry.until", "2026-12-24T10:00+00:00"),
        (
            {"channels": {"inbox": {"keep": until("2026-12-24")}}},
            "channels.inbox.keep.until",
            "2026-12-24T10:00+00:00",
        ),
    ],
)  # fmt: skip
def test_what_has_ended_by_now_is_refused_and_the_moment_is_told(
    fields: dict[str, Any], found: str, ends: str
) -> None:
    end, minute = datetime.fromisoformat(ends), timedelta(minutes=1)
    made = campaign(**{**PUSHED, **fields})
    made.check_not_over(EVENING, end)
    assert (made.has_ended(end), made.has_ended(end + minute)) == (False, True)
    with pytest.raises(CampaignError) as error:
        made.check_not_over(EVENING, end + minute)
    passed, current = (f"{each:%Y-%m-%d %H:%M} UTC" for each in (end, end + minute))
    assert str(error.value) == (
        f"send.end: nothing is sent after {passed}, which has passed. Use a later end"
        if found == "send.end"
        else f"{found}: the end at {passed} has passed. Use an end after {current}"
    )


@pytest.mark.parametrize(
    ("fields", "last"),
    [
        ({}, "2026-12-24T08:00+00:00"),
        ({"days": ["sunday", "tuesday"]}, "2026-12-22T08:00+00:00"),
        ({"days": ["friday"], "time_zone": "Asia/Tokyo"}, "2026-12-17T23:00+00:00"),
        ({"time_zone": "user"}, "2026-12-24T20:00+00:00"),  # in the last time zone on Earth
    ],
)
def test_a_recurring_campaign_has_ended_after_its_last_time(fields: dict[str, Any], last: str) -> None:
    at, minute = datetime.fromisoformat(last), timedelta(minutes=1)
    made = campaign(**PUSHED, send={**DAILY, "end": "2026-12-24", **fields})
    made.check_not_over(EVENING, at)
    with pytest.raises(CampaignError, match=rf"send\.end: nothing is sent after {at:%Y-%m-%d %H:%M} UTC"):
        made.check_not_over(EVENING, at + minute)
    assert (made.has_ended(at), made.has_ended(at + minute)) == (False, True)


def test_what_has_no_end_is_never_over() -> None:
    for send in ({"kind": "now"}, DAILY):
        lasting = {"length": 3, "unit": "days"}
        campaign(**PUSHED, send=send, push_expiry=lasting).check_not_over(
            EVENING, datetime(2099, 1, 1, tzinfo=UTC)
        )


def test_an_end_that_follows_from_the_period_makes_the_launch_too_late() -> None:
    made = campaign(**PUSHED, push_expiry={"until": {"time": "23:30", "time_zone": "UTC"}})
    made.check_not_over(EVENING, EVENING)
    with pytest.raises(LateError, match=r"push_expiry\.until: the end at"):
        made.check_not_over(EVENING, EVENING + timedelta(days=1))


def test_what_the_service_repeats_has_one_life_whichever_its_end() -> None:
    first = datetime(2026, 11, 20, tzinfo=UTC)
    for end in ("2026-12-24", "2027-12-24", "never"):
        assert campaign(**PUSHED, send={**DAILY, "end": end}).fixed_period == Period(first, first)
    assert campaign(**PUSHED, send=TONIGHT).fixed_period is None
    assert campaign(**PUSHED).fixed_period is None


def test_zones_are_sent_apart_for_what_is_said_or_for_when() -> None:
    windowed = campaign(**PUSHED, gates={"window": WINDOW}, send=TONIGHT)
    assert windowed.default_zone == "Asia/Tokyo"
    assert windowed.variation(Variation(time_zone="Asia/Tokyo"), PERIOD_END).send == windowed.send
    assert campaign(**PUSHED, send={**TONIGHT, **QUERY_ZONE}).default_zone == "Asia/Tokyo"
    assert campaign(**PUSHED, send=TONIGHT).default_zone is None
