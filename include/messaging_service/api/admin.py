"""The admin routes that report what happened, as JSON: campaigns, their outcomes, requests, and progress."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Annotated, Any

from fastapi import APIRouter, HTTPException, Query, Response
from sqlalchemy import Connection, func, select

from messaging_service.api.external import ServiceDep
from messaging_service.api.fault_responses import json_response
from messaging_service.campaigns.targeting import is_delivery_posted
from messaging_service.store import Store, count_rows, find
from messaging_service.tables import campaigns, post_backs, requests, runs, sends, webhook_calls

router = APIRouter()

_Count = Annotated[int, Query(ge=1, le=1_000)]
_Skip = Annotated[int, Query(ge=0, le=2**62)]


@router.get("/campaigns")
def list_campaigns(service: ServiceDep, count: _Count = 100, skip: _Skip = 0) -> Response:
    """Return the campaigns, newest first, each with its runs and its counts of messages."""
    with service.store.read() as connection:
        rows = connection.execute(
            select(campaigns).order_by(campaigns.c.id.desc()).limit(count).offset(skip)
        ).all()
        total, listed = count_rows(connection, campaigns), [_campaign(connection, row) for row in rows]
    return json_response({"total": total, "campaigns": listed})


@router.get("/campaigns/{campaign_id}/truth")
def truth(service: ServiceDep, campaign_id: int) -> Response:
    """Return the outcome for each device of a campaign, as arrays of device ids.

    ``delivered`` and ``opened`` include outcomes that are decided but still in the future. ``post_backs`` holds
    the devices whose delivery or opening is posted back: some deliveries never are (section 6).
    """
    with service.store.read() as connection:
        if find(connection, campaigns, campaign_id) is None:
            raise HTTPException(404, "There is no such campaign.")
        rows = connection.execute(
            select(
                *sends.c["device_id", "platform", "message_type", "delivered_at", "opened_at"],
                *runs.c["webhook_delivery", "webhook_open"],
            )
            .join_from(sends, runs, sends.c.run_id == runs.c.id)
            .where(sends.c.campaign_id == campaign_id)
            .order_by(sends.c.device_id)
        )
        record = _Truth()
        for row in rows:
            record.add(row)
        unknown = connection.execute(
            select(runs.c.unknown).where(runs.c.campaign_id == campaign_id, runs.c.unknown.is_not(None))
        ).scalars()
        listed = list(dict.fromkeys(identifier for identifiers in unknown for identifier in identifiers))
    return json_response({"campaign": campaign_id, **record.as_json(), "unknown": listed})


class _Truth:
    """Collects each device once, in the order of the ids. The dicts serve as ordered sets."""

    def __init__(self) -> None:
        self.sets: dict[str, dict[int, None]] = {
            name: {} for name in ("targeted", "delivered", "opened", "delivery", "open")
        }
        self.platforms: dict[str, dict[int, None]] = {}

    def add(self, row: Any) -> None:
        self.sets["targeted"][row.device_id] = None
        self.platforms.setdefault(row.platform, {})[row.device_id] = None
        if row.delivered_at is not None:
            self.sets["delivered"][row.device_id] = None
            if row.webhook_delivery and is_delivery_posted(row.message_type, row.platform):
                self.sets["delivery"][row.device_id] = None
        if row.opened_at is not None:
            self.sets["opened"][row.device_id] = None
            if row.webhook_open:
                self.sets["open"][row.device_id] = None

    def as_json(self) -> dict[str, Any]:
        return {
            **{name: list(self.sets[name]) for name in ("targeted", "delivered", "opened")},
            "platforms": {name: list(ids) for name, ids in sorted(self.platforms.items())},
            "post_backs": {kind: list(self.sets[kind]) for kind in ("delivery", "open")},
        }


@router.get("/requests")
def list_requests(service: ServiceDep, count: _Count = 100, skip: _Skip = 0) -> Response:
    """Return the received requests, newest first, without secrets."""
    with service.store.read() as connection:
        rows = connection.execute(
            select(requests).order_by(requests.c.id.desc()).limit(count).offset(skip)
        ).all()
        total = count_rows(connection, requests)
    return json_response({"total": total, "requests": [_request(row._asdict()) for row in rows]})


@router.get("/progress")
def show_progress(service: ServiceDep) -> Response:
    """Return the progress by the newest time of the clock."""
    service.clock.read_again()
    return json_response(progress(service.store, service.clock.time()))


def progress(store: Store, now: float) -> dict[str, Any]:
    """Return the progress of runs, post-backs, and calls; ``quiet``: nothing is due before the next scheduled run."""
    waiting, unsent = runs.c.state == "waiting", post_backs.c.state.in_(("due", "taken"))
    with store.read() as connection:
        # Runs lead to calls and post-backs, so count in this order: on PostgreSQL each count sees later commits.
        its_runs = {
            "scheduled": count_rows(connection, runs, waiting, runs.c.due_at > now),
            "due": count_rows(connection, runs, waiting, runs.c.due_at <= now),
            "done": count_rows(connection, runs, runs.c.state == "done"),
        }
        calls = count_rows(connection, webhook_calls, webhook_calls.c.state.in_(("due", "taken")))
        its_post_backs = {
            "due": count_rows(connection, post_backs, unsent, post_backs.c.due_at <= now),
            "later": count_rows(connection, post_backs, unsent, post_backs.c.due_at > now),
            "sent": count_rows(connection, post_backs, post_backs.c.state == "sent"),
            "failed": count_rows(connection, post_backs, post_backs.c.state == "failed"),
            "lost": count_rows(connection, post_backs, post_backs.c.state == "lost"),
        }
    quiet = not (calls or its_runs["due"] or its_post_backs["due"] or its_post_backs["later"])
    return {"quiet": quiet, "runs": its_runs, "post_backs": its_post_backs, "webhook_calls": {"due": calls}}


def _campaign(connection: Connection, row: Any) -> dict[str, Any]:
    counts = connection.execute(
        select(
            func.count(),
            func.count(sends.c.delivered_at),
            func.count(sends.c.opened_at),
            func.count(sends.c.message_type),
        ).where(sends.c.campaign_id == row.id)
    ).one()
    its_runs = connection.execute(
        select(runs).where(runs.c.campaign_id == row.id).order_by(runs.c.number)
    ).all()
    return {
        "id": row.id,
        "title": row.title,
        "trigger": row.trigger,
        "send_type": row.send_type,
        "created_at": _iso(row.created_at),
        "stopped_at": None if row.stopped_at is None else _iso(row.stopped_at),
        "warnings": row.warnings,
        "messages": {
            "sent": counts[3],
            "delivered": counts[1],
            "opened": counts[2],
            "unreachable": counts[0] - counts[3],
        },
        "runs": [_run(item) for item in its_runs],
    }


def _run(row: Any) -> dict[str, Any]:
    return {
        "id": row.id,
        "number": row.number,
        "due_at": _iso(row.due_at),
        "state": row.state,
        "webhook_delivery": row.webhook_delivery,
        "webhook_open": row.webhook_open,
        "unknown": len(row.unknown or ()),
    }


def _request(row: dict[str, Any]) -> dict[str, Any]:
    values = {str(name): value for name, value in row.items()}
    return {**values, "received_at": _iso(row["received_at"]), "took": round(row["took"], 6)}


def _iso(moment: float) -> str:
    return datetime.fromtimestamp(moment, UTC).isoformat()
