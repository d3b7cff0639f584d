"""An attribute of examples besides their class: how strongly the two are associated, and which one is predicted."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor


def crosstab(rows: Tensor, columns: Tensor, shape: tuple[int, int]) -> Tensor:
    """Counts of examples by row number and column number, as an integer table of this shape."""
    flat = rows.long() * shape[1] + columns.long()
    return torch.bincount(flat, minlength=shape[0] * shape[1]).view(shape)


def cramers_v(table: Tensor) -> float:
    """Cramér's V, √(χ²/(n·(min(r, c) − 1))), of a table of counts: 0 for independence, 1 if one determines the other.

    Empty rows and columns are left out. NaN with fewer than two of either. Not corrected for bias: for independent
    attributes it is about √((max(r, c) − 1)/n), not 0.
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
    """The most frequent class of each value, from a table of values (rows) by classes (columns); -1 for a tie."""
    most = table.amax(1, keepdim=True) if table.shape[1] else table.new_zeros(len(table), 1)
    unique = ((table == most).sum(1) == 1) & (most.squeeze(1) > 0)
    return torch.where(unique, (table == most).long().argmax(1) if table.shape[1] else -1, -1)


@dataclass(frozen=True, slots=True)
class Following:
    """Examples whose attribute suggests their own class (aligned), another (conflicting), or none (undecided)."""

    aligned: Tensor
    """[C, 2]: for each class how many are predicted correctly, and how many there are."""
    conflicting: Tensor
    followed: int
    """Conflicting examples that are predicted as the class their attribute suggests."""
    undecided: int


def following(suggested: Tensor, targets: Tensor, predicted: Tensor) -> Following:
    """Counts over examples, each with the class its attribute suggests (-1: none), its own, and the predicted one."""
    classes = int(targets.max()) + 1 if len(targets) else 0
    decided = suggested >= 0
    correct = (predicted == targets).long()

    def counts(chosen: Tensor) -> Tensor:
        table = crosstab(targets[chosen], correct[chosen], (classes, 2))
        return torch.stack([table[:, 1], table.sum(1)], 1)

    conflicting = decided & (suggested != targets)
    return Following(
        counts(decided & (suggested == targets)),
        counts(conflicting),
        int((conflicting & (predicted == suggested)).sum()),
        int((~decided).sum()),
    )
