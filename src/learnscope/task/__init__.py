"""How a batch becomes logits, targets, losses, example ids and groups.

Probes never read a batch themselves: they use a `Task`. The built-in ones handle `(x, y)`, Hugging Face
dictionaries, pairs and plain dictionaries; for anything else a user writes a class with two methods.
"""

from collections.abc import Mapping
from typing import Any

from torch import Tensor, nn

from learnscope.task.base import DictTask, Outputs, PairTask, Positions, Task, TupleTask
from learnscope.task.batches import describe, is_tuple_batch
from learnscope.task.huggingface import MODEL_INPUTS, HuggingFaceTask, unwrap
from learnscope.task.shapes import IGNORE, correct, predictions

__all__ = [
    "IGNORE",
    "DictTask",
    "HuggingFaceTask",
    "Outputs",
    "PairTask",
    "Positions",
    "Task",
    "TupleTask",
    "correct",
    "describe",
    "predictions",
    "task_for",
    "unwrap",
]

_DICT_PAIRS = (("x", "y"), ("inputs", "targets"), ("input", "target"), ("image", "label"), ("data", "target"))


def task_for(batch: Any, model: nn.Module | None = None) -> Task:
    """The built-in task for a batch of this structure; where none fits, a TypeError says what to write."""
    if isinstance(batch, Mapping):
        if "img1" in batch and "img2" in batch:
            return PairTask()
        if any(key in batch for key in (*MODEL_INPUTS, "labels")):
            return HuggingFaceTask()
        for inputs, targets in _DICT_PAIRS:
            if inputs in batch and targets in batch:
                return DictTask(inputs, targets)
    elif isinstance(batch, Tensor) or is_tuple_batch(batch):
        return TupleTask()
    model_name = f" for a {type(unwrap(model)).__name__}" if model is not None else ""
    raise TypeError(
        f"no built-in task fits this batch{model_name}: {describe(batch)}. Say how to read it:\n\n"
        "    class MyTask(learnscope.Task):\n"
        "        def logits(self, model, batch): return model(batch[...])\n"
        "        def targets(self, batch): return batch[...]\n"
    )
