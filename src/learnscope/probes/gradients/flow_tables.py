"""The tables of GradientFlow, made of numbers that have been read from the device."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from learnscope.core.lost import first_in_order
from learnscope.quantities.base import Quantity
from learnscope.quantities.gradients import GradientFlow as Q
from learnscope.record import Column, Label, Table
from learnscope.tensor.segments import JointSegments

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
BEFORE, STEPPED, ZEROS, NAN, INF, ENTRIES, WEIGHTS = range(7)


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
            counts = [arrays["zeros"], arrays["nan"], arrays["inf"], self.segments.entries]
            weights = [arrays["weights"]] if "weights" in arrays else []
            # of all kinds together: a call costs more than its numbers
            sums = self.segments.joined.sums(np.array([squares, stepped, *counts, *weights]).T)
            norms, shares = np.sqrt(sums[:, :2].T).tolist(), _shares(sums)
            bad = arrays["nan"] + arrays["inf"]
            tables = []
            for kind, rows in self.segments.slices.items():
                columns = self._norms([values[rows] for values in norms], clipped="coefficients" in arrays)
                if kind in ("model", "layer"):
                    columns += [quantity.column(values[rows]) for quantity, values in shares]
                columns += self._of_kind(kind, arrays, bad, sums[rows])
                tables.append(Table(kind, self.segments.kinds[kind].scopes, columns))
        return [*tables, *self.idle, *self._first_nonfinite(bad)]

    def _of_kind(self, kind: str, arrays: Arrays, bad: NDArray[np.float64], sums: NDArray[np.float64]) -> list[Column]:
        """What one kind of scopes has beyond norms and shares."""
        columns = self._of_model(arrays, bad) if kind == "model" else []
        if kind == "layer":
            columns += self._of_layers(arrays, sums)
        if f"spread {kind}" in arrays:
            columns += self._spread(arrays[f"spread {kind}"], sums[:, ENTRIES])
        return columns

    def _norms(self, norms: Sequence[list[float]], *, clipped: bool) -> list[Column]:
        stages = {"stepped": norms[1]} | ({"before_clip": norms[0]} if clipped else {})
        return [Q.norm.column(values, {**self.labels, "stage": stage}) for stage, values in stages.items()]

    def _of_model(self, arrays: Arrays, bad: NDArray[np.float64]) -> list[Column]:
        count = int(np.count_nonzero(bad))
        columns = [Q.nonfinite_tensors.column([count]), Q.without_gradient.column([self.missing])]
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

    def _of_layers(self, arrays: Arrays, sums: NDArray[np.float64]) -> list[Column]:
        columns = []
        if "weights" in arrays:
            ratio = np.sqrt(sums[:, BEFORE] / sums[:, WEIGHTS])
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

    def _first_nonfinite(self, bad: NDArray[np.float64]) -> list[Table]:
        """The first tensor in the order of the backward that is not finite."""
        if not bad.any():
            return []
        first = first_in_order(self.names, self.backward_order, bad.tolist())
        assert first is not None
        return [Table("tensor", [self.names[first]], [Q.first_nonfinite.column([float(bad[first])])])]


def _shares(sums: NDArray[np.float64]) -> list[tuple[Quantity, list[float]]]:
    """What is zero, NaN or infinite of each scope."""
    zeros, nan, inf = (sums[:, ZEROS] / sums[:, ENTRIES]).tolist(), sums[:, NAN].tolist(), sums[:, INF].tolist()
    return [(Q.zero_share, zeros), (Q.nan, nan), (Q.inf, inf)]


def _why_no_direction(norm: float) -> str:
    """A gradient without a direction: 0 or not finite, now or then."""
    if not np.isfinite(norm):
        return "its gradient is not finite"
    return "its gradient is or was 0 or not finite" if norm else ZERO
