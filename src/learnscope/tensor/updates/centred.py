"""The spread of a change around its mean, also where the mean is far larger."""

from collections.abc import Sequence

from torch import Tensor

from learnscope.tensor.context import arithmetic_dtype
from learnscope.tensor.rows import Group, pieces

LOST_DIGITS = 0.9
"""Share of ΣΔ² that the mean may explain. Above it, ΣΔ² − (ΣΔ)²/n loses more than one digit of the float32 sums.
Adam's first step, for example, moves every entry of a bias by the learning rate, with hardly any spread."""


def centred_squares(pairs: Sequence[Group], entries: Tensor, total: Tensor, sum_squares: Tensor) -> Tensor:
    """Σ(Δ − mean)² of each pair; computed again in float64 only where the difference of sums would be noise."""
    explained = total.square() / entries
    centred = (sum_squares - explained).clamp(min=0)
    for index in ((explained > LOST_DIGITS * sum_squares) & (entries > 1)).nonzero().flatten().tolist():
        centred[index] = _read_again(pairs[index], float(total[index] / entries[index]))
    return centred


def _read_again(pair: Group, near: float) -> float:
    """Σ(Δ − mean)² from sums around `near`, the mean that the float32 pass gave."""
    first = second = 0.0
    for new, old in pieces(pair):
        kind = arithmetic_dtype(new, old)
        change = (new.to(kind) - old.to(new.device, kind)).double() - near
        first += float(change.sum())
        second += float(change.square().sum())
    return max(second - first * first / pair[0].numel(), 0.0)
