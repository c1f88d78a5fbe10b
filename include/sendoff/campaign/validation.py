"""Rules on how the fields of a campaign fit together.

They apply when a file is read (``load_campaign``) and before a launch is planned (``check_campaign``), but not to a
launch that is already frozen.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from datetime import UTC, date, datetime
from typing import Any

from croniter import croniter

from sendoff.campaign.audience_rules import DbtModelSource, VerdictSource
from sendoff.campaign.content_rules import BrokenRule, broken, content_is_whole
from sendoff.campaign.deployment_rules import forbidden_time, next_open
from sendoff.campaign.field_types import OWN_ZONE, QUERY_ZONE, describe, did_you_mean
from sendoff.campaign.model import PRESETS, Campaign
from sendoff.campaign.schedule import LAST_DEADLINE, Once, Recurring, Triggered, days_of
from sendoff.campaign.tags import broken_tags
from sendoff.campaign.targeting import ByConditions
from sendoff.campaign.variants import Variant
from sendoff.errors import CampaignError
from sendoff.figures import CONTROL_GROUP, counted

_ROUNDING = 1e-6  # percent
_LONGEST_SCHEDULE = 80  # characters; Airflow stores a description of it, which is much longer
_CRON_FIELDS = {
    "minute": "0 to 59",
    "hour": "0 to 23",
    "day": "1 to 31",
    "month": "1 to 12 or jan to dec",
    "weekday": "0 to 7 or sun to sat",
}
_CRON_CHARACTERS = re.compile(r"[A-Za-z0-9*/,\-#?]+", re.ASCII)
_DEEPEST_GROUP = 20  # an assumption about the service: see docs/reference/unknowns.md
_RANDOM = re.compile(r"[hr]\b", re.IGNORECASE)  # croniter's extension for hashed and random values
_ALLOWED_TIMES = "a time that they allow, send.kind: now to wait for one, or transactional with the reason"
_ZERO = re.compile(r"(?<!\d)0+(?!\d)")


def check_campaign(campaign: Campaign) -> None:
    """Raise CampaignError if a campaign breaks rules; for campaigns built in Python too."""
    rules = [*broken_texts(campaign.model_dump(mode="json")), *broken_rules(campaign)]
    if rules:
        raise CampaignError("; ".join(f"{'.'.join(map(str, rule.path))}: {rule.text}" for rule in rules))


def broken_texts(tree: Mapping[str, Any]) -> Iterator[BrokenRule]:
    """Yield the broken rules of the schedule and of the tags in the campaign's texts.

    ``tree``: the campaign in JSON's types; it may lack fields or have unknown ones.
    """
    schedule, variants = tree.get("schedule"), tree.get("variants")
    if isinstance(schedule, str) and (text := _schedule_problem(schedule)):
        yield BrokenRule(("schedule",), text)
    contents: list[tuple[tuple[str, ...], Any]] = [((), tree)]
    if isinstance(variants, dict):
        misplaced = variants.get("decide")
        if isinstance(misplaced, dict) and "percent" not in misplaced:
            allowed = "decide beside variants, because each name here is that of a variant"
            yield broken("variants.decide", "decide among the variants", allowed)
        contents += [(("variants", name), variant) for name, variant in variants.items()]
    for path, content in contents:
        for part in ("message", "channels") if isinstance(content, dict) else ():
            for place, text in broken_tags(content.get(part), (*path, part)):
                yield BrokenRule(place, text)


def _schedule_problem(schedule: str) -> str | None:
    """Return the reason why Airflow cannot use a schedule, or None if it can."""
    if schedule in PRESETS:
        return None
    fields = schedule.split()
    if len(fields) != len(_CRON_FIELDS) or not all(map(_CRON_CHARACTERS.fullmatch, fields)):
        found = describe(schedule) if len(fields) in (1, len(_CRON_FIELDS)) else f"{len(fields)} fields"
        hint = did_you_mean(schedule, PRESETS)
        return f"found {found}{hint}. Use a cron expression of five fields, or one of {', '.join(PRESETS)}"
    if len(schedule) > _LONGEST_SCHEDULE:
        return f"found {describe(schedule)}. Use at most {_LONGEST_SCHEDULE} characters"
    is_valid = croniter.is_valid(schedule)
    for place, (name, values) in enumerate(_CRON_FIELDS.items()):
        for part in dict.fromkeys([*fields[place].lower().split(","), fields[place].lower()]):
            alone = " ".join(part if name == each else "*" for each in _CRON_FIELDS)
            has_zero = name in ("day", "month") and _ZERO.search(part)  # croniter accepts 0 in a range
            if has_zero or _RANDOM.match(part) or not (is_valid or croniter.is_valid(alone)):
                found = part if part.isdigit() else describe(part)
                return f"found {name} {found}. Use {values}, alone or with the signs * , - / of cron (not /0)"
    # If both a day of the month and a day of the week are given, one of them is enough.
    if fields[4] in ("*", "?") and not croniter.is_valid(schedule, strict=True):
        return (
            f"found day {fields[2]} in month {fields[3]}, which never comes. Use a day that these months have"
        )
    return None


def broken_rules(campaign: Campaign) -> Iterator[BrokenRule]:
    """Yield every rule that a campaign breaks."""
    yield from _starts_and_sends_once(campaign)
    yield from _waves_are_not_too_late(campaign)
    yield from _own_hours_can_come(campaign)
    yield from _days_are_in_order(campaign)
    yield from _sends_on_a_day(campaign)
    yield from _deadlines_fit_into_requests(campaign)
    yield from _keeps_the_rules(campaign)
    if campaign.targeting.kind != "query":
        yield from _needs_no_query(campaign)
    yield from _conditions_are_flat_enough(campaign)
    yield from _source_fits(campaign)
    of_content = list(content_is_whole(campaign))
    yield from of_content
    yield from _variants_are_shares(campaign)
    yield from _winner_can_be_chosen(campaign)
    for name, variant in campaign.variants.items():
        rules = [*_variant_fits(campaign, variant, campaign.as_variant(name))]
        if campaign.template or not variant.template:
            rules += [rule for rule in content_is_whole(campaign.as_variant(name)) if rule not in of_content]
        yield from (BrokenRule(("variants", name, *rule.path), rule.text) for rule in rules)


def _source_fits(campaign: Campaign) -> Iterator[BrokenRule]:
    """Yield the rules that ``audience.source`` breaks."""
    source, audience = campaign.audience.source, campaign.audience
    if isinstance(source, VerdictSource):
        if audience.columns:
            yield broken(
                "audience.columns", "columns with source.kind: verdicts", "columns with audience.sql"
            )
        templates = {"template": campaign.template} | {
            f"variants.{name}.template": variant.template for name, variant in campaign.variants.items()
        }
        for place, template in templates.items():
            if template and template.columns:
                found = "columns for recipients who come from the verdicts of another launch, which have none"
                yield broken(f"{place}.columns", found, "audience.sql, or a template without columns")
    if isinstance(source, DbtModelSource) and campaign.dbt.artifacts is None:
        allowed = "dbt.artifacts: the folder with manifest.json"
        yield broken("audience.source", "kind: dbt_model without dbt.artifacts", allowed)
    if source and audience.partitions:
        allowed = "audience.partitions with audience.sql"
        yield broken("audience.partitions", f"partitions with source.kind: {source.kind}", allowed)


def _starts_and_sends_once(campaign: Campaign) -> Iterator[BrokenRule]:
    """Yield broken rules on how the DAG's start, the sending time and the gates fit together."""
    schedule, send, window = campaign.schedule, campaign.send, campaign.gates.window
    least, most = campaign.gates.least, campaign.gates.most
    if most is not None and least > most:
        yield broken("gates.least", f"{least}, above most ({most})", "a number of at most gates.most")
    is_later = isinstance(campaign.audience.source, VerdictSource)  # such as a later step of a journey
    if schedule is None and campaign.schedule_time_zone != "UTC" and not is_later:
        allowed = "schedule_time_zone with schedule"
        yield broken("schedule_time_zone", "schedule_time_zone without schedule", allowed)
    if isinstance(send, Recurring | Triggered) and schedule is not None:
        allowed = "no schedule, but trigger the DAG once; the service repeats the messages"
        yield broken("schedule", f"{schedule!r} with send.kind: {send.kind}", allowed)
    if isinstance(send, Recurring | Triggered) or campaign.own_hours:
        of_days = "send.own_hours" if campaign.own_hours else f"send.kind: {send.kind}"
        for path, expiry in campaign.expiries():
            if expiry.until and expiry.until.date is None:
                text = f"found no date with {of_days}. Use a date, or length and unit"
                yield BrokenRule((*path, "until"), text)
    if campaign.gates.rollout and send.kind != "now":
        allowed = "send.kind: now, because each wave waits for post-backs of the one before"
        yield broken("gates.rollout", f"rollout with send.kind: {send.kind}", allowed)
    zones = (window and window.default_time_zone, isinstance(send, Once) and send.default_time_zone)
    if all(zones) and zones[0] != zones[1]:
        found = f"{zones[0]} with send.default_time_zone: {zones[1]}"
        yield broken("gates.window.default_time_zone", found, "the same time zone in both")


def _waves_are_not_too_late(campaign: Campaign) -> Iterator[BrokenRule]:
    rollout, late = campaign.gates.rollout, campaign.gates.lateness
    if rollout is None or late is None or not campaign.gates.names_lateness:
        return
    waits = len(rollout.shares)
    if late.timedelta() + campaign.own_hours_take <= waits * rollout.wait.timedelta():
        found = f"{counted(waits, 'wait')} of {rollout.wait.words} with gates.lateness of {late.words}"
        yield broken("gates.rollout.wait", found, "a shorter time, because the last wave would be too late")


def _own_hours_can_come(campaign: Campaign) -> Iterator[BrokenRule]:
    if campaign.own_hours and campaign.targeting.kind != "query":
        allowed = "targeting.kind: query, because the hours are those of known recipients"
        yield broken("send.own_hours", f"own_hours with targeting.kind: {campaign.targeting.kind}", allowed)
    if campaign.own_hours and campaign.decide:
        allowed = "one of them, because the winner is decided after a part of the day"
        yield broken("send.own_hours", "both own_hours and decide", allowed)


def _keeps_the_rules(campaign: Campaign) -> Iterator[BrokenRule]:
    """Yield what in a campaign contradicts the rules for all campaigns, as far as the campaign alone shows it."""
    rules, send, window = campaign.rules_in_force, campaign.send, campaign.gates.window
    zone = rules.default_time_zone
    if zone and campaign.own_default_zone not in (None, zone):
        is_of_send = isinstance(send, Once) and send.default_time_zone
        path = "send.default_time_zone" if is_of_send else "gates.window.default_time_zone"
        found = f"{campaign.own_default_zone} with rules.default_time_zone: {zone}"
        yield broken(path, found, "the same time zone in both")
    local = getattr(send, "time_zone", None) in (OWN_ZONE, QUERY_ZONE)
    if local and (why := forbidden_time(rules, send, None)):
        yield broken("send", f"a sending time that the rules forbid: {why}", _ALLOWED_TIMES)
    if send.kind == "now" and rules.restricts_times and not next_open(rules, window, zone, datetime.now(UTC)):
        both = "with gates.window" if window else "by themselves"
        yield broken("gates", f"rules that never allow a message {both}", "hours and days that overlap")
    if campaign.warm_up and send.kind != "now":
        found = f"kind: {send.kind} with rules.warm_up for {campaign.connection} in defaults.yaml"
        allowed = "kind: now, because the daily limit counts a request when it is made, not when the service sends it"
        yield broken("send", found, allowed)
    if campaign.targeting.kind != "query":
        caps = rules.caps_for(campaign.suppression_scopes())
        needing = {"cap": caps, "exclude": rules.exclude, "warm_up": campaign.warm_up}
        for name in (name for name, value in needing.items() if value):
            found = f"kind: {campaign.targeting.kind} with rules.{name} in defaults.yaml"
            allowed = "kind: query, because Sendoff must know the recipients"
            yield broken("targeting", found, allowed)


def _days_are_in_order(campaign: Campaign) -> Iterator[BrokenRule]:
    """Yield each end date that lies before the start of the DAG or of the sending."""
    send = campaign.send
    starts: dict[str, date | None] = {"start": campaign.start, "send.start": getattr(send, "start", None)}
    ends: dict[tuple[str, ...], object] = {
        (*path, "until", "date"): expiry.until and expiry.until.date for path, expiry in campaign.expiries()
    }
    ends |= {("send", part): getattr(send, part, None) for part in ("end", "date")}
    for path, end in ends.items():
        for name, start in starts.items():
            if start and isinstance(end, date) and end < start:
                text = f"found {end}, before {name} ({start}). Use a date on or after {name}"
                yield BrokenRule(path, text)


def _sends_on_a_day(campaign: Campaign) -> Iterator[BrokenRule]:
    send = campaign.send
    if isinstance(send, Recurring | Triggered) and send.days and not any(days_of(send)):
        found = f"{', '.join(send.days)} with send.start: {send.start} and send.end: {send.end}"
        yield broken("send.days", found, "a day of the week between them, or a later end")


def _deadlines_fit_into_requests(campaign: Campaign) -> Iterator[BrokenRule]:
    """Yield each deadline that is too late for the service's Unix times of 32 bits (section 2.12)."""
    for path, expiry in campaign.expiries():
        until = expiry.until
        if until and until.date and until.date.year >= LAST_DEADLINE.year and until.moment() > LAST_DEADLINE:
            latest = f"{LAST_DEADLINE:%Y-%m-%d %H:%M} UTC"
            text = f"found {until.time} on {until.date} in {until.time_zone}. Use a moment up to {latest}"
            yield BrokenRule((*path, "until", "date"), f"{text}, because the service reads no later ones")


def _needs_no_query(campaign: Campaign) -> Iterator[BrokenRule]:
    """Yield the fields that need to know the recipients in advance, if the service chooses them."""
    audience, gates, channels = campaign.audience, campaign.gates, campaign.channels
    needing = {
        "audience.source": audience.source,
        "audience.partitions": audience.partitions,
        "audience.columns": audience.columns,
        "audience.exclude": audience.exclude,
        "audience.priority": audience.priority,
        "audience.cap": audience.cap,
        "audience.holdout": audience.holdout,
        "variants": campaign.variants,
        "gates.least": gates.least > 1,
        "gates.most": gates.most,
        "gates.change": gates.change,
        "gates.unusable": gates.unusable,
        "gates.window.time_zone": gates.window and gates.window.time_zone == QUERY_ZONE,
        "gates.rollout": gates.rollout,
        "send.time_zone": getattr(campaign.send, "time_zone", None) == QUERY_ZONE,
        "channels.email.translations": channels.email and channels.email.translations,
        "channels.sms.translations": channels.sms and channels.sms.translations,
    }
    for path, value in needing.items():
        if value:
            part = path.rpartition(".")[2] + (" sent separately" if path.startswith("channels") else "")
            allowed = "targeting.kind: query, because Sendoff must know the recipients"
            yield broken(path, f"{part} with targeting.kind: {campaign.targeting.kind}", allowed)


def _conditions_are_flat_enough(campaign: Campaign) -> Iterator[BrokenRule]:
    target = campaign.targeting
    if isinstance(target, ByConditions) and target.where.depth > _DEEPEST_GROUP:
        found = f"{target.where.depth} groups of conditions inside each other"
        yield broken("targeting.where", found, f"at most {_DEEPEST_GROUP}: join groups of the same kind")


def _variants_are_shares(campaign: Campaign) -> Iterator[BrokenRule]:
    if len(campaign.variants) == 1:
        yield broken("variants", "one variant", "two or more, or none")
    total = sum(variant.percent for variant in campaign.variants.values())
    if campaign.variants and abs(total - 100) > _ROUNDING:
        yield broken("variants", f"percents that add up to {total:g}", "percents that add up to 100")
    for name in campaign.variants:
        if name.strip().lower() == CONTROL_GROUP:
            text = "found the name of the holdout in comparisons. Use another name"
            yield BrokenRule(("variants", name), text)


def _winner_can_be_chosen(campaign: Campaign) -> Iterator[BrokenRule]:
    """Yield the rules that ``decide`` breaks."""
    decide = campaign.decide
    if decide is None:
        return
    if not campaign.variants:
        yield broken("decide", "decide without variants", "it with two variants or more")
    elif decide.otherwise not in campaign.variants:
        hint = did_you_mean(decide.otherwise, campaign.variants)
        found = f"{describe(decide.otherwise)}{hint}"
        yield broken("decide.otherwise", found, f"one of the variants: {', '.join(campaign.variants)}")
    if campaign.send.kind != "now":
        allowed = "send.kind: now, because the rest waits for the opens of the test share"
        yield broken("decide", f"decide with send.kind: {campaign.send.kind}", allowed)
    if "open" not in campaign.post_backs.kinds:
        allowed = "open in post_backs.kinds, because opens decide"
        yield broken("decide.metric", "engaged without post-backs of opens", allowed)
    if campaign.gates.rollout:
        allowed = "one of them, because both say who gets the message first"
        yield broken("decide", "both decide and gates.rollout", allowed)
    late = campaign.gates.lateness if campaign.gates.names_lateness else None
    if late and late.timedelta() <= decide.after.timedelta():
        found = f"{decide.after.words} with gates.lateness of {late.words}"
        yield broken("decide.after", found, "a shorter time, because the rest would be too late")


def _variant_fits(campaign: Campaign, variant: Variant, whole: Campaign) -> Iterator[BrokenRule]:
    """Yield the rules that a variant breaks, with paths inside the variant.

    ``whole``: the campaign as the variant's recipients get it.
    """
    for channel in () if campaign.template else variant.channels.used():
        if channel not in campaign.channels.used():
            yield broken(
                f"channels.{channel}",
                f"{channel}, which the campaign does not use",
                "the campaign's channels",
            )
    if variant.template and not campaign.template:
        allowed = "template in both, or in neither"
        yield broken("template", "a template in a campaign without one", allowed)
    elif variant.template and campaign.template:
        own, shared = variant.template.channels, campaign.template.channels
        if set(own) != set(shared):
            yield broken("template.channels", ", ".join(own), f"{', '.join(shared)}, as in the campaign")
    if whole.languages() != campaign.languages():
        found, allowed = (", ".join(each.languages()) for each in (whole, campaign))
        yield broken("", f"texts in {found}", f"{allowed}, as in the campaign")
