"""The admin routes that list, add, and remove faults."""

from __future__ import annotations

from typing import Annotated, Any

from fastapi import APIRouter, HTTPException, Path
from pydantic import BaseModel, ConfigDict

from messaging_service.faults.faults import Fault, FaultRefusedError, add_fault, list_faults, remove_faults
from messaging_service.store import Store

_Number = Annotated[int, Path(ge=1, lt=2**63)]


class FaultBody(BaseModel):
    """A fault to add; ``messaging-service faults kinds`` lists the kinds."""

    model_config = ConfigDict(extra="forbid", strict=True)

    kind: str
    at: list[str] = []
    probability: float | None = None
    count: int | None = None
    after: bool = False
    seconds: float | None = None
    retry_after: int | None = None


def fault_routes(store: Store) -> APIRouter:
    """Return the router; each route answers with JSON."""
    router = APIRouter(prefix="/faults")

    @router.get("")
    def show_faults() -> dict[str, Any]:
        return {"faults": list_faults(store)}

    @router.post("", status_code=201)
    def ask_for_fault(body: FaultBody) -> dict[str, Any]:
        try:
            return add_fault(store, Fault(**{**body.model_dump(), "at": tuple(body.at)}))
        except FaultRefusedError as error:
            raise HTTPException(400, str(error)) from None

    @router.delete("")
    def remove_all_faults() -> dict[str, Any]:
        return {"removed": remove_faults(store)}

    @router.delete("/{number}")
    def remove_fault(number: _Number) -> dict[str, Any]:
        if not (removed := remove_faults(store, number)):
            raise HTTPException(404, "There is no such fault.")
        return {"removed": removed}

    return router
