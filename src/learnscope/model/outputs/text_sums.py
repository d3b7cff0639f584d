"""What a model loses on each example, exactly enough to compare models and variants that are nearly the same."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor, nn

from learnscope.model.guard import guard
from learnscope.model.outputs.evaluate import model_device
from learnscope.model.outputs.outcomes import (
    exact_losses,
    is_cross_entropy,
    number_of_classes,
    predicts_tokens,
    with_target,
)
from learnscope.task import Task, correct, describe


@torch.no_grad()
def text_sums(model: nn.Module, task: Task, batches: Iterable[Any]) -> dict[str, Any]:
    """By example: `loss` (in float64), `positions` that count, and `right`, None if the targets are no classes; also
    the number of `classes`, and whether they are `tokens`. Nothing is kept of a batch once it is summed."""
    device, parts = model_device(model), list[dict[str, Tensor]]()
    classes, tokens = None, False
    with guard(model):
        for batch in batches:
            out = task.positions(model, task.to(batch, device))
            if out.targets is None:
                raise ValueError(f"a loss needs targets, and {describe(batch)} has none for {type(task).__name__}")
            values = {"loss": exact_losses(model, task, out, out.logits)}
            values["positions"] = torch.ones_like(values["loss"])
            if not out.targets.is_floating_point():
                values["right"] = correct(with_target(out.logits, out.rows), out.targets)
                classes = number_of_classes(out.logits)
                tokens = is_cross_entropy(task) and predicts_tokens(model, classes)
            size = task.size(batch)
            parts.append({n: torch.bincount(out.example, v.double(), minlength=size).cpu() for n, v in values.items()})
            del out  # otherwise the logits of two batches would be in memory at once
    sums = {name: torch.cat([part[name] for part in parts]).tolist() for name in parts[0]}
    return {"right": None, **sums, "classes": classes, "tokens": tokens}
