"""What a model makes of labelled data, a few numbers a position: logits are reduced as they come."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from learnscope.model.guard import guard
from learnscope.model.outputs.evaluate import model_device
from learnscope.task import IGNORE, Outputs, Task, predictions
from learnscope.task.shapes import is_single
from learnscope.tensor.context import plain_arithmetic
from learnscope.tensor.outputs.calibration import brier_scores, class_probabilities


@dataclass(frozen=True, slots=True)
class Outcomes:
    """One entry a position that has a target, on the CPU. What is only defined for classes is None for others."""

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
    ids: Tensor | None = field(default=None, kw_only=True)
    """Identity of the position's example, where the batches carry it."""
    classes: int | None = field(default=None, kw_only=True)
    """How many the model tells apart."""


@torch.no_grad()
def outcomes(model: nn.Module, task: Task, batches: Iterable[Any]) -> Outcomes | None:
    """Run `model` in eval mode over `batches` and leave it as it was; None if the batches have no targets."""
    device = model_device(model)
    parts: list[tuple[Tensor | None, ...]] = []
    ids: list[Tensor | None] = []
    seen, width = 0, None
    with guard(model):
        for batch in batches:
            out = _outputs(task, model, task.to(batch, device))
            if out.targets is None or out.losses is None:
                return None
            classes = _classes(out.logits.cpu(), out.targets.cpu())
            parts.append((out.losses.double().cpu(), out.example.cpu() + seen, *classes))
            ids.append(_ids(task, batch, out.example.cpu()))
            width = None if classes[0] is None else _width(out.logits)
            seen += task.size(batch)
    joined = [torch.cat([p for p in column if p is not None]) if column[0] is not None else None
              for column in zip(*parts, strict=True)]  # fmt: skip
    losses, example, *rest = joined
    assert losses is not None
    assert example is not None
    known = [part for part in ids if part is not None]
    return Outcomes(losses, example, *rest, ids=torch.cat(known) if len(known) == len(ids) else None, classes=width)


def _outputs(task: Task, model: nn.Module, batch: Any) -> Outputs:
    try:
        return task.outputs(model, batch)
    except IndexError as error:
        if not str(error).startswith("Target"):  # cross entropy's own sentence, which does not say what to do
            raise
        raise ValueError(
            f"a target is none of the model's classes ({error}): classes are counted from 0, one a logit, and {IGNORE} "
            "leaves a target out"
        ) from error


def _ids(task: Task, batch: Any, example: Tensor) -> Tensor | None:
    try:
        own = task.ids(batch)
    except TypeError:  # names: the numbers of the positions are there all the same
        return None
    return None if own is None else own.cpu()[example]


def _width(logits: Tensor) -> int:
    return 2 if is_single(logits) else int(logits.shape[1])


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
