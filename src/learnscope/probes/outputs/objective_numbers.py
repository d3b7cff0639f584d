"""From sums over the calls of a loss function to columns: numbers."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch

from learnscope.core.handed import LossCall
from learnscope.probes.outputs.objective_rows import NO_TARGET, Array, Sums, of_model, share, together
from learnscope.quantities.outputs import Objective as Q
from learnscope.record import Table

NO_FORM = "the best constant for this loss has no simple form"


def number_shares(calls: Sequence[LossCall], sums: Sequence[Sums], state: dict[str, Any]) -> list[Array]:
    """Count, mean and Σ(t − mean)² of the targets of each column so far."""
    width, given = calls[0].width, ("count", "mean", "squares")
    held = [np.asarray(state[name]) for name in given] if "count" in state else [np.zeros(width)] * 3
    if len(held[0]) != width:  # a model with outputs of any length
        held = [np.zeros(width)] * 3
    targets = merged([held, *([each[name] for name in given] for each in sums)])
    state |= {name: torch.from_numpy(values) for name, values in zip(given, targets, strict=True)}
    return targets


def number_tables(calls: Sequence[LossCall], sums: Sequence[Sums], so_far: Sequence[Array]) -> list[Table]:
    """Of mse_loss, l1_loss, smooth_l1_loss and huber_loss."""
    outputs = merged([list(each["outputs"][:3, None]) for each in sums])
    lost = together([each["outputs"][3:] for each in sums])
    mean, deviation, within = pooled(*so_far)
    output_mean, output_deviation, _ = pooled(*outputs)
    function = calls[0].function
    constant: float | str = NO_FORM
    if function == "mse_loss":
        constant = within
    elif function == "l1_loss":
        entries = [float(each["count"].sum()) for each in sums]
        constant = share(sum(float(e["deviation"][0]) * n for e, n in zip(sums, entries, strict=True)), sum(entries))
    columns = [
        Q.constant_loss.cells([constant]),
        Q.target_mean.cells([mean]), Q.target_std.cells([deviation]),
        Q.output_mean.cells([output_mean]), Q.output_std.cells([output_deviation]),
        Q.nonfinite_outputs.column([int(lost[0])]), Q.nonfinite_targets.column([int(lost[1])]),
        Q.broadcast.column([max(call.broadcast for call in calls)]),
    ]  # fmt: skip
    return of_model(columns)


def no_shares(_calls: Sequence[LossCall], _sums: Sequence[Sums], _state: dict[str, Any]) -> None:
    """Of −1 and 1, and of triplets, nothing is added up."""


def sign_tables(_calls: Sequence[LossCall], sums: Sequence[Sums], _so_far: None) -> list[Table]:
    """Of the losses that want −1 and 1."""
    targets, outside, below = together([each["signs"] for each in sums]).tolist()
    return of_model([
        Q.targets_out_of_range.cells([share(outside, targets)]), Q.negative_targets.cells([share(below, targets)])
    ])  # fmt: skip


def triplet_tables(_calls: Sequence[LossCall], sums: Sequence[Sums], _so_far: None) -> list[Table]:
    """Of an anchor, what is near it and what is far; outputs that are all the same have a loss of the margin."""
    triplets, right, _ = together([each["triplets"] for each in sums]).tolist()
    margin = float(sums[-1]["triplets"][2])
    return of_model([Q.objective_accuracy.cells([share(right, triplets)]), Q.constant_loss.column([margin])])


def merged(parts: Sequence[Sequence[Array]]) -> list[Array]:
    """Count, mean and Σ(x − mean)² of several parts together (Chan, Golub and LeVeque 1979)."""
    count, mean, squares = (np.asarray(values, np.float64) for values in parts[0])
    for more, other, spread in parts[1:]:
        total = count + more
        with np.errstate(invalid="ignore"):
            apart, weight = other - mean, np.where(total > 0, more / np.maximum(total, 1), 0.0)
        squares = squares + spread + apart**2 * count * weight
        count, mean = total, mean + apart * weight
    return [count, mean, squares]


def pooled(count: Array, mean: Array, squares: Array) -> tuple[float | str, float | str, float | str]:
    """Mean and population deviation over all columns, and the mean variance within them."""
    total = float(count.sum())
    if not total:
        return NO_TARGET, NO_TARGET, NO_TARGET
    middle = float((count * mean).sum() / total)
    within = float(squares.sum() / total)
    between = float((count * (mean - middle) ** 2).sum() / total)
    return middle, math.sqrt(within + between), within
