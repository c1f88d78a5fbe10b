"""The list of campaigns, after public pages of the same interface; the service's document does not show it.

Pages follow ``limit`` and ``offset``, in the order of the ids. Conditions are not supported.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from sqlalchemy import Connection, select

from messaging_service.campaigns.fields import integer_between
from messaging_service.envelope import FieldProblem, RejectedError
from messaging_service.tables import campaigns

MEMBERS = ("id", "title", "trigger", "active", "create_time")
ORDERS = ("id ASC", "id DESC")
LARGEST_PAGE = 1_000
_CHECKS = {"limit": integer_between(1, LARGEST_PAGE), "offset": integer_between(0, 2**31 - 1)}


def list_page(connection: Connection, body: Mapping[str, Any], app_id: int | None) -> list[dict[str, Any]]:
    """Return one page of the campaigns of an app, or of all apps. Raise RejectedError (400) with all problems."""
    if problems := list(_problems(body)):
        raise RejectedError(400, "The campaigns were not listed: some fields are wrong.", problems)
    newest_first = (body.get("order") or [ORDERS[0]])[0] == "id DESC"
    query = select(campaigns).order_by(campaigns.c.id.desc() if newest_first else campaigns.c.id)
    if app_id is not None:
        query = query.where(campaigns.c.app_id == app_id)
    rows = connection.execute(query.limit(body.get("limit", 100)).offset(body.get("offset", 0)))
    members = body.get("select") or list(MEMBERS)
    return [{name: value for name, value in _members(row).items() if name in members} for row in rows]


def _members(row: Any) -> dict[str, Any]:
    return {
        "id": row.id,
        "title": row.title,
        "trigger": row.trigger,
        "active": int(row.stopped_at is None),
        "create_time": int(row.created_at),
    }


def _problems(body: Mapping[str, Any]) -> Iterator[FieldProblem]:
    for name, check in _CHECKS.items():
        if name in body and (problem := check(body[name])):
            yield FieldProblem(name, problem)
    for name, allowed, most in (("select", MEMBERS, len(MEMBERS)), ("order", ORDERS, 1)):
        given = body.get(name, [])
        if not isinstance(given, list) or len(given) > most or any(each not in allowed for each in given):
            yield FieldProblem(name, f"must be an array of {' or '.join(allowed)}")
    if "condition" in body:
        yield FieldProblem("condition", "is not supported")
