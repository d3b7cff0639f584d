"""What findings about steps share: evidence between two steps, and since when something holds."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from learnscope.quantities import Quantity
from learnscope.reading.streaks import Streak
from learnscope.reading.words import between
from learnscope.record import Evidence

Interval = tuple[float, float]
Steps = NDArray[np.int64]


def evidence_over(
    steps: Sequence[int], probe: str, quantity: Quantity | str, n: int, value: float, interval: Interval | None = None
) -> Evidence:
    """Evidence from `n` measurements between the first and the last of `steps`."""
    name = quantity if isinstance(quantity, str) else quantity.name
    ends = {"first_step": steps[0], "last_step": steps[-1]}
    return Evidence(probe=probe, name=name, n=n, **ends, value=value, interval=interval)


def span_of(streaks: Sequence[Streak], steps: Steps) -> tuple[int, int]:
    """The first and the last step in any of the streaks."""
    return int(min(steps[s.rows[0]] for s in streaks)), int(max(steps[s.rows[-1]] for s in streaks))


def since(streaks: Sequence[Streak], steps: Steps) -> str:
    first, last = span_of(streaks, steps)
    return f"since step {first:,}" if streaks[0].lasting else f"in {between(first, last)}, not after"
