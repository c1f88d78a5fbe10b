"""Advice on a campaign: settings that are allowed but seldom intended.

The lengths come from vendors of push services. No platform guarantees them, because they depend on the size and font of
the screen. Push: Braze ("Push message and image formats") and Batch ("What is the optimal length for every iOS/Android
push notification?"). Bytes of a push: Apple ("Generating a remote notification"), Firebase ("About FCM messages") and
RFC 8030, section 7.2. Subjects of emails: Gmail on a wide screen. Text messages: 3GPP TS 23.038 and 23.040.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator
from datetime import UTC, datetime
from typing import Any
from zoneinfo import ZoneInfo

from sendoff.campaign.content import Channel, Message
from sendoff.campaign.field_types import OWN_ZONE, QUERY_ZONE, moment
from sendoff.campaign.model import Campaign
from sendoff.campaign.runs import last_period
from sendoff.campaign.schedule import Once, Recurring, Triggered, day_of

SHOWN = {
    Channel.ANDROID_PUSH: {"title": 65, "text": 240},
    Channel.IOS_PUSH: {"title": 50, "text": 178},
    Channel.WEB_PUSH: {"title": 50, "text": 120},
}
"""Roughly how many characters of a push message are visible."""

SUBJECT = 70
"""Roughly how many characters of an email's subject are visible."""

PUSH_BYTES = 4096
"""Maximum size of a push message, including everything around the texts."""

OPT_OUT_TAG = "unsubscribe_url"
"""The tag that people expect to be the recipient's own address to opt out."""

_GSM = frozenset(
    "@£$¥èéùìòÇ\nØø\rÅåΔ_ΦΓΛΩΠΨΣΘΞÆæßÉ !\"#¤%&'()*+,-./0123456789:;<=>?"
    "¡ABCDEFGHIJKLMNOPQRSTUVWXYZÄÖÑÜ§¿abcdefghijklmnopqrstuvwxyzäöñüà"
)
_GSM_TWICE = frozenset("\f^{}\\[~]|€")  # encoded with an escape character, so each counts twice
# Stops at the next tag: many unclosed ones would be slow.
_TAG = re.compile(r"\{\{(?:(?!\{\{).)*?\}\}", re.DOTALL)
_PICTURELESS = frozenset({"firefox", "safari"})
_UNREPORTED = frozenset({Channel.ANDROID_PUSH, Channel.IOS_PUSH})


def advice(
    campaign: Campaign, *, columns: Collection[str] | None = None, is_frozen: bool = False
) -> list[str]:
    """Return suggestions, each as a path in the file, a colon and a sentence; never any text of the campaign.

    ``campaign``: as written, or as a launch froze it (``is_frozen``). A frozen campaign is sent once, so advice on its
    schedule does not apply. ``columns``: the columns of the audience, if they are known. Lengths do not count tags, so
    the text that recipients see may be longer.
    """
    lines = [
        *_on_content(campaign),
        *_on_repetition(campaign),
        *(() if is_frozen else _on_time(campaign)),
        *_on_reports(campaign, columns),
        *_on_tags(campaign, columns or ()),
    ]
    for name in campaign.variants:
        of_variant = _on_content(campaign.as_variant(name))
        lines += [f"variants.{name}: {line}" for line in of_variant if line not in lines]
    return lines


def _on_content(campaign: Campaign) -> Iterator[str]:
    yield from _long_pushes(campaign)
    for channel in filter(SHOWN.__contains__, campaign.channels.used()):
        if (size := _bytes(campaign.message_for(channel))) > PUSH_BYTES:
            found = f"{size:,} bytes of texts, addresses and payload"
            yield f"channels.{channel}: {found}; a push message can have at most {PUSH_BYTES:,}"
    for path, subject in _texts(campaign.channels.email, "subject"):
        if _length(subject) > SUBJECT:
            allowed = f"mail programs show about {SUBJECT}, on a phone about half"
            yield f"channels.email{path}: {_characters(subject)}; {allowed}"
    for path, text in _texts(campaign.channels.sms, "text"):
        parts, why = sms_parts(text)
        if parts > 1:
            yield f"channels.sms{path}: {_characters(text)}, sent and charged as {parts} messages; {why}"
    yield from _idle_pictures(campaign)


def _texts(content: Any, part: str) -> Iterator[tuple[str, str]]:
    """Yield one field of a content and of its translations, each with its path inside the content."""
    if text := getattr(content, part, None):
        yield f".{part}", text
    for code, translation in getattr(content, "translations", {}).items():
        if text := getattr(translation, part):
            yield f".translations.{code}.{part}", text


def _long_pushes(campaign: Campaign) -> Iterator[str]:
    """Yield a line for each title and text that is too long, once for all channels that share it."""
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
    """Return the number of parts of a text message, without its tags, and a note on the size of one part."""
    plain = _TAG.sub("", text)
    strange = set(plain) - _GSM - _GSM_TWICE
    if strange:
        size, one, each_of_many = len(plain.encode("utf-16-le")) // 2, 70, 67
        why = f"one holds 70 characters, because some are not in the GSM alphabet ({len(strange)} different)"
    else:
        size, one, each_of_many = len(plain) + sum(map(plain.count, _GSM_TWICE)), 160, 153
        why = "one holds 160 characters"
    return (1 if size <= one else -(-size // each_of_many)), why


def _idle_pictures(campaign: Campaign) -> Iterator[str]:
    channels = campaign.channels
    web, inbox = channels.web_push, channels.inbox
    if not campaign.message or not campaign.message.picture:
        return
    if web and _PICTURELESS.issuperset(web.browsers):
        yield f"channels.web_push.browsers: {' and '.join(web.browsers)} will not show the picture"
    elif web and channels.own_words(Channel.WEB_PUSH):
        yield "channels.web_push: no picture, because the service accepts none if web_push has texts of its own"
    if inbox and (channels.own_words(Channel.INBOX) or inbox.style):
        yield "channels.inbox: no picture, because the service accepts none if inbox has its own texts or style"


def _on_repetition(campaign: Campaign) -> Iterator[str]:
    send = campaign.send
    if isinstance(send, Recurring) or (isinstance(send, Triggered) and send.trigger.kind != "api"):
        yield (
            "send.kind: the service repeats the messages by itself, so opt-outs after the launch do not stop them. To "
            "stop messages to people who opted out, stop the campaign in the service"
        )


def _on_time(campaign: Campaign) -> Iterator[str]:
    """Yield a line if each run sends on the same date, or if periods end too late to send on their day."""
    send = campaign.send
    if isinstance(send, Once) and send.date and (campaign.schedule or campaign.after):
        yield (
            "send.date: each run before this date sends the message once more on it. To send it once, leave out "
            "schedule and after, and trigger the DAG"
        )
    seasons = (datetime(2026, 1, 28, tzinfo=UTC), datetime(2026, 7, 28, tzinfo=UTC))
    if not (isinstance(send, Once) and send.date is None and send.time_zone not in (OWN_ZONE, QUERY_ZONE)):
        return
    always = campaign.replace(start=None)
    ends = [period.end for day in seasons if (period := last_period(always, day)) is not None]
    late = [end for end in ends if moment(day_of(end, send.time_zone), send.time, send.time_zone) <= end]
    if late:
        yield (
            f"send.time: a period ends at {late[0].astimezone(ZoneInfo(send.time_zone)):%H:%M} in {send.time_zone}, so "
            "its messages would be too late. Use a later time, or an earlier schedule"
        )


def _on_reports(campaign: Campaign, columns: Collection[str] | None) -> Iterator[str]:
    """Yield a line for each thing that the report, or a gate that uses it, cannot find out."""
    kinds, is_unreported = campaign.post_backs.kinds, _UNREPORTED.issuperset(campaign.channels_used())
    if "delivery" not in kinds and not is_unreported:
        yield "post_backs.kinds: without delivery, the report cannot show which people are missing"
    if "open" not in kinds:
        yield "post_backs.kinds: without open, the report cannot show who opened or clicked"
    rollout = campaign.gates.rollout
    if rollout and rollout.missing is not None and ("delivery" not in kinds or is_unreported):
        yield "gates.rollout.missing: no delivery of this campaign is reported, so this gate never stops a launch"
    mixed = _reports_some(campaign)
    limits = campaign.gates.hold_above
    if limits and campaign.targeting.kind != "query":
        yield "gates.hold_above: the service chooses the recipients, so this gate cannot count them and never holds"
    elif limits and limits.missing is not None:
        if "delivery" not in kinds or is_unreported:
            yield "gates.hold_above.missing: no delivery of this campaign is reported, so this limit never holds it"
        elif campaign.send.kind not in ("now", "once"):
            why = "the service repeats its messages, so a delivery may always come later"
            yield f"gates.hold_above.missing: this limit never holds the campaign: {why}"
    if columns is not None and "platform" not in columns and campaign.targeting.kind == "query" and mixed:
        yield (
            f"audience: no column platform; no deliveries are reported for {mixed}, so without this column the "
            "report cannot show which people are missing"
        )


def _on_tags(campaign: Campaign, columns: Collection[str]) -> Iterator[str]:
    """Yield a line for each tag and for each column of the query that do not do what their author may have meant."""
    if OPT_OUT_TAG in campaign.filled_in():
        yield (
            f"channels: {{{{{OPT_OUT_TAG}}}}} gets an address only where this campaign is executed as a template with "
            "template.unsubscribe_url. For other emails, use channels.email.unsubscribe_header, or a link to a page of "
            "yours"
        )
    names = {column.lower() for column in columns}
    for name in campaign.filled_in() if names else ():
        if name.lower() in names:
            yield (
                f"audience: the column {name} does not fill in {{{{{name}}}}}; the service does, from its own "
                "data. To use values from the audience, you need a template (template.columns)"
            )


def _reports_some(campaign: Campaign) -> str:
    """Name the channels and browsers without delivery reports if others have them; empty if all are alike."""
    used, web = campaign.channels_used(), campaign.channels.web_push
    browsers = set(web.browsers if web else ())
    silent = [channel.value for channel in used if channel in _UNREPORTED] + sorted(browsers & {"safari"})
    audible = set(used) - _UNREPORTED - {Channel.WEB_PUSH} or browsers - {"safari"}
    return " and ".join(silent) if audible else ""


def _length(text: str) -> int:
    return len(_TAG.sub("", text))


def _characters(text: str) -> str:
    counted = f"{_length(text)} characters"
    return f"{counted} without its tags" if _TAG.search(text) else counted
