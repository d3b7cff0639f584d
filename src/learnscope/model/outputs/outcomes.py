"""A few numbers per position of labelled data; logits are reduced batch by batch and not kept."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from learnscope.model.guard import guard
from learnscope.model.outputs.evaluate import joined_if_all, model_device
from learnscope.model.outputs.metrics import number_of_classes
from learnscope.task import IGNORE, Outputs, Task, predictions
from learnscope.tensor.context import plain_arithmetic
from learnscope.tensor.outputs.calibration import brier_scores, class_probabilities


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
            out = _outputs(task, model, task.to(batch, device))
            if out.targets is None or out.losses is None:
                return None
            example = out.example.cpu()
            classes = _classes(out.logits.cpu(), out.targets.cpu())
            parts.append((out.losses.double().cpu(), example + examples, *classes, _ids(task, batch, example)))
            width = None if classes[0] is None else number_of_classes(out.logits)
            examples += task.size(batch)
    columns: list[Any] = [joined_if_all(column) for column in zip(*parts, strict=True)]
    return Outcomes(*columns, classes=width)


def _outputs(task: Task, model: nn.Module, batch: Any) -> Outputs:
    try:
        return task.outputs(model, batch)
    except IndexError as error:
        if not str(error).startswith("Target"):  # the message of cross entropy, which does not say what to do
            raise
        raise ValueError(
            f"a target is none of the model's classes ({error}): classes are counted from 0, one per logit, and "
            f"{IGNORE} leaves a target out"
        ) from error


def _ids(task: Task, batch: Any, example: Tensor) -> Tensor | None:
    try:
        own = task.ids(batch)
    except TypeError:  # names instead of numbers: the other numbers do not need ids
        return None
    return None if own is None else own.cpu()[example]


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
