"""How a model's features change: their classes, their directions, and how far they have come."""

from __future__ import annotations

import math
import sys
from collections.abc import Sequence
from typing import Any

from torch import Tensor

from learnscope.core.moment import Moment
from learnscope.core.probe import At, Probe
from learnscope.model.examples.fingerprint import sample_digest
from learnscope.model.examples.groups import classes_of
from learnscope.model.features.pooling import POOLINGS, Pooling, check_layers, default_layers
from learnscope.model.features.representation import largest_class_share, linear_probe, silhouette
from learnscope.model.outputs.evaluate import NoLayer
from learnscope.options import is_whole
from learnscope.quantities import Quantity
from learnscope.quantities.features import FeatureEvolution as Q
from learnscope.record import Measurement, Table
from learnscope.task import IGNORE
from learnscope.tensor.features.representation import (
    effective_rank,
    rankme,
    separation,
    singular_values,
    why_not_between,
    why_not_within,
)
from learnscope.tensor.features.similarity import unbiased_cka, why_no_cka

NOT_FINITE = "features are not finite"
SAME = "features are the same for every example"
COLLAPSED = "the examples of a class all have the same features: nothing to divide by"
OTHER_EXAMPLES = "then there were as many examples, but not these"
OF_CLASSES = (
    Q.silhouette, Q.separability, Q.within_distance, Q.between_distance, Q.linear_probe, Q.linear_probe_examples,
    Q.linear_probe_chance,
)  # fmt: skip
"""What needs labels."""

Cells = dict[Quantity, float | str | None]
"""Numbers of one layer, or the reasons for those that are missing."""


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

    at: At = "epoch"
    layers: Sequence[str] | None = None
    """By default the first, a middle and the last block, and the last layer before the head."""
    samples: int | None = 500
    """None: all of the holdout."""
    pooling: Pooling = "mean"
    memory_mb: float = 64.0
    keep_features: bool = False

    needs = frozenset({"features"})
    reads_only = True  # the pass has a guard of its own, and no random numbers but with own seeds
    cost = "one forward of `samples` holdout examples, and of each layer a ridge classifier and an SVD"

    def __post_init__(self) -> None:
        super().__post_init__()
        name = type(self).__name__
        if self.samples is not None and not is_whole(self.samples, 1):
            raise ValueError(f"{name}(samples={self.samples!r}): samples is a whole number from 1, or None for all")
        if self.pooling not in POOLINGS:
            raise ValueError(f"{name}(pooling={self.pooling!r}): pooling is one of {', '.join(POOLINGS)}")
        if self.layers is not None and (isinstance(self.layers, str) or not len(self.layers)):
            raise ValueError(f"{name}(layers={self.layers!r}): layers is a list of names of modules")
        if not self.memory_mb >= 0:
            raise ValueError(f"{name}(memory_mb={self.memory_mb!r}): memory_mb is a number from 0")

    def open(self, moment: Moment) -> None:
        if self.layers is not None:
            try:
                check_layers(moment.model, self.layers)
            except NoLayer as error:
                raise NoLayer(f"{type(self).__name__}(layers={list(self.layers)!r}): {error}") from None

    def measure(self, moment: Moment) -> Measurement:
        names = default_layers(moment.model) if self.layers is None else list(dict.fromkeys(self.layers))
        samples = sys.maxsize if self.samples is None else self.samples
        features = moment.pooled_features(*names, examples=samples, pooling=self.pooling)
        batches = moment.holdout_batches(samples)
        labels = classes_of(map(moment.task.targets, batches), "the holdout")
        digest = sample_digest(moment.task, batches)
        room = self.memory_mb * 1e6
        layers: list[Cells] = []
        for name in names:
            if name in features.missing:
                layers.append(dict.fromkeys(Q.all(), features.missing[name]))
                continue
            x = features.vectors[name]
            room -= 2 * 4 * x.numel()
            too_large = f"more than memory_mb={self.memory_mb:g} of features would be kept" if room < 0 else None
            layers.append({
                **_of_classes(x, labels), **_of_directions(x), Q.dimensions: x.shape[1],
                **_compared(name, x, moment.state, digest, too_large),
            })  # fmt: skip
        notes: dict[str, Any] = {"examples": sum(map(moment.task.size, batches)), "pooling": self.pooling}
        notes |= {f"cka_{which}_step": moment.state[which] for which in ("first", "previous") if which in moment.state}
        moment.state.setdefault("first", moment.step)
        moment.state["previous"] = moment.step
        arrays: dict[str, Tensor] = {}
        if self.keep_features:
            arrays = {f"features/{name}": x.float() for name, x in features.vectors.items()}
            arrays |= {} if isinstance(labels, str) else {"labels": labels}
        columns = [quantity.cells([layer[quantity] for layer in layers]) for quantity in Q.all()]
        return Measurement([Table("layer", names, columns)], arrays, notes)


def _of_classes(x: Tensor, labels: Tensor | str) -> Cells:
    if isinstance(labels, str):
        return dict.fromkeys(OF_CLASSES, labels)
    chosen = labels != IGNORE
    x, labels = x[chosen], labels[chosen]
    score, probed = silhouette(x, labels), linear_probe(x, labels)
    cells: Cells = {
        Q.silhouette: score.reason or score.value, Q.linear_probe: probed.reason or probed.value,
        Q.linear_probe_examples: probed.examples,
        Q.linear_probe_chance: probed.reason or largest_class_share(labels),
    }  # fmt: skip
    not_finite = None if bool(x.isfinite().all()) else NOT_FINITE
    apart, together = why_not_between(labels) or not_finite, why_not_within(labels) or not_finite
    if apart and together:
        return cells | {Q.separability: apart, Q.within_distance: together, Q.between_distance: apart}
    distances = separation(x, labels)
    ratio: float | str = distances.ratio
    if not math.isfinite(distances.ratio):
        ratio = SAME if math.isnan(distances.ratio) else COLLAPSED
    return {
        **cells, Q.separability: apart or together or ratio, Q.within_distance: together or distances.within,
        Q.between_distance: apart or distances.between,
    }  # fmt: skip


def _of_directions(x: Tensor) -> Cells:
    if not bool(x.isfinite().all()):
        return {Q.effective_rank: NOT_FINITE, Q.rankme: NOT_FINITE}
    rank, smooth = effective_rank(singular_values(x, centred=True)), rankme(singular_values(x, centred=False))
    return {
        Q.effective_rank: SAME if math.isnan(rank) else rank,
        Q.rankme: "all features are 0" if math.isnan(smooth) else smooth,
    }


def _compared(name: str, x: Tensor, state: dict[str, Any], digest: str, too_large: str | None) -> Cells:
    """CKA with the previous and the first features; keeps these."""
    cells: Cells = {}
    own_reason = too_large or why_no_cka(x)
    for which, quantity in (("previous", Q.cka_previous), ("first", Q.cka_first)):
        earlier: Tensor | None = state.get(f"{which}/{name}")
        if own_reason:
            cells[quantity] = own_reason
        elif earlier is None:
            cells[quantity] = "the first measurement"
        elif len(earlier) != len(x):
            cells[quantity] = f"then there were {len(earlier)} examples, now {len(x)}"
        elif state.get(f"{which}_sample/{name}", digest) != digest:
            cells[quantity] = OTHER_EXAMPLES
        else:
            cells[quantity] = why_no_cka(earlier) or unbiased_cka(x, earlier)
    if too_large is None:
        for which in ("previous", "first") if f"first/{name}" not in state else ("previous",):
            # copies of their own: what shares memory cannot be saved, and another probe may have been given the same
            state[f"{which}/{name}"] = x.float().clone()
            state[f"{which}_sample/{name}"] = digest
    return cells
