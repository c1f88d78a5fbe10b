"""Recipients that requests left out, because they were on the suppression list when the request was claimed."""

from __future__ import annotations

from typing import NamedTuple

import sqlalchemy as sa

from sendoff.audience.identifiers import Identifiers, empty, from_bytes
from sendoff.ledger.schema import attempts, audiences, dispatches, outcomes, withheld
from sendoff.states import OutcomeKind


class Withheld(NamedTuple):
    """The recipients that the attempts of one dispatch left out.

    ``always``: left out of every attempt that the service may have processed. ``newest``: left out of the last of
    these.
    """

    always: Identifiers
    newest: Identifiers


def withheld_of(db: sa.Connection, launch_key: str) -> dict[str, Withheld]:
    """Return the recipients that the requests of a launch left out, by dispatch key.

    Attempts that the service certainly did not process do not count.
    """
    found: dict[str, Withheld] = {}
    for key, kind, blob in db.execute(_ATTEMPTS, {"launch": launch_key}):
        people = empty(kind) if blob is None else from_bytes(kind, blob)
        before = found.get(key)
        found[key] = Withheld(people if before is None else before.always & people, people)
    return {key: each for key, each in found.items() if len(each.newest)}


def remaining(people: Identifiers, left_out: Withheld | None) -> Identifiers:
    """Return the recipients of a dispatch without those that all its attempts left out."""
    return people if left_out is None else people - left_out.always


_SOME = (
    sa.select(withheld.c.dispatch_key)
    .join(dispatches, dispatches.c.dispatch_key == withheld.c.dispatch_key)
    .where(dispatches.c.launch_key == sa.bindparam("launch"))
)
_WAS_NOT_PROCESSED = sa.exists().where(
    outcomes.c.dispatch_key == attempts.c.dispatch_key,
    outcomes.c.attempt == attempts.c.number,
    outcomes.c.kind == OutcomeKind.NOT_PROCESSED,
)
_ATTEMPTS = (
    sa.select(attempts.c.dispatch_key, audiences.c.kind, withheld.c.identifiers)
    .join(dispatches, dispatches.c.dispatch_key == attempts.c.dispatch_key)
    .join(audiences, audiences.c.launch_key == dispatches.c.launch_key)
    .outerjoin(
        withheld,
        sa.and_(withheld.c.dispatch_key == attempts.c.dispatch_key, withheld.c.attempt == attempts.c.number),
    )
    .where(attempts.c.dispatch_key.in_(_SOME), sa.not_(_WAS_NOT_PROCESSED))
    .order_by(attempts.c.dispatch_key, attempts.c.number)
)
