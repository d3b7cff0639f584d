"""What a model knows of its training data that it does not know of test data."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

import torch
from torch import Tensor

from learnscope.core.moment import Moment
from learnscope.core.probe import At, Probe
from learnscope.model.outputs.outcomes import Outcomes, outcomes
from learnscope.options import check_whole
from learnscope.quantities import Quantities, Quantity
from learnscope.quantities.examples import Memorization as Q
from learnscope.record import Column, Measurement, Table
from learnscope.tensor.outputs.calibration import PER_BIN, calibration_error, membership_auc, reliability, usable_bins

NO_CLASSES = "float targets: there is no accuracy or confidence, only an error"


class Memorization(Probe):
    """Training and test data in eval mode, one pass each, on the examples that the session keeps of both.

    Memorization of an example, in its proper sense (arXiv 2008.03703), is what a model that was trained without the
    example lacks; it takes many models. What is called `proxy` here takes one, and is a proxy: `proxy_excess`, an
    array with an entry a training position, is p(right class) minus its mean over the test positions of that class
    (NaN where the test data lack the class). Arrays: `proxy_excess`, `train_loss`, `train_gold`, `train_correct`,
    `train_target`, `train_predicted`, `train_example`, `train_id` (where batches carry ids), and of both splits
    `reliability_<split>`: mean confidence, accuracy and number of each bin. `keep_arrays=False` leaves them out.
    """

    every: int = 1
    at: At = "epoch"
    bins: int = 15
    keep_arrays: bool = True
    num_classes: int | None = None
    """How many classes the model is known to tell apart; another number of logits is refused."""
    needs: ClassVar[frozenset[str]] = frozenset({"train_data", "test_data"})
    reads_only: ClassVar[bool] = True  # the passes have a guard of their own
    quantities: ClassVar[type[Quantities]] = Q
    cost: ClassVar[str] = "one forward of the training and the test examples that the session keeps"

    def __post_init__(self) -> None:
        super().__post_init__()
        check_whole(self, bins=1)

    def measure(self, moment: Moment) -> Measurement:
        splits = {"train": moment.train_data, "test": moment.test_data}
        seen: dict[str, Outcomes] = {}
        for split, batches in splits.items():
            key = ("outcomes", f"{split}_data")
            found = moment.once(key, lambda batches=batches: outcomes(moment.model, moment.task, batches))  # type: ignore[misc]
            if found is None:
                raise ValueError(f"the batches of {split}= have no targets: accuracy and loss need them")
            self._check_classes(found.classes)
            seen[split] = found
        train, test = seen["train"], seen["test"]
        excess = _excess(train, test)
        tables = [_of_splits(seen, self.bins), Table("model", ["model"], _gaps(train, test, excess))]
        arrays: dict[str, Any] = {}
        if self.keep_arrays:
            arrays = {"train_loss": train.losses.float(), "train_example": train.example}
            if excess is not None and train.gold is not None and train.correct is not None:
                arrays |= {"proxy_excess": excess.float(), "train_gold": train.gold.float()}
                arrays["train_correct"] = train.correct
            arrays |= _of_classes(train) | _reliabilities(seen, self.bins)
        return Measurement(tables, arrays=arrays)

    def _check_classes(self, found: int | None) -> None:
        if self.num_classes is not None and found is not None and found != self.num_classes:
            raise ValueError(f"num_classes={self.num_classes}, but the model tells {found} classes apart")


def _of_classes(train: Outcomes) -> dict[str, Any]:
    arrays = {"train_target": train.targets, "train_predicted": train.predicted, "train_id": train.ids}
    return {name: array for name, array in arrays.items() if array is not None}


def _reliabilities(seen: Mapping[str, Outcomes], bins: int) -> dict[str, Tensor]:
    """With as many bins as the calibration error has."""
    used = _used_bins(list(seen.values()), bins)
    return {
        f"reliability_{split}": reliability(one.confidence, one.correct, used)
        for split, one in seen.items()
        if used and one.confidence is not None and one.correct is not None and bool(one.confidence.isfinite().all())
    }


def _used_bins(seen: list[Outcomes], bins: int) -> int:
    """As many as the smaller of the splits allows, so that the two can be compared."""
    return min(usable_bins(len(one.losses), bins) for one in seen)


def _of_splits(seen: Mapping[str, Outcomes], bins: int) -> Table:
    columns = [
        _means(Q.accuracy, [one.correct for one in seen.values()]),
        _means(Q.loss, [one.losses for one in seen.values()]),
        _means(Q.confidence, [one.confidence for one in seen.values()]),
        _means(Q.brier, [one.brier for one in seen.values()]),
        *_calibration(list(seen.values()), bins),
        Q.positions.column([len(one.losses) for one in seen.values()]),
        Q.examples.column([int(torch.unique(one.example).numel()) for one in seen.values()]),
    ]
    return Table("split", list(seen), columns)


def _means(quantity: Quantity, parts: list[Tensor | None]) -> Column:
    values = [None if part is None or not len(part) else float(part.double().mean()) for part in parts]
    reasons = {
        i: NO_CLASSES if part is None else "no position has a target"
        for i, part in enumerate(parts)
        if part is None or not len(part)
    }
    return quantity.column(values, status=reasons)


def _calibration(seen: list[Outcomes], bins: int) -> list[Column]:
    used = _used_bins(seen, bins)
    values: list[float | None] = []
    reasons: dict[int, str] = {}
    for place, one in enumerate(seen):
        if one.confidence is None or one.correct is None or not used:
            reasons[place] = NO_CLASSES if one.confidence is None else _too_few(len(one.losses))
            values.append(None)
        else:
            values.append(calibration_error(one.confidence, one.correct, used))
    return [Q.calibration_error.column(values, {"bins": used}, reasons)]


def _too_few(predictions: int) -> str:
    if predictions < PER_BIN:
        return f"fewer than {PER_BIN} predictions"
    return f"the other split has fewer than {PER_BIN} predictions, and both are binned alike"


def _gaps(train: Outcomes, test: Outcomes, excess: Tensor | None) -> list[Column]:
    columns = [
        Q.loss_gap.column([float(test.losses.mean() - train.losses.mean())]),
        Q.proxy_membership_auc.column([membership_auc(train.losses, test.losses)]),
    ]
    if train.correct is None or test.correct is None or excess is None:
        of_classes = (Q.generalization_gap, Q.proxy_excess_confidence)
        return columns + [quantity.column([None], status={0: NO_CLASSES}) for quantity in of_classes]
    gap = float(train.correct.double().mean() - test.correct.double().mean())
    comparable = excess[~_unknown(train, test)]
    mean = float(comparable.mean()) if len(comparable) else None
    reason = {} if len(comparable) else {0: "the test data have none of the training data's classes"}
    return [*columns, Q.generalization_gap.column([gap]), Q.proxy_excess_confidence.column([mean], status=reason)]


def _excess(train: Outcomes, test: Outcomes) -> Tensor | None:
    """p(right class) above the mean of that class's test positions; NaN for a class that has none."""
    if train.gold is None or train.targets is None or test.gold is None or test.targets is None:
        return None
    classes = int(torch.cat([train.targets, test.targets]).max()) + 1
    sums = torch.zeros(classes, dtype=torch.float64).index_add_(0, test.targets, test.gold)
    return train.gold - (sums / torch.bincount(test.targets, minlength=classes))[train.targets]


def _unknown(train: Outcomes, test: Outcomes) -> Tensor:
    """Training positions whose class the test data lack."""
    assert train.targets is not None
    assert test.targets is not None
    return ~torch.isin(train.targets, test.targets)
