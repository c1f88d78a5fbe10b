"""The content of a message on one device: in its language, with its tags filled in (sections 2.4 to 2.8)."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from html import escape
from typing import Any
from urllib.parse import quote

import orjson
from sqlalchemy import ColumnElement, Connection, Row, select

from messaging_service.campaigns.content import EMAIL, INBOX, SMS, WEBHOOK, Content, content_of_run, message
from messaging_service.campaigns.targeting import DeviceRow, variables_by_device
from messaging_service.store import Store, find
from messaging_service.tables import devices, runs, sends

NOT_PERSONALIZED = "Not personalized"
_TAG = re.compile(r"\{\{\s*([^{}]*?)\s*\}\}")
# Columns that a tag may name, besides attributes and variables.
_COLUMNS = (
    "device_id",
    "platform",
    "profile_id",
    "user_id",
    "language",
    "time_zone",
    "external_id",
    "email",
    "mobile_number",
)

Variables = Mapping[str, Any]


class NotPersonalizedError(Exception):
    """A tag has no value for this person, who therefore gets no message."""


@dataclass(frozen=True, slots=True)
class RenderedMessage:
    """The content of one message for one device; fields that its type does not have are None.

    ``language`` is set if the content is multi-language. ``text`` is the text of a push, an inbox message or an SMS,
    or the plain text of an email, whose HTML is ``html``. ``page`` is the HTML page that opens with the message.
    ``sender`` is the header of an SMS. ``webhook`` is the object of section 2.7, with its tags filled in.
    """

    language: str | None = None
    title: str | None = field(default=None, repr=False)
    text: str | None = field(default=None, repr=False)
    url: str | None = field(default=None, repr=False)
    opens_in_browser: bool | None = None
    picture: str | None = field(default=None, repr=False)
    icon: str | None = field(default=None, repr=False)
    page: str | None = field(default=None, repr=False)
    payload: tuple[tuple[str, str], ...] = field(default=(), repr=False)
    inbox_type: str | None = None
    subject: str | None = field(default=None, repr=False)
    html: str | None = field(default=None, repr=False)
    email_address_id: int | None = None
    unsubscribe_header: bool = False
    sender: str | None = field(default=None, repr=False)
    webhook: Mapping[str, Any] | None = field(default=None, repr=False)


@dataclass(frozen=True, slots=True)
class Rendered:
    """One send to one device, with its rendered message and its outcome.

    ``message_type`` is a number of section 2.4, or None if no channel of the campaign reaches the device. There is no
    ``message`` in that case, or if ``error`` is NOT_PERSONALIZED. ``delivered_at`` and ``opened_at`` may be ahead of
    the service's clock. ``removed_at`` is when an inbox message leaves the inbox, if it ever does.
    """

    send_id: int
    campaign_id: int
    run_id: int
    device_id: int
    platform: str
    message_type: int | None
    message: RenderedMessage | None
    sent_at: datetime
    delivered_at: datetime | None
    opened_at: datetime | None
    removed_at: datetime | None
    error: str | None


def rendered(store: Store, campaign_id: int, device_id: int) -> list[Rendered]:
    """Return all messages that a campaign sent to a device, oldest first, rendered for the device.

    Rendering depends only on the campaign's stored content, the run's variables, and the device in the directory.
    The messages stay the same until the device is imported again. For unknown ids the list is empty.
    """
    with store.read() as connection:
        return _rendered(connection, sends.c.campaign_id == campaign_id, sends.c.device_id == device_id)


def inbox(store: Store, device_id: int, now: float) -> list[Rendered]:
    """Return the messages in the inbox of a device at ``now``, newest first: delivered and not removed yet."""
    with store.read() as connection:
        lying = _rendered(
            connection,
            sends.c.device_id == device_id,
            sends.c.message_type == INBOX,
            sends.c.delivered_at <= now,
            sends.c.removed_at.is_(None) | (sends.c.removed_at > now),
        )
    return sorted(lying, key=lambda item: (item.delivered_at, item.send_id), reverse=True)


def has_tags(content: Content, message_type: int) -> bool:
    """Check whether a message of this type has personalisation tags."""
    return _TAG.search(orjson.dumps(message(content, message_type)).decode()) is not None


def render(content: Content, message_type: int, device: DeviceRow, variables: Variables) -> RenderedMessage:
    """Render a message of this type for a device. Raise NotPersonalizedError if a tag has no value.

    A tag takes its value from ``variables``, then from the device's attributes, then from its columns.
    """
    entry = message(content, message_type)
    fill = _Filler({**_known(device), **variables})
    if message_type == EMAIL:
        return _email(entry, fill)
    if message_type == SMS:
        sms = entry.get("sms", {})
        return RenderedMessage(sender=fill.text(sms.get("from")), text=fill.text(sms.get("text")))
    if message_type == WEBHOOK:
        return RenderedMessage(webhook=_webhook(entry.get("webhook", {}), fill))
    return _push(entry, fill, device.language)


def variables_for(content: Content, device: DeviceRow, own: Mapping[Any, Variables]) -> Variables:
    """Return the variables of a run for a device: the common variables, overridden by the device's ``own``."""
    return {**content.get("params", {}), **own.get(device.device_id, {})}


def _rendered(connection: Connection, *where: ColumnElement[bool]) -> list[Rendered]:
    rows = connection.execute(select(sends).where(*where).order_by(sends.c.id)).all()
    contents: dict[int, Content] = {}
    messages = []
    for row in rows:
        if row.run_id not in contents:
            run = connection.execute(select(runs).where(runs.c.id == row.run_id)).one()
            contents[row.run_id] = content_of_run(connection, run)
        device = find(connection, devices, row.device_id)
        message = _shown(connection, contents[row.run_id], row.message_type, device)
        messages.append(_with_message(row, message))
    return messages


def _shown(
    connection: Connection, content: Content, message_type: int | None, device: DeviceRow | None
) -> RenderedMessage | None:
    if message_type is None or device is None:
        return None
    own = variables_by_device(connection, content, only=device)
    try:
        return render(content, message_type, device, variables_for(content, device, own))
    except NotPersonalizedError:
        return None


def _with_message(row: Row[tuple[Any, ...]], shown: RenderedMessage | None) -> Rendered:
    return Rendered(
        send_id=row.id,
        campaign_id=row.campaign_id,
        run_id=row.run_id,
        device_id=row.device_id,
        platform=row.platform,
        message_type=row.message_type,
        message=shown,
        sent_at=datetime.fromtimestamp(row.sent_at, UTC),
        delivered_at=_moment(row.delivered_at),
        opened_at=_moment(row.opened_at),
        removed_at=_moment(row.removed_at),
        error=row.error,
    )


def _moment(seconds: float | None) -> datetime | None:
    return None if seconds is None else datetime.fromtimestamp(seconds, UTC)


def _known(device: DeviceRow) -> dict[str, Any]:
    columns = {name: getattr(device, name) for name in _COLUMNS}
    return {**columns, **device.attributes}


def _json_text(value: str) -> str:
    return orjson.dumps(value).decode()[1:-1]


def _one_line(value: str) -> str:
    return " ".join(value.split())


def _quoted(value: str) -> str:
    return quote(value, safe="")


@dataclass(frozen=True, slots=True)
class _Filler:
    """Fills tags with values, and escapes each value for its context."""

    values: Variables

    def text(self, template: str | None) -> str | None:
        return self._fill(template, str)

    def url(self, template: str | None) -> str | None:
        return self._fill(template, _quoted)

    def html(self, template: str | None) -> str | None:
        return self._fill(template, escape)

    def json(self, template: str | None) -> str | None:
        return self._fill(template, _json_text)

    def header(self, template: str | None) -> str | None:
        return self._fill(template, _one_line)

    def _fill(self, template: str | None, written: Callable[[str], str]) -> str | None:
        return None if template is None else _TAG.sub(lambda tag: written(self._value(tag[1])), template)

    def _value(self, name: str) -> str:
        value = self.values.get(name)
        if value is None or value == "" or isinstance(value, dict | list):
            raise NotPersonalizedError
        return value if isinstance(value, str) else orjson.dumps(value).decode()


def _email(entry: Mapping[str, Any], fill: _Filler) -> RenderedMessage:
    return RenderedMessage(
        subject=fill.text(entry.get("email_subject")),
        html=fill.html(entry.get("email_html")),
        text=fill.text(entry.get("email_text")),
        email_address_id=entry.get("email_address_id"),
        unsubscribe_header=bool(entry.get("email_unsubscribe")),
    )


def _push(entry: Mapping[str, Any], fill: _Filler, spoken: str | None) -> RenderedMessage:
    language = chosen_language(entry, spoken)
    opens_in_browser = entry.get("url_browser")
    return RenderedMessage(
        language=language,
        title=fill.text(_in_language(entry, "push_title", language)),
        text=fill.text(_in_language(entry, "push_text", language)),
        url=fill.url(_in_language(entry, "url", language)),
        opens_in_browser=None if opens_in_browser is None else bool(opens_in_browser),
        picture=fill.url(entry.get("push_picture")),
        icon=fill.url(entry.get("push_icon")),
        page=fill.html(entry.get("page")),
        payload=tuple(_payload(entry, fill)),
        inbox_type=entry.get("inbox_type"),
    )


def chosen_language(entry: Mapping[str, Any], spoken: str | None) -> str | None:
    """Return the language of a multi-language message for a speaker of ``spoken`` (``en`` or ``en-IE``), or None."""
    if not entry.get("languages_multi"):
        return None
    code = (spoken or "")[:2].lower()
    default: str | None = entry.get("languages_default")
    return code if code in entry.get("languages_list", ()) else default


def _in_language(entry: Mapping[str, Any], name: str, language: str | None) -> str | None:
    plain: str | None = entry.get(name)
    if language is None:
        return plain
    translations = entry.get(f"{name}_languages", {})
    found: str | None = translations.get(language) or translations.get(entry.get("languages_default"))
    return found or plain


def _payload(entry: Mapping[str, Any], fill: _Filler) -> list[tuple[str, str]]:
    return [(str(pair["key"]), fill.text(str(pair["value"])) or "") for pair in entry.get("payload_add", ())]


def _webhook(webhook: Mapping[str, Any], fill: _Filler) -> dict[str, Any]:
    data = webhook.get("request_body_data", {})
    write = {"raw": fill.text, "post": fill.url, "json": fill.json}
    return {
        **webhook,
        "url": fill.url(webhook.get("url")),
        "get_params": [
            {"key": pair["key"], "value": fill.text(str(pair["value"]))}
            for pair in webhook.get("get_params", ())
        ],
        "request_body_data": {kind: write[kind](text) for kind, text in data.items() if kind in write},
        "request_headers": fill.header(webhook.get("request_headers")),
    }
