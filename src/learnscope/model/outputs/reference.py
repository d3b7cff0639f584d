"""The model's outputs on fixed batches, and how far those of a variant are from them."""

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
from learnscope.tensor.outputs.divergence import compare_logits, summarise
from learnscope.tensor.outputs.fused_divergence import RowFacts, row_facts


@dataclass(frozen=True, slots=True)
class Reference:
    """The model's own outputs for a batch, and what comparing with them needs of each row."""

    outputs: Positions
    facts: RowFacts | None

    @property
    def regression(self) -> bool:
        """Whether the outputs are numbers and no distributions, as float targets say."""
        return self.outputs.targets is not None and self.outputs.targets.is_floating_point()


@torch.no_grad()
def reference_outputs(model: nn.Module, task: Task, batches: Sequence[Any]) -> list[Reference]:
    """One pass in eval mode, kept on the model's device: what variants of the model are compared with."""
    device = model_device(model)
    kept = []
    with guard(model):
        for batch in batches:
            outputs = _detached(model, task.positions(model, task.to(batch, device)))
            if outputs.logits.numel() == 1 < task.size(batch):
                raise ValueError(
                    f"{type(model).__name__} returns a single number for {task.size(batch)} examples, its loss "
                    "perhaps: there are no predictions to compare. Write a Task whose logits() returns them."
                )
            with plain_arithmetic(device):
                kept.append(Reference(outputs, row_facts(outputs.logits)))
    return kept


@torch.no_grad()
def compare_outputs(
    model: nn.Module, task: Task, batches: Sequence[Any], reference: Sequence[Reference]
) -> dict[str, Tensor]:
    """`model` with the weights it has now against `reference`, over all positions of all batches.

    See `learnscope.tensor.outputs.divergence.summarise` for the names. Float targets are regression: there is no
    distribution then, and `kl`, `kl_median`, `kl_p99` and `top1_agree` are NaN.
    """
    device = model_device(model)
    parts = []
    with guard(model):
        for batch, known in zip(batches, reference, strict=True):
            logits = task.positions(model, task.to(batch, device)).logits
            own = known.outputs
            parts.append(
                compare_logits(
                    own.logits,
                    logits,
                    own.targets,
                    probabilities=not known.regression,
                    rows=own.rows,
                    facts=known.facts,
                )
            )
    return summarise(parts)


def _detached(model: nn.Module, outputs: Positions) -> Positions:
    """Outputs that stay as they are: not those of a model that gives out a weight, which a variant writes."""
    own = {tensor.untyped_storage().data_ptr() for tensor in [*model.parameters(), *model.buffers()]}
    logits = outputs.logits.detach()
    return replace(outputs, logits=logits.clone() if logits.untyped_storage().data_ptr() in own else logits)
