"""The content of each channel (sections 2.4 to 2.8)."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from enum import StrEnum
from typing import Annotated, Any, Literal, Self

from pydantic import (
    AfterValidator,
    Field,
    SerializerFunctionWrapHandler,
    ValidationInfo,
    model_serializer,
    model_validator,
)

from sendoff.campaign.field_types import (
    Flag,
    FrozenModel,
    Int32,
    Language,
    MessageLink,
    Text,
    WebAddress,
    describe,
    optional,
    problem,
)
from sendoff.campaign.schedule import TimeToLive

_HEADER_NAME = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+")  # a token of RFC 9110


class Channel(StrEnum):
    """The channels that reach recipients (section 2.3)."""

    ANDROID_PUSH = "android_push"
    IOS_PUSH = "ios_push"
    WEB_PUSH = "web_push"
    INBOX = "inbox"
    EMAIL = "email"
    SMS = "sms"
    WEBHOOK = "webhook"

    @property
    def label(self) -> str:
        """The channel's name in a sentence, such as ``Android push``."""
        return {"android_push": "Android push", "ios_push": "iOS push", "sms": "SMS"}.get(
            self, self.replace("_", " ")
        )


PUSH_LIKE = frozenset({Channel.ANDROID_PUSH, Channel.IOS_PUSH, Channel.WEB_PUSH, Channel.INBOX})
"""Channels that show a title and a text, and therefore share ``message``."""


class _Content(FrozenModel):
    """Content that recipients see; its repr hides all values."""

    def __repr_args__(self) -> Iterator[tuple[str | None, Any]]:
        return iter(())


class Translation(_Content):
    """A push or inbox message in another language."""

    title: Text | None = optional("Title in this language; required if the message has a title")
    text: Text | None = optional("Text in this language; required if the message has a text")
    url: MessageLink | None = optional("Link that the message opens; by default the url of the message")


class Message(_Content):
    """The content of push, web push and inbox messages, unless a channel overrides it.

    If there are translations, the service sends each recipient the text in their language. All others get ``title``
    and ``text`` themselves, which are in the campaign's ``language``.
    """

    title: Text | None = optional("Title of the message; may contain personalisation tags in double braces")
    text: Text | None = optional("Text of the message; may contain personalisation tags in double braces")
    url: MessageLink | None = optional("Link that the message opens: a web address, or a link into the app")
    open_in: Literal["web_view", "browser"] | None = optional("What opens the url: a web view or a browser")
    page: Text | None = optional("HTML page to show when the message is opened")
    picture: WebAddress | None = optional("Web address of an image to show in the message")
    icon: WebAddress | None = optional("Web address of the message's icon")
    payload: Mapping[str, str] = optional("Keys and values to pass to the app", {})
    translations: Mapping[Language, Translation] = optional("The message in other languages", {})


class AndroidPush(Message):
    """Push to Android devices; fields given here override those of ``message``."""


class IosPush(Message):
    """Push to iOS devices; fields given here override those of ``message``."""

    sandbox: Flag = optional("Whether to send to Apple's sandbox instead of real devices", False)


def _each_once(browsers: tuple[str, ...]) -> tuple[str, ...]:
    if twice := next((name for name in browsers if browsers.count(name) > 1), None):
        raise problem(f"{twice} twice", "each browser once")
    return browsers


class WebPush(_Content):
    """Push to browsers; title, text and url override those of ``message``, in one language only (section 2.4)."""

    browsers: Annotated[
        tuple[Literal["chrome", "firefox", "opera", "safari"], ...],
        Field(min_length=1, description="Browsers to send to"),
        AfterValidator(_each_once),
    ]
    title: Text | None = optional("Title in browsers; by default that of message")
    text: Text | None = optional("Text in browsers; by default that of message")
    url: WebAddress | None = optional("Web address that the message opens; by default the url of message")


class Inbox(_Content):
    """Messages in the app's inbox; title, text, url and translations override those of ``message``."""

    title: Text | None = optional("Title in the inbox; by default that of message")
    text: Text | None = optional("Text in the inbox; by default that of message")
    url: MessageLink | None = optional(
        "Link that the message opens; by default that of message and its translations"
    )
    translations: Mapping[Language, Translation] = optional(
        "The message in other languages; by default those of message, unless you give a title or text here",
        default={},
    )
    style: Text | None = optional(
        "Passed on to the service unchanged, as inbox_type; its documentation does not list the values"
    )
    keep: TimeToLive | None = optional("How long the message stays in the inbox; without limit by default")


class EmailTranslation(_Content):
    """An email in another language."""

    subject: Text = Field(description="Subject in this language")
    html: Text | None = optional("HTML in this language; required if the email has an HTML version")
    text: Text | None = optional(
        "Plain text in this language; required if the email has a plain-text version"
    )


class Email(_Content):
    """An email, sent from a verified address."""

    from_address: Int32 = Field(description="ID of a verified sender address in the service")
    subject: Text = Field(description="Subject; may contain personalisation tags in double braces")
    html: Text | None = optional("HTML version; give html, text or both")
    text: Text | None = optional("Plain-text version; give html, text or both")
    unsubscribe_header: Flag = optional("Whether to send the unsubscribe header", True)
    translations: Mapping[Language, EmailTranslation] = optional(
        "The email in other languages; the query's column language decides which recipients get which",
        default={},
    )

    @model_validator(mode="after")
    def _has_a_body(self) -> Self:
        if self.html is None and self.text is None:
            raise problem("neither html nor text", "one of them, or both")
        return self


class SmsTranslation(_Content):
    """A text message in another language."""

    text: Text = Field(description="Text in this language")


class Sms(_Content):
    """A text message."""

    sender: Text = Field(description="Sender header with the name of your brand")
    text: Text = Field(description="Text of the message; may contain personalisation tags in double braces")
    translations: Mapping[Language, SmsTranslation] = optional(
        "The text in other languages; the query's column language decides which recipients get which",
        default={},
    )


class WebhookBody(_Content):
    """The body of a webhook's request."""

    kind: Literal["raw", "form", "json"] = Field(description="Format of the content")
    content: Text = Field(description="The body itself")


def _header_name(text: str, info: ValidationInfo) -> str:
    name = text.rstrip()
    if not (info.context or _HEADER_NAME.fullmatch(name)):  # a launch may have been frozen with another name
        raise problem(f"the header {describe(text)}", "a name of letters from A to Z, digits and hyphens")
    return name


def _one_line(text: str, info: ValidationInfo) -> str:
    line = text.rstrip()
    if len(line.splitlines()) > 1 and not info.context:
        raise problem("a line break in a header", "one line for each header")
    return line


HeaderName = Annotated[str, AfterValidator(_header_name)]
HeaderValue = Annotated[str, AfterValidator(_one_line)]


class Webhook(_Content):
    """A request to a web address, one for each recipient."""

    address: WebAddress = Field(description="Web address that the service calls")
    query: Mapping[str, str] = optional("Query parameters to add to the address", {})
    headers: Mapping[HeaderName, HeaderValue] = optional("Headers of the request", {})
    body: WebhookBody | None = optional("Body of the request")


class Channels(FrozenModel):
    """The channels of a campaign, each with its own settings.

    A channel without settings has nothing after the colon.
    """

    android_push: AndroidPush | None = optional(
        "Push to Android devices; fields given here override those of message, and a url also those of its translations"
    )
    ios_push: IosPush | None = optional(
        "Push to iOS devices; fields given here override those of message, and a url also those of its translations"
    )
    web_push: WebPush | None = optional(
        "Push to browsers; title, text and url override those of message, in one language only"
    )
    inbox: Inbox | None = optional(
        "Messages in the app's inbox; title, text, url and translations override those of message"
    )
    email: Email | None = optional("An email, sent from a verified address")
    sms: Sms | None = optional("A text message")
    webhook: Webhook | None = optional("A request to a web address, one for each recipient")

    @model_validator(mode="before")
    @classmethod
    def _named_is_used(cls, value: Any) -> Any:
        if isinstance(value, dict):
            return {name: {} if settings is None else settings for name, settings in value.items()}
        return value

    @model_serializer(mode="wrap")
    def _unused_is_unnamed(self, dump: SerializerFunctionWrapHandler) -> dict[str, Any]:
        return {name: settings for name, settings in dump(self).items() if settings is not None}

    def used(self) -> tuple[Channel, ...]:
        """Return the channels that the campaign uses."""
        return tuple([channel for channel in Channel if getattr(self, channel) is not None])

    def items(self) -> list[tuple[str, Any]]:
        """Return the name and settings of each channel that the campaign uses."""
        return [(channel.value, getattr(self, channel)) for channel in self.used()]

    def own_words(self, channel: Channel) -> dict[str, Any]:
        """Return the fields of ``Message`` that a push-like channel overrides."""
        settings = getattr(self, channel) if channel in PUSH_LIKE else None
        own = vars(settings) if settings else {}
        return {name: own[name] for name in Message.model_fields if own.get(name)}
