"""How good a finished model is on its data: loss, perplexity, accuracy, each with an interval."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from torch import Tensor

from learnscope.core.moment import Moment
from learnscope.core.probe import At, Probe
from learnscope.intervals import ratio_interval, share_interval, wilson
from learnscope.model.outputs.outcomes import Sums, summed_by_example
from learnscope.options import check_whole, is_whole
from learnscope.probes.outputs.columns import SAMPLED
from learnscope.quantities import Quantity
from learnscope.quantities.outputs import Performance as Q
from learnscope.record import Label, Measurement, Table
from learnscope.task import unwrap

NO_CLASSES = "float targets: numbers, or several yes/no answers, of which none is the right class"
NO_TOKENS = "the model does not predict tokens: its classes are no vocabulary, or its task has a loss of its own"
CLASSES = 1000
"""Of more classes, only the accuracy of all together is recorded."""
NO_POSITIONS = "no position of the data has a target"


class Performance(Probe):
    """Loss and accuracy over all of the data, in one pass; of classifiers also the accuracy by class.

    Intervals are over examples, by `learnscope.intervals.ratio_interval`; of shares, Wilson's where each example has
    one position; with the positions that count as independent where all or none are right, or too few examples differ.
    Of equal logits the first counts as the largest, as in argmax. A row of logits with a NaN is never right.
    """

    at: At = "once"
    top_k: Sequence[int] = (1, 5, 10)
    resamples: int = 1000
    """How often the examples are drawn again for an interval."""
    seed: int = 0
    needs = frozenset({"holdout"})
    reads_only = True  # the pass has a guard of its own
    cost = "one forward of all of the data"

    def __post_init__(self) -> None:
        super().__post_init__()
        ks = list(self.top_k) if isinstance(self.top_k, Sequence) else [0]
        if not all(is_whole(k, 1) for k in ks) or len(set(ks)) < len(ks):
            raise ValueError(f"Performance(top_k={self.top_k!r}): different whole numbers from 1")
        check_whole(self, resamples=1, seed=0)

    def measure(self, moment: Moment) -> Measurement:
        part = {"what": "performance 3", "top_k": list(self.top_k), "resamples": self.resamples, "seed": self.seed}
        part |= {"sampled": True} if moment.subject.sampled else {}
        found = moment.remember(part, lambda: self._found(moment))
        rows = found["columns"]
        columns = [
            Q.named(name).column([value], labels, {0: status} if status else {}) for name, labels, value, status in rows
        ]
        tables = [Table("model", ["model"], columns)]
        if found["classes"]:
            tables.append(_class_table(moment, found["classes"]))
        return Measurement(tables)

    def _found(self, moment: Moment) -> dict[str, Any]:
        """The rows of the model, and of each class that the data have its number, its right examples and all."""
        batches = moment.track(list(moment.subject.holdout or ()), "loss and accuracy")
        sums = summed_by_example(moment.model, moment.task, batches, self.top_k)
        classes: list[list[int]] = []
        if sums.target is not None and sums.right is not None and not sums.tokens and (sums.classes or 0) <= CLASSES:
            for number in sums.target[sums.target >= 0].unique().tolist():
                own = sums.target == number
                classes.append([number, int(sums.right[own].sum()), int(own.sum())])
        return {"columns": self._rows(moment, sums), "classes": classes}

    def _rows(self, moment: Moment, sums: Sums) -> list[_Row]:
        positions, examples = int(sums.positions.sum()), int((sums.positions > 0).sum())
        loss = float(sums.loss.sum()) / positions if positions else math.nan
        low, high, few = ratio_interval(
            sums.loss.numpy(), sums.positions.numpy(), resamples=self.resamples, seed=self.seed
        )
        reason = None if positions else NO_POSITIONS
        if math.isnan(loss) and positions:
            reason = f"the losses of {int(sums.loss.isnan().sum())} of {examples} examples are NaN"
        rows = _with_interval(Q.loss, {}, (loss, low, high), reason, reason or few)
        if moment.subject.sampled:
            rows += _with_interval(Q.perplexity, {}, _NOTHING, SAMPLED, SAMPLED)
        elif sums.tokens:
            rows += _with_interval(Q.perplexity, {}, (_exp(loss), _exp(low), _exp(high)), reason, reason or few)
        else:
            rows += _with_interval(Q.perplexity, {}, _NOTHING, NO_TOKENS, NO_TOKENS)
        rows += self._share(Q.accuracy, {}, sums.right, sums)
        for k in self.top_k:
            rows += self._share(Q.top_k_accuracy, {"k": k}, sums.within.get(k), sums)
        return [*rows, (Q.examples.name, {}, examples, None), (Q.positions.name, {}, positions, None)]

    def _share(self, quantity: Quantity, labels: dict[str, Label], right: Tensor | None, sums: Sums) -> list[_Row]:
        positions = float(sums.positions.sum())
        if right is None or not positions:
            reason = f"the model has only {sums.classes} classes" if positions else NO_POSITIONS
            reason = NO_CLASSES if sums.classes is None else reason
            return _with_interval(quantity, labels, _NOTHING, reason, reason)
        low, high, few = share_interval(right.numpy(), sums.positions.numpy(), resamples=self.resamples, seed=self.seed)
        return _with_interval(quantity, labels, (float(right.sum()) / positions, low, high), None, few)


def _class_table(moment: Moment, classes: Sequence[Sequence[int]]) -> Table:
    """A row for each class, by the configuration's name of it where it has one."""
    names = getattr(getattr(unwrap(moment.model), "config", None), "id2label", None) or {}
    scopes = [str(names.get(number, number)) for number, _, _ in classes]
    if len(set(scopes)) < len(scopes):
        scopes = [str(number) for number, _, _ in classes]
    ends = [wilson(right / n, n) for _, right, n in classes]
    columns = [
        Q.class_accuracy.column([right / n for _, right, n in classes]),
        Q.class_accuracy_low.column([low for low, _ in ends]),
        Q.class_accuracy_high.column([high for _, high in ends]),
        Q.class_examples.column([n for _, _, n in classes]),
    ]
    return Table("class", scopes, columns)


_Row = tuple[str, dict[str, Label], float | None, str | None]
"""A number as JSON keeps it: name, labels, value, and the reason if there is none."""
_NOTHING = math.nan, math.nan, math.nan


def _with_interval(
    quantity: Quantity, labels: dict[str, Label], numbers: Sequence[float], reason: str | None, no_interval: str | None
) -> list[_Row]:
    """A value and the ends of its interval; the reasons are for those that are NaN."""
    rows: list[_Row] = []
    for end, number, status in zip(("", "_low", "_high"), numbers, (reason, no_interval, no_interval), strict=True):
        missing = math.isnan(number)
        rows.append((f"{quantity.name}{end}", labels, None if missing else number, status if missing else None))
    return rows


def _exp(number: float) -> float:
    try:
        return math.exp(number)
    except OverflowError:
        return math.inf
