"""Accuracy on training batches against accuracy on the holdout, and whether the latter is better than guessing."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from learnscope.quantities import Quantity
from learnscope.quantities.outputs import BatchStats, Holdout, Loss
from learnscope.reading.cuts import Cuts
from learnscope.reading.gather import Floats, Series, labels_of, one_pass, rows, series
from learnscope.reading.proportions import Share
from learnscope.reading.words import between, count, percent
from learnscope.store.backend import RunError
from learnscope.store.reader import RunReader

LOGGED = tuple(Loss.logged.at(key=key) for key in ("train_accuracy", "accuracy", "train_acc", "acc"))
"""What loops call the accuracy on the batch they have just trained on, the clearest name first."""
PEAK = 3.3
"""Standard errors above chance at which a holdout was better than guessing once: 1 in 2,000 by chance."""


@dataclass(frozen=True)
class Batches:
    """The accuracy on each training batch, before its step, with its epoch and the number of its examples."""

    name: str
    probe: str
    steps: NDArray[np.int64]
    epochs: NDArray[np.int64] | None
    """None if the loop did not say where epochs end."""
    values: Floats
    sizes: Floats

    def share(self, chosen: NDArray[np.intp]) -> Share:
        n = self.sizes[chosen].sum()
        right = float((self.values[chosen] * self.sizes[chosen]).sum())
        return Share(min(right / n, 1.0), int(n))

    def first_epoch(self) -> NDArray[np.intp]:
        """The batches of the later half of the first epoch; none if that is not known or was not recorded."""
        if self.epochs is None or self.epochs[0] > 1:  # epochs are counted from 0 or from 1
            return np.array([], dtype=np.intp)
        first = np.flatnonzero(self.epochs == self.epochs[0])
        return first[len(first) // 2 :]

    def last(self, examples: int) -> NDArray[np.intp]:
        """The batches of as many of the last epochs as give `examples`; of a single epoch, the later half."""
        if self.epochs is None or self.epochs[0] == self.epochs[-1]:
            return np.arange(len(self.steps) // 2, len(self.steps))
        ends = [np.flatnonzero(self.epochs >= epoch) for epoch in np.unique(self.epochs)[::-1]]
        return next((chosen for chosen in ends if self.sizes[chosen].sum() >= examples), ends[-1])

    def until(self, step: int) -> Batches:
        n = self.steps <= step
        epochs = None if self.epochs is None else self.epochs[n]
        return replace(self, steps=self.steps[n], epochs=epochs, values=self.values[n], sizes=self.sizes[n])


@dataclass(frozen=True)
class GuessingRun:
    """A run whose training accuracy is above that of the holdout, which is no better than guessing."""

    probe: str
    accuracies: Series
    """Of the holdout, at all measurements."""
    holdout: Share
    """The mean of the last measurements; n is the number of examples, the same at each."""
    measurements: int
    chance: float
    training: Share
    """Over the `chosen` batches."""
    batches: Batches
    chosen: NDArray[np.intp]

    @property
    def steps(self) -> tuple[int, int]:
        return int(self.accuracies.steps[-self.measurements]), int(self.accuracies.steps[-1])

    def sentence(self) -> str:
        steps = self.batches.steps[self.chosen]
        return (
            f"Accuracy on training batches is {self.training} in {between(int(steps[0]), int(steps[-1]))}; on the "
            f"holdout it is {self.holdout} over the last {count(self.measurements, 'measurement')}, which is no better "
            f"than guessing, {percent(self.chance)}."
        )


def guessing_run(reader: RunReader, cuts: Cuts) -> GuessingRun | None:
    """None if the model does better than guessing on any holdout, or if too little is known."""
    run = one_pass(reader)
    return run.remember(("guessing run", cuts), lambda: _guessing_run(run, cuts))


def _guessing_run(reader: RunReader, cuts: Cuts) -> GuessingRun | None:
    batches, result = _batches(reader), None
    if batches is None:
        return None
    for label in labels_of(reader, Holdout):
        accuracies = series(reader, Holdout.holdout_accuracy, probe=label)
        if len(accuracies):
            result = _judge(reader, label, accuracies, batches, cuts)
            if result is None:
                return None
    return result


def _judge(reader: RunReader, label: str, accuracies: Series, batches: Batches, cuts: Cuts) -> GuessingRun | None:
    n = series(reader, Holdout.holdout_examples, probe=label).at(int(accuracies.steps[-1]))
    guesses = _guesses(reader, label)
    measured = accuracies.finite
    if (
        n is None or n < cuts.chance_examples or guesses is None
        or len(measured) < cuts.holdout_measurements or not np.isfinite(accuracies.values[-1])
    ):  # fmt: skip
        return None
    even, chance = guesses
    width = min(cuts.measurements, len(measured))
    means = np.convolve(measured.values, np.full(width, 1 / width), "valid")
    holdout = Share(float(np.clip(means[-1], 0, 1)), int(n))
    low, high = holdout.interval
    if low > chance or high < even or means.max() > chance + PEAK * (chance * (1 - chance) / n) ** 0.5:
        return None
    batches = batches.until(int(measured.steps[-1]))
    chosen = batches.last(cuts.chance_examples) if len(batches.steps) else np.array([], dtype=np.intp)
    if not len(chosen):
        return None
    training = batches.share(chosen)
    if (training - holdout)[0] <= 0 or training.interval[0] <= chance:
        return None
    return GuessingRun(label, measured, holdout, width, chance, training, batches, chosen)


def logged_accuracy(reader: RunReader) -> Quantity | None:
    return next((quantity for quantity in LOGGED if len(rows(reader, quantity))), None)


def _guesses(reader: RunReader, label: str) -> tuple[float, float] | None:
    """The accuracy on the holdout of guessing all classes alike, and of always guessing the largest class."""
    try:
        labels = reader.arrays(label).get("labels")
    except (KeyError, RunError):  # nothing was kept, or its file is gone
        labels = None
    if labels is not None and len(labels) and np.issubdtype(labels.dtype, np.integer):
        classes, counts = np.unique(labels, return_counts=True)
        return (1 / len(classes), float(counts.max() / counts.sum())) if len(classes) > 1 else None
    return _guesses_from_batches(reader)


def _guesses_from_batches(reader: RunReader) -> tuple[float, float] | None:
    """The same from the classes of the training batches. These are a sample: the lower end of the largest share."""
    frame = rows(reader, BatchStats.share, kind="class")
    if not len(frame):
        return None
    even = 1 / frame["scope"].nunique()
    # once through the data: later epochs show the same examples again, and would make their sample look larger
    frame = frame[(frame["epoch"] == frame["epoch"].iloc[0]) | frame["epoch"].isna()]
    targets = series(reader, BatchStats.targets)
    targets_at = dict(zip(targets.steps.tolist(), targets.values.tolist(), strict=True))
    n = sum(targets_at.get(step, 0.0) for step in set(frame["step"].tolist()))
    if even == 1 or not n > 0:
        return None
    weights = frame["step"].map(targets_at).to_numpy(np.float64)
    largest = (frame["value"] * weights).groupby(frame["scope"]).sum().max()
    return even, max(even, Share(min(float(largest / n), 1.0), int(n)).interval[0])


def _batches(reader: RunReader) -> Batches | None:
    accuracy = logged_accuracy(reader)
    sizes = series(reader, BatchStats.batch_size).finite
    if accuracy is None or not len(sizes):
        return None
    frame = rows(reader, accuracy)
    frame = frame[np.isfinite(frame["value"])]
    values = frame["value"].to_numpy(np.float64)
    if not len(values) or values.min() < 0 or values.max() > 100:
        return None
    if values.max() > 1:  # logged in percent
        values = values / 100
    steps = frame["step"].to_numpy(np.int64)
    size_at = dict(zip(sizes.steps.tolist(), sizes.values.tolist(), strict=True))
    each = frame["step"].map(size_at).fillna(float(np.median(sizes.values))).to_numpy(np.float64)
    epochs = frame["epoch"].astype("float64").to_numpy()
    # `watch` stays in epoch 0 until the loop says that one ends
    recorded = reader.manifest.get("source") == "telemetry" or epochs[0] != epochs[-1]
    has_epochs = recorded and bool(np.isfinite(epochs).all())
    probe = str(frame["probe"].iloc[-1])
    return Batches(accuracy.name, probe, steps, epochs.astype(np.int64) if has_epochs else None, values, each)
