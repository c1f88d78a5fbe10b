"""The execute request (section 4.3): another sending of a template, to the targets in the request.

These targets replace the template's targets. The conditions of the request or the template still apply to them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from sqlalchemy import Connection

from messaging_service.campaigns.content import BY_API, Content, merge, read_content, unpack
from messaging_service.campaigns.create import add_run, unknown_references
from messaging_service.campaigns.fields import EXECUTION, moment, wire_name
from messaging_service.campaigns.profiles import create_missing_profiles
from messaging_service.campaigns.schedule import REPEATEDLY, closed_because
from messaging_service.campaigns.targeting import zones_of_targets
from messaging_service.campaigns.validation import is_segmented, problems_of
from messaging_service.envelope import FieldProblem, RejectedError
from messaging_service.store import find
from messaging_service.tables import campaigns
from messaging_service.undocumented_names import Names

_WRONG = "The campaign was not executed: some fields are wrong."
# An execution cannot change these fields of a template.
_FIXED = ("campaign_trigger", "send_type", "title")


@dataclass(frozen=True, slots=True)
class Execution:
    """A valid execute request, before the check that its template exists."""

    campaign_id: int
    overrides: Content
    due_at: datetime
    warnings: tuple[str, ...]


def plan_execution(body: Mapping[str, Any], names: Names, now: datetime) -> Execution:
    """Check an execute request. Raise RejectedError (400) with all problems found."""
    read, checked = read_content(body, EXECUTION, names)
    problems = checked.problems or _missing(read, names)
    if problems:
        raise RejectedError(400, _WRONG, problems)
    fixed = [wire_name(key, names) for key in _FIXED if key in read]
    return Execution(
        campaign_id=int(read["execute_id"]),
        overrides={key: value for key, value in read.items() if key not in _FIXED},
        due_at=moment(str(read.get("execute_time", ""))) or now,
        warnings=(
            *(f"unknown member: {name}" for name in checked.unknown),
            *(f"{name} is ignored: it can only be set in the template" for name in fixed),
        ),
    )


def execute_campaign(connection: Connection, execution: Execution, names: Names, now: datetime) -> int:
    """Store another run of a template. Return its id, or raise RejectedError if the template cannot be executed."""
    content = merge(_template(connection, execution.campaign_id), execution.overrides)
    problems = [
        *_missing_target(content, names),
        *problems_of(content, names, now),
        *unknown_references(connection, content, names),
    ]
    if problems:
        raise RejectedError(400, _WRONG, problems)
    has_window = content.get("send_type") == REPEATEDLY
    zones = zones_of_targets(connection, content) if has_window else []
    closed = [closed_because(content, zone, execution.due_at) for zone in zones]
    if closed and all(closed):
        raise RejectedError(400, f"The campaign cannot be triggered at that time: {closed[0]}.")
    if not content.get("target_existing_only", 1):
        create_missing_profiles(connection, content)
    return add_run(connection, execution.campaign_id, content, execution.due_at, execution.overrides)


def _template(connection: Connection, campaign_id: int) -> Content:
    row = find(connection, campaigns, campaign_id)
    if row is None:
        raise RejectedError(404, "There is no such campaign.")
    if row.trigger != BY_API:
        raise RejectedError(400, "This campaign is not triggered by API, so it cannot be executed.")
    if row.stopped_at is not None:
        raise RejectedError(400, "This campaign was stopped.")
    return unpack(row.content)


def _missing(overrides: Content, names: Names) -> list[FieldProblem]:
    problems = []
    if "execute_id" not in overrides:
        problems.append(FieldProblem(wire_name("execute_id", names), "is required"))
    if not overrides.get("target_existing_only", 1) and overrides.get("target_by") != "user_id":
        name = wire_name("target_by", names)
        problems.append(FieldProblem(name, f"must be {names['target_by_user_id']} if profiles are created"))
    return problems


def _missing_target(content: Content, names: Names) -> list[FieldProblem]:
    if content.get("target") or content.get("target_with_params") or is_segmented(content):
        return []
    text = "is required, because the template selects no recipients: give the identifiers to send to"
    return [FieldProblem(wire_name("target", names), text)]
