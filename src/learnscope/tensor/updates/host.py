"""Changes of float32 tensors on a CPU, where nothing is compiled: NumPy counts faster than torch does."""

from collections.abc import Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from learnscope.tensor.kernels import LARGEST, PARTIALS
from learnscope.tensor.rows import CACHED, SMALLEST_SAFE, WIDTH, workspace


def host_totals(new: Tensor, old: Tensor, cuts: Sequence[float]) -> NDArray[np.float64] | None:
    """The partials of `kernels` summed over all rows of one tensor; None if float32 may not hold those of a row."""
    totals = np.zeros(PARTIALS + len(cuts))
    for start in range(0, len(new), CACHED // WIDTH):
        chunk = slice(start, start + CACHED // WIDTH)
        if not _add_chunk(totals, new[chunk], old[chunk], cuts):
            return None
    return totals


def _add_chunk(totals: NDArray[np.float64], new: Tensor, old: Tensor, cuts: Sequence[float]) -> bool:
    """Add the totals of a few rows; False if they are suspect, as `kernels.suspect_rows` has it."""
    size = torch.sub(new, old, out=workspace("change", len(new), torch.float32, new.device))
    sums, norms = size.sum(1), torch.linalg.vector_norm(size, dim=1).double().square_()
    before = torch.linalg.vector_norm(old, dim=1).double().square_()
    l1 = size.abs_().sum(1)
    rows = torch.stack([sums.double(), l1.double(), norms, before]).numpy()
    if not np.isfinite(rows.sum()) or rows[3].min() < SMALLEST_SAFE:
        return False
    if rows[2].min() < SMALLEST_SAFE and ((rows[2] < SMALLEST_SAFE) & (rows[1] > 0)).any():
        return False
    total = rows.sum(1)
    totals[:3] += total[:3]
    totals[4] += total[3]
    sizes, is_so = size.numpy(), workspace("counted", len(new), torch.bool, new.device).numpy()
    totals[LARGEST] = max(totals[LARGEST], float(sizes.max()))
    values = new.numpy(), old.numpy()
    totals[5] += _sign_flips(*values, is_so)
    totals[6] += np.count_nonzero(np.not_equal(values[0].view(np.int32), values[1].view(np.int32), out=is_so))
    for place, cut in enumerate(cuts, start=PARTIALS):
        totals[place] += np.count_nonzero(np.less_equal(sizes, np.float32(cut), out=is_so))
    return True


def _sign_flips(new: NDArray[np.float32], old: NDArray[np.float32], is_so: NDArray[np.bool_]) -> int:
    """Entries with new < 0 < old or old < 0 < new. Few change their sign bit: the exact question is put to these."""
    np.less(np.bitwise_xor(new.view(np.int32), old.view(np.int32)), 0, out=is_so)
    if not np.count_nonzero(is_so):
        return 0
    first, second = new[is_so], old[is_so]
    return int(np.count_nonzero(((first < 0) & (second > 0)) | ((first > 0) & (second < 0))))
