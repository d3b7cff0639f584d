"""Test data by group: which examples a model gets right, and whether it follows an attribute rather than the class."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from learnscope.core.moment import Moment
from learnscope.core.probe import At, Probe
from learnscope.model.examples.groups import coded, groups_of, in_order
from learnscope.model.outputs.outcomes import Outcomes, outcomes
from learnscope.options import check_whole
from learnscope.probes.examples.attribute_bias import NO_CLASSES, attribute_columns
from learnscope.probes.outputs.positions import NO_POSITION
from learnscope.quantities import Quantity
from learnscope.quantities.examples import GroupAccuracy as Q
from learnscope.record import Column, Measurement, Table
from learnscope.tensor.examples.attribute import crosstab


class GroupAccuracy(Probe):
    """Test data in eval mode, one pass, by the groups that the batches carry (`Task.groups`), else by class.

    Where there are groups and each example has one class, the group is also read as an attribute that suggests a class:
    the most frequent one among the training examples (those that the session keeps) with that value. A value that the
    training data lack, or with no single most frequent class, suggests none. Of test examples, aligned are
    those whose group suggests their own class, conflicting those with another. Numbers of the whole model are null,
    with the reason, where there is none of this.
    """

    at: At = "epoch"
    max_groups: int = 64
    """Groups that are recorded, the largest; a note says how many are left out."""
    max_cells: int = 1024
    """Groups times classes up to which cells are recorded."""
    needs = frozenset({"test_data"})
    uses = frozenset({"train_data"})
    reads_only = True  # the pass has a guard of its own
    cost = "one forward of the test examples that the session keeps"

    def __post_init__(self) -> None:
        super().__post_init__()
        check_whole(self, max_groups=1, max_cells=1)

    def measure(self, moment: Moment) -> Measurement:
        batches = moment.test_data
        test = moment.once(("outcomes", "test_data"), lambda: outcomes(moment.model, moment.task, batches))
        if test is None:
            raise ValueError("the batches of test= have no targets: accuracy and loss need them")
        if not len(test.losses):
            raise ValueError("no position of test= has a target that counts")
        groups = groups_of((moment.task.groups(batch), moment.task.size(batch)) for batch in batches)
        if groups is not None:
            by, order = "group", in_order(groups)
            member = coded(groups, order)[test.example]
        elif test.targets is not None:
            by, (classes, member) = "class", torch.unique(test.targets, return_inverse=True)
            order = [str(number) for number in classes.tolist()]
        else:
            raise ValueError("float targets have no classes, and the batches of test= carry no groups to go by")
        sizes = torch.bincount(member, minlength=len(order))
        chosen = torch.sort(torch.argsort(sizes, descending=True, stable=True)[: self.max_groups]).values.tolist()
        notes: dict[str, Any] = {"left_out": len(order) - len(chosen)} if len(chosen) < len(order) else {}
        scopes = [order[place] for place in chosen]
        tables = [Table("group", scopes, _by_group(test, member, chosen, by))]
        if by == "group" and test.targets is not None:
            cells = _by_class(test, member, chosen, self.max_cells)
            if cells:
                tables.append(Table("cell", scopes, cells))
            else:
                notes["cells"] = f"left out: more than max_cells={self.max_cells}"
        tables.append(Table("model", ["model"], attribute_columns(moment, test, groups)))
        return Measurement(tables, notes=notes)


def _by_group(test: Outcomes, member: Tensor, chosen: Sequence[int], by: str) -> list[Column]:
    groups, examples = max(int(member.max()), *chosen) + 1, int(test.example.max()) + 1
    n = torch.bincount(member, minlength=groups)
    # where groups are classes, the positions of an example may be in several
    once = torch.unique(member * examples + test.example) // examples

    def mean(quantity: Quantity, values: Tensor | None) -> Column:
        if values is None:
            return quantity.cells([NO_CLASSES] * len(chosen), by=by)
        sums = torch.zeros(groups, dtype=torch.float64).index_add_(0, member, values.double())
        return quantity.cells([float(sums[i] / n[i]) if n[i] else NO_POSITION for i in chosen], by=by)

    return [
        mean(Q.accuracy, test.correct),
        mean(Q.gold_probability, test.gold),
        mean(Q.loss, test.losses),
        Q.positions.cells(n[chosen].tolist(), by=by),
        Q.examples.cells(torch.bincount(once, minlength=groups)[chosen].tolist(), by=by),
    ]


def _by_class(test: Outcomes, member: Tensor, chosen: Sequence[int], most: int) -> list[Column]:
    """Each group's accuracy by class; empty if that would be more cells than `most`."""
    assert test.targets is not None
    assert test.correct is not None
    classes, place = torch.unique(test.targets, return_inverse=True)
    if len(classes) * len(chosen) > most:
        return []
    shape = (max(int(member.max()), *chosen) + 1, len(classes))
    n = crosstab(member, place, shape)[chosen]
    right = crosstab(member[test.correct], place[test.correct], shape)[chosen]
    columns = []
    for target, counts, hits in zip(classes.tolist(), n.T.tolist(), right.T.tolist(), strict=True):
        shares = [hit / count if count else NO_POSITION for hit, count in zip(hits, counts, strict=True)]
        columns += [Q.accuracy.cells(shares, target=target), Q.positions.cells(counts, target=target)]
    return columns
