"""A model that follows an attribute of the examples (their group) rather than what makes their class."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from learnscope.findings import analysis
from learnscope.intervals import difference
from learnscope.quantities import Quantity
from learnscope.quantities.examples import GroupAccuracy as Q
from learnscope.reading.changepoints import change_points, first_lasting
from learnscope.reading.cuts import Cuts
from learnscope.reading.gather import Floats, labels_of
from learnscope.reading.group_curves import attribute_numbers
from learnscope.reading.ordering import half_way
from learnscope.reading.words import between, count, num, percent
from learnscope.record import Evidence, Finding
from learnscope.store.reader import RunReader


@dataclass(frozen=True)
class Stretch:
    """The last stretch of measurements in which the attribute was followed, as places among all of them."""

    first: int
    last: int
    worst: int
    """Where the gap is largest."""
    now: bool
    """Whether the stretch reaches the last measurement."""


@dataclass(frozen=True)
class Delay:
    """Conflicting examples that were learned late: the steps at which either accuracy had made half of its way."""

    aligned: int | None
    conflicting: int
    start: float
    end: float
    p_value: float
    quarters: tuple[float, float] | None
    """Its means over the last two quarters of the measurements, if it still rose beyond the interval."""


@analysis(place=150, check="spurious attributes", needs=[Q.bias_gap])
def spurious(reader: RunReader, cuts: Cuts) -> list[Finding]:
    """One finding for each probe whose groups are followed, or were for a while; none is the usual answer."""
    numbers = {label: attribute_numbers(reader, label) for label in labels_of(reader, Q)}
    judged = [(label, frame, followed(frame, cuts)) for label, frame in numbers.items() if len(frame)]
    return [_finding(label, frame, when, cuts) for label, frame, when in judged if when is not None]


def is_followed(numbers: pd.DataFrame, cuts: Cuts) -> NDArray[np.bool_]:
    """Of each measurement, whether all of it holds: the gap and the gap within classes are above `spurious_gap` at the
    lower ends of their intervals, so that neither chance nor classes of unlike difficulty make it; what the attribute
    suggests is predicted more often than errors towards all classes alike would do (of two classes, a wrong prediction
    is what the attribute suggests, and that says nothing more); and there are `chance_examples` in conflict.
    """
    beyond = numbers[Q.attribute_following_low.name] > numbers[Q.chance_following.name]
    gap = numbers[Q.bias_gap_low.name] > cuts.spurious_gap
    within_classes = numbers[Q.within_class_gap_low.name] > cuts.spurious_gap
    enough = numbers[Q.conflicting_examples.name] >= cuts.chance_examples
    return (gap & within_classes & (beyond | (numbers[Q.classes.name] == 2)) & enough).to_numpy(bool)


def followed(numbers: pd.DataFrame, cuts: Cuts) -> Stretch | None:
    """None unless it was followed for `measurements` in a row, or at all of fewer."""
    holds = is_followed(numbers, cuts)
    lasting = min(cuts.measurements, len(holds))
    from_end = first_lasting(holds[::-1], lasting)
    if from_end is None:
        return None
    last = len(holds) - 1 - from_end
    before = np.flatnonzero(~holds[:last])
    first = int(before[-1]) + 1 if len(before) else 0
    gaps = numbers[Q.bias_gap.name].to_numpy(np.float64)
    return Stretch(first, last, first + int(gaps[first : last + 1].argmax()), last == len(holds) - 1)


def delay(numbers: pd.DataFrame, cuts: Cuts) -> Delay | None:
    """None unless accuracy on conflicting examples rose, by `learned_rise` and by a change of its level."""
    values = numbers[Q.conflicting_accuracy.name].to_numpy(np.float64)
    if len(values) < cuts.order_measurements:
        return None
    start, end = float(values[0]), float(values[-cuts.measurements :].mean())
    changed = change_points(values)
    place = half_way(values, start, cuts.measurements)
    if end - start < cuts.learned_rise or not changed.places or place is None:
        return None
    steps = numbers.index.to_numpy(np.int64)
    aligned = half_way(numbers[Q.aligned_accuracy.name].to_numpy(np.float64), start, cuts.measurements)
    return Delay(
        None if aligned is None else int(steps[aligned]), int(steps[place]), start, end, changed.p_value,
        _still_rises(values, int(numbers[Q.conflicting_examples.name].iloc[-1])),
    )  # fmt: skip


def _still_rises(values: Floats, n: int) -> tuple[float, float] | None:
    width = len(values) // 4
    before, last = float(values[-2 * width : -width].mean()), float(values[-width:].mean())
    # as if of different examples: they are the same, so that the interval is too wide rather than too narrow
    return (before, last) if difference((last, n), (before, n))[0] > 0 else None


def _finding(label: str, numbers: pd.DataFrame, when: Stretch, cuts: Cuts) -> Finding:
    steps = [int(step) for step in numbers.index]
    shown = numbers.iloc[-1] if when.now else numbers.iloc[when.worst]
    low = min(float(shown[Q.bias_gap_low.name]), float(shown[Q.within_class_gap_low.name]))
    late = delay(numbers, cuts)
    gap = _gap_sentence(shown, steps[-1] if when.now else steps[when.worst])
    sentences = [gap, _following_sentence(shown), _when_sentence(numbers, when), _delay_sentence(late)]
    conflicting = percent(float(shown[Q.conflicting_accuracy.name]))
    aligned = percent(float(shown[Q.aligned_accuracy.name]))
    what = f"{aligned} right where it suggests the class, {conflicting} where it suggests another"
    title = f"The model follows the group: {what}"
    if not when.now:
        title = f"The model followed the group until step {steps[when.last]:,}: {what} at step {steps[when.worst]:,}"
    return Finding(
        kind="spurious_attribute",
        severity="info" if not when.now else "critical" if low >= cuts.spurious_critical else "warning",
        title=title,
        detail=" ".join(filter(None, sentences)),
        advice=_advice(shown, when, late),
        evidence=Evidence(
            probe=label, name=Q.bias_gap.name,
            n=int(shown[Q.aligned_examples.name] + shown[Q.conflicting_examples.name]),
            first_step=steps[when.first], last_step=steps[when.last], value=float(shown[Q.bias_gap.name]),
            interval=(float(shown[Q.bias_gap_low.name]), float(shown[Q.bias_gap_high.name])),
        ),
    )  # fmt: skip


def _share(numbers: pd.Series[float], quantity: Quantity) -> str:
    value, low, high = (float(numbers[f"{quantity.name}{end}"]) for end in ("", "_low", "_high"))
    return f"{percent(value)} (95 % interval {percent(low)} to {percent(high)})"


def _gap_sentence(shown: pd.Series[float], step: int) -> str:
    aligned, conflicting = int(shown[Q.aligned_examples.name]), int(shown[Q.conflicting_examples.name])
    return (
        f"At step {step:,}, accuracy is {_share(shown, Q.aligned_accuracy)} on the {count(aligned, 'test example')} "
        f"whose group suggests their class, by what is most frequent in the training data, and "
        f"{_share(shown, Q.conflicting_accuracy)} on the {conflicting:,} whose group suggests another: a gap of "
        f"{_share(shown, Q.bias_gap)}, and within classes of {_share(shown, Q.within_class_gap)}."
    )


def _following_sentence(shown: pd.Series[float]) -> str:
    if shown[Q.classes.name] == 2:
        return ""
    return (
        f"Of these, {_share(shown, Q.attribute_following)} are predicted as what their group suggests; errors towards "
        f"all classes alike would do so for {percent(float(shown[Q.chance_following.name]))}."
    )


def _when_sentence(numbers: pd.DataFrame, when: Stretch) -> str:
    if len(numbers) == 1:
        return ""
    steps = [int(step) for step in numbers.index]
    gaps = numbers[Q.bias_gap.name].to_numpy(np.float64)
    since = f"from step {steps[when.first]:,} on" if when.first else "since the first measurement"
    period = f"That is so {since}"
    if not when.now:
        period = f"That was so in {between(steps[when.first], steps[when.last])}"
    worst = f"the gap was largest at step {steps[when.worst]:,}, {percent(float(gaps[when.worst]))}"
    declined = numbers[Q.bias_gap_high.name].iloc[-1] < numbers[Q.bias_gap_low.name].iloc[when.worst]
    now = f"at the end it is {percent(float(gaps[-1]))}"
    if when.worst == len(gaps) - 1:
        return f"{period}; the gap is largest at the end."
    return f"{period}; {worst}, and {now}{'' if declined else ', which is no decline beyond the intervals'}."


def _delay_sentence(late: Delay | None) -> str:
    if late is None:
        return ""
    after = ""
    if late.aligned is not None and late.conflicting > late.aligned:
        after = f", {late.conflicting - late.aligned:,} steps after the others"
    return (
        f"Accuracy on the conflicting examples rose from {percent(late.start)} to {percent(late.end)} and was half way "
        f"at step {late.conflicting:,}{after} (that its level does not change has p = {num(late.p_value)} by "
        "permutation)."
    )


def _advice(shown: pd.Series[float], when: Stretch, late: Delay | None) -> str:
    if not when.now:
        return (
            "Checkpoints up to that step follow the group: take a later one, and do not stop such a run by its "
            "accuracy on data in which group and class go together."
        )
    first = ""
    if late is not None and late.quarters is not None:
        before, last = (percent(mean) for mean in late.quarters)
        first = (
            f"Accuracy on the conflicting examples still rose from {before} to {last} between the last two quarters of "
            "the run: train on before you judge it. "
        )
    n, against = int(shown[Q.train_examples.name]), int(shown[Q.train_conflicting.name])
    association = float(shown[Q.association.name])
    tied = "" if np.isnan(association) else f"; Cramér's V of the two is {num(association)}"
    if not against:
        return (
            f"{first}No training example speaks against the group (n = {n:,}{tied}): nothing there tells it from the "
            "class. Add examples in which they disagree, or take the attribute out of the inputs."
        )
    they = f"{against:,} of {n:,} training examples ({percent(against / n)}) contradict their group"
    if 2 * against < n:
        return (
            f"{first}Only {they}{tied}. Draw or weight these about {num(n / against - 1)} times as often, so that they "
            "count as much as the others, add more of them, or take the attribute out of the inputs."
        )
    return (
        f"{first}{they}{tied}, so that the data hardly ask for it: the inputs show the attribute more plainly than the "
        "class. Take it out of the inputs, or train with it set at random."
    )
