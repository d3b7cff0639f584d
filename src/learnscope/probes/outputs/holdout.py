"""The model on a fixed subset that it does not train on."""

from __future__ import annotations

import torch

from learnscope.core.moment import Moment
from learnscope.core.probe import Probe, Schedule
from learnscope.probes.outputs.positions import mean_of_positions
from learnscope.quantities.outputs import Holdout as Q
from learnscope.record import Label, Measurement, Table
from learnscope.task import Task, correct, predictions


class Holdout(Probe):
    """Outputs on the holdout data, which are the same examples every time.

    Arrays: `logits`, `labels`, `predictions`, `losses`, `example` (one entry a position), unless there are
    more than `max_logits` logits, in which case the logits are left out and a note says so.

    The loss is the training loop's own where that is known: `ls.watch(loss=…)`, a task with its own `losses`, a model
    that returns its loss, or what the loop logs. Where it is not, the label `loss` names the one that was computed, and
    nothing compares it with the training loss.
    """

    every: Schedule = 100
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
                right = correct(logits, targets)
                columns.append(Q.holdout_accuracy.cells([mean_of_positions("", right, moment.holdout.example)]))
        if losses is not None:
            arrays["losses"] = losses
            mean = mean_of_positions("the loss", losses, moment.holdout.example)
            columns.append(Q.holdout_loss.cells([mean], **loss_label(moment.task)))
        notes = loss_note(moment.task) if losses is not None else {}
        if logits.numel() > self.max_logits:
            del arrays["logits"]
            notes["logits"] = f"left out: {logits.numel()} are more than max_logits={self.max_logits}"
        return Measurement([Table("model", ["model"], columns)], arrays=arrays if self.keep_arrays else {}, notes=notes)


def loss_label(task: Task) -> dict[str, Label]:
    """Which loss it is, unless it is the training loop's own as far as is known."""
    label = None if task.chosen_loss is None else task.chosen_loss.label
    return {} if label is None else {"loss": label}


def loss_note(task: Task) -> dict[str, str]:
    """Where the loss is known from."""
    return {} if task.chosen_loss is None else {"loss": task.chosen_loss.why}
