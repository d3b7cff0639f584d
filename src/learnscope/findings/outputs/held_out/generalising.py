"""Training accuracy that the holdout does not share: a cue that only the training data have, or memory."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from learnscope.findings import analysis
from learnscope.findings.evidence import evidence_over
from learnscope.findings.outputs.stuck import GuessingRun, guessing_run
from learnscope.quantities.outputs import Holdout
from learnscope.reading.course.chance import chance_of
from learnscope.reading.cuts import Cuts
from learnscope.reading.proportions import Share
from learnscope.reading.words import between, count, listed, percent
from learnscope.record import Evidence, Finding
from learnscope.store.reader import RunReader


@dataclass(frozen=True)
class FirstSight:
    """Late in the first epoch: the accuracy on training examples the model has not seen yet, and on the holdout."""

    training: Share
    holdout: Share
    steps: tuple[int, int]
    batches: int

    def sentence(self) -> str:
        return (
            f"Late in the first epoch ({count(self.batches, 'batch', 'batches')}, {between(*self.steps)}), when each "
            f"training example was new, accuracy on them was {self.training}, and on the holdout "
            f"{percent(self.holdout.value)}."
        )


@analysis(place=50, check="guessing on the holdout", needs=[Holdout.holdout_accuracy, Holdout.holdout_examples])
def generalising(reader: RunReader, cuts: Cuts) -> list[Finding]:
    """Nothing unless the model guesses on the holdout while training accuracy is better than that."""
    run = guessing_run(reader, cuts)
    if run is None:
        return []
    chance = chance_of(reader)
    if chance is not None and chance.accuracy is not None and run.training.interval[0] <= chance.accuracy:
        return [_majority(run, chance.accuracy)]
    first = _first_sight(run)
    if first is None:
        return [_unexplained(run, "The first epoch was not recorded as such.")]
    gap = (first.training - first.holdout)[0]
    if gap > cuts.shortcut_gap and first.training.interval[0] > run.chance:
        types = (reader.manifest.get("model") or {}).get("layer_types") or {}
        return [_shortcut(run, first, [layer for layer, kind in types.items() if "BatchNorm" in str(kind)], cuts)]
    if gap <= 0 and (run.training - first.training)[0] > 0:
        return [_memorised(run, first)]
    return [_unexplained(run, first.sentence())]


def _majority(run: GuessingRun, share: float) -> Finding:
    """Training accuracy that always guessing the largest class would reach is no sign of a cue or of memory."""
    return Finding(
        kind="majority_guess",
        severity="warning",
        title=f"The model guesses the largest class: {percent(run.training.value)} right in training, where that class "
        f"has {percent(share)}",
        detail=f"{run.sentence()} Always guessing the largest class of the training data would reach as much.",
        advice="Weight the classes in the loss or draw them evenly, and judge by the accuracy of each class; the data "
        "may also hold too little of the rare classes to learn them.",
        evidence=_evidence(run),
        cause=True,
        explains=("majority_guess", "not_learning", "not_generalising", "plateau"),
        since=run.steps[0],
    )


def _first_sight(run: GuessingRun) -> FirstSight | None:
    """None unless epochs are known and the holdout was measured in the first, or by its end."""
    chosen = run.batches.first_epoch()
    if not len(chosen):
        return None
    first, last = (int(step) for step in run.batches.steps[chosen][[0, -1]])
    in_epoch = (run.accuracies.steps >= first) & (run.accuracies.steps <= last)
    if not in_epoch.any():
        return None
    holdout = Share(float(np.clip(run.accuracies.values[in_epoch].mean(), 0, 1)), run.holdout.n)
    return FirstSight(run.batches.share(chosen), holdout, (first, last), len(chosen))


def _shortcut(run: GuessingRun, first: FirstSight, batch_norms: list[str], cuts: Cuts) -> Finding:
    cause = "training inputs carry something about the label that the holdout's do not"
    if batch_norms:  # with running statistics that do not fit, eval mode fails on any data
        cause = (
            f"either {cause}, or the model fails in eval mode, where {listed(batch_norms, cuts.names_listed)} "
            "(batch normalisation) computes from running statistics"
        )
    gap, batches = first.training.value - first.holdout.value, run.batches
    interval = first.training - first.holdout
    return Finding(
        kind="shortcut",
        severity="critical",
        title=f"What training accuracy rests on is not in the holdout: {percent(first.training.value)} right at first "
        f"sight, {percent(first.holdout.value)} of the holdout",
        detail=f"{first.sentence()} Memory cannot do that: {cause}. {run.sentence()}",
        advice=("First run the model in eval mode on training examples: if it fails there too, it is not the data. " if
        batch_norms else "") + "Look for what only training inputs have: a mark of the label, an order of the pair, a "
        "brightness or a file's size, a preprocessing of its own, examples that come twice in an epoch, or weights "
        "that had been trained on them before.",
        evidence=evidence_over(first.steps, batches.probe, batches.name, first.training.n, gap, interval),
    )  # fmt: skip


def _memorised(run: GuessingRun, first: FirstSight) -> Finding:
    return Finding(
        kind="memorised",
        severity="warning",
        title=f"Training examples are memorised: {percent(run.training.value)} right, "
        f"{percent(first.training.value)} at first sight, {percent(run.holdout.value)} of the holdout",
        detail=f"{first.sentence()} Training accuracy rose only on examples seen before. {run.sentence()}",
        advice="Nothing that carries over was learned: look for a cause among the other findings (weights that do not "
        "move, learning rates), and check that labels belong to their inputs; then more data, augmentation, weight "
        "decay, or fewer parameters.",
        evidence=_evidence(run),
    )


def _unexplained(run: GuessingRun, reason: str) -> Finding:
    return Finding(
        kind="not_generalising",
        severity="warning",
        title=f"Training accuracy {percent(run.training.value)}, holdout accuracy {percent(run.holdout.value)}: "
        "no better than guessing",
        detail=f"{run.sentence()} {reason} Whether the model memorises or follows a cue that the holdout lacks is not "
        "known from that.",
        advice="Log the accuracy of each training batch and measure the holdout in the first epoch too, and say where "
        "it ends (w.end_epoch()): on examples that are new, memory is of no use and a cue is.",
        evidence=_evidence(run),
    )


def _evidence(run: GuessingRun) -> Evidence:
    share = run.holdout
    return evidence_over(run.steps, run.probe, Holdout.holdout_accuracy, share.n, share.value, share.interval)
