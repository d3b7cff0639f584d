"""What a model knows of its training data and not of test data, over the epochs or over checkpoints."""

from __future__ import annotations

import os
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from learnscope.core.moment import NotAvailable
from learnscope.dynamics.checks import CheckedTargets, check_device, known_noise
from learnscope.dynamics.saved import RecordingAnalyzer, load_session, save_session
from learnscope.findings.examples.grokking import Accuracies, grokked
from learnscope.findings.examples.label_noise import LabelLosses, LabelsChanged, noise_scores, ranking
from learnscope.findings.examples.memorizing import evolution, why_no_changes
from learnscope.model.data import InOrder
from learnscope.model.guard import preserve_rng
from learnscope.options import explain_options, whole_number
from learnscope.probes.examples.memorization import Memorization
from learnscope.quantities.examples import Memorization as Q
from learnscope.reading.cells import by_scope
from learnscope.reading.cuts import Cuts
from learnscope.record import Record
from learnscope.report.examples.memorization import MemorizationData, plot_memorized
from learnscope.session.opening import check_model
from learnscope.task import Task, task_for

if TYPE_CHECKING:
    import pandas as pd

KIND = "MemorizationDetector"
SPLITS = ("train", "test")
_OF_SPLITS = (Q.accuracy, Q.loss, Q.confidence, Q.calibration_error, Q.brier)
_COUNTS = (Q.examples, Q.positions)
_OF_MODEL = (Q.generalization_gap, Q.loss_gap, Q.proxy_membership_auc, Q.proxy_excess_confidence)
CURVES = (*(f"{split}_{q.name}" for q in _OF_SPLITS for split in SPLITS), *(q.name for q in _OF_MODEL))


class MemorizationDetector(RecordingAnalyzer):
    """Runs a model over all of its training and test data, one guarded pass in eval mode each.

    Loaders are never iterated: their data sets are read in order. `num_classes` and `device` are checked against data
    and model. `run` is a folder to record in, otherwise memory, which holds a few numbers for each training example and
    evaluation. The step of a record is its epoch; a later evaluation of an epoch replaces the earlier one.

    Memorization of an example in its proper sense takes many models (arXiv 2008.03703); a proxy takes one.
    """

    @partial(explain_options, owner=KIND)
    def __init__(
        self, num_classes: int | None = None, device: Any = None, *, task: Task | None = None,
        run: str | os.PathLike[str] | None = None,
    ) -> None:  # fmt: skip
        num_classes = None if num_classes is None else whole_number("num_classes", num_classes, 2)
        self.num_classes, self.device, self.task = num_classes, device, task
        super().__init__({"memory": Memorization(num_classes=num_classes)}, run)

    def compute_memorization_scores(
        self, model: nn.Module, train_loader: Any, test_loader: Any, epoch: int
    ) -> dict[str, Any]:
        """Accuracies, losses, calibration and proxies of memorization at this epoch.

        `memorization_score` is the generalization gap: training accuracy minus test accuracy. A number that is not
        defined (accuracy for float targets, calibration for few predictions) is NaN, with its reason under `reasons`.
        """
        check_model(model)
        check_device(model, self.device)
        epoch = whole_number("epoch", epoch)
        loaders = {"train": train_loader, "test": test_loader}
        for split, loader in loaders.items():
            if loader is None:
                raise TypeError(f"{split}_loader is None: both are needed, since what is measured is their difference")
        task = self.task
        if task is None:
            with preserve_rng():  # a data set that augments at random draws
                task = task_for(next(iter(InOrder(train_loader))), model)
        data = {f"{split}_data": CheckedTargets(loaders[split], split, task, self.num_classes) for split in SPLITS}
        self._session.open(model)
        self._session.set_data(task, **data)
        return _scores(self._session.measure(self._session.moment("epoch", step=epoch, epoch=epoch))["memory"])

    def analyze_memorization_evolution(self, *, cuts: Cuts | None = None) -> dict[str, Any]:
        """The course of the generalization gap, and when the memorizing plateau ended.

        `transition_epoch` is the first epoch after the peak of the gap from which it stays below half its peak for two
        evaluations, if that peak was at least 0.1; else None, and `reason` says why. `change_points` are the epochs at
        which the gap jumps out of its smooth course, with `p_value`. `grokking` has the epochs at which
        training and test accuracy crossed 0.99 and 0.95 for good (`cuts`), or is None.
        """
        records = self._records()
        epochs, curves = list(records), _curves(records)
        gap = evolution(epochs, curves[Q.generalization_gap.name])
        both = np.array([curves[f"{split}_accuracy"] for split in SPLITS])
        known = np.isfinite(both).all(0)
        train, test = both[:, known]
        steps, source = np.array(epochs, dtype=np.float64)[known], "a pass over the training data"
        grokking = grokked(Accuracies(steps, train, test, Q.probe, Q.accuracy, source), cuts or Cuts())
        return {
            "epochs": epochs, **curves, "memorization_score": curves[Q.generalization_gap.name],
            "transition_epoch": gap.transition_epoch, "reason": gap.reason, "peak_gap": gap.peak_gap,
            "peak_epoch": gap.peak_epoch, "final_gap": gap.final_gap, "change_points": gap.change_epochs,
            "p_value": gap.changes.p_value, "no_change_points": why_no_changes(gap),
            "grokking": grokking and {
                "memorised_epoch": grokking.memorised, "generalised_epoch": grokking.generalised,
                "delay": grokking.delay, "plateau_end": grokking.plateau_end, "p_value": grokking.p_value,
            },
        }  # fmt: skip

    def memorization_proxies(self, epoch: int | None = None) -> pd.DataFrame:
        """One row for each training position that has a target (of a classifier: each example) at an epoch.

        `excess` is p_gold minus its mean over the test positions of the same class, NaN where there are none. Columns
        that need classes are missing for float targets, `id` where the batches carry none.
        """
        import pandas as pd

        arrays = self._arrays(self._record(epoch))
        columns = {
            "example": "train_example", "id": "train_id", "label": "train_target", "predicted": "train_predicted",
            "p_gold": "train_gold", "excess": "proxy_excess", "loss": "train_loss", "correct": "train_correct",
        }  # fmt: skip
        return pd.DataFrame({name: arrays[array] for name, array in columns.items() if array in arrays})

    def calibration(self, epoch: int | None = None) -> dict[str, dict[str, Any]]:
        """Of each split the calibration error and its reliability curve: confidence, accuracy and n of every bin.

        Bins have equal mass, equal confidences share one; where there is no curve, `reason` says why.
        """
        import pandas as pd

        record = self._record(epoch)
        arrays = self._arrays(record)
        errors, reasons = by_scope(record, "split", Q.calibration_error)
        return {
            split: {
                "calibration_error": errors[split], "reason": reasons.get(split),
                "reliability": pd.DataFrame(
                    arrays.get(f"reliability_{split}", np.zeros((0, 3))), columns=["confidence", "accuracy", "n"]
                ).astype({"n": np.int64}),
            }
            for split in SPLITS
        }  # fmt: skip

    def find_label_noise(self, top_k: int | None = None, *, true_noise: Any = None) -> pd.DataFrame:
        """Training labels from the most suspicious to the least, over all evaluations so far.

        `score` is the mean loss of the position over the evaluations, `suggested` the class that the model predicted
        instead of the label; see `findings.label_noise.LabelLosses`. Evaluations before the model has memorized the
        labels tell most. With `true_noise` (a mask over the examples, or their ids) there is a column `noisy`, and
        `noise_score` of it is in the table's `attrs`.
        """
        import pandas as pd

        top_k = None if top_k is None else whole_number("top_k", top_k, 1)
        doubts, arrays = self._doubts()
        frame = pd.DataFrame({"example": arrays["train_example"]})
        if "train_id" in arrays:
            frame["id"] = arrays["train_id"]
        frame["score"], frame["label"] = doubts.scores, doubts.labels
        frame["suggested"] = pd.Series(doubts.suggested, dtype="Int64").replace(-1, pd.NA)
        if true_noise is not None:
            frame["noisy"] = known_noise(frame, true_noise)
        ranked = frame.iloc[ranking(doubts.scores)[:top_k]].reset_index(drop=True)
        ranked.attrs["evaluations"] = doubts.evaluations
        if true_noise is not None:
            ranked.attrs["noise_score"] = self.noise_score(true_noise, top_k)
        return ranked

    def noise_score(self, true_noise: Any, k: int | None = None) -> dict[str, float | int]:
        """How well the suspects match the labels that are known to be wrong: AUROC, and precision among the first `k`.

        `k` is by default the number of wrong labels; `n` is the number of labels.
        """
        k = None if k is None else whole_number("k", k, 1)
        ranked = self.find_label_noise()
        noisy = known_noise(ranked, true_noise)
        return noise_scores(ranked["score"].to_numpy(np.float64), noisy, int(noisy.sum()) if k is None else k)

    def plot_memorization(self, save_dir: str | os.PathLike[str]) -> list[Path]:
        """Draw accuracies, the gap and losses over the epochs, reliability, and the training examples' proxies."""
        records, suspects, reason = self._records(), None, None
        curves = _curves(records)
        try:
            suspects = self.find_label_noise()
        except NotAvailable as error:
            reason = str(error)
        gap = evolution(list(records), curves[Q.generalization_gap.name])
        numbers = MemorizationData(
            list(records), curves, gap, self.calibration(), self.memorization_proxies(), suspects, reason
        )
        return plot_memorized(numbers, Path(save_dir))

    def save(self, path: str | os.PathLike[str]) -> Path:
        """Everything in one file, which is safetensors whatever it is called; see `load`."""
        device = None if self.device is None else str(torch.device(self.device))
        return save_session(path, self._session, KIND, {"num_classes": self.num_classes, "device": device})

    @classmethod
    def load(
        cls, path: str | os.PathLike[str], *, task: Task | None = None, run: str | os.PathLike[str] | None = None
    ) -> MemorizationDetector:
        """The saved detector, which can be continued; pass a task of your own again."""
        options, session = load_session(path, KIND)
        detector = cls(options["num_classes"], options["device"], task=task, run=run)
        detector._session.restore(session)
        return detector

    def _records(self) -> dict[int, Record]:
        """The last record of each epoch, in the order of epochs."""
        records = {record.step: record for record in self._session.reader.records()} if self._session.begun else {}
        if not records:
            raise NotAvailable("nothing has been evaluated: call compute_memorization_scores first")
        return dict(sorted(records.items()))

    def _record(self, epoch: int | None) -> Record:
        records = self._records()
        chosen = max(records) if epoch is None else epoch
        if chosen not in records:
            raise NotAvailable(f"epoch {epoch} was not evaluated; there are {', '.join(map(str, records))}")
        return records[chosen]

    def _arrays(self, record: Record) -> dict[str, NDArray[Any]]:
        assert record.arrays is not None, "the probe keeps arrays"
        return self._session.reader.backend.arrays(record.arrays)

    def _doubts(self) -> tuple[LabelLosses, dict[str, NDArray[Any]]]:
        """How suspicious each label is over all evaluations, and the arrays of the last one."""
        doubts, arrays = LabelLosses(), {}
        for epoch, record in self._records().items():
            arrays = self._arrays(record)
            if "train_predicted" not in arrays:
                raise NotAvailable("the targets are not classes: there is no label that could be wrong")
            try:
                doubts.add(arrays["train_target"], arrays["train_loss"], arrays["train_predicted"])
            except LabelsChanged as error:
                raise NotAvailable(
                    f"the training data of epoch {epoch} are not those of the evaluations before ({error}): labels can "
                    "be judged over evaluations of the same data in the same order"
                ) from error
        return doubts, arrays


def _scores(record: Record) -> dict[str, Any]:
    """Every number by a name of its own, NaN where there is none; `reasons` says why."""
    scores: dict[str, Any] = {"epoch": record.epoch}
    reasons: dict[str, str] = {}
    for quantity in _OF_SPLITS + _COUNTS + _OF_MODEL:
        kind = "model" if quantity in _OF_MODEL else "split"
        numbers, missing = by_scope(record, kind, quantity)
        names = {scope: quantity.name if kind == "model" else f"{scope}_{quantity.name}" for scope in numbers}
        scores |= {names[scope]: int(n) if quantity in _COUNTS else n for scope, n in numbers.items()}
        reasons |= {names[scope]: reason for scope, reason in missing.items()}
    return {**scores, "memorization_score": scores[Q.generalization_gap.name], "reasons": reasons}


def _curves(records: Mapping[int, Record]) -> dict[str, list[float]]:
    scores = [_scores(record) for record in records.values()]
    return {name: [of_epoch[name] for of_epoch in scores] for name in CURVES}
