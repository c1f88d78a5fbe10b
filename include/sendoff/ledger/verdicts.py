"""Verdicts and reports in the ledger: what reconciliation concluded of a launch, and when."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime

import sqlalchemy as sa

from sendoff.audience.identifiers import Identifiers
from sendoff.errors import NotFoundError
from sendoff.figures import Figures
from sendoff.ledger.database import Database
from sendoff.ledger.schema import launches, reports, verdicts
from sendoff.ledger.stored_sets import LARGEST, VERDICTS


class Verdicts:
    """The verdicts and the newest report of each launch."""

    def __init__(self, database: Database, *, largest_part: int = LARGEST) -> None:
        self._database = database
        self._largest_part = largest_part

    def store(self, figures: Figures, sets: Mapping[str, Identifiers], *, news: int = 0) -> None:
        """Replace the verdicts and the report of a launch; both belong to the same moment.

        ``news``: what :meth:`news` gave before anything was read that they show.
        """
        key = figures.launch_key
        report = {"launch_key": key, "as_of": figures.as_of, "news": news, "figures": figures.to_json()}
        rows = (({"launch_key": key, "verdict": verdict}, people) for verdict, people in sets.items())
        with self._database.write() as connection:
            # The report comes first: its row makes another process that stores the same launch wait.
            connection.execute(self._database.insert_or_replace(reports), report)
            connection.execute(sa.delete(verdicts).where(verdicts.c.launch_key == key))
            VERDICTS.insert(connection, rows, largest=self._largest_part)

    def sets(self, launch_key: str) -> dict[str, Identifiers]:
        """Give the identifiers of a launch by verdict, as of its newest report."""
        with self._database.read() as connection:
            return VERDICTS.sets(connection, verdicts.c.launch_key == launch_key)

    def figures(self, launch_key: str) -> Figures:
        """Give the newest report of a launch, or raise NotFoundError."""
        query = sa.select(reports.c.figures).where(reports.c.launch_key == launch_key)
        with self._database.read() as connection:
            values = connection.scalar(query)
        if values is None:
            raise NotFoundError(f"launch {launch_key} has not been reconciled yet")
        return Figures.from_json(values)

    def news(self, launch_key: str) -> int:
        """Give how much has happened to a launch; to be asked before a report is made, and stored with it.

        It is one less while the launch has no report: what happens to it until then may see none, and count nothing. So
        the first report is always made again.
        """
        query = (
            sa.select(launches.c.news - sa.case((reports.c.launch_key.is_(None), 1), else_=0))
            .outerjoin(reports, reports.c.launch_key == launches.c.launch_key)
            .where(launches.c.launch_key == launch_key)
        )
        with self._database.read() as connection:
            return connection.scalar(query) or 0

    def changed(self, now: datetime | None = None) -> list[str]:
        """Give the keys of the launches whose newest report does not show all that happened to them, oldest first.

        Also of those that the service sends after the moment of their report and up to ``now``: from then on, silence
        means something. A launch without a report is given once anything came back of it.
        """
        sent = sa.and_(
            reports.c.as_of < launches.c.sends_at, launches.c.sends_at <= (now or datetime.now(UTC))
        )
        query = (
            sa.select(launches.c.launch_key)
            .outerjoin(reports, reports.c.launch_key == launches.c.launch_key)
            .where(sa.or_(launches.c.news != sa.func.coalesce(reports.c.news, 0), sent))
            .order_by(launches.c.created_at, launches.c.launch_key)
        )
        with self._database.read() as connection:
            return list(connection.scalars(query))
