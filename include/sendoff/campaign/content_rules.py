"""Rules on how the message, the channels, the template and the languages of a campaign fit together."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from sendoff.campaign.content import PUSH_LIKE, Channel
from sendoff.campaign.field_types import is_web_address
from sendoff.campaign.model import Campaign

# These need a title; browsers show no message without one.
_TITLED = frozenset({Channel.WEB_PUSH, Channel.INBOX})
_LINKS_INTO_THE_APP = "Put links into the app into channels.android_push.url, ios_push.url and inbox.url"


@dataclass(frozen=True, slots=True)
class BrokenRule:
    """A broken rule: the path in the file, and a sentence with the value found and the values allowed."""

    path: tuple[str | int, ...]
    text: str


def broken(path: str, found: str, allowed: str) -> BrokenRule:
    """Return a broken rule at a dotted path."""
    return BrokenRule(tuple(path.split(".")) if path else (), f"found {found}. Use {allowed}")


def content_is_whole(campaign: Campaign) -> Iterator[BrokenRule]:
    """Yield the content rules that a campaign breaks."""
    if campaign.template:
        yield from _template_brings_its_content(campaign)
        return
    if not campaign.channels.used():
        yield broken("channels", "no channel", f"one or more of {', '.join(Channel)}")
    yield from _pushes_have_words(campaign)
    yield from _nothing_is_idle(campaign)
    yield from _every_language_is_whole(campaign)


def _template_brings_its_content(campaign: Campaign) -> Iterator[BrokenRule]:
    template = campaign.template
    if template and template.unsubscribe_url in {*template.columns, *template.parameters}:
        allowed = "another name, because Sendoff gives this variable each recipient's own address"
        yield broken(
            "template.unsubscribe_url", f"{template.unsubscribe_url}, which has other values too", allowed
        )
    if template and template.unsubscribe_url and campaign.transactional and campaign.topic is None:
        found = "an address to opt out in a transactional campaign without topic"
        allowed = "topic too, because opting out of the whole account does not stop a transactional campaign"
        yield broken("template.unsubscribe_url", found, allowed)
    for name in ("message", "language", "push_expiry", "encryption"):
        if getattr(campaign, name) is not None:
            allowed = "one of them; the template in the service has its own"
            yield broken(name, f"both {name} and template", allowed)
    if campaign.channels.used():
        yield broken("channels", "both channels and template", "template.channels")
    if campaign.send.kind != "now":
        allowed = "kind: now, because a template is executed at once"
        yield broken("send", f"kind: {campaign.send.kind} with a template", allowed)
    if campaign.targeting.kind != "query":
        allowed = "kind: query, because an execution lists its recipients"
        yield broken("targeting", f"kind: {campaign.targeting.kind} with a template", allowed)


def _pushes_have_words(campaign: Campaign) -> Iterator[BrokenRule]:
    for channel in campaign.channels.used():
        message = campaign.message_for(channel)
        for part, channels in (("text", PUSH_LIKE), ("title", _TITLED)):
            if channel in channels and getattr(message, part) is None:
                yield broken(
                    f"channels.{channel}", f"no {part}", f"message.{part}, or channels.{channel}.{part}"
                )


def _nothing_is_idle(campaign: Campaign) -> Iterator[BrokenRule]:
    used = set(campaign.channels.used())
    if campaign.message and not used & PUSH_LIKE:
        channels = ", ".join(channel for channel in Channel if channel in PUSH_LIKE)
        yield broken("message", "a message that no channel shows", f"message with one of {channels}")
    if campaign.push_expiry and not used & (PUSH_LIKE - {Channel.INBOX}):
        allowed = "push_expiry with android_push, ios_push or web_push"
        yield broken("push_expiry", "push_expiry without a push channel", allowed)


def _every_language_is_whole(campaign: Campaign) -> Iterator[BrokenRule]:
    codes = {code for _, content in campaign.translated() for code in content.translations}
    if codes and campaign.language is None:
        allowed = "the language of the original texts"
        yield broken("language", "translations without language", allowed)
    if campaign.language in codes:
        yield broken("language", f"{campaign.language!r}, which is also a translation", "another language")
    for path, content in campaign.translated():
        if any(getattr(content, part, None) is not None for part in ("title", "text", "html", "subject")):
            yield from _is_whole(".".join(path), content, codes)
    yield from _browsers_can_open_it(campaign)
    if codes and (own := campaign.channels.own_words(Channel.WEB_PUSH)):
        found = f"{' and '.join(own)} in a campaign with translations"
        allowed = "those of message, because the service has no translations of what web_push sets itself"
        if "url" in own:
            allowed += f". {_LINKS_INTO_THE_APP}"
        yield broken("channels.web_push", found, allowed)


def _browsers_can_open_it(campaign: Campaign) -> Iterator[BrokenRule]:
    """Yield each url that web push would take from the message but a browser cannot open."""
    if Channel.WEB_PUSH not in campaign.channels.used():
        return
    message = campaign.message_for(Channel.WEB_PUSH)
    if message.url and not is_web_address(message.url):
        place = "message.url" if message.translations else "channels.web_push.url"
        allowed = f"a web address in {place}, because a browser cannot open a link into an app"
        if message.translations:
            allowed += f". {_LINKS_INTO_THE_APP}"
        yield broken("channels.web_push", "no web address to open", allowed)
    for code, translation in message.translations.items():
        if translation.url and not is_web_address(translation.url):
            allowed = (
                "a web address, because web_push uses it too and a browser cannot open a link into an app"
            )
            yield broken(f"message.translations.{code}.url", "a link into an app", allowed)


def _is_whole(path: str, content: Any, codes: set[str]) -> Iterator[BrokenRule]:
    path = f"{path}.translations"
    for code in sorted(codes - set(content.translations)):
        yield broken(path, f"no {code}", "every language that the campaign is translated into")
    for code, translation in content.translations.items():
        shared = path.removesuffix(".translations")
        for part in type(translation).model_fields:
            translated, own = getattr(translation, part), getattr(content, part)
            if translated is None and own is not None and part != "url":
                yield broken(f"{path}.{code}", f"no {part}", f"{part}, as in {shared}")
            if translated is not None and own is None:
                yield broken(f"{path}.{code}.{part}", f"{part}, missing from {shared}", f"{part} in both")
