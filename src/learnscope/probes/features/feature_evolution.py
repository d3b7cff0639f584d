"""How a model's features change: their classes, their directions, and how far they have come."""

from __future__ import annotations

import math
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar

from torch import Tensor

from learnscope.core.moment import Moment
from learnscope.core.probe import At, Probe
from learnscope.model.examples.groups import classes_of
from learnscope.model.examples.fingerprint import sample_digest
from learnscope.model.features.pooling import POOLINGS, Pooling
from learnscope.model.features.representation import largest_class_share, linear_probe, silhouette
from learnscope.model.features.vectors import default_layers
from learnscope.quantities import Quantities, Quantity
from learnscope.quantities.features import FeatureEvolution as Q
from learnscope.record import Column, Measurement, Table
from learnscope.task import IGNORE
from learnscope.tensor.features.representation import (
    effective_rank,
    rankme,
    separation,
    singular_values,
    why_not_separated,
)
from learnscope.tensor.features.similarity import unbiased_cka, why_no_cka

NOT_FINITE = "features are not finite"
SAME = "features are the same for every example"
OTHER_EXAMPLES = "then there were as many examples, but not these"
OF_CLASSES = (
    Q.silhouette, Q.separability, Q.within_distance, Q.between_distance, Q.linear_probe, Q.linear_probe_examples,
    Q.linear_probe_chance,
)  # fmt: skip
"""What needs labels."""


@dataclass(slots=True)
class _Layer:
    """The numbers of one layer, and the reasons for those that it has not."""

    values: dict[Quantity, float | None] = field(default_factory=dict)
    reasons: dict[Quantity, str] = field(default_factory=dict)

    def put(self, quantity: Quantity, value: float | None, reason: str | None = None) -> None:
        self.values[quantity] = None if reason else value
        if reason:
            self.reasons[quantity] = reason


class FeatureEvolution(Probe):
    """Features of layers on the first holdout examples: one vector an example, in eval mode.

    Sequences are pooled over the positions that `attention_mask` keeps (`pooling`: mean, last or cls), maps by their
    spatial mean. Labels are the holdout's targets, where each example has one class; without, what needs them is null.

    The first and the last features are kept, and saved with the session, for the CKA: 2 · examples · dimensions
    numbers in float32 a layer. Layers that do not fit into `memory_mb` together with those before them have no CKA,
    and neither have features of other examples than then.

    With `keep_features`, arrays: `features/<layer>` [examples, dimensions] in float32, and `labels` [examples] where
    there are classes, -100 for an example without one.
    """

    every: int = 1
    at: At = "epoch"
    layers: Sequence[str] | None = None
    """By default the first, a middle and the last block, and the last layer before the head."""
    samples: int | None = 500
    """None: all of the holdout."""
    pooling: Pooling = "mean"
    memory_mb: float = 64.0
    keep_features: bool = False

    needs: ClassVar[frozenset[str]] = frozenset({"features"})
    reads_only: ClassVar[bool] = True  # the pass has a guard of its own, and no random numbers but with own seeds
    quantities: ClassVar[type[Quantities]] = Q
    cost: ClassVar[str] = "one forward of `samples` holdout examples, and of each layer a ridge classifier and an SVD"

    def __post_init__(self) -> None:
        super().__post_init__()
        name = type(self).__name__
        whole = isinstance(self.samples, int) and not isinstance(self.samples, bool) and self.samples >= 1
        if self.samples is not None and not whole:
            raise ValueError(f"{name}(samples={self.samples!r}): samples is a whole number from 1, or None for all")
        if self.pooling not in POOLINGS:
            raise ValueError(f"{name}(pooling={self.pooling!r}): pooling is one of {', '.join(POOLINGS)}")
        if isinstance(self.layers, str) or (self.layers is not None and not self.layers):
            raise ValueError(f"{name}(layers={self.layers!r}): layers is a list of names of modules")
        if not self.memory_mb >= 0:
            raise ValueError(f"{name}(memory_mb={self.memory_mb!r}): memory_mb is a number from 0")

    def measure(self, moment: Moment) -> Measurement:
        names = default_layers(moment.model) if self.layers is None else list(dict.fromkeys(self.layers))
        samples = sys.maxsize if self.samples is None else self.samples
        found = moment.pooled_features(*names, examples=samples, pooling=self.pooling)
        batches = moment.holdout_batches(samples)
        labels, unlabelled = classes_of(map(moment.task.targets, batches), "the holdout")
        sample = sample_digest(moment.task, batches)
        room = self.memory_mb * 1e6
        measured = []
        for name in names:
            layer = _Layer()
            if name in found.missing:
                for quantity in Q.all():
                    layer.put(quantity, None, found.missing[name])
            else:
                x = found.vectors[name]
                room -= 2 * 4 * x.numel()
                _of_classes(layer, x, labels, unlabelled)
                _of_directions(layer, x)
                too_large = f"more than memory_mb={self.memory_mb:g} of features would be kept" if room < 0 else None
                _compare(layer, name, x, moment.state, sample, too_large)
                layer.put(Q.dimensions, x.shape[1])
            measured.append(layer)
        notes: dict[str, Any] = {"examples": sum(map(moment.task.size, batches)), "pooling": self.pooling}
        notes |= {f"cka_{which}_step": moment.state[which] for which in ("first", "previous") if which in moment.state}
        moment.state.setdefault("first", moment.step)
        moment.state["previous"] = moment.step
        arrays = _kept(found.vectors, labels) if self.keep_features else {}
        return Measurement([Table("layer", names, _columns(measured))], arrays, notes)


def _kept(vectors: Mapping[str, Tensor], labels: Tensor | None) -> dict[str, Tensor]:
    arrays = {f"features/{name}": x.float() for name, x in vectors.items()}
    return arrays if labels is None else {**arrays, "labels": labels}


def _columns(layers: Sequence[_Layer]) -> list[Column]:
    return [
        quantity.column(
            [layer.values[quantity] for layer in layers],
            status={place: layer.reasons[quantity] for place, layer in enumerate(layers) if quantity in layer.reasons},
        )
        for quantity in Q.all()
    ]


def _of_classes(layer: _Layer, x: Tensor, labels: Tensor | None, unlabelled: str | None) -> None:
    if labels is None:
        for quantity in OF_CLASSES:
            layer.put(quantity, None, unlabelled)
        return
    chosen = labels != IGNORE
    x, labels = x[chosen], labels[chosen]
    score = silhouette(x, labels)
    layer.put(Q.silhouette, score.value, score.reason)
    probed = linear_probe(x, labels)
    layer.put(Q.linear_probe, probed.value, probed.reason)
    layer.put(Q.linear_probe_examples, probed.examples)
    layer.put(Q.linear_probe_chance, None if probed.reason else largest_class_share(labels), probed.reason)
    reason = why_not_separated(labels) or (None if bool(x.isfinite().all()) else NOT_FINITE)
    if reason:
        for quantity in (Q.separability, Q.within_distance, Q.between_distance):
            layer.put(quantity, None, reason)
        return
    apart = separation(x, labels)
    layer.put(Q.separability, apart.ratio, SAME if math.isnan(apart.ratio) else _collapsed(apart.ratio))
    layer.put(Q.within_distance, apart.within)
    layer.put(Q.between_distance, apart.between)


def _collapsed(ratio: float) -> str | None:
    return "the examples of a class all have the same features: nothing to divide by" if math.isinf(ratio) else None


def _of_directions(layer: _Layer, x: Tensor) -> None:
    if not bool(x.isfinite().all()):
        for quantity in (Q.effective_rank, Q.rankme):
            layer.put(quantity, None, NOT_FINITE)
        return
    rank, smooth = effective_rank(singular_values(x, centred=True)), rankme(singular_values(x, centred=False))
    layer.put(Q.effective_rank, rank, SAME if math.isnan(rank) else None)
    layer.put(Q.rankme, smooth, "all features are 0" if math.isnan(smooth) else None)


def _compare(layer: _Layer, name: str, x: Tensor, state: dict[str, Any], sample: str, too_large: str | None) -> None:
    """CKA with what is kept, and keep this."""
    own = why_no_cka(x)
    for which, quantity in (("previous", Q.cka_previous), ("first", Q.cka_first)):
        kept: Tensor | None = state.get(f"{which}/{name}")
        reason = too_large or own
        if reason is None and kept is None:
            reason = "the first measurement"
        if reason is None and kept is not None and len(kept) != len(x):
            reason = f"then there were {len(kept)} examples, now {len(x)}"
        if reason is None and state.get(f"{which}_sample/{name}", sample) != sample:
            reason = OTHER_EXAMPLES
        reason = reason or (why_no_cka(kept) if kept is not None else None)
        layer.put(quantity, None if reason or kept is None else unbiased_cka(x, kept), reason)
    if too_large is None:
        for which in ("previous", "first") if f"first/{name}" not in state else ("previous",):
            # copies of their own: what shares memory cannot be saved, and another probe may have been given the same
            state[f"{which}/{name}"] = x.float().clone()
            state[f"{which}_sample/{name}"] = sample
