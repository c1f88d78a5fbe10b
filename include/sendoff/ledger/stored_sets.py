"""Sets in parts: one set of identifiers held in several values, since a database's values have a limit.

A part is a run of the set in sorted order, at most :data:`LARGEST` bytes, so that writing or reading one takes little
memory on either side. A set that is small is one part, and so is one without members.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import groupby, islice
from operator import itemgetter
from typing import Any

import sqlalchemy as sa

from sendoff.audience.identifiers import Identifiers, Kind, from_bytes, union
from sendoff.ledger.schema import audience_groups, audiences, left_out, list_parts, lists, verdicts

LARGEST = 16 << 20
"""Bytes of one part, unless a single identifier has more."""

Row = dict[str, Any]

_ROWS_AT_ONCE = 500
_JOINED_AT_ONCE = 100
_READ_AT_ONCE = 4  # parts that a database sends at once


class Parts:
    """The sets of one table, each in one or several parts; ``name`` is the column that tells one owner's sets apart."""

    def __init__(self, name: sa.Column[str], owners: sa.Table) -> None:
        self._name = name
        self._table = name.table
        self._owners = owners
        (owner,) = owners.primary_key
        self._of_owner = self._table.c[owner.name] == owner

    def insert(
        self,
        connection: sa.Connection,
        sets: Iterable[tuple[Mapping[str, str], Identifiers]],
        *,
        largest: int = LARGEST,
    ) -> None:
        """Store sets, each with the key of its row but for ``part``; few parts are in memory at once."""
        rows = (
            {**key, "part": part, "size": len(run), "identifiers": run.to_bytes()}
            for key, identifiers in sets
            for part, run in enumerate(cut(identifiers, largest))
        )
        for batch in batches(rows, largest):
            connection.execute(sa.insert(self._table), batch)

    def sets(self, connection: sa.Connection, *where: sa.ColumnElement[bool]) -> dict[str, Identifiers]:
        """Give the sets that fulfil conditions, by name."""
        with connection.execute(self._parts(*where)) as rows:
            return {
                name: joined(kind, (from_bytes(kind, part.identifiers) for part in parts))
                for (name, kind), parts in groupby(rows, itemgetter(0, 1))
            }

    def sizes(self, connection: sa.Connection, *where: sa.ColumnElement[bool]) -> dict[str, int]:
        """Count the members of the sets that fulfil conditions, by name, without reading them."""
        query = sa.select(self._name, sa.func.sum(self._table.c.size)).where(*where)
        rows = connection.execute(query.group_by(self._name).order_by(self._name))
        return {name: int(size) for name, size in rows}

    def name_of(
        self, connection: sa.Connection, identifier: int | str, *where: sa.ColumnElement[bool]
    ) -> str | None:
        """Give the name of the first set that holds an identifier; what comes after it is not read."""
        with connection.execute(self._parts(*where)) as rows:
            return next((name for name, kind, part in rows if identifier in from_bytes(kind, part)), None)

    def _parts(self, *where: sa.ColumnElement[bool]) -> sa.Select[str, Kind, bytes]:
        return (
            sa.select(self._name, self._owners.c.kind, self._table.c.identifiers)
            .join(self._owners, self._of_owner)
            .where(*where)
            .order_by(self._name, self._table.c.part)
            .execution_options(stream_results=True, max_row_buffer=_READ_AT_ONCE)
        )


GROUPS = Parts(audience_groups.c.value, audiences)
LEFT_OUT = Parts(left_out.c.reason, audiences)
VERDICTS = Parts(verdicts.c.verdict, audiences)
LISTS = Parts(list_parts.c.name, lists)


def cut(identifiers: Identifiers, largest: int) -> Iterator[Identifiers]:
    """Yield a set as consecutive runs in sorted order, each of at most so many bytes, or of one member."""
    pieces = -(-identifiers.stored_bytes // largest)
    if pieces < 2 or len(identifiers) < 2:
        yield identifiers
        return
    for run in identifiers.slices(-(-len(identifiers) // pieces)):
        yield from cut(run, largest)  # where members differ in length, one may still be too large


def joined(kind: Kind, sets: Iterable[Identifiers]) -> Identifiers:
    """Join sets as they come, so that only some of them wait: cheap where they came in order, as parts do."""
    remaining = iter(sets)
    some = iter(lambda: list(islice(remaining, _JOINED_AT_ONCE)), [])
    found = [union(kind, each) for each in some]
    return found[0] if len(found) == 1 else union(kind, found)


def batches(rows: Iterable[Row], largest: int = LARGEST) -> Iterator[Sequence[Row]]:
    """Yield rows that are to be inserted at once: not too many, and not much above so many bytes."""
    batch: list[Row] = []
    held = 0
    for row in rows:
        batch.append(row)
        held += sum(len(value) for value in row.values() if isinstance(value, bytes))
        if len(batch) == _ROWS_AT_ONCE or held >= largest:
            yield batch
            batch, held = [], 0
    if batch:
        yield batch
