"""How far the weights have moved, compared with a file on disk: takes no memory."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from learnscope.core.moment import Moment
from learnscope.core.probe import Probe, Schedule
from learnscope.model.weights.checkpoint import CheckpointError
from learnscope.model.weights.rolling import RollingCheckpoint, is_compared
from learnscope.quantities.updates import WeightDelta as Q
from learnscope.record import Measurement, Table

FIRST = "nothing to compare with yet"


class WeightDelta(Probe):
    """‖W_now − W_at the last measurement‖ against a checkpoint file, which is then replaced.

    The file is `path`, a torch file that any program can read: mapped for comparing and written tensor by tensor, so
    that there is no second copy of the model in memory. `ParameterChange` says much more, and keeps a copy for it. A
    file that is not of `run` is not used. The record's note `span` holds the two steps between which the change lies.
    """

    every: Schedule = 100
    path: str
    run: str

    reads_only = True
    cost = "one pass over the weights and the file, which is then written anew"

    def open(self, moment: Moment) -> None:  # noqa: ARG002  (the model does not matter)
        path = Path(self.path)
        if path.is_dir() or not next(above for above in path.absolute().parents if above.exists()).is_dir():
            raise ValueError(f"WeightDelta(path={self.path!r}): a file cannot be written there; name one in a folder")

    def prepare(self, moment: Moment) -> None:
        """Store the current weights if none are stored: the first measurement compares with them."""
        checkpoint, _ = self._checkpoint(moment)
        if checkpoint.step is None:
            # before a step is taken, the weights are still those of the step before it
            checkpoint.replace(moment.subject.by_name(), moment.step - (moment.phase == "before_step"))

    def measure(self, moment: Moment) -> Measurement:
        subject = moment.subject
        subject.refresh()
        parameters = subject.by_name()
        checkpoint, missing = self._checkpoint(moment)
        before, squares = checkpoint.step, None
        if before is not None:
            try:
                squares = checkpoint.distances(parameters)
            except (CheckpointError, ValueError) as error:  # removed, damaged, or the model was rebuilt
                missing = f"not compared: {error}"
        notes: dict[str, Any] = {} if squares is None else {"span": [before, moment.step]}
        try:
            checkpoint.replace(parameters, moment.step)
        except OSError as error:  # the numbers are valid; the next ones compare with the older file
            notes["not_written"] = str(error)
        positions = [i for i, p in enumerate(subject.parameters) if is_compared(p)]
        kinds = ["model", "layer", *subject.group_kinds]
        tables = [_table(moment, kind, positions, squares, missing or FIRST) for kind in kinds]
        return Measurement(tables, notes=notes)

    def _checkpoint(self, moment: Moment) -> tuple[RollingCheckpoint, str | None]:
        """The checkpoint, and why an existing file is not used."""
        checkpoint: RollingCheckpoint | None = moment.state.get("_checkpoint")
        if checkpoint is not None:
            return checkpoint, None
        checkpoint = moment.state["_checkpoint"] = RollingCheckpoint(Path(self.path), self.run)
        reason = checkpoint.take_up(moment.subject.by_name(), moment.step)
        return checkpoint, None if reason is None else f"not compared: {reason}"


def _table(moment: Moment, kind: str, positions: list[int], squares: Tensor | None, missing: str) -> Table:
    segments = moment.subject.segments(kind, positions)
    if squares is None:
        reasons = [missing] * len(segments.scopes)
        return Table(kind, segments.scopes, [quantity.cells(reasons) for quantity in Q.all()])
    change, old = segments.sum(squares.T).unbind(1)
    ratio = torch.where(old > 0, change / old, torch.nan).sqrt()
    return Table(kind, segments.scopes, [Q.l2.column(change.sqrt()), Q.update_to_weight.column(ratio)])
