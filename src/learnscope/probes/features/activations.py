"""Dead and saturated units, and how large and how heavy-tailed activations are."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

import torch
from torch import Tensor

from learnscope.core.moment import Moment
from learnscope.core.probe import Probe, Schedule
from learnscope.model.features.activation_sites import Site
from learnscope.model.features.activations import collect_activations
from learnscope.model.outputs.evaluate import model_device
from learnscope.options import check_whole
from learnscope.quantities import Quantity
from learnscope.quantities.features import Activations as Q
from learnscope.record import Column, Label, Measurement, Table
from learnscope.tensor.features.distribution import Distribution, joined

NONE_SEEN = (
    "no activation was seen in the forward: only torch's and transformers' activation modules and functions are "
    "recognised, not what is written out in other operations, fused or scripted"
)
NOT_RUN = "no tensor of floats was seen to come out of it on these batches"
SHAPE = (Q.rms, Q.kurtosis, Q.nan, Q.inf)
SHAPE_OF_OUTPUTS = (Q.output_rms, Q.output_kurtosis, Q.output_nan, Q.output_inf)


class Activations(Probe):
    """What passes through the activation functions, and out of the layers, on the holdout data in eval mode.

    A site is one application of an activation function: an activation module, named by its path
    (`transformer.h.0.mlp.act`), or a call of a function in a module's forward (`layers.0:relu`; the model itself is
    `(root)`); the second call in one forward is a site of its own (`act:2`). See `model.features.activations` for
    what is seen. A unit is an entry of the feature dimension: the last after linear layers, channels after
    convolutions. Positions that a batch's `attention_mask` hides do not count.

    The layer is that of the module in which a site is. Values that are not finite make rms and kurtosis null. Moments
    are accumulated in float64, slopes are taken by autograd in float32 (float64 for a float64 model).
    """

    every: Schedule = 100
    examples: int = 256
    """How many of the holdout examples are run."""
    per_site: bool = True
    """Record each site beside the layers."""

    needs = frozenset({"holdout"})
    reads_only = True  # the pass has a guard of its own
    cost = "one forward of `examples` holdout examples, and the slopes of every activation in it"

    def __post_init__(self) -> None:
        super().__post_init__()
        check_whole(self, examples=1)

    def measure(self, moment: Moment) -> Measurement:
        batches = moment.holdout_batches(self.examples)
        statistics = collect_activations(moment.model, moment.task, batches)
        device = model_device(moment.model)
        device = torch.device("cpu") if device.type == "mps" else device  # which has no float64
        layers: dict[str, list[Site]] = {}
        functions: dict[str, dict[str, list[Site]]] = {}
        for site in statistics.sites:
            layers.setdefault(site.layer, []).append(site)
            functions.setdefault(site.function, {})[site.name] = [site]
        parts = [_of_model(statistics.sites, device)]
        if layers:
            parts.append(_of_sites("layer", layers, device))
        if self.per_site:
            parts += [_of_sites("site", sites, device, function=function) for function, sites in functions.items()]
        if statistics.outputs:
            outputs = [output or Distribution() for output in statistics.outputs.values()]
            columns = _shapes(outputs, device, SHAPE_OF_OUTPUTS, {})
            parts.append((Table("layer", list(statistics.outputs), columns), outputs))
        notes: dict[str, object] = {"examples": sum(moment.task.size(batch) for batch in batches)}
        if statistics.not_measured:
            notes["not_measured"] = list(dict.fromkeys(statistics.not_measured))
        return Measurement(
            [table for table, _ in parts],
            notes=notes,
            finish=lambda read: [_with_reasons(table, values) for table, (_, values) in zip(read, parts, strict=True)],
        )


_Part = tuple[Table, Sequence[Distribution]]
"""A table, and the distributions that its scopes summarise."""


def _of_model(sites: Sequence[Site], device: torch.device) -> _Part:
    if not sites:
        shares = [share.cells([NONE_SEEN]) for share in (Q.dead_share, Q.saturated_share)]
        return Table("model", ["model"], [*shares, Q.units.column([0]), Q.sites.column([0])]), [Distribution()]
    values = joined(site.outputs for site in sites)
    shape = values.shape(device)
    counts = [Q.sites.column([len(sites)]), Q.nan.column([shape.nan]), Q.inf.column([shape.inf])]
    return Table("model", ["model"], [*_shares([sites], device, {}), *counts]), [values]


def _of_sites(kind: str, groups: Mapping[str, Sequence[Site]], device: torch.device, **labels: Label) -> _Part:
    values = [joined(site.outputs for site in sites) for sites in groups.values()]
    columns = [*_shares(list(groups.values()), device, labels), *_shapes(values, device, SHAPE, labels)]
    return Table(kind, list(groups), columns), values


def _shares(groups: Sequence[Sequence[Site]], device: torch.device, labels: Mapping[str, Label]) -> list[Column]:
    units = [sum(site.units for site in sites) for sites in groups]
    total = torch.tensor(units, dtype=torch.float64, device="cpu").to(device)

    def share(quantity: Quantity, count: Callable[[Site], Tensor]) -> Column:
        # the sites of a group may be on several devices
        counts = [torch.stack([count(site).to(device) for site in sites]).sum() for sites in groups]
        return quantity.column(torch.stack(counts) / total, labels)

    return [share(Q.dead_share, Site.dead), share(Q.saturated_share, Site.saturated), Q.units.column(units, labels)]


def _shapes(
    values: Sequence[Distribution], device: torch.device, quantities: Sequence[Quantity], labels: Mapping[str, Label]
) -> list[Column]:
    shapes = [distribution.shape(device) for distribution in values]
    empty = {place: NOT_RUN for place, distribution in enumerate(values) if not distribution.n}
    numbers = zip(*((shape.rms, shape.kurtosis, shape.nan, shape.inf) for shape in shapes), strict=True)
    return [quantity.column(list(row), labels, empty) for quantity, row in zip(quantities, numbers, strict=True)]


def _with_reasons(table: Table, values: Sequence[Distribution]) -> Table:
    """The table, with the reason for each kurtosis that is missing though every value was finite."""
    columns = []
    rms: Sequence[float | None] = next(
        (c.values for c in table.columns if c.name in (Q.rms.name, Q.output_rms.name)), []
    )
    for column in table.columns:
        if column.name in (Q.kurtosis.name, Q.output_kurtosis.name):
            missing = [i for i, value in enumerate(column.values) if value is None and rms[i] is not None]
            column = replace(column, status={**column.status, **{i: values[i].no_kurtosis_reason() for i in missing}})
        columns.append(column)
    return replace(table, columns=columns)
