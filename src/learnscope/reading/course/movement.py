"""How far steps move the weights, at which learning rate, and what that can do to the loss."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from learnscope.quantities.gradients import GradientFlow
from learnscope.quantities.updates import LearningRate, ParameterChange
from learnscope.reading.gather import Floats, Grid, Series, grid, labels_of, one_pass, series
from learnscope.store.reader import RunReader

Ints = NDArray[np.int64]
ADAPTIVE = ("adam", "rmsprop", "adagrad", "adadelta", "adafactor", "rprop", "lion", "lamb", "sophia", "shampoo")
"""Parts of the names of optimizers whose step does not grow with the scale of the gradient."""


@dataclass(frozen=True)
class Moves:
    """What each measured change of the weights spans, and how large it was."""

    steps: Ints
    """The last step of each change."""
    lengths: Floats
    """Steps in it."""
    ratio: Floats
    """‖Δ‖/‖W‖ of the whole model."""
    norm: Floats
    """‖Δ‖"""
    probe: str

    @property
    def per_step(self) -> Floats:
        """‖Δ‖/‖W‖ of a step, if all went the same way: at most this far without going back."""
        ratio: Floats = self.ratio / self.lengths
        return ratio

    @property
    def weights(self) -> Floats:
        """‖W‖ before each change; NaN where nothing moved."""
        moved = (self.ratio > 0) & (self.norm > 0)
        return np.where(moved, self.norm / np.where(moved, self.ratio, 1.0), np.nan)

    def until(self, step: int) -> Moves:
        n = int(np.searchsorted(self.steps, step, "right"))
        parts = {name: getattr(self, name)[:n] for name in ("steps", "lengths", "ratio", "norm")}
        return replace(self, **parts)

    def __len__(self) -> int:
        return len(self.steps)


def moves_of(reader: RunReader) -> Moves | None:
    """None if no finite change of the whole model was recorded."""
    run = one_pass(reader)
    return run.remember("moves", lambda: _moves(run))


def _moves(reader: RunReader) -> Moves | None:
    ratios = series(reader, ParameterChange.update_to_weight).finite
    norms = series(reader, ParameterChange.l2).finite
    steps, ours, theirs = np.intersect1d(ratios.steps, norms.steps, return_indices=True)
    if not len(steps):
        return None
    columns = reader.columns()
    spans: dict[int, Any] = {}
    for label in labels_of(reader, ParameterChange):
        spans |= {step: span for step, span in columns.notes(label, "span") if span}
    before = np.concatenate([[0], steps[:-1]])
    first = [
        spans[step][0] if step in spans else int(earlier) for step, earlier in zip(steps.tolist(), before, strict=True)
    ]
    lengths = np.maximum(steps - np.array(first), 1).astype(np.float64)
    return Moves(steps, lengths, ratios.values[ours], norms.values[theirs], ratios.probe)


def rates_of_groups(reader: RunReader) -> Grid:
    """The learning rate of every group of the optimizers at every measured step."""
    return grid(reader, LearningRate.learning_rate, kind="group")


def highest_rates(reader: RunReader) -> Series:
    """The highest learning rate of any group, at each measured step."""
    rates = rates_of_groups(reader)
    if not rates:
        return Series(rates.steps, np.zeros(0), [], rates.probe)
    known = np.isfinite(rates.values).any(axis=1)
    highest = np.where(np.isfinite(rates.values), rates.values, -np.inf)[known].max(axis=1)
    return Series(rates.steps[known], highest, [None] * int(known.sum()), rates.probe)


def gradient_norms(reader: RunReader, *, clipped: bool = True) -> Series:
    """‖g‖ of the whole model as the optimizer was given it, or before it was clipped."""
    stepped = series(reader, GradientFlow.norm, stage="stepped").finite
    if clipped:
        return stepped
    before = series(reader, GradientFlow.norm, stage="before_clip").finite
    rest = ~np.isin(stepped.steps, before.steps)
    steps = np.concatenate([before.steps, stepped.steps[rest]])
    values = np.concatenate([before.values, stepped.values[rest]])
    order = np.argsort(steps, kind="stable")
    return Series(steps[order], values[order], [None] * len(steps), stepped.probe)


@dataclass(frozen=True)
class Reach:
    """What the measured steps could do to the loss, to first order: |Δ·g| ≤ ‖Δ‖‖g‖."""

    steps: Ints
    change: Floats
    """‖Δ‖‖g‖ of one step."""
    elasticity: Floats
    """‖g‖‖W‖: by how much the loss changes at most, in units of a relative change of the weights."""
    lengths: Floats
    norm: Floats
    """‖g‖"""

    @property
    def total(self) -> float:
        """Of all steps between the first and the last measurement together."""
        return float((self.change * self.lengths).sum())


def reach_of(reader: RunReader) -> Reach | None:
    """Each measured change beside the gradient measured nearest to its end; None if either is missing."""
    moves, norms = moves_of(reader), gradient_norms(reader, clipped=False)
    if moves is None or not len(norms):
        return None
    after = np.clip(np.searchsorted(norms.steps, moves.steps), 1, len(norms) - 1) if len(norms) > 1 else None
    if after is None:
        near = np.zeros(len(moves), np.int64)
    else:
        below = moves.steps - norms.steps[after - 1] <= norms.steps[after] - moves.steps
        near = np.where(below, after - 1, after)
    gradient = norms.values[near]
    weights = np.nan_to_num(moves.weights, nan=0.0)
    return Reach(moves.steps, moves.norm / moves.lengths * gradient, gradient * weights, moves.lengths, gradient)


def optimizers_of(reader: RunReader) -> list[Mapping[str, Any]]:
    """As the run began with them: class and options of every group."""
    return list(reader.manifest.get("optimizers") or [])


def adaptive(reader: RunReader) -> bool:
    """Whether every optimizer divides the gradient by its own size."""
    names = [str(optimizer.get("class", "")).lower() for optimizer in optimizers_of(reader)]
    return bool(names) and all(any(part in name for part in ADAPTIVE) for name in names)


def options_of(reader: RunReader, name: str) -> list[Any]:
    """An option of every group that has it, as the run began."""
    groups = [group for optimizer in optimizers_of(reader) for group in optimizer.get("groups") or []]
    return [group[name] for group in groups if group.get(name) is not None]
