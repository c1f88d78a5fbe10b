"""The pages of a campaign: its messages, runs, post-backs, and requests."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from fastapi import APIRouter, Depends, HTTPException, Request, Response
from fastapi.responses import RedirectResponse
from sqlalchemy import ColumnElement, Connection, Row, bindparam, case, func, literal, select

from messaging_service.api.access import only_own_forms
from messaging_service.api.external import ServiceDep
from messaging_service.campaigns.content import BY_API, BY_EVENT, BY_LOCATION, channels, unpack
from messaging_service.campaigns.create import stop_campaign
from messaging_service.campaigns.schedule import REPEATEDLY
from messaging_service.pages.layout import PageRoute, page, page_of
from messaging_service.store import count_rows, find
from messaging_service.tables import campaigns, devices, post_backs, requests, runs, sends

router = APIRouter(route_class=PageRoute)

STATES = ("opened", "delivered", "on its way", "failed", "unreachable")
_LINES_AT_ONCE = 50
_WAITING = {BY_API: "template", BY_LOCATION: "waits for a location", BY_EVENT: "waits for an event"}
_Line = Row[tuple[Any, ...]]


def described(connection: Connection, rows: Sequence[_Line], now: float) -> list[dict[str, Any]]:
    """Return the campaigns for a list, each with its progress and its number of messages by state."""
    ids = [row.id for row in rows]
    counts, its_runs = counts_of(connection, ids, now), runs_of(connection, ids, now)
    return [
        {
            "row": row,
            "channels": channels(unpack(row.content)),
            "counts": counts[row.id],
            "messages": sum(counts[row.id].values()),
            "runs": its_runs[row.id],
            "state": (state_now := progress(row, its_runs[row.id])),
            "may_stop": row.stopped_at is None and (state_now == "scheduled" or row.send_type == REPEATEDLY),
        }
        for row in rows
    ]


def among(column: ColumnElement[int], ids: Sequence[int]) -> ColumnElement[bool]:
    """Return the condition that a column has one of these ids, however many there are."""
    return column.in_(bindparam(None, ids, expanding=True, literal_execute=True))


def counts_of(connection: Connection, ids: Sequence[int], now: float) -> dict[int, dict[str, int]]:
    """Return the number of messages by state, for each campaign."""
    counts: dict[int, dict[str, int]] = {one: dict.fromkeys(STATES, 0) for one in ids}
    # Group by the label: with bound parameters, the database cannot tell that two expressions are the same.
    state = state_at(now).label("state_now")
    for campaign_id, name, count in connection.execute(
        select(sends.c.campaign_id, state, func.count())
        .where(among(sends.c.campaign_id, ids))
        .group_by(sends.c.campaign_id, "state_now")
    ):
        counts[campaign_id][name] = count
    return counts


@dataclass(frozen=True, slots=True)
class Runs:
    """The number of runs of a campaign, the number due now, and the time of the next one, in seconds since 1970."""

    count: int = 0
    due: int = 0
    next_at: float | None = None


def runs_of(connection: Connection, ids: Sequence[int], now: float) -> dict[int, Runs]:
    """Return the runs of each campaign."""
    waiting = runs.c.state == "waiting"
    rows = connection.execute(
        select(
            runs.c.campaign_id,
            func.count(),
            func.count().filter(waiting & (runs.c.due_at <= now)),
            func.min(runs.c.due_at).filter(waiting & (runs.c.due_at > now)),
        )
        .where(among(runs.c.campaign_id, ids))
        .group_by(runs.c.campaign_id)
    )
    return dict.fromkeys(ids, Runs()) | {campaign_id: Runs(*told) for campaign_id, *told in rows}


def state_at(now: float) -> ColumnElement[str]:
    """Return the SQL expression for the state of a send, one of STATES; decided outcomes may be in the future."""
    return case(
        (sends.c.message_type.is_(None), literal("unreachable")),
        (sends.c.error.is_not(None), literal("failed")),
        (sends.c.opened_at <= now, literal("opened")),
        (sends.c.delivered_at <= now, literal("delivered")),
        else_=literal("on its way"),
    )


def progress(campaign: _Line, its_runs: Runs) -> str:
    """Return the state of a campaign, in words."""
    if its_runs.due:
        return "being sent"
    if campaign.stopped_at is not None:
        return "stopped"
    if its_runs.next_at is not None:
        return "scheduled"
    return _WAITING.get(campaign.trigger, "sent" if its_runs.count else "not sent")


@router.get("/campaigns/{campaign_id:int}")
@router.get("/campaigns/{campaign_id:int}/runs")
@router.get("/campaigns/{campaign_id:int}/post-backs")
@router.get("/campaigns/{campaign_id:int}/request")
def show_campaign(request: Request, service: ServiceDep, campaign_id: int) -> Response:
    """Show a campaign with its messages, runs, post-backs or requests."""
    last = request.url.path.rpartition("/")[2]
    tab, now = last if last in _TABS else "messages", service.clock.time()
    with service.store.read() as connection:
        row = find(connection, campaigns, campaign_id)
        if row is None:
            raise HTTPException(404, "There is no such campaign.")
        [one] = described(connection, [row], now)
        shown = _TABS[tab](request, connection, campaign_id, now)
        posted = count_rows(
            connection,
            post_backs.join(runs, post_backs.c.run_id == runs.c.id),
            runs.c.campaign_id == campaign_id,
        )
    return page(
        request,
        f"campaign_{tab.replace('-', '_')}.html",
        is_live=True,
        campaign=one,
        tab=tab,
        posted=posted,
        now=now,
        **shown,
    )


def _messages(request: Request, connection: Connection, campaign_id: int, now: float) -> Mapping[str, Any]:
    wanted = request.query_params.get("state")
    shown = wanted if wanted in STATES else "all"
    part = page_of(request, _LINES_AT_ONCE)
    where = [sends.c.campaign_id == campaign_id]
    if shown != "all":
        where.append(state_at(now) == shown)
    rows = part.rows(connection, lines(now).where(*where).order_by(sends.c.device_id, sends.c.id))
    return {"rows": rows, "shown": shown, "part": part, "states": STATES}


def lines(now: float) -> Any:
    """Return the query for a list of messages, with the device, the campaign's title, and the state of each."""
    return select(
        sends,
        state_at(now).label("state"),
        campaigns.c.title,
        devices.c.user_id,
        devices.c.language,
    ).select_from(
        sends.join(campaigns, campaigns.c.id == sends.c.campaign_id).outerjoin(
            devices, devices.c.device_id == sends.c.device_id
        )
    )


def _post_backs(request: Request, connection: Connection, campaign_id: int, _now: float) -> Mapping[str, Any]:
    part = page_of(request, _LINES_AT_ONCE)
    ours = select(runs.c.id).where(runs.c.campaign_id == campaign_id)
    query = (
        select(post_backs, sends.c.device_id, sends.c.platform)
        .join_from(post_backs, sends, sends.c.id == post_backs.c.send_id)
        .where(post_backs.c.run_id.in_(ours))
        .order_by(post_backs.c.id)
    )
    counts = connection.execute(
        select(post_backs.c.kind, post_backs.c.state, func.count())
        .where(post_backs.c.run_id.in_(ours))
        .group_by(post_backs.c.kind, post_backs.c.state)
        .order_by(post_backs.c.kind, post_backs.c.state)
    ).all()
    return {"rows": part.rows(connection, query), "part": part, "counts": counts}


def _runs(request: Request, connection: Connection, campaign_id: int, _now: float) -> Mapping[str, Any]:
    part = page_of(request, _LINES_AT_ONCE)
    query = select(runs).where(runs.c.campaign_id == campaign_id)
    newest_first = query.order_by(runs.c.due_at.desc(), runs.c.id.desc())
    return {"rows": part.rows(connection, newest_first), "part": part}


def _request(request: Request, connection: Connection, campaign_id: int, _now: float) -> Mapping[str, Any]:
    part = page_of(request, 20)
    mine = requests.c.campaign_id == campaign_id
    rows = part.rows(connection, select(requests).where(mine).order_by(requests.c.id))
    return {"rows": rows, "total": count_rows(connection, requests, mine), "part": part}


_TABS = {"messages": _messages, "runs": _runs, "post-backs": _post_backs, "request": _request}


@router.post("/campaigns/{campaign_id:int}/stop", dependencies=[Depends(only_own_forms)])
def stop(service: ServiceDep, campaign_id: int) -> Response:
    """Stop a campaign."""
    with service.store.write() as connection:
        if not stop_campaign(connection, campaign_id, service.clock.time()):
            raise HTTPException(404, "There is no such campaign.")
    return RedirectResponse(f"/campaigns/{campaign_id}", 303)
