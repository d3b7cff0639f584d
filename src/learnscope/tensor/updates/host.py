"""Changes of float32 tensors on a CPU, where nothing is compiled: NumPy counts faster than torch does."""

from collections.abc import Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from learnscope.tensor.kernels import LARGEST, PARTIALS
from learnscope.tensor.rows import SMALLEST_SAFE, WIDTH, workspace

Rows = NDArray[np.float32]
Flags = NDArray[np.bool_]


ROWS = 512
"""Rows read at a time: in a training loop nothing is in the caches, and a call costs more than smaller pieces save."""


def host_partials(new: Tensor, old: Tensor, cuts: Sequence[float]) -> NDArray[np.float64]:
    """The partials of `kernels` of each row, in float64."""
    out = np.empty((PARTIALS + len(cuts), len(new)))
    for start in range(0, len(new), ROWS):
        chunk = slice(start, start + ROWS)
        _chunk(new[chunk], old[chunk], cuts, out[:, chunk])
    out[2] *= out[2]  # norms so far, which read the rows once instead of twice
    out[4] *= out[4]
    return out


def may_be_suspect(partials: NDArray[np.float64]) -> bool:
    """Whether `kernels.suspect_rows` can be true of a row; quickly, as it hardly ever is."""
    least = min(partials[2].min(initial=np.inf), partials[4].min(initial=np.inf))
    return not (least >= SMALLEST_SAFE and partials[1:5].sum() < np.inf)


def _chunk(new: Tensor, old: Tensor, cuts: Sequence[float], out: NDArray[np.float64]) -> None:
    size = torch.sub(new, old, out=workspace("change", len(new), torch.float32, new.device))
    out[0] = size.sum(1).numpy()
    out[2] = torch.linalg.vector_norm(size, dim=1).numpy()
    out[4] = torch.linalg.vector_norm(old, dim=1).numpy()
    out[1] = size.abs_().sum(1).numpy()
    out[LARGEST] = size.amax(1).numpy()
    values = new.numpy(), old.numpy()
    is_so = workspace("counted", len(new), torch.bool, new.device).numpy()
    bits = workspace("bits", len(new), torch.int32, new.device).numpy()
    np.bitwise_xor(values[0].view(np.int32), values[1].view(np.int32), out=bits)
    out[5] = _sign_flips(*values, np.less(bits, 0, out=is_so))
    out[6] = _counts(np.not_equal(bits, 0, out=is_so))
    sizes, largest = size.numpy(), out[LARGEST].max()
    for place, cut in enumerate(cuts, start=PARTIALS):
        # a step moves most weights by less than a learning rate: often all are within the widest threshold
        out[place] = WIDTH if largest <= cut else _counts(np.less_equal(sizes, np.float32(cut), out=is_so))


def _counts(is_so: Flags) -> NDArray[np.int64]:
    """How often it is so in each row: eight flags at a time, since the 64 that a byte adds up to do not overflow it."""
    bytes_: NDArray[np.uint8] = np.add.reduce(is_so.view(np.uint64), 1).view(np.uint8)
    counts: NDArray[np.int64] = bytes_.reshape(-1, 8).sum(1, dtype=np.int64)
    return counts


def _sign_flips(new: Rows, old: Rows, differs: Flags) -> NDArray[np.int64]:
    """Entries of each row with new < 0 < old or old < 0 < new; `differs`: where their sign bits differ.

    These are few: the exact question, which a zero or a NaN answers with no, is put to them alone.
    """
    places = np.flatnonzero(differs)
    first, second = new.reshape(-1)[places], old.reshape(-1)[places]
    flipped = ((first < 0) & (second > 0)) | ((first > 0) & (second < 0))
    return np.bincount(places[flipped] // WIDTH, minlength=len(new))
