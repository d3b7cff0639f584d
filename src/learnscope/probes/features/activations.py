"""Dead and saturated units, and how large and how heavy-tailed activations are."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import ClassVar

import torch
from torch import Tensor

from learnscope.core.moment import Moment
from learnscope.core.probe import Probe
from learnscope.model.features.activation_sites import Site
from learnscope.model.features.activations import see_activations
from learnscope.model.outputs.evaluate import model_device
from learnscope.record import Column, Label, Measurement, Table
from learnscope.tensor.features.distribution import Distribution, joined

NONE_SEEN = (
    "no activation was seen in the forward: only torch's and transformers' activation modules and functions are "
    "recognised, not what is written out in other operations, fused or scripted"
)
NOT_RUN = "no tensor of floats was seen to come out of it on these batches"


class Activations(Probe):
    """What passes through the activation functions, and out of the layers, on the holdout data in eval mode.

    A site is one application of an activation function: an activation module, named by its path
    (`transformer.h.0.mlp.act`), or a call of a function in a module's forward (`layers.0:relu`; the model itself is
    `(root)`); the second call in one forward is a site of its own (`act:2`). See `model.features.activations` for
    what is seen. A unit is an entry of the feature dimension: the last after linear layers, channels after
    convolutions. Positions that a batch's `attention_mask` hides do not count.

    | name | kind | meaning |
    |---|---|---|
    | `dead_share` | model, layer, site | share of units whose output was 0 for every input |
    | `saturated_share` | model, layer, site | share of units for which |f′(x)| < 1 % of max|f′| at more than 95 % of \
the inputs x; a dead ReLU is saturated too. max|f′| is over −20 ≤ x ≤ 20; for a PReLU it is each channel's own. \
Inputs at which f′ is NaN are left out |
    | `units` | model, layer, site | how many |
    | `sites` | model | how many |
    | `rms`, `kurtosis` | layer, site | √(Σy²/n) and m₄/m₂² − 3 (population, 0 for a normal distribution) of the \
outputs y of the activations |
    | `output_rms`, `output_kurtosis` | layer | the same of what the layer gives out (the first tensor of several), of \
blocks and of modules with parameters outside of blocks |
    | `nan`, `inf` (`output_nan`, `output_inf`) | model, layer, site (layer) | values that are not finite; they make \
rms and kurtosis null |

    Rows of kind `site` carry the `function` as a label; the layer is that of the module in which a site is. Moments
    are accumulated in float64, slopes are taken by autograd in float32 (float64 for a float64 model).
    """

    every: int = 100
    examples: int = 256
    """How many of the holdout examples are run."""
    per_site: bool = True
    """Record each site beside the layers."""

    needs: ClassVar[frozenset[str]] = frozenset({"holdout"})
    reads_only: ClassVar[bool] = True  # the pass has a guard of its own

    def __post_init__(self) -> None:
        super().__post_init__()
        if isinstance(self.examples, bool) or not isinstance(self.examples, int) or self.examples < 1:
            raise ValueError(f"Activations(examples={self.examples!r}): examples is a whole number from 1")

    def measure(self, moment: Moment) -> Measurement:
        batches = moment.holdout_batches(self.examples)
        seen = see_activations(moment.model, moment.task, batches)
        device = model_device(moment.model)
        device = torch.device("cpu") if device.type == "mps" else device  # which has no float64
        layers: dict[str, list[Site]] = {}
        functions: dict[str, list[Site]] = {}
        for site in seen.sites:
            layers.setdefault(site.layer, []).append(site)
            functions.setdefault(site.function, []).append(site)
        parts = [_model_part(seen.sites, device)]
        if layers:
            parts.append(_part("layer", layers, device, {}))
        if self.per_site:
            parts += [
                _part("site", {site.name: [site] for site in sites}, device, {"function": function})
                for function, sites in functions.items()
            ]
        if seen.outputs:
            parts.append(_output_part(seen.outputs, device))
        notes: dict[str, object] = {"examples": sum(moment.task.size(batch) for batch in batches)}
        if seen.not_measured:
            notes["not_measured"] = list(dict.fromkeys(seen.not_measured))
        return Measurement(
            [table for table, _ in parts],
            notes=notes,
            finish=lambda read: [_with_reasons(table, values) for table, (_, values) in zip(read, parts, strict=True)],
        )


_Part = tuple[Table, Sequence[Distribution]]
"""A table, and the distributions that its scopes summarise."""


def _model_part(sites: Sequence[Site], device: torch.device) -> _Part:
    if not sites:
        shares = [Column(name, [None], {}, {0: NONE_SEEN}) for name in ("dead_share", "saturated_share")]
        return Table("model", ["model"], [*shares, Column("units", [0]), Column("sites", [0])]), [Distribution()]
    values = joined(site.outputs for site in sites)
    shape = values.shape(device)
    counts = [Column("sites", [len(sites)]), Column("nan", [shape.nan]), Column("inf", [shape.inf])]
    return Table("model", ["model"], [*_shares([sites], device, {}), *counts]), [values]


def _part(kind: str, groups: Mapping[str, Sequence[Site]], device: torch.device, labels: Mapping[str, Label]) -> _Part:
    values = [joined(site.outputs for site in sites) for sites in groups.values()]
    columns = [*_shares(list(groups.values()), device, labels), *_shapes(values, device, "", labels)]
    return Table(kind, list(groups), columns), values


def _output_part(outputs: Mapping[str, Distribution | None], device: torch.device) -> _Part:
    values = [found or Distribution() for found in outputs.values()]
    return Table("layer", list(outputs), _shapes(values, device, "output_", {})), values


def _shares(groups: Sequence[Sequence[Site]], device: torch.device, labels: Mapping[str, Label]) -> list[Column]:
    units = [sum(site.units for site in sites) for sites in groups]
    of = torch.tensor(units, dtype=torch.float64, device="cpu").to(device)
    dead = torch.stack([_sum([site.dead() for site in sites], device) for sites in groups])
    saturated = torch.stack([_sum([site.saturated() for site in sites], device) for sites in groups])
    return [
        Column("dead_share", dead / of, labels),
        Column("saturated_share", saturated / of, labels),
        Column("units", units, labels),
    ]


def _sum(numbers: Sequence[Tensor], device: torch.device) -> Tensor:
    """Over sites that may be on several devices."""
    return torch.stack([number.to(device) for number in numbers]).sum()


def _shapes(
    values: Sequence[Distribution], device: torch.device, prefix: str, labels: Mapping[str, Label]
) -> list[Column]:
    shapes = [one.shape(device) for one in values]
    empty = {place: NOT_RUN for place, one in enumerate(values) if not one.n}
    return [
        Column(f"{prefix}{name}", [getattr(shape, name) for shape in shapes], labels, empty)
        for name in ("rms", "kurtosis", "nan", "inf")
    ]


def _with_reasons(table: Table, values: Sequence[Distribution]) -> Table:
    """The table, with the reason for each kurtosis that is missing though every value was finite."""
    columns = []
    rms: Sequence[float | None] = next((c.values for c in table.columns if c.name.endswith("rms")), [])
    for column in table.columns:
        if column.name.endswith("kurtosis"):
            missing = [i for i, value in enumerate(column.values) if value is None and rms[i] is not None]
            column = replace(column, status={**column.status, **{i: values[i].why_no_kurtosis() for i in missing}})
        columns.append(column)
    return replace(table, columns=columns)
