"""News: what happened to a launch that its newest report does not show yet, counted in the transaction it happened in.

Only numbers are compared, so that finding the launches with news reads no report and no post-back.
"""

from __future__ import annotations

from collections.abc import Iterable

import sqlalchemy as sa

from sendoff.ledger.schema import dispatches, launches, reports

_IS_REPORTED = sa.exists().where(reports.c.launch_key == launches.c.launch_key).correlate(launches)

ONE_MORE_IF_REPORTED = launches.c.news + sa.case((_IS_REPORTED, 1), else_=0)
"""What ``news`` becomes by something that happened to a launch; before its first report, that shows it anyway."""


def add_news(connection: sa.Connection, launch_keys: Iterable[str]) -> None:
    """Count that something came back of some launches."""
    _add(connection, _ADD, launch_keys)


def add_news_if_reported(connection: sa.Connection, launch_keys: Iterable[str]) -> None:
    """Count that dispatches of some launches have changed their state, where those have a report."""
    _add(connection, _ADD.where(_IS_REPORTED), launch_keys)


def add_news_of_dispatch(connection: sa.Connection, dispatch_key: str) -> None:
    """Count that the state of a dispatch has changed, where its launch has a report.

    Before, nothing is written: workers that send one launch at the same time do not wait for each other.
    """
    connection.execute(_ADD_OF_DISPATCH, {"dispatch": dispatch_key})


def _add(connection: sa.Connection, add: sa.Update, launch_keys: Iterable[str]) -> None:
    rows = [
        {"key": key} for key in sorted(set(launch_keys))
    ]  # in one order, so that nobody waits in a circle
    if rows:
        connection.execute(add, rows)


_ADD = (
    sa.update(launches).where(launches.c.launch_key == sa.bindparam("key")).values(news=launches.c.news + 1)
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
    .values(news=launches.c.news + 1)
)
