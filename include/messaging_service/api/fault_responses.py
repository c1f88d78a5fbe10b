"""Answers to requests under a fault: a different answer, a late one, or none."""

from __future__ import annotations

import asyncio
import socket
import struct
from collections.abc import Callable
from typing import Any

import orjson
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from messaging_service.api.external import Service, recorded
from messaging_service.api.request_log import Received
from messaging_service.api.token_endpoint import refused
from messaging_service.auth.tokens import GrantRefusedError, end_early, machine_time
from messaging_service.envelope import ApiResponse, RejectedError, rejected
from messaging_service.faults.faults import InjectedFault, inject_request_fault

# The server passes the connection's transport as this scope extension.
TRANSPORT = "messaging_service.transport"
_JSON = "application/json"
_STATUS = {"401": 401, "403": 403, "429": 429, "500": 500, "502": 502, "503": 503, "html": 200}
_OAUTH_ERRORS = {
    401: "invalid_client",
    403: "access_denied",
    429: "temporarily_unavailable",
    500: "server_error",
    503: "temporarily_unavailable",
}
_PAGE = "<!doctype html><title>{0}</title><h1>{0}</h1><p>A fault that was asked for.</p>"
_NO_ANSWER = ApiResponse(0, {})
FAILED = rejected(RejectedError(500, "The service failed. See its log."))
_RESET_AT_ONCE = struct.pack("ii", 1, 0)


def respond(
    service: Service, place: str, received: Received, token: str | None, work: Callable[[], ApiResponse]
) -> Response:
    """Answer a request by ``work``, unless a fault is due at that place (``token``, ``create``, ``execute``)."""
    fault = inject_request_fault(service.store, place)
    if fault is None:
        return to_response(_finish(service, received, work))
    received.fault = fault.kind
    if fault.kind == "token-expired":
        if token:
            end_early(service.store, token, machine_time())
        return to_response(_finish(service, received, work))
    if fault.kind in ("slow", "lost") or fault.after:
        return _broken(fault, place, _finish(service, received, work))
    recorded(service, received, _instead(fault, place) if fault.kind in _STATUS else _NO_ANSWER)
    return _broken(fault, place, _NO_ANSWER)


def _finish(service: Service, received: Received, work: Callable[[], ApiResponse]) -> ApiResponse:
    try:
        return work()
    except Exception:
        recorded(service, received, FAILED)
        raise


def to_response(reply: ApiResponse) -> Response:
    """Return a reply as JSON."""
    return Response(orjson.dumps(reply.body), reply.code, dict(reply.headers), _JSON)


def json_response(value: Any) -> Response:
    """Return a value as JSON."""
    return Response(orjson.dumps(value), media_type=_JSON)


def _broken(fault: InjectedFault, place: str, reply: ApiResponse) -> Response:
    if fault.kind == "slow":
        return _Late(reply, fault.seconds)
    if fault.kind in ("reset", "lost"):
        return _Unanswered(fault.seconds, reset=fault.kind == "reset")
    if fault.kind in ("html", "502"):
        title = "502 Bad Gateway" if fault.kind == "502" else "Welcome"
        return Response(_PAGE.format(title), _STATUS[fault.kind], media_type="text/html")
    return to_response(_instead(fault, place))


def _instead(fault: InjectedFault, place: str) -> ApiResponse:
    status, text = _STATUS[fault.kind], "A fault that was asked for."
    reply = rejected(RejectedError(status, text))
    if place == "token":
        error = GrantRefusedError(_OAUTH_ERRORS.get(status, "server_error"), text, status)
        reply = refused(error)
    more = {} if fault.retry_after is None else {"Retry-After": str(fault.retry_after)}
    return ApiResponse(reply.code, reply.body, {**reply.headers, **more})


class _Late(Response):
    """An answer that comes some seconds late."""

    def __init__(self, reply: ApiResponse, seconds: float) -> None:
        super().__init__(orjson.dumps(reply.body), reply.code, dict(reply.headers), _JSON)
        self._seconds = seconds

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        await asyncio.sleep(self._seconds)
        await super().__call__(scope, receive, send)


class _Unanswered(Response):
    """No answer: the connection is closed or reset instead."""

    def __init__(self, seconds: float, *, reset: bool) -> None:
        super().__init__()
        self._seconds = seconds
        self._reset = reset

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:  # noqa: ARG002
        await asyncio.sleep(self._seconds)
        transport = scope["extensions"][TRANSPORT]["transport"]
        if self._reset:
            _reset_when_closed(transport)
        transport.abort()
        while (await receive())["type"] != "http.disconnect":
            pass


def _reset_when_closed(transport: Any) -> None:
    number = transport.get_extra_info("socket").fileno()
    # The option belongs to the connection, so it remains set after this copy of the descriptor is closed.
    with socket.socket(fileno=socket.dup(number)) as copy:
        copy.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET_AT_ONCE)
