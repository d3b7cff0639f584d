"""Learning rates as the optimizer uses them."""

from __future__ import annotations

from typing import ClassVar

from learnscope.moment import Moment
from learnscope.probing import At, Probe
from learnscope.record import Column, Table


class LearningRate(Probe):
    """The learning rate of every parameter group in the step about to be taken.

    | name | kind | meaning |
    |---|---|---|
    | `learning_rate` | group | as set by the schedule for this step |
    | `weight_decay` | group | where the group has one |
    """

    every: int = 10
    at: At = "before_step"
    needs: ClassVar[frozenset[str]] = frozenset({"optimizer"})
    reads_only: ClassVar[bool] = True

    def measure(self, moment: Moment) -> list[Table]:
        groups = [group for optimizer in moment.optimizers for group in optimizer.param_groups]
        # groups that hold nothing of this model are named by their position all the same
        scopes = list(moment.subject.scopes("group"))
        columns = [Column("learning_rate", [group["lr"] for group in groups])]
        if any(group.get("weight_decay") for group in groups):
            columns.append(Column("weight_decay", [group.get("weight_decay") for group in groups]))
        return [Table("group", scopes, columns)]
