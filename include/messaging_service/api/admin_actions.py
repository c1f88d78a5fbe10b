"""The admin routes that change something: the clock, hits, segments, locations, and stopping a campaign."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict
from typing import Annotated, Any

import orjson
from fastapi import APIRouter, HTTPException, Response
from pydantic import BaseModel, ConfigDict, Field
from sqlalchemy import Connection

from messaging_service.api.external import Service
from messaging_service.campaigns.create import stop_campaign
from messaging_service.campaigns.rendering import inbox, rendered
from messaging_service.campaigns.saved_segments import (
    create_location,
    create_segment,
    list_locations,
    list_segments,
)
from messaging_service.campaigns.triggers import hit_event, hit_location
from messaging_service.clock import DurationError, advance, described, seconds_of
from messaging_service.envelope import ApiResponse, RejectedError, rejected

_HIGHEST = 2**63
_Number = Annotated[int, Field(gt=0, lt=_HIGHEST)]


class _Body(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True)


class Advance(_Body):
    """How far to advance the clock, such as ``3h``."""

    by: str


class NewSegment(_Body):
    """A segment to save."""

    title: str
    conditions: dict[str, Any]


class NewLocation(_Body):
    """A location to save."""

    title: str


class LocationHit(_Body):
    """A device enters or leaves (``exit``) a location."""

    device_id: _Number
    location_id: _Number
    action: str = "enter"


class EventHit(_Body):
    """A user or a device triggers an event."""

    event: str
    user_id: str | None = None
    device_id: _Number | None = None
    value: Any = None


def control(service: Service) -> APIRouter:
    """Return the router; each route answers with JSON that describes the result."""
    router = APIRouter()
    _add_time(router, service)
    _add_audiences(router, service)
    _add_hits(router, service)
    _add_messages(router, service)
    return router


def _add_time(router: APIRouter, service: Service) -> None:
    @router.get("/clock")
    def show_clock() -> dict[str, Any]:
        return described(service.clock)

    @router.post("/clock/advance")
    def advance_clock(body: Advance) -> dict[str, Any]:
        try:
            advance(service.store, seconds_of(body.by))
        except DurationError as error:
            raise HTTPException(400, str(error)) from None
        return described(service.clock)

    @router.post("/campaigns/{campaign_id}/stop")
    def stop(campaign_id: int) -> dict[str, Any]:
        now = service.clock.time()
        with service.store.write() as connection:
            if not stop_campaign(connection, campaign_id, now):
                raise HTTPException(404, "There is no such campaign.")
        return {"campaign": campaign_id, "stopped": True}


def _add_audiences(router: APIRouter, service: Service) -> None:
    now = service.clock.time

    @router.get("/segments")
    def segments() -> dict[str, Any]:
        with service.store.read() as connection:
            return {"segments": list_segments(connection)}

    @router.post("/segments")
    def add_segment(body: NewSegment) -> Response:
        create = lambda connection: {"id": create_segment(connection, body.title, body.conditions, now())}  # noqa: E731
        return _written(service, create)

    @router.get("/locations")
    def locations() -> dict[str, Any]:
        with service.store.read() as connection:
            return {"locations": list_locations(connection)}

    @router.post("/locations")
    def add_location(body: NewLocation) -> Response:
        create = lambda connection: {"id": create_location(connection, body.title, now())}  # noqa: E731
        return _written(service, create)


def _add_hits(router: APIRouter, service: Service) -> None:
    now = service.clock.now

    @router.post("/hits/location")
    def at_location(body: LocationHit) -> Response:
        return _written(
            service, lambda c: hit_location(c, body.device_id, body.location_id, body.action, now())
        )

    @router.post("/hits/event")
    def of_event(body: EventHit) -> Response:
        return _written(
            service, lambda c: hit_event(c, body.event, body.user_id, body.device_id, body.value, now())
        )


def _add_messages(router: APIRouter, service: Service) -> None:
    @router.get("/campaigns/{campaign_id}/devices/{device_id}")
    def messages(campaign_id: int, device_id: int) -> Response:
        inside = 0 < campaign_id < _HIGHEST and 0 < device_id < _HIGHEST
        found = rendered(service.store, campaign_id, device_id) if inside else []
        return _json({"messages": [asdict(item) for item in found]})

    @router.get("/devices/{device_id}/inbox")
    def inbox_of(device_id: int) -> Response:
        service.clock.read_again()
        found = inbox(service.store, device_id, service.clock.time()) if 0 < device_id < _HIGHEST else []
        return _json({"messages": [asdict(item) for item in found]})


def _written(service: Service, make: Callable[[Connection], Any]) -> Response:
    try:
        with service.store.write() as connection:
            return _json(make(connection))
    except RejectedError as error:
        return _reply(rejected(error))


def _json(value: Any) -> Response:
    return Response(orjson.dumps(value), media_type="application/json")


def _reply(reply: ApiResponse) -> Response:
    return Response(orjson.dumps(reply.body), reply.code, media_type="application/json")
