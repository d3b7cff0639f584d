"""Whether a classifier is calibrated, and whether losses tell training examples from others."""

from __future__ import annotations

import math

import numpy as np
import torch
from torch import Tensor

PER_BIN = 10
"""Predictions that a bin needs: with fewer, the error is mostly sampling noise of the bin's accuracy."""


def class_probabilities(logits: Tensor) -> Tensor:
    """[N, C] in float64; a single logit is that of the second of two classes."""
    wide = logits.double()
    if wide.ndim < 2 or wide.shape[-1] == 1:
        single = wide.reshape(-1)
        return torch.stack([torch.sigmoid(-single), torch.sigmoid(single)], 1)
    return torch.softmax(wide, -1)


def brier_scores(probabilities: Tensor, targets: Tensor) -> Tensor:
    """Σ_c (p_c − [c = y])² of each prediction: 0 if sure and right, 2 if sure and wrong."""
    gold = probabilities.gather(1, targets.long()[:, None]).squeeze(1)
    return probabilities.square().sum(1) - 2 * gold + 1


def usable_bins(n: int, bins: int) -> int:
    """`bins`, or fewer if there would be less than `PER_BIN` predictions per bin; 0 if there are too few for one."""
    return min(bins, n // PER_BIN)


def calibration_error(confidence: Tensor, correct: Tensor, bins: int) -> float:
    """Expected calibration error Σ_b (n_b/n)·|accuracy_b − mean confidence_b| over bins of equal mass.

    The bins are those of scikit-learn's `calibration_curve(strategy="quantile")`: their inner edges are the quantiles
    k/bins of the confidences, interpolated linearly, and a confidence on an edge belongs to the bin below it. Equal
    confidences thus share a bin, whatever the order of the data, and a bin may be empty.
    """
    n = len(confidence)
    if n == 0 or bins < 1 or not bool(confidence.isfinite().all()):
        return math.nan
    sums = _bin_sums(confidence, correct, bins)
    return float((sums[1] - sums[0]).abs().sum() / n)


def reliability(confidence: Tensor, correct: Tensor, bins: int) -> Tensor:
    """Mean confidence, accuracy (NaN if empty) and size of each bin of `calibration_error`, [bins, 3] in float64."""
    sums = _bin_sums(confidence, correct, bins)
    return torch.stack([sums[0] / sums[2], sums[1] / sums[2], sums[2]], 1)


def _bin_sums(confidence: Tensor, correct: Tensor, bins: int) -> Tensor:
    """Σ confidence, Σ correct and the number of each bin, `[3, bins]`."""
    confidence = confidence.double()
    # equal probabilities may differ in their last digit, by the order in which a softmax adds
    values = confidence.numpy().round(12)
    # NumPy's, not torch's: the last digit of an edge decides where a confidence beside it belongs
    edges = np.percentile(values, np.linspace(0, 1, bins + 1) * 100)[1:-1]
    place = torch.from_numpy(np.searchsorted(edges, values))
    rows = torch.stack([confidence, correct.double(), torch.ones_like(confidence)])
    return torch.zeros(3, bins, dtype=torch.float64).index_add_(1, place, rows)


def membership_auc(train_losses: Tensor, test_losses: Tensor) -> float:
    """P(loss of a training example < loss of a test example), ties counting half; 1/2 reveals nothing."""
    if not len(train_losses) or not len(test_losses):
        return math.nan
    if not bool(train_losses.isfinite().all() & test_losses.isfinite().all()):
        return math.nan
    train, test = train_losses.double(), test_losses.double().sort().values
    above = len(test) - torch.searchsorted(test, train, right=True)
    ties = torch.searchsorted(test, train, right=True) - torch.searchsorted(test, train)
    return float((above.double() + ties.double() / 2).mean()) / len(test)
