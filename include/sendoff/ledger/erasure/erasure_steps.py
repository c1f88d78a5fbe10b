"""The steps of an erasure: each removes the people of one request from some tables, a few rows per transaction.

The rows that name the people are found without locks. They are then locked, read again and rewritten in the same
transaction, because another erasure or a worker may have changed them meanwhile.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass
from operator import itemgetter
from typing import Any, NamedTuple

import sqlalchemy as sa

from sendoff.audience import template_values_without
from sendoff.audience.identifiers import Identifiers, Kind, as_member, empty, from_bytes
from sendoff.ledger.erasure.old_recipients import finish_deletions
from sendoff.ledger.erasure.person_columns import REDACTED, REFUSALS, People, naming, own_people
from sendoff.ledger.post_backs.post_backs import PendingRun
from sendoff.ledger.post_backs.scrub import scrub
from sendoff.ledger.post_backs.totals import ERASED, lock_totals
from sendoff.ledger.requests.doubts import is_still_doubted
from sendoff.ledger.storage.bulk import in_parts, streamed, weighed
from sendoff.ledger.storage.database import Database
from sendoff.ledger.storage.revisions import bump_revision, bump_revision_if_reported
from sendoff.ledger.storage.schema import (
    audience_groups,
    audiences,
    dispatch_totals,
    dispatches,
    erasure_queue,
    launches,
    open_hours,
    outcomes,
    post_backs,
    receivers,
    segments,
    suppressed,
    suppression_state,
    suppressions,
    uploaded_list_chunks,
    uploaded_lists,
    verdicts,
    withheld,
)
from sendoff.service.wire import NOTHING, written
from sendoff.states import DispatchState

_WRITTEN_AT_ONCE = 10  # sets per transaction
_RECIPIENTS_WRITTEN = 50_000  # in the segments of a transaction, which then takes no more
_REFUSALS_READ = 5_000  # texts of the service to look through at a time
_POST_BACKS_READ = 200_000  # numbers of a receiver to look through at a time
_REFUSALS_WRITTEN = 500  # rows per transaction
_POST_BACKS_WRITTEN = 500  # rows per transaction


@dataclass(frozen=True, slots=True, kw_only=True)
class Work(People):
    """The people of one request."""

    database: Database
    request: int


class _Launch(NamedTuple):
    """A launch that may name the people, and the people as its sets have them."""

    key: str
    identified_by: str
    kind: Kind
    gone: Identifiers

    def erases(self, text: str) -> bool:
        """Check whether a recipient goes. If recipients are texts, 017 is not 17."""
        return as_member(self.kind, text) in self.gone


def erase_launch(work: Work, position: str) -> str | None:
    """Erase people from what the next launch froze, and return its key; None after the last launch."""
    if not position:
        finish_deletions(work.database)
    launch = _next_launch(work, position)
    if launch is None:
        return None
    key, gone = launch.key, launch.gone
    _erase_segments(work, launch)
    if len(gone):
        own = suppressed.c.launch_key == key
        # The holdout is a part of the audience, so it counts. The others were left out of the audience.
        _erase_chunks(work, suppressed, own & (suppressed.c.reason == "holdout"), gone, counted_in=key)
        _erase_chunks(work, suppressed, own & (suppressed.c.reason != "holdout"), gone)
        _erase_chunks(work, audience_groups, audience_groups.c.launch_key == key, gone)
    return key


def erase_results(work: Work, position: str) -> str | None:
    """Erase people from the results of the next launch, and return its key; None after the last launch."""
    launch = _next_launch(work, position)
    if launch is None:
        return None
    key, gone = launch.key, launch.gone
    if len(gone):
        of_launch = sa.select(dispatches.c.dispatch_key).where(dispatches.c.launch_key == key)
        _erase_totals(work, key, gone)
        _erase_chunks(work, withheld, withheld.c.dispatch_key.in_(of_launch), gone)
        _erase_chunks(work, verdicts, verdicts.c.launch_key == key, gone)
    return key


def erase_refusals(work: Work, position: str) -> str | None:
    """Erase the next texts of refusals that name people, and return the last row; None after the last refusal."""
    query = REFUSALS.where(outcomes.c.id > int(position or 0)).order_by(outcomes.c.id).limit(_REFUSALS_READ)
    rows = work.database.rows(query)
    named = [row.id for row in rows if work.are_named_in(row.reason.encode())]
    for ids in in_parts(named, _REFUSALS_WRITTEN):
        with work.database.write_in_turn() as db:
            db.execute(sa.update(outcomes).where(outcomes.c.id.in_(ids)).values(reason=REDACTED))
    return str(rows[-1].id) if rows else None


def erase_post_backs(work: Work, position: str) -> str | None:
    """Erase the next post-backs, and return ``receiver:number`` of the last one; None after the last receiver."""
    receiver, last = (int(part) for part in (position or "0:0").split(":"))
    with work.database.read() as db:
        own = sa.select(sa.func.min(post_backs.c.last)).where(
            post_backs.c.receiver == receiver, post_backs.c.last > last
        )
        following_last = db.scalar(own)
        if following_last is None:
            following = db.scalar(
                sa.select(sa.func.min(receivers.c.receiver)).where(receivers.c.receiver > receiver)
            )
            return None if following is None else f"{following}:0"
    until = following_last + _POST_BACKS_READ
    found = naming(work.database, work, PendingRun(receiver, last, until))
    for start in range(0, len(found), _POST_BACKS_WRITTEN):
        with work.database.write_in_turn() as db:
            scrub(db, receiver, found[start : start + _POST_BACKS_WRITTEN])
    return f"{receiver}:{until}"


def erase_lists(work: Work, _position: str) -> str | None:
    """Erase people from uploaded lists and from the suppression list."""
    lists = sa.select(uploaded_lists.c.name, uploaded_lists.c.kind)
    found = work.database.rows(lists.where(uploaded_lists.c.identified_by == work.identified_by))
    for name, kind in found:
        if len(gone := work.of_kind(kind)):
            _erase_chunks(work, uploaded_list_chunks, uploaded_list_chunks.c.name == name, gone)
            size = (
                sa.select(sa.func.coalesce(sa.func.sum(uploaded_list_chunks.c.size), 0))
                .where(uploaded_list_chunks.c.name == name)
                .scalar_subquery()
            )
            own = uploaded_lists.c.name == name
            with work.database.write_in_turn() as db:
                # Lock the row first, so that the sum includes what another erasure stored meanwhile.
                db.execute(sa.select(uploaded_lists.c.name).where(own).with_for_update())
                db.execute(sa.update(uploaded_lists).where(own).values(size=size))
    named = sa.select(erasure_queue.c.identifier).where(erasure_queue.c.request == work.request)
    with work.database.write_in_turn() as db:
        # Whoever adds to the list asked before who was erased. Wait until that is stored, and delete it too.
        db.execute(sa.select(suppression_state.c.version).with_for_update())
        db.execute(
            sa.delete(suppressions).where(
                suppressions.c.identified_by == work.identified_by, suppressions.c.identifier.in_(named)
            )
        )
    return None


def _next_launch(work: Work, position: str) -> _Launch | None:
    """Return the next launch that may name the people, and the people as its sets have them.

    They are none if the launch identifies recipients by another column. A request of your own may name people by any.
    A launch whose recipients were deleted names no one.
    """
    is_own = audiences.c.identified_by == work.identified_by
    has_body = sa.exists().where(
        segments.c.launch_key == audiences.c.launch_key, segments.c.body.is_not(None)
    )
    query = (
        sa.select(audiences.c.launch_key, audiences.c.identified_by, audiences.c.kind, is_own)
        .join(launches, launches.c.launch_key == audiences.c.launch_key)
        .where(
            sa.or_(is_own, has_body),
            audiences.c.launch_key > position,
            launches.c.recipients_deleted_before.is_(None),
        )
        .order_by(audiences.c.launch_key)
        .limit(1)
    )
    row = work.database.first(query)
    if row is None:
        return None
    key, identified_by, kind, identifies_them = row
    return _Launch(key, identified_by, kind, work.of_kind(kind) if identifies_them else empty(kind))


def _erase_segments(work: Work, launch: _Launch) -> None:
    query = (
        sa.select(segments.c.number, segments.c.size, segments.c.identifiers, segments.c.body)
        .where(segments.c.launch_key == launch.key)
        .order_by(segments.c.number)
    )
    with work.database.read() as db:
        hits = [
            (row.number, row.size)
            for row in db.execute(streamed(query))
            if _meets(row.identifiers, launch.gone)
            or (row.body is not None and _body_without(row, launch, work) != row.body)
        ]
    for run in _runs(hits):
        _rewrite_segments(work, launch, [number for number, _ in run])


def _runs(sized: Iterable[tuple[int, int]]) -> Iterator[list[tuple[int, int]]]:
    """Divide segments, with their sizes, into runs that one transaction can rewrite."""
    return weighed(sized, itemgetter(1), most=_WRITTEN_AT_ONCE, heavy=_RECIPIENTS_WRITTEN)


def _meets(blob: bytes | None, gone: Identifiers) -> bool:
    return blob is not None and len(from_bytes(gone.kind, blob) & gone) > 0


def _rewrite_segments(work: Work, launch: _Launch, numbers: Collection[int]) -> None:
    own = segments.c.launch_key == launch.key
    with work.database.write_in_turn() as db:
        # This also makes other erasures wait. A claim that read a segment has recorded its withheld recipients by then.
        db.execute(
            sa.select(dispatches.c.dispatch_key)
            .where(dispatches.c.launch_key == launch.key, dispatches.c.segment.in_(numbers))
            .order_by(dispatches.c.dispatch_key)
            .with_for_update()
        ).all()
        removed, unusable = 0, []
        for row in db.execute(sa.select(segments).where(own, segments.c.number.in_(numbers))).all():
            values, lost = _rewritten(row, launch, work)
            db.execute(sa.update(segments).where(own, segments.c.number == row.number).values(values))
            removed += lost
            if values["body"] == NOTHING:
                unusable.append(row.number)
        _count(db, launch.key, removed)
        closed = (
            sa.update(dispatches)
            .where(
                dispatches.c.launch_key == launch.key,
                dispatches.c.segment.in_(unusable),
                dispatches.c.state == DispatchState.PLANNED,
            )
            .values(
                state=sa.case(  # as at a claim
                    (is_still_doubted(dispatches.c.dispatch_key), DispatchState.WRITTEN_OFF),
                    else_=DispatchState.SUPPRESSED,
                )
            )
        )
        if unusable and db.execute(closed).rowcount:
            bump_revision_if_reported(db, [launch.key])


def _rewritten(row: Any, launch: _Launch, work: Work) -> tuple[dict[str, Any], int]:
    """Return the values of a segment without some people, and how many of its recipients these are."""
    values = {"body": None if row.body is None else _body_without(row, launch, work)}
    if row.identifiers is None:
        return values, 0
    people = from_bytes(launch.kind, row.identifiers)
    lost = people & launch.gone
    remaining = people - lost
    if row.template_values is not None and len(lost):
        values["template_values"] = template_values_without(row.template_values, people, lost)
    return {**values, "size": len(remaining), "identifiers": remaining.to_bytes()}, len(lost)


def _erase_chunks(
    work: Work,
    table: sa.Table,
    where: sa.ColumnElement[bool],
    gone: Identifiers,
    *,
    counted_in: str | None = None,
) -> None:
    """Erase people from chunks of sets. ``counted_in``: the launch that counts them as erased recipients."""
    keys = list(table.primary_key.columns)
    with work.database.read() as db:
        hits = [
            tuple(row[:-1])
            for row in db.execute(streamed(sa.select(*keys, table.c.identifiers).where(where), 4))
            if _meets(row.identifiers, gone)
        ]
    for hit in hits:
        own = [column == value for column, value in zip(keys, hit, strict=True)]
        with work.database.write_in_turn() as db:
            blob = db.scalar(sa.select(table.c.identifiers).where(*own).with_for_update())
            if blob is None:  # it was replaced meanwhile
                continue
            people = from_bytes(gone.kind, blob)
            remaining = people - gone
            values = {"size": len(remaining), "identifiers": remaining.to_bytes()}
            db.execute(sa.update(table).where(*own).values(values))
            if counted_in is not None:
                _count(db, counted_in, len(people) - len(remaining))


def _erase_totals(work: Work, launch_key: str, gone: Identifiers) -> None:
    """Erase people from totals, and count their post-backs as those of erased people."""
    query = (
        sa.select(dispatch_totals.c.dispatch_key, dispatch_totals.c.delivered, dispatch_totals.c.engaged)
        .join(dispatches, dispatches.c.dispatch_key == dispatch_totals.c.dispatch_key)
        .where(dispatches.c.launch_key == launch_key)
    )
    with work.database.read() as db:
        is_open = db.scalar(
            sa.select(audiences.c.is_chosen_by_service).where(audiences.c.launch_key == launch_key)
        )
        hits = [
            row.dispatch_key
            for row in db.execute(streamed(query))
            if _meets(row.delivered, gone) or _meets(row.engaged, gone)
        ]
    for keys in in_parts(hits, _WRITTEN_AT_ONCE):
        with work.database.write_in_turn() as db:
            lock_totals(db)
            people = 0
            for row in db.execute(
                sa.select(dispatch_totals).where(dispatch_totals.c.dispatch_key.in_(keys))
            ).all():
                delivered, engaged = (from_bytes(gone.kind, blob) for blob in (row.delivered, row.engaged))
                lost = [delivered & gone, engaged & gone]
                people += len(lost[0] | lost[1])
                anomalies = dict(row.anomalies)
                anomalies[ERASED] = anomalies.get(ERASED, 0) + sum(map(len, lost))
                db.execute(
                    sa.update(dispatch_totals)
                    .where(dispatch_totals.c.dispatch_key == row.dispatch_key)
                    .values(
                        delivered=(delivered - gone).to_bytes(),
                        engaged=(engaged - gone).to_bytes(),
                        suspects=(from_bytes(gone.kind, row.suspects) - gone).to_bytes(),
                        anomalies=anomalies,
                    )
                )
            _erase_hours(db, keys, gone)
            if is_open:  # its recipients are known only from post-backs
                _count(db, launch_key, people)


def _erase_hours(db: sa.Connection, dispatch_keys: Collection[str], gone: Identifiers) -> None:
    """Erase people from the hours of their opens; the caller has locked the totals."""
    own = open_hours.c.dispatch_key.in_(dispatch_keys)
    for row in db.execute(sa.select(open_hours).where(own)).all():
        people = from_bytes(gone.kind, row.identifiers)
        change = sa.update(open_hours).where(
            open_hours.c.dispatch_key == row.dispatch_key, open_hours.c.hour == row.hour
        )
        db.execute(change.values(identifiers=(people - gone).to_bytes()))


def _count(db: sa.Connection, launch_key: str, people: int) -> None:
    """Count erased recipients of a launch, whose report is then made again."""
    if people:
        db.execute(
            sa.update(audiences)
            .where(audiences.c.launch_key == launch_key)
            .values(erased=audiences.c.erased + people)
        )
        bump_revision(db, [launch_key])


def _body_without(row: Any, launch: _Launch, work: Work) -> bytes:
    """Return the JSON of a request without some people in its lists. If it names them elsewhere too, nothing stays."""
    named = own_people(row, work.identified_by, launch.identified_by, launch.kind)
    is_of_launch = launch.identified_by == work.identified_by
    remaining = named and named.without(launch.erases if is_of_launch else work.includes)
    if remaining is None or work.are_named_outside_lists(remaining):
        return NOTHING
    body: bytes = row.body if remaining == named else written(remaining.members)
    return body
