"""How the damage of fewer bits is measured, and whether the damages of single units add up."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any


def judged_by(scores: Mapping[str, Any]) -> str:
    """How the damage is measured: by KL divergence, or by squared error where outputs are not distributions."""
    return "mse" if scores["regression"] else "kl"


def additivity(single: Sequence[float], joint: float) -> float | str:
    """Σ of the damages of single units over that of all together; the reason where it has no meaning."""
    if any(math.isnan(value) for value in (*single, joint)):
        return "a damage is not a number"
    return math.fsum(single) / joint if joint else "nothing changed: the joint damage is 0"
