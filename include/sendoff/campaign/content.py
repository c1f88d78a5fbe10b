"""What is said on each channel (sections 2.4 to 2.8)."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from enum import StrEnum
from typing import Annotated, Any, Literal, Self

from pydantic import Field, SerializerFunctionWrapHandler, model_serializer, model_validator

from sendoff.campaign.field_types import (
    Flag,
    FrozenModel,
    Int32,
    Language,
    Link,
    Text,
    WebAddress,
    optional,
    problem,
)
from sendoff.campaign.schedule import TimeToLive


class Channel(StrEnum):
    """The ways to a person, in words of the field (section 2.3)."""

    ANDROID_PUSH = "android_push"
    IOS_PUSH = "ios_push"
    WEB_PUSH = "web_push"
    INBOX = "inbox"
    EMAIL = "email"
    SMS = "sms"
    WEBHOOK = "webhook"


PUSH_LIKE = frozenset({Channel.ANDROID_PUSH, Channel.IOS_PUSH, Channel.WEB_PUSH, Channel.INBOX})
"""Channels that show a title and a text, and so share ``message``."""


class _Content(FrozenModel):
    """Words for people; a repr does not show them."""

    def __repr_args__(self) -> Iterator[tuple[str | None, Any]]:
        return iter(())


class Translation(_Content):
    """A push or inbox message in another language; ``url`` where that language leads elsewhere."""

    title: Text | None = optional("Title in that language; required where the message has one")
    text: Text | None = optional("Text in that language; required where the message has one")
    url: Link | None = optional("Where opening the message leads; default the url of the message")


class Message(_Content):
    """What push, web push and inbox messages say, unless a channel has words of its own.

    Where there are translations, the service gives each person the words of their language, and ``title`` and
    ``text`` themselves, which are in the campaign's ``language``, to everybody else.
    """

    title: Text | None = optional("Title of the message; tags in double braces are personalised")
    text: Text | None = optional("Text of the message; tags in double braces are personalised")
    url: Link | None = optional("Where opening the message leads: a web address, or a link into the app")
    open_in: Literal["web_view", "browser"] | None = optional("What shows the address of url")
    page: Text | None = optional("HTML shown when the message is opened")
    picture: WebAddress | None = optional("Image in the message")
    icon: WebAddress | None = optional("Icon of the message")
    payload: Mapping[str, str] = optional("Keys and values for the app", {})
    translations: Mapping[Language, Translation] = optional("The words in other languages", {})


class AndroidPush(Message):
    """Push to Android devices; what is given here replaces what ``message`` says."""


class IosPush(Message):
    """Push to iOS devices; what is given here replaces what ``message`` says."""

    sandbox: Flag = optional("Reach the sandbox of Apple instead of real devices", False)


class WebPush(_Content):
    """Push to browsers; title, text and url replace what ``message`` says, in one language only (section 2.4)."""

    browsers: Annotated[
        tuple[Literal["chrome", "firefox", "opera", "safari"], ...],
        Field(min_length=1, description="The browsers that are pushed to"),
    ]
    title: Text | None = optional("Title in browsers; default that of message")
    text: Text | None = optional("Text in browsers; default that of message")
    url: WebAddress | None = optional("Where opening it leads; default the url of message")


class Inbox(_Content):
    """Messages in the app's inbox; title, text, url and translations replace what ``message`` says."""

    title: Text | None = optional("Title in the inbox; default that of message")
    text: Text | None = optional("Text in the inbox; default that of message")
    url: Link | None = optional("Where opening it leads; default the url of message")
    translations: Mapping[Language, Translation] = optional(
        "The words in other languages; default those of message unless title or text is given here",
        default={},
    )
    style: Text | None = optional("inbox_type as it stands; the document does not show its values")
    keep: TimeToLive | None = optional("When the message leaves the inbox; default never")


class EmailTranslation(_Content):
    """An email in another language."""

    subject: Text = Field(description="Subject in that language")
    html: Text | None = optional("HTML in that language; required where the email has one")
    text: Text | None = optional("Plain text in that language; required where the email has one")


class Email(_Content):
    """An email, from a verified address that the service knows by number."""

    from_address: Int32 = Field(description="Id of a verified from address")
    subject: Text = Field(description="Subject; tags in double braces are personalised")
    html: Text | None = optional("The HTML version; html, text or both must be given")
    text: Text | None = optional("The plain-text version; html, text or both must be given")
    unsubscribe_header: Flag = optional("Whether to send the unsubscribe header", True)
    translations: Mapping[Language, EmailTranslation] = optional(
        "The email in other languages, each sent apart to those whose column language names it", default={}
    )

    @model_validator(mode="after")
    def _has_a_body(self) -> Self:
        if self.html is None and self.text is None:
            raise problem("neither html nor text", "one of them, or both")
        return self


class SmsTranslation(_Content):
    """A text message in another language."""

    text: Text = Field(description="Text in that language")


class Sms(_Content):
    """A text message."""

    sender: Text = Field(description="Sender header that names the brand")
    text: Text = Field(description="The message")
    translations: Mapping[Language, SmsTranslation] = optional(
        "The message in other languages, each sent apart to those whose column language names it", default={}
    )


class WebhookBody(_Content):
    """What a webhook message carries."""

    kind: Literal["raw", "form", "json"] = Field(description="How content is sent")
    content: Text = Field(description="The body")


class Webhook(_Content):
    """A call of an address for each person."""

    address: WebAddress = Field(description="The address that the service calls")
    query: Mapping[str, str] = optional("Parameters that are added to the address", {})
    headers: Mapping[str, str] = optional("Headers of the request", {})
    body: WebhookBody | None = optional("Body of the request")


class Channels(FrozenModel):
    """The channels that a campaign uses: those that are named, each with what is its own.

    A channel that has nothing of its own is named with nothing after the colon.
    """

    android_push: AndroidPush | None = optional(
        "Push to Android devices; what is given here replaces what message says"
    )
    ios_push: IosPush | None = optional("Push to iOS devices; what is given here replaces what message says")
    web_push: WebPush | None = optional(
        "Push to browsers; title, text and url replace those of message, in one language only"
    )
    inbox: Inbox | None = optional(
        "Messages in the app's inbox; title, text, url and translations replace those of message"
    )
    email: Email | None = optional("An email, from a verified address that the service knows by number")
    sms: Sms | None = optional("A text message")
    webhook: Webhook | None = optional("A call of an address for each person")

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
        """Return the channels that are named."""
        return tuple(channel for channel in Channel if getattr(self, channel) is not None)

    def items(self) -> list[tuple[str, Any]]:
        """Return the name and the settings of each channel that is named."""
        return [(channel.value, getattr(self, channel)) for channel in self.used()]

    def own_words(self, channel: Channel) -> dict[str, Any]:
        """Return the parts of a message that a push-like channel has of its own, by the names in ``Message``."""
        settings = getattr(self, channel) if channel in PUSH_LIKE else None
        return {name: own for name in Message.model_fields if (own := getattr(settings, name, None))}
