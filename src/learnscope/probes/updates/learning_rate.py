"""Learning rates as the optimizer uses them."""

from __future__ import annotations

from learnscope.core.moment import Moment
from learnscope.core.probe import At, Probe
from learnscope.quantities.updates import LearningRate as Q
from learnscope.record import Table


class LearningRate(Probe):
    """The learning rate of every parameter group in the step about to be taken."""

    every: int = 10
    at: At = "before_step"
    needs = frozenset({"optimizer"})
    reads_only = True
    cost = "reads the optimizer's groups, no tensor"

    def measure(self, moment: Moment) -> list[Table]:
        groups = [group for optimizer in moment.optimizers for group in optimizer.param_groups]
        # with groups that hold nothing of this model
        scopes = moment.subject.scopes("group")
        columns = [Q.learning_rate.column([group["lr"] for group in groups])]
        if any(group.get("weight_decay") for group in groups):
            columns.append(Q.weight_decay.column([group.get("weight_decay") for group in groups]))
        tables = [Table("group", list(scopes), columns)]
        if moment.subject.groups:
            rates = zip(scopes.values(), (float(group["lr"]) for group in groups), strict=True)
            tables.append(_named(moment, {position: rate for members, rate in rates for position in members}))
        return tables


def _named(moment: Moment, rate_of: dict[int, float]) -> Table:
    """The one learning rate of all trained parameters of every named group."""
    cells: list[float | str] = []
    named = moment.subject.scopes("named")
    for positions in named.values():
        rates = sorted({rate_of[position] for position in positions if position in rate_of})
        if len(rates) > 1:
            cells.append(f"its parameters have {len(rates)} learning rates: {', '.join(map(repr, rates))}")
        else:
            cells.append(rates[0] if rates else "no optimizer holds any of its parameters")
    return Table("named", list(named), [Q.learning_rate.cells(cells)])
