"""Which examples of a trainer's data a model is evaluated on."""

from __future__ import annotations


def spread(size: int, most: int) -> list[int]:
    """Places all over a data set, which may be sorted; always the same.

    >>> spread(10, 4)
    [0, 2, 5, 7]
    """
    return [size * k // min(size, most) for k in range(min(size, most))]
