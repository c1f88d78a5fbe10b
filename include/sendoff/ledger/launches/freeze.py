"""Storing a launch when it is frozen: the audience, the suppressed recipients, the segments, and the dispatches.

Every function runs in the transaction of :meth:`~sendoff.ledger.launches.launches.Launches.freeze`, and keeps only a
few of the recipients' template values in memory at a time.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

import sqlalchemy as sa

from sendoff.audience import Audience, Segment
from sendoff.audience.identifiers import Identifiers, empty
from sendoff.campaign import Period, Slot, dispatch_key
from sendoff.ledger.control.audit_log import Decision, append_decision
from sendoff.ledger.launches.launch_record import period_columns
from sendoff.ledger.storage.schema import audiences, dispatches, launches
from sendoff.ledger.storage.schema import segments as segments_table
from sendoff.ledger.storage.stored_sets import GROUPS, SUPPRESSED, batches
from sendoff.ledger.suppression.active_verdicts import LaunchSource, insert_sources
from sendoff.states import DispatchState, LaunchState

_LOCK = 0x4C41554E  # any number that no other advisory lock of the database uses as its first key


def await_others(db: sa.Connection, connection: str) -> None:
    """Wait until no other process freezes a launch of the same connection, so that this one sees its result.

    Other work goes on: launches can be claimed, paused, and stopped meanwhile.
    """
    if db.dialect.name == "postgresql":  # SQLite admits one writer at a time anyway
        db.execute(sa.select(sa.func.pg_advisory_xact_lock(_LOCK, sa.func.hashtext(connection))))


@dataclass(frozen=True, slots=True)
class Overlap:
    """The launches that keep a period from being sent without a resend number.

    They are those of its campaign for another, overlapping period, and resends of this one. ``formerly``: the
    campaign's earlier names, under which every launch for this period counts. ``only_same``: no other period counts.
    Periods of other partitions never overlap.
    """

    connection: str
    campaign: str
    period: Period
    formerly: Sequence[str] = ()
    only_same: bool = False


@dataclass(frozen=True, slots=True)
class NewLaunch:
    """A launch that is about to be stored."""

    launch_key: str
    connection: str
    campaign: str
    period: Period
    resend: int
    definition: str  # the campaign as JSON
    audience: Audience | None  # None: the service chooses the recipients
    segments: Iterable[Segment]
    created_at: datetime
    state: LaunchState = LaunchState.RELEASED
    due_at: datetime | None = None
    sends_at: datetime | None = None
    suppressed: Mapping[str, Identifiers] | None = None  # identifiers that are left out, by reason
    origin: str | None = None  # the run and task that make it, and a digest of its campaign and audience
    decisions: Sequence[Decision] = ()  # stored with the launch, in this order
    sources: Sequence[LaunchSource] = ()  # other launches whose verdicts decide about its recipients
    known_launches: int | None = None  # the connection's count, if suppression depends on it
    overlap: Overlap | None = None  # the launches that keep it from being sent
    known_erasures: int | None = None  # the version of the erasures that the audience respects


def insert_launch(db: sa.Connection, launch: NewLaunch) -> None:
    """Store a launch and everything that it freezes."""
    names = ("launch_key", "connection", "campaign", "resend", "definition", "created_at", "state")
    values = {name: getattr(launch, name) for name in (*names, "due_at", "sends_at", "origin")}
    db.execute(sa.insert(launches), values | period_columns(launch.period))
    _insert_audience(db, launch.launch_key, launch.audience)
    # A reason without recipients is not stored.
    suppressed = {reason: members for reason, members in (launch.suppressed or {}).items() if len(members)}
    keyed = (
        ({"launch_key": launch.launch_key, "reason": reason}, members)
        for reason, members in suppressed.items()
    )
    SUPPRESSED.insert(db, keyed)
    is_compared = "holdout" in suppressed
    numbered = enumerate(launch.segments, start=1)
    for batch in batches(_segment_row(launch.launch_key, number, segment) for number, segment in numbered):
        db.execute(sa.insert(segments_table), batch)
        db.execute(sa.insert(dispatches), [_dispatch_row(row) for row in batch])
        is_compared = is_compared or any(row["variant"] or row["arm"] for row in batch)
    if is_compared:
        _number_comparison(db, launch)
    insert_sources(db, launch.launch_key, launch.sources)
    for decision in launch.decisions:
        append_decision(db, decision)


def _number_comparison(db: sa.Connection, launch: NewLaunch) -> None:
    """Store the number of a launch that compares something: one more than the newest such launch of its campaign.

    The number stays, so that a report of this launch has the same level at every look.
    """
    largest = sa.select(sa.func.max(launches.c.comparison_number)).where(
        launches.c.connection == launch.connection, launches.c.campaign == launch.campaign
    )
    number = 1 + (db.scalar(largest) or 0)
    is_own = launches.c.launch_key == launch.launch_key
    db.execute(sa.update(launches).where(is_own).values(comparison_number=number))


def _insert_audience(db: sa.Connection, launch_key: str, audience: Audience | None) -> None:
    """Store an audience's figures and groups. The segments and the holdout contain its identifiers."""
    identifiers = audience.identifiers if audience else empty("integer")
    db.execute(
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
    GROUPS.insert(db, groups)


def _segment_row(launch_key: str, number: int, segment: Segment) -> dict[str, Any]:
    return {
        "launch_key": launch_key,
        "number": number,
        "language": segment.variation.language,
        "variant": segment.variation.variant,
        "time_zone": segment.variation.time_zone,
        "hour": segment.hour,
        "arm": segment.arm,
        "wave": segment.wave,
        "size": len(segment),
        "fingerprint": segment.fingerprint(),
        "identifiers": None if segment.identifiers is None else segment.identifiers.to_bytes(),
        "template_values": segment.template_values,
        "body": segment.body,
    }


def _dispatch_row(segment: Mapping[str, Any]) -> dict[str, Any]:
    return {
        "dispatch_key": dispatch_key(segment["launch_key"], segment["fingerprint"]),
        "launch_key": segment["launch_key"],
        "segment": segment["number"],
        "wave": segment["wave"],
        "time_zone": str(Slot(segment["time_zone"], segment["hour"])),
        "state": DispatchState.PLANNED,
        "attempt": 0,
    }
