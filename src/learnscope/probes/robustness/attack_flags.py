"""What follows from attacks taken together: the gap, and whether the attacks themselves can be believed."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

from learnscope.intervals import difference
from learnscope.probes.robustness.rows import REGRESSION, accuracy, column, drawn_again, mean_loss
from learnscope.quantities import Quantity
from learnscope.quantities.robustness import Attacks as Q
from learnscope.record import Column
from learnscope.tensor.bootstrap import TOO_FEW

ROUNDING = 1e-6
"""Share of a loss that rounding may take: equal losses of float32 passes differ by that."""


@dataclass(frozen=True, slots=True)
class Found:
    """One attack at one ε, as it was remembered."""

    scope: str
    epsilon: float
    steps: int
    told: Mapping[str, Any]

    @property
    def loss(self) -> float:
        return mean_loss(self.told)


def gap_columns(found: Sequence[Found]) -> list[Column]:
    """`robustness_gap`: clean accuracy less the lowest of FGSM and PGD at the largest ε, paired by example."""
    clean = next(one for one in found if one.scope == "clean")
    attacks = [one for one in found if one.scope in ("fgsm", "pgd")]
    largest = max(one.epsilon for one in attacks)
    at_largest = [one for one in attacks if one.epsilon == largest]
    quantities = (Q.robustness_gap, Q.robustness_gap_low, Q.robustness_gap_high)
    if clean.told["correct"] is None:
        return [column(quantity, None, {}, REGRESSION) for quantity in quantities]
    worst = min(at_largest, key=lambda one: accuracy(one.told) or 0.0)
    positions = clean.told["positions"]
    lost = [a - b for a, b in zip(clean.told["correct"], worst.told["correct"], strict=True)]
    low, high = drawn_again(lost, positions)
    if low == high:  # all alike: a bootstrap knows nothing of what it has not seen
        examples = sum(n > 0 for n in positions)
        low, high = difference((accuracy(clean.told) or 0.0, examples), (accuracy(worst.told) or 0.0, examples))
    gap = sum(lost) / sum(positions) if sum(positions) else math.nan
    numbers = zip(quantities, (gap, low, high), (None, TOO_FEW, TOO_FEW), strict=True)
    return [column(quantity, value, {}, reason) for quantity, value, reason in numbers]


def flag_columns(found: Sequence[Found]) -> list[Column]:
    """The four flags: 1, 0, or null with the reason."""
    most = max(one.steps for one in found if one.scope == "pgd")
    pgd = {one.epsilon: one for one in found if one.scope == "pgd" and one.steps == most}
    fgsm = {one.epsilon: one.loss for one in found if one.scope == "fgsm"}
    order = sorted(pgd)
    fewer = next((one for one in found if one.scope == "pgd" and one.steps < most), None)
    randoms = [(one.epsilon, loss) for one in found if one.scope == "random" for loss in one.told["losses"]]
    flags: list[tuple[Quantity, list[tuple[float, float]], str]] = [
        (Q.pgd_at_least_fgsm, [(fgsm[epsilon], pgd[epsilon].loss) for epsilon in order], ""),
        (
            Q.monotone_in_epsilon,
            [(pgd[a].loss, pgd[b].loss) for a, b in pairwise(order)],
            "there is one epsilon only",
        ),
        (
            Q.monotone_in_steps,
            [] if fewer is None else [(fewer.loss, pgd[fewer.epsilon].loss)],
            "PGD takes one step: there are no fewer",
        ),
        (Q.random_below_attack, [(loss, pgd[epsilon].loss) for epsilon, loss in randoms], ""),
    ]
    return [column(quantity, *_flag(pairs, reason)) for quantity, pairs, reason in flags]


def _flag(pairs: Sequence[tuple[float, float]], reason: str) -> tuple[float | None, dict[str, Any], str]:
    """1 if the first of every pair is at most the second."""
    if not pairs:
        return None, {}, reason
    if any(math.isnan(value) for pair in pairs for value in pair):
        return None, {}, "a loss is NaN"
    return float(all(low <= high + ROUNDING * max(1.0, abs(high)) for low, high in pairs)), {}, ""
