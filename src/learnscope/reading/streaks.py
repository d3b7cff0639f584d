"""Runs of consecutive measurements in which something holds."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from learnscope.reading.gather import Floats


@dataclass(frozen=True)
class Streak:
    """The latest long run of measurements of one scope in which a condition held."""

    column: int
    rows: NDArray[np.int64]
    """Positions of its measurements among the steps."""
    lasting: bool
    """Whether it reaches the scope's last measurement."""

    def median(self, values: Floats) -> float:
        return float(np.nanmedian(values[self.rows, self.column]))


def streaks(holds: NDArray[np.bool_], measured: NDArray[np.bool_], at_least: int) -> list[Streak]:
    """For each column the latest run of at least `at_least` measured rows that all hold.

    What was not measured neither continues a run nor ends it.
    """
    latest = []
    for column in range(holds.shape[1]):
        rows = np.flatnonzero(measured[:, column])
        holding = holds[rows, column]
        # a run ends before each measurement that does not hold, and at the end
        breaks = np.concatenate([[-1], np.flatnonzero(~holding), [len(rows)]])
        for start, end in zip(breaks[-2::-1], breaks[:0:-1], strict=True):
            if end - start - 1 >= at_least:
                latest.append(Streak(column, rows[start + 1 : end], lasting=bool(end == len(rows))))
                break
    return latest
