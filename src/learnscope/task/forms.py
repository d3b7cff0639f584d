"""Which built-in task fits a batch and a model."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from torch import Tensor, nn

from learnscope.task.base import Task
from learnscope.task.batches import describe, is_tuple_batch
from learnscope.task.builtin import DictTask, OwnLossTask, PairTask, TupleTask
from learnscope.task.calls import TARGET_NAMES, Forward, forward_of, unwrap
from learnscope.task.huggingface import MODEL_INPUTS, HuggingFaceTask

_DICT_PAIRS = (("x", "y"), ("inputs", "targets"), ("input", "target"), ("image", "label"), ("data", "target"))
_ANYTHING = Forward((), (), open_ended=True)
MY_TASK = (
    "    class MyTask(learnscope.Task):\n"
    "        def logits(self, model, batch): return model(batch[...])\n"
    "        def targets(self, batch): return batch[...]\n"
)


def task_for(batch: Any, model: nn.Module | None = None) -> Task:
    """The built-in task for a batch of this structure; where none fits, a TypeError says what to write."""
    tasks = tasks_for(batch, model)
    if tasks:
        return tasks[0]
    model_name = f" for a {type(unwrap(model)).__name__}" if model is not None else ""
    one = " It looks like a single example: pass a data set or a loader, not a list of examples." * _is_example(batch)
    raise TypeError(
        f"no built-in task fits this batch{model_name}: {describe(batch)}.{one} Say how to read it, task=MyTask():\n\n"
        f"{MY_TASK}"
    )


def tasks_for(batch: Any, model: nn.Module | None = None) -> list[Task]:
    """The built-in tasks that may fit, the likeliest first."""
    forward = _ANYTHING if model is None else forward_of(model)
    if isinstance(batch, Mapping):
        return _for_dictionary(batch, forward)
    if isinstance(batch, Tensor):
        return [TupleTask()]
    return _for_tuple(batch, forward)


def _for_dictionary(batch: Mapping[Any, Any], forward: Forward) -> list[Task]:
    if "img1" in batch and "img2" in batch:
        return [PairTask()]
    if any(key in batch for key in (*MODEL_INPUTS, "labels")):
        return [HuggingFaceTask()]
    tasks: list[Task] = [DictTask(x, y) for x, y in _DICT_PAIRS if x in batch and y in batch]
    targets = next((key for key in TARGET_NAMES if key in batch), None)
    inputs = [name for name in forward.names if name in batch and name != targets]
    if inputs and set(forward.required) <= set(inputs) and targets is not None:
        tasks.append(DictTask(inputs, targets))
    return tasks


def _for_tuple(batch: Any, forward: Forward) -> list[Task]:
    needed = len(forward.required)
    several: list[Task] = [TupleTask(needed)] if needed > 1 and is_tuple_batch(batch, needed) else []
    if not is_tuple_batch(batch):
        return several
    first = batch[0]
    if isinstance(first, Mapping):
        given = set(first)
        return [TupleTask(spread=bool(needed) and set(forward.required) <= given <= set(forward.names))]
    if isinstance(first, (tuple, list)):
        return [TupleTask(spread=len(first) == needed > 1)]
    own: list[Task] = [OwnLossTask(forward.targets)] if forward.targets is not None and len(batch) > 1 else []
    # a second input with a default, or any number of inputs
    perhaps: list[Task] = [TupleTask(2)] if needed < 2 and len(batch) == 3 else []
    if several and forward.required[-1] not in TARGET_NAMES:
        return [*several, *own]
    return [*own, *several, *([TupleTask()] if needed < 2 else []), *perhaps]


def _is_example(batch: Any) -> bool:
    items = batch if isinstance(batch, (tuple, list)) else ()
    return len(items) > 1 and isinstance(items[0], Tensor) and not any(getattr(item, "ndim", 0) for item in items[1:])
