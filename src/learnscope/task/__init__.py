"""How a batch becomes logits, targets, losses, example ids and groups.

Probes never read a batch themselves: they use a `Task`. The built-in ones handle `(x, y)`, several inputs `(a, b, y)`,
models that return `(logits, loss)`, Hugging Face dictionaries, pairs and plain dictionaries; for anything else a user
writes a class with two methods. A session tries its task once when it opens (`task.trial`).
"""

from learnscope.task.base import Outputs, Positions, Task
from learnscope.task.batches import describe
from learnscope.task.builtin import DictTask, OwnLossTask, PairTask, TupleTask
from learnscope.task.calls import unwrap
from learnscope.task.forms import task_for
from learnscope.task.huggingface import HuggingFaceTask
from learnscope.task.shapes import IGNORE, correct, predictions

__all__ = [
    "IGNORE",
    "DictTask",
    "HuggingFaceTask",
    "Outputs",
    "OwnLossTask",
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
