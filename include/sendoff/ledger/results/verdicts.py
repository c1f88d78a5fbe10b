"""Verdicts and reports in the ledger: the results of reconciling a launch, and whether they are current.

A report is stale if the launch's revision changed since. Finding stale reports reads no report and no post-back.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime

import sqlalchemy as sa

from sendoff.audience.identifiers import Identifiers
from sendoff.errors import ConflictError, NotFoundError
from sendoff.figures import LaunchStats
from sendoff.ledger.storage.database import LedgerPart
from sendoff.ledger.storage.erasure_state import check_version
from sendoff.ledger.storage.schema import audiences, launches, reports, verdicts
from sendoff.ledger.storage.stored_sets import VERDICTS

_TRIES = 5
_ERASED = sa.select(audiences.c.erased).where(audiences.c.launch_key == sa.bindparam("launch"))
_FIGURES = (
    sa.select(reports.c.figures, audiences.c.identified_by)
    .join(audiences, audiences.c.launch_key == reports.c.launch_key)
    .where(reports.c.launch_key == sa.bindparam("launch"))
)
_REVISION = (
    sa.select(launches.c.revision - sa.case((reports.c.launch_key.is_(None), 1), else_=0))
    .outerjoin(reports, reports.c.launch_key == launches.c.launch_key)
    .where(launches.c.launch_key == sa.bindparam("launch"))
)
_LAUNCHES = (
    sa.select(launches.c.launch_key)
    .outerjoin(reports, reports.c.launch_key == launches.c.launch_key)
    .where(launches.c.recipients_deleted_before.is_(None))
    .order_by(launches.c.created_at, launches.c.launch_key)
)
"""The keys of launches and their reports, oldest first. If its recipients were deleted, no report is made again."""


class StoredVerdicts(LedgerPart):
    """The verdicts and the newest report of each launch."""

    def store(
        self,
        figures: LaunchStats,
        sets: Mapping[str, Identifiers],
        *,
        revision: int = 0,
        erasures: int | None = None,
    ) -> None:
        """Replace the verdicts and the report of a launch, which belong to the same moment.

        ``revision`` and ``erasures``: the results of :meth:`revision` and :meth:`Erasures.version` before any of the
        data was read. Store nothing and raise ConflictError if people were erased since.
        """
        key = figures.launch_key
        report = {
            "launch_key": key,
            "as_of": figures.as_of,
            "revision": revision,
            "figures": figures.to_json(),
        }
        own = verdicts.c.launch_key == key
        with self._database.write() as db:
            check_version(db, erasures)
            if erasures is not None and figures.erased != db.scalar(_ERASED, {"launch": key}):
                raise ConflictError(f"people were erased from launch {key} while it was reconciled")
            # Write the report first: its row lock makes another process that stores the same launch wait.
            db.execute(self._database.insert_or_replace(reports), report)
            # Sets that did not change stay, so the transaction is short after an erasure or a few post-backs.
            sizes = VERDICTS.sizes(db, own)
            changed = [
                name
                for name, people in sets.items()
                if len(people) != sizes.get(name)
                or VERDICTS.sets(db, own, verdicts.c.verdict == name) != {name: people}
            ]
            replaced = {*changed, *(sizes.keys() - sets.keys())}
            db.execute(sa.delete(verdicts).where(own, verdicts.c.verdict.in_(replaced)))
            rows = (({"launch_key": key, "verdict": name}, sets[name]) for name in changed)
            VERDICTS.insert(db, rows)

    def sets(self, launch_key: str) -> dict[str, Identifiers]:
        """Return the identifiers of a launch by verdict, as of its newest report."""
        with self._database.read() as db:
            return VERDICTS.sets(db, verdicts.c.launch_key == launch_key)

    def snapshot(self, launch_key: str) -> tuple[LaunchStats, dict[str, Identifiers]]:
        """Return the newest report of a launch and its identifiers by verdict, which belong together.

        Raise NotFoundError if it was never reconciled, and ConflictError if others keep reconciling it meanwhile.
        """
        for _ in range(_TRIES):
            figures, sets = self.figures(launch_key), self.sets(launch_key)
            if self.figures(launch_key).as_of == figures.as_of:
                return figures, sets
        raise ConflictError(f"Launch {launch_key} is being reconciled by another process. Try again.")

    def figures(self, launch_key: str) -> LaunchStats:
        """Return the newest report of a launch, or raise NotFoundError."""
        row = self._database.first(_FIGURES, {"launch": launch_key})
        if row is None:
            raise NotFoundError(f"launch {launch_key} has not been reconciled yet")
        return LaunchStats.from_json({**row.figures, "identified_by": row.identified_by})

    def revision(self, launch_key: str) -> int:
        """Return the revision of a launch. Read it before making a report, and store it with the report.

        It is one less while the launch has no report, because changes until then may not raise the revision. So the
        first report is always made again.
        """
        return self._database.scalar(_REVISION, {"launch": launch_key}) or 0

    def stale(self, now: datetime | None = None) -> list[str]:
        """Return the keys of the launches whose newest report is stale, oldest first.

        A report is also stale if the service finished sending its launch after it was made and by ``now``, because
        silence then means something. A launch without a report counts as stale once it has post-backs.
        """
        sent = sa.and_(
            reports.c.as_of < launches.c.sends_at, launches.c.sends_at <= (now or datetime.now(UTC))
        )
        is_changed = launches.c.revision != sa.func.coalesce(reports.c.revision, 0)
        return self._database.scalars(_LAUNCHES.where(sa.or_(is_changed, sent)))

    def note_tables(self, launch_key: str, as_of: datetime) -> None:
        """Store the time of the report that was written into the tables of a launch's warehouse."""
        change = sa.update(launches).where(launches.c.launch_key == launch_key).values(tables_as_of=as_of)
        with self._database.write() as db:
            db.execute(change)

    def with_old_tables(self, before: datetime) -> list[str]:
        """Return the keys of the launches whose tables are older than ``before`` and than their report, oldest first.

        Launches whose tables were never written are not among them.
        """
        written_at = launches.c.tables_as_of
        return self._database.scalars(_LAUNCHES.where(written_at < reports.c.as_of, written_at < before))
