"""The tables of GradientFlow, made of numbers that have been read from the device."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from learnscope.core.lost import first_in_order
from learnscope.quantities.gradients import GradientFlow as Q
from learnscope.record import Column, Label, Table
from learnscope.tensor.segments import JointSegments, Segments

ZERO = "its gradient is 0: it has no direction"
UNKNOWN_WEIGHTS = (
    "its micro-batches have unequal sizes, and how the loop weighs them is not known: say so, "
    "GradientFlow(weighted_by='number'), 'size' or 'sum'"
)
NO_ENTRY = "every entry is 0, or one is not finite"
NOT_POSITIVE = "the smoothed signal is not positive"

Arrays = Mapping[str, NDArray[np.float64]]
"""By tensor: Σg² before clipping (`squares`), `zeros`, `nan` and `inf`; where there is one, the `scale` of the loss,
the `coefficients` of a clip, the share of entries at the `limit` and Σw² (`weights`). Further `noise` (ratio, noise,
signal), `stability` (cosine, error) by layer, and `spread <kind>` (mean, variance) by scope."""
BEFORE, STEPPED, ZEROS, NAN, INF, ENTRIES = range(6)


@dataclass(frozen=True, slots=True)
class FlowTables:
    """What is known of the tables before the numbers are read."""

    segments: JointSegments
    """The model's, the layers' and further kinds', in the order of the tables."""
    labels: Mapping[str, Label]
    names: Sequence[str]
    """Of the tensors, in the order of the arrays."""
    backward_order: Sequence[str]
    missing: int
    """Trainable tensors without a gradient."""
    noise_unit: str | None
    weights_unknown: bool
    of_one_rank: bool
    idle: Sequence[Table]

    def __call__(self, arrays: Arrays) -> list[Table]:
        with np.errstate(divide="ignore", invalid="ignore"):
            squares = arrays["squares"] / arrays["scale"] ** 2 if "scale" in arrays else arrays["squares"]
            stepped = squares * arrays["coefficients"] ** 2 if "coefficients" in arrays else squares
            counts = (arrays["zeros"], arrays["nan"], arrays["inf"])
            numbers = np.stack([squares, stepped, *counts, self.segments.entries], 1)
            sums = self.segments.sums(numbers)
            tables = [self._table(kind, arrays, numbers, sums[kind]) for kind in sums]
        return [*tables, *self.idle, *self._first_nonfinite(numbers)]

    def _table(self, kind: str, arrays: Arrays, numbers: NDArray[np.float64], sums: NDArray[np.float64]) -> Table:
        """Norms; of the model and the layers also what is zero, NaN or infinite."""
        segments = self.segments.kinds[kind]
        columns = self._norms(sums, clipped="coefficients" in arrays)
        if kind in ("model", "layer"):
            columns += _shares(sums)
        if kind == "model":
            columns += self._of_model(arrays, numbers)
        if kind == "layer":
            columns += self._of_layers(arrays, segments, sums)
        if f"spread {kind}" in arrays:
            columns += self._spread(arrays[f"spread {kind}"], sums[:, ENTRIES])
        return Table(kind, segments.scopes, columns)

    def _norms(self, sums: NDArray[np.float64], *, clipped: bool) -> list[Column]:
        norms = np.sqrt(sums[:, :2].T).tolist()
        stages = {"stepped": norms[1]} | ({"before_clip": norms[0]} if clipped else {})
        return [Q.norm.column(values, {**self.labels, "stage": stage}) for stage, values in stages.items()]

    def _of_model(self, arrays: Arrays, numbers: NDArray[np.float64]) -> list[Column]:
        bad = int(np.count_nonzero(numbers[:, NAN] + numbers[:, INF]))
        columns = [Q.nonfinite_tensors.column([bad]), Q.without_gradient.column([self.missing])]
        if "limit" in arrays:
            share = float(arrays["limit"])
            columns.append(Q.limit_share.cells([share if np.isfinite(share) else NO_ENTRY]))
        if "coefficients" in arrays:
            columns.append(Q.clip_coefficient.column([float(arrays["coefficients"].min())]))
        if "noise" not in arrays:
            return columns
        ratio, noise, signal = arrays["noise"].tolist()
        why = {} if np.isfinite(ratio) else {0: UNKNOWN_WEIGHTS if self.weights_unknown else NOT_POSITIVE}
        columns.append(Q.noise_scale.column([ratio], {"unit": self.noise_unit or ""}, why))
        if self.of_one_rank:
            return columns
        if self.weights_unknown:
            return [*columns, Q.noise.cells([UNKNOWN_WEIGHTS]), Q.signal.cells([UNKNOWN_WEIGHTS])]
        return [*columns, Q.noise.column([noise]), Q.signal.column([signal])]

    def _of_layers(self, arrays: Arrays, layers: Segments, sums: NDArray[np.float64]) -> list[Column]:
        columns = []
        if "weights" in arrays:
            ratio = np.sqrt(sums[:, BEFORE] / layers.sums(arrays["weights"]))
            columns.append(Q.gradient_to_weight.column(ratio.tolist(), self.labels))
        if "stability" in arrays:
            missing = [_why_no_direction(norm) for norm in np.sqrt(sums[:, STEPPED]).tolist()]
            for quantity, values in zip((Q.stability, Q.stability_error), arrays["stability"].tolist(), strict=True):
                why = {place: missing[place] for place, value in enumerate(values) if not np.isfinite(value)}
                columns.append(quantity.column(values, {}, why))
        return columns

    def _spread(self, spread: NDArray[np.float64], entries: NDArray[np.float64]) -> list[Column]:
        """The mean and the unbiased variance of g over the entries of each scope."""
        mean, variance = spread.tolist()
        single = {place: "one entry has no variance" for place, count in enumerate(entries.tolist()) if count == 1}
        return [Q.mean.column(mean, self.labels), Q.variance.column(variance, self.labels, single)]

    def _first_nonfinite(self, numbers: NDArray[np.float64]) -> list[Table]:
        """The first tensor in the order of the backward that is not finite."""
        bad = numbers[:, NAN] + numbers[:, INF]
        if not bad.any():
            return []
        first = first_in_order(self.names, self.backward_order, bad.tolist())
        assert first is not None
        return [Table("tensor", [self.names[first]], [Q.first_nonfinite.column([float(bad[first])])])]


def _shares(sums: NDArray[np.float64]) -> list[Column]:
    zeros, nan, inf = (sums[:, ZEROS] / sums[:, ENTRIES]).tolist(), sums[:, NAN].tolist(), sums[:, INF].tolist()
    return [Q.zero_share.column(zeros), Q.nan.column(nan), Q.inf.column(inf)]


def _why_no_direction(norm: float) -> str:
    """A gradient without a direction: 0 or not finite, now or then."""
    if not np.isfinite(norm):
        return "its gradient is not finite"
    return "its gradient is or was 0 or not finite" if norm else ZERO
