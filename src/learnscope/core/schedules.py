"""Schedules that more than one probe uses."""

from __future__ import annotations

from collections.abc import Callable
from itertools import count

DENSE, USUAL = 100, 10_000
"""Steps up to which every tenth is due, and every hundredth."""


def dense_at_first(step: int) -> bool:
    """Step 1, every 10th step to 100, every 100th to 10,000, then every 1,000th.

    A run of 150 steps has a dozen measurements, and one of a million about a thousand.

    >>> [step for step in range(1, 301) if dense_at_first(step)]
    [1, 10, 20, 30, 40, 50, 60, 70, 80, 90, 100, 200, 300]
    """
    return step == 1 or step % (10 if step <= DENSE else 100 if step <= USUAL else 1_000) == 0


def thinning(step: int) -> bool:
    """Steps 1 and 2, every 10th to 200, every 50th to 1,000, then every 100th: faults of data and loss show early.

    >>> [step for step in range(1, 401) if thinning(step)][:6], [step for step in range(180, 401) if thinning(step)]
    ([1, 2, 10, 20, 30, 40], [180, 190, 200, 250, 300, 350, 400])
    """
    return step <= 2 or step % (10 if step <= 200 else 50 if step <= 1_000 else 100) == 0


def regular_at_first(step: int) -> bool:
    """Every 10th step to 200, every 20th to 1,000, every 50th to 10,000, every 500th to 100,000, then every 1,000th.

    What happens in a few hundred steps is seen as it happens: 60 measurements in 1,000, some 1,400 in a million.

    >>> [step for step in range(1, 1201) if regular_at_first(step)][-6:]
    [980, 1000, 1050, 1100, 1150, 1200]
    """
    apart = 10 if step <= 200 else 20 if step <= 1_000 else 50 if step <= 10_000 else 500 if step <= 100_000 else 1_000
    return step % apart == 0


_FIXED = frozenset({dense_at_first, regular_at_first, thinning})
"""Schedules that answer the same whenever they are asked; of a user's own that is not known."""


def next_due(every: int | Callable[[int], bool], step: int) -> int:
    """The first step after this one at which a schedule is due, or has to be asked.

    >>> next_due(10, 20), next_due(thinning, 200), next_due(lambda step: step > 99, 5)
    (30, 250, 6)
    """
    if not callable(every):
        return (step // every + 1) * every
    return next(later for later in count(step + 1) if every not in _FIXED or every(later))
