"""The External API: who asks, what for, and the answer in the envelope (sections 4.2, 4.3, 5, 7)."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime
from typing import Any

import orjson
from sqlalchemy import Connection

from messaging_service.campaigns import create_campaign, plan_campaign
from messaging_service.clients import App, find_app
from messaging_service.clock import Clock
from messaging_service.executions import execute_campaign, plan_execution
from messaging_service.names import Names
from messaging_service.replies import RejectedError, Reply, accepted, rejected
from messaging_service.requests import Received, record
from messaging_service.store import Store
from messaging_service.tokens import holder, machine_time


@dataclass(frozen=True, slots=True)
class Service:
    """What every request is answered with."""

    store: Store
    clock: Clock
    names: Names


@dataclass(frozen=True, slots=True)
class _Caller:
    """Who a request comes from: a client ID by its token, an app by its token, or both."""

    client_id: str | None
    app: App | None

    @property
    def time_zone(self) -> str:
        return self.app.time_zone if self.app else "UTC"


Operation = Callable[[Service, Connection, _Caller, dict[str, Any], Received], Reply]


def create(
    service: Service, connection: Connection, caller: _Caller, body: dict[str, Any], received: Received
) -> Reply:
    """Create a campaign; the answer's model holds its id."""
    now = service.clock.now()
    plan = plan_campaign(body, service.names, caller.time_zone, now)
    received.warnings = plan.warnings
    app_id = caller.app.id if caller.app else None
    received.campaign_id = create_campaign(connection, plan, service.names, app_id, caller.client_id, now)
    return accepted({"id": received.campaign_id, "title": plan.title, "active": 1, "trigger": plan.trigger})


def execute(
    service: Service, connection: Connection, _caller: _Caller, body: dict[str, Any], received: Received
) -> Reply:
    """Execute a template; the answer's model holds its id and the id of this sending."""
    now = service.clock.now()
    execution = plan_execution(body, service.names, now)
    received.warnings = execution.warnings
    action_id = execute_campaign(connection, execution, service.names, now)
    received.campaign_id = execution.campaign_id
    return accepted({"id": execution.campaign_id, "action_id": action_id})


def answer(
    service: Service, operation: Operation, path: str, authorization: str | None, content: bytes
) -> Reply:
    """Answer one request, and record both in the transaction that holds what the request did."""
    received = Received("POST", path, service.clock.time())
    try:
        received.body = _parse(content)
    except RejectedError as error:
        return _recorded(service, received, rejected(error))
    try:
        with service.store.write() as connection:
            caller = _authenticate(connection, authorization, received.body, machine_time())
            received.client_id = caller.client_id
            reply = operation(service, connection, caller, received.body, received)
            record(connection, received, reply, service.clock.time())
            return reply
    except RejectedError as error:
        return _recorded(service, received, rejected(error))


def _recorded(service: Service, received: Received, reply: Reply) -> Reply:
    with service.store.write() as connection:
        record(connection, received, reply, service.clock.time())
    return reply


def _parse(content: bytes) -> dict[str, Any]:
    try:
        body = orjson.loads(content)
    except orjson.JSONDecodeError:
        raise RejectedError(400, "The body is not JSON.") from None
    if not isinstance(body, dict):
        raise RejectedError(400, "The body is not a JSON object.")
    return body


def _authenticate(
    connection: Connection, authorization: str | None, body: dict[str, Any], now: datetime
) -> _Caller:
    """Tell who is asking: a bearer token, an app token, or both, of which each must be right."""
    app_token = body.get("apptoken")
    if authorization is None and app_token is None:
        raise RejectedError(400, "No authentication: send a bearer token, or apptoken.")
    client_id = None
    if authorization is not None:
        scheme, _, token = authorization.partition(" ")
        client_id = holder(connection, token.strip(), now) if scheme.lower() == "bearer" else None
        if client_id is None:
            raise RejectedError(401, "The access token is unknown or has ended.")
    app = None
    if app_token is not None:
        app = find_app(connection, app_token) if isinstance(app_token, str) else None
        if app is None:
            raise RejectedError(401, "There is no app with this apptoken.")
    return _Caller(client_id, app)
