"""Results of a pass summed over the positions of each example, from which intervals over examples are computed."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, fields
from itertools import chain
from typing import Any

import torch
from torch import Tensor, nn

from learnscope.model.guard import guard
from learnscope.model.outputs.evaluate import model_device
from learnscope.task import Outputs, Task, correct
from learnscope.tensor.outputs.divergence import compare_logits


@dataclass(frozen=True, slots=True)
class ExampleSums:
    """One plain number per example. `correct` is None for regression, `kl` also without a reference."""

    positions: list[int]
    loss: list[float]
    correct: list[int] | None
    kl: list[float] | None

    def plain(self) -> dict[str, Any]:
        return asdict(self)


def example_sums(out: Outputs, size: int, reference: Outputs | None = None) -> ExampleSums:
    """Sums of losses, correct predictions and KL(reference ‖ out) for each of `size` examples."""
    if out.targets is None or out.losses is None:
        raise ValueError("a loss needs targets, and the batch has none for its task")

    def summed(values: Tensor) -> list[float]:
        total = torch.zeros(size, dtype=torch.float64, device=out.example.device)
        return [float(value) for value in total.index_add_(0, out.example, values.detach().double()).tolist()]

    right = kl = None
    if not out.targets.is_floating_point():
        right = [round(value) for value in summed(correct(out.logits, out.targets))]
        kl = None if reference is None else summed(compare_logits(reference.logits, out.logits).kl)
    positions = torch.bincount(out.example, minlength=size).tolist()
    return ExampleSums(positions, summed(out.losses), right, kl)


@torch.no_grad()
def outputs_of_batches(model: nn.Module, task: Task, batches: Sequence[Any]) -> list[Outputs]:
    """The model's own outputs in eval mode, to compare those of variants with."""
    device = model_device(model)
    with guard(model):
        return [task.outputs(model, task.to(batch, device)) for batch in batches]


@torch.no_grad()
def example_sums_of_pass(
    model: nn.Module, task: Task, batches: Sequence[Any], reference: Sequence[Outputs] | None = None
) -> ExampleSums:
    """One guarded pass in eval mode over all batches."""
    device = model_device(model)
    originals: Sequence[Outputs | None] = reference or [None] * len(batches)
    with guard(model):
        parts = [
            example_sums(task.outputs(model, task.to(batch, device)), task.size(batch), original)
            for batch, original in zip(batches, originals, strict=True)
        ]
    return joined_sums(parts)


def joined_sums(parts: Sequence[ExampleSums]) -> ExampleSums:
    """The sums of several batches, concatenated."""
    columns = ([getattr(part, field.name) for part in parts] for field in fields(ExampleSums))
    joined: list[Any] = [None if None in lists else list(chain(*lists)) for lists in columns]
    return ExampleSums(*joined)
