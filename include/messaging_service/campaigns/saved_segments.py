"""Saved segments and locations, which campaigns refer to by id (sections 2.9, 2.10, 4.4)."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from sqlalchemy import Connection, Table, insert, select

from messaging_service.campaigns.conditions import check_conditions, wanted_segments
from messaging_service.envelope import FieldProblem, RejectedError
from messaging_service.store import find
from messaging_service.tables import locations, segments

_LONGEST_TITLE = 250


def create_segment(connection: Connection, title: Any, conditions: Any, now: float) -> int:
    """Save a segment and return its id. Raise RejectedError (400) with all problems found."""
    problems = list(_wrong_title(title))
    if not isinstance(conditions, dict):
        problems.append(FieldProblem("conditions", "must be an object"))
    else:
        problems += check_conditions(conditions)
        if not problems:
            problems += unknown_segments(connection, "conditions", wanted_segments(conditions))
    if problems:
        raise RejectedError(400, "The segment was not created: some fields are wrong.", problems)
    row = {"title": title, "conditions": conditions, "created_at": now}
    return _insert(connection, segments, row)


def create_location(connection: Connection, title: Any, now: float) -> int:
    """Save a location and return its id. It has no coordinates, because hits report which devices are there."""
    problems = list(_wrong_title(title))
    if problems:
        raise RejectedError(400, "The location was not created: some fields are wrong.", problems)
    return _insert(connection, locations, {"title": title, "created_at": now})


def list_segments(connection: Connection) -> list[dict[str, Any]]:
    """Return every saved segment as JSON."""
    rows = connection.execute(select(segments.c.id, segments.c.title, segments.c.conditions).order_by("id"))
    return [dict(row) for row in rows.mappings()]


def list_locations(connection: Connection) -> list[dict[str, Any]]:
    """Return every location as JSON."""
    rows = connection.execute(select(locations.c.id, locations.c.title).order_by("id"))
    return [dict(row) for row in rows.mappings()]


def unknown_segments(connection: Connection, name: str, ids: Iterable[int]) -> Iterator[FieldProblem]:
    """Yield a problem for each of these segments that does not exist."""
    return _unknown(connection, segments, name, ids, "segment")


def unknown_locations(connection: Connection, name: str, ids: Iterable[int]) -> Iterator[FieldProblem]:
    """Yield a problem for each of these locations that does not exist."""
    return _unknown(connection, locations, name, ids, "location")


def _unknown(
    connection: Connection, table: Table, name: str, ids: Iterable[int], what: str
) -> Iterator[FieldProblem]:
    for identifier in dict.fromkeys(ids):
        if find(connection, table, identifier) is None:
            yield FieldProblem(name, f"there is no {what} {identifier}")


def _insert(connection: Connection, table: Table, row: Mapping[str, Any]) -> int:
    created: int = connection.execute(insert(table).values(row).returning(table.c.id)).scalar_one()
    return created


def _wrong_title(title: Any) -> Iterator[FieldProblem]:
    if not isinstance(title, str) or not title.strip():
        yield FieldProblem("title", "is required")
    elif len(title) > _LONGEST_TITLE:
        yield FieldProblem("title", f"must not be longer than {_LONGEST_TITLE} characters")
