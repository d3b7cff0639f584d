"""What a model makes of labelled data, a few numbers a position: logits are reduced as they come."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from learnscope.model.evaluate import model_device
from learnscope.model.guard import guard
from learnscope.task import Task, correct
from learnscope.tensor.calibration import brier_scores, class_probabilities
from learnscope.tensor.context import plain_arithmetic


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


@torch.no_grad()
def outcomes(model: nn.Module, task: Task, batches: Sequence[Any]) -> Outcomes | None:
    """Run `model` in eval mode over `batches` and leave it as it was; None if the batches have no targets."""
    device = model_device(model)
    parts: list[tuple[Tensor | None, ...]] = []
    seen = 0
    with guard(model):
        for batch in batches:
            out = task.outputs(model, task.to(batch, device))
            if out.targets is None or out.losses is None:
                return None
            classes = _classes(out.logits.cpu(), out.targets.cpu())
            parts.append((out.losses.double().cpu(), out.example.cpu() + seen, *classes))
            seen += task.size(batch)
    joined = [torch.cat([p for p in column if p is not None]) if column[0] is not None else None
              for column in zip(*parts, strict=True)]  # fmt: skip
    losses, example, *rest = joined
    assert losses is not None
    assert example is not None
    return Outcomes(losses, example, *rest)


def _classes(logits: Tensor, targets: Tensor) -> tuple[Tensor | None, ...]:
    """Targets, correct, confidence, probability of the right class and Brier score."""
    if targets.is_floating_point():
        return (None,) * 5
    with plain_arithmetic(logits.device):
        targets = targets.reshape(-1)
        probabilities = class_probabilities(logits)
        gold = probabilities.gather(1, targets[:, None]).squeeze(1)
        return targets, correct(logits, targets), probabilities.amax(1), gold, brier_scores(probabilities, targets)
