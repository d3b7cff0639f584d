"""Positions as gaps: nothing lost, fillers only between, no wider than needed."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from learnscope.tensor.updates.gaps import decode, encode

POSITIONS = st.one_of(
    st.sets(st.integers(0, 2000), min_size=1),
    st.sets(st.integers(0, 300_000), min_size=1),
    st.sets(st.integers(0, 2**35), min_size=1, max_size=20),
).map(sorted)


@given(POSITIONS, st.sampled_from([1, 2, 4, 8]))
def test_nothing_is_lost_and_nothing_smaller_was_at_hand(positions: list[int], itemsize: int) -> None:
    encoded = encode(np.array(positions), itemsize)
    found = decode(encoded).tolist()
    assert found == sorted(set(found))
    assert set(positions) <= set(found)
    assert found[-1] == positions[-1], "no filler after the last"
    # bytes of the plain encoding in the smallest type that holds every gap, without fillers
    largest = max(b - a - 1 for a, b in zip([-1, *positions], positions, strict=False))
    plain = next((width for width in (1, 2, 4) if largest < 256**width), None)
    # a gap of more than 4 G entries costs a filler rather than 8 bytes for every gap
    assert plain is None or encoded.nbytes + itemsize * len(encoded) <= len(positions) * (plain + itemsize)
    if plain == encoded.itemsize:
        assert found == positions, "fillers only where a gap does not fit"


@pytest.mark.parametrize(
    ("positions", "width"), [([0], 1), ([255], 1), (range(0, 10_000, 256), 1), (range(0, 99_000, 900), 2)]
)
def test_edges_of_the_widths(positions: list[int], width: int) -> None:
    encoded = encode(np.array(positions), 4)
    assert encoded.itemsize == width
    assert decode(encoded).tolist() == list(positions)


def test_a_gap_beyond_32_bits_is_bridged() -> None:
    positions = [3, 2**32 + 4, 2**32 + 5, 2**34]
    encoded = encode(np.array(positions), 2)
    assert encoded.dtype == np.uint32
    assert set(positions) <= set(decode(encoded).tolist())
