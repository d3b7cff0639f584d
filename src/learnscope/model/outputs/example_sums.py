"""Results of a pass summed over the positions of each example, from which intervals over examples are computed."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, fields
from itertools import chain
from typing import Any

import torch
from torch import Tensor, nn

from learnscope.model.guard import guard
from learnscope.model.outputs.activations import fused_activations
from learnscope.model.outputs.evaluate import model_device
from learnscope.task import Outputs, Task, correct
from learnscope.tensor.context import plain_arithmetic
from learnscope.tensor.outputs.divergence import ReferenceRows, compare_logits, reference_rows
from learnscope.tensor.outputs.fused_divergence import RowFacts, first_largest, row_facts


@dataclass(frozen=True, slots=True)
class ExampleSums:
    """One plain number per example. `correct` is None for regression, `kl` also without a reference."""

    positions: list[int]
    loss: list[float]
    correct: list[int] | None
    kl: list[float] | None

    def plain(self) -> dict[str, Any]:
        return asdict(self)


@dataclass(frozen=True, slots=True)
class KeptOutputs:
    """The model's own outputs for a batch, and what comparing others with them needs of each row."""

    outputs: Outputs
    facts: RowFacts | ReferenceRows | None

    @property
    def logits(self) -> Tensor:
        return self.outputs.logits


def kept(outputs: Outputs) -> KeptOutputs:
    """These outputs, to compare those of variants with."""
    distributions = outputs.targets is None or not outputs.targets.is_floating_point()
    with plain_arithmetic(outputs.logits.device):
        facts = (row_facts(outputs.logits) or reference_rows(outputs.logits)) if distributions else None
    return KeptOutputs(outputs, facts)


def example_sums(out: Outputs, size: int, reference: KeptOutputs | None = None) -> ExampleSums:
    """Sums of losses, correct predictions and KL(reference ‖ out) for each of `size` examples."""
    if out.targets is None or out.losses is None:
        raise ValueError("a loss needs targets, and the batch has none for its task")

    def summed(values: Tensor) -> list[float]:
        total = torch.zeros(size, dtype=torch.float64, device=out.example.device)
        return [float(value) for value in total.index_add_(0, out.example, values.detach().double()).tolist()]

    right = kl = None
    if not out.targets.is_floating_point():
        right = [round(value) for value in summed(_right(out.logits, out.targets))]
        if reference is not None:
            kl = summed(compare_logits(reference.logits, out.logits, facts=reference.facts).kl)
    positions = torch.bincount(out.example, minlength=size).tolist()
    return ExampleSums(positions, summed(out.losses), right, kl)


def _right(logits: Tensor, targets: Tensor) -> Tensor:
    """Whether each prediction is right; of many classes, by a search that takes a sixth of the time."""
    if logits.ndim != 2 or logits.shape[1] == 1:
        return correct(logits, targets)
    return first_largest(logits) == targets.reshape(-1)


@torch.no_grad()
def outputs_of_batches(model: nn.Module, task: Task, batches: Sequence[Any]) -> list[KeptOutputs]:
    """The model's own outputs in eval mode, to compare those of variants with."""
    device = model_device(model)
    with guard(model), fused_activations(model):
        return [kept(task.outputs(model, task.to(batch, device))) for batch in batches]


@torch.no_grad()
def example_sums_by_batch(
    model: nn.Module, task: Task, batches: Sequence[Any], reference: Sequence[KeptOutputs] | None = None
) -> list[ExampleSums]:
    """One guarded pass in eval mode over all batches."""
    device = model_device(model)
    originals: Sequence[KeptOutputs | None] = reference or [None] * len(batches)
    with guard(model), fused_activations(model):
        return [
            example_sums(task.outputs(model, task.to(batch, device)), task.size(batch), original)
            for batch, original in zip(batches, originals, strict=True)
        ]


def example_sums_of_pass(
    model: nn.Module, task: Task, batches: Sequence[Any], reference: Sequence[KeptOutputs] | None = None
) -> ExampleSums:
    """The same of all batches together."""
    return joined_sums(example_sums_by_batch(model, task, batches, reference))


def joined_sums(parts: Sequence[ExampleSums]) -> ExampleSums:
    """The sums of several batches, concatenated."""
    columns = ([getattr(part, field.name) for part in parts] for field in fields(ExampleSums))
    joined: list[Any] = [None if None in lists else list(chain(*lists)) for lists in columns]
    return ExampleSums(*joined)
