"""Gradients that are the same at every step: left over from before, while none comes from the training."""

from __future__ import annotations

import numpy as np

from learnscope.findings import analysis
from learnscope.findings.evidence import evidence_over
from learnscope.quantities.gradients import GradientFlow
from learnscope.quantities.outputs import Loss
from learnscope.reading.course.loss_course import loss_course
from learnscope.reading.cuts import Cuts
from learnscope.reading.gather import grid
from learnscope.reading.words import between, count, listed
from learnscope.record import Finding
from learnscope.store.reader import RunReader

VARIES = 1e-6
"""Share of itself by which a loss must vary from batch to batch: with one batch and weights that rest, gradients are
the same too."""


@analysis(
    place=11, check="gradients that change", needs=[GradientFlow.norm.of("layer"), Loss.loss], at_least="measurements"
)
def left_over(reader: RunReader, cuts: Cuts) -> list[Finding]:
    """Norms of layers with frozen weights, all equal to the last digit, beside losses that differ."""
    norms, course = grid(reader, GradientFlow.norm, stage="stepped"), loss_course(reader)
    if course is None or len(norms.steps) < 2 * cuts.measurements or len(norms.scopes) < 2:
        return []
    there = np.asarray((norms.values > 0).any(axis=0))
    same = bool(np.isfinite(norms.values).all() and (norms.values == norms.values[0]).all())
    if not same or there.sum() < 2 or float(course.values.std()) <= VARIES * abs(float(course.values.mean())):
        return []
    steps, n = (int(norms.steps[0]), int(norms.steps[-1])), len(norms.steps)
    names = [scope for scope, some in zip(norms.scopes, there, strict=True) if some]
    frozen = [f".{name}" for name in (reader.manifest.get("model") or {}).get("frozen") or []]
    if not all(any(f".{layer}." in name for name in frozen) for layer in names):
        return []
    return [
        Finding(
            kind="no_gradient",
            severity="warning",
            title="The gradients are the same at every step, to the last digit: none comes from the training",
            detail=f"In {count(n, 'measurement')}, {between(*steps)}, the gradient of "
            f"{listed(names, cuts.names_listed)} had one and the same norm, while the losses differed from batch to "
            "batch. Such gradients are left over, as of weights that were frozen after an earlier training; "
            "what is to be trained gets none, or only zeros.",
            advice="Check that what is meant to be trained has requires_grad set and is in the optimizer. Of adapters "
            "that begin at zero, that half has to be trained: the other gets no gradient before it moves. Clear old "
            "gradients with model.zero_grad() before training.",
            evidence=evidence_over(steps, norms.probe, GradientFlow.norm, n, float(np.nanmax(norms.values[0]))),
            cause=True,
            explains=["learning_rate_too_low", "not_learning", "plateau", "not_moving", "labels_unrelated",
                      "majority_guess", "zero_gradients", "vanishing", "gradients_not_cleared"],
            since=steps[0],
        )
    ]  # fmt: skip
