"""How heavy the tails of the weights and of their updates are."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from learnscope.core.moment import Moment
from learnscope.core.probe import Probe, Schedule
from learnscope.model.weights.rounded import as_they_were, precision_note
from learnscope.quantities import Quantity
from learnscope.quantities.weights import WeightKurtosis as Q
from learnscope.record import Column, Measurement, Table
from learnscope.tensor.features.distribution import CHUNK, Distribution


class WeightKurtosis(Probe):
    """Excess kurtosis of the entries of each layer's matrices W and of their change Δ since the last measurement.

    Heavy tails (a large kurtosis) mean that a few entries are far larger than the rest: outliers that a quantiser
    must either clip or make room for, and updates that a sparse mask would catch. Only parameters with two dimensions
    or more count: biases and gains have scales of their own. A layer without any is left out.
    """

    every: Schedule = 100

    needs = frozenset({"previous"})
    reads_only = True
    cost = "one pass over the weights and their previous copy, in float64"

    def measure(self, moment: Moment) -> Measurement:
        subject, before = moment.subject, moment.previous
        subject.refresh()
        now = subject.by_name()
        before.check(now)
        previous = as_they_were(before, now)
        weights: dict[str, Distribution] = {}
        updates: dict[str, Distribution] = {}
        for layer, positions in subject.scopes("layer").items():
            for position in positions:
                weight = subject.parameters[position].detach()
                if weight.ndim >= 2 and weight.is_floating_point():
                    weights.setdefault(layer, Distribution()).add(weight)
                    old = previous[subject.names[position]]
                    _add_change(updates.setdefault(layer, Distribution()), weight, old)
        columns = _columns({Q.weight_kurtosis: list(weights.values()), Q.update_kurtosis: list(updates.values())})
        notes = {"span": [before.step, moment.step], **precision_note(before, now)}
        return Measurement([Table("layer", list(weights), columns)], notes=notes)


def _add_change(update: Distribution, new: Tensor, old: Tensor) -> None:
    """Add new − old in float64, a chunk at a time: no second copy of the weights is made."""
    for now, then in zip(new.reshape(-1).split(CHUNK), old.reshape(-1).split(CHUNK), strict=True):
        update.add(now.double() - then.to(now.device).double())


def _columns(distributions: Mapping[Quantity, Sequence[Distribution]]) -> list[Column]:
    """One column for each quantity. A layer of finite entries without a kurtosis has the reason."""
    shapes = [layer.shape() for layers in distributions.values() for layer in layers]
    if not shapes:
        return [quantity.column([]) for quantity in distributions]
    device = shapes[0].kurtosis.device
    numbers = torch.stack([torch.stack([shape.kurtosis, shape.nan + shape.inf]).to(device) for shape in shapes])
    read = iter(numbers.tolist())  # the only wait for the device
    columns = []
    for quantity, layers in distributions.items():
        cells = [
            layer.no_kurtosis_reason() if math.isnan(kurtosis) and not bad else kurtosis
            for layer, (kurtosis, bad) in zip(layers, read, strict=False)
        ]
        columns.append(quantity.cells(cells))
    return columns
