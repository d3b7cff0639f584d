"""Loss, correctness and rank of the right answer, summed by example in one pass: no logits are kept."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from learnscope.model.guard import guard
from learnscope.model.outputs.evaluate import model_device
from learnscope.task import IGNORE, HuggingFaceTask, Positions, Task, correct, describe, unwrap
from learnscope.task.shapes import is_single
from learnscope.tensor.context import plain_arithmetic
from learnscope.tensor.outputs.ranks import losses_and_ranks


@dataclass(frozen=True, slots=True)
class Sums:
    """One entry an example, on the CPU in float64; `right` and `within` are None where there is no right answer."""

    loss: Tensor
    positions: Tensor
    right: Tensor | None
    within: dict[int, Tensor]
    """By k: positions whose right class is among the first k."""
    classes: int | None
    """How many the model tells apart; None where targets are no classes."""
    tokens: bool
    """Whether the classes are the tokens of the model's vocabulary, and the loss their cross entropy."""


@torch.no_grad()
def summed_by_example(model: nn.Module, task: Task, batches: Iterable[Any], top_k: Sequence[int] = ()) -> Sums:
    """Run `model` once in eval mode over `batches`, and leave it as it was."""
    device = model_device(model)
    parts: list[dict[str, Tensor]] = []
    width, tokens = None, False
    with guard(model):
        for batch in batches:
            found = task.positions(model, task.to(batch, device))
            if found.targets is None:
                raise ValueError(
                    f"there is nothing to compare the model with: {describe(batch)} has no targets for "
                    f"{type(task).__name__}. Give labelled data, or a task whose targets() finds them."
                )
            with plain_arithmetic(device):
                parts.append(_summed(model, task, found, task.size(batch), top_k))
            if not found.targets.is_floating_point():
                width = 2 if is_single(found.logits) else int(found.logits.shape[1])
                tokens = _standard(task) and predicts_tokens(model, width)
            del found  # or the logits of two batches are there at once
    joined = {name: torch.cat([part[name] for part in parts]) for name in parts[0]}
    within = {k: joined[f"within {k}"] for k in top_k if f"within {k}" in joined}
    return Sums(joined["loss"], joined["positions"], joined.get("right"), within, width, tokens)


def predicts_tokens(model: nn.Module, classes: int) -> bool:
    """Whether so many classes are a vocabulary: the configuration's, or else the size of one of its embeddings."""
    inner = unwrap(model)
    config: Any = getattr(inner, "config", None)
    config = config.get_text_config() if hasattr(config, "get_text_config") else config
    vocabulary = getattr(config, "vocab_size", None)
    if vocabulary is not None:
        return bool(classes >= vocabulary)  # heads are padded to a round size
    return any(getattr(module, "num_embeddings", None) == classes for module in inner.modules())


def _summed(model: nn.Module, task: Task, found: Positions, examples: int, top_k: Sequence[int]) -> dict[str, Tensor]:
    targets = found.targets
    assert targets is not None
    by_position: dict[str, Tensor] = {}
    if targets.is_floating_point():
        by_position["loss"] = task.each_loss(model, _counted(found), targets)
    elif is_single(found.logits) or found.logits.ndim != 2:
        logits = _counted(found)
        by_position["loss"], by_position["right"] = task.each_loss(model, logits, targets), correct(logits, targets)
        by_position |= {f"within {k}": by_position["right"] for k in top_k if k == 1}
    else:
        _check_classes(targets, int(found.logits.shape[1]))
        by_position["loss"], ranks = losses_and_ranks(found.logits, targets, found.rows)
        if not _standard(task):
            by_position["loss"] = task.each_loss(model, _counted(found), targets)
        by_position["right"] = ranks == 0
        by_position |= {f"within {k}": ranks < k for k in top_k if k < found.logits.shape[1]}
    by_position["positions"] = torch.ones_like(by_position["loss"])
    example = found.example
    return {
        name: torch.bincount(example, each.detach().double(), minlength=examples).cpu()
        for name, each in by_position.items()
    }


def _counted(found: Positions) -> Tensor:
    return found.logits if found.rows is None else found.logits[found.rows]


def _standard(task: Task) -> bool:
    """Whether classes are judged by cross entropy, as every built-in task does."""
    return type(task).losses is Task.losses and type(task)._each_loss in (Task._each_loss, HuggingFaceTask._each_loss)


def _check_classes(targets: Tensor, classes: int) -> None:
    if not targets.numel():
        return
    low, high = int(targets.min()), int(targets.max())
    if low < 0 or high >= classes:
        raise ValueError(
            f"target {low if low < 0 else high} is none of the model's {classes} classes: classes are counted from 0, "
            f"one a logit, and {IGNORE} leaves a target out"
        )
