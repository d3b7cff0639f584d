"""Logged losses that stand out, for keeping the ids of their examples."""

from __future__ import annotations

import math

WARM_UP, MEMORY = 10, 50
"""Losses before any can stand out, and about how many the running level remembers."""
CUT, LIMIT = 6.0, 3.0
"""Deviations above the level from which a loss stands out, and up to which one moves the level."""
IN_A_ROW, IN_ALL = 3, 100


class LossWatch:
    """A running level of the losses and their mean absolute deviation from it, a few operations a loss.

    What a single loss can do to either is limited, so that a spike hides neither itself nor the next one. Only what a
    record says besides its numbers depends on this; findings judge the whole course.
    """

    def __init__(self) -> None:
        self._seen = self._broken = self._told = 0
        self._level = self._deviation = 0.0

    def stands_out(self, loss: float) -> bool:
        """Whether a loss is not finite, or far above the level; at most 3 in a row that are not finite, 100 in all."""
        if math.isfinite(loss):
            self._broken = 0
            found = self._take(loss)
        else:
            self._broken += 1
            found = self._broken <= IN_A_ROW
        self._told += found
        return found and self._told <= IN_ALL

    def _take(self, loss: float) -> bool:
        self._seen += 1
        if self._seen == 1:
            self._level = loss
            return False
        off, warm = loss - self._level, self._seen > WARM_UP
        limit = max(LIMIT * self._deviation, 1e-6 * abs(self._level)) if warm else math.inf
        found = warm and off > max(CUT * self._deviation, 1e-6 * abs(self._level))
        rate = max(1 / self._seen, 1 / MEMORY)
        self._level += rate * max(-limit, min(limit, off))
        self._deviation += rate * (min(abs(off), limit) - self._deviation)
        return found
