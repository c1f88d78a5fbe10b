"""Remove what post-backs say about a person."""

from __future__ import annotations

from collections.abc import Collection

import sqlalchemy as sa

from sendoff.ledger.post_backs.blocks import LONGEST, without_people
from sendoff.ledger.storage.schema import post_backs

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
