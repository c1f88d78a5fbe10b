"""The External API: authentication, the operations, and their answers (sections 4.2, 4.3, 5, 7)."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Annotated, Any

import orjson
from fastapi import Depends, Request
from sqlalchemy import Connection

from messaging_service.api.request_log import Received, record
from messaging_service.auth.authenticate import Principal, authenticate
from messaging_service.auth.tokens import machine_time
from messaging_service.campaigns.content import Content
from messaging_service.campaigns.create import create_campaign, plan_campaign
from messaging_service.campaigns.execute import execute_campaign, plan_execution
from messaging_service.campaigns.listing import list_page
from messaging_service.campaigns.saved_segments import create_segment
from messaging_service.clock import ServiceClock
from messaging_service.delivery.loopback import is_number_elsewhere
from messaging_service.envelope import (
    DEEPEST,
    ApiResponse,
    FieldProblem,
    RejectedError,
    accepted,
    listed,
    not_storable,
    rejected,
)
from messaging_service.store import Store
from messaging_service.undocumented_names import Names


@dataclass(frozen=True, slots=True)
class Service:
    """The parts of the service that every request needs."""

    store: Store
    clock: ServiceClock
    names: Names
    post_backs_anywhere: bool = False


async def _service_of(request: Request) -> Service:
    service: Service = request.app.state.service
    return service


ServiceDep = Annotated[Service, Depends(_service_of)]
"""The service whose application answers a request."""

Operation = Callable[[Service, Connection, Principal, dict[str, Any], Received], ApiResponse]


def create(
    service: Service, connection: Connection, principal: Principal, body: dict[str, Any], received: Received
) -> ApiResponse:
    """Create a campaign; the answer's model holds its id."""
    now = service.clock.now()
    plan = plan_campaign(body, service.names, principal.time_zone, now)
    received.warnings = plan.warnings
    _refuse_elsewhere(service, plan.content)
    app_id = principal.app.id if principal.app else None
    received.campaign_id = create_campaign(connection, plan, service.names, app_id, principal.client_id, now)
    return accepted({"id": received.campaign_id, "title": plan.title, "active": 1, "trigger": plan.trigger})


def execute(
    service: Service, connection: Connection, _principal: Principal, body: dict[str, Any], received: Received
) -> ApiResponse:
    """Execute a template; the answer's model holds its id and the id of this sending."""
    now = service.clock.now()
    execution = plan_execution(body, service.names, now)
    received.warnings = execution.warnings
    _refuse_elsewhere(service, execution.overrides)
    action_id = execute_campaign(connection, execution, service.names, now)
    received.campaign_id = execution.campaign_id
    return accepted({"id": execution.campaign_id, "action_id": action_id})


def save_segment(
    service: Service, connection: Connection, _principal: Principal, body: dict[str, Any], _received: Received
) -> ApiResponse:
    """Save a segment, as described by public pages of the same interface; the answer's model holds its id."""
    title = body.get("title")
    segment_id = create_segment(connection, title, body.get("conditions"), service.clock.time())
    return accepted({"id": segment_id, "title": title})


def list_campaigns(
    _service: Service, connection: Connection, principal: Principal, body: dict[str, Any], _received: Received
) -> ApiResponse:
    """List the principal's campaigns, as described by public pages of the same interface."""
    return listed(list_page(connection, body, principal.app.id if principal.app else None))


def answer(
    service: Service,
    operation: Operation,
    scope: str,
    received: Received,
    sent_headers: Mapping[str, str],
    content: bytes,
) -> ApiResponse:
    """Answer a request. Record the request and the answer in the same transaction as its changes."""
    headers: Mapping[str, str] = {}
    try:
        _require_json(sent_headers.get("content-type"))
        received.body = _parse(content)
        authorization = sent_headers.get("authorization")
        principal = authenticate(service.store, authorization, received.body, machine_time())
        headers, received.client_id = principal.headers, principal.client_id
        principal.require(scope)
        with service.store.write() as connection:
            reply = operation(service, connection, principal, received.body, received)
            received.warnings = (*received.warnings, *principal.warnings)
            record(connection, received, reply, service.clock.time())
    except RejectedError as error:
        reply = recorded(service, received, rejected(error))
    return replace(reply, headers={**headers, **reply.headers})


def _refuse_elsewhere(service: Service, content: Content) -> None:
    """Refuse post-backs to the IP address of another machine; host names are resolved only when sending."""
    if service.post_backs_anywhere:
        return
    names = [key for key in ("webhook_delivery", "webhook_open") if is_number_elsewhere(content.get(key, ""))]
    if names:
        text = "must be on this machine; to allow other machines, start serve with --post-backs-anywhere"
        problems = [FieldProblem(key, text) for key in names]
        raise RejectedError(400, "Post-backs may only go to this machine.", problems)


def recorded(service: Service, received: Received, reply: ApiResponse) -> ApiResponse:
    """Record a request with its answer, in a transaction of their own, and return the answer."""
    with service.store.write() as connection:
        record(connection, received, reply, service.clock.time())
    return reply


def _require_json(content_type: str | None) -> None:
    if content_type is None or content_type.partition(";")[0].strip().lower() != "application/json":
        raise RejectedError(415, "The header Content-Type must be application/json.")


def _parse(content: bytes) -> dict[str, Any]:
    try:
        body = orjson.loads(content)
    except orjson.JSONDecodeError:
        raise RejectedError(400, "The body is not JSON.") from None
    if not isinstance(body, dict):
        raise RejectedError(400, "The body is not a JSON object.")
    brackets = content.count(b"{") + content.count(b"[")
    is_suspect = b"\\u0000" in content or brackets > DEEPEST  # the check takes long for many recipients
    if is_suspect and (problem := not_storable(body)):
        raise RejectedError(400, f"The body {problem}.")
    return body
