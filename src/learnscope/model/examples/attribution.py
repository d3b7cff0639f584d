"""Scores of training examples from their gradients: which ones mattered."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.data import Dataset

from learnscope.model.batches import joined
from learnscope.model.data import InOrder, fixed_batches
from learnscope.model.examples.factored import agree, factors
from learnscope.model.examples.per_example import MAX_BYTES, PerExample, per_example_gradients
from learnscope.task import Task, task_for
from learnscope.tensor.examples.products import all_products, row_products

Weights = nn.Module | Mapping[str, Tensor]
"""A model, or the state dict of one."""
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
    before: Weights, after: Weights, task: Task | None, data: Any, *, model: nn.Module | None = None,
    parameters: str | None = None, max_bytes: int = MAX_BYTES, progress: Progress | None = None,
) -> Transition:  # fmt: skip
    """Cosine of each example's gradients before and after, weighted by the decrease of its loss.

    `before` and `after` are models, or state dicts of `model`. `data` is anything that `fixed_batches` reads, or an
    `InOrder`, of which no batch is kept. Both sets of weights process the same chunk, so that only its gradients are
    held. If all parameters belong to linear layers that see one row per example, gradients are not computed at all
    (`how` is "factored"). The products are summed in float64.
    """
    if before is after:
        raise ValueError(
            "before and after are the same object, so nothing lies between them: give a copy, or state dicts"
        )
    batches = data if isinstance(data, InOrder) else fixed_batches(data, task)
    task = task or task_for(next(iter(batches)), model)
    pair = [
        PerExample(as_model(weights, model), task, parameters=parameters, max_bytes=max_bytes // 2 or 1)
        for weights in (before, after)
    ]
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
    return _transition(pair, batches)


def _examples_in(task: Task, batches: Iterable[Any]) -> int:
    """The number of examples; 0 if it is only known after reading them."""
    if not isinstance(batches, InOrder):
        return sum(task.size(batch) for batch in batches)
    data = getattr(batches.data, "dataset", batches.data)
    return len(data) if isinstance(data, Dataset) and hasattr(data, "__len__") else 0


def _transition(pair: Sequence[PerExample], batches: Iterable[Any], progress: Progress | None = None) -> Transition:
    done, total = 0, 0 if progress is None else _examples_in(pair[0].task, batches)
    parts: list[Tensor] = []
    ways: list[str] = []
    for part, how in _compared(pair, batches):
        parts.append(part)
        ways = list(dict.fromkeys([*ways, *how]))
        done += part.shape[1]
        if progress is not None:
            progress(done, max(done, total))
    dot, first, second, loss_before, loss_after = torch.cat(parts, 1)
    cosine = dot / (first.sqrt() * second.sqrt())
    reasons = _reasons(first, second, loss_before, loss_after)
    return Transition(cosine * (loss_before - loss_after), cosine, loss_before, loss_after, reasons, "; ".join(ways))


def _compared(pair: Sequence[PerExample], batches: Iterable[Any]) -> Iterator[tuple[Tensor, list[str]]]:
    """Chunk by chunk [5, k]: the product, both squared norms, both losses; and how they were computed."""
    factored: bool | None = None  # until it is tested whether factors give the right products
    for batch in joined(pair[0].task, batches, pair[0].max_bytes):
        for large in pair[0].parts(batch, rows=False):
            if factored is None:
                answers = [agree(per_example, large) for per_example in pair]
                factored = False if False in answers else True if None not in answers else None
            both = [factors(per_example, large) if factored else None for per_example in pair]
            if both[0] is not None and both[1] is not None:
                before, after = both[0], both[1]
                yield (
                    _stacked(before.dot(after), before.dot(before), after.dot(after), before.losses, after.losses),
                    ["factored"],
                )
                continue
            for part in pair[0].parts(large):
                (rows, loss), (others, other_loss) = pair[0](part), pair[1](part)
                products = row_products(rows, others), row_products(rows, rows), row_products(others, others)
                yield _stacked(*products, loss, other_loss), [pair[0].how, pair[1].how]


def _stacked(*columns: Tensor) -> Tensor:
    return torch.stack([column.detach().cpu().double() for column in columns])


def _reasons(first: Tensor, second: Tensor, loss_before: Tensor, loss_after: Tensor) -> dict[int, str]:
    undefined = {
        "its gradient before is zero": first == 0,
        "its gradient after is zero": second == 0,
        "its gradient is not finite": ~(first.isfinite() & second.isfinite()),
        "it has no target that counts, or a loss that is not finite": ~(loss_before.isfinite() & loss_after.isfinite()),
    }
    return {int(i): reason for reason, where in undefined.items() for i in where.nonzero().flatten()}


def tracin(
    checkpoints: Sequence[tuple[Weights, float]], task: Task | None, train: Any, test: Any, *,
    model: nn.Module | None = None, mean: bool = False, parameters: str | None = None, max_bytes: int = MAX_BYTES,
    progress: Progress | None = None,
) -> Attribution:  # fmt: skip
    """TracInCP (arXiv 2002.08484): Σ_t η_t ∇ℓ(w_t, z)·∇ℓ(w_t, z′) for each training z and test z′, [train, test].

    `checkpoints` are weights with their learning rate. With `mean`, the scores are for the mean test gradient:
    [train, 1]. If the test gradients do not fit into half of `max_bytes`, there are several rounds over `train`.
    """
    if not checkpoints:
        raise ValueError("no checkpoint is given: TracIn sums over at least one")
    train_batches, test_batches = fixed_batches(train, task), fixed_batches(test, task)
    task = task or task_for(train_batches[0], model)
    count = Counter(task, train_batches, len(checkpoints), progress)
    half = max(1, max_bytes // 2)
    total: Tensor | None = None
    ways: list[str] = []
    for weights, rate in checkpoints:
        network = as_model(weights, model)
        columns = [
            gradient_dots(network, task, train_batches, block, parameters, half, count, ways)
            for block in _test_rows(network, task, test_batches, mean, parameters, half)
        ]
        scores = rate * torch.cat(columns, 1)
        total = scores if total is None else total + scores
    assert total is not None
    return Attribution(total, "; ".join(ways))


def gradient_dots(
    model: nn.Module, task: Task, batches: Sequence[Any], vectors: Tensor, parameters: str | None = None,
    max_bytes: int = MAX_BYTES, count: Counter | None = None, ways: list[str] | None = None,
) -> Tensor:  # fmt: skip
    """Dot products of each example's gradient with `vectors` [m, P]: [n, m] in float64 on the CPU; none is kept."""
    products: list[Tensor] = []
    for chunk in per_example_gradients(model, task, batches, parameters=parameters, max_bytes=max_bytes):
        products.append(all_products(chunk.gradients, vectors.to(chunk.gradients.device)).cpu().double())
        if ways is not None and chunk.how not in ways:
            ways.append(chunk.how)
        if count is not None:
            count.add(len(chunk.losses))
    return torch.cat(products)


class Counter:
    """Examples done, over all rounds; a round more than planned raises the total."""

    def __init__(self, task: Task, batches: Sequence[Any], rounds: int, progress: Progress | None) -> None:
        self.round = sum(task.size(batch) for batch in batches)
        self.done, self.total, self.progress = 0, rounds * self.round, progress

    def add(self, examples: int) -> None:
        self.done += examples
        while self.done > self.total:
            self.total += self.round
        if self.progress is not None:
            self.progress(self.done, self.total)


def _test_rows(
    model: nn.Module, task: Task, batches: Sequence[Any], mean: bool, parameters: str | None, max_bytes: int
) -> Iterator[Tensor]:
    """Test gradients in blocks that fit `max_bytes`, or their mean."""
    block: list[Tensor] = []
    block_bytes = examples = 0
    total: Tensor | None = None
    for chunk in per_example_gradients(model, task, batches, parameters=parameters, max_bytes=max_bytes):
        examples += len(chunk.losses)
        if mean:
            if chunk.losses.isnan().any():
                at = chunk.start + int(chunk.losses.isnan().nonzero()[0])
                raise ValueError(
                    f"test example {at} has a loss of NaN (no target that counts?): leave it out of the mean"
                )
            summed = chunk.gradients.sum(0, dtype=chunk.gradients.dtype)
            total = summed if total is None else total + summed
            continue
        size = chunk.gradients.numel() * chunk.gradients.element_size()
        if block and block_bytes + size > max_bytes:
            yield torch.cat(block)
            block, block_bytes = [], 0
        block.append(chunk.gradients)
        block_bytes += size
    if total is not None:
        yield (total / examples)[None]
    if block:
        yield torch.cat(block)


def as_model(weights: Weights, model: nn.Module | None) -> nn.Module:
    """The model itself, or a copy of `model` with the weights of a state dict."""
    if isinstance(weights, nn.Module):
        return weights
    if model is None:
        raise ValueError("a state dict is given without the model that it belongs to: give model=")
    network = copy.deepcopy(model)
    network.load_state_dict(weights)
    return network
