"""The create request (sections 2.3 to 2.12, 4.2). A campaign is checked completely, then stored with its first runs."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from sqlalchemy import Connection, func, insert, select, update

from messaging_service.campaigns.conditions import wanted_segments
from messaging_service.campaigns.content import BY_API, SCHEDULED, Content, pack, read_content, with_defaults
from messaging_service.campaigns.fields import CAMPAIGN, wire_name
from messaging_service.campaigns.saved_segments import unknown_locations, unknown_segments
from messaging_service.campaigns.schedule import NOW, ONCE, next_occurrence, sending_moment
from messaging_service.campaigns.validation import doubts_about, missing_segmentation, problems_of
from messaging_service.envelope import FieldProblem, RejectedError
from messaging_service.store import find
from messaging_service.tables import campaigns, devices, runs
from messaging_service.undocumented_names import Names

_WRONG = "The campaign was not created: some fields are wrong."


@dataclass(frozen=True, slots=True)
class ValidCampaign:
    """A valid campaign, before the checks of its schedule, segments and locations."""

    title: str
    content: Content
    warnings: tuple[str, ...]

    @property
    def trigger(self) -> int:
        """The trigger of the campaign: 0 schedule, 1 location, 2 event, 3 execution."""
        trigger: int = self.content["campaign_trigger"]
        return trigger


def plan_campaign(body: Mapping[str, Any], names: Names, zone: str, now: datetime) -> ValidCampaign:
    """Check a create request against the document. Raise RejectedError (400) with all problems found."""
    read, checked = read_content(body, CAMPAIGN, names)
    content = with_defaults(read, zone)
    problems = checked.problems or [
        *_missing_title(content),
        *problems_of(content, names, now),
        *(missing_segmentation(content, names) if content["campaign_trigger"] != BY_API else ()),
    ]
    if problems:
        raise RejectedError(400, _WRONG, problems)
    unknown = (f"unknown member: {name}" for name in checked.unknown)
    return ValidCampaign(content["title"], content, (*unknown, *doubts_about(content, names)))


def create_campaign(
    connection: Connection,
    plan: ValidCampaign,
    names: Names,
    app_id: int | None,
    client_id: str | None,
    now: datetime,
) -> int:
    """Store a campaign with its first runs. Return its id.

    Raise RejectedError if its references are unknown, or if its schedule leaves no time to send in any time zone.
    """
    problems = list(unknown_references(connection, plan.content, names))
    if problems:
        raise RejectedError(
            400, "The campaign was not created: it refers to unknown segments or locations.", problems
        )
    first_runs = list(_first_runs(connection, plan.content, now))
    row = {
        "app_id": app_id,
        "client_id": client_id,
        "title": plan.title,
        "trigger": plan.trigger,
        "send_type": plan.content["send_type"],
        "content": pack(plan.content),
        "warnings": list(plan.warnings),
        "created_at": now.timestamp(),
    }
    campaign_id: int = connection.execute(
        insert(campaigns).values(row).returning(campaigns.c.id)
    ).scalar_one()
    for due_at, overrides in first_runs:
        add_run(connection, campaign_id, plan.content, due_at, overrides)
    return campaign_id


def add_run(
    connection: Connection,
    campaign_id: int,
    content: Content,
    due_at: datetime,
    overrides: Content | None = None,
) -> int:
    """Store a run (one sending of a campaign) that is due at ``due_at``. Return its id."""
    # Lock the campaign: concurrent runs would get the same number, and so the same simulated outcomes.
    connection.execute(select(campaigns.c.id).where(campaigns.c.id == campaign_id).with_for_update())
    last = select(func.coalesce(func.max(runs.c.number), 0)).where(runs.c.campaign_id == campaign_id)
    row = {
        "campaign_id": campaign_id,
        "number": connection.execute(last).scalar_one() + 1,
        "overrides": pack(overrides) if overrides is not None else None,
        "webhook_delivery": content.get("webhook_delivery"),
        "webhook_open": content.get("webhook_open"),
        "due_at": due_at.timestamp(),
        "state": "waiting",
    }
    run_id: int = connection.execute(insert(runs).values(row).returning(runs.c.id)).scalar_one()
    return run_id


def add_next_run(connection: Connection, campaign_id: int, content: Content, due_at: float) -> None:
    """Store the run after the one due at ``due_at``, if the campaign is recurring and has not ended or been stopped."""
    if content["campaign_trigger"] != SCHEDULED or content["send_type"] in (NOW, ONCE):
        return
    stopped = select(campaigns.c.stopped_at).where(campaigns.c.id == campaign_id)
    if connection.execute(stopped).scalar_one() is not None:
        return
    zone = content.get("run_zone") or content.get("timezone") or content["default_zone"]
    moment = next_occurrence(content, zone, datetime.fromtimestamp(due_at, UTC))
    if moment is not None:
        own = {key: content[key] for key in ("run_zone", "run_other_zones") if key in content}
        add_run(connection, campaign_id, content, moment, own or None)


def stop_campaign(connection: Connection, campaign_id: int, now: float) -> bool:
    """Stop a campaign: cancel its waiting runs and its trigger. Return False if it does not exist."""
    if find(connection, campaigns, campaign_id) is None:
        return False
    stopped = update(campaigns).where(campaigns.c.id == campaign_id)
    connection.execute(stopped.values(stopped_at=func.coalesce(campaigns.c.stopped_at, now)))
    waiting = (
        runs.c.campaign_id == campaign_id,
        runs.c.state == "waiting",
        runs.c.claimed_by.is_(None),
        runs.c.reached == 0,
    )
    connection.execute(update(runs).where(*waiting).values(state="stopped"))
    return True


def unknown_references(connection: Connection, content: Content, names: Names) -> Iterator[FieldProblem]:
    """Yield a problem for each segment and location of a campaign that does not exist."""
    name = wire_name("segment_ids", names)
    yield from unknown_segments(connection, name, content.get("segment_ids", ()))
    if content.get("conditions"):
        yield from unknown_segments(connection, "conditions", wanted_segments(content["conditions"]))
    yield from unknown_locations(connection, "locations", content.get("locations", ()))


def _first_runs(
    connection: Connection, content: Content, now: datetime
) -> Iterator[tuple[datetime, Content | None]]:
    if content["campaign_trigger"] != SCHEDULED:
        return
    default = content["default_zone"]
    wanted: list[tuple[str, Content]] = [(default, {})]
    if content["send_type"] != NOW and "timezone" not in content:
        zones = connection.execute(select(devices.c.time_zone).distinct()).scalars()
        others = sorted({zone for zone in zones if zone is not None} - {default})
        # Devices without a time zone, and devices in time zones that appear later, follow the app's.
        rest = {"run_zone": default, "run_other_zones": others}
        wanted = [*((zone, {"run_zone": zone}) for zone in others), (default, rest)]
    moments = [(sending_moment(content, zone, now), own) for zone, own in wanted]
    problems = [moment for moment, _ in moments if isinstance(moment, FieldProblem)]
    if len(problems) == len(moments):
        raise RejectedError(400, _WRONG, problems[:1])
    for moment, own in moments:
        if not isinstance(moment, FieldProblem):
            yield moment, own or None
        elif content["send_type"] == ONCE:
            yield now, {**own, "run_missed": True}


def _missing_title(content: Content) -> Iterator[FieldProblem]:
    if not content.get("title", "").strip():
        yield FieldProblem("title", "is required")
