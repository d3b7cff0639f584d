"""Training that is better than guessing by memory alone: nothing of it is seen on the holdout."""

from __future__ import annotations

from learnscope.quantities.outputs import Holdout
from learnscope.reading.course.chance import AT_CHANCE, Guessing
from learnscope.reading.cuts import Cuts
from learnscope.reading.gather import series
from learnscope.reading.held_out import held_out_loss
from learnscope.reading.proportions import Share
from learnscope.reading.words import num, percent
from learnscope.store.reader import RunReader


def by_memory_alone(reader: RunReader, found: Guessing, cuts: Cuts) -> str:
    """A sentence if a loss that is still at chance goes with a holdout that never was any better than guessing.

    Examples that come again are predicted right more often after a while, whatever their labels.
    """
    held, right = held_out_loss(reader), series(reader, Holdout.holdout_accuracy).finite
    n, chance = series(reader, Holdout.holdout_examples).finite.values, found.chance
    losses = held.series.finite.values
    if not found.loss_at_chance or chance.loss is None or chance.accuracy is None or held.stand_in is not None:
        return ""
    if len(losses) < cuts.holdout_measurements or not len(right) or not len(n) or n[-1] < cuts.chance_examples:
        return ""
    share = Share(float(right.values[-cuts.measurements :].mean()), int(n[-1]))
    if losses.min() < AT_CHANCE[0] * chance.loss or share.interval[0] > chance.accuracy:
        return ""
    return (
        f"The holdout loss was {num(float(losses.min()))} at its best, and {percent(share.value)} of the holdout is "
        "predicted right: what training is better by is memory. "
    )
