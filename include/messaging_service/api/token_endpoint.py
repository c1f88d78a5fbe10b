"""Requests and answers of the token endpoint (section 4.1), in the form of RFC 6749."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any
from urllib.parse import parse_qsl

import orjson

from messaging_service.api.external import Service, recorded
from messaging_service.api.request_log import Received
from messaging_service.auth.tokens import GrantRefusedError, grant, machine_time
from messaging_service.envelope import ApiResponse, not_storable

TOKEN_PATH = "/api/oauth/token"  # noqa: S105  # a path
_FORM, _JSON = "application/x-www-form-urlencoded", "application/json"
_NOT_STORED = {"Cache-Control": "no-store", "Pragma": "no-cache"}


def answer_token(service: Service, received: Received, content_type: str, content: bytes) -> ApiResponse:
    """Answer a token request and record both, without secrets and tokens."""
    try:
        received.body = _fields(content_type, content)
        token = grant(service.store, received.body, machine_time())
        body = {"access_token": token.access_token, "token_type": "Bearer", "expires_in": token.expires_in}
        reply = ApiResponse(200, body, _NOT_STORED)
    except GrantRefusedError as error:
        reply = refused(error)
    if isinstance(received.body, Mapping) and isinstance(received.body.get("client_id"), str):
        received.client_id = received.body["client_id"]
    return recorded(service, received, reply)


def refused(error: GrantRefusedError) -> ApiResponse:
    """Return the answer to a refused token request."""
    body = {"error": error.error, "error_description": error.description}
    challenge = {"WWW-Authenticate": "Bearer"} if error.status == 401 else {}
    return ApiResponse(error.status, body, {**_NOT_STORED, **challenge})


def _fields(content_type: str, content: bytes) -> Mapping[str, Any]:
    media_type = content_type.partition(";")[0].strip().lower()
    try:
        if media_type == _FORM:
            pairs = parse_qsl(content.decode(), keep_blank_values=True, max_num_fields=50)
            if len(dict(pairs)) != len(pairs):
                raise GrantRefusedError("invalid_request", "a field appears twice")
            return _storable(dict(pairs))
        fields = orjson.loads(content) if media_type == _JSON else None
    except ValueError:
        raise GrantRefusedError("invalid_request", f"the body is not {media_type}") from None
    if not isinstance(fields, dict):
        raise GrantRefusedError("invalid_request", f"the body must be a JSON object or {_FORM}")
    return _storable(fields)


def _storable(fields: Mapping[str, Any]) -> Mapping[str, Any]:
    if problem := not_storable(fields):
        raise GrantRefusedError("invalid_request", f"the body {problem}")
    return fields
