"""Whether a sparse update would have sufficed: the model's outputs with its small changes undone."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import Literal

from learnscope.core.moment import Moment
from learnscope.core.probe import Probe, Schedule
from learnscope.model.guard import guard
from learnscope.model.updates.variants import Reverting
from learnscope.model.weights.rounded import as_they_were, precision_note
from learnscope.probes.outputs.columns import compared_with, holdout_reference, output_columns, with_cosine_reasons
from learnscope.probes.updates.parameter_change import Changes, changes
from learnscope.quantities.updates import SparseQuality as Q
from learnscope.record import Column, Label, Measurement, Table
from learnscope.tensor.updates.masks import Rule

Baseline = Literal["random", "random_changed"]
BASELINES: tuple[Baseline, ...] = ("random", "random_changed")


class SparseQuality(Probe):
    """If all changes with |Δ| ≤ t since the last measurement had not been made, how close would the outputs be?

    The mask `magnitude` keeps the changes beyond the threshold, the baselines keep as many at random: `random` of all
    entries, `random_changed` of those whose bits changed. A sparse update is
    worth something if it is far better than `random_changed` with the same number of entries.

    Weights are exchanged with the previous ones in place and back, bit for bit, so that there is no second copy. Each
    batch takes one forward for the reference and one for every variant, in eval mode. If the previous weights are in
    a dtype that cannot hold the present ones, or on disk, the note `extra_memory` has the bytes that this takes.
    """

    every: Schedule = 100
    thresholds: Sequence[float] = (1e-8, 1e-6, 1e-4)
    baselines: Sequence[Baseline] = BASELINES
    examples: int = 32
    """Examples of the holdout data that outputs are compared on."""
    seed: int = 0
    """Of the random masks, together with the step."""
    snapshot_device: str = "cpu"
    snapshot_dtype: str = "native"

    needs = frozenset({"previous", "holdout"})
    cost = "forwards on `examples` holdout examples: one for the model, one for each threshold and mask"

    def __post_init__(self) -> None:
        super().__post_init__()
        if not self.thresholds or any(not t >= 0 for t in self.thresholds):
            raise ValueError(f"SparseQuality(thresholds={self.thresholds!r}): one or more numbers from 0 on")
        if unknown := set(self.baselines) - set(BASELINES):
            raise ValueError(f"SparseQuality: there is no baseline {unknown.pop()!r}; there are {', '.join(BASELINES)}")

    def measure(self, moment: Moment) -> Measurement:
        before = moment.previous
        delta = changes(moment, self.thresholds)
        batches, reference = holdout_reference(moment, self.examples)
        now = moment.subject.by_name()
        columns: list[Column] = []
        with (
            guard(moment.model),
            moment.sealing(),
            Reverting(now, as_they_were(before, now), seed=self.seed + moment.step) as weights,
        ):
            if weights.rounded or list(weights.old) != list(delta.names):
                # what is undone is then not quite the change that other probes measured
                delta = Changes.between(weights.weights, weights.old, self.thresholds, range(len(weights.old)))
            for mask, threshold, kept, rule in self._variants(delta, weights):
                weights.apply(rule)
                compared = compared_with(moment, batches, reference)
                labels: dict[str, Label] = {"threshold": threshold, "mask": mask}
                columns += output_columns(Q, compared, reference, labels)
                columns.append(Q.kept_share.column([kept / max(1, weights.entries)], labels))
        mapped = sum(tensor.nbytes for tensor in before.tensors.values()) if before.device == "disk" else 0
        extra = weights.extra_bytes + mapped
        notes = {"span": [before.step, moment.step], **({"extra_memory": extra} if extra else {})}
        notes |= precision_note(before, now)
        return Measurement([Table("model", ["model"], columns)], notes=notes, finish=with_cosine_reasons)

    def _variants(self, delta: Changes, weights: Reverting) -> Iterator[tuple[str, float, int, Rule]]:
        """Mask, threshold, number of entries kept, and the rule for it."""
        within = delta.within(self.thresholds).sum(0).tolist()
        kept = [weights.entries - int(count) for count in within]
        for threshold, count in zip(self.thresholds, kept, strict=True):
            yield "magnitude", threshold, count, Rule(threshold)
        for baseline in self.baselines:
            if baseline == "random":
                rules = weights.order.keep(kept)
            else:
                bits = float(delta.table.bits_changed.sum())
                changed = weights.count_changed() if math.isnan(bits) else int(bits)
                # what lies beyond a threshold has changed, except a NaN that was one before
                kept = [min(count, changed) for count in kept]
                rules = weights.keep_of_changed(kept, changed)
            for threshold, count, rule in zip(self.thresholds, kept, rules, strict=True):
                yield baseline, threshold, count, rule
