"""Writing a campaign's schedule and expiry (sections 2.10 to 2.12)."""

from __future__ import annotations

from datetime import date

from sendoff.campaign import (
    NEVER,
    OWN_ZONE,
    WEEKDAYS,
    Campaign,
    EventTrigger,
    LocationTrigger,
    Now,
    Once,
    Recurring,
    Triggered,
)
from sendoff.errors import CampaignError
from sendoff.service.wire.names import FieldNames, Members

_TRIGGERS = {"location": 1, "event": 2, "api": 3}


def schedule(campaign: Campaign, names: FieldNames) -> Members:
    """Yield the schedule in one of the document's forms (section 2.11). The campaign must be resolved."""
    send = campaign.send
    if isinstance(send, Now):
        yield "send_type", 0
        return
    if send.time_zone != OWN_ZONE:
        yield names["timezone"], send.time_zone
    if isinstance(send, Once):
        yield "send_type", 1
        yield "send_date", _dated(send.date)
        yield "send_time", send.time
    else:
        yield from _running(send, names)


def _running(send: Recurring | Triggered, names: FieldNames) -> Members:
    yield "send_type", 2
    yield "start_date", send.start
    if send.end != NEVER:
        yield "end_date", send.end
    if send.days:
        monday = names.number("send_days_monday")
        yield "send_days", sorted({(WEEKDAYS.index(day) + monday - 1) % 7 + 1 for day in send.days})
    if isinstance(send, Recurring):
        yield "send_time", send.time
        return
    yield "start_time", send.window.earliest
    yield "end_time", send.window.latest
    yield names["campaign_trigger"], _TRIGGERS[send.trigger.kind]
    if isinstance(send.trigger, LocationTrigger):
        yield from _locations(send.trigger, names)
    if isinstance(send.trigger, EventTrigger):
        yield names["event"], send.trigger.name


def _locations(trigger: LocationTrigger, names: FieldNames) -> Members:
    actions = {
        "enter": 1,
        "exit": names.number("location_trigger_exit"),
        "dwell": names.number("location_trigger_dwell"),
    }
    yield "locations", trigger.locations
    yield names["location_trigger"], actions[trigger.when]
    if trigger.dwell_minutes:
        yield names["dwell_time"], trigger.dwell_minutes
    yield "location_limit_per_user", trigger.per_user
    yield "location_limit_per_user_period", trigger.per_user_period
    yield "location_limit_per_location", trigger.per_location
    yield names["location_limit_per_location_period"], trigger.per_location_period
    yield "location_limit_nth_hit", trigger.nth_hit
    yield names["location_limit_nth_hit_period"], trigger.nth_hit_period


def timing(campaign: Campaign, names: FieldNames) -> Members:
    """Yield how long a push is retried and how long an inbox keeps the message (section 2.12)."""
    inbox = campaign.channels.inbox
    for prefix, expiry in (("push_expiry", campaign.push_expiry), ("inbox_expiry", inbox and inbox.keep)):
        if expiry and expiry.length:
            yield names[prefix], expiry.length
            yield names[f"{prefix}_unit"], expiry.unit
        if expiry and expiry.until:
            yield names[f"{prefix}_time"], expiry.until.timestamp()


def _dated(day: date | None) -> date:
    if day is None:
        raise CampaignError("resolve the campaign first: its schedule has no date yet")
    return day
