"""GPTQ: weights rounded column by column, each error made up for by the columns that are still to come.

Frantar, Ashkboos, Hoefler and Alistarh 2022, "GPTQ: Accurate Post-Training Quantization for Generative Pre-trained
Transformers", Algorithm 1. With H = 2 Σ x xᵀ of a layer's inputs, damped by a share of its mean diagonal, and U the
upper Cholesky factor of H⁻¹: column j becomes q, its error e = (w - q)/U_jj is taken from the later columns,
w_k -= e·U_jk.

Where this differs from the paper's program:
- A row that round-to-nearest on the same grid serves better on the calibration data keeps it. The greedy order has no
  guarantee of its own; so the error of the outputs is never above that of round-to-nearest.
- An input that is always 0 has no say: its weights are rounded to nearest; the program sets them to 0.
- A lazy block ends where a group ends, so that a group's scale is that of weights which are up to date.
"""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor

from learnscope.tensor.bits.quantize import (
    Quantised,
    QuantiseError,
    Scheme,
    as_codes,
    checked_matrix,
    compute_dtype,
    dequantize,
    grouped,
    restored,
    rounded,
    scales_of,
)
from learnscope.tensor.bits.statistics import InputStatistics

BLOCK = 128
"""Columns whose errors are passed on to the columns after them together."""
DAMPING = 0.01
"""Of the mean of H's diagonal, added to it: the share of the paper's program."""


@torch.no_grad()
def quantize_gptq(
    weight: Tensor,
    bits: int,
    scheme: Scheme,
    inputs: InputStatistics,
    *,
    damping: float = DAMPING,
    act_order: bool = True,
) -> Quantised:
    """`weight` [out, in] in `bits` (2 to 8), rounded so that its outputs on these inputs change least.

    act_order: columns with the largest inputs first, on the grid of the original weight, so that groups stay stretches
    of the weight; otherwise from left to right, and a group's scale is that of its weights when their turn comes.
    """
    matrix = checked_matrix(weight)
    wide = matrix.to(compute_dtype(matrix.dtype))
    groups = grouped(wide, scheme)
    scale, zero = scales_of(groups, bits, scheme)
    plain = as_codes(rounded(groups, scale, zero, bits), scale, zero, matrix, bits, scheme)
    order = inputs.gram.diagonal().argsort(descending=True, stable=True) if act_order else None
    factor = inverse_factor(inputs.gram, damping, order).to(wide.dtype)
    walk = _Walk(wide, bits, scheme, scale, zero, order)
    walk.run(factor)
    made = as_codes(walk.levels(), walk.scale, walk.zero, matrix, bits, scheme)
    return _better_rows(matrix, inputs, made, plain)


def inverse_factor(gram: Tensor, damping: float = DAMPING, order: Tensor | None = None) -> Tensor:
    """The upper Cholesky factor of the damped H⁻¹, in float64; inputs that are always 0 count as independent."""
    hessian = gram.to(torch.float64)  # a factor of H changes nothing: errors are divided by U_jj
    hessian = hessian.clone() if order is None else hessian[order][:, order]
    diagonal = hessian.diagonal()
    if not bool(diagonal.isfinite().all()):
        raise QuantiseError("the squares of its inputs are more than float32 can hold: give smaller inputs, or float64")
    dead = diagonal <= 0
    alive = diagonal[~dead]
    mean = alive.mean() if len(alive) else torch.ones((), dtype=torch.float64, device=gram.device)
    diagonal[dead] = mean
    damp = max(damping, 1e-8)
    for _ in range(8):
        damped = hessian.clone()
        damped.diagonal().add_(damp * mean)
        factor, failed = torch.linalg.cholesky_ex(damped)
        if not int(failed):
            upper: Tensor
            upper, failed = torch.linalg.cholesky_ex(torch.cholesky_inverse(factor), upper=True)
            if not int(failed):
                return upper
        damp *= 10  # few tokens, or rounding: the more damping, the closer to round-to-nearest
    raise QuantiseError("the second moments of its inputs are not those of any inputs: collect the calibration again")


class _Walk:
    """One walk over the columns of a weight, which are kept as rows: each is then one stretch of memory."""

    def __init__(
        self, matrix: Tensor, bits: int, scheme: Scheme, scale: Tensor, zero: Tensor | None, order: Tensor | None
    ) -> None:
        outputs, inputs = matrix.shape
        self.bits, self.scheme = bits, scheme
        self.scale, self.zero = scale.clone(), None if zero is None else zero.clone()
        self.order = order
        self._length = scheme.group_length(inputs)
        """Inputs that share a scale."""
        self._moves = order is None and scheme.granularity == "group"
        """Whether the scale of a group is found when its turn comes."""
        self._columns = (matrix if order is None else matrix[:, order]).T.clone(memory_format=torch.contiguous_format)
        self._shape = (outputs, inputs)
        self._codes = torch.empty_like(self._columns)

    def run(self, factor: Tensor) -> None:
        columns, count = self._columns, len(self._columns)
        block = max(1, BLOCK // self._length) * self._length if self._moves else BLOCK
        for start in range(0, count, block):
            end = min(start + block, count)
            errors = torch.empty_like(columns[start:end])
            for column in range(start, end):
                if self._moves and column % self._length == 0:
                    self._find_scale(column)
                scale, zero = self._grid(column)
                levels = rounded(columns[column], scale, zero, self.bits)
                self._codes[column] = levels
                error = (columns[column] - restored(levels, scale, zero)) / factor[column, column]
                columns[column + 1 : end].addr_(factor[column, column + 1 : end], error, alpha=-1)
                errors[column - start] = error
            columns[end:].addmm_(factor[start:end, end:].T, errors, alpha=-1)

    def levels(self) -> Tensor:
        """The codes in the form of `grouped`, in the order of the weight."""
        codes = self._codes.T
        if self.order is not None:
            codes = codes[:, self.order.argsort()]
        return grouped(codes.contiguous(), self.scheme)

    def _find_scale(self, column: int) -> None:
        """The grid of the group that begins with this column, from its weights as they are now."""
        group = self._columns[column : column + self._length].T.unsqueeze(1)
        scale, zero = scales_of(group, self.bits, self.scheme)
        place = column // self._length
        self.scale[:, place] = scale[:, 0]
        if self.zero is not None and zero is not None:
            self.zero[:, place] = zero[:, 0]

    def _grid(self, column: int) -> tuple[Tensor, Tensor | None]:
        """Scale and zero point of every row of a column."""
        if self.scheme.granularity == "group":
            place = (column if self.order is None else int(self.order[column])) // self._length
        else:
            place = 0
        return self.scale[:, place, 0], None if self.zero is None else self.zero[:, place, 0]


def _better_rows(matrix: Tensor, inputs: InputStatistics, made: Quantised, plain: Quantised) -> Quantised:
    """Each row as in `made` or as in `plain`, whichever changes the outputs less."""
    ours, theirs = (dequantize(each).to(torch.float64) - matrix for each in (made, plain))
    better = inputs.changes_less(ours, theirs)[:, None]

    def chosen(first: Tensor | None, second: Tensor | None) -> Tensor | None:
        if first is None or second is None or len(first) != len(better):  # one scale for all rows is the same in both
            return second
        return torch.where(better, first, second)

    codes = torch.where(better, made.codes, plain.codes)
    return replace(made, codes=codes, scale=chosen(made.scale, plain.scale), zero=chosen(made.zero, plain.zero))
