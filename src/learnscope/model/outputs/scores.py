"""A variant of a model on fixed batches: how far its outputs are, and how right they are, also example by example."""

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
from learnscope.model.outputs.metrics import predicts_tokens
from learnscope.model.outputs.reference import Reference, reference_outputs
from learnscope.model.outputs.suffix import Suffix
from learnscope.task import Positions, Task, correct
from learnscope.task.batches import ID_KEYS, first_of
from learnscope.tensor.bootstrap import ratio_interval
from learnscope.tensor.outputs.divergence import Comparison, ReferenceRows, compare_logits, reference_rows, summarise

SWITCHABLE = "the model sets its own precision, in ways that are not known"


@dataclass(frozen=True, slots=True)
class Originals:
    """The model's own outputs on the batches, and what re-running only part of it needs."""

    batches: Sequence[Any]
    reference: list[Reference]
    right: list[Tensor | None]
    """Whether each position's prediction is its target; None where there are no classes."""
    rows: list[ReferenceRows | None]
    suffix: Suffix


def originals(model: nn.Module, task: Task, batches: Sequence[Any]) -> Originals:
    """One pass in eval mode that keeps the outputs, and those of the blocks on the way."""
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
    return correct(outputs.logits if outputs.rows is None else outputs.logits[outputs.rows], targets)


@torch.no_grad()
def score(model: nn.Module, task: Task, known: Originals, changed: Iterable[str]) -> dict[str, Any]:
    """The model as it is now, after the parameters of the names `changed` did: what `summary` says.

    Meant for use under the guard.
    """
    device = model_device(model)
    parts = []
    with known.suffix.after(changed):
        for n, (batch, own) in enumerate(zip(known.batches, known.reference, strict=True)):
            found = task.positions(model, task.to(batch, device))
            parts.append(_compared(model, task, own, known.right[n], found, task.size(batch), known.rows[n]))
    return {**summary(model, task, parts), "rerun": known.suffix.reason or "suffix"}


@torch.no_grad()
def score_original(model: nn.Module, task: Task, known: Originals) -> dict[str, Any]:
    """The model's own outputs beside themselves: exactly 0 apart."""
    all_of = zip(known.batches, known.reference, known.right, strict=True)
    parts = [_compared(model, task, own, right, own.outputs, task.size(batch)) for batch, own, right in all_of]
    return summary(model, task, parts)


@dataclass(frozen=True, slots=True)
class _Part:
    comparison: Comparison
    sums: dict[str, Tensor]
    classes: int | None
    regression: bool
    single: bool


def _compared(
    model: nn.Module, task: Task, own: Reference, right: Tensor | None, found: Positions, size: int,
    rows: ReferenceRows | None = None,
) -> _Part:  # fmt: skip
    comparison = compare_logits(
        own.outputs.logits, found.logits, own.outputs.targets,
        probabilities=not own.regression, rows=own.outputs.rows, facts=own.facts, known=rows,
    )  # fmt: skip
    example = own.outputs.example
    each = {"kl": comparison.kl, "mse": comparison.mse, "positions": torch.ones_like(comparison.mse)}
    targets, classes = own.outputs.targets, None
    if targets is not None:
        logits = found.logits if own.outputs.rows is None else found.logits[own.outputs.rows]
        each["loss"] = task.each_loss(model, logits, targets)
        if right is not None and comparison.broke is not None and comparison.mended is not None:
            # which the comparison has found out: those that were right and stayed so, and those that became so
            each["right"] = (right & ~comparison.broke) | comparison.mended
            classes = int(logits.shape[-1]) if logits.ndim > 1 else 1
    zero = torch.zeros(size, dtype=torch.float64, device=example.device)
    sums = {name: zero.index_add(0, example, values.detach().double()).cpu() for name, values in each.items()}
    return _Part(comparison, sums, classes, own.regression, own.outputs.logits[:1].numel() == 1)


def summary(model: nn.Module, task: Task, parts: Sequence[_Part]) -> dict[str, Any]:
    """Plain numbers over all positions, and sums by example under "sums".

    What `summarise` names, with `loss` (the mean over positions), `accuracy`, and what a reader must know of the
    outputs: `regression`, `single` (one number a position), `tokens` (the loss is the log of a perplexity).
    """
    found = {name: float(value) for name, value in summarise([part.comparison for part in parts]).items()}
    sums = {name: torch.cat([part.sums[name] for part in parts]) for name in parts[0].sums}
    positions = sums["positions"].sum()
    classes = parts[0].classes
    cross_entropy = type(task).losses is Task.losses
    return {
        **found,
        "loss": float(sums["loss"].sum() / positions) if "loss" in sums else None,
        "accuracy": float(sums["right"].sum() / positions) if "right" in sums else None,
        "positions": int(positions),
        "regression": parts[0].regression,
        "single": parts[0].single,
        "tokens": cross_entropy and classes is not None and predicts_tokens(model, classes),
        "sums": {name: values.tolist() for name, values in sums.items() if name != "right"},
    }


def interval(scores: Mapping[str, Any], name: str, less: Mapping[str, Any] | None = None) -> tuple[float, float]:
    """The 95 % interval of a mean over positions, or of its difference from another's, over the same examples."""
    values, positions = (torch.tensor(scores["sums"][key], dtype=torch.float64) for key in (name, "positions"))
    if less is not None:
        values = values - torch.tensor(less["sums"][name], dtype=torch.float64)
    return ratio_interval(values, positions)


@torch.no_grad()
def positions_of_examples(model: nn.Module, task: Task, batches: Sequence[Any]) -> list[int]:
    """How many positions of each example count: none of one that is all padding, or without a label."""
    found: list[int] = []
    with guard(model):
        for batch in batches:
            example = task.positions(model, task.to(batch, model_device(model))).example
            found += torch.bincount(example, minlength=task.size(batch)).tolist()
    return found


def halves(task: Task, batches: Sequence[Any], counts: Sequence[int] | None = None) -> tuple[list[Any], list[Any]]:
    """Every other example, and the others: one half to search on, one that the search has not seen.

    Examples of one id (parts of one document) go to the same half. A task that cuts batches in a way of its own has
    whole batches alternate. An example of which no position counts, as `counts` says, is in neither half. The second
    half is empty if there is only one example.
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
            if document not in side_of:
                side_of[document] = len(side_of) % 2
            parts[side_of[document]].append(batch if whole else cut(task, batch, place, place + 1))
            seen += 1
        for side, part in zip(sides, parts, strict=True):
            side.extend(joined(task, part, max_bytes=1 << 62) if part else [])
    return sides


def _documents(task: Task, batch: Any) -> list[Any] | None:
    """What says which document each example is of: numbers, or names."""
    try:
        ids = task.ids(batch)
    except TypeError:  # names, of which a task makes no numbers
        names = first_of(batch, ID_KEYS)
        return [str(name) for name in names] if len(names) == task.size(batch) else None
    return None if ids is None else [int(each) for each in ids.tolist()]
