"""Test data by group: which examples a model gets right, and whether it follows an attribute rather than the class."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar

import torch
from torch import Tensor

from learnscope.core.moment import Moment
from learnscope.core.probe import At, Probe
from learnscope.model.examples.groups import coded, groups_of, in_order
from learnscope.model.outputs.outcomes import Outcomes, outcomes
from learnscope.options import check_whole
from learnscope.probes.examples.attribute_bias import NO_CLASSES, attribute_columns
from learnscope.quantities import Quantities, Quantity
from learnscope.quantities.examples import GroupAccuracy as Q
from learnscope.record import Column, Measurement, Table
from learnscope.tensor.examples.attribute import crosstab

NO_POSITION = "no position has a target"


class GroupAccuracy(Probe):
    """Test data in eval mode, one pass, by the groups that the batches carry (`Task.groups`), else by class.

    Where there are groups and each example has one class, the group is also read as an attribute that suggests a class:
    the most frequent one among the training examples (those that the session keeps) with that value. A value that the
    training data lack, or with no single most frequent class, suggests none. Of test examples, aligned are
    those whose group suggests their own class, conflicting those with another. Numbers of the whole model are null,
    with the reason, where there is none of this.
    """

    every: int = 1
    at: At = "epoch"
    max_groups: int = 64
    """Groups that are recorded, the largest; a note says how many are left out."""
    max_cells: int = 1024
    """Groups times classes up to which cells are recorded."""
    needs: ClassVar[frozenset[str]] = frozenset({"test_data"})
    uses: ClassVar[frozenset[str]] = frozenset({"train_data"})
    reads_only: ClassVar[bool] = True  # the pass has a guard of its own
    quantities: ClassVar[type[Quantities]] = Q
    cost: ClassVar[str] = "one forward of the test examples that the session keeps"

    def __post_init__(self) -> None:
        super().__post_init__()
        check_whole(self, max_groups=1, max_cells=1)

    def measure(self, moment: Moment) -> Measurement:
        batches = moment.test_data
        seen = moment.once(("outcomes", "test_data"), lambda: outcomes(moment.model, moment.task, batches))
        if seen is None:
            raise ValueError("the batches of test= have no targets: accuracy and loss need them")
        if not len(seen.losses):
            raise ValueError("no position of test= has a target that counts")
        groups = groups_of((moment.task.groups(batch), moment.task.size(batch)) for batch in batches)
        if groups is not None:
            by, order = "group", in_order(groups)
            member = coded(groups, order)[seen.example]
        elif seen.targets is not None:
            by, (found, member) = "class", torch.unique(seen.targets, return_inverse=True)
            order = [str(number) for number in found.tolist()]
        else:
            raise ValueError("float targets have no classes, and the batches of test= carry no groups to go by")
        sizes = torch.bincount(member, minlength=len(order))
        kept = torch.sort(torch.argsort(sizes, descending=True, stable=True)[: self.max_groups]).values.tolist()
        notes: dict[str, Any] = {"left_out": len(order) - len(kept)} if len(kept) < len(order) else {}
        scopes = [order[place] for place in kept]
        tables = [_by_group(seen, member, scopes, kept, by)]
        if by == "group" and seen.targets is not None:
            cells = _cells(seen, member, scopes, kept, self.max_cells)
            tables += [cells] if cells is not None else []
            notes |= {} if cells is not None else {"cells": f"left out: more than max_cells={self.max_cells}"}
        tables.append(Table("model", ["model"], attribute_columns(moment, seen, groups)))
        return Measurement(tables, notes=notes)


def _by_group(seen: Outcomes, member: Tensor, scopes: Sequence[str], kept: Sequence[int], by: str) -> Table:
    groups, examples = max(int(member.max()), *kept) + 1, int(seen.example.max()) + 1
    n = torch.bincount(member, minlength=groups)
    # where groups are classes, the positions of an example may be in several
    once = torch.unique(member * examples + seen.example) // examples
    empty = {place: NO_POSITION for place, group in enumerate(kept) if not n[group]}
    label = {"by": by}

    def mean(quantity: Quantity, values: Tensor | None) -> Column:
        if values is None:
            return quantity.column([None] * len(kept), label, dict.fromkeys(range(len(kept)), NO_CLASSES))
        sums = torch.zeros(groups, dtype=torch.float64).index_add_(0, member, values.double())
        return quantity.column((sums / n)[kept].tolist(), label, empty)

    columns = [mean(Q.accuracy, seen.correct), mean(Q.gold_probability, seen.gold), mean(Q.loss, seen.losses)]
    columns += [
        Q.positions.column(n[kept].tolist(), label),
        Q.examples.column(torch.bincount(once, minlength=groups)[kept].tolist(), label),
    ]
    return Table("group", scopes, columns)


def _cells(seen: Outcomes, member: Tensor, scopes: Sequence[str], kept: Sequence[int], most: int) -> Table | None:
    assert seen.targets is not None
    assert seen.correct is not None
    classes, place = torch.unique(seen.targets, return_inverse=True)
    if len(classes) * len(kept) > most:
        return None
    shape = (max(int(member.max()), *kept) + 1, len(classes))
    n = crosstab(member, place, shape)[kept]
    right = crosstab(member[seen.correct], place[seen.correct], shape)[kept]
    columns = []
    for number, target in enumerate(classes.tolist()):
        counts, hits = n[:, number].tolist(), right[:, number].tolist()
        values = [hit / count if count else None for hit, count in zip(hits, counts, strict=True)]
        empty = {i: NO_POSITION for i, count in enumerate(counts) if not count}
        label = {"target": target}
        columns += [Q.accuracy.column(values, label, empty), Q.positions.column(counts, label)]
    return Table("cell", scopes, columns)
