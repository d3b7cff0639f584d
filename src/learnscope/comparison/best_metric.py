"""The best value of each run on held-out data, with its interval over examples."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from learnscope.intervals import ratio_interval, wilson
from learnscope.quantities.outputs import Holdout
from learnscope.reading.course.best import Best, best_step
from learnscope.reading.gather import series
from learnscope.run import Run
from learnscope.store.backend import RunError


@dataclass(frozen=True)
class BestMetric:
    """One run's best, or the reason why there is none."""

    best: Best | None
    interval: tuple[float, float] | None = None
    n: int | None = None
    reason: str = ""
    """Why there is no best, or no interval."""


def best_metrics(runs: Mapping[str, Run]) -> dict[str, BestMetric]:
    """Of every run; they are comparable only if all were judged by the same quantity."""
    return {label: _of(run) for label, run in runs.items()}


def _of(run: Run) -> BestMetric:
    best = best_step(run)
    if best is None:
        return BestMetric(None, reason="no holdout was measured")
    if best.quantity.name == Holdout.holdout_accuracy.name:
        n = series(run, Holdout.holdout_positions, probe=best.probe).at(best.step)
        return (
            BestMetric(best, wilson(best.value, int(n)), int(n)) if n else BestMetric(best, reason="n was not recorded")
        )
    try:
        arrays = run.arrays(best.probe, best.step)
        losses, examples = arrays["losses"].reshape(-1).astype(np.float64), arrays["example"].reshape(-1)
    except (KeyError, RunError):  # nothing was kept, or its file is gone
        return BestMetric(best, reason="no losses of single examples were kept at that step")
    _, where = np.unique(examples, return_inverse=True)
    sums, counts = np.bincount(where, weights=losses), np.bincount(where).astype(np.float64)
    low, high, reason = ratio_interval(sums, counts)
    if reason is not None:
        return BestMetric(best, n=len(sums), reason=reason)
    return BestMetric(best, (low, high), len(sums))
