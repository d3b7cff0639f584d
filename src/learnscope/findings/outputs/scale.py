"""Scales that are wrong before the first step: of the inputs, of the initialisation, of the loss."""

from __future__ import annotations

import numpy as np

from learnscope.findings import analysis
from learnscope.findings.evidence import evidence_over
from learnscope.findings.ruled_out import said
from learnscope.quantities.features import Inputs
from learnscope.quantities.outputs import Loss, Objective
from learnscope.reading.course.chance import Guessing, guessing, logged_over_mean, main_function, reductions_of
from learnscope.reading.course.loss_course import loss_course
from learnscope.reading.course.movement import adaptive
from learnscope.reading.course.trainers import trainer_of
from learnscope.reading.cuts import Cuts
from learnscope.reading.gather import Series, series
from learnscope.reading.words import between, count, num
from learnscope.record import Finding, Severity
from learnscope.store.reader import RunReader

WILD = (
    "exploding", "diverging", "learning_rate_too_high", "nonfinite", "loss_spike", "bad_batch",
    "dead_units", "zero_gradients", "not_learning", "labels_unrelated", "clipped_hard", "plateau", "vanishing",
    "majority_guess", "saturated_units", "worsening", "weight_decay_too_strong", "not_moving", "learning_rate_too_low",
)  # fmt: skip
"""What numbers that are too large lead to."""
BOUNDED = ("exploding", "clipped_hard", "weight_decay_too_strong", "nonfinite")
"""The same where the optimizer divides by the gradient's size, so that steps are as large as with a mean."""


@analysis(place=17, check="scale of inputs and of the start", needs=[Loss.loss, Objective.objective_mean])
def scale_of_the_start(reader: RunReader, cuts: Cuts) -> list[Finding]:
    found = guessing(reader)
    inputs = _unscaled(reader, found, cuts)
    if inputs is not None:
        return [inputs]
    times = None if found is None else _start(reader, found, cuts)
    return [] if found is None or times is None else [_initialisation(reader, found, times)]


def learned(found: Guessing | None) -> bool:
    """Whether a run ended well all the same: below a third of what guessing gives, or nine of ten right."""
    if found is None:
        return False
    if found.accuracy is not None and found.accuracy.value > max(0.9, 1 - (1 - (found.chance.accuracy or 0)) / 3):
        return True
    return found.course is not None and found.chance.loss is not None and found.course.end.value < found.chance.loss / 3


def _start(reader: RunReader, found: Guessing, cuts: Cuts) -> float | None:
    """How far the first loss (or the first outputs, for numbers) is above what is usual; None if it is usual."""
    if found.chance.numbers:
        spread = series(reader, Objective.output_std).finite.values
        level, width = (series(reader, q).finite.values for q in (Objective.target_mean, Objective.target_std))
        if not len(spread) or not len(level) or not len(width):
            return None
        size = abs(float(level[-1])) + float(width[-1])
        times = float(spread[0]) / size if size else 0.0
        return times if times >= cuts.wide_outputs and _measured_early(reader) else None
    times = found.starts_high or 0.0
    return times if times >= cuts.high_start else None


def _measured_early(reader: RunReader) -> bool:
    steps = series(reader, Objective.output_std).finite.steps
    return bool(len(steps)) and int(steps[0]) <= 2


def _initialisation(reader: RunReader, found: Guessing, times: float) -> Finding:
    course = found.course
    assert course is not None
    first = int(course.steps[0])
    outputs = series(reader, Inputs.output_rms, data="train").finite
    size = f" The model's outputs had a root mean square of {num(float(outputs.values[0]))}." if len(outputs) else ""
    severity: Severity = "info" if learned(found) else "warning"
    what = "outputs are" if found.chance.numbers else "loss is"
    unit = "the targets" if found.chance.numbers else "what guessing gives"
    return Finding(
        kind="exploding_initialisation",
        severity=severity,
        title=f"The model starts out wild: before any step its {what} {num(times)} times {unit}",
        detail=f"At step {first:,}, before any update, the loss was {num(float(course.values[0]))} a target, and "
        f"{found.chance.what} gives {num(found.chance.loss or 0.0)}: a model that knows nothing should start near that."
        f"{size}",
        advice="Look at the initialisation: the gain for the activation that is used, what is added or multiplied from "
        "layer to layer without a normalisation, weights of another model. Smaller weights in the last layer make it "
        "start at chance.",
        evidence=evidence_over((first, first), course.probe, course.name, 1, float(course.values[0])),
        cause=True,
        explains=WILD,
        ruled_out=said(
            "A learning rate that is too high: no step had been taken.",
            _inputs_are_usual(reader),
        ),
        since=first,
    )


def _inputs_are_usual(reader: RunReader) -> str | None:
    spread = series(reader, Inputs.input_std, data="train").finite
    if not len(spread):
        return None
    return f"Unscaled inputs: their standard deviation is {num(float(np.median(spread.values)))}."


def _unscaled(reader: RunReader, found: Guessing | None, cuts: Cuts) -> Finding | None:
    spread, far = (series(reader, q, data="train").finite for q in (Inputs.input_std, Inputs.input_max))
    if not len(spread) or not len(far):
        return None
    width, most = float(np.median(spread.values)), float(np.median(far.values))
    if width < cuts.wide_inputs or most < cuts.far_inputs:
        return None
    course = loss_course(reader)
    failed = found is not None and (found.better is False or (found.starts_high or 0) >= 3) and not learned(found)
    severity: Severity = "warning" if failed or (course is not None and course.broken > 0) else "info"
    first_rms = series(reader, Inputs.first_output_rms, data="train").finite
    inside = (
        f" What the first layer makes of them has a root mean square of {num(float(first_rms.values[0]))}."
        if len(first_rms)
        else ""
    )
    steps = int(spread.steps[0]), int(spread.steps[-1])
    start = found.starts_high if found is not None else None
    loss = f" The first loss was {num(start)} times what guessing gives." if start is not None and start > 1.5 else ""
    return Finding(
        kind="unscaled_inputs",
        severity=severity,
        title=f"The inputs are not scaled: standard deviation {num(width)}, up to {num(most)}",
        detail=f"Inputs have a standard deviation of {num(width)} and reach {num(most)} (medians of "
        f"{count(len(spread), 'measurement')}, {between(*steps)}), where weights are drawn for about 1.{inside}{loss}",
        advice="Subtract the mean of each input and divide by its standard deviation (of the training data), divide "
        "images by 255, or begin with a normalisation layer.",
        evidence=evidence_over(steps, spread.probe, Inputs.input_std, len(spread), width),
        cause=True,
        explains=("exploding_initialisation", *WILD),
        since=steps[0],
    )


@analysis(place=18, check="sum where a mean is meant", needs=[Objective.objective_value])
def summed_loss(reader: RunReader, cuts: Cuts) -> list[Finding]:
    """A candidate: a sum is as good as a mean with another learning rate, and explains steps that are too large."""
    times = logged_over_mean(reader)
    by_function = "sum" in reductions_of(reader)
    returned = series(reader, Objective.objective_value, function=main_function(reader), reduction="sum").finite
    if by_function and len(returned):
        times = _ratio(returned, series(reader, Objective.objective_mean, function=main_function(reader)).finite)
    if times is None or times < cuts.summed or _divided(reader, returned, cuts):
        return []
    found = series(reader, Objective.objective_value).finite
    steps = int(found.steps[0]), int(found.steps[-1])
    how = 'reduction="sum"' if by_function else "a sum in the loop"
    return [
        Finding(
            kind="summed_loss",
            severity="info",
            title=f"The loss is a sum over targets ({how}): {num(times)} times the loss of one",
            detail=f"Gradients are {num(times)} times those of a mean, in {count(len(found), 'measurement')}, "
            f"{between(*steps)}, and grow with the batch; so do the steps, unless the optimizer divides by their size.",
            advice=f"Use "
            'reduction="mean", or divide by the number of targets; else the learning rate and the bound of '
            f"a clip have to be {num(times)} times smaller and larger than usual.",
            evidence=evidence_over(steps, found.probe, Objective.objective_value, len(found), times),
            cause=True,
            explains=BOUNDED if adaptive(reader) else WILD,
            since=steps[0],
        )
    ]


def _divided(reader: RunReader, returned: Series, cuts: Cuts) -> bool:
    """Whether the loop trains something else than the sum: the logged loss has other terms, and less of it.

    A trainer's logged loss is what its gradients are of; that of a loop may have been divided for the log alone.
    """
    if trainer_of(reader) is not None:
        means = series(reader, Objective.objective_mean, function=main_function(reader)).finite
        times = _ratio(series(reader, Loss.loss).finite, means)
        return times is not None and times < cuts.summed
    logged = loss_course(reader)
    if logged is None or not len(returned) or logged_over_mean(reader) is not None:
        return False
    _, ours, theirs = np.intersect1d(logged.steps, returned.steps, return_indices=True)
    return len(ours) > 0 and bool(np.median(logged.values[ours] - returned.values[theirs] / 2) < 0)


def _ratio(values: Series, means: Series) -> float | None:
    _, ours, theirs = np.intersect1d(values.steps, means.steps, return_indices=True)
    usable = np.abs(means.values[theirs]) > 1e-12
    if not usable.any():
        return None
    return float(np.median(values.values[ours][usable] / means.values[theirs][usable]))
