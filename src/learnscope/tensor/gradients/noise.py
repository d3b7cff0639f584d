"""The gradient noise scale from the micro-batches of one step."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

from torch import Tensor

Weighting = Literal["number", "size", "sum"]
"""What the mean loss of micro-batch i is multiplied by: 1/n, b_i/B, or b_i, of b_i examples out of B in n of them."""


def noise_scale_parts(
    each: Tensor, accumulated: Tensor, sizes: Sequence[float] | None = None, weighting: Weighting = "size"
) -> tuple[Tensor, Tensor]:
    """Unbiased |G|² and S (arXiv 1812.06162, appendix A.1) from one step's micro-batches.

    `each` holds |w_i g_i|², `accumulated` is |Σ w_i g_i|², g_i the mean gradient of micro-batch i and w_i its weight.
    `sizes` are the b_i, 1 unless given. E|g_i|² = |G|² + S/b_i, and E|Σ w_i g_i|² = (Σw_i)²|G|² + S Σw_i²/b_i: with
    the mean over i of the former, |G|² and S follow. The paper's formulas are those for equal sizes.
    """
    n = each.shape[0]
    b = each.new_ones(n) if sizes is None else each.new_tensor(list(sizes))
    total = b.sum()
    w = {"number": each.new_ones(n) / n, "size": b / total, "sum": b}[weighting]
    whole = accumulated / w.sum().square()
    share = (w.square() / b).sum() / w.sum().square()
    noise = ((each / w.square()).mean() - whole) / ((1 / b).mean() - share)
    return whole - noise * share, noise
