"""Writing a campaign's content: channel flags, and the content of each message type (sections 2.3 to 2.8)."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import chain

from sendoff.campaign import PUSH_LIKE, Campaign, Channel, Channels, Email, Message, Translation, Webhook
from sendoff.service.wire.names import FieldNames, Members, to_object

_SHORT_ENTRIES = (
    Channel.WEB_PUSH,
    Channel.INBOX,
)  # only these entries have their fields listed (section 2.4)


def channel_flags(campaign: Campaign, names: FieldNames) -> Members:
    """Yield the flag of each channel and browser, and the campaign's encryption (section 2.3)."""
    channels = campaign.channels
    for channel in channels.used():
        yield channel.value, 1
    if channels.ios_push and channels.ios_push.sandbox:
        yield "ios_push_sandbox", 1
    for browser in channels.web_push.browsers if channels.web_push else ():
        flag = f"web_push_{browser}"
        yield names[flag] if browser in ("opera", "safari") else flag, 1
    yield "encryption", campaign.encryption


def content(campaign: Campaign, names: FieldNames) -> Members:
    """Yield the content shared by push-like channels, and that of single channels under ``messages`` (section 2.4)."""
    if PUSH_LIKE.intersection(campaign.channels.used()):
        yield from _message(campaign.message or Message(), campaign.language, names)
    yield (
        "messages",
        to_object(chain(_own_words(campaign, names), _own_kinds(campaign.channels, names))) or None,
    )


def _own_words(campaign: Campaign, names: FieldNames) -> Members:
    keys = {
        Channel.IOS_PUSH: names["message_ios_push"],
        Channel.ANDROID_PUSH: names["message_android_push"],
        Channel.WEB_PUSH: "3",
        Channel.INBOX: "6",
    }
    for channel, key in keys.items():
        own, words = campaign.channels.own_words(channel), campaign.message_for(channel)
        if channel in _SHORT_ENTRIES:
            words = Message(
                title=words.title, text=words.text, url=words.url, translations=words.translations
            )
        inbox = campaign.channels.inbox if channel is Channel.INBOX else None
        style = inbox.style if inbox else None
        if own or style:
            yield key, to_object(chain(_message(words, campaign.language, names), [("inbox_type", style)]))


def _own_kinds(channels: Channels, names: FieldNames) -> Members:
    if channels.email:
        yield "7", to_object(_email(channels.email))
    if channels.webhook:
        yield "8", {"webhook": to_object(_webhook(channels.webhook, names))}
    if channels.sms:
        yield "9", {"sms": {"from": channels.sms.sender, "text": channels.sms.text}}


def _message(message: Message, language: str | None, names: FieldNames) -> Members:
    yield "push_title", message.title
    yield "push_text", message.text
    yield "url", message.url
    yield names["url_browser"], None if message.open_in is None else int(message.open_in == "browser")
    yield names["page"], message.page
    yield "push_picture_type", "url" if message.picture else None
    yield "push_picture", message.picture
    yield names["push_icon"], message.icon
    yield "payload_add", _pairs(message.payload)
    if message.translations and language:
        yield from _translations(message, language)


def _translations(message: Message, language: str) -> Members:
    """Yield the texts by language (section 2.5), with the campaign's own texts as the fallback."""
    texts: dict[str, Message | Translation] = {language: message, **message.translations}
    yield "languages_multi", 1
    yield "languages_list", list(texts)
    yield "languages_default", language
    yield "push_text_languages", {code: words.text for code, words in texts.items()}
    if message.title:
        yield "push_title_languages", {code: words.title for code, words in texts.items()}
    if any(words.url for words in message.translations.values()):
        yield "url_languages", {code: words.url or message.url for code, words in texts.items()}


def _email(email: Email) -> Members:
    yield "email_address_id", email.from_address
    yield "email_subject", email.subject
    yield "email_html", email.html
    yield "email_text", email.text
    yield "email_unsubscribe", int(email.unsubscribe_header)
    # The document says that one of these marks content sent by API and "the other is simply set to 1"; its example has
    # 1 in both.
    yield "email_type", 1
    yield "email_template", 1


def _webhook(webhook: Webhook, names: FieldNames) -> Members:
    yield "url", webhook.address
    yield "get_params", _pairs(webhook.query)
    if body := webhook.body:
        types = {"raw": "raw", "form": names["webhook_body_form"], "json": names["webhook_body_json"]}
        members = {"raw": "raw", "form": "post", "json": "json"}
        yield "request_body_type", types[body.kind]
        yield "request_body_data", {members[body.kind]: body.content}
    headers = "\n".join(f"{name}: {value}" for name, value in webhook.headers.items())
    yield "request_headers", headers or None


def _pairs(values: Mapping[str, str]) -> list[dict[str, str]] | None:
    return [{"key": key, "value": value} for key, value in values.items()] or None
