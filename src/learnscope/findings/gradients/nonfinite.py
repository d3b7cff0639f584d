"""NaN and infinity: where they were first seen, and what that says about where they come from."""

from __future__ import annotations

import numpy as np
import pandas as pd

from learnscope.findings import analysis
from learnscope.findings.evidence import evidence_over
from learnscope.findings.gradients.not_finite_where import Source, sources
from learnscope.quantities.gradients import GradientFlow
from learnscope.quantities.outputs import Holdout, Loss
from learnscope.reading.cuts import Cuts
from learnscope.reading.gather import Series, is_nonfinite, rows, series
from learnscope.reading.lost import lost_steps, rows_told
from learnscope.reading.words import capital, count, num
from learnscope.record import Finding
from learnscope.store.reader import RunReader

DIVERGED = (
    "Training diverged before it broke: check that the loss is minimised, not maximised; lower the learning rate, "
    "lengthen the warm-up or clip the gradients, and go back to a checkpoint from before the rise."
)


@analysis(place=10, check="NaN and infinity", needs=[(Loss.loss, GradientFlow.nan, Holdout.holdout_loss)])
def nonfinite(reader: RunReader, cuts: Cuts) -> list[Finding]:  # noqa: ARG001  (no cut: one NaN is one too many)
    """At most one finding: NaN spreads, and only its first appearance says where to look."""
    loss, gradient, change, holdout = sources(reader)
    bad = sorted((s for s in (loss, gradient, change, holdout) if len(s.bad)), key=lambda source: source.first)
    if not bad:
        return []
    first = _broke_first(bad, holdout)
    frame = rows(reader, GradientFlow.first_nonfinite, kind="tensor")
    # a null with a non-finite status names the tensor too
    frame = frame[(frame["value"] > 0) | is_nonfinite(frame["status"])]
    tensor = str(frame["scope"].iloc[0]) if len(frame) else None
    # attempts are looked at where they break, gradients at the steps that are due
    attempt = next((lost for lost in lost_steps(reader) if lost.tensor and lost.step <= first.first), None)
    tensor = attempt.tensor if attempt is not None else tensor
    where = f", first in {tensor}" if tensor and first is gradient else ""
    sentences = [_sentence(source, reader) for source in bad]
    if tensor:
        sentences.append(f"The first bad tensor in backward order is {tensor}.")
    origin, advice = _origin(reader, first, loss, gradient, change, tensor)
    origin += rows_told(reader, first.first)
    if first is not bad[0]:
        origin = (
            f"The holdout, measured after step {holdout.first:,}, saw it before the next training step did: the model "
            f"had broken by then. {origin}"
        )
    span, times = (first.first, int(first.bad[-1])), float(len(first.bad))
    return [
        Finding(
            kind="nonfinite",
            severity="critical" if any(source.lasting for source in bad) or len(change.bad) else "warning",
            title=f"{capital(first.what)} not finite {'from' if first.lasting else 'at'} step {first.first:,}{where}",
            detail=" ".join([*sentences, origin]),
            advice=advice,
            evidence=evidence_over(span, first.probe, first.name, len(first.measured), times),
            scopes=[tensor] if tensor else [],
            since=bad[0].first,
        )
    ]


def _broke_first(bad: list[Source], holdout: Source) -> Source:
    """The first of them; a holdout that breaks just before training does is a witness, not the place.

    Its data cannot break the training: if the first thing that training shows after it is bad, the weights were.
    """
    if bad[0] is not holdout:
        return bad[0]
    after = [source for source in bad[1:] if not source.clean_between(holdout.first, source.first)]
    return after[0] if after else holdout


def _sentence(source: Source, reader: RunReader) -> str:
    """How often, since when, and how much at first."""
    clean = source.clean_before(source.first)
    before = f"clean at step {clean:,}" if clean is not None else "no earlier measurement"
    extent = _extent(reader, source)
    size = f": {extent}" if extent else ""
    end = "" if source.lasting else f"; the last measurement, at step {int(source.measured[-1]):,}, is finite again"
    return (
        f"{f'{capital(source.what)} were' if source.counts else f'The {source.what} was'} not finite in "
        f"{len(source.bad):,} of {count(len(source.measured), 'measurement')}, first at step {source.first:,} "
        f"({before}){size}{end}."
    )


def _extent(reader: RunReader, source: Source) -> str:
    """How much was bad at first: entries and tensors, or positions of the holdout data."""
    if source.name == Holdout.holdout_loss.name:
        bad, of = (series(reader, q).at(source.first) for q in (Holdout.holdout_nonfinite, Holdout.holdout_positions))
        return f"logits not finite at {int(bad):,} of {count(int(of), 'position')}" if bad and of else ""
    if source.counts is None:
        return ""
    quantities = {"NaN": source.counts.nan, "infinite": source.counts.inf}
    counts = {word: int(series(reader, quantity).at(source.first) or 0) for word, quantity in quantities.items()}
    entries = " and ".join(f"{n:,} {word}" for word, n in counts.items() if n)
    tensors = None
    if source.counts is GradientFlow:
        tensors = series(reader, GradientFlow.nonfinite_tensors).at(source.first)
    if tensors is None:
        frame = pd.concat([rows(reader, quantity, kind="tensor") for quantity in quantities.values()])
        tensors = frame["scope"][(frame["step"] == source.first) & (frame["value"] > 0)].nunique() or None
    where = f" in {count(int(tensors), 'tensor')}" if tensors is not None else ""
    return f"{entries} {'entry' if sum(counts.values()) == 1 else 'entries'}{where}"


def _origin(
    reader: RunReader, first: Source, loss: Source, gradient: Source, change: Source, tensor: str | None
) -> tuple[str, str]:
    """What came first, and what follows from that."""
    step = first.first
    if first is loss:
        return _from_the_loss(step, gradient, change, _growth(series(reader, Loss.loss), step))
    if first is gradient:
        if loss.clean_at(step):
            after = f" that {tensor} feeds" if tensor else ""
            return (
                f"The loss of step {step:,} was finite, so it started in the backward pass.",
                f"Look at the operation{after} for a derivative that does not exist: a square root or a norm at 0, "
                "a log or a division guarded by torch.where after the fact, half precision without loss scaling. "
                "torch.autograd.detect_anomaly() on that batch names it.",
            )
        return (
            f"The loss of step {step:,} was not recorded, so whether the forward pass was still sound is not known.",
            "Log the loss at every step (w.log(loss=loss)) and run again from the last clean step: a finite loss "
            "there points to the backward pass, a non-finite one to the forward pass or the batch.",
        )
    if (left := _left_its_course(reader, step)) is not None:
        return left
    if first is change:
        clean = gradient.clean_before(step + 1)
        gradients = "Gradients were not recorded up to there"
        if clean is not None:
            gradients = f"Gradients were finite in every measurement up to step {clean:,}"
        of_loss = "so was the loss" if loss.clean_before(step + 1) is not None else "the loss was not recorded"
        return (
            f"{gradients}, {of_loss}: the parameters broke in the update or between two measurements.",
            "Record gradients at every step around there (GradientFlow(every=1)). If they are finite, the step itself "
            "overflows: a lower learning rate, a larger eps, or float32 optimizer state.",
        )
    return (
        "Training loss, gradients and parameters show nothing of it where they were recorded.",
        "Look at the holdout data for inputs that the training data does not have: empty or fully masked examples, "
        "targets out of range, values that overflow in evaluation mode.",
    )


def _left_its_course(reader: RunReader, step: int) -> tuple[str, str] | None:
    """What to say if the training loss had left its course before anything was seen to be not finite."""
    growth = _growth(series(reader, Loss.loss), step + 1)
    if growth is None:
        return None
    last, usual, n = growth
    return (
        f"The training loss had left its course before: {num(last)}, against a median of {num(usual)} over the {n} "
        "values before that.",
        DIVERGED,
    )


def _growth(loss: Series, step: int) -> tuple[float, float, int] | None:
    """If the loss had grown before it broke: its last value, the median of the values before that, their number.

    Up to 20 values before, or all of them: a loss that grows slowly is not far above the last ones.
    """
    known = loss.finite.values[loss.finite.steps < step]
    for before in (known[-21:], known):
        if len(before) < 6:
            return None
        usual, last = float(np.median(before[:-1])), float(before[-1])
        if last > 2 * abs(usual):
            return last, usual, len(before) - 1
    return None


def _from_the_loss(
    step: int, gradient: Source, change: Source, growth: tuple[float, float, int] | None
) -> tuple[str, str]:
    clean, grads = change.clean_before(step), gradient.clean_before(step)
    weights = "Whether the parameters were still finite was not recorded"
    if clean is not None:
        weights = f"The parameters were finite when last measured before it, at step {clean:,}"
    before = f"; gradients were finite up to step {grads:,}" if grads is not None else ""
    origin = (
        f"The loss broke no later than the gradients, so it started in the forward pass of step {step:,} or earlier. "
        f"{weights}{before}."
    )
    if growth is not None:
        last, usual, n = growth
        return (
            f"{origin} The loss had already left its course: {num(last)} just before, against a median of {num(usual)} "
            f"over the {n} values before that.",
            DIVERGED,
        )
    return (
        origin,
        f"Keep the batch of step {step:,} and run it forward from the last clean weights: activations that overflow "
        "half precision, log(0), a division by an empty mask, or an input that is itself not finite.",
    )
