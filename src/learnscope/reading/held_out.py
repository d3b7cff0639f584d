"""The loss on held-out data, and whether it may be compared with the training loss."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from numpy.typing import NDArray

from learnscope.quantities.outputs import Holdout
from learnscope.reading.course.trainers import TRAINING_SET, holdout_source
from learnscope.reading.gather import Series, as_series, labels_of, rows
from learnscope.store.backend import RunError
from learnscope.store.reader import RunReader

LABEL = "loss"
SAMPLE_NOTE = (
    "The trainer has no evaluation set: these are examples of its training set, in eval mode. They say nothing about "
    "other data."
)


@dataclass(frozen=True)
class HeldOutLoss:
    """The holdout loss over the steps."""

    series: Series
    stand_in: str | None = None
    """Which loss it is, if the training loop's own is not known: then it is not to be compared with the training's."""
    trained_on: bool = False
    """Whether it is of a sample of the training set: there was nothing else to evaluate on."""

    @property
    def name(self) -> str:
        """As a curve of it is called."""
        return "sample of the training set" if self.trained_on else "holdout"

    @property
    def note(self) -> str:
        """What a reader must know before comparing it with the training loss; empty if they are the same loss."""
        if self.stand_in is None:
            return SAMPLE_NOTE if self.trained_on else ""
        return (
            f"The holdout was scored by {self.stand_in}, since the loss that the loop trains with is not known: the "
            "two are not to be compared. Pass loss= to ls.watch, such as loss=nn.BCEWithLogitsLoss()."
        )


def held_out_loss(reader: RunReader, probe: str | None = None) -> HeldOutLoss:
    """Of one loss: that of the last measurement, since it may become known only after the first ones."""
    frame = rows(reader, Holdout.holdout_loss, probe=probe)
    sampled = holdout_source(reader) == TRAINING_SET
    if LABEL not in frame or not len(frame):
        return HeldOutLoss(as_series(frame), trained_on=sampled)
    labels = frame[LABEL].where(frame[LABEL].notna(), "")
    last = str(labels.iloc[-1])
    return HeldOutLoss(as_series(frame[labels == last]), last or None, sampled)


def held_labels(reader: RunReader) -> NDArray[Any] | None:
    """The targets of the holdout, where they were kept."""
    for label in labels_of(reader, Holdout):
        try:
            labels = reader.arrays(label).get("labels")
        except (KeyError, RunError):  # nothing was kept, or its file is gone
            labels = None
        if labels is not None and labels.size:
            return labels
    return None
