"""The model on a fixed subset that it does not train on."""

from __future__ import annotations

import torch

from learnscope.core.moment import Moment
from learnscope.core.probe import Probe
from learnscope.quantities.outputs import Holdout as Q
from learnscope.record import Measurement, Table
from learnscope.task import correct, predictions


class Holdout(Probe):
    """Outputs on the holdout data, which are the same examples every time.

    Arrays: `logits`, `labels`, `predictions`, `losses`, `example` (one entry a position), unless there are
    more than `max_logits` logits, in which case the logits are left out and a note says so.
    """

    every: int = 100
    keep_arrays: bool = True
    max_logits: int = 1_000_000
    needs = frozenset({"holdout"})
    reads_only = True  # the evaluation has a guard of its own
    cost = "one forward of the holdout"

    def measure(self, moment: Moment) -> Measurement:
        logits, targets, losses = moment.holdout.logits, moment.holdout.targets, moment.holdout.losses
        arrays = {"logits": logits, "example": moment.holdout.example}
        if targets is None or not targets.is_floating_point():
            arrays["predictions"] = predictions(logits)
        nonfinite = (~logits.isfinite()).reshape(logits.shape[0], -1).any(1)
        columns = [
            Q.holdout_examples.column([int(torch.unique(moment.holdout.example).numel())]),
            Q.holdout_positions.column([logits.shape[0]]),
            Q.holdout_nonfinite.column([int(nonfinite.sum())]),
        ]
        if targets is not None:
            arrays["labels"] = targets
            if not targets.is_floating_point():
                columns.append(Q.holdout_accuracy.column(correct(logits, targets).double().mean().reshape(1)))
        if losses is not None:
            arrays["losses"] = losses
            columns.append(Q.holdout_loss.column(losses.double().mean().reshape(1)))
        notes = {}
        if logits.numel() > self.max_logits:
            del arrays["logits"]
            notes["logits"] = f"left out: {logits.numel()} are more than max_logits={self.max_logits}"
        return Measurement([Table("model", ["model"], columns)], arrays=arrays if self.keep_arrays else {}, notes=notes)
