"""A few numbers per position or per example of labelled data; logits are reduced batch by batch and not kept."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from learnscope.model.guard import guard
from learnscope.model.outputs.activations import fused_activations
from learnscope.model.outputs.evaluate import joined_if_all, model_device
from learnscope.task import IGNORE, HuggingFaceTask, Positions, Task, correct, describe, predictions, unwrap
from learnscope.task.losses import CROSS_ENTROPY
from learnscope.task.shapes import is_single
from learnscope.tensor.context import plain_arithmetic
from learnscope.tensor.outputs.calibration import brier_scores, class_probabilities
from learnscope.tensor.outputs.ranks import CHUNK, losses_and_ranks


@dataclass(frozen=True, slots=True)
class Outcomes:
    """One entry per position that has a target, on the CPU. Fields that need classes are None without them."""

    losses: Tensor
    example: Tensor
    targets: Tensor | None
    correct: Tensor | None
    confidence: Tensor | None
    """Probability of the predicted class."""
    gold: Tensor | None
    """Probability of the right class."""
    brier: Tensor | None
    predicted: Tensor | None
    """The predicted class; -1 where a logit is NaN."""
    ids: Tensor | None = None
    """Id of the position's example, if the batches carry ids."""
    classes: int | None = None
    """Number of classes that the model distinguishes."""


@torch.no_grad()
def outcomes(model: nn.Module, task: Task, batches: Iterable[Any]) -> Outcomes | None:
    """Run `model` in eval mode over `batches` and leave it as it was; None if the batches have no targets."""
    device = model_device(model)
    parts: list[tuple[Tensor | None, ...]] = []
    examples, width = 0, None
    with guard(model):
        for batch in batches:
            try:
                out = task.outputs(model, task.to(batch, device))
            except IndexError as error:
                if not str(error).startswith("Target"):  # the message of cross entropy, which does not say what to do
                    raise
                raise ValueError(
                    f"a target is none of the model's classes ({error}): classes are counted from 0, one per logit, "
                    f"and {IGNORE} leaves a target out"
                ) from error
            if out.targets is None or out.losses is None:
                return None
            ids, example = None, out.example.cpu()
            with suppress(TypeError):  # names instead of numbers: the other numbers do not need ids
                ids = task.ids(batch)
            classes = _classes(out.logits.cpu(), out.targets.cpu())
            ids = None if ids is None else ids.cpu()[example]
            parts.append((out.losses.double().cpu(), example + examples, *classes, ids))
            width = None if classes[0] is None else number_of_classes(out.logits)
            examples += task.size(batch)
    columns: list[Any] = [*(joined_if_all(column) for column in zip(*parts, strict=True)), width]
    return Outcomes(*columns)


def _classes(logits: Tensor, targets: Tensor) -> tuple[Tensor | None, ...]:
    """Targets, correct, confidence, probability of the right class, Brier score and prediction."""
    if targets.is_floating_point():
        return (None,) * 6
    with plain_arithmetic(logits.device):
        targets, predicted = targets.reshape(-1), predictions(logits)
        probabilities = class_probabilities(logits)
        gold = probabilities.gather(1, targets[:, None]).squeeze(1)
        brier = brier_scores(probabilities, targets)
        return targets, predicted == targets, probabilities.amax(1), gold, brier, predicted


@dataclass(frozen=True, slots=True)
class Sums:
    """One entry per example, on the CPU in float64; without classes, `right` is None and `within` is empty."""

    loss: Tensor
    positions: Tensor
    right: Tensor | None
    within: dict[int, Tensor]
    """For each k: positions whose right class is among the top k."""
    classes: int | None
    """Number of classes that the model distinguishes; None if the targets are not classes."""
    tokens: bool
    """Whether the classes are the model's vocabulary and the loss is their cross entropy."""
    target: Tensor | None = None
    """The right class of each example, where none has more than one position; -1 where it has none."""


@torch.no_grad()
def summed_by_example(model: nn.Module, task: Task, batches: Iterable[Any], top_k: Sequence[int] = ()) -> Sums:
    """Run `model` once in eval mode over `batches`, and leave it as it was."""
    device = model_device(model)
    parts: list[dict[str, Tensor]] = []
    classes, tokens = None, False
    with guard(model), fused_activations(model):
        for batch in batches:
            outputs = task.positions(model, task.to(batch, device))
            if outputs.targets is None:
                raise ValueError(
                    f"there is nothing to compare the model with: {describe(batch)} has no targets for "
                    f"{type(task).__name__}. Give labelled data, or a task whose targets() finds them."
                )
            with plain_arithmetic(device):
                parts.append(_summed(model, task, outputs, task.size(batch), top_k))
            if not outputs.targets.is_floating_point():
                classes = number_of_classes(outputs.logits)
                tokens = is_cross_entropy(task) and predicts_tokens(model, classes)
            del outputs  # otherwise the logits of two batches would be in memory at once
    joined = {name: torch.cat([part[name] for part in parts]) for name in parts[0]}
    within = {k: joined[f"within {k}"] for k in top_k if f"within {k}" in joined}
    target = joined.get("target")
    if target is not None:
        once = bool((joined["positions"] <= 1).all())
        target = torch.where(joined["positions"] > 0, target, -1).long() if once else None
    return Sums(joined["loss"], joined["positions"], joined.get("right"), within, classes, tokens, target)


def predicts_tokens(model: nn.Module, classes: int) -> bool:
    """Whether this number of classes is a vocabulary: that of the configuration, or the size of an embedding."""
    inner = unwrap(model)
    config: Any = getattr(inner, "config", None)
    config = config.get_text_config() if hasattr(config, "get_text_config") else config
    vocabulary = getattr(config, "vocab_size", None)
    if vocabulary is not None:
        return bool(classes >= vocabulary)  # heads may be padded to a round size
    return any(getattr(module, "num_embeddings", None) == classes for module in inner.modules())


def _summed(model: nn.Module, task: Task, outputs: Positions, examples: int, top_k: Sequence[int]) -> dict[str, Tensor]:
    logits, targets = outputs.logits, outputs.targets
    assert targets is not None
    loss: Tensor | None = None
    by_position: dict[str, Tensor] = {}
    if not targets.is_floating_point() and (is_single(logits) or logits.ndim != 2):
        by_position["right"] = correct(with_target(logits, outputs.rows), targets)
        by_position |= {f"within {k}": by_position["right"] for k in top_k if k == 1}
    elif not targets.is_floating_point():
        low, high = (int(targets.min()), int(targets.max())) if targets.numel() else (0, 0)
        if low < 0 or high >= logits.shape[1]:
            raise ValueError(
                f"target {low if low < 0 else high} is none of the model's {logits.shape[1]} classes: classes are "
                f"counted from 0, one per logit, and {IGNORE} leaves a target out"
            )
        loss, ranks = losses_and_ranks(logits, targets, outputs.rows)
        by_position["right"] = ranks == 0
        by_position |= {f"within {k}": ranks < k for k in top_k if k < logits.shape[1]}
    if loss is None or not is_cross_entropy(task):
        loss = task.each_loss(model, with_target(logits, outputs.rows), targets)
    by_position |= {"loss": loss, "positions": torch.ones_like(loss)}
    if "right" in by_position and targets.numel() == loss.numel():
        by_position["target"] = targets.reshape(-1)
    return {
        name: torch.bincount(outputs.example, values.detach().double(), minlength=examples).cpu()
        for name, values in by_position.items()
    }


def number_of_classes(logits: Tensor) -> int:
    """Two for a single logit, which is a yes/no answer."""
    return 2 if is_single(logits) else int(logits.shape[1])


def with_target(logits: Tensor, rows: Tensor | None) -> Tensor:
    """The logits of the positions that have a target; `rows` is None if all have one."""
    return logits if rows is None else logits[rows]


def exact_losses(
    model: nn.Module, task: Task, outputs: Positions, logits: Tensor, log_total: Tensor | None = None
) -> Tensor:
    """The losses of a variant's `logits` at the positions of `outputs` that have a target, in float64 from logits as
    they are: a difference of two losses is far smaller than either, and float32 leaves few digits of it.

    A task with a loss of its own computes it in its own way. `log_total` is the logarithm of the sum of each position's
    exponentials, where a comparison has it; NaN where that has not.
    """
    targets = outputs.targets
    assert targets is not None
    if not is_cross_entropy(task):
        return task.each_loss(model, with_target(logits, outputs.rows), targets).double()
    if log_total is not None and logits.ndim == 2 and targets.ndim == 1 and not targets.is_floating_point():
        rows = torch.arange(len(logits), device=logits.device) if outputs.rows is None else outputs.rows
        losses = log_total - logits[rows, targets].double()
        redo = (~losses.isfinite()).nonzero().squeeze(1)
        if len(redo):
            losses[redo] = _losses(model, task, logits, rows[redo], targets[redo])
        return losses
    return _losses(model, task, logits, outputs.rows, targets)


def _losses(model: nn.Module, task: Task, logits: Tensor, with_targets: Tensor | None, targets: Tensor) -> Tensor:
    """In float64, a few positions at a time: a copy of all logits could be too large."""
    step = max(1, CHUNK // max(1, logits[:1].numel()))
    parts = []
    for start in range(0, max(targets.shape[0], 1), step):
        rows = slice(start, start + step) if with_targets is None else with_targets[start : start + step]
        parts.append(task.each_loss(model, logits[rows].double(), targets[start : start + step]))
    return torch.cat(parts)


def is_cross_entropy(task: Task) -> bool:
    """Whether the loss of classes is cross entropy, as in every built-in task without a loss of the user's."""
    own = type(task).losses is Task.losses and type(task)._each_loss in (Task._each_loss, HuggingFaceTask._each_loss)
    return own and (task.chosen_loss is None or task.chosen_loss.name == CROSS_ENTROPY)
