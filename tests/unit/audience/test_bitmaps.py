"""Bitmaps from bits: the same as if their numbers were added one by one."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyroaring import BitMap64

from sendoff.audience import bitmap_from

STARTS = st.sampled_from([0, 8, 60_000, (1 << 32) - 16, (1 << 33) + 65_528, (1 << 63) - 1_000])


@given(start=STARTS, content=st.binary(max_size=300))
@pytest.mark.parametrize("repeated", [1, 60])
def test_a_bitmap_from_bits_has_the_numbers_of_the_bits(start: int, content: bytes, repeated: int) -> None:
    bits = np.frombuffer(content * repeated, np.uint8)[: ((1 << 63) - start) // 8]
    wanted = [start + place for place in np.flatnonzero(np.unpackbits(bits, bitorder="little")).tolist()]
    made, expected = bitmap_from(bits, start), BitMap64(wanted)
    assert made == expected
    for each in (made, expected):
        each.run_optimize()
    assert bytes(made.serialize()) == bytes(expected.serialize())
