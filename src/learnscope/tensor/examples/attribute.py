"""An attribute of examples beside their class: how closely the two go together, and which of them is predicted."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor


def crosstab(rows: Tensor, columns: Tensor, shape: tuple[int, int]) -> Tensor:
    """How many examples have each row's and each column's number, as an integer table of this shape."""
    flat = rows.long() * shape[1] + columns.long()
    return torch.bincount(flat, minlength=shape[0] * shape[1]).view(shape)


def cramers_v(table: Tensor) -> float:
    """Cramér's V, √(χ²/(n·(min(r, c) − 1))), of a table of counts: 0 for independence, 1 where one tells the other.

    Rows and columns without a count are left out. NaN with fewer than two of either. Not corrected for bias: of
    independent ones it is √((max(r, c) − 1)/n) or so, not 0.
    """
    counts = table.double()
    counts = counts[counts.sum(1) > 0][:, counts.sum(0) > 0]
    if min(counts.shape) < 2:
        return math.nan
    n = counts.sum()
    expected = counts.sum(1, keepdim=True) * counts.sum(0, keepdim=True) / n
    chi_squared = ((counts - expected).square() / expected).sum()
    return math.sqrt(float(chi_squared / (n * (min(counts.shape) - 1))))


def suggested_classes(table: Tensor) -> Tensor:
    """Of a table of values (down) by classes (across), the most frequent class of each value; -1 if no one is."""
    most = table.amax(1, keepdim=True) if table.shape[1] else table.new_zeros(len(table), 1)
    alone = ((table == most).sum(1) == 1) & (most.squeeze(1) > 0)
    return torch.where(alone, (table == most).long().argmax(1) if table.shape[1] else -1, -1)


@dataclass(frozen=True, slots=True)
class Following:
    """Examples whose attribute suggests their own class (aligned), another (conflicting), or none (undecided)."""

    aligned: Tensor
    """[C, 2]: of each class, those predicted right, and how many there are."""
    conflicting: Tensor
    followed: int
    """Conflicting examples that are predicted as the class that their attribute suggests."""
    undecided: int


def following(suggested: Tensor, targets: Tensor, predicted: Tensor) -> Following:
    """Counts over examples, each with the class that its attribute suggests (-1: none), its own, and the predicted."""
    classes = int(targets.max()) + 1 if len(targets) else 0
    decided = suggested >= 0
    right = (predicted == targets).long()

    def of(chosen: Tensor) -> Tensor:
        there = crosstab(targets[chosen], right[chosen], (classes, 2))
        return torch.stack([there[:, 1], there.sum(1)], 1)

    conflicting = decided & (suggested != targets)
    return Following(
        of(decided & (suggested == targets)),
        of(conflicting),
        int((conflicting & (predicted == suggested)).sum()),
        int((~decided).sum()),
    )
