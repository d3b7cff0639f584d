"""Positions of sparse entries as gaps in few bytes.

Positions p₀ < p₁ < … become gᵢ = pᵢ − pᵢ₋₁ − 1 with p₋₁ = −1, so that neighbours have gap 0. A gap that does not fit
the chosen width is split by fillers: extra positions that are stored only for this. Gaps of one byte with a few fillers
often take less space than gaps of two bytes: with 1 % of the entries, 8 % are fillers.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

WIDTHS = (1, 2, 4)
"""Bytes that a gap may take, as an unsigned integer. Fillers make wider ones unnecessary."""


def encode(positions: NDArray[np.int64], itemsize: int) -> NDArray[Any]:
    """Gaps of sorted, distinct positions, in the width that takes the fewest bytes with `itemsize` bytes per entry.

    >>> encode(np.array([2, 3, 700]), itemsize=2).tolist()  # three times 2 + 2 bytes
    [2, 0, 696]
    >>> encode(np.array([0, 1, 2, 3, 4, 5, 300]), itemsize=2).tolist()  # eight times 1 + 2 bytes
    [0, 0, 0, 0, 0, 0, 255, 38]
    >>> decode(encode(np.array([0, 1, 2, 3, 4, 5, 300]), itemsize=2)).tolist()
    [0, 1, 2, 3, 4, 5, 261, 300]
    """
    gaps = np.diff(positions, prepend=-1) - 1
    width = min(WIDTHS, key=lambda width: (len(gaps) + int((gaps >> 8 * width).sum())) * (width + itemsize))
    fillers, largest = gaps >> 8 * width, (1 << 8 * width) - 1
    encoded = np.full(len(gaps) + int(fillers.sum()), largest, dtype=f"u{width}")
    encoded[np.cumsum(fillers + 1) - 1] = gaps & largest
    return encoded


def decode(gaps: NDArray[Any]) -> NDArray[np.int64]:
    """The positions that gaps stand for, fillers included."""
    positions: NDArray[np.int64] = np.cumsum(gaps, dtype=np.int64)
    positions += np.arange(len(gaps))
    return positions
