"""The execute request (section 4.3): one more sending of a template, to the targets it names."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from sqlalchemy import Connection, func, select

from messaging_service.campaigns import BY_API, Content, add_run, load_content, merge, not_yet, read_content
from messaging_service.fields import EXECUTION, moment, wire_name
from messaging_service.names import Names
from messaging_service.replies import Problem, RejectedError
from messaging_service.store import runs


@dataclass(frozen=True, slots=True)
class Execution:
    """An execute request that is right in itself; whether there is such a template is not known yet."""

    campaign_id: int
    overrides: Content
    due_at: datetime
    warnings: tuple[str, ...]


def plan_execution(body: Mapping[str, Any], names: Names, now: datetime) -> Execution:
    """Check an execute request; RejectedError (400) lists every problem found."""
    overrides, checked = read_content(body, EXECUTION, names)
    problems = checked.problems or [*_missing(overrides, names), *not_yet(overrides, names)]
    if problems:
        raise RejectedError(400, "The campaign was not executed: some fields are wrong.", problems)
    return Execution(
        campaign_id=int(overrides["execute_id"]),
        overrides=overrides,
        due_at=_moment(overrides.get("execute_time"), now),
        warnings=tuple(f"unknown member: {name}" for name in checked.unknown),
    )


def execute_campaign(connection: Connection, execution: Execution) -> int:
    """Store one more run of a template and give its id; RejectedError where there is no such template."""
    content = load_content(connection, execution.campaign_id)
    if content is None:
        raise RejectedError(404, "There is no such campaign.")
    if content.get("campaign_trigger") != BY_API:
        raise RejectedError(400, "This campaign is not triggered by API, so it cannot be executed.")
    before = select(func.count()).where(runs.c.campaign_id == execution.campaign_id)
    return add_run(
        connection,
        execution.campaign_id,
        connection.execute(before).scalar_one() + 1,
        merge(content, execution.overrides),
        execution.due_at,
        execution.overrides,
    )


def _missing(overrides: Content, names: Names) -> list[Problem]:
    problems = []
    if "execute_id" not in overrides:
        problems.append(Problem(wire_name("execute_id", names), "is required"))
    if not (overrides.get("target") or overrides.get("target_with_params")):
        problems.append(Problem(wire_name("target", names), "is required: the identifiers to send to"))
    if not overrides.get("target_existing_only", 1):
        name = wire_name("target_existing_only", names)
        problems.append(Problem(name, "0 is not supported by this version of the local service"))
    return problems


def _moment(given: int | str | None, now: datetime) -> datetime:
    if given is None:
        return now
    parsed = moment(str(given))
    return parsed.astimezone(UTC) if parsed else now
