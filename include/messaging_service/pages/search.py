"""Search for campaigns and devices by id, user or title, and the page of a device."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from fastapi import APIRouter, HTTPException, Request, Response
from sqlalchemy import Connection, Row, or_, select

from messaging_service.api.external import ServiceDep
from messaging_service.pages.campaigns import described, lines
from messaging_service.pages.launches import launches
from messaging_service.pages.layout import PageRoute, Slice, page, page_of
from messaging_service.store import count_rows, find
from messaging_service.tables import campaigns, devices, sends

router = APIRouter(route_class=PageRoute)

_LAUNCHES_SHOWN = 25
_DEVICES_SHOWN = 50
_MESSAGES_AT_ONCE = 50
_Found = Sequence[Row[tuple[Any, ...]]]


@router.get("/search")
def search(request: Request, service: ServiceDep) -> Response:
    """Show the launches, campaigns and devices that match, and the messages to these devices."""
    asked = request.query_params.get("q", "").replace("\0", "").strip()[:200]
    now = service.clock.time()
    part = page_of(request, _MESSAGES_AT_ONCE)
    with service.store.read() as connection:
        titled = campaigns.c.title.icontains(asked, autoescape=True)
        found = launches(connection, Slice(1, _LAUNCHES_SHOWN), now, titled)[0] if asked else []
        numbered = described(connection, _campaign(connection, asked), now)
        its_devices = _devices(connection, asked) if asked else []
        mine = sends.c.device_id.in_([row.device_id for row in its_devices])
        rows = part.rows(connection, lines(now).where(mine).order_by(sends.c.id.desc()))
        total = count_rows(connection, sends, mine)
    return page(
        request,
        "search.html",
        asked=asked,
        launches=found,
        campaigns=numbered,
        devices=its_devices,
        rows=rows,
        total=total,
        part=part,
    )


def _campaign(connection: Connection, asked: str) -> _Found:
    return connection.execute(select(campaigns).where(campaigns.c.id == _number(asked))).all()


def _devices(connection: Connection, asked: str) -> _Found:
    texts = ("user_id", "external_id", "token", "uuid", "email")
    wanted = [devices.c[name] == asked for name in texts]
    if (number := _number(asked)) is not None:
        wanted += [devices.c.device_id == number, devices.c.profile_id == number]
    query = select(devices).where(or_(*wanted)).order_by(devices.c.device_id)
    return connection.execute(query.limit(_DEVICES_SHOWN)).all()


def _number(text: str) -> int | None:
    digits = text.removeprefix("#")
    return int(digits) if digits.isascii() and digits.isdigit() and len(digits) < 19 else None


@router.get("/devices/{device_id:int}")
def show_device(request: Request, service: ServiceDep, device_id: int) -> Response:
    """Show a device with its messages."""
    now = service.clock.time()
    part = page_of(request, _MESSAGES_AT_ONCE)
    mine = sends.c.device_id == device_id
    with service.store.read() as connection:
        found = find(connection, devices, device_id)
        if found is None:
            raise HTTPException(404, "There is no such device.")
        rows = part.rows(connection, lines(now).where(mine).order_by(sends.c.id.desc()))
        total = count_rows(connection, sends, mine)
    return page(request, "device.html", device=found, rows=rows, total=total, part=part)
