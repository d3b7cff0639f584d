"""What the probes of robustness share: sums over examples as columns, with intervals, and checks of their options."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import torch

from learnscope.core.moment import Moment
from learnscope.intervals import wilson
from learnscope.model.data import DataError
from learnscope.model.outputs.example_sums import ExampleSums
from learnscope.model.robustness.ball import PERS, UNITS
from learnscope.model.robustness.target import What, what_is_attacked
from learnscope.quantities import Quantity
from learnscope.quantities.robustness import Attacks, BitRobustness
from learnscope.record import Column, Label
from learnscope.task import IGNORE
from learnscope.tensor.bootstrap import TOO_FEW, ratio_interval
from learnscope.tensor.robustness.over_seeds import mean_interval
from learnscope.tensor.robustness.perturbation import NORMS

REGRESSION = "float targets: there is no right and wrong, and outputs are numbers, not distributions"
EXAMPLES: Mapping[What, int] = {"embeddings": 8, "inputs": 32}
"""How many are looked at by default: an attack runs a model forward and backward dozens of times."""
FEWEST_SEEDS = 5

Sums = Mapping[str, Any]
"""`ExampleSums` as plain lists."""


def check_numbers(owner: str, name: str, given: Any, *, low: float, whole: bool = False) -> None:
    """Refuse what is no sequence of finite numbers from `low` on."""
    listed = list(given) if isinstance(given, Sequence) and not isinstance(given, str) else []
    kinds = (int,) if whole else (int, float)
    good = [isinstance(v, kinds) and not isinstance(v, bool) and low <= v < math.inf for v in listed]
    if not listed or not all(good):
        what = "whole numbers" if whole else "numbers"
        raise ValueError(f"{owner}({name}={given!r}): a sequence of {what} from {low:g} is needed")


def check_threat(owner: Any) -> None:
    """Refuse a `norm`, `per`, `unit` or `clip` that an attack does not know."""
    kind = type(owner).__name__
    for name, known in (("norm", NORMS), ("per", PERS), ("unit", UNITS)):
        value = getattr(owner, name)
        if value is not None and value not in known:
            raise ValueError(f"{kind}({name}={value!r}): one of {', '.join(known)}, or None for the default")
    if owner.clip is None:
        return
    ends = list(owner.clip) if isinstance(owner.clip, Sequence) else []
    numbers = [isinstance(end, int | float) and not isinstance(end, bool) for end in ends]
    if len(ends) != 2 or not all(numbers) or not ends[0] < ends[1]:
        raise ValueError(f"{kind}(clip={owner.clip!r}): the lowest and the highest valid input, such as (0, 1)")


def check_counted(sums: ExampleSums) -> ExampleSums:
    """Refuse examples of which no position has a target: there is no loss that could be raised."""
    if not sum(sums.positions):
        raise DataError(
            f"no position of these {len(sums.positions)} examples has a target: every label is {IGNORE}, hidden by the "
            "mask, or of a text of one token. Look at more examples (examples=), or at other data"
        )
    return sums


def batches_for(moment: Moment, examples: int | None) -> tuple[list[Any], What]:
    """The first examples of the data, and what of them can be changed."""
    what = what_is_attacked(moment.task, moment.holdout_batches(1)[0])
    return moment.holdout_batches(EXAMPLES[what] if examples is None else examples), what


def mean_loss(sums: Sums) -> float:
    """Σ losses / Σ positions; NaN without positions."""
    return _ratio(sums["loss"], sums["positions"])


def accuracy(sums: Sums) -> float | None:
    return None if sums["correct"] is None else _ratio(sums["correct"], sums["positions"])


def mean_kl(sums: Sums) -> float | None:
    return None if sums["kl"] is None else _ratio(sums["kl"], sums["positions"])


def outcome_columns(
    quantities: type[Attacks] | type[BitRobustness], sums: Sums, labels: Mapping[str, Label]
) -> list[Column]:
    """`accuracy` with its interval over examples, and `loss`."""
    right, positions = sums["correct"], sums["positions"]
    low = high = None
    if right is not None:
        low, high = interval(right, positions)
    missing = None if right is not None else REGRESSION
    return [
        column(quantities.accuracy, accuracy(sums), labels, missing or TOO_FEW),
        column(quantities.accuracy_low, low, labels, missing or TOO_FEW),
        column(quantities.accuracy_high, high, labels, missing or TOO_FEW),
        column(quantities.loss, mean_loss(sums), labels),
    ]


def over_seeds(
    quantities: Sequence[Quantity], values: Sequence[float | None], labels: Mapping[str, Label]
) -> list[Column]:
    """A mean and the ends of its interval over seeds; null where it is not defined."""
    known = [value for value in values if value is not None]
    found = mean_interval(known) if len(known) == len(values) else (None, None, None)
    reason = REGRESSION if found[0] is None else None
    return [column(quantity, value, labels, reason) for quantity, value in zip(quantities, found, strict=True)]


def interval(right: Sequence[float], positions: Sequence[int]) -> tuple[float, float]:
    """Of a share: by drawing the examples again; Wilson's over examples where all or none of the positions are right,
    of which a bootstrap knows nothing, and where each example has one position."""
    share, examples = _ratio(right, positions), sum(n > 0 for n in positions)
    if examples > 1 and (share in (0.0, 1.0) or max(positions) == 1):
        return wilson(share, examples)
    return drawn_again(right, positions)


def drawn_again(numerator: Sequence[float], denominator: Sequence[float]) -> tuple[float, float]:
    return ratio_interval(torch.tensor(numerator, dtype=torch.float64), torch.tensor(denominator, dtype=torch.float64))


def column(quantity: Quantity, value: float | None, labels: Mapping[str, Label], reason: str | None = None) -> Column:
    """One number of one scope; the reason stands where there is none."""
    absent = value is None or math.isnan(value)
    return quantity.column([value], labels, {0: reason} if absent and reason else {})


def _ratio(numerator: Sequence[float], denominator: Sequence[float]) -> float:
    total = sum(denominator)
    # not fsum, which refuses what is not finite
    return float(sum(numerator)) / total if total else math.nan
