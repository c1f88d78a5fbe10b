"""Comparisons of what recipients did after a launch. They hold only counts, shares or means, and intervals."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any

import sqlalchemy as sa

from sendoff.ledger.storage.database import LedgerPart
from sendoff.ledger.storage.schema import comparisons


@dataclass(frozen=True, slots=True)
class StoredComparison:
    """The newest comparison by one outcome, as JSON values."""

    what: str
    compared_at: datetime
    result: Mapping[str, Any]


class Comparisons(LedgerPart):
    """The comparisons of a ledger."""

    def store(self, launch_key: str, what: str, result: Mapping[str, Any], now: datetime) -> None:
        """Store a comparison in place of all earlier ones of the launch.

        A launch has one outcome query. If it returns something else now, comparisons by the old one are obsolete.
        """
        values = {"launch_key": launch_key, "what": what, "compared_at": now, "result": result}
        with self._database.write() as db:
            db.execute(
                sa.delete(comparisons).where(
                    comparisons.c.launch_key == launch_key, comparisons.c.what != what
                )
            )
            db.execute(self._database.insert_or_replace(comparisons), values)

    def of_launch(self, launch_key: str) -> list[StoredComparison]:
        """Return the stored comparison of a launch, if there is one. An older version may have stored several."""
        columns = (comparisons.c.what, comparisons.c.compared_at, comparisons.c.result)
        query = sa.select(*columns).where(comparisons.c.launch_key == launch_key).order_by(comparisons.c.what)
        return [StoredComparison(**row._mapping) for row in self._database.rows(query)]
