"""Erasure: removes people from everything that the ledger holds, in small transactions that can stop at any line.

A request first stores the identifiers in a queue, and a keyed hash of each in ``erased``. From then on, no launch that
is frozen contains these people. The steps then run one after the other. Each is repeated if it was interrupted, and
finds nothing more to do in the parts that were finished:

.. code-block:: text

    launches ....... segments, template values, own requests, suppressed recipients, groups
    (the version of the erasures goes up: what was derived from the old segments is not stored any more)
    results ........ totals of post-backs, hours of opens, recipients withheld at a claim, verdicts
    refusals ....... the service's words that name these people
    post-backs ..... the rows that name these people, whether aggregated or not
    lists .......... uploaded lists, the suppression list
    end ............ the queue is emptied

A dispatch keeps its key and its fingerprint, so that nothing is sent again. A request whose recipients are all gone is
never made. A row in ``audiences`` counts the erased recipients of its launch.
"""

from __future__ import annotations

import hmac
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime

import sqlalchemy as sa

from sendoff.audience import KINDS, HashedIdentifier, KeyedHash, KnownPeople, as_kinds, checked_texts
from sendoff.audience.identifiers import Identifiers, Kind, as_integer, as_member, empty
from sendoff.errors import SettingsError
from sendoff.ledger.control.audit_log import Decision, append_decision, check_not_moved
from sendoff.ledger.erasure import erasure_steps as steps
from sendoff.ledger.erasure import person_columns
from sendoff.ledger.post_backs.post_backs import PendingRun
from sendoff.ledger.storage.bulk import in_parts
from sendoff.ledger.storage.database import Database, LedgerPart
from sendoff.ledger.storage.erasure_state import raise_version, version_of
from sendoff.ledger.storage.schema import (
    audiences,
    erased,
    erasure_queue,
    erasure_state,
    erasures,
    launches,
    reports,
)
from sendoff.settings import load_settings
from sendoff.states import DecisionKind

_AT_ONCE = 500  # rows or identifiers per statement
_IS_NEEDED = (
    "SENDOFF_ERASURE_SECRET is not set, but people were erased from this ledger. Set it, or the field erasure_secret "
    "of Airflow's connection sendoff_ledger, to the secret that was used then, so that they are recognised"
)


@dataclass(frozen=True, slots=True)
class Erasure:
    """One request to erase people, without their identifiers."""

    request: int
    identified_by: str
    people: int
    who: str
    why: str
    requested_at: datetime
    step: str  # the step that comes next
    finished_at: datetime | None


@dataclass(frozen=True, slots=True)
class ErasedPeople:
    """The people who were erased before a moment, by column and kind, known by their hashes only.

    ``version``: changes when people are erased; a launch or total that was made from an older one is not stored.
    """

    version: int
    by_column: Mapping[tuple[str, Kind], KnownPeople] = field(default_factory=dict, repr=False)

    def among(self, identified_by: str, identifiers: Identifiers) -> Identifiers:
        """Return the members of a set who were erased."""
        known = self.by_column.get((identified_by, identifiers.kind))
        return known.among(identifiers) if known else empty(identifiers.kind)


@dataclass(frozen=True, slots=True)
class Remembered:
    """The keyed hash of one erased identifier, as the ledger and the erasure log keep it."""

    identified_by: str
    kind: Kind
    hashed: HashedIdentifier
    secret_check: str  # shows which secret it was made with


@dataclass(frozen=True, slots=True)
class NamedPeople:
    """People to erase: their identifiers, sorted and each once, and the hashes that will be remembered of them."""

    identified_by: str
    identifiers: Sequence[str] = field(repr=False)
    remembered: Sequence[Remembered] = field(repr=False)


class Erasures(LedgerPart):
    """The erasures of a ledger. ``secret``: default: the setting ``erasure_secret``."""

    def __init__(self, database: Database, secret: str | None = None) -> None:
        super().__init__(database)
        self._given = secret

    def named(self, identified_by: str, identifiers: Iterable[int | str]) -> NamedPeople:
        """Return people by their identifiers, for :meth:`request`. Store nothing.

        Raise SettingsError if the secret is missing, or is not the one that this ledger was used with. Raise
        AudienceError if an identifier is blank, or not a whole number as a device ID.
        """
        secret = self._secret()
        if secret is None:
            raise SettingsError(
                "SENDOFF_ERASURE_SECRET is not set. Set it, or the field erasure_secret of Airflow's connection "
                "sendoff_ledger, to a secret of at least 32 characters that you keep for as long as the ledger; make "
                "one with: openssl rand -hex 32"
            )
        check = _check_of(secret)
        with self._database.read() as db:
            _compare_secret(db, check)
        texts = checked_texts(identified_by, identifiers)
        remembered = [
            Remembered(identified_by, kind, hashed, check)
            for kind, people in as_kinds(identified_by, texts).items()
            for hashed in KeyedHash(secret, identified_by, kind).hashed(people)
        ]
        return NamedPeople(identified_by, texts, remembered)

    def count_known(self, people: NamedPeople) -> int:
        """Return how many of the people the ledger names now, anywhere that an erasure empties."""
        named = person_columns.People.of(people.identified_by, people.identifiers)
        return len(person_columns.known_among(self._database, named))

    def request(self, people: NamedPeople, *, who: str, why: str, now: datetime) -> Erasure:
        """Store a request to erase people, and return it; :meth:`advance` then does the work.

        Raise SettingsError if this ledger was used with another secret meanwhile.
        """
        with self._database.write() as db:
            self._remember(db, people.remembered, now)
            values = {
                "identified_by": people.identified_by,
                "people": len(people.identifiers),
                "who": who,
                "why": why,
                "requested_at": now,
                "step": next(iter(_STEPS)),
                "position": "",
            }
            request = db.execute(sa.insert(erasures).returning(erasures.c.request), values).scalar_one()
            queued = (
                {"request": request, "identifier": each, "number": as_integer(each)}
                for each in people.identifiers
            )
            for rows in in_parts(queued, _AT_ONCE):
                db.execute(sa.insert(erasure_queue), rows)
            _note(db, DecisionKind.ERASURE_REQUESTED, request, now)
        return self.get(request)

    def remember(self, remembered: Sequence[Remembered], now: datetime) -> None:
        """Store the hashes in an erasure log.

        Raise SettingsError and store nothing if the secret is missing, or is not the one of the log or of this ledger.
        """
        check = _check_of(self._needed_secret())
        if any(each.secret_check != check for each in remembered):
            raise SettingsError(
                "SENDOFF_ERASURE_SECRET is not the secret that the erasure log was written with, so the people in it "
                "would not be found. Nothing was stored. Set it to that secret, and replay the log again"
            )
        with self._database.write() as db:
            self._remember(db, remembered, now)

    def get(self, request: int) -> Erasure:
        """Return a request."""
        return Erasure(*self._database.one(_ERASURES.where(erasures.c.request == request)))

    def pending(self) -> list[Erasure]:
        """Return the requests that are not finished, oldest first."""
        return [Erasure(*row) for row in self._database.rows(_UNFINISHED)]

    def unfinished(self, identified_by: str, kind: Kind) -> Identifiers:
        """Return the people of the requests that are not finished, of one column, as a set of one kind."""
        texts = self._database.scalars(_QUEUED, {"column": identified_by})
        return as_kinds(identified_by, texts).get(kind, empty(kind))

    def advance(self, request: int, now: datetime) -> bool:
        """Do the next part of a request: one launch, or some post-backs. Return False once it is finished.

        It is safe to stop at any moment, and to run in several processes at once.
        """
        with self._database.read() as db:
            row = db.execute(_ROW, {"request": request}).one()
            if row.finished_at is not None:
                return False
            people = list(db.scalars(_PEOPLE, {"request": request}))
        work = steps.Work.of(row.identified_by, people, database=self._database, request=request)
        values = {"position": _STEPS[row.step](work, row.position)}
        if values["position"] is None:
            names = list(_STEPS)
            if row.step == names[-1]:
                self._finish(request, now)
                return False
            values = {"step": names[names.index(row.step) + 1], "position": ""}
        with self._database.write_in_turn() as db:
            # Another process may have been faster; its position stays.
            db.execute(
                sa.update(erasures)
                .where(
                    erasures.c.request == request,
                    erasures.c.step == row.step,
                    erasures.c.position == row.position,
                )
                .values(values)
            )
        return True

    def _finish(self, request: int, now: datetime) -> None:
        with self._database.write() as db:
            finished = db.execute(
                sa.update(erasures)
                .where(erasures.c.request == request, erasures.c.finished_at.is_(None))
                .values(finished_at=now)
            )
            if not finished.rowcount:
                return
            db.execute(sa.delete(erasure_queue).where(erasure_queue.c.request == request))
            _note(db, DecisionKind.ERASED, request, now)

    def people(self) -> ErasedPeople:
        """Return the people who were erased so far. Raise SettingsError if there are some and the secret is missing."""
        with self._database.read() as db:
            version = version_of(db)
            rows = db.execute(_ERASED).all()
            if not rows:
                return ErasedPeople(version)
            secret = self._secret_of(db)
        hashes = (((column, kind), HashedIdentifier(*hashed)) for column, kind, *hashed in rows)
        return ErasedPeople(version, _by_column(secret, hashes))

    def check_secret(self) -> None:
        """Raise SettingsError as :meth:`people` does, without reading who was erased."""
        with self._database.read() as db:
            if db.scalar(_ANYONE) is not None:
                self._secret_of(db)

    def among_logged(
        self, logged: Iterable[Remembered], identified_by: str, identifiers: Identifiers
    ) -> Identifiers:
        """Return the members of a set whose hashes are among those of an erasure log."""
        hashes = (((each.identified_by, each.kind), each.hashed) for each in logged)
        known = ErasedPeople(0, _by_column(self._needed_secret(), hashes))
        return known.among(identified_by, identifiers)

    def in_unreadable(self, people: ErasedPeople, run: PendingRun) -> set[int]:
        """Return the numbers of the unreadable post-backs in a run that name people who were erased."""
        columns = {column for column, _ in people.by_column}
        return person_columns.unreadable_naming(self._database, run, columns, people.among)

    def in_set(self, identified_by: str, identifiers: Identifiers) -> Identifiers:
        """Return the members of a set who were erased. Raise SettingsError as :meth:`people` does."""
        return self.people().among(identified_by, identifiers)

    def among(self, identified_by: str, texts: Sequence[str]) -> set[str]:
        """Return the identifiers that belong to people who were erased. Raise SettingsError as :meth:`people` does.

        Each identifier is looked up, so the number of people who were erased hardly matters.
        """
        found: set[str] = set()
        with self._database.read() as db:
            if db.scalar(_ANYONE) is None:
                return found
            secret = self._secret_of(db)
            for kind in KINDS[identified_by]:
                keyed = KeyedHash(secret, identified_by, kind)
                own = (erased.c.identified_by == identified_by, erased.c.kind == kind)
                for some in in_parts(texts, _AT_ONCE):
                    digests = {
                        text: keyed.digest(member)
                        for text in some
                        if (member := as_member(kind, text)) is not None
                    }
                    query = sa.select(erased.c.digest).where(*own, erased.c.digest.in_(digests.values()))
                    known = set(db.scalars(query))
                    found.update(text for text, digest in digests.items() if digest in known)
        return found

    def erased_at(self, identified_by: str, text: str) -> datetime | None:
        """Return when a person was erased first, or None. Raise SettingsError as :meth:`people` does."""
        with self._database.read() as db:
            if db.scalar(_ANYONE) is None:
                return None
            secret = self._secret_of(db)
            digests = [
                KeyedHash(secret, identified_by, kind).digest(member)
                for kind in KINDS[identified_by]
                if (member := as_member(kind, text)) is not None
            ]
            query = sa.select(sa.func.min(erased.c.erased_at))
            own = erased.c.identified_by == identified_by, erased.c.digest.in_(digests)
            first: datetime | None = db.scalar(query.where(*own))
            return first

    def reported_before(self) -> list[str]:
        """Return the keys of the launches that lost recipients since their newest report was made."""
        query = (
            sa.select(launches.c.launch_key)
            .join(audiences, audiences.c.launch_key == launches.c.launch_key)
            .join(reports, reports.c.launch_key == launches.c.launch_key)
            .where(audiences.c.erased > 0, launches.c.revision != reports.c.revision)
            .order_by(launches.c.created_at, launches.c.launch_key)
        )
        return self._database.scalars(query)

    def version(self) -> int:
        """Return the version of the erasures."""
        with self._database.read() as db:
            return version_of(db)

    def restored(self) -> dict[str, set[str]]:
        """Return the identifiers in the ledger whose people were erased: column -> identifiers as text.

        There are some after an older backup was restored and :meth:`remember` got the erasure log. In bodies, an
        identifier is recognised as a number, a word or a whole text, but not as a part of a longer word.
        """
        known = self.people()
        found: dict[str, set[str]] = {column: set() for column, _ in known.by_column}
        for (identified_by, kind), people in known.by_column.items():
            for identifiers in person_columns.every_set(self._database, identified_by, kind):
                found[identified_by].update(map(str, people.among(identifiers)))
            found[identified_by].update(person_columns.in_rows(self._database, identified_by, kind, people))
        for identified_by, members in found.items():
            for identifiers in person_columns.in_bodies(self._database, identified_by):
                members.update(map(str, known.among(identified_by, identifiers)))
        return {column: people for column, people in found.items() if people}

    def reclaim(self) -> list[str]:
        """Rewrite the database files so that they contain no bytes of deleted rows, and return the statements.

        It takes as long as copying the ledger. On SQLite, nothing can be stored meanwhile. On PostgreSQL, each table
        is locked while it is rewritten, and its statistics are made again.
        """
        return self._database.rewrite_files((*person_columns.SETS, *person_columns.OTHERS))

    def _secret(self) -> str | None:
        if self._given is not None:
            return self._given
        secret = load_settings(["erasure_secret"]).erasure_secret
        return secret.get_secret_value() if secret else None

    def _needed_secret(self) -> str:
        secret = self._secret()
        if secret is None:
            raise SettingsError(_IS_NEEDED)
        return secret

    def _secret_of(self, db: sa.Connection) -> str:
        """Return the secret. Raise SettingsError if it is missing, or not the one that this ledger was used with."""
        secret = self._needed_secret()
        _compare_secret(db, _check_of(secret))
        return secret

    def _remember(self, db: sa.Connection, remembered: Sequence[Remembered], now: datetime) -> None:
        """Store hashes, and the check of their secret if it is the ledger's first. Raise the version.

        Raise SettingsError if the hashes were made with another secret than the earlier ones, and GateError if the
        ledger was moved.
        """
        raise_version(db)
        check_not_moved(db)
        for check in {each.secret_check for each in remembered}:
            first = erasure_state.c.secret_check.is_(None)
            db.execute(sa.update(erasure_state).where(first).values(secret_check=check))
            _compare_secret(db, check)
        rows = [
            {
                "identified_by": each.identified_by,
                "kind": each.kind,
                "digest": each.hashed.digest,
                "bucket": each.hashed.bucket,
                "erased_at": now,
            }
            for each in remembered
        ]
        for part in in_parts(rows, _AT_ONCE):
            db.execute(self._database.insert_or_ignore(erased), part)


def _by_column(
    secret: str, hashes: Iterable[tuple[tuple[str, Kind], HashedIdentifier]]
) -> dict[tuple[str, Kind], KnownPeople]:
    by_column: dict[tuple[str, Kind], list[HashedIdentifier]] = {}
    for column, hashed in hashes:
        by_column.setdefault(column, []).append(hashed)
    return {column: KnownPeople.of(KeyedHash(secret, *column), known) for column, known in by_column.items()}


def _raise_version(work: steps.Work, _position: str) -> str | None:
    with work.database.write() as db:
        raise_version(db)
    return None


_STEPS: Mapping[str, Callable[[steps.Work, str], str | None]] = {
    "launches": steps.erase_launch,
    "version": _raise_version,
    "results": steps.erase_results,
    "refusals": steps.erase_refusals,
    "post_backs": steps.erase_post_backs,
    "lists": steps.erase_lists,
}
"""The steps of an erasure, in order. Each takes the position to continue from, and returns the next one or None."""

_ROW = sa.select(erasures).where(erasures.c.request == sa.bindparam("request"))
_PEOPLE = sa.select(erasure_queue.c.identifier).where(erasure_queue.c.request == sa.bindparam("request"))
_ANYONE = sa.select(erased.c.digest).limit(1)
_ERASURES = sa.select(*(erasures.c[name] for name in Erasure.__slots__))
_UNFINISHED = _ERASURES.where(erasures.c.finished_at.is_(None)).order_by(erasures.c.request)
_QUEUED = (
    sa.select(erasure_queue.c.identifier)
    .join(erasures, erasures.c.request == erasure_queue.c.request)
    .where(erasures.c.identified_by == sa.bindparam("column"))
)
_ERASED = sa.select(erased.c.identified_by, erased.c.kind, erased.c.digest, erased.c.bucket)


def _note(db: sa.Connection, kind: DecisionKind, request: int, now: datetime) -> None:
    """Append to the audit log what happened to a request."""
    row = db.execute(_ROW, {"request": request}).one()
    detail = {"request": request, "people": row.people, "identified_by": row.identified_by}
    append_decision(db, Decision(None, kind, row.who, row.why, now, detail))


def _check_of(secret: str) -> str:
    return hmac.digest(secret.encode(), b"the secret of this ledger", "sha256").hex()


def _compare_secret(db: sa.Connection, check: str) -> None:
    known = db.scalar(sa.select(erasure_state.c.secret_check))
    if known is not None and not hmac.compare_digest(known, check):
        raise SettingsError(
            "SENDOFF_ERASURE_SECRET is not the secret that this ledger was used with. Set it to that secret. It cannot "
            "be changed, because the erased people would not be recognised any more"
        )
