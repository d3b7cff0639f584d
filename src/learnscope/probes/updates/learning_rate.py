"""Learning rates as the optimizer uses them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from learnscope.core.moment import Moment
from learnscope.core.probe import At, Probe, Schedule
from learnscope.core.stepped import NOT_STEPPED, Options, stepped_groups
from learnscope.quantities.updates import LearningRate as Q
from learnscope.record import Label, Table


class LearningRate(Probe):
    """The learning rate of every parameter group in the step about to be taken.

    Of several optimizers, each group's is read at its own optimizer's step; null if that did not step.
    """

    every: Schedule = 10
    at: At = "before_step"
    needs = frozenset({"optimizer"})
    reads_only = True
    cost = "reads the optimizer's groups, no tensor"

    def measure(self, moment: Moment) -> list[Table]:
        groups = [options for _, options in stepped_groups(moment)]
        # with groups that hold nothing of this model
        scopes = moment.subject.scopes("group")
        columns = [Q.learning_rate.column(*_option(groups, "lr"))]
        if any(group.get("weight_decay") for group in groups if group is not None):
            columns.append(Q.weight_decay.column(*_option(groups, "weight_decay")))
        tables = [Table("group", list(scopes), columns)]
        if moment.subject.groups:
            tables.append(_named(moment, dict(zip(scopes, groups, strict=True))))
        return tables


def _option(groups: Sequence[Options | None], name: str) -> tuple[list[Any], dict[str, Label], dict[int, str]]:
    """Values, labels and reasons of a column: one option of every group."""
    idle = {place: NOT_STEPPED for place, group in enumerate(groups) if group is None}
    return [None if group is None else group.get(name) for group in groups], {}, idle


def _named(moment: Moment, groups: Mapping[str, Options | None]) -> Table:
    """The one learning rate of all trained parameters of every named group."""
    cells: list[float | str] = []
    named, members = moment.subject.scopes("named"), moment.subject.scopes("group")
    options_of = {position: options for scope, options in groups.items() for position in members[scope]}
    for positions in named.values():
        held = [options_of[position] for position in positions if position in options_of]
        rates = sorted({float(options["lr"]) for options in held if options is not None})
        if len(rates) > 1:
            cells.append(f"its parameters have {len(rates)} learning rates: {', '.join(map(repr, rates))}")
        else:
            cells.append(rates[0] if rates else NOT_STEPPED if held else "no optimizer holds any of its parameters")
    return Table("named", list(named), [Q.learning_rate.cells(cells)])
