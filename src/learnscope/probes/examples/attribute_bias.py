"""Groups read as an attribute that suggests a class: is it the attribute that a model predicts?"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

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


@dataclass(frozen=True, slots=True)
class Training:
    """Attribute and class in the training data."""

    suggested: Mapping[str, int]
    """The class that each value suggests, where there is one."""
    association: float
    examples: int
    conflicting: int
    classes: int


@dataclass(slots=True)
class _Numbers:
    """Numbers, and the reasons for those that are not there."""

    values: dict[Quantity, float] = field(default_factory=dict)
    reasons: dict[Quantity, str] = field(default_factory=dict)

    def put(self, quantity: Quantity, value: float, interval: Interval) -> None:
        self.values.update(zip(_with_ends(quantity), (value, *interval), strict=True))

    def lack(self, quantity: Quantity, reason: str) -> None:
        self.reasons.update(dict.fromkeys(_with_ends(quantity), reason))

    def columns(self) -> list[Column]:
        return [
            quantity.column([self.values.get(quantity)], status={0: why} if (why := self.reasons.get(quantity)) else {})
            for quantity in OF_THE_MODEL
        ]


def _with_ends(quantity: Quantity) -> list[Quantity]:
    return [Q.named(f"{quantity.name}{end}") for end in ("", "_low", "_high")]


def attribute_columns(moment: Moment, seen: Outcomes, groups: Sequence[str] | None) -> list[Column]:
    """The numbers of the whole model that `GroupAccuracy` records; null with the reason where there are none."""
    numbers = _Numbers()
    training = _why_none(seen, groups) or _training(moment)
    if isinstance(training, str):
        numbers.reasons = dict.fromkeys(OF_THE_MODEL, training)
        return numbers.columns()
    assert groups is not None
    assert seen.targets is not None
    assert seen.predicted is not None
    suggested = torch.tensor([training.suggested.get(groups[example], -1) for example in seen.example.tolist()])
    found = following(suggested, seen.targets, seen.predicted)
    numbers.values |= {
        Q.train_examples: training.examples, Q.train_conflicting: training.conflicting, Q.classes: training.classes,
        Q.undecided_examples: found.undecided,
    }  # fmt: skip
    if training.association == training.association:
        numbers.values[Q.association] = training.association
    else:
        numbers.reasons[Q.association] = SINGLE
    _put_accuracies(numbers, found)
    _put_following(numbers, found, training.classes)
    return numbers.columns()


def _why_none(seen: Outcomes, groups: Sequence[str] | None) -> str | None:
    if groups is None:
        return "the batches of test= carry no groups"
    if seen.targets is None:
        return NO_CLASSES
    several = len(seen.example) > int(torch.unique(seen.example).numel())
    return "an example has several targets, not one class" if several else None


def _training(moment: Moment) -> Training | str:
    """What the training data say of attribute and class, or why they say nothing."""
    batches = moment.subject.train_data
    if batches is None:
        return "no training data to know from which class a group suggests: pass train="
    groups = groups_of((moment.task.groups(batch), moment.task.size(batch)) for batch in batches)
    if groups is None:
        return "the batches of train= carry no groups"
    labels, why = classes_of(map(moment.task.targets, batches), "the training data")
    if labels is None:
        return str(why)
    there = (labels != IGNORE).nonzero().flatten().tolist()
    order = in_order(groups)
    classes, place = torch.unique(labels[there], return_inverse=True)
    table = crosstab(coded([groups[i] for i in there], order), place, (len(order), len(classes)))
    best = suggested_classes(table)
    suggested = {name: int(classes[best[i]]) for i, name in enumerate(order) if best[i] >= 0}
    decided = table[best >= 0]
    conflicting = int(decided.sum() - decided.amax(1).sum())
    return Training(suggested, cramers_v(table), len(there), conflicting, len(classes))


def _put_accuracies(numbers: _Numbers, found: Following) -> None:
    (right, n), (hits, m) = found.aligned.sum(0).tolist(), found.conflicting.sum(0).tolist()
    numbers.values |= {Q.aligned_examples: n, Q.conflicting_examples: m}
    for quantity, share, size, reason in (
        (Q.aligned_accuracy, right, n, NO_ALIGNED),
        (Q.conflicting_accuracy, hits, m, NO_CONFLICTING),
    ):
        if size:
            numbers.put(quantity, share / size, wilson(share / size, size))
        else:
            numbers.lack(quantity, reason)
    if not n or not m:
        for quantity in (Q.bias_gap, Q.within_class_gap):
            numbers.lack(quantity, NO_CONFLICTING if n else NO_ALIGNED)
        return
    numbers.put(Q.bias_gap, right / n - hits / m, difference((right / n, n), (hits / m, m)))
    both = (found.aligned[:, 1] > 0) & (found.conflicting[:, 1] > 0)
    if bool(both.any()):
        pairs = zip(found.aligned[both].tolist(), found.conflicting[both].tolist(), strict=True)
        numbers.put(Q.within_class_gap, *within_difference([((a / x, x), (b / y, y)) for (a, x), (b, y) in pairs]))
    else:
        numbers.lack(Q.within_class_gap, "no class has both aligned and conflicting examples")


def _put_following(numbers: _Numbers, found: Following, classes: int) -> None:
    hits, n = found.conflicting.sum(0).tolist()
    if not n:
        numbers.lack(Q.attribute_following, NO_CONFLICTING)
        numbers.reasons[Q.chance_following] = NO_CONFLICTING
        return
    numbers.put(Q.attribute_following, found.followed / n, wilson(found.followed / n, n))
    if classes > 1:
        numbers.values[Q.chance_following] = (1 - hits / n) / (classes - 1)
    else:
        numbers.reasons[Q.chance_following] = SINGLE
