"""Deletion of the recipients of old launches. The launches stay, with their counts and reports.

A launch is first marked, together with the others of a run. From then on it is never reconciled or counted again, and
whoever needs its recipients gets an error. Then its sets are replaced, a few rows per transaction, by a value that
cannot be read as a set. An entry of the audit log ends the deletion. Until then, each run takes it up again.

The sizes of the sets stay, because pages and reports show them.
"""

from __future__ import annotations

from collections.abc import Collection
from datetime import datetime
from typing import Any

import sqlalchemy as sa

from sendoff.audience.identifiers import deleted_before
from sendoff.campaign import Campaign
from sendoff.ledger.control.audit_log import Decision, append_decision
from sendoff.ledger.erasure.person_columns import IS_REFUSAL, REDACTED, SETS, is_kept
from sendoff.ledger.launches.launch_counts import OPTED_OUT
from sendoff.ledger.storage.bulk import in_parts
from sendoff.ledger.storage.database import Database, LedgerPart
from sendoff.ledger.storage.erasure_state import raise_version
from sendoff.ledger.storage.schema import (
    attempts,
    audiences,
    decisions,
    dispatches,
    erasures,
    launch_sources,
    launches,
    outcomes,
    parked_post_backs,
    reports,
    segments,
    suppressions,
)
from sendoff.service.wire import NOTHING
from sendoff.states import LIVING, UNFINISHED, DecisionKind, DispatchState

REPORT_IS_OLD = "the report is older than the last change"
ERASURE_IS_OPEN = "an erasure is not finished: run sendoff forget --continue"
_IS_REPEATED = "the service sends it repeatedly"
_WRITTEN_AT_ONCE = 50  # rows per transaction


class OldRecipients(LedgerPart):
    """The deletion of the recipients of a ledger's old launches."""

    def of(self, before: datetime) -> dict[str, str | None]:
        """Return the launches from before a moment that have their recipients: key -> why they stay, or None.

        A launch is from before if it was made, sent and due at the service before, and each attempt began before.
        """
        rows = self._database.rows(_old(before))
        return {row.launch_key: row.why or _repeats(row, before) for row in rows}

    def mark(self, launch_keys: Collection[str], before: datetime) -> list[str]:
        """Mark launches whose recipients are to be deleted, and return them; others changed since :meth:`of`.

        Return none while an erasure is not finished, because it rewrites the sets too.
        """
        with self._database.write() as db:
            # Launches, totals and verdicts that were made from these recipients are not stored any more.
            raise_version(db)
            if db.dialect.name == "postgresql":  # SQLite has one writer anyway
                db.execute(sa.text("LOCK TABLE erasures IN SHARE MODE"))
            if db.scalar(_OPEN_ERASURES):
                return []
            marked = []
            for keys in in_parts(list(launch_keys), _WRITTEN_AT_ONCE):
                old = _old(before).where(launches.c.launch_key.in_(keys))
                complete = [row.launch_key for row in db.execute(old) if row.why is None]
                own = launches.c.launch_key.in_(complete)
                db.execute(sa.update(launches).where(own).values(recipients_deleted_before=before))
                marked += complete
        return marked

    def unfinished(self) -> list[str]:
        """Return the marked launches whose deletion is not finished, in the order of their keys."""
        return self._database.scalars(_UNFINISHED)

    def delete(self, launch_key: str, why: str, now: datetime) -> int:
        """Delete the recipients of a marked launch, and return their number.

        It is safe to stop at any moment, and to run in several processes at once. A second run adds no second entry to
        the audit log, and returns 0.
        """
        empty_launch(self._database, launch_key)
        with self._database.write() as db:
            own = launches.c.launch_key == launch_key
            db.execute(sa.select(launches.c.launch_key).where(own).with_for_update())
            if db.scalar(_UNFINISHED.where(own)) is None:
                return 0
            detail = dict(db.execute(_COUNTS.where(own)).one()._mapping)
            kind = DecisionKind.RECIPIENTS_DELETED
            append_decision(db, Decision(launch_key, kind, "sendoff", why, now, detail))
        return int(detail["recipients"])

    def unlink_opt_outs(self) -> None:
        """Remove from the suppression list which launch led to an entry, if the launch's recipients were deleted.

        The entries stay. People may also opt out later at the address in an old message.
        """
        gone = suppressions.c.launch_key.in_(_DELETED)
        with self._database.write() as db:
            db.execute(sa.update(suppressions).where(gone).values(launch_key=None))


def finish_deletions(database: Database) -> None:
    """Delete the rest of the recipients whose deletion was interrupted, without an entry in the audit log."""
    for launch_key in database.scalars(_UNFINISHED):
        empty_launch(database, launch_key)


def empty_launch(database: Database, launch_key: str) -> None:
    """Replace every set of a marked launch, and empty the other columns that may name its recipients."""
    query = sa.select(launches.c.recipients_deleted_before).where(launches.c.launch_key == launch_key)
    marker = deleted_before(database.scalar(query).date())
    of_launch = sa.select(dispatches.c.dispatch_key).where(dispatches.c.launch_key == launch_key)
    for table in dict.fromkeys(column.table for column in SETS):
        if "launch_key" in table.c:
            own = table.c.launch_key == launch_key
        elif "dispatch_key" in table.c:
            own = table.c.dispatch_key.in_(of_launch)
        else:  # a list, which belongs to no launch
            continue
        sets = [column for column in SETS if column.table is table]
        changes: dict[str, Any] = {
            column.name: sa.case((column.is_not(None), marker), else_=None) for column in sets
        }
        named = [is_kept(column) for column in sets]
        if table is segments:
            body = segments.c.body
            changes |= {"template_values": None, "body": sa.case((body.is_not(None), NOTHING), else_=None)}
            named += [segments.c.template_values.is_not(None), body != NOTHING]
        _replace(database, table, sa.and_(own, sa.or_(*named)), changes)
    words = sa.and_(outcomes.c.dispatch_key.in_(of_launch), IS_REFUSAL, outcomes.c.reason != REDACTED)
    _replace(database, outcomes, words, {"reason": REDACTED})


def _replace(
    database: Database, table: sa.Table, where: sa.ColumnElement[bool], changes: dict[str, Any]
) -> None:
    """Change rows, a few per transaction."""
    keys = list(table.primary_key.columns)
    rows = [tuple(row) for row in database.rows(sa.select(*keys).where(where))]
    for some in in_parts(rows, _WRITTEN_AT_ONCE):
        with database.write_in_turn() as db:
            # The keys alone would make SQLite read the whole table.
            db.execute(sa.update(table).where(where, sa.tuple_(*keys).in_(some)).values(changes))


def _repeats(row: sa.Row[Any], before: datetime) -> str | None:
    """Return why a launch that the service sends repeatedly stays; None if it ended before."""
    if row.repeated is None:
        return None
    send = Campaign.frozen(row.repeated).send
    ends_at = send.ends_at() if hasattr(send, "ends_at") else None
    return None if ends_at is not None and ends_at < before else _IS_REPEATED


def _old(before: datetime) -> sa.Select[Any]:
    """Return the query for the launches from before a moment, with the reason why one must stay."""
    is_old = sa.and_(
        launches.c.recipients_deleted_before.is_(None),
        launches.c.created_at < before,
        sa.func.coalesce(launches.c.sends_at, launches.c.created_at) < before,
        sa.not_(
            sa.exists().where(
                _OF_LAUNCH,
                attempts.c.dispatch_key == dispatches.c.dispatch_key,
                attempts.c.started_at >= before,
            )
        ),
    )
    return sa.select(launches.c.launch_key, _WHY.label("why"), _REPEATED.label("repeated")).where(is_old)


_OF_LAUNCH = dispatches.c.launch_key == launches.c.launch_key
_IS_LIVING = launches.c.state.in_(LIVING)
_sourced = launches.alias("sourced")
_of_sourced = dispatches.alias("of_sourced")


def _has(*states: DispatchState) -> sa.Exists:
    return sa.exists().where(_OF_LAUNCH, dispatches.c.state.in_(states)).correlate(launches)


_IS_PARKED = (
    sa.exists()
    .where(_OF_LAUNCH, parked_post_backs.c.dispatch_key == dispatches.c.dispatch_key)
    .correlate(launches)
)
_IS_SOURCE = (
    sa.exists()
    .where(
        launch_sources.c.source == launches.c.launch_key,
        _sourced.c.launch_key == launch_sources.c.launch_key,
        _sourced.c.state.in_(LIVING),
        _of_sourced.c.launch_key == _sourced.c.launch_key,
        _of_sourced.c.state.in_((*UNFINISHED, DispatchState.IN_DOUBT)),
    )
    .correlate(launches)
)
_OF_REPORT = reports.c.launch_key == launches.c.launch_key
_IS_REPORTED = (
    sa.exists()
    .where(
        _OF_REPORT,
        reports.c.revision == launches.c.revision,
        reports.c.as_of >= sa.func.coalesce(launches.c.sends_at, reports.c.as_of),
    )
    .correlate(launches)
)
_HAS_OLD_TABLES = sa.exists().where(_OF_REPORT, launches.c.tables_as_of < reports.c.as_of).correlate(launches)
_WHY = sa.case(
    (sa.and_(_IS_LIVING, _has(DispatchState.PLANNED)), "requests are still to be made"),
    (_has(DispatchState.IN_FLIGHT), "requests are in progress"),
    (_has(DispatchState.IN_DOUBT), "requests are in doubt"),
    (_IS_PARKED, "post-backs are parked"),
    (_IS_SOURCE, "another launch goes to its recipients, and is not finished"),
    (sa.not_(_IS_REPORTED), REPORT_IS_OLD),
    (_HAS_OLD_TABLES, "the tables in the warehouse are older than the report"),
    else_=None,
)
_REPEATED = sa.case(
    (
        sa.and_(launches.c.sends_at.is_(None), _has(DispatchState.ACCEPTED, DispatchState.WRITTEN_OFF)),
        launches.c.definition,
    ),
    else_=None,
)
_OPEN_ERASURES = sa.select(sa.func.count()).where(erasures.c.finished_at.is_(None))
_IS_NOTED = sa.exists().where(
    decisions.c.launch_key == launches.c.launch_key, decisions.c.kind == DecisionKind.RECIPIENTS_DELETED
)
_MARKED = sa.select(launches.c.launch_key).where(launches.c.recipients_deleted_before.is_not(None))
_UNFINISHED = _MARKED.where(sa.not_(_IS_NOTED)).order_by(launches.c.launch_key)
_DELETED = _MARKED.where(_IS_NOTED)
_COUNTS = sa.select(audiences.c.size.label("recipients"), OPTED_OUT.label("opted_out")).join(
    launches, launches.c.launch_key == audiences.c.launch_key
)
