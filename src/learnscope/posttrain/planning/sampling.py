"""How many examples are enough: a sample that grows until the interval of what fewer bits do is narrow.

The damage of uniform 4 bits stands for that of all widths: its mean over examples is measured on the first 32, 64, 128,
… of them, until the half width of its 95 % interval is a stated share of it. No clock is asked, so that the same model
and data give the same number of examples on every machine.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from learnscope.intervals import ratio_interval
from learnscope.model.bits.mixes import uniform
from learnscope.model.bits.quantise import quantised
from learnscope.model.bits.quantised_units import UnitsError, find_units
from learnscope.model.data import joined
from learnscope.model.outputs.evaluate import model_device
from learnscope.model.outputs.reference import reference_outputs
from learnscope.task import Task
from learnscope.tensor.bits.quantize import QuantiseError

SMALLEST = 32
BITS = 4
NARROW = {"quick": 0.3, "default": 0.15, "thorough": 0.075}
"""Half width of the interval, as a share of the mean, at which a sample is large enough, by effort."""


@dataclass(frozen=True, slots=True)
class Sample:
    """So many examples; the half width of the interval there as a share of the mean, None if it has none."""

    examples: int
    given: int
    half: float | None
    wanted: float

    @property
    def is_enough(self) -> bool:
        return self.half is not None and self.half <= self.wanted

    def words(self) -> str:
        """
        >>> Sample(64, 256, 0.12, 0.15).words()
        '64 of 256 examples: the damage of 4 bits is known to ±12 % there (±15 % wanted)'
        >>> Sample(38, 64, 0.2, 0.15).words()
        '38 of 64 examples: the damage of 4 bits is known to ±20 % there, and ±15 % are wanted: thorough= takes more'
        >>> Sample(32, 32, 0.4, 0.15).words()
        'all 32 examples: the damage of 4 bits is known to ±40 % there, and ±15 % are wanted: give more'
        """
        which = f"all {self.given}" if self.examples == self.given else f"{self.examples} of {self.given}"
        which += " examples"
        if self.half is None:
            return f"{which}: too few, or too alike, for an interval"
        said = f"{which}: the damage of {BITS} bits is known to ±{100 * self.half:.2g} % there"
        wanted = f"±{100 * self.wanted:.2g} %"
        cure = "give more" if self.examples == self.given else "thorough= takes more"
        return f"{said} ({wanted} wanted)" if self.is_enough else f"{said}, and {wanted} are wanted: {cure}"


def enough_examples(
    model: nn.Module, task: Task, batches: Sequence[Any], most: int, narrow: float, *, least: int = SMALLEST
) -> Sample | None:
    """The smallest of 32, 64, 128, … examples, from `least` up to `most`, whose interval is narrow; None if nothing is
    quantised."""
    given = sum(map(task.size, batches))
    most = min(most, given)
    try:
        parts = _damages(model, task, batches)
        sums, counts = np.empty(0), np.empty(0)
        size, half = min(least, most), None
        while True:
            while len(sums) < size:
                more, positions = next(parts)
                sums, counts = np.concatenate([sums, more]), np.concatenate([counts, positions])
            half = _half_width(sums[:size], counts[:size])
            if (half is not None and half <= narrow) or size >= most:
                return Sample(size, given, half, narrow)
            size = min(2 * size, most)
    except (UnitsError, QuantiseError):
        return None


def _half_width(sums: np.ndarray[Any, Any], counts: np.ndarray[Any, Any]) -> float | None:
    low, high, reason = ratio_interval(sums, counts)
    mean = float(sums.sum() / counts.sum()) if counts.sum() else 0.0
    return None if reason is not None or not mean > 0 else float(high - low) / 2 / mean


@torch.no_grad()
def _damages(model: nn.Module, task: Task, batches: Sequence[Any]) -> Iterator[tuple[Any, Any]]:
    """Of some examples after another: the sum of their damage over positions, and how many positions each has."""
    units = find_units(model)
    bits, device = uniform(units, BITS), model_device(model)
    for batch in joined(task, batches, examples=SMALLEST):
        [reference] = reference_outputs(model, task, [batch])
        with quantised(model, bits, units=units):
            comparison = reference.compare(task.positions(model, task.to(batch, device)).logits)
        damage = comparison.mse if reference.regression else comparison.kl
        example, size = reference.outputs.example.cpu(), task.size(batch)
        yield _by_example(damage.cpu(), example, size), _by_example(torch.ones(len(example)), example, size)


def _by_example(values: Tensor, example: Tensor, size: int) -> Any:
    return torch.zeros(size, dtype=torch.float64).index_add_(0, example, values.double()).numpy()
