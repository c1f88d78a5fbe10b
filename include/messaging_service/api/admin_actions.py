"""The admin routes that change something: the clock, hits, segments, locations, and stopping a campaign."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict
from typing import Annotated, Any

from fastapi import APIRouter, HTTPException, Response
from pydantic import BaseModel, ConfigDict, Field, model_validator
from pydantic_core import PydanticCustomError
from sqlalchemy import Connection

from messaging_service.api.external import Service, ServiceDep
from messaging_service.api.fault_responses import json_response, to_response
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
from messaging_service.envelope import RejectedError, not_storable, rejected

router = APIRouter()

_HIGHEST = 2**63
_Number = Annotated[int, Field(gt=0, lt=_HIGHEST)]


class _Body(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True)

    @model_validator(mode="before")
    @classmethod
    def _storable(cls, body: Any) -> Any:
        if problem := not_storable(body):
            raise PydanticCustomError("not_storable", "{problem}", {"problem": problem})
        return body


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


@router.get("/clock")
def show_clock(service: ServiceDep) -> dict[str, Any]:
    """Return the time of the clock."""
    return described(service.clock)


@router.post("/clock/advance")
def advance_clock(service: ServiceDep, body: Advance) -> dict[str, Any]:
    """Advance the clock."""
    try:
        advance(service.store, seconds_of(body.by))
    except DurationError as error:
        raise HTTPException(400, str(error)) from None
    return described(service.clock)


@router.post("/campaigns/{campaign_id}/stop")
def stop(service: ServiceDep, campaign_id: int) -> dict[str, Any]:
    """Stop a campaign."""
    now = service.clock.time()
    with service.store.write() as connection:
        if not stop_campaign(connection, campaign_id, now):
            raise HTTPException(404, "There is no such campaign.")
    return {"campaign": campaign_id, "stopped": True}


@router.get("/segments")
def segments(service: ServiceDep) -> dict[str, Any]:
    """Return the saved segments."""
    with service.store.read() as connection:
        return {"segments": list_segments(connection)}


@router.post("/segments")
def add_segment(service: ServiceDep, body: NewSegment) -> Response:
    """Save a segment."""
    now = service.clock.time()
    return _written(service, lambda c: {"id": create_segment(c, body.title, body.conditions, now)})


@router.get("/locations")
def locations(service: ServiceDep) -> dict[str, Any]:
    """Return the locations."""
    with service.store.read() as connection:
        return {"locations": list_locations(connection)}


@router.post("/locations")
def add_location(service: ServiceDep, body: NewLocation) -> Response:
    """Save a location."""
    now = service.clock.time()
    return _written(service, lambda c: {"id": create_location(c, body.title, now)})


@router.post("/hits/location")
def at_location(service: ServiceDep, body: LocationHit) -> Response:
    """Make a device enter or leave a location."""
    now = service.clock.now
    return _written(service, lambda c: hit_location(c, body.device_id, body.location_id, body.action, now()))


@router.post("/hits/event")
def of_event(service: ServiceDep, body: EventHit) -> Response:
    """Make a user or a device trigger an event."""
    now = service.clock.now
    return _written(
        service, lambda c: hit_event(c, body.event, body.user_id, body.device_id, body.value, now())
    )


@router.get("/campaigns/{campaign_id}/devices/{device_id}")
def messages(service: ServiceDep, campaign_id: int, device_id: int) -> Response:
    """Return the messages of a campaign to a device."""
    inside = 0 < campaign_id < _HIGHEST and 0 < device_id < _HIGHEST
    found = rendered(service.store, campaign_id, device_id) if inside else []
    return json_response({"messages": [asdict(item) for item in found]})


@router.get("/devices/{device_id}/inbox")
def inbox_of(service: ServiceDep, device_id: int) -> Response:
    """Return the messages in the inbox of a device."""
    service.clock.read_again()
    found = inbox(service.store, device_id, service.clock.time()) if 0 < device_id < _HIGHEST else []
    return json_response({"messages": [asdict(item) for item in found]})


def _written(service: Service, make: Callable[[Connection], Any]) -> Response:
    try:
        with service.store.write() as connection:
            return json_response(make(connection))
    except RejectedError as error:
        return to_response(rejected(error))
