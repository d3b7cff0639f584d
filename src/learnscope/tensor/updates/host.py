"""Changes between float32 tensors in the memory of the host, by a kernel in C: one pass over both copies."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from learnscope import native
from learnscope.native import Numbers
from learnscope.tensor.host import arrays_of, places_of
from learnscope.tensor.rows import Group, flat

COLUMNS = ("total", "l1", "sum_squares", "centred_squares", "largest", "old_sum_squares", "sign_flips", "bits_changed",
           "nan", "inf")  # fmt: skip
"""What the rows of the numbers are called in a `DeltaTable`; a row for each cut follows."""


def host_changes(
    new: Sequence[Tensor], old: Sequence[Tensor], cuts: Sequence[float], *, renew: bool = False
) -> Numbers | None:
    """The statistics of Δ of each pair, `[COLUMNS and cuts, pairs]`; with `renew` the old tensors become the new ones.

    `cuts` are float32 numbers. None, and nothing is written, where there are no kernels, and for tensors of another
    kind.
    """
    kernels = native.kernels
    if kernels is None or not new:
        return None
    pairs = [(a, b) if a.is_contiguous() and b.is_contiguous() else flat((a, b)) for a, b in zip(new, old, strict=True)]
    aligned: list[Group] = [pair for pair in pairs if pair is not None]
    sides: list[list[Tensor]] = [[pair[side] for pair in aligned] for side in (0, 1)]
    newer, older = (places_of(side) or arrays_of(side) for side in sides)
    if len(aligned) != len(pairs) or newer is None or older is None:
        return None
    out = np.empty((len(COLUMNS) + len(cuts), len(pairs)))
    try:
        kernels.change_sums(newer, older, np.array(cuts, np.float64), out, torch.get_num_threads(), renew)
    except (TypeError, ValueError):  # numbers of another kind, more cuts than it takes, memory that cannot be written
        return None
    return out
