"""The model's outputs on fixed batches, and how far those of a variant are from them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn

from learnscope.model.evaluate import model_device
from learnscope.model.guard import guard
from learnscope.task import Outputs, Task
from learnscope.tensor.divergence import compare_logits, summarise


@torch.no_grad()
def reference_outputs(model: nn.Module, task: Task, batches: Sequence[Any]) -> list[Outputs]:
    """One pass in eval mode, kept on the model's device: what variants of the model are compared with."""
    device = model_device(model)
    kept = []
    with guard(model):
        for batch in batches:
            outputs = _detached(task.outputs(model, task.to(batch, device), losses=False))
            if outputs.logits.numel() == 1 < task.size(batch):
                raise ValueError(
                    f"{type(model).__name__} returns a single number for {task.size(batch)} examples, its loss "
                    "perhaps: there are no predictions to compare. Write a Task whose logits() returns them."
                )
            kept.append(outputs)
    return kept


@torch.no_grad()
def compare_outputs(
    model: nn.Module, task: Task, batches: Sequence[Any], reference: Sequence[Outputs]
) -> dict[str, Tensor]:
    """`model` with the weights it has now against `reference`, over all positions of all batches.

    See `learnscope.tensor.divergence.summarise` for the names. Float targets are regression: there is no
    distribution then, and `kl`, `kl_median`, `kl_p99` and `top1_agree` are NaN.
    """
    device = model_device(model)
    parts = []
    with guard(model):
        for batch, known in zip(batches, reference, strict=True):
            found = task.outputs(model, task.to(batch, device), losses=False)
            classes = known.targets is None or not known.targets.is_floating_point()
            parts.append(compare_logits(known.logits, found.logits, known.targets, probabilities=classes))
    return summarise(parts)


def _detached(outputs: Outputs) -> Outputs:
    logits = outputs.logits.detach()
    if outputs.targets is None or outputs.targets.is_floating_point():
        # nothing was selected from it: it may be a view of the model's own memory, which a variant writes
        logits = logits.clone()
    losses = None if outputs.losses is None else outputs.losses.detach()
    return replace(outputs, logits=logits, losses=losses)
