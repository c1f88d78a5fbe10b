"""The verdicts in other launches as each claim asks them: sets in memory that follow the totals of post-backs.

A launch may go to recipients of another launch, its source, such as those who did not open. A claim leaves out those
who opened since. It reads the sum of the sources' revisions with its segment. Aggregation raises a revision in the
transaction that stores new totals, so only a higher sum means that totals are read again.
"""

from __future__ import annotations

import threading
from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass, field
from itertools import chain
from typing import Any, NamedTuple

import sqlalchemy as sa

from sendoff.audience.identifiers import Identifiers, Kind, empty, from_bytes, union
from sendoff.ledger.storage.bulk import chunked
from sendoff.ledger.storage.schema import audiences, dispatch_totals, dispatches, launch_sources, launches
from sendoff.states import Verdict

_of_source = launches.alias("of_source")
SOURCES_REVISION = sa.func.coalesce(
    sa.select(sa.cast(sa.func.sum(_of_source.c.revision), sa.BigInteger))
    .select_from(launch_sources.join(_of_source, _of_source.c.launch_key == launch_sources.c.source))
    .where(launch_sources.c.launch_key == sa.bindparam("launch"))
    .scalar_subquery(),
    0,
).label("sources_revision")
"""The column that tells which totals of the sources a statement sees. Its parameter ``launch`` is the launch's key."""

_MOST_LAUNCHES = 256
_READ_AT_ONCE = 200  # dispatches


@dataclass(frozen=True, slots=True)
class LaunchSource:
    """Another launch whose verdicts decide about the recipients of a launch.

    ``accepted``: the verdicts that make the launch's audience; None if the source only leaves out recipients.
    ``leaves_out``: the verdicts of recipients that each request leaves out.
    """

    launch_key: str
    accepted: tuple[Verdict, ...] | None
    leaves_out: tuple[Verdict, ...]


class _Newest(NamedTuple):
    """The launches to ask for one launch, and the sum of their revisions that the known totals belong to.

    Those for the same campaign and period are together, because the most certain verdict of them counts.
    """

    groups: Collection[Collection[LaunchSource]]
    revision: int


@dataclass(slots=True)
class _Responses:
    """The recipients of a launch with post-backs, and the numbers of post-backs that each dispatch had then."""

    kind: Kind
    engaged: Identifiers
    delivered: Identifiers
    counts: dict[str, tuple[int, int]] = field(default_factory=dict)

    def of(self, verdict: Verdict, people: Identifiers) -> Identifiers:
        """Return the members of ``people`` with a verdict that a post-back shows."""
        if verdict == Verdict.ENGAGED:
            return people & self.engaged
        return (people & self.delivered) - self.engaged

    def follow(self, db: sa.Connection, launch_key: str) -> None:
        """Read the totals of the dispatches that have new post-backs."""
        rows = db.execute(_COUNTS, {"source": launch_key}).all()
        counts = {key: (deliveries, opens) for key, deliveries, opens in rows}
        changed = [key for key, count in counts.items() if self.counts.get(key) != count]
        engaged, delivered = [self.engaged], [self.delivered]
        for keys in chunked(changed, _READ_AT_ONCE):
            for row in db.execute(_SETS.where(dispatch_totals.c.dispatch_key.in_(keys))):
                engaged.append(from_bytes(self.kind, row.engaged))
                delivered.append(from_bytes(self.kind, row.delivered))
        if changed:
            self.engaged, self.delivered = union(self.kind, engaged), union(self.kind, delivered)
        self.counts = counts


class ActiveVerdicts:
    """The verdicts in other launches that concern the launches of this process; thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._newest: dict[str, _Newest] = {}  # by launch key
        self._responses: dict[str, _Responses] = {}  # by launch key of the source

    def knows(self, launch_key: str) -> bool:
        """Check whether the responses that concern a launch were read before."""
        return launch_key in self._newest

    def load(self, db: sa.Connection, launch_key: str) -> None:
        """Read the responses that concern a launch."""
        revision = db.scalar(sa.select(SOURCES_REVISION), {"launch": launch_key}) or 0
        with self._lock:
            self._current(db, launch_key, revision)

    def among(
        self, db: sa.Connection, launch_key: str, people: Identifiers, revision: int
    ) -> dict[Verdict, Identifiers]:
        """Return the members of ``people`` that the launch must leave out, each under one verdict.

        ``revision``: the value of ``SOURCES_REVISION``.
        """
        found: dict[Verdict, Identifiers] = {}
        with self._lock:
            for verdict, gone in self._left_out(self._current(db, launch_key, revision), people):
                if len(some := gone & people):
                    found[verdict] = found[verdict] | some if verdict in found else some
                    people -= some
        return found

    def has_none_of(self, launch_key: str, people: Identifiers, revision: int) -> bool:
        """Check whether the totals are known as of ``revision``, and leave out none of the people.

        This reads no database.
        """
        with self._lock:
            known = self._newest.get(launch_key)
            return (
                known is not None
                and revision == known.revision
                and not any(len(gone) for _, gone in self._left_out(known.groups, people))
            )

    def _left_out(
        self, groups: Collection[Collection[LaunchSource]], people: Identifiers
    ) -> Iterator[tuple[Verdict, Identifiers]]:
        """Yield the members of ``people`` to leave out, by source and verdict."""
        for group in groups:
            responses = [self._responses[source.launch_key] for source in group]
            for source, own in zip(group, responses, strict=True):
                for verdict in source.leaves_out:
                    gone = own.of(verdict, people)
                    if verdict == Verdict.DELIVERED and len(gone):
                        for other in responses:
                            gone -= other.engaged
                    yield verdict, gone

    def _current(
        self, db: sa.Connection, launch_key: str, revision: int
    ) -> Collection[Collection[LaunchSource]]:
        """Return the sources of a launch, after reading their totals if the revision is another one.

        An older copy of the ledger may have come back, so a lower revision counts too.
        """
        known = self._newest.get(launch_key)
        if known is not None and revision == known.revision:
            return known.groups
        if known is None and len(self._newest) >= _MOST_LAUNCHES:
            self._newest.clear()
            self._responses.clear()
        groups: defaultdict[tuple[Any, ...], list[LaunchSource]] = defaultdict(list)
        for row in db.execute(_SOURCES, {"launch": launch_key}):
            if row.leaves_out:
                groups[row.campaign, row.period_start, row.period_end].append(_source(row))
        for source in chain.from_iterable(groups.values()):
            if source.launch_key not in self._responses:
                kind: Kind = db.scalars(_KIND, {"source": source.launch_key}).one()
                self._responses[source.launch_key] = _Responses(kind, empty(kind), empty(kind))
            self._responses[source.launch_key].follow(db, source.launch_key)
        self._newest[launch_key] = _Newest(groups.values(), revision)
        return groups.values()


def sources_of(db: sa.Connection, launch_key: str) -> list[LaunchSource]:
    """Return the other launches whose verdicts decide about the recipients of a launch."""
    return [_source(row) for row in db.execute(_SOURCES, {"launch": launch_key})]


def _source(row: sa.Row[Any]) -> LaunchSource:
    accepted = None if row.accepted is None else tuple(map(Verdict, row.accepted))
    return LaunchSource(row.source, accepted, tuple(map(Verdict, row.leaves_out)))


def insert_sources(db: sa.Connection, launch_key: str, sources: Iterable[LaunchSource]) -> None:
    """Store the other launches whose verdicts decide about the recipients of a launch."""
    rows = [
        {
            "launch_key": launch_key,
            "source": each.launch_key,
            "accepted": each.accepted,
            "leaves_out": each.leaves_out,
        }
        for each in sources
    ]
    if rows:
        db.execute(sa.insert(launch_sources), rows)


_SOURCES = (
    sa.select(launch_sources, launches.c.campaign, launches.c.period_start, launches.c.period_end)
    .join(launches, launches.c.launch_key == launch_sources.c.source)
    .where(launch_sources.c.launch_key == sa.bindparam("launch"))
    .order_by(launch_sources.c.source)
)
_KIND = sa.select(audiences.c.kind).where(audiences.c.launch_key == sa.bindparam("source"))
_COUNTS = (
    sa.select(dispatch_totals.c.dispatch_key, dispatch_totals.c.deliveries, dispatch_totals.c.opens)
    .join(dispatches, dispatches.c.dispatch_key == dispatch_totals.c.dispatch_key)
    .where(dispatches.c.launch_key == sa.bindparam("source"))
)
_SETS = sa.select(dispatch_totals.c.engaged, dispatch_totals.c.delivered)
