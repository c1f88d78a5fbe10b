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
    """Return what a campaign might do better, each as the path in its file, a colon and a sentence; never its words.

    ``columns``: those of its query, where they are known. Lengths are counted without tags, and what stands for a tag
    makes a text longer.
    """
    lines = [*_on_content(campaign), *_on_reports(campaign, columns), *_on_tags(campaign, columns or ())]
    for name in campaign.variants:
        of_variant = _on_content(campaign.as_variant(name))
        lines += [f"variants.{name}: {line}" for line in of_variant if line not in lines]
    return lines


def _on_content(campaign: Campaign) -> Iterator[str]:
    yield from _long_pushes(campaign)
    for channel in filter(SHOWN.__contains__, campaign.channels.used()):
        if (size := _bytes(campaign.message_for(channel))) > PUSH_BYTES:
            found = f"{size} bytes of words, addresses and payload"
            yield f"channels.{channel}: {found}; no push takes more than {PUSH_BYTES}"
    for path, subject in _texts(campaign.channels.email, "subject"):
        if _length(subject) > SUBJECT:
            allowed = f"a mailbox shows about {SUBJECT}, on a phone half of it"
            yield f"channels.email{path}: {_characters(subject)}; {allowed}"
    for path, text in _texts(campaign.channels.sms, "text"):
        parts, why = sms_parts(text)
        if parts > 1:
            yield f"channels.sms{path}: {_characters(text)}: {parts} parts, each charged; {why}"
    yield from _idle_pictures(campaign)


def _texts(content: Any, part: str) -> Iterator[tuple[str, str]]:
    """Yield a part of a content, and its translations, each with its path inside of the content."""
    if text := getattr(content, part, None):
        yield f".{part}", text
    for code, translation in getattr(content, "translations", {}).items():
        if text := getattr(translation, part):
            yield f".translations.{code}.{part}", text


def _long_pushes(campaign: Campaign) -> Iterator[str]:
    """Yield each title and text that a channel cuts off, once for all channels that share it."""
    limits: dict[str, tuple[str, list[str]]] = {}
    for channel in campaign.channels.used():
        own = campaign.channels.own_words(channel)
        for part, most in SHOWN.get(channel, {}).items():
            for path, text in _texts(campaign.message_for(channel), part):
                if _length(text) > most:
                    place = f"channels.{channel}" if path.split(".")[1] in own else "message"
                    limits.setdefault(place + path, (text, []))[1].append(f"{channel} shows about {most}")
    for path, (text, limit) in limits.items():
        yield f"{path}: {_characters(text)}; {', '.join(limit)}"


def _bytes(message: Message) -> int:
    texts = (message.title, message.text, message.url, message.picture, message.icon)
    pairs = (text for pair in message.payload.items() for text in pair)
    return sum(len(text.encode()) for text in (*texts, *pairs) if text)


def sms_parts(text: str) -> tuple[int, str]:
    """Return in how many parts a text message is sent, tags left out, and what one part holds."""
    plain = _TAG.sub("", text)
    strange = set(plain) - _GSM - _GSM_TWICE
    if strange:
        size, one, each_of_many = len(plain.encode("utf-16-le")) // 2, 70, 67
        why = f"one part holds 70, because of characters outside the GSM alphabet ({len(strange)} different)"
    else:
        size, one, each_of_many = len(plain) + sum(map(plain.count, _GSM_TWICE)), 160, 153
        why = "one part holds 160"
    return (1 if size <= one else -(-size // each_of_many)), why


def _idle_pictures(campaign: Campaign) -> Iterator[str]:
    channels = campaign.channels
    web, inbox = channels.web_push, channels.inbox
    if not campaign.message or not campaign.message.picture:
        return
    if web and _PICTURELESS.issuperset(web.browsers):
        yield f"channels.web_push.browsers: no picture in {' and '.join(web.browsers)}, which show none"
    elif web and channels.own_words(Channel.WEB_PUSH):
        yield "channels.web_push: no picture, because the service takes none beside words of its own"
    if inbox and (channels.own_words(Channel.INBOX) or inbox.style):
        yield "channels.inbox: no picture, because the service takes none beside words or a style of its own"


def _on_reports(campaign: Campaign, columns: Collection[str] | None) -> Iterator[str]:
    """Yield what the report, and a gate that reads it, cannot say."""
    kinds, is_unreported = campaign.post_backs.kinds, _UNREPORTED.issuperset(campaign.channels_used())
    if "delivery" not in kinds and not is_unreported:
        yield "post_backs.kinds: without delivery nobody can be told missing from the silent"
    if "open" not in kinds:
        yield "post_backs.kinds: without open nobody is known to have opened or clicked"
    rollout = campaign.gates.rollout
    if rollout and rollout.missing is not None and ("delivery" not in kinds or is_unreported):
        yield "gates.rollout.missing: nobody of this campaign can be told missing, so it never stops anything"
    mixed = _reports_some(campaign)
    if columns is not None and "platform" not in columns and campaign.targeting.kind == "query" and mixed:
        yield f"audience.sql: no column platform; of {mixed} no deliveries are reported, so nobody can be told missing"


def _on_tags(campaign: Campaign, columns: Collection[str]) -> Iterator[str]:
    """Name each column of the query that somebody may have meant for a tag."""
    names = {column.lower() for column in columns}
    for name in campaign.filled_in():
        if name.lower() in names:
            yield (
                f"audience.sql: the column {name} does not fill in {{{{{name}}}}}: the service does, from what it "
                "knows; each person's own values need a template (template.columns)"
            )


def _reports_some(campaign: Campaign) -> str:
    """Name the channels and browsers that report no deliveries, where others do; empty where all are alike."""
    used, web = campaign.channels_used(), campaign.channels.web_push
    browsers = set(web.browsers if web else ())
    silent = [channel.value for channel in used if channel in _UNREPORTED] + sorted(browsers & {"safari"})
    audible = set(used) - _UNREPORTED - {Channel.WEB_PUSH} or browsers - {"safari"}
    return " and ".join(silent) if audible else ""


def _length(text: str) -> int:
    return len(_TAG.sub("", text))


def _characters(text: str) -> str:
    counted = f"{_length(text)} characters"
    return f"{counted} beside its tags" if _TAG.search(text) else counted
