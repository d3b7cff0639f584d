"""The best step of a training: one definition for findings, verdicts and figures."""

from __future__ import annotations

from dataclasses import dataclass

from learnscope.quantities import Quantity
from learnscope.quantities.outputs import Holdout
from learnscope.reading.gather import Series, labels_of, series
from learnscope.reading.held_out import held_out_loss
from learnscope.store.reader import RunReader


@dataclass(frozen=True)
class Best:
    """The step at which held-out data were predicted best, of all that were measured."""

    step: int
    value: float
    of: int
    """How many measurements it is the best of."""
    probe: str
    quantity: Quantity
    last_step: int
    """The last measurement of it that is finite."""
    last: float


def best_step(reader: RunReader) -> Best | None:
    """The step of the lowest holdout loss; without one, of the highest holdout accuracy. None without a holdout."""
    labels = labels_of(reader, Holdout)
    if not labels:
        return None
    losses = held_out_loss(reader, labels[0]).series.finite
    if len(losses):
        return _best(losses, labels[0], Holdout.holdout_loss, int(losses.values.argmin()))
    shares = series(reader, Holdout.holdout_accuracy, probe=labels[0]).finite
    if len(shares):
        return _best(shares, labels[0], Holdout.holdout_accuracy, int(shares.values.argmax()))
    return None


def _best(values: Series, probe: str, quantity: Quantity, at: int) -> Best:
    return Best(
        int(values.steps[at]), float(values.values[at]), len(values), probe, quantity, int(values.steps[-1]),
        float(values.values[-1]),
    )  # fmt: skip
