"""What is said on each channel (sections 2.4 to 2.8)."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from enum import StrEnum
from typing import Annotated, Any, Literal, Self

from pydantic import Field, SerializerFunctionWrapHandler, model_serializer, model_validator

from sendoff.campaign.field_types import Flag, Int32, Language, Link, Text, Value, WebAddress, problem
from sendoff.campaign.schedule import Keeping
from sendoff.campaign.tags import TAGGED, TAGGED_CODE

TaggedText = Annotated[Text, TAGGED]
TaggedCode = Annotated[str, TAGGED_CODE]
TaggedValue = Annotated[str, TAGGED]
TaggedAddress = Annotated[WebAddress, TAGGED]
TaggedLink = Annotated[Link, TAGGED]


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


class _Content(Value):
    """Words for people; a repr does not show them."""

    def __repr_args__(self) -> Iterator[tuple[str | None, Any]]:
        return iter(())


class Translation(_Content):
    """A push or inbox message in another language; ``url`` where that language leads elsewhere."""

    title: TaggedText | None = Field(
        None, description="Title in that language; required where the message has one"
    )
    text: TaggedText | None = Field(
        None, description="Text in that language; required where the message has one"
    )
    url: TaggedLink | None = Field(
        None, description="Where opening the message leads; default the url of the message"
    )


class Message(_Content):
    """What push, web push and inbox messages say, unless a channel has words of its own.

    Where there are translations, the service gives each person the words of their language, and ``title`` and
    ``text`` themselves, which are in the campaign's ``language``, to everybody else.
    """

    title: TaggedText | None = Field(
        None, description="Title of the message; tags in double braces are personalised"
    )
    text: TaggedText | None = Field(
        None, description="Text of the message; tags in double braces are personalised"
    )
    url: TaggedLink | None = Field(
        None, description="Where opening the message leads: a web address, or a link into the app"
    )
    open_in: Literal["web_view", "browser"] | None = Field(None, description="What shows the address of url")
    page: TaggedText | None = Field(None, description="HTML shown when the message is opened")
    picture: TaggedAddress | None = Field(None, description="Image in the message")
    icon: TaggedAddress | None = Field(None, description="Icon of the message")
    payload: Mapping[str, TaggedCode] = Field(default={}, description="Keys and values for the app")
    translations: Mapping[Language, Translation] = Field(
        default={}, description="The words in other languages"
    )


class AndroidPush(Message):
    """Push to Android devices; what is given here replaces what ``message`` says."""


class IosPush(Message):
    """Push to iOS devices; what is given here replaces what ``message`` says."""

    sandbox: Flag = Field(False, description="Reach the sandbox of Apple instead of real devices")


class WebPush(_Content):
    """Push to browsers; title, text and url replace what ``message`` says, in one language only (section 2.4)."""

    browsers: Annotated[
        tuple[Literal["chrome", "firefox", "opera", "safari"], ...],
        Field(min_length=1, description="The browsers that are pushed to"),
    ]
    title: TaggedText | None = Field(None, description="Title in browsers; default that of message")
    text: TaggedText | None = Field(None, description="Text in browsers; default that of message")
    url: TaggedAddress | None = Field(None, description="Where opening it leads; default the url of message")


class Inbox(_Content):
    """Messages in the app's inbox; title, text, url and translations replace what ``message`` says."""

    title: TaggedText | None = Field(None, description="Title in the inbox; default that of message")
    text: TaggedText | None = Field(None, description="Text in the inbox; default that of message")
    url: TaggedLink | None = Field(None, description="Where opening it leads; default the url of message")
    translations: Mapping[Language, Translation] = Field(
        default={},
        description="The words in other languages; default those of message unless title or text is given here",
    )
    style: Text | None = Field(
        None, description="inbox_type as it stands; the document does not show its values"
    )
    keep: Keeping | None = Field(None, description="When the message leaves the inbox; default never")


class EmailTranslation(_Content):
    """An email in another language."""

    subject: TaggedText = Field(description="Subject in that language")
    html: TaggedText | None = Field(
        None, description="HTML in that language; required where the email has one"
    )
    text: TaggedText | None = Field(
        None, description="Plain text in that language; required where the email has one"
    )


class Email(_Content):
    """An email, from a verified address that the service knows by number."""

    from_address: Int32 = Field(description="Id of a verified from address")
    subject: TaggedText = Field(description="Subject; tags in double braces are personalised")
    html: TaggedText | None = Field(None, description="The HTML version; html, text or both must be given")
    text: TaggedText | None = Field(
        None, description="The plain-text version; html, text or both must be given"
    )
    unsubscribe_header: Flag = Field(True, description="Whether to send the unsubscribe header")
    translations: Mapping[Language, EmailTranslation] = Field(
        default={},
        description="The email in other languages, each sent apart to those whose column language names it",
    )

    @model_validator(mode="after")
    def _has_a_body(self) -> Self:
        if self.html is None and self.text is None:
            raise problem("neither html nor text", "one of them, or both")
        return self


class SmsTranslation(_Content):
    """A text message in another language."""

    text: TaggedText = Field(description="Text in that language")


class Sms(_Content):
    """A text message."""

    sender: TaggedText = Field(description="Sender header that names the brand")
    text: TaggedText = Field(description="The message")
    translations: Mapping[Language, SmsTranslation] = Field(
        default={},
        description="The message in other languages, each sent apart to those whose column language names it",
    )


class WebhookBody(_Content):
    """What a webhook message carries."""

    kind: Literal["raw", "form", "json"] = Field(description="How content is sent")
    content: Annotated[Text, TAGGED_CODE] = Field(description="The body")


class Webhook(_Content):
    """A call of an address for each person."""

    address: TaggedAddress = Field(description="The address that the service calls")
    query: Mapping[str, TaggedValue] = Field(
        default={}, description="Parameters that are added to the address"
    )
    headers: Mapping[str, TaggedValue] = Field(default={}, description="Headers of the request")
    body: WebhookBody | None = Field(None, description="Body of the request")


class Channels(Value):
    """The channels that a campaign uses: those that are named, each with what is its own.

    A channel that has nothing of its own is named with nothing after the colon.
    """

    android_push: AndroidPush | None = Field(
        None, description="Push to Android devices; what is given here replaces what message says"
    )
    ios_push: IosPush | None = Field(
        None, description="Push to iOS devices; what is given here replaces what message says"
    )
    web_push: WebPush | None = Field(
        None,
        description="Push to browsers; title, text and url replace those of message, in one language only",
    )
    inbox: Inbox | None = Field(
        None,
        description="Messages in the app's inbox; title, text, url and translations replace those of message",
    )
    email: Email | None = Field(
        None, description="An email, from a verified address that the service knows by number"
    )
    sms: Sms | None = Field(None, description="A text message")
    webhook: Webhook | None = Field(None, description="A call of an address for each person")

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
        """Give the channels that are named."""
        return tuple(channel for channel in Channel if getattr(self, channel) is not None)

    def own_words(self, channel: Channel) -> dict[str, Any]:
        """Give those parts of a message that a push-like channel says for itself, by the names in ``Message``."""
        settings = getattr(self, channel) if channel in PUSH_LIKE else None
        return {name: own for name in Message.model_fields if (own := getattr(settings, name, None))}
