"""Uploaded lists: recipients that a campaign leaves out if it names the list."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, dataclass
from datetime import datetime
from typing import Any

import sqlalchemy as sa

from sendoff.audience.identifiers import Identifiers, Kind
from sendoff.errors import NotFoundError
from sendoff.ledger.control.audit_log import check_not_moved
from sendoff.ledger.storage.database import Database, LedgerPart
from sendoff.ledger.storage.erasure_state import is_current, version_of
from sendoff.ledger.storage.problems import check_texts
from sendoff.ledger.storage.schema import uploaded_list_chunks, uploaded_lists
from sendoff.ledger.storage.stored_sets import LISTS


@dataclass(frozen=True, slots=True)
class UploadedList:
    """An uploaded list, without its recipients."""

    name: str
    identified_by: str  # the column that identifies its recipients, as in a query
    kind: Kind
    size: int
    uploaded_by: str
    uploaded_at: datetime


class UploadedLists(LedgerPart):
    """The uploaded lists of a ledger."""

    def __init__(self, database: Database, erased_among: Callable[[str, Identifiers], Identifiers]) -> None:
        super().__init__(database)
        self._erased_among = erased_among

    def store(
        self, name: str, identified_by: str, identifiers: Identifiers, who: str, now: datetime
    ) -> UploadedList:
        """Store a list without people who were erased, and replace one of the same name.

        Raise SettingsError if the ledger cannot store the name, and GateError if the ledger was moved.
        """
        check_texts(**{"name of the list": name, "name of the user": who})
        while True:  # again if people were erased meanwhile, because they may be among these
            with self._database.read() as db:
                version = version_of(db)
            if len(erased := self._erased_among(identified_by, identifiers)):
                identifiers -= erased
            row = UploadedList(name, identified_by, identifiers.kind, len(identifiers), who, now)
            with self._database.write() as db:
                if is_current(db, version):
                    self._replace(db, row, identifiers)
                    check_not_moved(db)
                    return row

    def _replace(self, db: sa.Connection, row: UploadedList, identifiers: Identifiers) -> None:
        db.execute(self._database.insert_or_replace(uploaded_lists), asdict(row))
        db.execute(sa.delete(uploaded_list_chunks).where(uploaded_list_chunks.c.name == row.name))
        LISTS.insert(db, [({"name": row.name}, identifiers)])

    def get(self, name: str) -> tuple[UploadedList, Identifiers]:
        """Return a list with its recipients, or raise NotFoundError."""
        with self._database.read() as db:
            row = db.execute(_LISTS.where(uploaded_lists.c.name == name)).first()
            people = LISTS.sets(db, uploaded_list_chunks.c.name == name).get(name)
        if row is None or people is None:
            raise _not_there(name)
        return UploadedList(*row), people

    def all(self) -> list[UploadedList]:
        """Return all lists, ordered by name, without their recipients."""
        return [UploadedList(*row) for row in self._database.rows(_LISTS.order_by(uploaded_lists.c.name))]

    def delete(self, name: str) -> None:
        """Delete a list, or raise NotFoundError. The frozen suppression of earlier launches does not change."""
        with self._database.write() as db:
            if not db.execute(sa.delete(uploaded_lists).where(uploaded_lists.c.name == name)).rowcount:
                raise _not_there(name)
            check_not_moved(db)


_LISTS: sa.Select[Any] = sa.select(*(uploaded_lists.c[name] for name in UploadedList.__slots__))


def _not_there(name: str) -> NotFoundError:
    return NotFoundError(f"the ledger holds no list {name!r}; upload it: sendoff lists upload {name} FILE")
