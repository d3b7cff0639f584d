"""What a batch is made of."""

from __future__ import annotations

from typing import ClassVar

import torch

from learnscope.core.moment import Moment
from learnscope.core.probe import Probe
from learnscope.record import Column, Table
from learnscope.task import IGNORE, task_for


class BatchStats(Probe):
    """Batch size and the balance of its classes, from what the loop hands over with `w.batch(batch)`.

    | name | kind | meaning |
    |---|---|---|
    | `batch_size` | model | number of examples |
    | `targets` | model | number of targets that count (positions, for language models) |
    | `share` | class | share of the targets in each class that occurs, up to `max_classes` |
    | `target_mean`, `target_std` | model | for float targets, instead of classes; the deviation is unbiased |
    """

    every: int = 10
    max_classes: int = 100
    needs: ClassVar[frozenset[str]] = frozenset({"batch"})
    reads_only: ClassVar[bool] = True

    def measure(self, moment: Moment) -> list[Table]:
        batch = moment.batch
        task = moment.subject.task or task_for(batch, moment.model)
        columns = [Column("batch_size", [task.size(batch)])]
        targets = task.targets(batch)
        tables = []
        if targets is not None and targets.is_floating_point():
            wide = targets.detach().double()
            columns += [
                Column("targets", [targets.numel()]),
                Column("target_mean", wide.mean().reshape(1)),
                Column("target_std", (wide.std() if wide.numel() > 1 else wide.new_tensor(torch.nan)).reshape(1)),
            ]
        elif targets is not None:
            kept = targets[targets != IGNORE]
            classes, counts = torch.unique(kept, return_counts=True)
            columns.append(Column("targets", [kept.numel()]))
            if 0 < len(classes) <= self.max_classes:
                shares = counts.double() / kept.numel()
                tables.append(Table("class", [str(c) for c in classes.tolist()], [Column("share", shares)]))
        return [Table("model", ["model"], columns), *tables]
