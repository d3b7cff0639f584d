"""The numbers of one evaluation of training and test data, and their curves over the epochs."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from learnscope.findings.examples.grokking import Accuracies
from learnscope.quantities.examples import Memorization as Q
from learnscope.reading.cells import by_scope
from learnscope.record import Record

SPLITS = ("train", "test")
_OF_SPLITS = (Q.accuracy, Q.loss, Q.confidence, Q.calibration_error, Q.brier)
_COUNTS = (Q.examples, Q.positions)
_OF_MODEL = (Q.generalization_gap, Q.loss_gap, Q.proxy_membership_auc, Q.proxy_excess_confidence)
CURVES = (*(f"{split}_{q.name}" for q in _OF_SPLITS for split in SPLITS), *(q.name for q in _OF_MODEL))


def scores_of(record: Record) -> dict[str, Any]:
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


def curves_of(records: Mapping[int, Record]) -> dict[str, list[float]]:
    """The scores over the epochs, in the order of the records."""
    scores = [scores_of(record) for record in records.values()]
    return {name: [of_epoch[name] for of_epoch in scores] for name in CURVES}


def accuracies_of(epochs: list[int], curves: Mapping[str, list[float]]) -> Accuracies:
    """Training and test accuracy where both are known."""
    both = np.array([curves[f"{split}_accuracy"] for split in SPLITS])
    known = np.isfinite(both).all(0)
    steps = np.array(epochs, dtype=np.float64)[known]
    return Accuracies(steps, both[0, known], both[1, known], Q.probe, Q.accuracy, "a pass over the training data")
