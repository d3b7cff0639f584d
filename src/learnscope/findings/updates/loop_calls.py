"""What the loop calls in the wrong order, twice, or not at all."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from learnscope.findings import analysis
from learnscope.findings.evidence import evidence_over
from learnscope.quantities import Quantity
from learnscope.quantities.updates import LoopCalls
from learnscope.reading.cuts import Cuts
from learnscope.reading.gather import Series, labels_of, series
from learnscope.reading.words import between, count, listed, num, percent
from learnscope.record import Finding, Severity
from learnscope.store.reader import RunReader

WILD = (
    "exploding", "diverging", "learning_rate_too_high", "nonfinite", "loss_spike", "bad_batch",
    "plateau", "worsening", "clipped_hard", "not_learning", "labels_unrelated", "dead_units", "zero_gradients",
    "vanishing", "summed_loss",
)  # fmt: skip
"""What steps that are too large lead to."""
STILL = (
    "not_moving", "zero_gradients", "no_gradient", "vanishing", "not_learning", "plateau",
    "labels_unrelated", "learning_rate_too_low", "majority_guess", "frozen",
)  # fmt: skip
"""What is seen when steps do nothing."""


@dataclass(frozen=True)
class Fault:
    """A count that should be 0, and what it means if it is not."""

    counted: Quantity
    of: Quantity
    kind: str
    title: str
    """With the share of the steps (or backward passes) as {share}."""
    meaning: str
    advice: str
    explains: tuple[str, ...]
    critical_share: float = 2.0
    """Share from which the run is spoilt; above 1 never."""
    least_share: float = 0.05
    alternative: str = ""


FAULTS = (
    Fault(
        LoopCalls.uncleared_steps, LoopCalls.steps, "gradients_not_cleared",
        "Gradients are not cleared: {share} of the steps add to those of earlier steps",
        "Each of them used the sum of its own gradient and of earlier ones, which grows with every step",
        "Call optimizer.zero_grad() once for every step, after it or before the backward, on the optimizer that holds "
        "these parameters (or model.zero_grad()).",
        WILD, critical_share=0.5,
    ),
    Fault(
        LoopCalls.cleared_steps, LoopCalls.steps, "gradients_cleared_early",
        "Gradients are cleared before they are used: at {share} of the steps",
        "Between their backward and their step the gradients were set to zero or to None, so that these steps did "
        "nothing",
        "Clear gradients after the step or before the backward: zero_grad(), backward(), step().",
        STILL, critical_share=0.5,
    ),
    Fault(
        LoopCalls.steps_without_backward, LoopCalls.steps, "steps_without_backward",
        "Steps without a backward: {share} of them",
        "No backward came between them and the optimizer's step before, so that they repeat an old gradient, run on "
        "momentum alone, or do nothing",
        "Step once for every backward: look for a second optimizer.step(), for one in a callback, and for a loss that "
        "does not reach this model (detached, or made into a new tensor).",
        (*STILL, *WILD), critical_share=0.9,
    ),
    Fault(
        LoopCalls.backwards_without_step, LoopCalls.backwards, "backward_without_step",
        "Backward passes without a step: the gradients of {share} were never used",
        "Their gradients were cleared or left before any optimizer stepped, so that these batches were not trained on",
        "Clear gradients once for every step, not for every batch, if they are to be accumulated; or step after each "
        "backward.",
        ("not_learning", "plateau", "learning_rate_too_low"), least_share=0.6,
        alternative="Backward passes for the gradients of the inputs alone, as in adversarial training: nothing is "
        "wrong then.",
    ),
    Fault(
        LoopCalls.eval_mode_steps, LoopCalls.steps, "eval_mode_training",
        "Training in eval mode: at {share} of the steps",
        "Their backward found batch norms or dropouts of trained parts in eval mode: dropout does nothing there, and "
        "batch norms use and do not update their running statistics",
        "Call model.train() again after every evaluation, before the next training batch.",
        ("overfitting", "worsening", "stale_batch_norm", "holdout_differs", "plateau"),
    ),
)  # fmt: skip


@analysis(
    place=8, check="order of the loop's calls", needs=[LoopCalls.steps, LoopCalls.uncleared_steps],
)  # fmt: skip
def order_of_calls(reader: RunReader, cuts: Cuts) -> list[Finding]:
    found = [_judge(reader, fault, cuts) for fault in FAULTS]
    return [finding for finding in found if finding is not None]


def _judge(reader: RunReader, fault: Fault, cuts: Cuts) -> Finding | None:
    counted, of = series(reader, fault.counted).finite, series(reader, fault.of).finite
    number, total = float(counted.values.sum()), float(of.values.sum())
    if number < cuts.measurements or not total or number / total < fault.least_share:
        return None
    first, last = _span(counted)
    share = min(number / total, 1.0)
    unit = "backward passes" if fault.of is LoopCalls.backwards else "steps"
    modules = _eval_modules(reader) if fault.counted is LoopCalls.eval_mode_steps else []
    where = f": {listed(modules, cuts.names_listed)}" if modules else ""
    severity: Severity = "critical" if share >= fault.critical_share else "warning"
    return Finding(
        kind=fault.kind,
        severity=severity,
        title=fault.title.format(share=percent(share)),
        detail=f"{num(number)} of {num(total)} {unit}, {between(first, last)}. {fault.meaning}{where}.",
        advice=fault.advice,
        evidence=evidence_over((first, last), counted.probe, fault.counted, int(total), number),
        scopes=modules,
        cause=True,
        explains=fault.explains,
        alternatives=[fault.alternative] if fault.alternative else [],
        since=first,
    )


def _span(counted: Series) -> tuple[int, int]:
    """The first and the last record with such a call."""
    steps = counted.steps[counted.values > 0]
    return int(steps[0]), int(steps[-1])


def _eval_modules(reader: RunReader) -> list[str]:
    columns = reader.columns()
    noted = [names for label in labels_of(reader, LoopCalls) for _, names in columns.notes(label, "eval_modules")]
    return list(dict.fromkeys(str(name) for names in noted for name in names or []))


@analysis(
    place=9, check="dropout and batch norm in evaluations", needs=[LoopCalls.train_mode_evaluations]
)  # fmt: skip
def evaluations(reader: RunReader, cuts: Cuts) -> list[Finding]:  # noqa: ARG001  (counts have no cut)
    """Forwards without gradients in training mode, again and again: at one time alone they may renew batch norms."""
    counted = series(reader, LoopCalls.train_mode_evaluations).finite
    times = int((counted.values > 0).sum())
    if times < 2:
        return []
    number = int(counted.values.sum())
    first, last = _span(counted)
    return [
        Finding(
            kind="dropout_in_evaluation",
            severity="warning",
            title=f"{count(number, 'evaluation')} ran with dropout or batch norm in training mode",
            detail=f"They ran without gradients while a dropout or batch norm of the model was in training mode, in "
            f"{count(times, 'record')}, {between(first, last)}: what they measured is noisy or depends on the rest of "
            "the batch, and batch norms took up statistics of evaluation data.",
            advice="Call model.eval() before evaluating and model.train() after it.",
            evidence=evidence_over(
                (first, last), counted.probe, LoopCalls.train_mode_evaluations, len(counted), number
            ),
            cause=True,
            explains=["worsening", "overfitting", "stale_batch_norm"],
            alternatives=["Dropout that is meant, as for uncertainty by sampling: nothing is wrong then."],
            since=first,
        )
    ]


@analysis(place=9, check="optimizer state and schedule", needs=[LoopCalls.steps])
def state_and_schedule(reader: RunReader, cuts: Cuts) -> list[Finding]:
    return [*_resets(reader), *_twice(reader, cuts)]


def _resets(reader: RunReader) -> list[Finding]:
    resets = series(reader, LoopCalls.state_resets).finite
    if not resets.values.any():
        return []
    times = resets.steps[resets.values > 0]
    first, last = _span(resets)
    steps = listed([f"{step:,}" for step in times], 6)
    return [
        Finding(
            kind="state_reset",
            severity="warning",
            title=f"The optimizer's state began again {'once' if len(times) == 1 else f'{len(times)} times'}, first "
            f"at or before step {first:,}",
            detail=f"Its count of steps fell, or its momentum was gone, while the loop went on (seen at step {steps}). "
            "The steps after it are those of a new optimizer: Adam's first ones are as large as the learning rate "
            "whatever the gradient.",
            advice="Save and load the optimizer's state_dict with the model's, and make the optimizer once, outside "
            "of the "
            "loop over epochs.",
            evidence=evidence_over((first, last), resets.probe, LoopCalls.state_resets, len(resets), len(times)),
            cause=True,
            explains=["loss_spike", "plateau"],
            since=first,
        )
    ]  # fmt: skip


def _twice(reader: RunReader, cuts: Cuts) -> list[Finding]:
    calls, steps = series(reader, LoopCalls.scheduler_steps).finite, series(reader, LoopCalls.steps).finite
    most = series(reader, LoopCalls.rate_changes).finite
    _, ours, theirs = np.intersect1d(calls.steps, steps.steps, return_indices=True)
    taken, called = float(steps.values[theirs].sum()), float(calls.values[ours].sum())
    often = (most.values > 1).mean() if len(most) else 0.0
    if len(most) < cuts.measurements or not taken or called < 1.5 * taken or often < 0.5:
        return []
    first, last = _span(Series(most.steps, (most.values > 1).astype(np.float64), most.status, most.probe))
    times = called / taken
    return [
        Finding(
            kind="schedule_twice",
            severity="warning",
            title=f"The learning rate schedule is stepped {num(times)} times a step",
            detail=f"{called:,.0f} calls of a schedule's step() for {taken:,.0f} training steps, up to "
            f"{int(most.values.max())} between two of them, {between(first, last)}: it runs {num(times)} times as "
            "fast as "
            "the training.",
            advice="Step the schedule once for every optimizer step: look for a second scheduler.step(), for one in a "
            "trainer or callback, and for one inside the loop over micro-batches.",
            evidence=evidence_over((first, last), most.probe, LoopCalls.scheduler_steps, int(taken), called),
            cause=True,
            explains=["learning_rate_zero", "learning_rate_too_low", "plateau", "not_moving"],
            since=first,
        )
    ]  # fmt: skip
