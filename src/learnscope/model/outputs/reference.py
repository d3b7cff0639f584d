"""The model's outputs on fixed batches, and how far the outputs of a variant are from them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn

from learnscope.model.guard import guard
from learnscope.model.outputs.evaluate import model_device
from learnscope.task import Positions, Task
from learnscope.tensor.context import plain_arithmetic
from learnscope.tensor.outputs.divergence import Comparison, ReferenceRows, compare_logits, summarise
from learnscope.tensor.outputs.fused_divergence import RowFacts, row_facts


@dataclass(frozen=True, slots=True)
class Reference:
    """The original model's outputs for a batch, and per-row statistics for comparing with them."""

    outputs: Positions
    facts: RowFacts | ReferenceRows | None

    @property
    def regression(self) -> bool:
        """Whether the outputs are plain numbers, not distributions: the targets are floats."""
        return self.outputs.targets is not None and self.outputs.targets.is_floating_point()

    def compare(self, logits: Tensor) -> Comparison:
        """How far a variant's logits for the batch are from these."""
        original, distributions = self.outputs, not self.regression
        return compare_logits(
            original.logits, logits, original.targets, probabilities=distributions, rows=original.rows, facts=self.facts
        )


@torch.no_grad()
def reference_outputs(model: nn.Module, task: Task, batches: Sequence[Any]) -> list[Reference]:
    """The outputs of one pass in eval mode, on the model's device, to compare variants of the model with."""
    device = model_device(model)
    memory = {tensor.untyped_storage().data_ptr() for tensor in [*model.parameters(), *model.buffers()]}
    reference = []
    with guard(model):
        for batch in batches:
            outputs = task.positions(model, task.to(batch, device))
            logits = outputs.logits.detach()
            if logits.untyped_storage().data_ptr() in memory:  # later changes of the weights would alter them
                logits = logits.clone()
            outputs = replace(outputs, logits=logits)
            if outputs.logits.numel() == 1 < task.size(batch):
                raise ValueError(
                    f"{type(model).__name__} returns a single number for {task.size(batch)} examples, its loss "
                    "perhaps: there are no predictions to compare. Write a Task whose logits() returns them."
                )
            with plain_arithmetic(device):
                reference.append(Reference(outputs, row_facts(outputs.logits)))
    return reference


@torch.no_grad()
def compare_outputs(
    model: nn.Module, task: Task, batches: Sequence[Any], reference: Sequence[Reference]
) -> dict[str, Tensor]:
    """Compare the model as it is now with `reference`, over all positions; see `summarise` for the names."""
    device = model_device(model)
    parts = []
    with guard(model):
        for batch, original in zip(batches, reference, strict=True):
            parts.append(original.compare(task.positions(model, task.to(batch, device)).logits))
    return summarise(parts)
