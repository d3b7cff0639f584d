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
    """Every number by a name of its own, NaN where there is none, with the reasons of those beside them."""
    scores: dict[str, Any] = {"epoch": record.epoch}
    reasons: dict[str, str] = {}
    for quantity in _OF_SPLITS + _COUNTS:
        numbers, why = by_scope(record, "split", quantity)
        whole = quantity in _COUNTS
        scores |= {f"{split}_{quantity.name}": int(n) if whole else n for split, n in numbers.items()}
        reasons |= {f"{split}_{quantity.name}": reason for split, reason in why.items()}
    for quantity in _OF_MODEL:
        numbers, why = by_scope(record, "model", quantity)
        scores[quantity.name] = numbers["model"]
        reasons |= {quantity.name: why["model"]} if why else {}
    return {**scores, "memorization_score": scores[Q.generalization_gap.name], "reasons": reasons}


def curves_of(records: Mapping[int, Record]) -> dict[str, list[float]]:
    """The scores over the epochs, in the order of the records."""
    scores = [scores_of(record) for record in records.values()]
    return {name: [one[name] for one in scores] for name in CURVES}


def accuracies_of(epochs: list[int], curves: Mapping[str, list[float]]) -> Accuracies:
    """Training and test accuracy where both are known."""
    both = np.array([curves[f"{split}_accuracy"] for split in SPLITS])
    there = np.isfinite(both).all(0)
    steps = np.array(epochs, dtype=np.float64)[there]
    return Accuracies(steps, both[0, there], both[1, there], Q.probe, Q.accuracy, "a pass over the training data")
