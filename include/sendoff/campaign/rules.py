"""Rules of a campaign that no field can check alone."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

from sendoff.campaign.content import PUSH_LIKE, Channel

if TYPE_CHECKING:
    from sendoff.campaign.model import Campaign

_TITLED = frozenset({Channel.WEB_PUSH, Channel.INBOX})  # a browser shows no message without a title


@dataclass(frozen=True, slots=True)
class BrokenRule:
    """One thing that does not fit together: where the file says it, what it says and what it may say."""

    path: tuple[str, ...]
    text: str


def broken_rules(campaign: Campaign) -> Iterator[BrokenRule]:
    """Give every rule that a campaign breaks."""
    yield from _created_once(campaign)
    if campaign.template:
        yield from _template_brings_its_content(campaign)
        return
    if not campaign.channels.used():
        yield _broken("channels", "no channel", f"one or more of {', '.join(Channel)}")
    yield from _pushes_have_words(campaign)
    yield from _nothing_is_idle(campaign)
    yield from _every_language_is_whole(campaign)


def _broken(path: str, found: str, allowed: str) -> BrokenRule:
    return BrokenRule(tuple(path.split(".")), f"found {found}; allowed: {allowed}")


def _created_once(campaign: Campaign) -> Iterator[BrokenRule]:
    if campaign.send.kind in ("recurring", "triggered") and campaign.schedule is not None:
        found = f"{campaign.schedule!r} with send.kind: {campaign.send.kind}"
        yield _broken("schedule", found, "no schedule: trigger the DAG once, the service repeats it")


def _template_brings_its_content(campaign: Campaign) -> Iterator[BrokenRule]:
    for name in ("message", "language", "push_expiry"):
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
    if codes and campaign.channels.own_words(Channel.WEB_PUSH):
        allowed = "the words of message, because those of web_push alone cannot be translated"
        yield _broken("channels.web_push", "words of its own in a campaign with translations", allowed)


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
