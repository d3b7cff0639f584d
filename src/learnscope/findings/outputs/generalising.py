"""Training accuracy that the holdout does not share: a cue that only the training data have, or memory."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from learnscope.findings.outputs.stuck import Stuck, stuck
from learnscope.findings.registry import analysis
from learnscope.quantities.outputs import Holdout
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

    def said(self) -> str:
        return (
            f"Late in the first epoch ({count(self.batches, 'batch', 'batches')}, {between(*self.steps)}), when each "
            f"training example was new, accuracy on them was {self.training}, and on the holdout "
            f"{percent(self.holdout.value)}."
        )


@analysis(place=50)
def generalising(reader: RunReader, cuts: Cuts) -> list[Finding]:
    """Nothing unless the holdout is no better than guessing while training accuracy is."""
    found = stuck(reader, cuts)
    if found is None:
        return []
    first = _first_sight(found)
    if first is None:
        return [_unexplained(found, "The first epoch was not recorded as such.")]
    if (first.training - first.holdout)[0] > cuts.shortcut_gap and first.training.interval[0] > found.chance:
        return [_shortcut(found, first, _batch_norms(reader), cuts)]
    no_better = (first.training - first.holdout)[0] <= 0
    if no_better and (found.training - first.training)[0] > 0:
        return [_memorised(found, first)]
    return [_unexplained(found, first.said())]


def _first_sight(found: Stuck) -> FirstSight | None:
    """None unless epochs are known and the holdout was measured in the first, or by its end."""
    chosen = found.batches.first_epoch()
    if not len(chosen):
        return None
    steps = found.batches.steps[chosen]
    first, last = int(steps[0]), int(steps[-1])
    measured = found.accuracies
    inside = (measured.steps >= first) & (measured.steps <= last)
    if not inside.any():
        return None
    holdout = Share(float(np.clip(measured.values[inside].mean(), 0, 1)), found.holdout.n)
    return FirstSight(found.batches.share(chosen), holdout, (first, last), len(chosen))


def _batch_norms(reader: RunReader) -> list[str]:
    types = (reader.manifest.get("model") or {}).get("layer_types") or {}
    return [layer for layer, kind in types.items() if "BatchNorm" in str(kind)]


def _shortcut(found: Stuck, first: FirstSight, batch_norms: list[str], cuts: Cuts) -> Finding:
    cause = "training inputs carry something about the label that the holdout's do not"
    if batch_norms:  # with running statistics that do not fit, eval mode fails on any data
        cause = (
            f"either {cause}, or the model fails in eval mode, where {listed(batch_norms, cuts.names_listed)} "
            "(batch normalisation) computes from running statistics"
        )
    return Finding(
        kind="shortcut",
        severity="critical",
        title=f"What training accuracy rests on is not in the holdout: {percent(first.training.value)} right at first "
        f"sight, {percent(first.holdout.value)} of the holdout",
        detail=f"{first.said()} Memory cannot do that: {cause}. {found.said()}",
        advice=("First run the model in eval mode on training examples: if it fails there too, it is not the data. " if
        batch_norms else "") + "Look for what only training inputs have: a mark of the label, an order of the pair, a "
        "brightness or a file's size, a preprocessing of its own, examples that come twice in an epoch, or weights "
        "that had been trained on them before.",
        evidence=Evidence(
            probe=found.batches.probe, name=found.batches.name, n=first.training.n, first_step=first.steps[0],
            last_step=first.steps[1], value=first.training.value - first.holdout.value,
            interval=first.training - first.holdout,
        ),
    )  # fmt: skip


def _memorised(found: Stuck, first: FirstSight) -> Finding:
    return Finding(
        kind="memorised",
        severity="warning",
        title=f"Training examples are memorised: {percent(found.training.value)} right, "
        f"{percent(first.training.value)} at first sight, {percent(found.holdout.value)} of the holdout",
        detail=f"{first.said()} Training accuracy rose only on examples seen before. {found.said()}",
        advice="Nothing that carries over was learned: look for a cause among the other findings (weights that do not "
        "move, learning rates), and check that labels belong to their inputs; then more data, augmentation, weight "
        "decay, or fewer parameters.",
        evidence=_evidence(found),
    )


def _unexplained(found: Stuck, why: str) -> Finding:
    return Finding(
        kind="not_generalising",
        severity="warning",
        title=f"Training accuracy {percent(found.training.value)}, holdout accuracy {percent(found.holdout.value)}: "
        "no better than guessing",
        detail=f"{found.said()} {why} Whether the model memorises or follows a cue that the holdout lacks is not "
        "known from that.",
        advice="Log the accuracy of each training batch and measure the holdout in the first epoch too, and say where "
        "it ends (w.end_epoch()): on examples that are new, memory is of no use and a cue is.",
        evidence=_evidence(found),
    )


def _evidence(found: Stuck) -> Evidence:
    return Evidence(
        probe=found.probe, name=Holdout.holdout_accuracy.name, n=found.holdout.n, first_step=found.steps[0],
        last_step=found.steps[1], value=found.holdout.value, interval=found.holdout.interval,
    )  # fmt: skip
