"""The suppression list as each claim asks it: sets in memory that follow the list's changes.

A claim reads the version of the list with its segment, in its own transaction, and first reads the changes since the
version that it knows. So it sees every entry that was committed before it. Without changes it compares a segment with
sets in memory, so the length of the list hardly matters.
"""

from __future__ import annotations

import heapq
import threading
from dataclasses import dataclass, field
from datetime import datetime
from typing import NamedTuple

import sqlalchemy as sa
from pyroaring import BitMap64

from sendoff.audience.identifiers import (
    Identifiers,
    IntegerIdentifiers,
    Kind,
    as_member,
    empty,
    strings,
    union,
)
from sendoff.campaign import Campaign
from sendoff.ledger.storage.schema import audiences, launches, suppression_state, suppressions

STATE = (
    sa.func.coalesce(suppression_state.c.version, 0).label("list_version"),
    sa.func.coalesce(suppression_state.c.stamp, "").label("list_stamp"),
)
"""The columns that tell which changes of the list a statement sees. Join ``suppression_state`` by an outer join."""

_MOST_LAUNCHES = 256
_READ_AT_ONCE = 10_000


class _Reader(NamedTuple):
    """The part of the list that concerns a launch."""

    identified_by: str
    kind: Kind
    scopes: tuple[str, ...]


@dataclass(slots=True)
class _Members:
    """The recipients suppressed by one source in one scope. Some entries end by themselves.

    ``7`` and ``007`` are two entries about one number, and either may end alone. So each number of leading zeros has
    members of its own.
    """

    found: BitMap64 | set[int | str]
    ends: dict[int | str, datetime] = field(default_factory=dict)
    _next: list[tuple[datetime, int | str]] = field(default_factory=list)

    def put(self, member: int | str, until: datetime | None) -> None:
        self.found.add(member)  # type: ignore[arg-type]
        self.ends.pop(member, None)
        if until is not None:
            self.ends[member] = until
            heapq.heappush(self._next, (until, member))

    def drop(self, member: int | str) -> None:
        self.found.discard(member)  # type: ignore[arg-type]
        self.ends.pop(member, None)

    def expire(self, now: datetime) -> None:
        while self._next and self._next[0][0] <= now:
            until, member = heapq.heappop(self._next)
            if self.ends.get(member) == until:
                self.drop(member)

    def among(self, people: Identifiers) -> Identifiers:
        if isinstance(self.found, BitMap64):
            return people & IntegerIdentifiers(self.found)
        return strings([text for text in people.values() if text in self.found])


@dataclass(slots=True)
class _Known:
    """The members by scope, source and leading zeros, as of one version of the list."""

    members: dict[tuple[str, str, int], _Members] = field(default_factory=dict)
    version: int = 0
    stamp: str = ""

    def among(self, people: Identifiers, now: datetime) -> list[Identifiers]:
        """Return the members of ``people`` for each source and scope that has some."""
        found = []
        for members in self.members.values():
            members.expire(now)
            if members.found:
                found.append(members.among(people))
        return [each for each in found if len(each)]


class ActiveSuppressions:
    """The entries in force that concern the launches of this process; thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._readers: dict[str, _Reader] = {}  # by launch key
        self._known: dict[_Reader, _Known] = {}

    def knows(self, launch_key: str) -> bool:
        """Check whether the part of the list that concerns a launch was read before."""
        return launch_key in self._readers

    def load(self, db: sa.Connection, launch_key: str) -> None:
        """Read the part of the list that concerns a launch, which takes a second for a million entries."""
        version, stamp = db.execute(_STATE).one()
        with self._lock:
            self._current(db, self._reader(db, launch_key), version, stamp)

    def among(
        self,
        db: sa.Connection,
        launch_key: str,
        people: Identifiers,
        state: tuple[int, str],
        now: datetime,
    ) -> Identifiers:
        """Return the members of ``people`` that the launch must leave out. ``state``: the values of ``STATE``."""
        with self._lock:
            reader = self._reader(db, launch_key)
            some = self._current(db, reader, *state).among(people, now)
        if len(some) > 1:
            return union(reader.kind, some)
        return some[0] if some else empty(reader.kind)

    def has_none_of(
        self, launch_key: str, people: Identifiers, state: tuple[int, str], now: datetime
    ) -> bool:
        """Check whether the list is known as of ``state``, and has none of the people. This reads no database."""
        with self._lock:
            reader = self._readers.get(launch_key)
            known = self._known.get(reader) if reader else None
            return known is not None and known.stamp == state[1] and not known.among(people, now)

    def _reader(self, db: sa.Connection, launch_key: str) -> _Reader:
        if launch_key not in self._readers:
            if len(self._readers) >= _MOST_LAUNCHES:
                self._readers.clear()
                self._known.clear()
            row = db.execute(_LAUNCH, {"key": launch_key}).one()
            scopes = Campaign.frozen(row.definition).suppression_scopes()
            self._readers[launch_key] = _Reader(row.identified_by, row.kind, scopes)
        return self._readers[launch_key]

    def _current(self, db: sa.Connection, reader: _Reader, version: int, stamp: str) -> _Known:
        """Return the members as of a version of the list, reading its changes first."""
        known = self._known.get(reader)
        if known is not None and known.stamp == stamp:
            return known
        if known is not None and version <= known.version:  # another thread knows a later change already
            version, stamp = db.execute(_STATE).one()
            if known.stamp == stamp:
                return known
        if known is None or version <= known.version:  # the latter: an older copy of the ledger came back
            known = _Known()
        of_reader = {"column": reader.identified_by, "scopes": reader.scopes, "known": known.version}
        for scope, source, text, until, removed_at in db.execute(_CHANGES, of_reader):
            if (member := as_member(reader.kind, text)) is None:
                continue
            zeros = len(text) - len(text.lstrip("0")) if reader.kind == "integer" else 0
            nobody: BitMap64 | set[int | str] = BitMap64() if reader.kind == "integer" else set()
            members = known.members.setdefault((scope, source, zeros), _Members(nobody))
            if removed_at is None:
                members.put(member, until)
            else:
                members.drop(member)
        known.version, known.stamp = version, stamp
        self._known[reader] = known
        return known


_STATE = sa.select(*STATE).select_from(
    sa.select(sa.literal(1)).subquery("one").outerjoin(suppression_state, sa.true())
)
_CHANGES = (
    sa.select(*(suppressions.c[name] for name in ("scope", "source", "identifier", "until", "removed_at")))
    .where(
        suppressions.c.identified_by == sa.bindparam("column"),
        suppressions.c.scope.in_(sa.bindparam("scopes", expanding=True)),
        suppressions.c.version > sa.bindparam("known"),
    )
    .execution_options(yield_per=_READ_AT_ONCE)
)
_LAUNCH = (
    sa.select(launches.c.definition, audiences.c.identified_by, audiences.c.kind)
    .join(audiences, audiences.c.launch_key == launches.c.launch_key)
    .where(launches.c.launch_key == sa.bindparam("key"))
)
