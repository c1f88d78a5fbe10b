"""Advice on a campaign: what is allowed, and seldom meant.

The lengths are those that makers of push services publish; no platform promises them, since size and font of a screen
decide. Push: Braze ("Push message and image formats") and Batch ("What is the optimal length for every iOS/Android
push notification?"). Bytes of a push: Apple ("Generating a remote notification"), Firebase ("About FCM messages") and
RFC 8030, section 7.2. Subjects of emails: what Gmail shows on a wide screen. Text messages: 3GPP TS 23.038 and 23.040.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator
from typing import Any

from sendoff.campaign.content import Channel, Message
from sendoff.campaign.model import Campaign

SHOWN = {
    Channel.ANDROID_PUSH: {"title": 65, "text": 240},
    Channel.IOS_PUSH: {"title": 50, "text": 178},
    Channel.WEB_PUSH: {"title": 50, "text": 120},
}
"""About how many characters of a push are shown."""

SUBJECT = 70
"""About how many characters of an email's subject are shown."""

PUSH_BYTES = 4096
"""The most that a push may be, with everything around the words."""

_GSM = frozenset(
    "@£$¥èéùìòÇ\nØø\rÅåΔ_ΦΓΛΩΠΨΣΘΞÆæßÉ !\"#¤%&'()*+,-./0123456789:;<=>?"
    "¡ABCDEFGHIJKLMNOPQRSTUVWXYZÄÖÑÜ§¿abcdefghijklmnopqrstuvwxyzäöñüà"
)
_GSM_TWICE = frozenset("\f^{}\\[~]|€")  # behind an escape, so each counts twice
_TAG = re.compile(r"\{\{(?:(?!\{\{).)*?\}\}", re.DOTALL)  # not past the next: many without an end take long
_PICTURELESS = frozenset({"firefox", "safari"})
_UNREPORTED = frozenset({Channel.ANDROID_PUSH, Channel.IOS_PUSH})


def advice(campaign: Campaign, *, columns: Collection[str] | None = None) -> list[str]:
    """Give what a campaign might do better, each as the path in its file, a colon and a sentence; never its words.

    ``columns``: those of its query, where they are known. Lengths are counted without tags, and what stands for a tag
    makes a text longer.
    """
    found = [*_on_content(campaign), *_on_reports(campaign, columns), *_on_tags(campaign, columns or ())]
    for name in campaign.variants:
        ours = campaign.as_variant(name)
        found += [f"variants.{name}: {line}" for line in _on_content(ours) if line not in found]
    return found


def _on_content(campaign: Campaign) -> Iterator[str]:
    yield from _long_pushes(campaign)
    yield from _large_pushes(campaign)
    yield from _long_subjects(campaign)
    yield from _long_texts(campaign)
    yield from _idle_pictures(campaign)


def _long_pushes(campaign: Campaign) -> Iterator[str]:
    """Give each title and text that a channel cuts off, once for all channels that share it."""
    cut: dict[str, tuple[str, list[str]]] = {}
    for channel in campaign.channels.used():
        for part, most in SHOWN.get(channel, {}).items():
            for path, text in _said(campaign, channel, part):
                if _length(text) > most:
                    cut.setdefault(path, (text, []))[1].append(f"{channel} shows about {most}")
    for path, (text, shown) in cut.items():
        yield f"{path}: {_characters(text)}; {', '.join(shown)}"


def _said(campaign: Campaign, channel: Channel, part: str) -> Iterator[tuple[str, str]]:
    """Give a part of what a channel says, and its translations, each with its path in the file."""
    words, own = campaign.words(channel), campaign.channels.own_words(channel)
    if text := getattr(words, part):
        yield f"{_place(channel, part, own)}.{part}", text
    for code, translation in words.translations.items():
        if text := getattr(translation, part):
            yield f"{_place(channel, 'translations', own)}.translations.{code}.{part}", text


def _place(channel: Channel, part: str, own: dict[str, Any]) -> str:
    return f"channels.{channel}" if part in own else "message"


def _large_pushes(campaign: Campaign) -> Iterator[str]:
    for channel in campaign.channels.used():
        size = _bytes(campaign.words(channel)) if channel in SHOWN else 0
        if size > PUSH_BYTES:
            found = f"{size} bytes of words, addresses and payload"
            yield f"channels.{channel}: {found}; no push takes more than {PUSH_BYTES}"


def _bytes(words: Message) -> int:
    said = (words.title, words.text, words.url, words.picture, words.icon)
    pairs = (text for pair in words.payload.items() for text in pair)
    return sum(len(text.encode()) for text in (*said, *pairs) if text)


def _long_subjects(campaign: Campaign) -> Iterator[str]:
    email = campaign.channels.email
    if email is None:
        return
    translated = {f".translations.{code}": words.subject for code, words in email.translations.items()}
    for path, subject in {"": email.subject, **translated}.items():
        if _length(subject) > SUBJECT:
            found = _characters(subject)
            yield f"channels.email{path}.subject: {found}; a mailbox shows about {SUBJECT}, on a phone half of it"


def _long_texts(campaign: Campaign) -> Iterator[str]:
    sms = campaign.channels.sms
    if sms is None:
        return
    translated = {f".translations.{code}": words.text for code, words in sms.translations.items()}
    for path, text in {"": sms.text, **translated}.items():
        parts, why = sms_parts(text)
        if parts > 1:
            yield f"channels.sms{path}.text: {_characters(text)}: {parts} parts, each charged; {why}"


def sms_parts(text: str) -> tuple[int, str]:
    """Give in how many parts a text message is sent, tags left out, and what one part holds."""
    plain = _TAG.sub("", text)
    strange = {each for each in plain if each not in _GSM and each not in _GSM_TWICE}
    if strange:
        size, one, each_of_many = len(plain.encode("utf-16-le")) // 2, 70, 67
        why = f"one part holds 70, because of characters outside the GSM alphabet ({len(strange)} different)"
    else:
        size, one, each_of_many = len(plain) + sum(map(plain.count, _GSM_TWICE)), 160, 153
        why = "one part holds 160"
    return (1 if size <= one else -(-size // each_of_many)), why


def _idle_pictures(campaign: Campaign) -> Iterator[str]:
    channels = campaign.channels
    shared = bool(campaign.message and campaign.message.picture)
    web, inbox = channels.web_push, channels.inbox
    if shared and web and _PICTURELESS.issuperset(web.browsers):
        yield f"channels.web_push.browsers: no picture in {' and '.join(web.browsers)}, which show none"
    elif shared and web and channels.own_words(Channel.WEB_PUSH):
        yield "channels.web_push: no picture, because the service takes none beside words of its own"
    if shared and inbox and (channels.own_words(Channel.INBOX) or inbox.style):
        yield "channels.inbox: no picture, because the service takes none beside words or a style of its own"


def _on_reports(campaign: Campaign, columns: Collection[str] | None) -> Iterator[str]:
    """Give what the report, and a gate that reads it, cannot say."""
    used, kinds = campaign.used(), campaign.post_backs.kinds
    if "delivery" not in kinds and not _UNREPORTED.issuperset(used):
        yield "post_backs.kinds: without delivery nobody can be told missing from the silent"
    if "open" not in kinds:
        yield "post_backs.kinds: without open nobody is known to have opened or clicked"
    spread = campaign.gates.spread
    if spread and spread.missing is not None and ("delivery" not in kinds or _UNREPORTED.issuperset(used)):
        yield "gates.spread.missing: nobody of this campaign can be told missing, so it never stops anything"
    mixed = _reports_some(campaign)
    if columns is not None and "platform" not in columns and campaign.targeting.kind == "query" and mixed:
        yield f"audience.sql: no column platform; of {mixed} no deliveries are reported, so nobody can be told missing"


def _on_tags(campaign: Campaign, columns: Collection[str]) -> Iterator[str]:
    """Name each column of the query that somebody may have meant for a tag."""
    given = {column.lower() for column in columns}
    for name in campaign.filled_in():
        if name.lower() in given:
            yield (
                f"audience.sql: the column {name} does not fill in {{{{{name}}}}}: the service does, from what it "
                "knows; each person's own values need a template (template.columns)"
            )


def _reports_some(campaign: Campaign) -> str:
    """Name the channels and browsers that report no deliveries, where others do; empty where all are alike."""
    silent = [channel.value for channel in campaign.used() if channel in _UNREPORTED]
    web = campaign.channels.web_push
    browsers = web.browsers if web else ()
    silent += [browser for browser in browsers if browser == "safari"]
    audible = set(campaign.used()) - _UNREPORTED - {Channel.WEB_PUSH} or set(browsers) - {"safari"}
    return " and ".join(silent) if audible else ""


def _length(text: str) -> int:
    return len(_TAG.sub("", text))


def _characters(text: str) -> str:
    counted = f"{_length(text)} characters"
    return f"{counted} beside its tags" if _TAG.search(text) else counted
