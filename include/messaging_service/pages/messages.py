"""The page of one message: how it looks on its device, and its outcome."""

from __future__ import annotations

import re
from datetime import UTC, datetime
from typing import Any
from urllib.parse import urlsplit
from zoneinfo import ZoneInfo

from fastapi import APIRouter, HTTPException, Request, Response
from sqlalchemy import Connection, Row, func, select, tuple_

from messaging_service.api.external import ServiceDep
from messaging_service.campaigns.content import ANDROID_PUSH, EMAIL, INBOX, IOS_PUSH, SMS, WEB_PUSH, WEBHOOK
from messaging_service.campaigns.rendering import Rendered, RenderedMessage, rendered
from messaging_service.pages.campaigns import state_at
from messaging_service.pages.layout import ALL_PICTURES, OWN_PICTURES, PageRoute, document, page
from messaging_service.store import Store, find
from messaging_service.tables import apps, campaigns, devices, post_backs, sends, webhook_calls

router = APIRouter(route_class=PageRoute)

# Markup from a message may have any style, but must not do anything. The sandbox also applies outside our frame.
_FOREIGN = (
    "sandbox; default-src 'none'; style-src 'unsafe-inline'; img-src {pictures}; font-src data:; "
    "form-action 'none'; base-uri 'none'; frame-ancestors 'self'"
)
# Clicked links would open a new window, which the sandbox forbids, so they cannot replace the message.
_LINKS_GO_NOWHERE = '<base target="_blank">'
_HAS_PICTURES = re.compile(r"<img|background|url\(", re.IGNORECASE)
_PREVIEWS = {
    ANDROID_PUSH: "android",
    IOS_PUSH: "ios",
    WEB_PUSH: "browser",
    INBOX: "inbox",
    EMAIL: "email",
    SMS: "sms",
    WEBHOOK: "webhook",
}


@router.get("/messages/{send_id:int}/email")
def show_email(request: Request, service: ServiceDep, send_id: int) -> Response:
    """Show the HTML of an email."""
    sent = _rendered(service.store, send_id)
    return _foreign(request, sent.message.html if sent.message else None)


@router.get("/messages/{send_id:int}/page")
def show_page(request: Request, service: ServiceDep, send_id: int) -> Response:
    """Show the page that opens with a message."""
    sent = _rendered(service.store, send_id)
    return _foreign(request, sent.message.page if sent.message else None)


@router.get("/messages/{send_id:int}")
def show_message(request: Request, service: ServiceDep, send_id: int) -> Response:
    """Show a message as its device shows it, and its outcome."""
    sent = _rendered(service.store, send_id)
    with service.store.read() as connection:
        facts = _facts(connection, send_id, service.clock.time())
        around = {name: _neighbour(connection, facts, name == "next") for name in ("previous", "next")}
        posted = connection.execute(
            select(post_backs).where(post_backs.c.send_id == send_id).order_by(post_backs.c.id)
        ).all()
        calls = connection.execute(select(webhook_calls).where(webhook_calls.c.send_id == send_id)).all()
    loading = _is_loading(request)
    return page(
        request,
        "message.html",
        pictures=ALL_PICTURES if loading else OWN_PICTURES,
        sent=sent,
        message=sent.message,
        facts=facts,
        preview=_PREVIEWS.get(sent.message_type or 0) if sent.message else None,
        at=_local(sent.delivered_at or sent.sent_at, facts.time_zone),
        host=_host(sent.message),
        has_pictures=_has_pictures(sent.message),
        loading=loading,
        around=around,
        posted=posted,
        calls=calls,
    )


def _rendered(store: Store, send_id: int) -> Rendered:
    with store.read() as connection:
        send = find(connection, sends, send_id)
    if send is None:
        raise HTTPException(404, "There is no such message.")
    found = rendered(store, send.campaign_id, send.device_id)
    return next(one for one in found if one.send_id == send_id)


def _facts(connection: Connection, send_id: int, now: float) -> Row[tuple[Any, ...]]:
    """Return a send with its state and the details of its device, campaign and app."""
    known = ("profile_id", "user_id", "language", "time_zone", "email", "mobile_number")
    return connection.execute(
        select(
            sends,
            state_at(now).label("state"),
            *devices.c[known],
            campaigns.c.title,
            func.coalesce(apps.c.name, "Your app").label("app"),
        )
        .select_from(
            sends.join(campaigns, campaigns.c.id == sends.c.campaign_id)
            .outerjoin(apps, apps.c.id == campaigns.c.app_id)
            .outerjoin(devices, devices.c.device_id == sends.c.device_id)
        )
        .where(sends.c.id == send_id)
    ).one()


def _neighbour(connection: Connection, facts: Row[tuple[Any, ...]], after: bool) -> int | None:
    place, here = tuple_(sends.c.device_id, sends.c.id), (facts.device_id, facts.id)
    order = (sends.c.device_id, sends.c.id) if after else (sends.c.device_id.desc(), sends.c.id.desc())
    return connection.execute(
        select(sends.c.id)
        .where(sends.c.campaign_id == facts.campaign_id, place > here if after else place < here)
        .order_by(*order)
        .limit(1)
    ).scalar_one_or_none()


def _foreign(request: Request, markup: str | None) -> Response:
    if markup is None:
        raise HTTPException(404, "This message has no HTML.")
    pictures = "data: http: https:" if _is_loading(request) else "data:"
    return document(markup + _LINKS_GO_NOWHERE, _FOREIGN.format(pictures=pictures))


def _is_loading(request: Request) -> bool:
    return request.query_params.get("pictures") == "load"


def _has_pictures(message: RenderedMessage | None) -> bool:
    if message is None:
        return False
    markup = f"{message.html or ''}{message.page or ''}"
    return bool(message.picture or message.icon or _HAS_PICTURES.search(markup))


def _host(message: RenderedMessage | None) -> str:
    try:
        return urlsplit(message.url or "").hostname or "" if message else ""
    except ValueError:
        return ""


def _local(moment: datetime, time_zone: str | None) -> dict[str, str]:
    """Return a time as the device displays it."""
    at = moment.astimezone(ZoneInfo(time_zone) if time_zone else UTC)
    return {
        "time": f"{at:%H:%M}",
        "day": f"{at:%A}, {at.day} {at:%B}",
        "date": f"{at.day} {at:%b %Y}, {at:%H:%M}",
    }
