"""Grokking: training data are memorised long before the model generalises."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from learnscope.findings import analysis
from learnscope.findings.evidence import evidence_over
from learnscope.findings.outputs.stuck import logged_accuracy
from learnscope.quantities import Quantity
from learnscope.quantities.examples import Memorization
from learnscope.quantities.outputs import Holdout
from learnscope.reading.changepoints import change_points, first_lasting
from learnscope.reading.cuts import Cuts
from learnscope.reading.gather import Floats, Series, labels_of, series
from learnscope.reading.words import count, num, percent
from learnscope.record import Finding
from learnscope.store.reader import RunReader

PLATEAU_RISE = 0.25
"""Share of the way from test accuracy at t_mem to the level of t_gen that test accuracy makes on a plateau at most."""
PLATEAU_SHARE = 1 / 3
"""Share of the delay that the plateau takes at least: of a straight rise it would be `PLATEAU_RISE`."""


@dataclass(frozen=True)
class Accuracies:
    """Training and test accuracy at the same steps, those of the test measurements."""

    steps: Floats
    train: Floats
    test: Floats
    probe: str
    quantity: Quantity
    origin: str
    """What training accuracy was taken from."""


@dataclass(frozen=True)
class Grokked:
    """The steps of the first lasting crossings, and of the plateau's end."""

    memorised: int
    generalised: int
    plateau_end: int
    at_memorised: float
    """Test accuracy when training accuracy crossed."""
    p_value: float
    measurements: int

    @property
    def delay(self) -> int:
        return self.generalised - self.memorised


@analysis(place=140, check="grokking", needs=[(Memorization.generalization_gap, Holdout.holdout_accuracy)])
def grokking(reader: RunReader, cuts: Cuts) -> list[Finding]:
    """At most one finding; none is the usual answer."""
    judged = [(pair, grokked(pair, cuts)) for pair in _accuracies(reader)]
    # two probes that measured the same transition do not make two
    return [_finding(pair, when, cuts) for pair, when in judged if when is not None][:1]


def grokked(pair: Accuracies, cuts: Cuts) -> Grokked | None:
    """None unless all of it happened.

    t_mem, t_gen: the first measurement from which training accuracy is at least `memorised_accuracy`, and test accuracy
    at least `generalised_accuracy`, for `measurements` in a row. Between them: at t_mem test accuracy lies
    `grokking_gap` below training accuracy; from there it stays on a plateau, until it has made a quarter of its way up
    for `measurements` in a row, and that is as many measurements long and a third of the delay; and test accuracy
    changes its level by a permutation test.
    """
    t_mem = first_lasting(pair.train >= cuts.memorised_accuracy, cuts.measurements)
    t_gen = first_lasting(pair.test >= cuts.generalised_accuracy, cuts.measurements)
    if t_mem is None or t_gen is None or t_gen <= t_mem:
        return None
    start = float(pair.test[t_mem])
    if pair.train[t_mem] - start < cuts.grokking_gap:
        return None
    above = pair.test[t_mem:] > start + PLATEAU_RISE * (cuts.generalised_accuracy - start)
    length = first_lasting(above, cuts.measurements)
    assert length is not None, "from t_gen on it is above for long enough"
    steps = pair.steps.astype(np.int64)
    end = int(steps[t_mem + length - 1])
    share = (end - steps[t_mem]) / (steps[t_gen] - steps[t_mem])
    if length < cuts.measurements or share < PLATEAU_SHARE:
        return None
    changed = change_points(pair.test)
    if not changed.places:
        return None
    return Grokked(int(steps[t_mem]), int(steps[t_gen]), end, start, changed.p_value, len(steps))


def _accuracies(reader: RunReader) -> list[Accuracies]:
    """From `Memorization`, which has both; else from what the loop logged and a holdout."""
    pairs, accuracy = [], Memorization.accuracy
    for label in labels_of(reader, Memorization):
        train, test = (
            series(reader, accuracy, kind="split", probe=label, scope=split).finite for split in ("train", "test")
        )
        steps, first, second = np.intersect1d(train.steps, test.steps, return_indices=True)
        if len(steps):
            values = train.values[first], test.values[second]
            pairs.append(Accuracies(steps.astype(np.float64), *values, label, accuracy, f"{label}'s pass over it"))
    if pairs:
        return pairs
    logged = logged_accuracy(reader)
    if logged is None:
        return []
    train = series(reader, logged).finite
    if not len(train) or train.values.min() < 0 or train.values.max() > 100:
        return []
    for label in labels_of(reader, Holdout):
        test = series(reader, Holdout.holdout_accuracy, probe=label).finite
        pairs += _together(train, test, label, f"`{logged.name}` of the batches since the measurement before")
    return pairs


def _together(train: Series, test: Series, label: str, origin: str) -> list[Accuracies]:
    """Training accuracy as the mean over the batches since the last test measurement: one batch is noise."""
    values = train.values / 100 if train.values.max() > 1 else train.values  # logged in percent
    window = np.searchsorted(test.steps, train.steps)
    covered = window < len(test)
    sums = np.bincount(window[covered], weights=values[covered], minlength=len(test))
    sizes = np.bincount(window[covered], minlength=len(test))
    filled = sizes > 0
    if not filled.any():
        return []
    steps = test.steps[filled].astype(np.float64)
    means = sums[filled] / sizes[filled]
    return [Accuracies(steps, means, test.values[filled], label, Holdout.holdout_accuracy, origin)]


def _finding(pair: Accuracies, when: Grokked, cuts: Cuts) -> Finding:
    lasting, span = count(cuts.measurements, "measurement"), (when.memorised, when.generalised)
    return Finding(
        kind="grokking",
        severity="info",
        title=f"Grokking: memorised from step {when.memorised:,}, generalised from step {when.generalised:,}",
        detail=f"Training accuracy ({pair.origin}) was at least {percent(cuts.memorised_accuracy)} for {lasting} from "
        f"step {when.memorised:,} on, when test accuracy was {percent(when.at_memorised)}. That stayed on a plateau "
        f"until step {when.plateau_end:,}, and was at least {percent(cuts.generalised_accuracy)} for {lasting} from "
        f"step {when.generalised:,} on, {when.delay:,} steps later. That test accuracy does not change its level "
        f"at all has p = {num(when.p_value)} by permutation of its {when.measurements:,} measurements.",
        advice="A training accuracy of one was not the end here: where weights are regularised, go on past it before "
        "you judge such a run; more weight decay or more data usually shorten the delay.",
        evidence=evidence_over(span, pair.probe, pair.quantity, when.measurements, float(when.delay)),
    )
