"""The places where the ledger names people: what an erasure empties, and what an export of one person searches.

Both use the lists of this module, so a place is known to both or to neither.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass, field
from itertools import chain
from typing import Any, Self
from urllib.parse import unquote_plus

import pyarrow as pa
import pyarrow.compute as pc
import sqlalchemy as sa

from sendoff.audience import KnownPeople, as_kinds
from sendoff.audience.identifiers import DELETED, Identifiers, Kind, as_integer, empty, from_bytes, from_texts
from sendoff.ledger.post_backs.block_batches import as_batch
from sendoff.ledger.post_backs.block_format import READABLE
from sendoff.ledger.post_backs.post_backs import PendingRun, grouped, parts_of, stored_runs
from sendoff.ledger.storage.bulk import in_parts, marks, streamed, values
from sendoff.ledger.storage.database import Database
from sendoff.ledger.storage.schema import (
    audience_groups,
    audiences,
    dispatch_totals,
    dispatches,
    erasure_queue,
    open_hours,
    outcomes,
    post_backs,
    segments,
    suppressed,
    suppressions,
    uploaded_list_chunks,
    uploaded_lists,
    verdicts,
    withheld,
)
from sendoff.service.wire import NOTHING, OwnPeople
from sendoff.states import OutcomeKind

SETS: tuple[sa.Column[Any], ...] = (
    segments.c.identifiers,
    suppressed.c.identifiers,
    audience_groups.c.identifiers,
    dispatch_totals.c.delivered,
    dispatch_totals.c.engaged,
    dispatch_totals.c.suspects,
    open_hours.c.identifiers,
    withheld.c.identifiers,
    verdicts.c.identifiers,
    uploaded_list_chunks.c.identifiers,
)
"""The columns that hold sets of identifiers."""

OTHERS: tuple[sa.Column[Any], ...] = (
    segments.c.template_values,
    segments.c.body,
    outcomes.c.reason,
    post_backs.c.block,
    suppressions.c.identifier,
    erasure_queue.c.identifier,
    erasure_queue.c.number,
)
"""The other columns that may name people."""

TABLES: tuple[sa.Table, ...] = tuple(dict.fromkeys(column.table for column in (*SETS, *OTHERS)))
"""The tables that hold identifiers."""

REDACTED = "…"
"""What replaces a text that names people. All of it goes, because a part of a name may still identify a person."""

_BODIES_AT_ONCE = 1_000
_COMPARED_AT_ONCE = 50_000  # possible identifiers in bodies
_NUMBER = re.compile(r"[0-9]+")
_WORD = re.compile(r"\w(?:[\w.@:+-]*\w)?")
_NO_NUMBER = re.compile(  # dates with their times, and escapes
    r"\b[0-9]{4}-[0-9]{2}-[0-9]{2}(?:[T ][0-9]{2}:[0-9]{2}(?::[0-9]{2}(?:\.[0-9]+)?)?)?(?![0-9])"
    r"|\\u[0-9A-Fa-f]{4}|%[0-9A-Fa-f]{2}"
)
_NOT_IN_A_WORD = r"(?!(?<=\w)\w)"
_ESCAPE = re.compile(r"\\(?:u([0-9A-Fa-f]{4})|(.))", re.DOTALL)
_MOST_ESCAPED = 3  # such as JSON in a text of JSON
_CONTROLS = dict(zip("bfnrt", "\b\f\n\r\t", strict=True))
_BETWEEN_QUOTES = re.compile(r'(?:[^"\\]|\\.)+', re.DOTALL)


@dataclass(frozen=True, slots=True, kw_only=True)
class People:
    """People of one column, in each form that the ledger may name them by."""

    identified_by: str
    people: Mapping[Kind, Identifiers] = field(repr=False)
    texts: Collection[str] = field(repr=False)
    numbers: Collection[int] = field(repr=False)  # the same, as far as audiences may have them as integers

    @classmethod
    def of(cls, identified_by: str, texts: Collection[str], **more: Any) -> Self:
        """Return the people with these identifiers."""
        kinds = as_kinds(identified_by, texts)
        return cls(
            identified_by=identified_by,
            people=kinds,
            texts=frozenset(texts),
            numbers=frozenset(map(int, kinds.get("integer", ()))),
            **more,
        )

    def includes(self, text: str) -> bool:
        """Check whether a text is one of the identifiers, or the same number with leading zeros."""
        return text in self.texts or as_integer(text) in self.numbers

    def of_kind(self, kind: Kind) -> Identifiers:
        """Return the people as a set of one kind."""
        return self.people.get(kind, empty(kind))

    def among(self, identifiers: Identifiers) -> Identifiers:
        """Return the members of a set who are among the people."""
        return identifiers & self.of_kind(identifiers.kind)

    def are_named_in(self, body: bytes) -> bool:
        """Check whether a body contains an identifier as a number, a word or a whole text.

        One that is no word, such as a name with spaces, may also be within a longer text.
        """
        if any(map(self.includes, _possible_identifiers(body))):
            return True
        searched = _searched(body)
        return any(
            text in searched
            and not _WORD.fullmatch(text)
            and re.search(f"{_NOT_IN_A_WORD}{re.escape(text)}{_NOT_IN_A_WORD}", searched)
            for text in self.texts
        )

    def are_named_outside_lists(self, named: OwnPeople) -> bool:
        """Check whether a request of your own names one of the people outside of its lists."""
        return any(self.are_named_in(as_json(parts)) for _, parts in named.elsewhere())


def own_people(row: Any, column: str, identified_by: str | None, kind: Kind) -> OwnPeople | None:
    """Return where the request in the row of a segment names people of a column; None if it cannot be read."""
    try:
        members = json.loads(row.body)
    except (ValueError, RecursionError):
        return None
    recipients = None
    if row.body != NOTHING and row.identifiers is not None and not row.identifiers.startswith(DELETED):
        recipients = from_bytes(kind, row.identifiers)
    return OwnPeople.of(members, column, identified_by, recipients)


def as_json(value: Any) -> bytes:
    """Return a value as JSON."""
    return json.dumps(value, ensure_ascii=False).encode(errors="replace")


OWN_REQUESTS = (
    sa.select(
        segments.c.launch_key,
        segments.c.number,
        segments.c.body,
        segments.c.identifiers,
        audiences.c.identified_by,
        audiences.c.kind,
    )
    .join(audiences, audiences.c.launch_key == segments.c.launch_key)
    .where(segments.c.body.is_not(None))
)
"""The query for requests of your own, with what :func:`own_people` needs."""

IS_REFUSAL = sa.and_(outcomes.c.kind == OutcomeKind.REFUSED, outcomes.c.reason.is_not(None))
REFUSALS = sa.select(outcomes).where(IS_REFUSAL)
"""The query for refusals: the service's words may name people. Sendoff's own reasons name no one."""


def is_kept(column: sa.ColumnElement[Any]) -> sa.ColumnElement[bool]:
    """Return the condition that a row has a set of identifiers that was not deleted."""
    beginning = sa.func.substr(column, 1, len(DELETED), type_=sa.LargeBinary())
    return sa.and_(column.is_not(None), beginning != DELETED)


def rows_of(column: sa.Column[Any], identified_by: str, kind: Kind) -> sa.Select[Any]:
    """Return the query for the rows of one of :data:`SETS` whose identifiers are of a column and kind.

    Its columns are ``launch``, which is null for lists, ``blob``, and the primary key of the table.
    """
    table, owner = column.table, audiences
    launch: Any
    if "launch_key" in table.c:
        launch = table.c.launch_key
        source = table.join(audiences, audiences.c.launch_key == launch)
    elif "dispatch_key" in table.c:
        launch = dispatches.c.launch_key
        of_dispatch = table.join(dispatches, dispatches.c.dispatch_key == table.c.dispatch_key)
        source = of_dispatch.join(audiences, audiences.c.launch_key == launch)
    else:
        launch, owner = sa.null(), uploaded_lists
        source = table.join(uploaded_lists, uploaded_lists.c.name == table.c.name)
    return (
        sa.select(launch.label("launch"), column.label("blob"), *table.primary_key.columns)
        .select_from(source)
        .where(owner.c.identified_by == identified_by, owner.c.kind == kind, is_kept(column))
    )


def every_set(database: Database, identified_by: str, kind: Kind) -> Iterator[Identifiers]:
    """Yield every stored set of identifiers of a column and kind."""
    for column in SETS:
        with database.read() as db, db.execute(streamed(rows_of(column, identified_by, kind))) as rows:
            for row in rows:
                yield from_bytes(kind, row.blob)


def in_rows(database: Database, identified_by: str, kind: Kind, people: KnownPeople | People) -> set[str]:
    """Return the people in tables with one identifier per row, as text."""
    query = sa.select(suppressions.c.identifier).where(suppressions.c.identified_by == identified_by)
    found: set[str] = set()
    with database.read() as db, db.scalars(streamed(query, 5_000)) as values:
        for some in in_parts(values, 50_000):
            found.update(map(str, people.among(from_texts(kind, some))))
    if identified_by in ("device_id", "user_id"):
        for run in stored_runs(database):
            for group in grouped(parts_of(database, run)):
                column = as_batch(group, [identified_by])[identified_by].drop_null().unique()
                texts = [str(each) for each in column.to_pylist()]
                found.update(map(str, people.among(from_texts(kind, texts))))
    return found


def known_among(database: Database, people: People) -> set[str]:
    """Return those of the people that the ledger names anywhere, as text. Stop once all are found."""
    found: set[str] = set()
    for named in filter(None, _named(database, people)):
        found.update(text for text in people.texts if text in named or str(as_integer(text)) in named)
        if len(found) == len(people.texts):
            break
    return found


def _named(database: Database, people: People) -> Iterator[set[str]]:
    """Yield the people in each place of the ledger, as text."""
    for kind in people.people:
        for identifiers in every_set(database, people.identified_by, kind):
            yield set(map(str, people.among(identifiers)))
        yield in_rows(database, people.identified_by, kind, people)
    for identifiers in in_bodies(database, people.identified_by):
        yield set(map(str, people.among(identifiers)))


def naming(database: Database, people: People, run: PendingRun) -> list[int]:
    """Return the numbers of the post-backs in a run that name one of the people."""
    numbers: set[int] = set()
    column = people.identified_by if people.identified_by in ("device_id", "user_id") else None
    texts = pa.array(list(people.texts), pa.string())
    wanted = pa.array(list(people.numbers), pa.int64()) if column == "device_id" else texts
    for group in grouped(parts_of(database, run)):
        batch = as_batch(group, [column] if column else [])
        if column:
            named = marks(pc.is_in(batch[column], value_set=wanted))
            numbers.update(values(batch["number"])[named].tolist())
        if not (values(batch["what"]) & READABLE).all():
            unreadable = (each for part in group for each in part.unreadable_bodies())
            numbers.update(number for number, body in unreadable if people.are_named_in(body))
    return sorted(numbers)


def unreadable_naming(
    database: Database,
    run: PendingRun,
    columns: Collection[str],
    among: Callable[[str, Identifiers], Identifiers],
) -> set[int]:
    """Return the numbers of the unreadable post-backs in a run that name people of some columns.

    ``among``: returns the members of a column's set who are these people. Their identifiers are recognised as
    :func:`in_bodies` describes.
    """
    numbers: set[int] = set()
    bodies = (each for part in parts_of(database, run) for each in part.unreadable_bodies())
    for some in in_parts(bodies, _BODIES_AT_ONCE):
        possible = [(number, set(_possible_identifiers(body))) for number, body in some]
        all_texts = set().union(*(texts for _, texts in possible))
        for column in columns:
            sets = as_kinds(column, all_texts).values()
            found = People.of(column, [str(each) for people in sets for each in among(column, people)])
            if found.texts:
                numbers.update(number for number, texts in possible if any(map(found.includes, texts)))
    return numbers


def in_bodies(database: Database, identified_by: str) -> Iterator[Identifiers]:
    """Yield what may be identifiers of a column in requests of your own, refusals and unreadable post-backs."""
    in_texts = (text for body in _bodies(database) for text in _possible_identifiers(body))
    possible = chain(_in_requests(database, identified_by), in_texts)
    for texts in in_parts(possible, _COMPARED_AT_ONCE):
        yield from as_kinds(identified_by, texts).values()


def _in_requests(database: Database, column: str) -> Iterator[str]:
    with database.read() as db, db.execute(streamed(OWN_REQUESTS, 1)) as rows:
        for row in rows:
            named = own_people(row, column, row.identified_by, row.kind)
            if named is None:
                yield from _possible_identifiers(row.body)
            else:
                yield from named.identifiers()
                for _, parts in named.elsewhere():
                    yield from _possible_identifiers(as_json(parts))


def _bodies(database: Database) -> Iterator[bytes]:
    reasons = REFUSALS.with_only_columns(outcomes.c.reason)
    with database.read() as db, db.scalars(streamed(reasons)) as texts:
        yield from (text.encode() for text in texts)
    for run in stored_runs(database):
        for part in parts_of(database, run):
            yield from (body for _, body in part.unreadable_bodies())


def _searched(body: bytes) -> str:
    """Return a body, and also the same without escapes of JSON and of forms. It need not be either of them."""
    text = body.decode(errors="replace")
    forms = [text]
    while "\\" in forms[-1] and len(forms) <= _MOST_ESCAPED:
        forms.append(_unescaped(forms[-1]))
    if "%" in text or "+" in text:
        forms += [unquote_plus(form) for form in forms]
    return "\n".join(forms)


def _unescaped(text: str) -> str:
    plain = _ESCAPE.sub(
        lambda found: chr(int(found[1], 16)) if found[1] else _CONTROLS.get(found[2], found[2]), text
    )
    # A character beyond 16 bits is two escapes.
    return plain.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")


def _possible_identifiers(body: bytes) -> Iterator[str]:
    """Yield the numbers, the words and the whole texts in a body.

    The numbers of a date are none. If the body is not JSON, it is not clear which quotes begin a text, so all between
    two quotes is yielded, and each name and value of a form.
    """
    searched = _searched(body)
    without_dates = _NO_NUMBER.sub(" ", searched)
    yield from _NUMBER.findall(without_dates)
    yield from (word for word in _WORD.findall(searched) if not _NUMBER.fullmatch(word))
    for word in _WORD.findall(without_dates):  # as in user:eva and eva.png, but not as in eva@example.com.au
        yield from (part for part in re.split(":" if "@" in word else "[.:]", word) if part != word)
    try:
        unread: list[Any] = [json.loads(body)]
    except (ValueError, RecursionError):
        text = body.decode(errors="replace")
        between = (_unescaped(piece[0]) for piece in _BETWEEN_QUOTES.finditer(text))
        in_form = (unquote_plus(piece) for piece in re.split("[&=]", text))
        yield from (each for each in chain(between, in_form) if each.strip())
        return
    while unread:
        value = unread.pop()
        if isinstance(value, dict):
            unread += [*value, *value.values()]
        elif isinstance(value, list):
            unread += value
        elif isinstance(value, str) and value.strip():
            yield value.encode(errors="replace").decode()
