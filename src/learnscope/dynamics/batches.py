"""Batches that a task reads: logits and targets, position by position."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from learnscope.model.guard import guard
from learnscope.model.outputs.evaluate import model_device
from learnscope.model.pure import pure_logits
from learnscope.probes.examples.example_ledger import batch_of
from learnscope.task import Task, task_for
from learnscope.task.shapes import logits_in


def quick_logits(model: nn.Module, inputs: Any, targets: Any) -> Tensor | None:
    """The model's logits in eval mode where neither a task nor the guard is needed; otherwise None."""
    if type(inputs) is not Tensor or type(targets) is not Tensor or inputs.shape[:1] != targets.shape[:1]:
        return None
    return pure_logits(model, inputs)


class BatchReader:
    """Reads batches by the user's task, or by the built-in one that fits."""

    def __init__(self, task: Task | None) -> None:
        self._own = task
        self._found: tuple[nn.Module, Task] | None = None
        """The last model, and the task for it."""

    def read(self, model: nn.Module, inputs: Any, targets: Tensor, logits: Any) -> tuple[Tensor, Tensor, Any]:
        """Logits and targets position by position, after a forward in eval mode if there are no logits; the batch."""
        if isinstance(inputs, Tensor) and inputs.ndim and targets.ndim and len(inputs) != len(targets):
            raise ValueError(f"targets of {len(targets)} examples were given for inputs of {len(inputs)}")
        batch = batch_of(model, inputs, targets)
        task = self._own or self._task_for(batch, model)
        if logits is None:
            with torch.no_grad(), guard(model):
                batch = task.to(batch, model_device(model))
                logits = task.logits(model, batch)
        else:
            logits = logits_in(logits).detach()
            batch = task.to(batch, logits.device)
        aligned = task.aligned_targets(model, batch, logits)
        if aligned is None:
            raise ValueError(f"{type(task).__name__} finds no targets in the batch: examples are followed by them")
        return logits, aligned, batch

    def _task_for(self, batch: Any, model: nn.Module) -> Task:
        """The built-in task; if batches are tensors, it is looked for once."""
        of_tensors = isinstance(batch, tuple) and isinstance(batch[0], Tensor)
        if not of_tensors or self._found is None or self._found[0] is not model:
            self._found = (model, task_for(batch, model))
        return self._found[1]
