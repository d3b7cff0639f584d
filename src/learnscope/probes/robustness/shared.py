"""What the probes of robustness share: options and their checks, and columns with intervals."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from learnscope.core.moment import Moment
from learnscope.core.probe import At, Probe
from learnscope.intervals import mean_interval, share_difference_interval, share_interval
from learnscope.model.data import DataError
from learnscope.model.outputs.example_sums import ExampleSums
from learnscope.model.robustness.target import What, attack_target
from learnscope.options import check_whole
from learnscope.quantities import Quantities, Quantity
from learnscope.quantities.robustness import Attacks, AutoAttack, BitRobustness
from learnscope.record import Column, Label
from learnscope.task import IGNORE

REGRESSION = "float targets: there is no right and wrong, and outputs are numbers, not distributions"
EXAMPLES: Mapping[What, int] = {"embeddings": 8, "inputs": 32}
"""Examples used by default: an attack runs a model forward and backward dozens of times."""
FEWEST_SEEDS = 5

Sums = Mapping[str, Any]
"""`ExampleSums` as plain lists."""


class RobustnessProbe(Probe):
    """Options of all probes of robustness."""

    at: At = "once"
    examples: int | None = None
    """How many are used; by default 8 sequences of tokens, or 32 inputs."""
    seed: int = 0

    needs = frozenset({"holdout"})
    reads_only = True  # whatever runs the model has a guard of its own

    def batches(self, moment: Moment) -> tuple[list[Any], What]:
        """The first examples of the data, and what of them can be changed."""
        what = attack_target(moment.task, moment.holdout_batches(1)[0])
        return moment.holdout_batches(EXAMPLES[what] if self.examples is None else self.examples), what


class SeededProbe(RobustnessProbe):
    """Options of the probes that average over seeds."""

    seeds: int = 5

    def __post_init__(self) -> None:
        super().__post_init__()
        check_whole(self, examples=1, seeds=FEWEST_SEEDS, seed=0)


def check_numbers(owner: Any, name: str, given: Any, *, low: float, whole: bool = False) -> None:
    """Refuse an option that is not a sequence of finite numbers from `low` on."""
    numbers = list(given) if isinstance(given, Sequence) and not isinstance(given, str) else []
    kinds = (int,) if whole else (int, float)
    valid = [isinstance(n, kinds) and not isinstance(n, bool) and low <= n < math.inf for n in numbers]
    if not numbers or not all(valid):
        what = "whole numbers" if whole else "numbers"
        raise ValueError(f"{type(owner).__name__}({name}={given!r}): a sequence of {what} from {low:g} is needed")


def check_counted(sums: ExampleSums) -> ExampleSums:
    """Refuse examples without any target: there is no loss that could be raised."""
    if not sum(sums.positions):
        raise DataError(
            f"no position of these {len(sums.positions)} examples has a target: every label is {IGNORE}, hidden by the "
            "mask, or of a text of one token. Look at more examples (examples=), or at other data"
        )
    return sums


def means(sums: Sums) -> dict[str, float | None]:
    """Σ / Σ positions of accuracy, loss and KL; NaN without positions, None where there are no classes."""
    names = {"accuracy": "correct", "loss": "loss", "kl": "kl"}
    return {name: None if sums[key] is None else _ratio(sums[key], sums["positions"]) for name, key in names.items()}


def outcome_columns(
    quantities: type[Attacks] | type[BitRobustness], sums: Sums, labels: Mapping[str, Label]
) -> list[Column]:
    """`accuracy` with its interval over examples, `loss`, and how many examples these are."""
    *accuracy, examples = accuracy_columns(quantities, sums, labels)
    return [*accuracy, column(quantities.loss, means(sums)["loss"], labels), examples]


def accuracy_columns(
    quantities: type[Attacks] | type[AutoAttack] | type[BitRobustness], sums: Sums, labels: Mapping[str, Label]
) -> list[Column]:
    """The same without the loss."""
    correct, positions = sums["correct"], sums["positions"]
    low, high, reason = (None, None, REGRESSION) if correct is None else share_interval(correct, positions)
    share = None if correct is None else _ratio(correct, positions)
    return [
        column(quantities.accuracy, share, labels, REGRESSION),
        column(quantities.accuracy_low, low, labels, reason),
        column(quantities.accuracy_high, high, labels, reason),
        column(quantities.examples, counted(positions), labels),
    ]


def difference_columns(
    quantities: tuple[Quantity, Quantity, Quantity], first: Sums, second: Sums, labels: Mapping[str, Label]
) -> list[Column]:
    """The accuracy of the first less that of the second, with its interval, paired by example."""
    positions = first["positions"]
    if first["correct"] is None:
        return [column(quantity, None, labels, REGRESSION) for quantity in quantities]
    low, high, reason = share_difference_interval(first["correct"], second["correct"], positions)
    change = _ratio([a - b for a, b in zip(first["correct"], second["correct"], strict=True)], positions)
    numbers = zip(quantities, (change, low, high), (None, reason, reason), strict=True)
    return [column(quantity, value, labels, why) for quantity, value, why in numbers]


def counted(positions: Sequence[int]) -> int:
    """How many examples have a position that counts."""
    return sum(n > 0 for n in positions)


def over_seeds(
    quantities: type[Quantities], runs: Sequence[Mapping[str, float | None]], labels: Mapping[str, Label]
) -> list[Column]:
    """The mean over the seeds' runs of every number, with its interval; null where it is not defined."""
    columns = []
    for name in runs[0]:
        values = [value for run in runs if (value := run[name]) is not None]
        defined = len(values) == len(runs)
        numbers = mean_interval(values) if defined else (None, None, None)
        for end, number in zip(("", "_low", "_high"), numbers, strict=True):
            quantity = quantities.named(f"{name}_mean{end}")
            columns.append(column(quantity, number, labels, None if defined else REGRESSION))
    return columns


def column(quantity: Quantity, value: float | None, labels: Mapping[str, Label], reason: str | None = None) -> Column:
    """One number of one scope; the reason is recorded if there is none."""
    absent = value is None or math.isnan(value)
    return quantity.column([value], labels, {0: reason} if absent and reason else {})


def _ratio(numerator: Sequence[float], denominator: Sequence[float]) -> float:
    total = sum(denominator)
    # not fsum, which refuses what is not finite
    return float(sum(numerator)) / total if total else math.nan
