"""The version of the erasures, which goes up when people are erased."""

from __future__ import annotations

import sqlalchemy as sa

from sendoff.errors import ConflictError
from sendoff.ledger.storage.schema import erasure_state


def version_of(db: sa.Connection) -> int:
    """Return the version of the erasures. It goes up when people are erased."""
    return db.scalar(_VERSION) or 0


def is_current(db: sa.Connection, version: int | None) -> bool:
    """Check whether no one was erased since this version. None counts as current.

    Until the transaction ends, no erasure can raise the version.
    """
    return version is None or version == (db.scalar(_VERSION_LOCKED) or 0)


def check_version(db: sa.Connection, version: int | None) -> None:
    """Raise ConflictError if someone was erased since this version."""
    if not is_current(db, version):
        raise ConflictError("people were erased in the meantime, so the audience must be decided again")


def raise_version(db: sa.Connection) -> None:
    """Raise the version, after all transactions that checked the last one have ended."""
    if not db.execute(sa.update(erasure_state).values(version=erasure_state.c.version + 1)).rowcount:
        db.execute(sa.insert(erasure_state), {"id": 1, "version": 1})


_VERSION = sa.select(erasure_state.c.version).where(erasure_state.c.id == 1)
_VERSION_LOCKED = _VERSION.with_for_update(read=True)
