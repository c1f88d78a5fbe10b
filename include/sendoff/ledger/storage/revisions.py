"""The revision of a launch. Each change that a report may show raises it, in the same transaction."""

from __future__ import annotations

from collections.abc import Iterable

import sqlalchemy as sa

from sendoff.ledger.storage.schema import dispatches, launches, reports

_IS_REPORTED = sa.exists().where(reports.c.launch_key == launches.c.launch_key).correlate(launches)

REVISION_AFTER_CHANGE = launches.c.revision + sa.case((_IS_REPORTED, 1), else_=0)
"""The revision of a launch after a change. It stays the same before the first report, which shows the change anyway."""


def bump_revision(db: sa.Connection, launch_keys: Iterable[str]) -> None:
    """Raise the revision of launches that received post-backs."""
    _add(db, _ADD, launch_keys)


def bump_revision_if_reported(db: sa.Connection, launch_keys: Iterable[str]) -> None:
    """Raise the revision of launches whose dispatches changed state, if they have a report."""
    _add(db, _ADD.where(_IS_REPORTED), launch_keys)


def bump_revision_of_dispatch(db: sa.Connection, dispatch_key: str) -> None:
    """Raise the revision of a dispatch's launch after the dispatch changed state, if the launch has a report.

    Without a report nothing is written, so workers that send the same launch do not wait for each other.
    """
    db.execute(_ADD_OF_DISPATCH, {"dispatch": dispatch_key})


def _add(db: sa.Connection, add: sa.Update, launch_keys: Iterable[str]) -> None:
    rows = [{"key": key} for key in sorted(set(launch_keys))]  # always in the same order, to avoid deadlocks
    if rows:
        db.execute(add, rows)


_ADD = (
    sa.update(launches)
    .where(launches.c.launch_key == sa.bindparam("key"))
    .values(revision=launches.c.revision + 1)
)
_ADD_OF_DISPATCH = (
    sa.update(launches)
    .where(
        launches.c.launch_key
        == sa.select(dispatches.c.launch_key)
        .where(dispatches.c.dispatch_key == sa.bindparam("dispatch"))
        .scalar_subquery(),
        _IS_REPORTED,
    )
    .values(revision=launches.c.revision + 1)
)
