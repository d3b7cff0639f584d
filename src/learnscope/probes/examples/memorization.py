"""What a model knows of its training data that it does not know of test data."""

from __future__ import annotations

import torch
from torch import Tensor

from learnscope.core.moment import Moment
from learnscope.core.probe import At, Probe
from learnscope.model.outputs.outcomes import Outcomes, outcomes
from learnscope.options import check_whole
from learnscope.probes.outputs.positions import NO_POSITION, mean_of_positions, why_not_finite
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

    at: At = "epoch"
    bins: int = 15
    keep_arrays: bool = True
    num_classes: int | None = None
    """How many classes the model is known to tell apart; another number of logits is refused."""
    needs = frozenset({"train_data", "test_data"})
    reads_only = True  # the passes have a guard of their own
    cost = "one forward of the training and the test examples that the session keeps"

    def __post_init__(self) -> None:
        super().__post_init__()
        check_whole(self, bins=1)

    def measure(self, moment: Moment) -> Measurement:
        splits: dict[str, Outcomes] = {}
        for split, batches in {"train": moment.train_data, "test": moment.test_data}.items():
            key = ("outcomes", f"{split}_data")
            results = moment.once(key, lambda batches=batches: outcomes(moment.model, moment.task, batches))  # type: ignore[misc]
            if results is None:
                raise ValueError(f"the batches of {split}= have no targets: accuracy and loss need them")
            if self.num_classes is not None and results.classes not in (None, self.num_classes):
                raise ValueError(f"num_classes={self.num_classes}, but the model tells {results.classes} classes apart")
            splits[split] = results
        train, test = splits["train"], splits["test"]
        # as many bins as the smaller of the splits allows, so that the two can be compared
        bins = min(usable_bins(len(split.losses), self.bins) for split in splits.values())
        excess = _excess(train, test)
        tables = [
            Table("split", list(splits), _of_splits(list(splits.values()), bins)),
            Table("model", ["model"], _gaps(train, test, excess)),
        ]
        if not self.keep_arrays:
            return Measurement(tables)
        arrays = {
            "train_loss": train.losses.float(), "train_example": train.example, "train_target": train.targets,
            "train_predicted": train.predicted, "train_id": train.ids,
        }  # fmt: skip
        if excess is not None and train.gold is not None:
            arrays |= {"proxy_excess": excess.float(), "train_gold": train.gold.float(), "train_correct": train.correct}
        for split, results in splits.items():
            if bins and results.confidence is not None and bool(results.confidence.isfinite().all()):
                assert results.correct is not None
                arrays[f"reliability_{split}"] = reliability(results.confidence, results.correct, bins)
        return Measurement(tables, {name: array for name, array in arrays.items() if array is not None})


def _of_splits(splits: list[Outcomes], bins: int) -> list[Column]:
    def means(what: str, name: str) -> list[float | str]:
        return [_mean(what, getattr(split, name), split) for split in splits]

    return [
        Q.accuracy.cells(means("", "correct")),
        Q.loss.cells(means("the loss", "losses")),
        Q.confidence.cells(means("the confidence", "confidence")),
        Q.brier.cells(means("the score", "brier")),
        Q.calibration_error.cells([_calibration(split, bins) for split in splits], bins=bins),
        Q.positions.cells([len(split.losses) for split in splits]),
        Q.examples.cells([int(torch.unique(split.example).numel()) for split in splits]),
    ]


def _mean(what: str, values: Tensor | None, split: Outcomes) -> float | str:
    return NO_CLASSES if values is None else mean_of_positions(what, values, split.example)


def _calibration(split: Outcomes, bins: int) -> float | str:
    if split.confidence is None or split.correct is None:
        return NO_CLASSES
    if bins:
        undefined = why_not_finite("the confidence", split.confidence, split.example)
        return undefined or calibration_error(split.confidence, split.correct, bins)
    if len(split.losses) < PER_BIN:
        return f"fewer than {PER_BIN} predictions"
    return f"the other split has fewer than {PER_BIN} predictions, and both are binned alike"


def _gaps(train: Outcomes, test: Outcomes, excess: Tensor | None) -> list[Column]:
    gap: float | str = NO_CLASSES
    mean_excess: float | str = NO_CLASSES
    if train.correct is not None and test.correct is not None and excess is not None:
        assert train.targets is not None
        assert test.targets is not None
        empty = _undefined("", "correct", train, test)
        gap = empty or float(train.correct.double().mean() - test.correct.double().mean())
        comparable = excess[torch.isin(train.targets, test.targets)]
        lacking = "the test data have none of the training data's classes"
        unknown = _undefined("the confidence", "gold", train, test)
        mean_excess = unknown or (float(comparable.mean()) if len(comparable) else lacking)
    unknown = _undefined("the loss", "losses", train, test)
    return [
        Q.loss_gap.cells([unknown or float(test.losses.mean() - train.losses.mean())]),
        Q.proxy_membership_auc.cells([unknown or membership_auc(train.losses, test.losses)]),
        Q.generalization_gap.cells([gap]),
        Q.proxy_excess_confidence.cells([mean_excess]),
    ]


def _undefined(what: str, name: str, train: Outcomes, test: Outcomes) -> str | None:
    """Why the two splits cannot be compared: which has numbers that are not finite, or no position."""
    for which, split in (("training", train), ("test", test)):
        values: Tensor = getattr(split, name)
        if not len(values):
            return f"in the {which} data {NO_POSITION}"
        if reason := why_not_finite(f"in the {which} data {what}", values, split.example):
            return reason
    return None


def _excess(train: Outcomes, test: Outcomes) -> Tensor | None:
    """p(right class) above the mean of that class's test positions; NaN for a class that has none."""
    if train.gold is None or train.targets is None or test.gold is None or test.targets is None:
        return None
    classes = int(torch.cat([train.targets, test.targets]).max()) + 1
    sums = torch.zeros(classes, dtype=torch.float64).index_add_(0, test.targets, test.gold)
    return train.gold - (sums / torch.bincount(test.targets, minlength=classes))[train.targets]
