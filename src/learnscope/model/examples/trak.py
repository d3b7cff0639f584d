"""TRAK: the effect of each training example on each test prediction, from random projections of gradients."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from learnscope.model.data import fixed_batches
from learnscope.model.examples.attribution import Attribution, Passes, Progress
from learnscope.model.examples.per_example import MAX_BYTES, Chunk, per_example_gradients
from learnscope.options import is_whole
from learnscope.task import Task, task_for
from learnscope.task.shapes import is_single


def trak(
    checkpoints: Sequence[nn.Module], task: Task | None, train: Any, test: Any, *, dims: int | None = 512,
    seed: int = 0, ridge: float = 0.0, parameters: str | None = None, max_bytes: int = MAX_BYTES,
    progress: Progress | None = None,
) -> Attribution:  # fmt: skip
    """TRAK (arXiv 2303.14186) for classification, [train, test].

    With f = log(p/(1 − p)) of the right class, φ its projected gradient, Φ those of the training examples as rows,
    the score of training example i for test example z is, with means over the M checkpoints,

        mean_m(1 − p_i) · mean_m(φ(z)ᵀ (ΦᵀΦ + ridge·I)⁻¹ φ_i).

    Checkpoints are best from runs on different halves of the data. Each has its own projection, to `dims` numbers;
    `dims=None` takes gradients as they are. Without a `ridge`, ΦᵀΦ must have full rank.
    """
    if not checkpoints:
        raise ValueError("no checkpoint is given: TRAK averages over at least one")
    if not 0 <= ridge < math.inf:
        raise ValueError(f"ridge is {ridge}: a number from 0 is needed, such as 0.01")
    if dims is not None and not is_whole(dims, 1):
        raise ValueError(f"dims is {dims!r}: a whole number from 1 is needed, or None for gradients as they are")
    train_batches, test_batches = fixed_batches(train, task), fixed_batches(test, task)
    task = task or task_for(train_batches[0])
    passes = Passes(task, [*train_batches, *test_batches], len(checkpoints), progress)
    weighted: list[tuple[Tensor, Tensor]] = []
    for index, model in enumerate(checkpoints):
        (features, margins), (targets, _) = (
            _on_cpu(passes.follow(per_example_gradients(
                model, task, batches, parameters=parameters, max_bytes=max_bytes, project=dims, seed=seed + index,
                function=partial(margin, task),
            )))
            for batches in (train_batches, test_batches)
        )  # fmt: skip
        weighted.append((torch.sigmoid(-margins), influence(features, targets, ridge)))
    wrong, effects = (torch.stack(column).mean(0) for column in zip(*weighted, strict=True))
    return Attribution(wrong[:, None] * effects, "; ".join(passes.ways))


def _on_cpu(chunks: Iterator[Chunk]) -> tuple[Tensor, Tensor]:
    """The rows and the margins of all chunks."""
    parts = [(chunk.gradients.cpu(), chunk.losses.cpu().double()) for chunk in chunks]
    rows, margins = zip(*parts, strict=True)
    return torch.cat(rows), torch.cat(margins)


def influence(features: Tensor, targets: Tensor, ridge: float = 0.0) -> Tensor:
    """Φ (ΦᵀΦ + ridge·I)⁻¹ φ(z) for rows Φ `features` and columns z of `targets`, in float64; refuses a singular ΦᵀΦ."""
    features, targets = features.double(), targets.double()
    if not features.isfinite().all():
        at = int((~features.isfinite()).any(1).nonzero()[0])
        raise ValueError(f"the gradient of training example {at} is not finite (no target that counts?): leave it out")
    gram = features.T @ features
    gram.diagonal().add_(ridge)
    values, vectors = torch.linalg.eigh(gram)
    floor = values[-1] * len(values) * torch.finfo(torch.float32).eps  # gradients are float32, mostly
    if values[0] <= floor:
        raise ValueError(
            f"{features.shape[0]} training gradients span {int((values > floor).sum())} of {len(values)} dimensions, "
            "so that ΦᵀΦ has no inverse: lower dims below the number of training examples, or give a ridge"
        )
    solved: Tensor = (vectors / values) @ (vectors.T @ targets.T)
    return features @ solved


def margin(task: Task, model: nn.Module, batch: Any) -> Tensor:
    """log(p/(1 − p)) of the right class for a batch of one example: its logit less the log-sum-exp of the others."""
    logits, targets, keep, _ = task._positions(model, batch)
    if targets is None or targets.is_floating_point():
        kind = "no targets" if targets is None else "float targets"
        raise TypeError(f"TRAK as it is here is for classes, and {type(task).__name__} gives {kind}")
    if logits.shape[0] != 1:
        raise ValueError(
            f"an example has {logits.shape[0]} answers, and TRAK as it is here is for one: "
            "use tracin, or a Task that gives one answer an example"
        )
    logits = logits if logits.dtype == torch.float64 else logits.float()
    if is_single(logits):
        value = logits.reshape(()) * (2 * targets.reshape(()) - 1)
    else:
        # a target that does not count may not be a class at all
        right = torch.arange(logits.shape[1], device=logits.device) == targets.reshape(1, 1)
        others = logits.masked_fill(right, -torch.inf).logsumexp(1)
        value = (torch.where(right, logits, 0).sum(1) - others).reshape(())
    return value if keep is None else torch.where(keep.reshape(()), value, torch.nan)
