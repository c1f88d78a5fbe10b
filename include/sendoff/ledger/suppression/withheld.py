"""Recipients that requests left out when they were claimed: suppressed, or by their verdict in another launch."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from itertools import groupby
from operator import itemgetter
from typing import Any, NamedTuple

import sqlalchemy as sa

from sendoff.audience.identifiers import Identifiers, Kind, from_bytes, union
from sendoff.ledger.storage.bulk import streamed
from sendoff.ledger.storage.joins import LEFT_OUT
from sendoff.ledger.storage.schema import attempts, audiences, dispatches, outcomes, segments, withheld
from sendoff.states import DispatchState, OutcomeKind, Verdict


class Withheld(NamedTuple):
    """The recipients that the attempts of one dispatch left out.

    ``always``: left out of every attempt that the service may have processed. ``newest``: left out of the last of
    these.
    """

    always: Identifiers
    newest: Identifiers


def withheld_of(db: sa.Connection, launch_key: str) -> dict[str, Withheld]:
    """Return the recipients that the requests of a launch left out, by dispatch key.

    Attempts that the service certainly did not process do not count, except a refused one that is the last.
    """
    found: dict[str, Withheld] = {}
    for (key, _), rows in groupby(db.execute(_ATTEMPTS, {"launch": launch_key}), itemgetter(0, 1)):
        sets = [(row.kind, row.identifiers) for row in rows]
        people = union(sets[0][0], (from_bytes(kind, blob) for kind, blob in sets if blob is not None))
        before = found.get(key)
        found[key] = Withheld(people if before is None else before.always & people, people)
    return {key: each for key, each in found.items() if len(each.newest)}


def withheld_by_verdict(db: sa.Connection, launch_key: str) -> dict[Verdict, Identifiers]:
    """Return the recipients that any request of a launch left out because of a verdict in another launch.

    Each is under one verdict. Later requests left them out too, because post-backs are never taken back. Requests
    without any remaining recipient count as well.
    """
    found: dict[Verdict, list[Identifiers]] = defaultdict(list)
    kind: Kind = "integer"
    for reason, kind, blob in db.execute(_BY_VERDICT, {"launch": launch_key}):
        found[Verdict(reason)].append(from_bytes(kind, blob))
    joined = {verdict: union(kind, sets) for verdict, sets in found.items()}
    if {Verdict.ENGAGED, Verdict.DELIVERED} <= joined.keys():  # first delivered, then opened
        joined[Verdict.DELIVERED] -= joined[Verdict.ENGAGED]
    return joined


def remaining(people: Identifiers, left_out: Withheld | None) -> Identifiers:
    """Return the recipients of a dispatch without those that all its attempts left out."""
    return people if left_out is None else people - left_out.always


def request_state(state: DispatchState, identifier: int | str, left_out: Withheld | None) -> DispatchState:
    """Return the state of the request that is about one recipient of a dispatch, as :func:`by_request_state` does."""
    if left_out is None or identifier not in left_out.newest:
        return DispatchState(state)
    return DispatchState.SUPPRESSED if identifier in left_out.always else DispatchState.IN_DOUBT


def by_request_state(
    state: DispatchState, people: Identifiers, left_out: Withheld | None
) -> Iterator[tuple[DispatchState, Identifiers]]:
    """Yield the recipients of a dispatch, as frozen, by the state of the request that is about them.

    ``state``: of the dispatch. Its newest request may leave out recipients of an earlier one, which is then in doubt.
    """
    if left_out is None:
        yield state, people
        return
    yield state, people - left_out.newest
    yield DispatchState.IN_DOUBT, (left_out.newest - left_out.always) & people
    yield DispatchState.SUPPRESSED, left_out.always & people


def recipients_of(
    db: sa.Connection, launch_key: str, query: sa.Select[Any]
) -> Iterator[tuple[sa.Row[Any], Identifiers, Withheld | None]]:
    """Yield the rows of a query of ``SENT_TO`` with the recipients as frozen, and the people that requests left out.

    This reads the recipients lazily.

    Dispatches whose recipients the service chooses are skipped.
    """
    left_out = withheld_of(db, launch_key)
    known = query.where(dispatches.c.launch_key == launch_key, segments.c.identifiers.is_not(None))
    for row in db.execute(streamed(known, 100)):
        yield row, from_bytes(row.kind, row.identifiers), left_out.get(row.dispatch_key)


SUPPRESSED = "suppressed"
"""The reason of recipients on the suppression list. The other reasons are verdicts."""

_SOME = (
    sa.select(withheld.c.dispatch_key)
    .join(dispatches, dispatches.c.dispatch_key == withheld.c.dispatch_key)
    .where(dispatches.c.launch_key == sa.bindparam("launch"))
)
_UNMADE = (DispatchState.PLANNED, DispatchState.WRITTEN_OFF)  # a late outcome leaves these states as they are
_WAS_NOT_PROCESSED = (
    sa.exists()
    .where(
        outcomes.c.dispatch_key == attempts.c.dispatch_key,
        outcomes.c.attempt == attempts.c.number,
        sa.or_(
            outcomes.c.kind == OutcomeKind.NOT_PROCESSED,
            sa.and_(
                outcomes.c.kind == OutcomeKind.REFUSED,
                sa.or_(attempts.c.number < dispatches.c.attempt, dispatches.c.state.in_(_UNMADE)),
            ),
        ),
    )
    .correlate(attempts, dispatches)
)
_ATTEMPTS = (
    sa.select(attempts.c.dispatch_key, attempts.c.number, audiences.c.kind, withheld.c.identifiers)
    .join(dispatches, dispatches.c.dispatch_key == attempts.c.dispatch_key)
    .join(audiences, audiences.c.launch_key == dispatches.c.launch_key)
    .outerjoin(withheld, LEFT_OUT)
    .where(attempts.c.dispatch_key.in_(_SOME), sa.not_(_WAS_NOT_PROCESSED))
    .order_by(attempts.c.dispatch_key, attempts.c.number)
)
_LEFT_OUT_OF_ATTEMPT = (
    sa.select(sa.func.coalesce(sa.func.sum(withheld.c.size), 0))
    .where(LEFT_OUT)
    .correlate(attempts)
    .scalar_subquery()
)
_FEWEST_LEFT_OUT = (
    sa.select(sa.func.coalesce(sa.func.min(_LEFT_OUT_OF_ATTEMPT), 0))
    .where(attempts.c.dispatch_key == dispatches.c.dispatch_key, sa.not_(_WAS_NOT_PROCESSED))
    .correlate(dispatches)
    .scalar_subquery()
)
_LEAVES_OUT = sa.exists().where(withheld.c.dispatch_key == dispatches.c.dispatch_key).correlate(dispatches)
LEFT_OUT_ALWAYS = sa.case((_LEAVES_OUT, _FEWEST_LEFT_OUT), else_=0)
"""The number of recipients that all attempts of a dispatch left out, without attempts that were not processed.

It is exact, unless each attempt left out a recipient that another one did not.
"""
REMAINING = segments.c.size - LEFT_OUT_ALWAYS
"""The number of recipients that :func:`remaining` returns for a dispatch, without reading them."""
UNMADE_BUT_LEFT_OUT = (
    sa.select(sa.func.coalesce(sa.func.sum(withheld.c.size), 0))
    .where(
        dispatches.c.state.in_(_UNMADE),
        withheld.c.dispatch_key == dispatches.c.dispatch_key,
        withheld.c.attempt == dispatches.c.attempt,
        withheld.c.reason != SUPPRESSED,
    )
    .correlate(dispatches)
    .scalar_subquery()
)
"""Of a planned or written-off dispatch, the number of those that a verdict left out of the newest attempt."""
_BY_VERDICT = (
    sa.select(withheld.c.reason, audiences.c.kind, withheld.c.identifiers)
    .join(dispatches, dispatches.c.dispatch_key == withheld.c.dispatch_key)
    .join(audiences, audiences.c.launch_key == dispatches.c.launch_key)
    .where(dispatches.c.launch_key == sa.bindparam("launch"), withheld.c.reason != SUPPRESSED)
)
