"""NaN and infinity: where they were first seen, and what that says about where they come from."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from learnscope.findings.registry import analysis
from learnscope.quantities.gradients import GradientFlow
from learnscope.quantities.outputs import Holdout, Loss
from learnscope.quantities.updates import ParameterChange
from learnscope.reading.cuts import Cuts
from learnscope.reading.gather import NONFINITE, Series, rows, series
from learnscope.reading.words import capital, count, num
from learnscope.record import Evidence, Finding
from learnscope.store.reader import RunReader

Counted = type[GradientFlow] | type[ParameterChange]


@dataclass(frozen=True)
class Source:
    """One place at which numbers were looked at: the steps measured, and those at which they were bad."""

    what: str
    probe: str
    name: str
    measured: NDArray[np.int64]
    bad: NDArray[np.int64]

    @property
    def plural(self) -> bool:
        return self.what in ("gradients", "parameters")

    @property
    def first(self) -> int:
        return int(self.bad[0])

    @property
    def lasting(self) -> bool:
        """Whether the last measurement is bad too."""
        return int(self.bad[-1]) == int(self.measured[-1])

    def clean_before(self, step: int) -> int | None:
        """The last measured step before `step`, all of which are clean up to the first bad one."""
        earlier = self.measured[self.measured < min(step, self.first if len(self.bad) else step)]
        return int(earlier[-1]) if len(earlier) else None

    def says_clean_at(self, step: int) -> bool:
        return bool(np.isin(step, self.measured)) and not bool(np.isin(step, self.bad))


@analysis(place=10)
def nonfinite(reader: RunReader, cuts: Cuts) -> list[Finding]:  # noqa: ARG001  (no cut: one NaN is one too many)
    """At most one finding: NaN spreads, and only its first appearance says where to look."""
    loss, gradient, change, holdout = sources(reader)
    seen = [source for source in (loss, gradient, change, holdout) if len(source.bad)]
    if not seen:
        return []
    first = min(seen, key=lambda source: source.first)
    tensor = _first_tensor(reader)
    lasting = any(source.lasting for source in seen)
    where = f", first in {tensor}" if tensor and first is gradient else ""
    parts = [_sentence(source, reader) for source in sorted(seen, key=lambda source: source.first)]
    if tensor:
        parts.append(f"The first bad tensor in backward order is {tensor}.")
    said, advice = _origin(reader, first, loss, gradient, change, tensor)
    return [
        Finding(
            kind="nonfinite",
            severity="critical" if lasting or len(change.bad) else "warning",
            title=f"{capital(first.what)} not finite {'from' if first.lasting else 'at'} step {first.first:,}{where}",
            detail=" ".join([*parts, said]),
            advice=advice,
            evidence=Evidence(
                probe=first.probe,
                name=first.name,
                n=len(first.measured),
                first_step=first.first,
                last_step=int(first.bad[-1]),
                value=float(len(first.bad)),
            ),
            scopes=[tensor] if tensor else [],
        )
    ]


def sources(reader: RunReader) -> tuple[Source, Source, Source, Source]:
    """Loss, gradients, parameters and holdout loss: the order in which a step computes them."""
    return (
        _of_value(series(reader, Loss.loss), "loss", Loss.loss.name),
        _of_counts(reader, GradientFlow, "gradients"),
        _of_counts(reader, ParameterChange, "parameters"),
        _of_value(series(reader, Holdout.holdout_loss), "holdout loss", Holdout.holdout_loss.name),
    )


def _of_value(values: Series, what: str, name: str) -> Source:
    measured = values.steps[np.isfinite(values.values) | np.isin(values.steps, values.broken)]
    return Source(what, values.probe, name, measured, values.broken)


def _of_counts(reader: RunReader, counted: Counted, what: str) -> Source:
    """From the model-wide counts of bad entries. Where they are null, nothing is known."""
    nan, inf = series(reader, counted.nan), series(reader, counted.inf)
    bad = [s.steps[np.nan_to_num(s.values) > 0] for s in (nan, inf)]
    measured = [s.finite.steps for s in (nan, inf)]
    return Source(
        what, nan.probe or inf.probe, f"{counted.nan.name}, {counted.inf.name}", np.union1d(*measured), np.union1d(*bad)
    )


def _sentence(source: Source, reader: RunReader) -> str:
    """How often, since when, and how much at first."""
    clean = source.clean_before(source.first)
    before = f"clean at step {clean:,}" if clean is not None else "no earlier measurement"
    extent = _extent(reader, source)
    size = f": {extent}" if extent else ""
    end = "" if source.lasting else f"; the last measurement, at step {int(source.measured[-1]):,}, is finite again"
    return (
        f"{f'{capital(source.what)} were' if source.plural else f'The {source.what} was'} not finite in "
        f"{len(source.bad):,} of {count(len(source.measured), 'measurement')}, first at step {source.first:,} "
        f"({before}){size}{end}."
    )


def _extent(reader: RunReader, source: Source) -> str:
    """How much was bad at first: entries and tensors, or positions of the holdout data."""
    if source.what == "holdout loss":
        bad, of = (series(reader, q).at(source.first) for q in (Holdout.holdout_nonfinite, Holdout.holdout_positions))
        return f"logits not finite at {int(bad):,} of {count(int(of), 'position')}" if bad and of else ""
    if not source.plural:
        return ""
    of_gradients = source.what == "gradients"
    counted: Counted = GradientFlow if of_gradients else ParameterChange
    words = {"NaN": counted.nan, "infinite": counted.inf}
    counts = {word: int(series(reader, quantity).at(source.first) or 0) for word, quantity in words.items()}
    entries = " and ".join(f"{n:,} {word}" for word, n in counts.items() if n)
    tensors = series(reader, GradientFlow.nonfinite_tensors).at(source.first) if of_gradients else None
    if tensors is None:
        bad_tensors = set()
        for quantity in words.values():
            frame = rows(reader, quantity, kind="tensor")
            bad_tensors |= set(frame["scope"][(frame["step"] == source.first) & (frame["value"] > 0)])
        tensors = float(len(bad_tensors)) if bad_tensors else None
    inside = f" in {count(int(tensors), 'tensor')}" if tensors is not None else ""
    return f"{entries} {'entry' if sum(counts.values()) == 1 else 'entries'}{inside}"


def _first_tensor(reader: RunReader) -> str | None:
    frame = rows(reader, GradientFlow.first_nonfinite, kind="tensor")
    # a count of infinitely many does not exist, but a null with a non-finite status would still name the tensor
    frame = frame[(frame["value"] > 0) | frame["status"].isin(NONFINITE)]
    return str(frame["scope"].iloc[0]) if len(frame) else None


def _origin(
    reader: RunReader, first: Source, loss: Source, gradient: Source, change: Source, tensor: str | None
) -> tuple[str, str]:
    """What came first, and what follows from that."""
    step = first.first
    if first is loss:
        return _from_the_loss(step, gradient, change, _growth(series(reader, Loss.loss), step))
    if first is gradient:
        if loss.says_clean_at(step):
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
    if first is change:
        clean = gradient.clean_before(step + 1)
        known = (
            f"Gradients were finite in every measurement up to step {clean:,}" if clean is not None
            else "Gradients were not recorded up to there"
        )  # fmt: skip
        return (
            f"{known}, {'so was the loss' if loss.clean_before(step + 1) is not None else 'the loss was not recorded'}"
            ": the parameters broke in the update or between two measurements.",
            "Record gradients at every step around there (GradientFlow(every=1)). If they are finite, the step itself "
            "overflows: a lower learning rate, a larger eps, or float32 optimizer state.",
        )
    return (
        "Training loss, gradients and parameters show nothing of it where they were recorded.",
        "Look at the holdout data for inputs that the training data does not have: empty or fully masked examples, "
        "targets out of range, values that overflow in evaluation mode.",
    )


def _growth(loss: Series, step: int) -> tuple[float, float, int] | None:
    """The loss just before it broke, beside the median of up to 20 values before that, if it had grown."""
    before = loss.finite.values[loss.finite.steps < step][-21:]
    if len(before) < 6:
        return None
    usual, last = float(np.median(before[:-1])), float(before[-1])
    return (usual, last, len(before) - 1) if last > 2 * abs(usual) else None


def _from_the_loss(
    step: int, gradient: Source, change: Source, growth: tuple[float, float, int] | None
) -> tuple[str, str]:
    clean = change.clean_before(step)
    if clean is not None:
        weights = f"The parameters were finite when last measured before it, at step {clean:,}"
    else:
        weights = "Whether the parameters were still finite was not recorded"
    grads = gradient.clean_before(step)
    before = f"; gradients were finite up to step {grads:,}" if grads is not None else ""
    said = (
        f"The loss broke no later than the gradients, so it started in the forward pass of step {step:,} or earlier. "
        f"{weights}{before}."
    )
    if growth is not None:
        usual, last, n = growth
        return (
            f"{said} The loss had already left its course: {num(last)} just before, against a median of {num(usual)} "
            f"over the {n} values before that.",
            "Training diverged before it broke: lower the learning rate, lengthen the warm-up or clip the gradients, "
            "and go back to a checkpoint from before the rise.",
        )
    return (
        said,
        f"Keep the batch of step {step:,} and run it forward from the last clean weights: activations that overflow "
        "half precision, log(0), a division by an empty mask, or an input that is itself not finite.",
    )
