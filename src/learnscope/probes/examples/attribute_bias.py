"""Groups read as an attribute that suggests a class: is it the attribute that a model predicts?"""

from __future__ import annotations

from collections.abc import Sequence

import torch

from learnscope.core.moment import Moment
from learnscope.intervals import Interval, difference, wilson, within_difference
from learnscope.model.examples.groups import classes_of, coded, groups_of, in_order
from learnscope.model.outputs.outcomes import Outcomes
from learnscope.quantities import Quantity
from learnscope.quantities.examples import GroupAccuracy as Q
from learnscope.record import Column
from learnscope.task import IGNORE
from learnscope.tensor.examples.attribute import Following, cramers_v, crosstab, following, suggested_classes

NO_CLASSES = "float targets: there are no classes, only an error"
NO_ALIGNED = "no test example has the class that its attribute suggests"
NO_CONFLICTING = "no test example has another class than its attribute suggests"
SINGLE = "the training data have a single class, or a single value of the attribute"
OF_THE_MODEL = [quantity for quantity in Q.all() if quantity.kinds == ("model",)]

Cells = dict[Quantity, float | str]
"""Numbers, or the reasons for those that are missing."""


def attribute_columns(moment: Moment, outcomes: Outcomes, groups: Sequence[str] | None) -> list[Column]:
    """The numbers of the whole model that `GroupAccuracy` records; null with the reason where there are none."""
    cells = _cells(moment, outcomes, groups)
    return [quantity.cells([cells if isinstance(cells, str) else cells[quantity]]) for quantity in OF_THE_MODEL]


def _cells(moment: Moment, outcomes: Outcomes, groups: Sequence[str] | None) -> Cells | str:
    if groups is None:
        return "the batches of test= carry no groups"
    if outcomes.targets is None or outcomes.predicted is None:
        return NO_CLASSES
    if len(outcomes.example) > int(torch.unique(outcomes.example).numel()):
        return "an example has several targets, not one class"
    training = _training(moment)
    if isinstance(training, str):
        return training
    classes, cells = training
    suggested = torch.tensor([classes.get(groups[example], -1) for example in outcomes.example.tolist()])
    counts = following(suggested, outcomes.targets, outcomes.predicted)
    cells[Q.undecided_examples] = counts.undecided
    return cells | _accuracies(counts) | _following(counts, int(cells[Q.classes]))


def _training(moment: Moment) -> tuple[dict[str, int], Cells] | str:
    """The class that each group suggests in the training data, and their numbers; or why there are none."""
    batches = moment.subject.train_data
    if batches is None:
        return "no training data to know from which class a group suggests: pass train="
    groups = groups_of((moment.task.groups(batch), moment.task.size(batch)) for batch in batches)
    if groups is None:
        return "the batches of train= carry no groups"
    labels = classes_of(map(moment.task.targets, batches), "the training data")
    if isinstance(labels, str):
        return labels
    labelled = (labels != IGNORE).nonzero().flatten().tolist()
    order = in_order(groups)
    classes, place = torch.unique(labels[labelled], return_inverse=True)
    table = crosstab(coded([groups[i] for i in labelled], order), place, (len(order), len(classes)))
    best = suggested_classes(table)
    decided = table[best >= 0]
    association = cramers_v(table)
    return {name: int(classes[best[i]]) for i, name in enumerate(order) if best[i] >= 0}, {
        Q.train_examples: len(labelled), Q.train_conflicting: int(decided.sum() - decided.amax(1).sum()),
        Q.classes: len(classes), Q.association: association if association == association else SINGLE,
    }  # fmt: skip


def _accuracies(counts: Following) -> Cells:
    (right, n), (hits, m) = counts.aligned.sum(0).tolist(), counts.conflicting.sum(0).tolist()
    cells: Cells = {Q.aligned_examples: n, Q.conflicting_examples: m}
    cells |= _with_interval(Q.aligned_accuracy, (right / n, wilson(right / n, n)) if n else NO_ALIGNED)
    cells |= _with_interval(Q.conflicting_accuracy, (hits / m, wilson(hits / m, m)) if m else NO_CONFLICTING)
    if not n or not m:
        reason = NO_CONFLICTING if n else NO_ALIGNED
        return cells | _with_interval(Q.bias_gap, reason) | _with_interval(Q.within_class_gap, reason)
    cells |= _with_interval(Q.bias_gap, (right / n - hits / m, difference((right / n, n), (hits / m, m))))
    both = (counts.aligned[:, 1] > 0) & (counts.conflicting[:, 1] > 0)
    pairs = zip(counts.aligned[both].tolist(), counts.conflicting[both].tolist(), strict=True)
    shares = [((a / x, x), (b / y, y)) for (a, x), (b, y) in pairs]
    within = within_difference(shares) if shares else "no class has both aligned and conflicting examples"
    return cells | _with_interval(Q.within_class_gap, within)


def _following(counts: Following, classes: int) -> Cells:
    hits, n = counts.conflicting.sum(0).tolist()
    if not n:
        return {**_with_interval(Q.attribute_following, NO_CONFLICTING), Q.chance_following: NO_CONFLICTING}
    share = counts.followed / n
    chance = (1 - hits / n) / (classes - 1) if classes > 1 else SINGLE
    return {**_with_interval(Q.attribute_following, (share, wilson(share, n))), Q.chance_following: chance}


def _with_interval(quantity: Quantity, value: tuple[float, Interval] | str) -> Cells:
    """The number and the ends of its interval, or the reason for all three."""
    quantities = [Q.named(f"{quantity.name}{end}") for end in ("", "_low", "_high")]
    if isinstance(value, str):
        return dict.fromkeys(quantities, value)
    return dict(zip(quantities, (value[0], *value[1]), strict=True))
