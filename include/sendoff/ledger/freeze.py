"""Writing a launch into the ledger as it is frozen: its audience, whom it leaves out, its segments and dispatches.

Every function works in the transaction of :meth:`sendoff.ledger.launches.Launches.freeze`, and holds few of the
people's values in memory at once.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import sqlalchemy as sa

from sendoff.audience import Audience, Segment
from sendoff.audience.identifiers import Identifiers, empty
from sendoff.ledger.schema import audiences, dispatches
from sendoff.ledger.schema import segments as segments_table
from sendoff.ledger.stored_sets import GROUPS, LEFT_OUT, batches
from sendoff.period import dispatch_key

_LOCK = 0x4C41554E  # any number that no other pair of the database's advisory locks begins with


def await_others(link: sa.Connection, connection: str) -> None:
    """Wait for whoever freezes a launch of the same connection, so that what follows sees that launch.

    Nobody else waits: other launches are claimed, paused and stopped meanwhile.
    """
    if link.dialect.name == "postgresql":  # SQLite lets one writer in at a time anyway
        link.execute(sa.select(sa.func.pg_advisory_xact_lock(_LOCK, sa.func.hashtext(connection))))


def insert_audience(
    link: sa.Connection, launch_key: str, audience: Audience | None, largest_part: int
) -> None:
    """Store what is known of an audience, and its groups; its people are those of its segments and its holdout."""
    identifiers = audience.identifiers if audience else empty("integer")
    link.execute(
        sa.insert(audiences),
        {
            "launch_key": launch_key,
            "identified_by": audience.identified_by if audience else "device_id",
            "kind": identifiers.kind,
            "is_chosen_by_service": audience is None,
            "rows": audience.rows if audience else 0,
            "size": len(identifiers),
            "dropped": dict(audience.dropped) if audience else {},
            "fingerprint": audience.fingerprint if audience else "",
        },
    )
    groups = (
        ({"launch_key": launch_key, "name": name, "value": value}, members)
        for name, values in (audience.groups if audience else {}).items()
        for value, members in values.items()
    )
    GROUPS.insert(link, groups, largest=largest_part)


def insert_left_out(
    link: sa.Connection, launch_key: str, left_out: Mapping[str, Identifiers], largest_part: int
) -> None:
    """Store whom a launch leaves out, by reason; a reason that names nobody is not kept."""
    sets = (
        ({"launch_key": launch_key, "reason": reason}, members)
        for reason, members in left_out.items()
        if len(members)
    )
    LEFT_OUT.insert(link, sets, largest=largest_part)


def insert_segments(link: sa.Connection, launch_key: str, segments: Iterable[Segment]) -> None:
    """Store segments in their order, many at once, each with its planned dispatch."""
    rows = (_segment_row(launch_key, number, segment) for number, segment in enumerate(segments, start=1))
    for batch in batches(rows):
        link.execute(sa.insert(segments_table), batch)
        link.execute(sa.insert(dispatches), [_dispatch_row(row) for row in batch])


def _segment_row(launch_key: str, number: int, segment: Segment) -> dict[str, Any]:
    return {
        "launch_key": launch_key,
        "number": number,
        "language": segment.edition.language,
        "variant": segment.edition.variant,
        "time_zone": segment.edition.time_zone,
        "wave": segment.wave,
        "size": len(segment),
        "fingerprint": segment.fingerprint(),
        "identifiers": None if segment.identifiers is None else segment.identifiers.to_bytes(),
        "parameters": segment.parameters,
    }


def _dispatch_row(segment: Mapping[str, Any]) -> dict[str, Any]:
    return {
        "dispatch_key": dispatch_key(segment["launch_key"], segment["fingerprint"]),
        "launch_key": segment["launch_key"],
        "segment": segment["number"],
        "wave": segment["wave"],
        "time_zone": segment["time_zone"] or "",
        "state": "planned",
        "attempt": 0,
    }
