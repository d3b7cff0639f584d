"""The loss on held-out data, and whether it may be compared with the training loss."""

from __future__ import annotations

from dataclasses import dataclass

from learnscope.quantities.outputs import Holdout
from learnscope.reading.gather import Series, as_series, rows
from learnscope.store.reader import RunReader

LABEL = "loss"


@dataclass(frozen=True)
class HeldOutLoss:
    """The holdout loss over the steps."""

    series: Series
    stand_in: str | None = None
    """Which loss it is, if the training loop's own is not known: then it is not to be compared with the training's."""

    @property
    def note(self) -> str:
        """What a reader must know before comparing it with the training loss; empty if they are the same loss."""
        if self.stand_in is None:
            return ""
        return (
            f"The holdout was scored by {self.stand_in}, since the loss that the loop trains with is not known: the "
            "two are not to be compared. Pass loss= to ls.watch, such as loss=nn.BCEWithLogitsLoss()."
        )


def held_out_loss(reader: RunReader, probe: str | None = None) -> HeldOutLoss:
    """Of one loss: that of the last measurement, since it may become known only after the first ones."""
    frame = rows(reader, Holdout.holdout_loss, probe=probe)
    if LABEL not in frame or not len(frame):
        return HeldOutLoss(as_series(frame))
    labels = frame[LABEL].where(frame[LABEL].notna(), "")
    last = str(labels.iloc[-1])
    return HeldOutLoss(as_series(frame[labels == last]), last or None)
