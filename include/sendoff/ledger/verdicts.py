"""Verdicts and reports in the ledger: what reconciliation concluded of a launch, and when."""

from __future__ import annotations

from collections.abc import Mapping

import sqlalchemy as sa

from sendoff.errors import NotFoundError
from sendoff.figures import Figures
from sendoff.identifiers import Identifiers, from_bytes
from sendoff.ledger.database import Database
from sendoff.ledger.tables import audiences, dispatches, reports, returns, verdicts


class Verdicts:
    """The verdicts and the newest report of each launch."""

    def __init__(self, database: Database) -> None:
        self._database = database

    def store(self, figures: Figures, sets: Mapping[str, Identifiers]) -> None:
        """Replace the verdicts and the report of a launch; both belong to the same moment."""
        rows = [
            {
                "launch_key": figures.launch_key,
                "verdict": verdict,
                "size": len(identifiers),
                "identifiers": identifiers.to_bytes(),
            }
            for verdict, identifiers in sets.items()
        ]
        report = {"launch_key": figures.launch_key, "as_of": figures.as_of, "figures": figures.to_json()}
        with self._database.write() as connection:
            connection.execute(self._database.insert_or_replace(verdicts), rows)
            connection.execute(self._database.insert_or_replace(reports), report)

    def sets(self, launch_key: str) -> dict[str, Identifiers]:
        """Give the identifiers of a launch by verdict, as of its newest report."""
        query = (
            sa.select(verdicts.c.verdict, audiences.c.kind, verdicts.c.identifiers)
            .join(audiences, audiences.c.launch_key == verdicts.c.launch_key)
            .where(verdicts.c.launch_key == launch_key)
        )
        with self._database.read() as connection:
            return {row.verdict: from_bytes(row.kind, row.identifiers) for row in connection.execute(query)}

    def figures(self, launch_key: str) -> Figures:
        """Give the newest report of a launch, or raise NotFoundError."""
        query = sa.select(reports.c.figures).where(reports.c.launch_key == launch_key)
        with self._database.read() as connection:
            values = connection.scalar(query)
        if values is None:
            raise NotFoundError(f"launch {launch_key} has not been reconciled yet")
        return Figures.from_json(values)

    def changed(self) -> list[str]:
        """Give the keys of launches with post-backs that their newest report does not count."""
        counted = returns.c.deliveries + returns.c.opens
        query = (
            sa.select(dispatches.c.launch_key, sa.func.sum(counted).label("post_backs"), reports.c.figures)
            .join(returns, returns.c.dispatch_key == dispatches.c.dispatch_key)
            .outerjoin(reports, reports.c.launch_key == dispatches.c.launch_key)
            .group_by(dispatches.c.launch_key, reports.c.launch_key)
        )
        with self._database.read() as connection:
            return [
                row.launch_key
                for row in connection.execute(query)
                if row.figures is None or sum(row.figures["post_backs"].values()) != row.post_backs
            ]
