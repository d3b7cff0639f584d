"""Curves and grids in the form that a page carries: exact where there is room, else lowest and highest of each bucket.

The page makes coarser levels of these itself, by the same rule, so that no zoom hides a spike.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from learnscope.report.page.catalogue import BROKEN, Matrix
from learnscope.report.page.packing import Columns

Floats = NDArray[np.float64]
CURVE_POINTS = 3000
"""Measurements up to which a curve is carried as it is; of more, as many buckets."""
MAIN_POINTS = 12_000
"""The same for the curves at the top of the page."""


def curve(columns: Columns, steps: NDArray[np.int64], values: Floats, most: int = CURVE_POINTS) -> dict[str, Any]:
    """A curve as columns: `v` for single values; `low`, `high` and `mean` for buckets of `per` measurements.

    `bad` are spans of steps at which it was measured and not finite: first, last, first, last.
    """
    broken = np.isinf(values)
    values = np.where(broken, np.nan, values)
    body: dict[str, Any] = {"n": len(steps)}
    if broken.any():
        edges = np.flatnonzero(np.diff(np.concatenate([[False], broken, [False]])))
        edges[1::2] -= 1
        body["bad"] = columns.steps(steps[edges])
    if len(steps) <= most:
        return body | {"steps": columns.steps(steps), "v": columns.floats(values)}
    per = -(-len(steps) // most)
    starts = np.arange(0, len(steps), per)
    low, high, mean = (each[:, 0] for each in _buckets(values[:, None], starts))
    return body | {
        "per": per, "steps": columns.steps(steps[starts]), "last": int(steps[-1]), "low": columns.floats(low),
        "high": columns.floats(high), "mean": columns.floats(mean, rounded=True),
    }  # fmt: skip


@dataclass(frozen=True)
class Cells:
    """The cells of a heatmap: columns of one or more measurements (down) by scopes (across)."""

    starts: NDArray[np.int64]
    """The first step of each column."""
    low: Floats
    high: Floats
    n: int
    per: int
    last: int

    @classmethod
    def of(cls, matrix: Matrix, most: int) -> Cells:
        """With at most so many columns."""
        n = len(matrix.steps)
        per = max(1, -(-n // most))
        starts = np.arange(0, n, per)
        low, high = (matrix.values, matrix.values) if per == 1 else _buckets(matrix.values, starts)[:2]
        return cls(matrix.steps[starts], low, high, n, per, int(matrix.steps[-1]))

    def halved(self) -> Cells:
        """With half as many columns."""
        starts = np.arange(0, len(self.starts), 2)
        low = np.fmin.reduceat(np.where(np.isinf(self.low), np.nan, self.low), starts, axis=0)
        high = np.fmax.reduceat(self.high, starts, axis=0)  # infinity, which is not finite, stays
        return Cells(self.starts[starts], low, high, self.n, 2 * self.per, self.last)

    @property
    def numbers(self) -> int:
        return int(self.high.size) * (1 if self.per == 1 else 2)

    def packed(self, columns: Columns) -> dict[str, Any]:
        """Row by row; `low` is left out where every cell is one measurement."""
        body = {"steps": columns.steps(self.starts), "last": self.last, "n": self.n, "per": self.per}
        body["high"] = columns.floats(self.high.T, rounded=True)
        return body if self.per == 1 else body | {"low": columns.floats(self.low.T, rounded=True)}


def _buckets(values: Floats, starts: NDArray[np.int64]) -> tuple[Floats, Floats, Floats]:
    """Lowest, highest and mean of the finite values of each bucket, down.

    A bucket with a value that is not finite is not finite at its upper end; one without any is NaN.
    """
    broken = np.isinf(values)
    finite = np.where(broken, np.nan, values)
    low, high = np.fmin.reduceat(finite, starts, axis=0), np.fmax.reduceat(finite, starts, axis=0)
    counts = np.add.reduceat(np.isfinite(finite), starts, axis=0)
    mean = np.full(counts.shape, np.nan)
    np.divide(np.add.reduceat(np.nan_to_num(finite), starts, axis=0), counts, out=mean, where=counts > 0)
    bad = np.logical_or.reduceat(broken, starts, axis=0)
    return low, np.where(bad, BROKEN, high), mean


def spark(steps: NDArray[np.int64], values: Floats, most: int = 80) -> dict[str, list[Any]] | None:
    """A few dozen points for a small line, in the JSON itself: lowest and highest of each bucket."""
    kept = np.isfinite(values)
    if kept.sum() < 2:
        return None
    steps, values = steps[kept], values[kept]
    starts = np.arange(0, len(steps), max(1, -(-len(steps) // most)))
    low, high = np.fmin.reduceat(values, starts), np.fmax.reduceat(values, starts)
    return {"steps": steps[starts].tolist(), "low": _short(low), "high": _short(high)}


def _short(values: Floats) -> list[float]:
    return [float(f"{value:.4g}") for value in values.tolist()]
