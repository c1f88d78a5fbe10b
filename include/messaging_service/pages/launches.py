"""The list of launches, and the page of each launch.

A launch of a client can take many requests, and each creates a campaign. Nothing in a request names its launch. But
Sendoff ends each title with a key in brackets, and the rest of the title is the same for all requests of a launch. So
campaigns with such a key belong together if the rest of their titles is the same and none came more than half an hour
after the one before.
"""

from __future__ import annotations

from collections import defaultdict
from typing import Any

from fastapi import APIRouter, HTTPException, Request, Response
from sqlalchemy import CTE, ColumnElement, Connection, case, func, or_, select, true

from messaging_service.api.external import ServiceDep
from messaging_service.campaigns.content import channels, unpack
from messaging_service.pages.campaigns import STATES, among, counts_of, described, progress, runs_of
from messaging_service.pages.layout import PageRoute, Slice, page, page_of
from messaging_service.store import count_rows
from messaging_service.tables import campaigns, devices

router = APIRouter(route_class=PageRoute)

_AT_ONCE = 25
_APART = 1_800.0  # seconds between the requests of two launches
_KEY = " [" + "_" * 32 + "]"
_MOST_TELLING = (
    "being sent",
    "scheduled",
    "waits for a location",
    "waits for an event",
    "template",
    "sent",
    "not sent",
    "stopped",
)


def launches(
    connection: Connection, part: Slice, now: float, where: ColumnElement[bool] | None = None
) -> tuple[list[dict[str, Any]], int]:
    """Return a part of the launches, newest first, each with its progress and counts; and the number of all.

    ``where``: a condition that one of a launch's campaigns must meet.
    """
    numbered = _numbered()
    wanted = true() if where is None else numbered.c.id.in_(select(campaigns.c.id).where(where))
    found = select(numbered.c.first).where(wanted).group_by(numbered.c.first)
    total = count_rows(connection, found.subquery())
    newest = found.order_by(numbered.c.first.desc()).limit(part.size).offset(part.skip)
    firsts = connection.execute(newest).scalars()
    return _summaries(connection, numbered, list(firsts), now), total


def _numbered() -> CTE:
    """Return the query for the id of each campaign, and the id of the first campaign of its launch."""
    has_key = campaigns.c.title.like("_%" + _KEY)
    name = case(
        (has_key, func.substr(campaigns.c.title, 1, func.length(campaigns.c.title) - len(_KEY))),
        else_=campaigns.c.title,
    )
    same = (campaigns.c.app_id, has_key, name)
    before = func.lag(campaigns.c.created_at).over(partition_by=same, order_by=campaigns.c.id)
    each = select(
        campaigns.c.id,
        campaigns.c.app_id,
        has_key.label("has_key"),
        name.label("name"),
        campaigns.c.created_at,
        before.label("before"),
    ).cte("each")
    begins = or_(~each.c.has_key, each.c.before.is_(None), each.c.created_at - each.c.before > _APART)
    first = func.max(case((begins, each.c.id))).over(
        partition_by=(each.c.app_id, each.c.has_key, each.c.name), order_by=each.c.id
    )
    return select(each.c.id, each.c.name, first.label("first")).cte("numbered")


def _summaries(connection: Connection, numbered: CTE, firsts: list[int], now: float) -> list[dict[str, Any]]:
    ids: dict[int, list[int]] = defaultdict(list)
    names: dict[int, str] = {}
    query = select(numbered).where(numbered.c.first.in_(firsts)).order_by(numbered.c.id)
    for campaign_id, name, first in connection.execute(query):
        ids[first].append(campaign_id)
        names[first] = name
    everything = [one for its_ids in ids.values() for one in its_ids]
    columns = [column for column in campaigns.c if column is not campaigns.c.content]  # it may be large
    rows = {
        row.id: row for row in connection.execute(select(*columns).where(among(campaigns.c.id, everything)))
    }
    contents = select(campaigns.c.id, campaigns.c.content).where(campaigns.c.id.in_(firsts))
    its_channels = {row.id: channels(unpack(row.content)) for row in connection.execute(contents)}
    counts, its_runs = counts_of(connection, everything, now), runs_of(connection, everything, now)
    found = []
    for first in firsts:
        its_ids = ids[first]
        total = {state: sum(counts[one][state] for one in its_ids) for state in STATES}
        states = {progress(rows[one], its_runs[one]) for one in its_ids}
        found.append(
            {
                "first": first,
                "ids": its_ids,
                "title": names[first],
                "channels": its_channels[first],
                "counts": total,
                "messages": sum(total.values()),
                "state": min(states, key=_MOST_TELLING.index),
                "warnings": len({warning for one in its_ids for warning in rows[one].warnings}),
                "created_at": rows[first].created_at,
            }
        )
    return found


@router.get("/campaigns")
def list_launches(request: Request, service: ServiceDep) -> Response:
    """Show the launches, newest first."""
    part = page_of(request, _AT_ONCE)
    with service.store.read() as connection:
        listed, total = launches(connection, part, service.clock.time())
        ready = count_rows(connection, devices)
    base = str(request.base_url).rstrip("/")
    return page(
        request,
        "campaigns.html",
        is_live=True,
        launches=listed,
        total=total,
        part=part,
        devices=ready,
        base_url=base,
    )


@router.get("/launches/{first:int}")
def show_launch(request: Request, service: ServiceDep, first: int) -> Response:
    """Show a launch with its campaigns."""
    part, now = page_of(request, _AT_ONCE), service.clock.time()
    with service.store.read() as connection:
        found = _summaries(connection, _numbered(), [first], now) if _is_first(connection, first) else []
        if not found:
            raise HTTPException(404, "There is no such launch.")
        shown = found[0]["ids"][::-1][part.skip : part.skip + part.size]
        query = select(campaigns).where(campaigns.c.id.in_(shown)).order_by(campaigns.c.id.desc())
        listed = described(connection, connection.execute(query).all(), now)
    return page(request, "launch.html", is_live=True, launch=found[0], campaigns=listed, part=part)


def _is_first(connection: Connection, campaign_id: int) -> bool:
    if campaign_id >= 2**63:
        return False
    numbered = _numbered()
    return connection.execute(
        select(select(numbered).where(numbered.c.first == campaign_id).exists())
    ).scalar_one()
