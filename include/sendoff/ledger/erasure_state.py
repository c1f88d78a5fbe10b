"""The version of the erasures, and the removal of what a post-back says about a person."""

from __future__ import annotations

from collections.abc import Collection

import sqlalchemy as sa

from sendoff.errors import ConflictError
from sendoff.ledger.blocks import LONGEST, without_people
from sendoff.ledger.schema import erasure_state, post_backs

_AT_ONCE = 1_000  # numbers of post-backs whose blocks are read together


def scrub(db: sa.Connection, receiver: int, numbers: Collection[int]) -> None:
    """Remove everything about people from post-backs of a receiver, within a transaction.

    Each block with one of them is locked, and replaced by one that names the others only.
    """
    waiting = sorted(numbers)
    while waiting:
        start, end = waiting[0], waiting[0] + _AT_ONCE
        within = [number for number in waiting if number < end]
        waiting = waiting[len(within) :]
        # A repeated commit may have stored a number in two blocks.
        query = sa.select(post_backs).where(
            post_backs.c.receiver == receiver,
            post_backs.c.last.between(start, end + LONGEST),
            post_backs.c.first < end,
        )
        for row in db.execute(query.order_by(post_backs.c.last, post_backs.c.first).with_for_update()).all():
            named = [number for number in within if row.first <= number <= row.last]
            if named:
                db.execute(
                    sa.update(post_backs)
                    .where(*(post_backs.c[key.name] == row._mapping[key] for key in post_backs.primary_key))
                    .values(block=without_people(receiver, row.first, row.block, named))
                )


def version_of(db: sa.Connection) -> int:
    """Return the version of the erasures. It goes up when people are erased."""
    return db.scalar(_VERSION) or 0


def is_current(db: sa.Connection, version: int | None) -> bool:
    """Check whether no one was erased since this version. None counts as current.

    Until the transaction ends, no erasure can raise the version.
    """
    return version is None or version == (db.scalar(_VERSION.with_for_update(read=True)) or 0)


def check_version(db: sa.Connection, version: int | None) -> None:
    """Raise ConflictError if someone was erased since this version."""
    if not is_current(db, version):
        raise ConflictError("people were erased in the meantime, so the audience must be decided again")


def raise_version(db: sa.Connection) -> None:
    """Raise the version, after all transactions that checked the last one have ended."""
    if not db.execute(sa.update(erasure_state).values(version=erasure_state.c.version + 1)).rowcount:
        db.execute(sa.insert(erasure_state), {"id": 1, "version": 1})


_VERSION = sa.select(erasure_state.c.version).where(erasure_state.c.id == 1)
