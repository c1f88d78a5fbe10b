"""The record of requests and their answers, without tokens and secrets."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from sqlalchemy import Connection, insert

from messaging_service.envelope import ApiResponse
from messaging_service.tables import requests

_SECRET = frozenset({"apptoken", "assertion", "client_secret", "access_token", "authorization"})
# The object of a webhook message (section 2.7): its address, parameters and headers may hold credentials.
_SECRET_IN_WEBHOOK = _SECRET | {"url", "get_params", "request_headers"}
_ARRAY_SHOWN = 10
_TEXT_SHOWN = 20_000
_DEPTH_SHOWN = 12


@dataclass(slots=True)
class Received:
    """One request; its fields are filled in during processing."""

    method: str
    path: str
    received_at: float
    body: Any = field(default=None, repr=False)
    client_id: str | None = None
    campaign_id: int | None = None
    warnings: Sequence[str] = ()
    fault: str | None = None


def record(connection: Connection, received: Received, reply: ApiResponse, now: float) -> None:
    """Store a request with its answer; shorten long arrays and texts, and redact secrets."""
    connection.execute(
        insert(requests).values(
            received_at=received.received_at,
            method=received.method,
            path=received.path,
            status=reply.code,
            client_id=received.client_id,
            campaign_id=received.campaign_id,
            body=redact(received.body),
            answer=redact(reply.body),
            warnings=list(received.warnings),
            took=now - received.received_at,
            fault=received.fault,
        )
    )


def redact(value: Any, depth: int = 0, secret: Collection[str] = _SECRET) -> Any:
    """Return a JSON value with secrets redacted and long arrays and texts shortened."""
    if depth >= _DEPTH_SHOWN and isinstance(value, dict | list):
        return "..."
    if isinstance(value, Mapping):
        return {
            name: "[redacted]"
            if name.lower() in secret
            else redact(item, depth + 1, _SECRET_IN_WEBHOOK if name == "webhook" else secret)
            for name, item in value.items()
        }
    if isinstance(value, list):
        items = [redact(item, depth + 1, secret) for item in value[:_ARRAY_SHOWN]]
        return [*items, f"... and {len(value) - _ARRAY_SHOWN:,} more"] if len(value) > _ARRAY_SHOWN else items
    if isinstance(value, str) and len(value) > _TEXT_SHOWN:
        return f"{value[:_TEXT_SHOWN]}..."
    return value
