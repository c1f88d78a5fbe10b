"""Stored sets: each set of identifiers is stored in chunks, because databases limit the size of a value.

A chunk is a run of the sorted set, at most :data:`LARGEST` bytes, so that reading or writing it takes little memory on
either side. A small or empty set is one chunk. Uploaded lists are stored sets too.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from itertools import groupby
from operator import itemgetter
from typing import Any

import sqlalchemy as sa

from sendoff.audience.identifiers import Identifiers, Kind, from_bytes, union
from sendoff.ledger.storage.bulk import in_parts, weighed
from sendoff.ledger.storage.schema import (
    audience_groups,
    audiences,
    suppressed,
    uploaded_list_chunks,
    uploaded_lists,
    verdicts,
)

LARGEST = 16 << 20
"""The maximum bytes of one chunk, unless a single identifier is longer."""

_Row = dict[str, Any]

_ROWS_AT_ONCE = 500
_JOINED_AT_ONCE = 100
_READ_AT_ONCE = 4  # chunks that the database sends at a time


class StoredSets:
    """The sets in one table. ``name`` is the column that distinguishes the sets of one owner."""

    def __init__(self, name: sa.Column[str], owners: sa.Table) -> None:
        self._table = table = name.table
        (owner,) = owners.primary_key
        self._chunks = (
            sa.select(name, owners.c.kind, table.c.identifiers)
            .join(owners, table.c[owner.name] == owner)
            .order_by(name, table.c.chunk)
            .execution_options(stream_results=True, max_row_buffer=_READ_AT_ONCE)
        )
        self._sizes = sa.select(name, sa.func.sum(table.c.size)).group_by(name).order_by(name)

    def insert(self, db: sa.Connection, sets: Iterable[tuple[Mapping[str, str], Identifiers]]) -> None:
        """Store sets, each given with the key of its rows except ``chunk``; few chunks are in memory at once."""
        rows = (
            {**key, "chunk": chunk, "size": len(run), "identifiers": run.to_bytes()}
            for key, identifiers in sets
            for chunk, run in enumerate(cut(identifiers, LARGEST))
        )
        for batch in batches(rows):
            db.execute(sa.insert(self._table), batch)

    def sets(self, db: sa.Connection, *where: sa.ColumnElement[bool]) -> dict[str, Identifiers]:
        """Return the sets that match the conditions, by name."""
        with db.execute(self._chunks.where(*where)) as rows:
            return {
                name: joined(kind, (from_bytes(kind, chunk.identifiers) for chunk in chunks))
                for (name, kind), chunks in groupby(rows, itemgetter(0, 1))
            }

    def sizes(self, db: sa.Connection, *where: sa.ColumnElement[bool]) -> dict[str, int]:
        """Count the members of the sets that match the conditions, by name, without reading them."""
        return {name: int(size) for name, size in db.execute(self._sizes.where(*where))}

    def name_of(self, db: sa.Connection, identifier: int | str, *where: sa.ColumnElement[bool]) -> str | None:
        """Return the name of the first set that contains an identifier; reading stops there."""
        with db.execute(self._chunks.where(*where)) as rows:
            return next((name for name, kind, chunk in rows if identifier in from_bytes(kind, chunk)), None)


GROUPS = StoredSets(audience_groups.c.value, audiences)
SUPPRESSED = StoredSets(suppressed.c.reason, audiences)
VERDICTS = StoredSets(verdicts.c.verdict, audiences)
LISTS = StoredSets(uploaded_list_chunks.c.name, uploaded_lists)


def cut(identifiers: Identifiers, largest: int) -> Iterator[Identifiers]:
    """Split a set into consecutive runs in sorted order, each of at most ``largest`` bytes or of one member."""
    pieces = -(-identifiers.stored_bytes // largest)
    if pieces < 2 or len(identifiers) < 2:
        yield identifiers
        return
    for run in identifiers.slices(-(-len(identifiers) // pieces)):
        yield from cut(run, largest)  # a run may still be too large if its members differ in length


def joined(kind: Kind, sets: Iterable[Identifiers]) -> Identifiers:
    """Join sets as they arrive, keeping only some in memory. It is cheap if they arrive in order, as chunks do."""
    unions = [union(kind, group) for group in in_parts(sets, _JOINED_AT_ONCE)]
    return unions[0] if len(unions) == 1 else union(kind, unions)


def batches(rows: Iterable[_Row]) -> Iterator[list[_Row]]:
    """Group rows for INSERT: at most 500 rows, and not much more than :data:`LARGEST` bytes, in each batch."""
    return weighed(rows, _size_of, most=_ROWS_AT_ONCE, heavy=LARGEST)


def _size_of(row: _Row) -> int:
    return sum(len(value) for value in row.values() if isinstance(value, bytes))
