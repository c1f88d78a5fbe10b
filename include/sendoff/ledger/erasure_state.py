"""The version of the erasures, and the removal of what a post-back says about a person."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import sqlalchemy as sa

from sendoff.errors import ConflictError
from sendoff.ledger.schema import erasure_state, post_backs

SCRUBBED: Mapping[str, Any] = {
    "device_id": None,
    "profile_id": None,
    "user_id": None,
    "send_id": None,
    "body": b"",
}
"""The values of a post-back that named an erased person. Only such a post-back is readable and has no body."""

_AT_ONCE = 500  # rows per statement


def scrub(db: sa.Connection, receiver: int, numbers: Sequence[int]) -> None:
    """Remove everything about people from post-backs of a receiver, within a transaction."""
    for start in range(0, len(numbers), _AT_ONCE):
        some = numbers[start : start + _AT_ONCE]
        db.execute(
            sa.update(post_backs)
            .where(post_backs.c.receiver == receiver, post_backs.c.number.in_(some))
            .values(**SCRUBBED)
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
