"""A variant of a model on fixed batches: how far its outputs are off and how accurate they are, also per example."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from learnscope.model.batches import cut, joined
from learnscope.model.bits.switchable import is_switchable
from learnscope.model.guard import guard
from learnscope.model.outputs.evaluate import model_device
from learnscope.model.outputs.metrics import counted, predicts_tokens
from learnscope.model.outputs.reference import Reference, reference_outputs
from learnscope.model.outputs.suffix import Suffix
from learnscope.task import Positions, Task, correct
from learnscope.task.batches import ID_KEYS, first_of
from learnscope.tensor.bootstrap import ratio_interval
from learnscope.tensor.outputs.divergence import Comparison, ReferenceRows, reference_rows, summarise

SWITCHABLE = "the model sets its own precision, in ways that are not known"


@dataclass(frozen=True, slots=True)
class Originals:
    """The model's own outputs on the batches, and what is needed to re-run only part of it."""

    batches: Sequence[Any]
    reference: list[Reference]
    right: list[Tensor | None]
    """Whether each position's prediction is correct; None if there are no classes."""
    rows: list[ReferenceRows | None]
    suffix: Suffix


def originals(model: nn.Module, task: Task, batches: Sequence[Any]) -> Originals:
    """One pass in eval mode that keeps the model's outputs and those of its blocks."""
    if not batches:
        raise ValueError("there are no batches to compare outputs on: give labelled data")
    suffix = Suffix(model)
    if is_switchable(model):
        suffix.reason = SWITCHABLE
    device = model_device(model)
    with torch.no_grad(), guard(model):
        reference = suffix.record(lambda batch: reference_outputs(model, task, [batch])[0], batches)
        first = task.to(batches[0], device)
        suffix.check(lambda: task.positions(model, first).logits, reference[0].outputs.logits)
    kept = [
        None if own.regression or own.facts is not None else reference_rows(own.outputs.logits, own.outputs.rows)
        for own in reference
    ]
    return Originals(batches, reference, [_right(own.outputs) for own in reference], kept, suffix)


def _right(outputs: Positions) -> Tensor | None:
    targets = outputs.targets
    if targets is None or targets.is_floating_point():
        return None
    return correct(counted(outputs.logits, outputs.rows), targets)


@torch.no_grad()
def score(model: nn.Module, task: Task, known: Originals, changed: Iterable[str]) -> dict[str, Any]:
    """The `summary` of the model as it is now, given the names of the parameters that changed.

    For use under the guard.
    """
    device = model_device(model)
    parts = []
    with known.suffix.after(changed):
        for n, (batch, own) in enumerate(zip(known.batches, known.reference, strict=True)):
            logits = task.positions(model, task.to(batch, device)).logits
            parts.append(_compared(model, task, own, known.right[n], logits, task.size(batch), known.rows[n]))
    return {**summary(model, task, parts), "rerun": known.suffix.reason or "suffix"}


@torch.no_grad()
def score_original(model: nn.Module, task: Task, known: Originals) -> dict[str, Any]:
    """The model's own outputs compared with themselves: the distance is exactly 0."""
    triples = zip(known.batches, known.reference, known.right, strict=True)
    parts = [_compared(model, task, own, right, own.outputs.logits, task.size(batch)) for batch, own, right in triples]
    return summary(model, task, parts)


@dataclass(frozen=True, slots=True)
class _Part:
    comparison: Comparison
    sums: dict[str, Tensor]
    classes: int | None
    regression: bool
    single: bool


def _compared(
    model: nn.Module, task: Task, own: Reference, right: Tensor | None, logits: Tensor, size: int,
    rows: ReferenceRows | None = None,
) -> _Part:  # fmt: skip
    comparison = own.compare(logits, rows)
    example = own.outputs.example
    each = {"kl": comparison.kl, "mse": comparison.mse, "positions": torch.ones_like(comparison.mse)}
    targets, classes = own.outputs.targets, None
    if targets is not None:
        logits = counted(logits, own.outputs.rows)
        each["loss"] = task.each_loss(model, logits, targets)
        if right is not None and comparison.broke is not None and comparison.mended is not None:
            # correct now: what was correct and stayed so, and what became so
            each["right"] = (right & ~comparison.broke) | comparison.mended
            classes = int(logits.shape[-1]) if logits.ndim > 1 else 1
    zero = torch.zeros(size, dtype=torch.float64, device=example.device)
    sums = {name: zero.index_add(0, example, values.detach().double()).cpu() for name, values in each.items()}
    return _Part(comparison, sums, classes, own.regression, own.outputs.logits[:1].numel() == 1)


def summary(model: nn.Module, task: Task, parts: Sequence[_Part]) -> dict[str, Any]:
    """Plain numbers over all positions, and sums per example under "sums".

    The names of `summarise`, with `loss` (the mean over positions), `accuracy`, and the kind of the outputs:
    `regression`, `single` (one number per position), `tokens` (the loss is the log of a perplexity).
    """
    distances = {name: float(value) for name, value in summarise([part.comparison for part in parts]).items()}
    sums = {name: torch.cat([part.sums[name] for part in parts]) for name in parts[0].sums}
    positions = sums["positions"].sum()
    classes = parts[0].classes
    cross_entropy = type(task).losses is Task.losses
    return {
        **distances,
        "loss": float(sums["loss"].sum() / positions) if "loss" in sums else None,
        "accuracy": float(sums["right"].sum() / positions) if "right" in sums else None,
        "positions": int(positions),
        "regression": parts[0].regression,
        "single": parts[0].single,
        "tokens": cross_entropy and classes is not None and predicts_tokens(model, classes),
        "sums": {name: values.tolist() for name, values in sums.items() if name != "right"},
    }


def interval(scores: Mapping[str, Any], name: str, less: Mapping[str, Any] | None = None) -> tuple[float, float]:
    """95 % confidence interval of a mean over positions, or of its difference from `less` on the same examples."""
    values, positions = (torch.tensor(scores["sums"][key], dtype=torch.float64) for key in (name, "positions"))
    if less is not None:
        values = values - torch.tensor(less["sums"][name], dtype=torch.float64)
    return ratio_interval(values, positions)


@torch.no_grad()
def positions_of_examples(model: nn.Module, task: Task, batches: Sequence[Any]) -> list[int]:
    """Number of positions with a target of each example: 0 for one that is all padding or has no label."""
    counts: list[int] = []
    with guard(model):
        for batch in batches:
            example = task.positions(model, task.to(batch, model_device(model))).example
            counts += torch.bincount(example, minlength=task.size(batch)).tolist()
    return counts


def halves(task: Task, batches: Sequence[Any], counts: Sequence[int] | None = None) -> tuple[list[Any], list[Any]]:
    """Split the examples alternately into two halves: one to search on, one that the search has not seen.

    Examples with the same id (parts of one document) go to the same half. If the task has its own `take()`, whole
    batches alternate. An example without a position that counts, according to `counts`, is in neither half. With only
    one example the second half is empty.
    """
    sides: tuple[list[Any], list[Any]] = ([], [])
    side_of: dict[Any, int] = {}
    seen = first = 0
    for batch in batches:
        whole = type(task).take is not Task.take
        ids = None if whole else _documents(task, batch)
        parts: tuple[list[Any], list[Any]] = ([], [])
        own = None if counts is None else counts[first : first + task.size(batch)]
        first += task.size(batch)
        for place in range(1 if whole else task.size(batch)):
            if own is not None and not (any(own) if whole else own[place]):
                continue
            document = ("number", seen) if ids is None else ("id", ids[place])
            side = side_of.setdefault(document, len(side_of) % 2)
            parts[side].append(batch if whole else cut(task, batch, place, place + 1))
            seen += 1
        for half, part in zip(sides, parts, strict=True):
            half.extend(joined(task, part, max_bytes=1 << 62) if part else [])
    return sides


def _documents(task: Task, batch: Any) -> list[Any] | None:
    """The id of each example's document: numbers, or names."""
    try:
        ids = task.ids(batch)
    except TypeError:  # names, which the task cannot turn into numbers
        names = first_of(batch, ID_KEYS)
        return [str(name) for name in names] if len(names) == task.size(batch) else None
    return None if ids is None else [int(each) for each in ids.tolist()]
