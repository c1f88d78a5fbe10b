"""Everything that the ledger holds about one person, as JSON values."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, replace
from datetime import datetime
from operator import attrgetter
from typing import Any

import orjson
import sqlalchemy as sa

from sendoff.audience import checked_texts, read_template_values
from sendoff.audience.identifiers import from_bytes
from sendoff.ledger.control.audit_log import Decision, append_decision
from sendoff.ledger.erasure.person_columns import (
    OWN_REQUESTS,
    REFUSALS,
    SETS,
    People,
    as_json,
    naming,
    own_people,
    rows_of,
)
from sendoff.ledger.launches.launch_record import LaunchRecord
from sendoff.ledger.launches.launches import Launches
from sendoff.ledger.post_backs.blocks import StoredPostBack
from sendoff.ledger.post_backs.post_backs import PendingRun, parts_of, stored_runs
from sendoff.ledger.storage.bulk import streamed
from sendoff.ledger.storage.database import Database, LedgerPart
from sendoff.ledger.storage.schema import erasure_queue, erasures, outcomes, segments, suppressions
from sendoff.service.wire import OwnPeople
from sendoff.states import DecisionKind

COUNTED = ("launches", "post_backs", "lists", "suppressions", "erasures")
"""The members of an export that are lists."""

_Place = dict[str, Any]
_BETWEEN_PARTS = re.compile(r"[&,;\n]")  # of a body that is not JSON


class Persons(LedgerPart):
    """What a ledger holds about single persons."""

    def __init__(self, database: Database, erased_at: Callable[[str, str], datetime | None]) -> None:
        super().__init__(database)
        self._erased_at = erased_at
        self._launches = Launches(database)

    def export(
        self, identified_by: str, identifier: int | str, *, who: str, why: str, now: datetime
    ) -> dict[str, Any]:
        """Return everything held about one person as JSON values, and record in the audit log that it was exported.

        It searches every place that an erasure empties. ``launches`` has the places that name the person in each. The
        other members are ``post_backs``, ``lists``, ``suppressions``, unfinished ``erasures``, and ``refusals``.
        ``held_in``: the columns of the ledger that name the person. ``erased_at``: when the person was erased, if so,
        because the ledger keeps a hash of them.

        Raise AudienceError if the identifier is blank, or not a whole number as a device ID. Raise SettingsError if
        people were erased, and the secret that recognises them is missing.
        """
        (text,) = checked_texts(identified_by, [identifier])
        erased_at = self._erased_at(identified_by, text)
        person = People.of(identified_by, [text])
        sets, requests = list(self._sets(person)), self._own_requests(person)
        found: dict[str, Any] = {
            "identified_by": identified_by,
            "identifier": text,
            "exported_at": now.isoformat(),
            "launches": self._in_launches(person, sets, requests),
            "post_backs": self._post_backs(person),
            "lists": sorted({each["name"] for launch, each in sets if launch is None}),
            "suppressions": self._suppressions(person),
            "erasures": self._erasures(person),
            "refusals": self._refusals(person),
            "erased_at": erased_at and erased_at.isoformat(),
        }
        others = {
            "post_backs.block": found["post_backs"],
            "segments.body": requests,
            "segments.template_values": any(
                each["template_values"] is not None for each in found["launches"]
            ),
            "suppressions.identifier": found["suppressions"],
            "erasure_queue.identifier": found["erasures"],
            "outcomes.reason": found["refusals"],
        }
        held = {each["in"] for _, each in sets} | {column for column, names in others.items() if names}
        counts = {name: len(found[name]) for name in COUNTED}
        with self._database.write() as db:
            detail = {"identified_by": identified_by, **counts}
            append_decision(db, Decision(None, DecisionKind.EXPORTED, who, why, now, detail))
        return {**found, "held_in": sorted(held)}

    def _sets(self, person: People) -> Iterator[tuple[str | None, _Place]]:
        """Yield the launch, or None, and the place of each stored set that has the person."""
        for kind, people in person.people.items():
            (identifier,) = people
            for column in SETS:
                keys = [
                    key.name for key in column.table.primary_key if key.name not in ("launch_key", "chunk")
                ]
                query = streamed(rows_of(column, person.identified_by, kind), 4)
                with self._database.read() as db, db.execute(query) as rows:
                    for row in rows:
                        if identifier in from_bytes(kind, row.blob):
                            names = {name: row._mapping[name] for name in keys}
                            yield row.launch, {"in": f"{column.table.name}.{column.name}", **names}

    def _own_requests(self, person: People) -> dict[str, list[_Place]]:
        """Return what requests of your own have about the person, by launch, whatever the column of the launch is."""
        found: dict[str, list[_Place]] = {}
        with self._database.read() as db:
            for row in db.execute(streamed(OWN_REQUESTS, 1)):
                named = own_people(row, person.identified_by, row.identified_by, row.kind)
                if named and (body := _about(named, person)):
                    about = {"segment": row.number, "body": body}
                    found.setdefault(row.launch_key, []).append(about)
        return found

    def _in_launches(
        self,
        person: People,
        sets: Sequence[tuple[str | None, _Place]],
        requests: Mapping[str, list[_Place]],
    ) -> list[dict[str, Any]]:
        places: dict[str, list[_Place]] = {key: [] for key in requests}
        for launch_key, place in sets:
            if launch_key is not None:
                places.setdefault(launch_key, []).append(place)
        return [
            self._in_launch(person, self._launches.get(key), places[key], requests.get(key, []))
            for key in sorted(places)
        ]

    def _in_launch(
        self, person: People, launch: LaunchRecord, places: Sequence[_Place], requests: Sequence[_Place]
    ) -> dict[str, Any]:
        status, values = None, None
        if places:  # the launch names people by this column
            (identifier,) = person.of_kind(launch.kind)
            status = self._launches.recipient(launch.launch_key, identifier)
            values = self._values(launch, status.segment, identifier)
        groups: dict[str, list[str]] = {}
        for place in places:
            if place["in"] == "audience_groups.identifiers":
                groups.setdefault(place["name"], []).append(place["value"])
        return {
            "launch_key": launch.launch_key,
            "campaign": launch.campaign,
            "title": launch.title,
            "period": launch.period.key,
            "created_at": launch.created_at.isoformat(),
            "status": status and status.to_json(),
            "groups": groups,
            "template_values": values,
            "named_in": list(places),
            "requests": list(requests),
        }

    def _values(self, launch: LaunchRecord, segment: int | None, identifier: int | str) -> Any:
        """Return the person's template values; None if there are none."""
        if segment is None:
            return None
        own = (segments.c.launch_key == launch.launch_key, segments.c.number == segment)
        row = self._database.one(sa.select(segments.c.identifiers, segments.c.template_values).where(*own))
        if row.template_values is None or row.identifiers is None:
            return None
        place = from_bytes(launch.kind, row.identifiers).column().index(identifier).as_py()
        if place < 0:  # erased meanwhile
            return None
        return orjson.loads(orjson.dumps(read_template_values(row.template_values)[place]))

    def _post_backs(self, person: People) -> list[dict[str, Any]]:
        found: list[StoredPostBack] = []
        for run in stored_runs(self._database):
            if numbers := frozenset(naming(self._database, person, run)):
                near = PendingRun(run.receiver, min(numbers) - 1, max(numbers))
                in_run = (each for part in parts_of(self._database, near) for each in part.post_backs())
                found += (each for each in in_run if each.number in numbers)
        found.sort(key=attrgetter("received_at", "receiver", "number"))
        return [_plain(asdict(_without_others(each, person))) for each in found]

    def _suppressions(self, person: People) -> list[dict[str, Any]]:
        query = sa.select(suppressions).where(
            suppressions.c.identified_by == person.identified_by, suppressions.c.identifier.in_(person.texts)
        )
        with self._database.read() as db:
            rows = db.execute(query.order_by(suppressions.c.added_at)).mappings()
            return [_plain({name: each for name, each in row.items() if name != "version"}) for row in rows]

    def _refusals(self, person: People) -> list[dict[str, Any]]:
        """Return the refusals that name the person."""
        columns = [outcomes.c[name] for name in ("dispatch_key", "attempt", "reason", "recorded_at")]
        query = streamed(REFUSALS.with_only_columns(*columns).order_by(outcomes.c.id))
        with self._database.read() as db:
            rows = db.execute(query).mappings()
            return [_plain(row) for row in rows if person.are_named_in(row["reason"].encode())]

    def _erasures(self, person: People) -> list[dict[str, Any]]:
        """Return the unfinished erasures of the person."""
        query = (
            sa.select(erasures.c.request, erasures.c.requested_at, erasures.c.why)
            .join(erasure_queue, erasure_queue.c.request == erasures.c.request)
            .where(
                erasures.c.identified_by == person.identified_by,
                erasure_queue.c.identifier.in_(person.texts),
            )
        )
        with self._database.read() as db:
            return [_plain(row) for row in db.execute(query).mappings()]


def _about(named: OwnPeople, person: People) -> dict[str, Any]:
    """Return the parts of a request's JSON that name the person, without those of other people."""
    about: dict[str, Any] = {}
    for name, value in named.members.items():
        if named.lists.get(name) == named.column:
            entries = [each for each in value if person.includes(str(each))]
            about[name] = {key: value[key] for key in entries} if isinstance(value, dict) else entries
    others = named.without(person.includes)
    for name, parts in (others or named).elsewhere():
        if name not in named.lists:
            about |= _parts_about({name: named.members[name]}, person) if _is_named(parts, person) else {}
        elif others and _is_named(parts, person):  # in the variables of others
            about[name] = [*filter(None, [about.get(name)]), *_parts_about(parts, person)]
    return {name: found for name, found in about.items() if found}


def _without_others(post_back: StoredPostBack, person: People) -> StoredPostBack:
    """Return a post-back that names the person; of an unreadable body, only the parts that do."""
    if post_back.body is None:
        return post_back
    try:
        parts = json.dumps(_parts_about(json.loads(post_back.body), person), ensure_ascii=False)
    except (ValueError, RecursionError):
        whole = post_back.body.decode(errors="replace")
        pieces = [each for each in _BETWEEN_PARTS.split(whole) if person.are_named_in(each.encode())]
        parts = " … ".join(pieces) or whole
    return replace(post_back, body=parts.encode(errors="replace"))


def _parts_about(value: Any, person: People) -> Any:
    if isinstance(value, list):
        return [_entry_about(each, person) for each in value if _is_named(each, person)]
    if isinstance(value, dict):
        return {
            key: each if person.includes(key) else _parts_about(each, person)
            for key, each in value.items()
            if _is_named({key: each}, person)
        }
    return value


def _entry_about(entry: Any, person: People) -> Any:
    """Return an entry of a list: all of it if a value of it is the person, as in the target of an execution."""
    if isinstance(entry, dict) and any(person.includes(str(each)) for each in entry.values()):
        return entry
    return _parts_about(entry, person)


def _is_named(value: Any, person: People) -> bool:
    return person.are_named_in(as_json(value))


def _plain(values: Mapping[Any, Any]) -> dict[str, Any]:
    """Return values by name as JSON has them."""
    return {name: _as_json(each) for name, each in values.items()}


def _as_json(value: Any) -> Any:
    if isinstance(value, datetime):
        return value.isoformat()
    return value.decode(errors="replace") if isinstance(value, bytes) else value
