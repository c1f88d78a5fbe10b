"""Opens that a machine probably made, such as a scanner that follows the links of an email.

An open is suspected in two cases:

.. code-block:: text

    after the delivery ... it is within some seconds of the delivery to the same recipient
    in a burst ........... many opens of one request have the same second

The times are those in the post-backs, or else those of their arrival. Only post-backs that are read together are
compared, so that nothing but the suspicion is stored. An open whose delivery was read earlier is not suspected.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import pyarrow.compute as pc

from sendoff.audience.identifiers import Marks
from sendoff.ledger import column_of, marks, values

BURST, SHARE = 50, 0.01
"""So many opens of one request in one second are suspected, or this share of its recipients if that is more."""

_SECOND = 1_000_000  # in microseconds
_SLOTS = 1 << 18  # for places by their lowest bits
_LATEST = (1 << 32) - 1  # in the year 2106

Integers = npt.NDArray[np.int64]


def suspected(  # noqa: PLR0913 (columns)
    codes: Integers,
    places: Integers,
    at: Integers,
    deliveries: Integers,
    opens: Integers,
    sizes: Integers,
    seconds: float,
) -> Marks:
    """Mark the opens that a machine probably made.

    ``codes``: of the requests. ``places``: numbers of the recipients. ``at``: times in microseconds. ``deliveries``,
    ``opens``: the rows of each kind. ``sizes``: the recipients of each request, by its code. ``seconds``: the most
    between a delivery and its open; 0 marks nothing, not even bursts.
    """
    if not seconds or not len(opens):
        return np.zeros(len(opens), np.bool_)
    found = _in_bursts(codes[opens], at[opens] // _SECOND, sizes)
    if len(deliveries):
        slots, is_taken = places & (_SLOTS - 1), np.zeros(_SLOTS, np.bool_)
        is_taken[slots[opens]] = True
        deliveries = deliveries[is_taken[slots[deliveries]]]  # hardly more than those to people who opened
        delivered = pc.index_in(column_of(places[opens]), value_set=column_of(places[deliveries]))
        which = np.flatnonzero(marks(delivered.is_valid()))
        their = deliveries[values(delivered)[which]]
        found[which] |= np.abs(at[opens[which]] - at[their]) <= seconds * _SECOND
    return found


def _in_bursts(codes: Integers, seconds: Integers, sizes: Integers) -> Marks:
    """Mark the opens of a request in a second with many."""
    if np.bincount(codes).max() < BURST:
        return np.zeros(len(codes), np.bool_)
    both = codes << 32 | seconds.clip(0, _LATEST)  # a body may have any time
    counted = pc.value_counts(column_of(both))
    moments, counts = (values(counted.field(name)) for name in ("values", "counts"))
    often = moments[counts >= np.maximum(BURST, SHARE * sizes[moments >> 32])]
    return np.isin(both, often) if len(often) else np.zeros(len(both), np.bool_)
