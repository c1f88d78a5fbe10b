"""Rules of a campaign that no field can check alone."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import date
from typing import TYPE_CHECKING

from sendoff.campaign.content import PUSH_LIKE, Channel
from sendoff.campaign.field_types import QUERY_ZONE, is_web_address
from sendoff.campaign.schedule import Once, Recurring, Triggered

if TYPE_CHECKING:
    from sendoff.campaign.model import Campaign, Variant

_TITLED = frozenset({Channel.WEB_PUSH, Channel.INBOX})  # a browser shows no message without a title

_ROUNDING = 1e-6  # percent


@dataclass(frozen=True, slots=True)
class BrokenRule:
    """One thing that does not fit together: where the file says it, what it says and what it may say."""

    path: tuple[str, ...]
    text: str


def broken_rules(campaign: Campaign) -> Iterator[BrokenRule]:
    """Give every rule that a campaign breaks."""
    yield from _starts_in_one_way(campaign)
    yield from _created_once(campaign)
    yield from _days_are_in_order(campaign)
    yield from _waves_can_be_judged(campaign)
    yield from _one_default_zone(campaign)
    if campaign.targeting.kind != "query":
        yield from _needs_no_query(campaign)
    found = list(_says_what_it_uses(campaign))
    yield from found
    yield from _variants_are_shares(campaign)
    for name, variant in campaign.variants.items():
        yield from _variant_fits(campaign, name, variant)
        if campaign.template or not variant.template:
            for rule in _says_what_it_uses(campaign.as_variant(name)):
                if rule not in found:
                    yield _of_variant(name, rule)


def _of_variant(name: str, rule: BrokenRule) -> BrokenRule:
    return BrokenRule(("variants", name, *rule.path), rule.text)


def _broken(path: str, found: str, allowed: str) -> BrokenRule:
    return BrokenRule(tuple(path.split(".")), f"found {found}; allowed: {allowed}")


def _starts_in_one_way(campaign: Campaign) -> Iterator[BrokenRule]:
    if campaign.schedule is not None and campaign.after:
        yield _broken("after", "after beside schedule", "what starts the DAG: a clock or assets, not both")
    if campaign.schedule is None and campaign.schedule_time_zone != "UTC":
        yield _broken(
            "schedule_time_zone", "schedule_time_zone without schedule", "schedule_time_zone with schedule"
        )


def _created_once(campaign: Campaign) -> Iterator[BrokenRule]:
    if not isinstance(campaign.send, Recurring | Triggered):
        return
    kind = campaign.send.kind
    if campaign.schedule is not None:
        found = f"{campaign.schedule!r} with send.kind: {kind}"
        yield _broken("schedule", found, "no schedule: trigger the DAG once, the service repeats it")
    for path, keeping in campaign.keepings():
        if keeping.until and keeping.until.date is None:
            text = f"found no date with send.kind: {kind}; allowed: date, or length and unit"
            yield BrokenRule((*path, "until"), text)


def _days_are_in_order(campaign: Campaign) -> Iterator[BrokenRule]:
    """Nothing is over before the DAG, or what the service repeats, begins."""
    starts: dict[str, date | None] = {"start": campaign.start}
    ends: dict[tuple[str, ...], object] = {
        (*path, "until", "date"): keeping.until and keeping.until.date
        for path, keeping in campaign.keepings()
    }
    if isinstance(campaign.send, Recurring | Triggered):
        starts["send.start"] = campaign.send.start
        ends["send", "end"] = campaign.send.end
    if isinstance(campaign.send, Once):
        ends["send", "date"] = campaign.send.date
    for path, end in ends.items():
        for name, start in starts.items():
            if start and isinstance(end, date) and end < start:
                yield BrokenRule(
                    path, f"found {end}, before {name} ({start}); allowed: a date on or after {name}"
                )


def _waves_can_be_judged(campaign: Campaign) -> Iterator[BrokenRule]:
    if campaign.gates.spread and campaign.send.kind != "now":
        allowed = "send.kind: now, because a wave is judged by what came back of it"
        yield _broken("gates.spread", f"spread with send.kind: {campaign.send.kind}", allowed)


def _one_default_zone(campaign: Campaign) -> Iterator[BrokenRule]:
    window, send = campaign.gates.window, campaign.send
    if not (window and window.default_time_zone and isinstance(send, Once) and send.default_time_zone):
        return
    if window.default_time_zone != send.default_time_zone:
        found = f"{window.default_time_zone} beside send.default_time_zone: {send.default_time_zone}"
        yield _broken("gates.window.default_time_zone", found, "the same time zone in both")


def _needs_no_query(campaign: Campaign) -> Iterator[BrokenRule]:
    """Of people whom the service chooses nothing is known before."""
    audience, gates = campaign.audience, campaign.gates
    needing = {
        "audience.parts": audience.parts,
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
        "gates.spread": gates.spread,
        "send.time_zone": getattr(campaign.send, "time_zone", None) == QUERY_ZONE,
    }
    for path, is_given in needing.items():
        if is_given:
            yield _needs_people(campaign, path, path.rpartition(".")[2])
    for channel in (Channel.EMAIL, Channel.SMS):
        if getattr(getattr(campaign.channels, channel), "translations", None):
            yield _needs_people(
                campaign, f"channels.{channel}.translations", "translations that are sent apart"
            )


def _needs_people(campaign: Campaign, path: str, found: str) -> BrokenRule:
    kind = campaign.targeting.kind
    return _broken(
        path, f"{found} with targeting.kind: {kind}", "targeting.kind: query, whose people are known"
    )


def _variants_are_shares(campaign: Campaign) -> Iterator[BrokenRule]:
    if not campaign.variants:
        return
    if len(campaign.variants) == 1:
        yield _broken("variants", "one variant", "two or more, or none")
    total = sum(variant.percent for variant in campaign.variants.values())
    if abs(total - 100) > _ROUNDING:
        yield _broken("variants", f"percents that add up to {total:g}", "percents that add up to 100")


def _variant_fits(campaign: Campaign, name: str, variant: Variant) -> Iterator[BrokenRule]:
    for channel in () if campaign.template else variant.channels.used():
        if channel not in campaign.channels.used():
            rule = _broken(f"channels.{channel}", f"{channel}, which the campaign lacks", "its own channels")
            yield _of_variant(name, rule)
    if variant.template and not campaign.template:
        rule = _broken("template", "a template in a campaign without one", "template in both, or in neither")
        yield _of_variant(name, rule)
    elif variant.template and campaign.template:
        own, shared = variant.template.channels, campaign.template.channels
        if set(own) != set(shared):
            rule = _broken("template.channels", ", ".join(own), f"{', '.join(shared)}, as in the campaign")
            yield _of_variant(name, rule)
    own_languages, shared_languages = campaign.as_variant(name).languages(), campaign.languages()
    if own_languages != shared_languages:
        text = f"found words in {_listed(own_languages)}; allowed: {_listed(shared_languages)}, as in the campaign"
        yield BrokenRule(("variants", name), text)


def _listed(languages: tuple[str, ...]) -> str:
    return ", ".join(languages) or "no language"


def _says_what_it_uses(campaign: Campaign) -> Iterator[BrokenRule]:
    """Give the rules of content that a campaign breaks, or one of its variants."""
    if campaign.template:
        yield from _template_brings_its_content(campaign)
        return
    if not campaign.channels.used():
        yield _broken("channels", "no channel", f"one or more of {', '.join(Channel)}")
    yield from _pushes_have_words(campaign)
    yield from _nothing_is_idle(campaign)
    yield from _every_language_is_whole(campaign)


def _template_brings_its_content(campaign: Campaign) -> Iterator[BrokenRule]:
    for name in ("message", "language", "push_expiry", "encryption"):
        if getattr(campaign, name) is not None:
            yield _broken(
                name, f"{name} beside template", "a template, which has its own, or content without template"
            )
    if campaign.channels.used():
        yield _broken("channels", "channels beside template", "template.channels")
    if campaign.send.kind != "now":
        yield _broken(
            "send", f"kind: {campaign.send.kind} with a template", "kind: now, because an execution sends"
        )
    if campaign.targeting.kind != "query":
        found = f"kind: {campaign.targeting.kind} with a template"
        yield _broken("targeting", found, "kind: query, because an execution names its people")


def _pushes_have_words(campaign: Campaign) -> Iterator[BrokenRule]:
    for channel in campaign.channels.used():
        if channel not in PUSH_LIKE:
            continue
        words = campaign.words(channel)
        if words.text is None:
            yield _broken(f"channels.{channel}", "no text", f"message.text, or channels.{channel}.text")
        if words.title is None and channel in _TITLED:
            yield _broken(f"channels.{channel}", "no title", f"message.title, or channels.{channel}.title")


def _nothing_is_idle(campaign: Campaign) -> Iterator[BrokenRule]:
    used = set(campaign.channels.used())
    if campaign.message and not used & PUSH_LIKE:
        channels = ", ".join(channel for channel in Channel if channel in PUSH_LIKE)
        yield _broken("message", "a message that no channel shows", f"message with one of {channels}")
    if campaign.push_expiry and not used & (PUSH_LIKE - {Channel.INBOX}):
        yield _broken(
            "push_expiry", "an expiry without push", "push_expiry with android_push, ios_push or web_push"
        )


def _every_language_is_whole(campaign: Campaign) -> Iterator[BrokenRule]:
    codes = {code for _, content in campaign.translated() for code in content.translations}
    if codes and campaign.language is None:
        yield _broken(
            "language", "translations without language", "the language of the words that are no translation"
        )
    if campaign.language in codes:
        yield _broken("language", f"{campaign.language!r}, which is also a translation", "another language")
    for path, content in campaign.translated():
        if _says_something(content):
            yield from _is_whole(".".join(path), content, codes)
    yield from _browsers_can_open_it(campaign)
    if codes and campaign.channels.own_words(Channel.WEB_PUSH):
        allowed = "the words of message, because those of web_push alone cannot be translated"
        yield _broken("channels.web_push", "words of its own in a campaign with translations", allowed)


def _browsers_can_open_it(campaign: Campaign) -> Iterator[BrokenRule]:
    """Web push takes its url from the message, and a browser opens no link into an app."""
    if Channel.WEB_PUSH not in campaign.channels.used():
        return
    words = campaign.words(Channel.WEB_PUSH)
    if words.url and not is_web_address(words.url):
        allowed = "channels.web_push.url with a web address, because a browser opens no link into an app"
        yield _broken("channels.web_push", "no web address to open", allowed)
    for code, translation in words.translations.items():
        if translation.url and not is_web_address(translation.url):
            allowed = "a web address, because web_push shows it too and a browser opens no link into an app"
            yield _broken(f"message.translations.{code}.url", "a link into an app", allowed)


def _is_whole(path: str, content: object, codes: set[str]) -> Iterator[BrokenRule]:
    translations = getattr(content, "translations", {})
    for code in sorted(codes - set(translations)):
        yield _broken(
            f"{path}.translations", f"no {code}", "every language that the campaign is translated into"
        )
    for code, translation in translations.items():
        for part in type(translation).model_fields:
            given, own = getattr(translation, part), getattr(content, part)
            if given is None and own is not None and part != "url":
                yield _broken(f"{path}.translations.{code}", f"no {part}", f"{part}, as in {path}")
            if given is not None and own is None:
                yield _broken(
                    f"{path}.translations.{code}.{part}", f"{part}, which {path} lacks", f"{part} in both"
                )


def _says_something(content: object) -> bool:
    return any(getattr(content, part, None) is not None for part in ("title", "text", "html", "subject"))
