"""How the tables of the ledger belong together: conditions and queries that several modules build on."""

from __future__ import annotations

import sqlalchemy as sa

from sendoff.ledger.storage.schema import attempts, audiences, dispatches, segments, withheld

OF_SEGMENT = sa.and_(
    segments.c.launch_key == dispatches.c.launch_key, segments.c.number == dispatches.c.segment
)
"""Joins dispatches to their segments."""

NEWEST_ATTEMPT = sa.and_(
    attempts.c.dispatch_key == dispatches.c.dispatch_key, attempts.c.number == dispatches.c.attempt
)
"""Joins dispatches to their newest attempts."""

LEFT_OUT = sa.and_(
    withheld.c.dispatch_key == attempts.c.dispatch_key, withheld.c.attempt == attempts.c.number
)
"""Joins attempts to the recipients that they left out."""

SENT_TO = (
    sa.select(dispatches.c.dispatch_key, audiences.c.kind, segments.c.identifiers)
    .join(audiences, audiences.c.launch_key == dispatches.c.launch_key)
    .join(segments, OF_SEGMENT)
)
"""The recipients of dispatches, as they were frozen. The identifiers are null if the service chooses the recipients."""
