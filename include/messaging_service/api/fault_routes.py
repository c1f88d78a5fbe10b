"""The admin routes that list, add, and remove faults."""

from __future__ import annotations

from typing import Annotated, Any

from fastapi import APIRouter, HTTPException, Path
from pydantic import BaseModel, ConfigDict

from messaging_service.api.external import ServiceDep
from messaging_service.faults.faults import Fault, FaultRefusedError, add_fault, list_faults, remove_faults

router = APIRouter(prefix="/faults")

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


@router.get("")
def show_faults(service: ServiceDep) -> dict[str, Any]:
    """Return the faults."""
    return {"faults": list_faults(service.store)}


@router.post("", status_code=201)
def ask_for_fault(service: ServiceDep, body: FaultBody) -> dict[str, Any]:
    """Add a fault."""
    try:
        return add_fault(service.store, Fault(**{**body.model_dump(), "at": tuple(body.at)}))
    except FaultRefusedError as error:
        raise HTTPException(400, str(error)) from None


@router.delete("")
def remove_all_faults(service: ServiceDep) -> dict[str, Any]:
    """Remove all faults."""
    return {"removed": remove_faults(service.store)}


@router.delete("/{number}")
def remove_fault(service: ServiceDep, number: _Number) -> dict[str, Any]:
    """Remove one fault."""
    if not (removed := remove_faults(service.store, number)):
        raise HTTPException(404, "There is no such fault.")
    return {"removed": removed}
