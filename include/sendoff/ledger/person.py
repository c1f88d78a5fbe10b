"""Everything that the ledger holds about one person, as JSON values."""

from __future__ import annotations

import json
from bisect import bisect_left
from collections.abc import Iterator
from dataclasses import asdict
from datetime import datetime
from operator import attrgetter
from typing import Any

import numpy as np
import orjson
import pyarrow.compute as pc
import sqlalchemy as sa

from sendoff.audience import as_kinds, checked_texts, read_template_values
from sendoff.audience.identifiers import Identifiers, IntegerIdentifiers, Kind, as_integer, from_bytes
from sendoff.ledger.audit_log import Decision, append_decision
from sendoff.ledger.blocks import StoredPostBack, as_batch
from sendoff.ledger.database import Database
from sendoff.ledger.launches import Launch, Launches
from sendoff.ledger.post_backs import grouped, parts_of, stored_runs
from sendoff.ledger.schema import (
    audience_groups,
    audiences,
    segments,
    suppressions,
    uploaded_lists,
)
from sendoff.ledger.schema import uploaded_list_chunks as chunks
from sendoff.states import DecisionKind


class Persons:
    """What a ledger holds about single persons."""

    def __init__(self, database: Database) -> None:
        self._database = database
        self._launches = Launches(database)

    def export(
        self, identified_by: str, identifier: int | str, *, who: str, why: str, now: datetime
    ) -> dict[str, Any]:
        """Return everything held about one person as JSON values, and record in the audit log that it was exported.

        The members are ``launches`` with the status, the groups and the template values of the person in each, and
        ``post_backs``, ``lists`` and ``suppressions``. Raise AudienceError if the identifier is blank, or not a whole
        number as a device ID.
        """
        (text,) = checked_texts(identified_by, [identifier])
        kinds = as_kinds(identified_by, [text])
        found = {
            "identified_by": identified_by,
            "identifier": text,
            "exported_at": now.isoformat(),
            "launches": [
                each
                for kind, person in kinds.items()
                for each in self._in_launches(identified_by, kind, person)
            ],
            "post_backs": self._post_backs(identified_by, text),
            "lists": [
                name for kind, person in kinds.items() for name in self._lists(identified_by, kind, person)
            ],
            "suppressions": self._suppressions(identified_by, text),
        }
        counts = {name: len(found[name]) for name in ("launches", "post_backs", "lists", "suppressions")}
        detail = {"identified_by": identified_by, **counts}
        with self._database.write() as db:
            append_decision(db, Decision(None, DecisionKind.EXPORTED, who, why, now, detail))
        return found

    def _in_launches(self, identified_by: str, kind: Kind, person: Identifiers) -> Iterator[dict[str, Any]]:
        own = (audiences.c.identified_by == identified_by, audiences.c.kind == kind)
        with self._database.read() as db:
            keys = list(db.scalars(sa.select(audiences.c.launch_key).where(*own).order_by("launch_key")))
        (identifier,) = person
        for key in keys:
            launch, status = self._launches.get(key), self._launches.recipient(key, identifier)
            groups = self._groups(key, kind, identifier)
            if status.is_named or groups:
                yield {
                    "launch_key": key,
                    "campaign": launch.campaign,
                    "title": launch.title,
                    "period": launch.period.key,
                    "created_at": launch.created_at.isoformat(),
                    "status": status.to_json(),
                    "groups": groups,
                    "template_values": self._values(launch, status.segment, identifier),
                }

    def _groups(self, launch_key: str, kind: Kind, identifier: int | str) -> dict[str, list[str]]:
        query = sa.select(audience_groups).where(audience_groups.c.launch_key == launch_key)
        found: dict[str, list[str]] = {}
        with self._database.read() as db:
            for row in db.execute(query.execution_options(stream_results=True, max_row_buffer=4)):
                if identifier in from_bytes(kind, row.identifiers):
                    found.setdefault(row.name, []).append(row.value)
        return found

    def _values(self, launch: Launch, segment: int | None, identifier: int | str) -> Any:
        """Return the person's template values, or their variables in a request of your own; None if there are none."""
        if segment is None:
            return None
        own = (segments.c.launch_key == launch.launch_key, segments.c.number == segment)
        with self._database.read() as db:
            row = db.execute(
                sa.select(segments.c.identifiers, segments.c.template_values, segments.c.body).where(*own)
            ).one()
        if row.body is not None:
            members = json.loads(row.body).values()
            named = [
                each[str(identifier)]
                for each in members
                if isinstance(each, dict) and str(identifier) in each
            ]
            return named[0] if named else None
        if row.template_values is None or row.identifiers is None:
            return None
        people = from_bytes(launch.kind, row.identifiers)
        if isinstance(people, IntegerIdentifiers):
            place = int(np.searchsorted(people.values(), np.uint64(identifier)))
        else:
            place = bisect_left(people.column(), str(identifier), key=lambda each: each.as_py())
        return orjson.loads(orjson.dumps(read_template_values(row.template_values)[place]))

    def _post_backs(self, identified_by: str, identifier: str) -> list[dict[str, Any]]:
        if identified_by not in ("device_id", "user_id"):
            return []
        value = as_integer(identifier) if identified_by == "device_id" else identifier
        found: list[StoredPostBack] = []
        for run in stored_runs(self._database):
            for group in grouped(parts_of(self._database, run)):
                if pc.any(pc.equal(as_batch(group, [identified_by])[identified_by], value)).as_py():
                    in_group = (each for part in group for each in part.post_backs())
                    found += (each for each in in_group if getattr(each, identified_by) == value)
        found.sort(key=attrgetter("received_at", "receiver", "number"))
        return [
            {name: _plain(each) for name, each in asdict(post_back).items() if name not in _ALIKE}
            for post_back in found
        ]

    def _lists(self, identified_by: str, kind: Kind, person: Identifiers) -> list[str]:
        query = (
            sa.select(chunks.c.name, chunks.c.identifiers)
            .join(uploaded_lists, uploaded_lists.c.name == chunks.c.name)
            .where(uploaded_lists.c.identified_by == identified_by, uploaded_lists.c.kind == kind)
            .order_by(chunks.c.name)
        )
        (identifier,) = person
        with self._database.read() as db:
            rows = db.execute(query.execution_options(stream_results=True, max_row_buffer=4))
            return [name for name, blob in rows if identifier in from_bytes(kind, blob)]

    def _suppressions(self, identified_by: str, identifier: str) -> list[dict[str, Any]]:
        query = sa.select(suppressions).where(
            suppressions.c.identified_by == identified_by, suppressions.c.identifier == identifier
        )
        with self._database.read() as db:
            rows = db.execute(query.order_by(suppressions.c.added_at)).mappings()
            return [{name: _plain(each) for name, each in row.items() if name != "version"} for row in rows]


_ALIKE = ("readable", "body")  # a post-back that names a person was readable, and its body is not kept


def _plain(value: Any) -> Any:
    if isinstance(value, datetime):
        return value.isoformat()
    return value.decode(errors="replace") if isinstance(value, bytes) else value
