"""Scores of training examples from their gradients: which ones mattered."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.data import Dataset

from learnscope.model.data import InOrder, fixed_batches
from learnscope.model.examples.factored import gradient_products
from learnscope.model.examples.per_example import MAX_BYTES, Chunk, PerExample, per_example_gradients
from learnscope.task import Task, task_for
from learnscope.tensor.examples.products import all_products

Progress = Callable[[int, int], None]
"""Called with the number of examples done and the total."""


@dataclass(frozen=True, slots=True)
class Transition:
    """For each example, in the order of the data, on the CPU in float64.

    score = cosine · (loss_before − loss_after): large for an example whose loss fell much while its gradient kept its
    direction. NaN if it is not defined; `reasons` says why, by example.
    """

    score: Tensor
    cosine: Tensor
    loss_before: Tensor
    loss_after: Tensor
    reasons: dict[int, str]
    how: str


@dataclass(frozen=True, slots=True)
class Attribution:
    """A score for each training example (rows) and test example (columns), in float64 on the CPU; how: the method."""

    scores: Tensor
    how: str


def transition_scores(
    before: nn.Module, after: nn.Module, task: Task | None, data: Any, *, parameters: str | None = None,
    max_bytes: int = MAX_BYTES, progress: Progress | None = None,
) -> Transition:  # fmt: skip
    """Cosine of each example's gradients before and after, weighted by the decrease of its loss.

    `data` is anything that `fixed_batches` reads, or an `InOrder`, of which no batch is kept. Both models process the
    same chunk, so that only its gradients are held. If all parameters belong to linear layers that see one row per
    example, gradients are not computed at all (`how` is "factored"). The products are summed in float64.
    """
    if before is after:
        raise ValueError("before and after are the same object, so nothing lies between them: give a copy")
    batches = data if isinstance(data, InOrder) else fixed_batches(data, task)
    task = task or task_for(next(iter(batches)))
    pair = [PerExample(model, task, parameters=parameters, max_bytes=max_bytes // 2 or 1) for model in (before, after)]
    if pair[0].names != pair[1].names or pair[0].size != pair[1].size:
        raise ValueError(
            "the trainable parameters before and after differ: gradients of two architectures do not compare"
        )
    return _transition(pair, batches, progress)


def transition_since(
    model: nn.Module, previous: Mapping[str, Tensor], task: Task, batches: Sequence[Any], *,
    parameters: str | None = None, max_bytes: int = MAX_BYTES,
) -> Transition:  # fmt: skip
    """The same from the weights `previous`, by name, to the current ones of `model`, without a copy of the model.

    Both sides use its current buffers, such as the statistics of batch norm.
    """
    pair = [
        PerExample(model, task, parameters=parameters, max_bytes=max_bytes // 2 or 1, weights=weights)
        for weights in (previous, None)
    ]
    return _transition(pair, batches, None)


def _transition(pair: Sequence[PerExample], batches: Iterable[Any], progress: Progress | None) -> Transition:
    done, total = 0, 0 if progress is None else _examples_in(pair[0].task, batches)
    parts: list[Tensor] = []
    ways: dict[str, None] = {}
    for part, how in gradient_products(pair, batches):
        parts.append(part)
        ways |= dict.fromkeys(how)
        done += part.shape[1]
        if progress is not None:
            progress(done, max(done, total))
    first, dot, second, loss_before, loss_after = torch.cat(parts, 1)
    cosine = dot / (first.sqrt() * second.sqrt())
    undefined = {
        "its gradient before is zero": first == 0,
        "its gradient after is zero": second == 0,
        "its gradient is not finite": ~(first.isfinite() & second.isfinite()),
        "it has no target that counts, or a loss that is not finite": ~(loss_before.isfinite() & loss_after.isfinite()),
    }
    reasons = {int(i): reason for reason, where in undefined.items() for i in where.nonzero().flatten()}
    return Transition(cosine * (loss_before - loss_after), cosine, loss_before, loss_after, reasons, "; ".join(ways))


def _examples_in(task: Task, batches: Iterable[Any]) -> int:
    """The number of examples; 0 if it is only known after reading them."""
    if not isinstance(batches, InOrder):
        return sum(task.size(batch) for batch in batches)
    data = getattr(batches.data, "dataset", batches.data)
    return len(data) if isinstance(data, Dataset) and hasattr(data, "__len__") else 0


def tracin(
    checkpoints: Sequence[tuple[nn.Module, float]], task: Task | None, train: Any, test: Any, *,
    parameters: str | None = None, max_bytes: int = MAX_BYTES, progress: Progress | None = None,
) -> Attribution:  # fmt: skip
    """TracInCP (arXiv 2002.08484): Σ_t η_t ∇ℓ(w_t, z)·ḡ_t for each training z, ḡ_t the mean test gradient: [train, 1].

    `checkpoints` are models with their learning rate.
    """
    if not checkpoints:
        raise ValueError("no checkpoint is given: TracIn sums over at least one")
    train_batches, test_batches = fixed_batches(train, task), fixed_batches(test, task)
    task = task or task_for(train_batches[0])
    passes = Passes(task, train_batches, len(checkpoints), progress)
    options: dict[str, Any] = {"parameters": parameters, "max_bytes": max(1, max_bytes // 2)}
    total: Tensor | None = None
    for model, rate in checkpoints:
        mean = _mean_gradient(per_example_gradients(model, task, test_batches, **options))
        products = [
            all_products(chunk.gradients, mean.to(chunk.gradients.device)).cpu().double()
            for chunk in passes.follow(per_example_gradients(model, task, train_batches, **options))
        ]
        scores = rate * torch.cat(products)
        total = scores if total is None else total + scores
    assert total is not None
    return Attribution(total, "; ".join(passes.ways))


def _mean_gradient(chunks: Iterator[Chunk]) -> Tensor:
    """The mean gradient of test examples, [1, P]."""
    total: Tensor | None = None
    examples = 0
    for chunk in chunks:
        examples += len(chunk.losses)
        if chunk.losses.isnan().any():
            at = chunk.start + int(chunk.losses.isnan().nonzero()[0])
            raise ValueError(f"test example {at} has a loss of NaN (no target that counts?): leave it out of the mean")
        summed = chunk.gradients.sum(0, dtype=chunk.gradients.dtype)
        total = summed if total is None else total + summed
    assert total is not None
    return (total / examples)[None]


class Passes:
    """Reports the progress of several passes over batches, and collects how gradients were computed in `ways`."""

    def __init__(self, task: Task, batches: Sequence[Any], count: int, progress: Progress | None) -> None:
        self.done, self.total = 0, count * sum(task.size(batch) for batch in batches)
        self.progress = progress
        self.ways: dict[str, None] = {}

    def follow(self, chunks: Iterator[Chunk]) -> Iterator[Chunk]:
        for chunk in chunks:
            yield chunk
            self.ways[chunk.how] = None
            self.done += len(chunk.losses)
            if self.progress is not None:
                self.progress(self.done, self.total)
