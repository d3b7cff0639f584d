"""The task of a session, tried on one batch without disturbing the model."""

from __future__ import annotations

from typing import Any

from torch import nn

from learnscope.model.guard import guard
from learnscope.model.outputs.evaluate import model_device
from learnscope.task import Task
from learnscope.task.losses import LossCallable
from learnscope.task.trial import Trial, tried


def try_task(task: Task | None, model: nn.Module, batch: Any, loss: LossCallable | None = None) -> Trial:
    """The task that reads `batch`, after one pass of the model in eval mode, which is left as it was."""
    moving = task or Task()
    with guard(model):
        return tried(task, model, moving.to(batch, model_device(model)), loss)
