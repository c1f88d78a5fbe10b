"""Uploaded lists in the ledger: people to leave out, whom campaigns name by the name of their list."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from typing import Any

import sqlalchemy as sa

from sendoff.audience.identifiers import Identifiers, Kind
from sendoff.errors import NotFoundError
from sendoff.ledger.database import Database
from sendoff.ledger.schema import list_parts, lists
from sendoff.ledger.stored_sets import LARGEST, LISTS


@dataclass(frozen=True, slots=True)
class UploadedList:
    """A list as it was uploaded last, without its people."""

    name: str
    identified_by: str  # the column that names its people, as in a query
    kind: Kind
    size: int
    uploaded_by: str
    uploaded_at: datetime


class Lists:
    """The uploaded lists of a ledger."""

    def __init__(self, database: Database, *, largest_part: int = LARGEST) -> None:
        self._database = database
        self._largest_part = largest_part

    def store(
        self, name: str, identified_by: str, identifiers: Identifiers, who: str, now: datetime
    ) -> UploadedList:
        """Keep a list, in place of one that has the same name."""
        row = UploadedList(name, identified_by, identifiers.kind, len(identifiers), who, now)
        values = {column: getattr(row, column) for column in UploadedList.__slots__}
        with self._database.write() as connection:
            connection.execute(self._database.insert_or_replace(lists), values)
            connection.execute(sa.delete(list_parts).where(list_parts.c.name == name))
            LISTS.insert(connection, [({"name": name}, identifiers)], largest=self._largest_part)
        return row

    def get(self, name: str) -> tuple[UploadedList, Identifiers]:
        """Give a list with its people, or raise NotFoundError."""
        with self._database.read() as connection:
            row = connection.execute(_LISTS.where(lists.c.name == name)).first()
            people = LISTS.sets(connection, list_parts.c.name == name).get(name)
        if row is None or people is None:
            raise _not_there(name)
        return _uploaded(row), people

    def all(self) -> list[UploadedList]:
        """Give the lists by name, without their people."""
        with self._database.read() as connection:
            return [_uploaded(row) for row in connection.execute(_LISTS.order_by(lists.c.name))]

    def delete(self, name: str) -> None:
        """Forget a list, or raise NotFoundError; what launches left out before stays as they froze it."""
        with self._database.write() as connection:
            if not connection.execute(sa.delete(lists).where(lists.c.name == name)).rowcount:
                raise _not_there(name)


_LISTS = sa.select(*(lists.c[name] for name in UploadedList.__slots__))


def _uploaded(row: sa.Row[Any]) -> UploadedList:
    return UploadedList(*(row._mapping[name] for name in UploadedList.__slots__))


def _not_there(name: str) -> NotFoundError:
    return NotFoundError(f"the ledger holds no list {name!r}; upload it: sendoff lists upload {name} FILE")
