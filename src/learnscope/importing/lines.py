"""Curves as the lines of records, a block of steps at a time.

Records of a run differ in their numbers alone: of those with the same columns one is made as every record is, and its
line is the form for the others: a table of a million rows is a million lines.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from learnscope.importing.foreign import Floats, Ints
from learnscope.importing.names import Target
from learnscope.record import Column, Record, Table

SOURCE = "import"
PHASE = "after_step"
BLOCK = 20_000
"""Records that are made at a time, so that memory does not grow with a run."""
_STEP, _EPOCH, _TIME = -(2**62) - 1, -(2**62) - 2, 1.0625e300
"""Numbers that no run has, in whose place the others go."""


@dataclass(frozen=True)
class Values:
    """Those of one target in one attempt, in the order of steps."""

    target: Target
    steps: Ints
    values: Floats
    times: Floats


@dataclass(frozen=True)
class Maker:
    """Makes the lines of one probe in one attempt."""

    probe: str
    attempt: int
    epochs: Mapping[int, int]
    time: float
    """Of records of which the source gives none."""

    def blocks(self, columns: Sequence[Values]) -> Iterator[tuple[list[str], int]]:
        """Lines in the order of steps, one for each step with a value, and how many values they hold."""
        all_steps = np.unique(np.concatenate([column.steps for column in columns]))
        for first in range(0, len(all_steps), BLOCK):
            steps = all_steps[first : first + BLOCK]
            there = np.zeros((len(steps), len(columns)), dtype=np.bool_)
            values, times = np.zeros(there.shape), np.full(len(steps), np.nan)
            for place, column in enumerate(columns):
                low, high = np.searchsorted(column.steps, [steps[0], steps[-1] + 1])
                rows = np.searchsorted(steps, column.steps[low:high])
                times[rows] = np.fmax(times[rows], column.times[low:high])
                values[rows, place], there[rows, place] = column.values[low:high], True
            times = np.where(np.isfinite(times), times, self.time)
            yield self._lines([column.target for column in columns], steps, times, values, there), int(there.sum())

    def _lines(
        self, targets: Sequence[Target], steps: Ints, times: Floats, values: Floats, there: NDArray[np.bool_]
    ) -> list[str]:
        lines = [""] * len(steps)
        patterns, which = np.unique(there, axis=0, return_inverse=True)
        for number, pattern in enumerate(patterns):
            places: list[int] = np.flatnonzero(pattern).tolist()
            chosen = [targets[place] for place in places]
            rows = np.flatnonzero(which.reshape(-1) == number)
            cells = values[rows][:, places]
            usual = np.asarray(np.isfinite(cells).all(axis=1))
            form = self._form(chosen)
            for row, numbers, finite in zip(rows.tolist(), cells.tolist(), usual.tolist(), strict=True):
                step, time = int(steps[row]), float(times[row])
                if finite and form is not None:
                    epoch = self.epochs.get(step)
                    said = ("null" if epoch is None else epoch, repr(round(time, 6)))
                    lines[row] = form.line(step, *said, numbers)
                else:
                    lines[row] = self._record(step, time, self.epochs.get(step), chosen, numbers).to_json()
        return lines

    def _record(
        self, step: int, time: float, epoch: int | None, targets: Sequence[Target], values: Sequence[float]
    ) -> Record:
        return Record(
            probe=self.probe, step=step, epoch=epoch, phase=PHASE, source=SOURCE, attempt=self.attempt, time=time,
            cost=0.0, tables=tables(targets, values),
        )  # fmt: skip

    def _form(self, targets: Sequence[Target]) -> _Form | None:
        """From the line of a record with marks in place of its numbers; None if a name contains one of the marks."""
        marks = [float(f"1.{place:05d}e301") for place in range(1, len(targets) + 1)]
        text = self._record(_STEP, _TIME, _EPOCH, targets, marks).to_json()
        slots = [str(_STEP), str(_EPOCH), repr(_TIME), *map(repr, marks)]
        if any(text.count(slot) != 1 for slot in slots):
            return None
        text = text.replace("%", "%%")
        order = sorted(range(len(slots)), key=lambda slot: text.index(slots[slot]))
        for slot in slots:
            text = text.replace(slot, "%s")
        return _Form(text, [slot - 3 for slot in order[3:]])


@dataclass(frozen=True)
class _Form:
    """A line with a place for step, epoch and time, and for values in an order of its own."""

    text: str
    order: Sequence[int]

    def line(self, step: int, epoch: Any, time: str, values: Sequence[float]) -> str:
        return self.text % (step, epoch, time, *[repr(values[place]) for place in self.order])


def tables(targets: Sequence[Target], values: Sequence[float]) -> list[Table]:
    """What belongs to the whole model is one table, what belongs to groups another with a scope for each."""
    made = []
    cells = list(zip(targets, values, strict=True))
    whole = [(target, value) for target, value in cells if target.kind == "model"]
    if whole:
        columns = [Column(target.quantity.name, (), target.labels).finished([value]) for target, value in whole]
        made.append(Table("model", ["model"], columns))
    for name in dict.fromkeys(target.quantity.name for target in targets if target.kind == "group"):
        of_name = [(t, value) for t, value in cells if (t.kind, t.quantity.name) == ("group", name)]
        column = Column(name, ()).finished([value for _, value in of_name])
        made.append(Table("group", [target.scope for target, _ in of_name], [column]))
    return made
