"""The texts of a campaign as its channels show them, with tags left as they are."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from html.parser import HTMLParser
from urllib.parse import urlsplit

from sendoff.campaign import PUSH_LIKE, Campaign, Channel, Variation

# Of one part: a person who approves a message reads all of it, unless it is a long email.
_MOST_LINES = 20
_MOST_CHARACTERS = 2_000
_WITH_PICTURE = (Channel.ANDROID_PUSH, Channel.IOS_PUSH)


@dataclass(frozen=True, slots=True)
class Rendering:
    """The texts that some recipients of a launch would see: channel -> part of the message -> text.

    ``people``: number of recipients; None if the service chooses them, or decides who gets this language.
    ``template``: the service's campaign that contains the texts; they are not known here then.
    """

    variant: str | None
    language: str | None
    people: int | None
    channels: Mapping[str, Mapping[str, str]] = field(repr=False)
    template: int | None = None


def renderings(
    campaign: Campaign, variations: Mapping[Variation, int], *, period_end: datetime, most: int = 3
) -> list[Rendering]:
    """Return the texts of the first ``most`` variations with different texts.

    ``variations``: number of recipients by variation. Languages that the service chooses by itself come last. Time
    zones make no difference.
    """
    sizes: Counter[tuple[str | None, str | None]] = Counter()
    for variation, people in variations.items():
        possible = campaign.possible(variation)
        for each in possible:  # if the winner is not decided, it is not known how many get each
            sizes[each.variant, each.language] += people if len(possible) == 1 else 0
    result = []
    for (variant, language), people in sizes.items():
        varied = campaign.variation(Variation(language, variant), period_end)
        result.append(_rendering(varied, variant, varied.language, people or None))
    for variant, _ in sizes:
        varied = campaign.variation(Variation(variant=variant), period_end)
        others = () if varied.separate_languages() else varied.languages()
        result += [
            _rendering(varied, variant, language, None)
            for language in others
            if language and language != varied.language
        ]
    return result[:most]


def plain_text(html: str) -> str:
    """Return the text of an HTML page, with one line for each block."""
    reader = _Words()
    reader.feed(html)
    reader.close()
    lines = (" ".join(line.split()) for line in "".join(reader.words).split("\n"))
    return "\n".join(line for line in lines if line)


def _rendering(
    campaign: Campaign, variant: str | None, language: str | None, people: int | None
) -> Rendering:
    if campaign.template:
        return Rendering(variant, language, people, {}, campaign.template.id)
    channels = {str(channel): _words(campaign, channel, language) for channel in campaign.channels_used()}
    return Rendering(variant, language, people, channels)


def _words(campaign: Campaign, channel: Channel, language: str | None) -> dict[str, str]:
    channels, parts = campaign.channels, dict[str, str | None]()
    if channel in PUSH_LIKE:
        parts = _push(campaign, channel, language)
    elif channel is Channel.EMAIL and (email := channels.email):
        html = plain_text(email.html) if email.html else None
        parts = {"subject": email.subject, "html": html, "text": email.text}
    elif channel is Channel.SMS and (sms := channels.sms):
        parts = {"sender": sms.sender, "text": sms.text}
    elif webhook := channels.webhook:  # headers, and everything after the host of the address, may be secret
        parts = {
            "host": urlsplit(webhook.address).hostname,
            "body": webhook.body.content if webhook.body else None,
        }
    return {name: _beginning(text) for name, text in parts.items() if text}


def _push(campaign: Campaign, channel: Channel, language: str | None) -> dict[str, str | None]:
    message = campaign.message_for(channel)
    translation = message.translations.get(language) if language else None
    parts = {
        name: (getattr(translation, name) if translation else None) or getattr(message, name)
        for name in ("title", "text", "url")
    }
    return parts | ({"picture": message.picture} if channel in _WITH_PICTURE else {})


def _beginning(words: str) -> str:
    lines = words.strip().splitlines()
    shown = "\n".join(lines[:_MOST_LINES])
    whole = len(lines) <= _MOST_LINES and len(shown) <= _MOST_CHARACTERS
    return shown if whole else f"{shown[:_MOST_CHARACTERS].rstrip()} …"


class _Words(HTMLParser):
    """Collects the visible text of a page."""

    _UNSEEN = frozenset({"head", "script", "style", "title"})
    _IN_LINE = frozenset(
        {"a", "abbr", "b", "code", "em", "font", "i", "q", "s", "small", "span", "strong", "u"}
    )

    def __init__(self) -> None:
        super().__init__(convert_charrefs=True)
        self.words: list[str] = []
        self._unseen: list[str] = []

    def handle_starttag(self, tag: str, attrs: Iterable[tuple[str, str | None]]) -> None:
        if tag in self._UNSEEN:
            self._unseen.append(tag)
        if tag == "img":
            self.words.append(dict(attrs).get("alt") or "")
        elif tag not in self._IN_LINE:
            self.words.append("\n")

    def handle_endtag(self, tag: str) -> None:
        if self._unseen and tag == self._unseen[-1]:
            self._unseen.pop()
        if tag not in self._IN_LINE:
            self.words.append("\n")

    def handle_data(self, data: str) -> None:
        if not self._unseen:
            self.words.append(data.replace("\n", " "))
