"""What the steps did: which layers are trained, how large their updates are, and whether the loss falls."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from learnscope.quantities.updates import ParameterChange
from learnscope.reading.course.loss_course import SURE, Course, loss_course
from learnscope.reading.gather import Floats, Grid, grid, labels_of, layers, one_pass
from learnscope.reading.words import num
from learnscope.store.reader import RunReader


def untrained(reader: RunReader) -> set[str]:
    """Layers of which nothing is in an optimizer, or of which no bit ever changed while others moved."""
    names = [f".{name}" for name in (reader.manifest.get("model") or {}).get("trainable_outside_optimizer") or []]
    left_out = {layer for layer in layers(reader) if any(f".{layer}." in name for name in names)}
    updates = updates_of(reader)
    if updates is not None:
        moving = np.nan_to_num(updates.values) > 0
        counted = moving.any(axis=1)
        if counted.any():
            ever = np.asarray(moving[counted].any(axis=0))
            left_out |= {layer for layer, moved in zip(updates.scopes, ever, strict=True) if not moved}
    return left_out


def updates_of(reader: RunReader) -> Grid | None:
    """‖Δ‖/‖W‖ of every layer for one step: divided by the steps that a measurement spans."""
    run = one_pass(reader)

    def read() -> Grid | None:
        updates = grid(run, ParameterChange.update_to_weight)
        if not updates:
            return None
        columns = run.columns()
        spans = {step: span for label in labels_of(run, ParameterChange) for step, span in columns.notes(label, "span")}
        lengths = np.array([max(1, _length(spans.get(int(step)))) for step in updates.steps], np.float64)
        return Grid(updates.steps, updates.scopes, updates.values / lengths[:, None], updates.broken, updates.probe)

    return run.remember("updates for a step", read)


def _length(span: Sequence[int] | None) -> int:
    return int(span[1]) - int(span[0]) if span else 1


@dataclass(frozen=True)
class Updates:
    """The size of some layers' updates against those of the others."""

    own: float
    others: float

    @property
    def below(self) -> float:
        return self.others / self.own if self.own else np.inf

    @property
    def sentence(self) -> str:
        off = f"{num(self.below)} times below" if self.below >= 1 else f"{num(1 / self.below)} times above"
        return f"A step changes them by {num(self.own)} of their size, {off} the other layers' {num(self.others)}."


def updates_against_others(reader: RunReader, names: Sequence[str], since: int = 0) -> Updates | None:
    """Medians over measurements and layers; None if not measured, or if there are no others.

    With `since`, over the later half of the changes that began there or later, if there are any: a momentum goes on
    moving weights for some steps after their gradient is gone.
    """
    updates = updates_of(reader)
    if updates is None:
        return None
    updates = _later(updates, since) if since else updates
    left_out = untrained(reader) - set(names)
    own = [place for place, layer in enumerate(updates.scopes) if layer in names]
    others = [place for place, layer in enumerate(updates.scopes) if layer not in names and layer not in left_out]
    if not own or not others:
        return None
    sizes = _median(updates.values[:, own]), _median(updates.values[:, others])
    return Updates(*sizes) if all(np.isfinite(sizes)) and sizes[1] > 0 else None


def _later(updates: Grid, since: int) -> Grid:
    before = np.concatenate([[0], updates.steps[:-1]])
    rows = np.flatnonzero(before >= since)
    rows = rows[len(rows) // 2 :]
    if not len(rows):
        return updates
    return Grid(updates.steps[rows], updates.scopes, updates.values[rows], updates.broken[rows], updates.probe)


def _median(values: Floats) -> float:
    finite = values[np.isfinite(values)]
    return float(np.median(finite)) if len(finite) else float("nan")


def learning(reader: RunReader) -> bool | None:
    """Whether the loss fell and is still near its best; None if too few values were recorded to tell."""
    course = loss_course(reader)
    return None if course is None else course.improved and not lost_again(course)


def lost_again(course: Course) -> bool:
    """Whether the loss ended not finite, or gave up more than half of what it had gained."""
    risen = course.end.above(course.best) > SURE and course.end.value - course.best.value > 0.5 * course.gain
    return risen or course.broken > 0
