"""A variant of a model on fixed batches: how far its outputs are off and how accurate they are, also per example."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from learnscope.intervals import MeanInterval, ratio_interval
from learnscope.model.bits.quantise import is_switchable
from learnscope.model.collector import no_collection
from learnscope.model.data import joined
from learnscope.model.guard import guard
from learnscope.model.outputs.activations import FusedActivations
from learnscope.model.outputs.evaluate import model_device
from learnscope.model.outputs.outcomes import exact_losses, is_cross_entropy, predicts_tokens, with_target
from learnscope.model.outputs.reference import Reference, reference_outputs
from learnscope.model.outputs.repeated import Change, NotTogether
from learnscope.model.outputs.suffix import Suffix
from learnscope.model.weights.swap import named_parameters, swapped
from learnscope.task import Positions, Task, correct
from learnscope.tensor.outputs.divergence import Comparison, far_quantile, reference_rows, summarise

SWITCHABLE = "the model sets its own precision, in ways that are not known"
TOGETHER_ROWS = 2048
"""Positions of a pass from which on a larger batch takes no less time for each, on the CPUs that were tried."""
MOST_TOGETHER = 8
LARGEST_LOGITS = 1 << 28
"""Bytes of the logits of a pass over several variants, at most."""
ROUNDING = 1e-3
"""Share of the largest output by which passes over batches of other sizes may differ, in half precision too."""
_Compared = tuple[Comparison, dict[str, Tensor]]


@dataclass(frozen=True, slots=True)
class Baseline:
    """The model's own outputs on the batches, and what re-running only part of it needs."""

    batches: Sequence[Any]
    reference: list[Reference]
    right: list[Tensor | None]
    """Whether each position's prediction is correct; None if there are no classes."""
    suffix: Suffix
    activations: FusedActivations = field(default_factory=FusedActivations)
    """Lent to the model for the pass that these are the outputs of, and for those of its variants."""

    @property
    def nbytes(self) -> int:
        """Of the outputs."""
        return sum(reference.outputs.logits.nbytes for reference in self.reference)


def originals(model: nn.Module, task: Task, batches: Sequence[Any]) -> Baseline:
    """One pass in eval mode that keeps the model's outputs and those of its blocks."""
    if not batches:
        raise ValueError("there are no batches to compare outputs on: give labelled data")
    suffix, activations = Suffix(model), FusedActivations.of(model)
    if is_switchable(model):
        suffix.reason = SWITCHABLE
    with torch.no_grad(), guard(model), activations.lent():
        reference = suffix.record(lambda batch: reference_outputs(model, task, [batch])[0], batches)
        first = task.to(batches[0], model_device(model))
        suffix.check(lambda: task.positions(model, first).logits, reference[0].outputs.logits)
    right = []
    for place, original in enumerate(reference):
        out, targets, regression = original.outputs, original.outputs.targets, original.regression
        right.append(None if targets is None or regression else correct(with_target(out.logits, out.rows), targets))
        if original.facts is None and not regression:
            reference[place] = replace(original, facts=reference_rows(out.logits, out.rows))
    return Baseline(batches, reference, right, suffix, activations)


@torch.no_grad()
def score(model: nn.Module, task: Task, base: Baseline, changed: Iterable[str]) -> dict[str, Any]:
    """The `summary` of the model as it is now, under the guard; `changed` names the parameters that changed."""
    device = model_device(model)
    with base.activations.lent(), base.suffix.after(changed):
        logits = (task.positions(model, task.to(batch, device)).logits for batch in base.batches)
        return {**summary(model, task, base, logits), "rerun": base.suffix.reason or "suffix"}


def room_for(base: Baseline) -> int:
    """How many variants are run as one batch: as long as passes of this many rows take less time for each of them."""
    largest = max(base.reference, key=lambda reference: reference.outputs.logits.numel()).outputs.logits
    by_memory = LARGEST_LOGITS // max(1, largest.nbytes)
    return int(max(1, min(MOST_TOGETHER, TOGETHER_ROWS // max(1, len(largest)), by_memory)))


@torch.no_grad()
def score_together(
    model: nn.Module, task: Task, base: Baseline, changes: Sequence[Change]
) -> list[dict[str, Any]] | None:
    """What `score` says of the model with each of these changes, which are in one block, up to the rounding of passes
    over larger batches; None if they cannot be run together, and `base.suffix.apart` says why. For use under the guard.
    """
    suffix, copies = base.suffix, len(changes)
    if suffix.apart is not None:
        return None
    device, sizes = model_device(model), [task.size(batch) for batch in base.batches]
    parts: list[list[_Compared]] = [[] for _ in changes]
    try:
        if not suffix.is_known():
            _check_apart(model, task, base, sizes)
        with base.activations.lent(), suffix.together(changes, sizes):
            for place, batch in enumerate(base.batches):
                with no_collection():  # nearly all that a pass makes is gone after it
                    original, own = base.reference[place].outputs, task.to(batch, device)
                    for n, logits in enumerate(_positions_of_copies(model, task, own, original, copies)):
                        parts[n].append(_compared(model, task, base, place, logits))
    except (RuntimeError, ValueError, TypeError, LookupError, AttributeError) as error:
        # written for one batch size, or too large for the memory: it is run one by one, where an error is raised
        suffix.apart = f"{type(error).__name__}: {error}"
        return None
    return [{**_summed(model, task, base, of_change), "rerun": "suffix"} for of_change in parts]


def _positions_of_copies(
    model: nn.Module, task: Task, batch: Any, original: Positions, copies: int
) -> tuple[Tensor, ...]:
    """The logits of each copy of a repeated batch."""
    repeated = list(joined(task, [batch] * copies))
    if len(repeated) != 1:
        raise NotTogether("its batches hold values that are not one an example")
    out = task.positions(model, repeated[0])
    numbers = [original.example + number * task.size(batch) for number in range(copies)]
    if out.logits.shape[1:] != original.logits.shape[1:] or not torch.equal(out.example, torch.cat(numbers)):
        raise NotTogether("a repeated batch has other positions than the batch itself")
    return out.logits.chunk(copies)


def _check_apart(model: nn.Module, task: Task, base: Baseline, sizes: Sequence[int]) -> None:
    """Test on the first batch that the examples of a batch do not depend on each other: beside a copy with other
    weights, which runs in all blocks, a copy with its own must have the outputs that it has alone."""
    names = base.suffix.names_in(0)
    parameters = named_parameters(model, names)
    other = {name: -parameter.detach() for name, parameter in parameters.items()}
    changes = [Change(names, nullcontext), Change(names, lambda: swapped(model, other))]
    original = base.reference[0].outputs
    batch = task.to(base.batches[0], model_device(model))
    with base.activations.lent(), base.suffix.together(changes, sizes):
        alone, _ = _positions_of_copies(model, task, batch, original, 2)
    error, size = (alone - original.logits).abs().amax(), original.logits.abs().amax()
    if not float(error) <= ROUNDING * float(size):
        raise NotTogether("its outputs for an example depend on the others of the batch")
    base.suffix.trust()


@torch.no_grad()
def score_original(model: nn.Module, task: Task, base: Baseline) -> dict[str, Any]:
    """The model's own outputs compared with themselves: the distance is exactly 0."""
    return summary(model, task, base, (reference.outputs.logits for reference in base.reference))


def summary(model: nn.Module, task: Task, base: Baseline, variant: Iterable[Tensor]) -> dict[str, Any]:
    """Plain numbers over all positions of a variant's logits for each batch, and sums per example under "sums".

    The names of `summarise`, with `loss` (the mean over positions), `accuracy`, and the kind of the outputs:
    `regression`, `single` (one number per position), `tokens` (the loss is the log of a perplexity).
    """
    return _summed(model, task, base, [_compared(model, task, base, n, outputs) for n, outputs in enumerate(variant)])


def _summed(model: nn.Module, task: Task, base: Baseline, parts: Sequence[_Compared]) -> dict[str, Any]:
    sums = {name: torch.cat([part[name] for _, part in parts]) for name in parts[0][1]}
    positions = sums["positions"].sum()
    first = base.reference[0]
    logits = first.outputs.logits
    classes = int(logits.shape[-1]) if logits.ndim > 1 else 1
    return {
        **{name: float(value) for name, value in summarise([comparison for comparison, _ in parts]).items()},
        "kl_p999": float(far_quantile([comparison for comparison, _ in parts])),
        "loss": float(sums["loss"].sum() / positions) if "loss" in sums else None,
        "accuracy": float(sums["right"].sum() / positions) if "right" in sums else None,
        "positions": int(positions),
        "regression": first.regression,
        "single": logits[:1].numel() == 1,
        "tokens": is_cross_entropy(task) and "right" in sums and predicts_tokens(model, classes),
        "sums": {name: values.tolist() for name, values in sums.items()},
    }


def _compared(model: nn.Module, task: Task, base: Baseline, place: int, logits: Tensor) -> _Compared:
    """A variant's logits for a batch beside the original ones, and sums per example."""
    original, right = base.reference[place].outputs, base.right[place]
    comparison = base.reference[place].compare(logits)
    by_position = {"kl": comparison.kl, "mse": comparison.mse, "positions": torch.ones_like(comparison.mse)}
    if original.targets is not None:
        by_position["loss"] = exact_losses(model, task, original, logits, comparison.log_total)
    if right is not None and comparison.broke is not None and comparison.mended is not None:
        # correct now: what was correct and stayed so, and what became so
        by_position["right"] = (right & ~comparison.broke) | comparison.mended
    zero = torch.zeros(task.size(base.batches[place]), dtype=torch.float64, device=original.example.device)
    example, values = original.example, by_position.items()
    return comparison, {name: zero.index_add(0, example, value.detach().double()).cpu() for name, value in values}


def interval(scores: Mapping[str, Any], name: str, less: Mapping[str, Any] | None = None) -> MeanInterval:
    """95 % confidence interval of a mean over positions, or of its difference from `less` on the same examples."""
    values = np.array(scores["sums"][name])
    if less is not None:
        values = values - np.array(less["sums"][name])
    return ratio_interval(values, scores["sums"]["positions"])


def on_part(scores: Mapping[str, Any], places: Sequence[int]) -> dict[str, Any]:
    """The means and sums of the examples at these places, from the sums of all: what running them alone would give.

    Quantiles and shares of positions are not among them.
    """
    sums = {name: [values[place] for place in places] for name, values in scores["sums"].items()}
    positions = math.fsum(sums["positions"])
    means: dict[str, float | None] = {
        name: math.fsum(values) / positions for name, values in sums.items() if name != "positions"
    }
    means["accuracy"] = means.pop("right", None)
    kinds = {name: scores[name] for name in ("regression", "single", "tokens", "rerun") if name in scores}
    return {**kinds, **means, "positions": int(positions), "sums": sums}
