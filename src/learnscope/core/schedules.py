"""Schedules that more than one probe uses."""

from __future__ import annotations

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
