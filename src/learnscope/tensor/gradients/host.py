"""Statistics of gradients in the memory of the host, by a kernel in C: one pass over each, and no copy."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from learnscope import native
from learnscope.native import Numbers
from learnscope.tensor.host import arrays_of, places_of

SQUARES, ZEROS, NAN, INF, LARGEST, AT_LARGEST = range(6)
MOST_COPIED = 1 << 20
"""Entries of tensors with gaps that are copied; with more, rows are."""


def host_statistics(tensors: Sequence[Tensor]) -> Numbers | None:
    """Of each tensor Σt², entries = 0, NaN, ±∞, max|t| without NaN, and entries as large as that, `[6, tensors]`.

    As large are NaN if all entries are 0 or one is not finite.
    None where there are no kernels, and for tensors of another kind.
    """
    kernels = native.kernels
    if kernels is None or not tensors:
        return None
    out = np.empty((6, len(tensors)))
    if (places := places_of(tensors, turned=True)) is not None:
        with suppress(TypeError):  # memory at an odd address
            kernels.gradient_sums(places, out, torch.get_num_threads())
            return out
    arrays = arrays_of(tensors)
    if arrays is None:
        return None
    try:
        try:
            kernels.gradient_sums(arrays, out, torch.get_num_threads())
        except (ValueError, BufferError):  # some have gaps
            whole = _without_gaps(arrays)
            if whole is None:
                return None
            kernels.gradient_sums(whole, out, torch.get_num_threads())
    except TypeError:  # numbers of another kind
        return None
    return out


def _without_gaps(arrays: Sequence[NDArray[np.floating]]) -> list[NDArray[np.floating]] | None:
    copied = sum(array.size for array in arrays if not array.flags.forc)
    return None if copied > MOST_COPIED else [a if a.flags.forc else np.ascontiguousarray(a) for a in arrays]
