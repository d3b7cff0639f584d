"""The batch of a step: handed over, or seen in the model's own forward."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch import nn

from learnscope.analysis.capture import BatchCapture, Call, CallTask, as_batch, takes_it_whole
from learnscope.analysis.computers import with_mask
from learnscope.core.subject import Subject
from learnscope.task import Task, task_for

NO_BATCH = "a batch, and none was given nor seen in a forward: pass inputs= to on_optimizer_step"


class Batches:
    """Finds a measurement's batch and the task that reads it."""

    def __init__(self, task: Task | None, wanted: Callable[[], bool]) -> None:
        self._task, self.capture = task, BatchCapture(wanted)
        self.problem = NO_BATCH
        """Why there is none."""

    def find(self, subject: Subject, inputs: Any, attention_mask: Any) -> Any:
        """The batch, also put where probes look for it; None if there is none, with the reason in `problem`."""
        subject.holdout, self.problem = None, NO_BATCH
        call = self.capture.take()
        try:
            found = self._read(subject.model, inputs, attention_mask, call)
        except TypeError as error:
            self.problem = f"a batch that can be read: {error}\nPass it as ModelAnalysisManager(…, task=MyTask())."
            return inputs
        if found is None:
            return None
        batch, subject.task = found
        subject.holdout = [batch]
        return batch if inputs is None else inputs

    def _read(self, model: nn.Module, inputs: Any, attention_mask: Any, call: Call | None) -> tuple[Any, Task] | None:
        if inputs is None:
            return None if call is None else as_batch(model, *call)
        batch = with_mask(inputs, attention_mask)
        if self._task is not None:
            return batch, self._task
        if call is not None and takes_it_whole(call, inputs):
            return {"args": call[0], "kwargs": call[1]}, CallTask()
        return batch, task_for(batch, model)
