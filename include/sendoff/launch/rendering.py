"""The words of a campaign as its channels show them, with tags left as they are written: what a person reads first."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from html.parser import HTMLParser
from urllib.parse import urlsplit

from sendoff.campaign import PUSH_LIKE, Campaign, Channel, Edition, Email, Sms, Webhook

_MOST_LINES = 8
_MOST_CHARACTERS = 500


@dataclass(frozen=True, slots=True)
class Rendering:
    """What some people of a launch would see: channel -> part of the message -> its words.

    ``people``: how many; None where the service decides who gets this language, or chooses everybody. ``template``: the
    service's campaign that holds the words, which then are not known here.
    """

    variant: str | None
    language: str | None
    people: int | None
    channels: Mapping[str, Mapping[str, str]] = field(repr=False)
    template: int | None = None


def renderings(
    campaign: Campaign, editions: Mapping[Edition, int], *, period_end: datetime, most: int = 3
) -> list[Rendering]:
    """Give the words of the first few editions that differ in their words (``editions``: people by edition).

    Behind them come the languages between which the service chooses by itself. Two time zones have the same words.
    """
    of_words: dict[tuple[str | None, str | None], int] = {}
    for edition, people in editions.items():
        of_words[edition.variant, edition.language] = (
            of_words.get((edition.variant, edition.language), 0) + people
        )
    found = []
    for (variant, language), people in of_words.items():
        made = campaign.edition(Edition(language, variant), period_end)
        found.append(_rendering(made, variant, made.language, people or None))
    for variant, _ in of_words:
        made = campaign.edition(Edition(variant=variant), period_end)
        found += [
            _rendering(made, variant, language, None) for language in _chosen_by_service(made) if language
        ]
    return found[:most]


def plain_text(html: str) -> str:
    """Give the words of an HTML page, a line for each block."""
    reader = _Words()
    reader.feed(html)
    reader.close()
    lines = (" ".join(line.split()) for line in "".join(reader.words).split("\n"))
    return "\n".join(line for line in lines if line)


def _chosen_by_service(campaign: Campaign) -> Iterator[str]:
    if campaign.languages_apart():
        return
    yield from (language for language in campaign.languages() if language != campaign.language)


def _rendering(made: Campaign, variant: str | None, language: str | None, people: int | None) -> Rendering:
    shown = {} if made.template else {str(each): _words(made, each, language) for each in made.used()}
    return Rendering(variant, language, people, shown, made.template.id if made.template else None)


def _words(campaign: Campaign, channel: Channel, language: str | None) -> dict[str, str]:
    if channel in PUSH_LIKE:
        parts = _push(campaign, channel, language)
    elif channel is Channel.EMAIL and campaign.channels.email:
        parts = _email(campaign.channels.email)
    elif channel is Channel.SMS and campaign.channels.sms:
        parts = _sms(campaign.channels.sms)
    else:
        parts = _webhook(campaign.channels.webhook)
    return {name: _beginning(words) for name, words in parts if words}


def _push(campaign: Campaign, channel: Channel, language: str | None) -> Iterator[tuple[str, str | None]]:
    words = campaign.words(channel)
    translated = words.translations.get(language) if language else None
    for part in ("title", "text", "url"):
        yield part, (getattr(translated, part) if translated else None) or getattr(words, part)
    if channel in (Channel.ANDROID_PUSH, Channel.IOS_PUSH):
        yield "picture", words.picture


def _email(email: Email) -> Iterator[tuple[str, str | None]]:
    yield "subject", email.subject
    yield "html", plain_text(email.html) if email.html else None
    yield "text", email.text


def _sms(sms: Sms) -> Iterator[tuple[str, str | None]]:
    yield "sender", sms.sender
    yield "text", sms.text


def _webhook(webhook: Webhook | None) -> Iterator[tuple[str, str | None]]:
    """Give a call without what may be a secret: headers, and the address beyond its host."""
    if webhook:
        yield "host", urlsplit(webhook.address).hostname
        yield "body", webhook.body.content if webhook.body else None


def _beginning(words: str) -> str:
    lines = words.strip().splitlines()
    shown = "\n".join(lines[:_MOST_LINES])
    whole = len(lines) <= _MOST_LINES and len(shown) <= _MOST_CHARACTERS
    return shown if whole else f"{shown[:_MOST_CHARACTERS].rstrip()} …"


class _Words(HTMLParser):
    """Collects what a page says, without what only a browser reads."""

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
