"""The outputs of two models beside each other, by scikit-learn, SciPy and pandas."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd
from scipy import special, stats
from sklearn.metrics import accuracy_score, confusion_matrix, mean_squared_error
from sklearn.metrics.pairwise import paired_cosine_distances

Array = np.ndarray[Any, Any]


def compared(own: Array, other: Array, targets: Array | None = None) -> dict[str, float]:
    """What `VariantOutputs` declares, of logits [positions, classes] in float64."""
    kl = pd.Series(stats.entropy(special.softmax(own, 1), special.softmax(other, 1), axis=1))
    found = {
        "kl": kl.mean(), "kl_median": kl.median(), "kl_p99": kl.quantile(0.99),
        "cosine": 1 - paired_cosine_distances(own, other).mean(), "mse": mean_squared_error(own, other),
        "top1_agree": accuracy_score(own.argmax(1), other.argmax(1)),
    }  # fmt: skip
    if targets is not None:
        right = confusion_matrix(own.argmax(1) == targets, other.argmax(1) == targets, labels=[False, True])
        found |= {"broke": right[1, 0] / len(targets), "mended": right[0, 1] / len(targets)}
    return {name: float(value) for name, value in found.items()}
