"""The suppression list: recipients who must not get messages, with the reason, the source, and the time of each entry.

An entry has a scope. ``account`` concerns every campaign that is not transactional, ``everything`` every campaign.
``topic:<name>`` concerns the campaigns on a topic, and ``channel:<name>`` the campaigns that use a channel. Campaigns
read the list when they are frozen, and again when each request is claimed
(:mod:`~sendoff.ledger.suppression.active_suppressions`).

A recipient may have an entry of each source, such as an opt-out and a row of a CSV file. One of them in force is enough
to suppress the recipient, so replacing the entries of a source cannot end an opt-out.

Each change locks the one row of ``suppression_state`` before it reads, and gives its entries the next version. So
versions are in the order of commits, and a reader that knows a version finds all later changes.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass
from datetime import datetime
from typing import Any

import sqlalchemy as sa

from sendoff.arguments import check_reason, check_source
from sendoff.audience.identifiers import Identifiers, Kind, as_member, from_texts
from sendoff.campaign import ACCOUNT, EVERYTHING, is_suppression_scope
from sendoff.errors import GateError, UsageError
from sendoff.ledger.control.audit_log import Decision, append_decision, check_not_moved
from sendoff.ledger.storage.bulk import in_parts
from sendoff.ledger.storage.database import Database, LedgerPart
from sendoff.ledger.storage.erasure_state import version_of
from sendoff.ledger.storage.problems import check_texts
from sendoff.ledger.storage.schema import suppression_state, suppressions
from sendoff.states import DecisionKind

OPT_OUT, ERASURE = "opt-out", "erasure"
"""The sources of Sendoff's own entries: opt-outs of recipients, and erasures that were requested."""

_AT_ONCE = 500
_PART = 10_000  # rows


@dataclass(frozen=True, slots=True)
class SuppressionChange:
    """What the entries of one change share.

    ``source``: where they come from, such as ``opt-out`` or ``csv``. A removal may have None: those of every source.
    ``identified_by``: the column that identifies the recipients, as in audience queries. ``launch_key``: the launch
    whose message led to it. Raise ValueError for a scope that does not exist, SettingsError for a text that the
    ledger cannot store, and UsageError for a blank reason or source.
    """

    scope: str
    identified_by: str
    source: str | None
    author: str
    reason: str | None = None
    until: datetime | None = None
    launch_key: str | None = None

    def __post_init__(self) -> None:
        if not is_suppression_scope(self.scope):
            raise ValueError(
                f"found the scope {self.scope!r}. Use {ACCOUNT}, {EVERYTHING}, topic:NAME or channel:NAME"
            )
        check_texts(source=self.source, author=self.author, reason=self.reason)
        if self.reason is not None:
            check_reason(self.reason)
        check_source(self.source)


@dataclass(frozen=True, slots=True)
class Suppression:
    """One entry of the list. ``until``: its end, if it has one. ``removed_at``: when someone removed it."""

    scope: str
    identified_by: str
    identifier: str
    source: str
    reason: str | None
    author: str
    added_at: datetime
    until: datetime | None
    removed_at: datetime | None
    removed_by: str | None
    launch_key: str | None

    def is_in_force(self, now: datetime) -> bool:
        """Check whether the entry stops messages at a moment."""
        return self.removed_at is None and (self.until is None or self.until > now)


@dataclass(frozen=True, slots=True)
class SuppressionCount:
    """The number of entries in force that share a scope, an identifying column, and a source."""

    scope: str
    identified_by: str
    source: str
    entries: int


@dataclass(frozen=True, slots=True)
class Replacement:
    """How a replacement changes the entries of one scope and source.

    ``added``: recipients without an entry of the source. ``removed``: entries whose recipients are not named.
    ``before``: entries in force before. ``prolonged`` and ``shortened``: entries that end later or earlier than before.
    """

    added: int
    removed: int
    before: int
    prolonged: int = 0
    shortened: int = 0

    @property
    def changes_nothing(self) -> bool:
        """Whether all entries stay as they are."""
        return not (self.added or self.removed or self.prolonged or self.shortened)

    def removes_more_than(self, percent: float) -> bool:
        """Check whether more than this percentage of the entries is removed. An earlier end removes none."""
        return self.removed * 100 > percent * self.before


class SuppressionList(LedgerPart):
    """The suppression list of a ledger.

    Changes that a person, a file or a query makes are in the audit log, with counts and without identifiers.
    """

    def __init__(
        self, database: Database, erased_among: Callable[[str, Sequence[str]], Collection[str]]
    ) -> None:
        super().__init__(database)
        self._erased_among = erased_among

    def add(
        self,
        new: SuppressionChange,
        identifiers: Iterable[int | str],
        now: datetime,
        *,
        is_audited: bool = False,
        may_be_erased: bool = False,
    ) -> int:
        """Add entries of one scope and source, and return how many recipients had none in force.

        An entry in force stays as it is, unless the new one ends later. Repeating a call changes nothing. Raise
        ValueError for a blank or unusable identifier. ``is_audited``: append a change to the audit log. Raise
        UsageError if such a change has the source of Sendoff's own entries.

        People who were erased get no entry, because no launch contains them. Raise SettingsError if the secret that
        recognises them is missing. ``may_be_erased``: do not ask.
        """
        if is_audited:
            _check_source(new)
        given = _texts(identifiers)
        while True:  # again if people were erased meanwhile, because they may be among these
            version, texts = (None, given) if may_be_erased else self._kept(new, given)
            with self._database.write() as db:
                self._lock(db)
                if version not in (None, version_of(db)):
                    continue
                added, prolonged = self._add(db, new, texts, now, _ends_before(new.until))
                if is_audited and (added or prolonged):
                    append_decision(db, _decision(new, now, added=added, prolonged=prolonged))
                return added

    def remove(self, ended: SuppressionChange, identifiers: Iterable[int | str], now: datetime) -> int:
        """End the entries of some recipients in one scope, and return how many recipients had one in force.

        The audit log keeps the change, with its reason.
        """
        with self._database.write() as db:
            self._lock(db)
            removed = self._remove(db, ended, _texts(identifiers), now)
            if removed:
                append_decision(db, _decision(ended, now, removed=removed, kind=DecisionKind.UNSUPPRESSED))
            return removed

    def planned(self, new: SuppressionChange, identifiers: Iterable[int | str], now: datetime) -> Replacement:
        """Return what :meth:`replace` would change with these arguments. Change nothing.

        Raise UsageError for the source of Sendoff's own entries.
        """
        _check_source(new)
        _, wanted = self._kept(new, _texts(identifiers))
        with self._database.read() as db:
            return self._compared(db, new, wanted, now)[0]

    def replace(
        self, new: SuppressionChange, identifiers: Iterable[int | str], now: datetime, planned: Replacement
    ) -> Replacement:
        """Make the entries of one scope and source exactly these. Return and audit the counts.

        An entry with another end gets this end, and the new author and reason. Entries of other sources stay, and
        erased people get no entry, as in :meth:`add`. ``planned``: the result of
        :meth:`planned`. Raise GateError and change nothing if the counts are not these. Raise UsageError for the source
        of Sendoff's own entries.
        """
        _check_source(new)
        version, wanted = self._kept(new, _texts(identifiers))
        with self._database.write() as db:
            self._lock(db)
            if version != version_of(db):
                raise GateError("nothing was changed: people were erased in the meantime. Check it again")
            done, gone = self._compared(db, new, wanted, now)
            if planned != done:
                raise GateError(
                    "nothing was changed: the suppression list changed in the meantime. Check it again"
                )
            self._remove(db, new, gone, now)
            self._add(db, new, wanted, now, suppressions.c.until.is_distinct_from(new.until))
            if not done.changes_nothing:
                counts = asdict(done)
                del counts["before"]
                append_decision(db, _decision(new, now, **counts))
        return done

    def count_among(self, new: SuppressionChange, identifiers: Iterable[int | str], now: datetime) -> int:
        """Count the recipients with an entry in force of one scope and source."""
        texts = _texts(identifiers)
        with self._database.read() as db:
            return sum(_count(db, (*_own(new), _among(some)), now) for some in in_parts(texts, _AT_ONCE))

    def of_person(self, identified_by: str, identifier: int | str) -> list[Suppression]:
        """Return all entries of one recipient, newest first, whether or not they are in force."""
        query = _ENTRIES.where(
            suppressions.c.identified_by == identified_by, suppressions.c.identifier == str(identifier)
        )
        order = suppressions.c.added_at.desc(), suppressions.c.scope, suppressions.c.source
        rows = self._database.rows(query.order_by(*order))
        return [Suppression(*row) for row in rows]

    def in_force(self, now: datetime, source: str | None = None) -> Iterator[Sequence[Suppression]]:
        """Yield the entries in force in parts, sorted by identifying column, identifier, scope and source.

        ``source``: only entries of this source.
        """
        query = _ENTRIES.where(_in_force(now)).order_by(
            *(suppressions.c[name] for name in ("identified_by", "identifier", "scope", "source"))
        )
        if source is not None:
            query = query.where(suppressions.c.source == source)
        with self._database.read() as db:
            for rows in db.execute(query.execution_options(yield_per=_PART)).partitions():
                yield [Suppression(*row) for row in rows]

    def sizes(self, now: datetime) -> list[SuppressionCount]:
        """Count the entries in force by scope, identifying column and source."""
        names = [suppressions.c[name] for name in ("scope", "identified_by", "source")]
        query: sa.Select[Any] = sa.select(*names, sa.func.count().label("entries"))
        query = query.where(_in_force(now)).group_by(*names).order_by(*names)
        return [SuppressionCount(*row) for row in self._database.rows(query)]

    def active(self, identified_by: str, kind: Kind, scopes: Collection[str], now: datetime) -> Identifiers:
        """Return the recipients that an entry in force suppresses in any of the scopes."""
        query = sa.select(suppressions.c.identifier).where(
            suppressions.c.identified_by == identified_by,
            suppressions.c.scope.in_(scopes),
            _in_force(now),
        )
        with self._database.read() as db:
            return from_texts(kind, db.scalars(query.execution_options(yield_per=_PART)))

    def _kept(self, new: SuppressionChange, texts: list[str]) -> tuple[int, list[str]]:
        """Return identifiers without those of erased people, and the version of the erasures that were asked."""
        with self._database.read() as db:
            version = version_of(db)
        erased = self._erased_among(new.identified_by, texts)
        return version, [text for text in texts if text not in erased] if erased else texts

    def _compared(
        self, db: sa.Connection, new: SuppressionChange, texts: Sequence[str], now: datetime
    ) -> tuple[Replacement, list[str]]:
        """Return what a replacement by these recipients changes, and the recipients whose entries it removes."""
        wanted, current = set(texts), self._current(db, new, now)
        prolonged = wanted & self._current(db, new, now, _ends_before(new.until))
        shortened = wanted & self._current(db, new, now, _ends_after(new.until))
        gone = sorted(current - wanted)
        counts = (len(each) for each in (wanted - current, gone, current, prolonged, shortened))
        return Replacement(*counts), gone

    def _add(
        self,
        db: sa.Connection,
        new: SuppressionChange,
        texts: Sequence[str],
        now: datetime,
        is_replaced: sa.ColumnElement[bool],
    ) -> tuple[int, int]:
        """Add entries. Return how many, and how many in force were replaced, because they meet a condition."""
        # No SELECT finds out which entries exist: PostgreSQL knows too little of a list that grows in this transaction,
        # and may read all of it for each part.
        add = self._database.insert_or_replace(suppressions, sa.not_(_in_force(now)))
        replace = self._database.insert_or_replace(suppressions, is_replaced)
        values = {**asdict(new), "added_at": now, "removed_at": None, "removed_by": None}
        version = db.execute(sa.select(suppression_state.c.version)).scalar_one() + 1
        added = replaced = 0
        for some in in_parts(texts, _AT_ONCE):
            rows = [{**values, "identifier": text, "version": version} for text in some]
            added += (missing := _changed(db, add, rows))
            if missing < len(rows):
                replaced += _changed(db, replace, rows)
        if added or replaced:
            self._next_version(db)
        return added, replaced

    def _current(
        self, db: sa.Connection, new: SuppressionChange, now: datetime, *where: sa.ColumnElement[bool]
    ) -> set[str]:
        """Return the recipients with an entry in force of one scope and source. ``where``: other conditions on it."""
        query = sa.select(suppressions.c.identifier).where(*_own(new), _in_force(now), *where)
        return set(db.scalars(query.execution_options(yield_per=_PART)))

    def _remove(
        self, db: sa.Connection, ended: SuppressionChange, texts: Sequence[str], now: datetime
    ) -> int:
        removed, own = 0, _own(ended)
        version = self._next_version(db) if texts else None
        for some in in_parts(texts, _AT_ONCE):
            removed += _count(db, (*own, _among(some)), now)
            end = sa.update(suppressions).where(*own, _among(some), _in_force(now))
            db.execute(end.values(removed_at=now, removed_by=ended.author, version=version))
        return removed

    def _lock(self, db: sa.Connection) -> None:
        """Lock the list until the end of the transaction. Raise GateError if the ledger was moved."""
        db.execute(self._database.insert_or_ignore(suppression_state), {"id": 1, "version": 0, "stamp": ""})
        db.execute(sa.select(suppression_state.c.version).with_for_update())
        check_not_moved(db)

    @staticmethod
    def _next_version(db: sa.Connection) -> int:
        """Return the version of this change."""
        change = sa.update(suppression_state).values(
            version=suppression_state.c.version + 1, stamp=secrets.token_hex(16)
        )
        version: int = db.execute(change.returning(suppression_state.c.version)).scalar_one()
        return version


def _texts(identifiers: Iterable[int | str]) -> list[str]:
    texts = sorted({str(identifier) for identifier in identifiers})
    if any(as_member("string", text) is None for text in texts):
        raise ValueError("found a blank identifier, or one that cannot be stored. Remove it")
    return texts


def _check_source(new: SuppressionChange) -> None:
    """Raise UsageError for the source of Sendoff's own entries, because a replacement would end the others of it."""
    if new.source in (OPT_OUT, ERASURE):
        raise UsageError(
            f"only Sendoff adds entries of the source {new.source}. Use another name, such as crm"
        )


def _own(change: SuppressionChange) -> tuple[sa.ColumnElement[bool], ...]:
    where = suppressions.c.scope == change.scope, suppressions.c.identified_by == change.identified_by
    return where if change.source is None else (*where, suppressions.c.source == change.source)


def _among(texts: Sequence[str]) -> sa.ColumnElement[bool]:
    return suppressions.c.identifier.in_(texts)


def _count(db: sa.Connection, where: Sequence[sa.ColumnElement[bool]], now: datetime) -> int:
    """Count the recipients with an entry in force."""
    recipients = sa.func.count(suppressions.c.identifier.distinct())
    return db.scalars(sa.select(recipients).where(*where, _in_force(now))).one()


def _decision(
    change: SuppressionChange, now: datetime, *, kind: DecisionKind = DecisionKind.SUPPRESSED, **counts: int
) -> Decision:
    detail = {
        "scope": change.scope,
        "identified_by": change.identified_by,
        "source": change.source,
        "added": 0,
        "removed": 0,
        **{name: count for name, count in counts.items() if count},
    }
    return Decision(None, kind, change.author, change.reason, now, detail)


def _changed(db: sa.Connection, insert: Any, rows: list[dict[str, Any]]) -> int:
    """Insert rows, and return how many were new or replaced."""
    return db.execute(insert, rows, execution_options={"preserve_rowcount": True}).rowcount


def _ends_before(until: datetime | None) -> sa.ColumnElement[bool]:
    """Return the condition on entries that end before a moment, or at all if it is None."""
    end = suppressions.c.until
    return end.is_not(None) if until is None else end < until


def _ends_after(until: datetime | None) -> sa.ColumnElement[bool]:
    """Return the condition on entries that end after a moment, or never. None do if it is None."""
    end = suppressions.c.until
    return sa.false() if until is None else sa.or_(end.is_(None), end > until)


def _in_force(now: datetime) -> sa.ColumnElement[bool]:
    return sa.and_(
        suppressions.c.removed_at.is_(None),
        sa.or_(suppressions.c.until.is_(None), suppressions.c.until > now),
    )


_ENTRIES: sa.Select[Any] = sa.select(*(suppressions.c[name] for name in Suppression.__slots__))
