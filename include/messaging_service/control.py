"""The admin routes that make things happen: time, hits, segments, locations, the end of a campaign."""

from __future__ import annotations

from typing import Any

from fastapi import APIRouter, HTTPException
from pydantic import BaseModel, ConfigDict

from messaging_service.clock import DurationError, advance, described, seconds_of
from messaging_service.external import Service


class _Body(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True)


class Advance(_Body):
    """How far the clock is advanced, such as ``3h``."""

    by: str


def control(service: Service) -> APIRouter:
    """Make the routes; each answers with JSON that says what happened."""
    router = APIRouter()

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

    return router
