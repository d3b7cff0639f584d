"""What a batch is made of."""

from __future__ import annotations

import torch

from learnscope.core.moment import Moment
from learnscope.core.probe import Probe, Schedule
from learnscope.quantities.outputs import BatchStats as Q
from learnscope.record import Table
from learnscope.task import IGNORE, task_for


class BatchStats(Probe):
    """Batch size and the balance of its classes, from what the loop hands over with `w.batch(batch)`."""

    every: Schedule = 10
    max_classes: int = 100
    needs = frozenset({"batch"})
    reads_only = True
    cost = "one pass over the batch's targets"

    def measure(self, moment: Moment) -> list[Table]:
        batch = moment.batch
        task = moment.subject.task or task_for(batch, moment.model)
        columns = [Q.batch_size.column([task.size(batch)])]
        targets = task.targets(batch)
        tables = []
        if targets is not None and targets.is_floating_point():
            wide = targets.detach().double()
            columns += [
                Q.targets.column([targets.numel()]),
                Q.target_mean.column(wide.mean().reshape(1)),
                Q.target_std.column((wide.std() if wide.numel() > 1 else wide.new_tensor(torch.nan)).reshape(1)),
            ]
        elif targets is not None:
            labels = targets[targets != IGNORE]
            classes, counts = torch.unique(labels, return_counts=True)
            columns.append(Q.targets.column([labels.numel()]))
            if 0 < len(classes) <= self.max_classes:
                shares = counts.double() / labels.numel()
                tables.append(Table("class", [str(c) for c in classes.tolist()], [Q.share.column(shares)]))
        return [Table("model", ["model"], columns), *tables]
