"""Batches that a model cannot run, refused before anything is measured."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from learnscope.model.guard import guard
from learnscope.model.outputs.evaluate import model_device
from learnscope.posttrain.errors import PosttrainError
from learnscope.sources.errors import whole_reason
from learnscope.task import Task, describe, unwrap
from learnscope.task.batches import first_of
from learnscope.task.huggingface import LABEL_KEYS, MODEL_INPUTS

_CURE = "give batches of the shape that it was made for, or a task of your own that reads them in another way"


@torch.no_grad()
def check_runs(model: nn.Module, task: Task, batches: Sequence[Any]) -> None:
    """Run the first example of the first batch of every shape; an error is told with the batch and the cure."""
    name, device = type(unwrap(model)).__name__, model_device(model)
    seen: set[Any] = set()
    with guard(model):
        for number, batch in enumerate(batches):
            shape = _shape(task, batch)
            if shape in seen:
                continue
            seen.add(shape)
            _check_ids(model, number, batch)
            try:
                task.outputs(model, task.to(task.take(batch, 1), device))
            except PosttrainError:
                raise
            except Exception as error:
                raise PosttrainError(
                    f"{name} cannot run batch {number}, {describe(batch)}: {whole_reason(error)}; {_CURE}"
                ) from error


def _shape(task: Task, batch: Any) -> Any:
    """What two batches must share for one to run if the other does: all sizes but those of examples and of tokens."""
    leaves = batch.values() if isinstance(batch, dict) else batch if isinstance(batch, list | tuple) else [batch]
    size = task.size(batch)

    def of(leaf: Any) -> Any:
        if not isinstance(leaf, Tensor):
            return type(leaf).__name__
        rows = "examples" if leaf.ndim and leaf.shape[0] == size else leaf.shape[:1]
        return leaf.dtype, leaf.ndim, rows, tuple(leaf.shape[1:]) if leaf.is_floating_point() else None

    return tuple(map(of, leaves))


def _check_ids(model: nn.Module, number: int, batch: Any) -> None:
    inner = unwrap(model)
    name, config = type(inner).__name__, getattr(inner, "config", None)
    ids = first_of(batch, MODEL_INPUTS[:1]) if isinstance(batch, dict) else None
    if not isinstance(ids, Tensor) or ids.is_floating_point():
        return
    labels = first_of(batch, LABEL_KEYS)
    own = not getattr(config, "is_encoder_decoder", False)  # whose labels are of another text
    if own and isinstance(labels, Tensor) and labels.ndim == ids.ndim == 2 and _of_tokens(labels, ids):
        raise PosttrainError(
            f"{name}: labels of batch {number} have the shape {list(labels.shape)}, and input_ids {list(ids.shape)}: "
            "one label for each token is needed (-100 where none counts), or one for each example"
        )
    if ids.ndim != 2:
        raise PosttrainError(
            f"{name}: input_ids of batch {number} have the shape {list(ids.shape)}, and [examples, tokens] is needed"
            + (": put the texts into a list of one, input_ids[None]" if ids.ndim == 1 else "")
        )


def _of_tokens(labels: Tensor, ids: Tensor) -> bool:
    """Whether these are token labels of another length: whole numbers, more than one column, and not as many."""
    return not labels.is_floating_point() and labels.shape[1] > 1 and labels.shape[1] != ids.shape[1]
