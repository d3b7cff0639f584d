"""Steps that never happened, and the examples behind a step."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from learnscope.quantities.gradients import LostSteps
from learnscope.quantities.outputs import Loss
from learnscope.reading.gather import labels_of, one_pass
from learnscope.record import SKIPPED, Record, nonfinite
from learnscope.store.reader import RunReader

Row = int | str


@dataclass(frozen=True)
class Lost:
    """An attempt at a step that was not finite, or that was lost."""

    step: int
    """The step that it would have been."""
    attempt: int
    """Counted over the attempts at the same step."""
    cause: str
    """What showed it: `clip`, `loss`, `scaler` or `end`."""
    why: str
    skipped: bool | None
    """Whether the step never came; None if the run ended before that was known, so that it did not either."""
    tensor: str | None
    """The first bad tensor in backward order."""
    loss: float | None
    loss_status: str | None
    bad_tensors: int | None
    """Tensors with a NaN or an infinity; None if the gradients were gone."""
    rows: list[Row] = field(default_factory=list)

    @property
    def is_nonfinite(self) -> bool:
        """Whether its gradients or its loss are known not to be finite."""
        return bool(self.bad_tensors) or nonfinite(self.loss_status) is not None or self.cause in ("clip", "scaler")


def lost_steps(reader: RunReader) -> list[Lost]:
    """All attempts, each as it was last recorded, in their order."""
    found: dict[tuple[int, int], Lost] = {}
    for record in _records(reader, LostSteps):
        if record.phase == SKIPPED and record.error is None:
            lost = _lost(record)
            found[lost.step, lost.attempt] = lost
    return sorted(found.values(), key=lambda lost: (lost.step, lost.attempt))


def rows_behind(reader: RunReader, step: int) -> list[Row]:
    """The ids of the examples of a step, where something happened at it and the loop gave them; else an empty list.

    They are kept for a loss or a gradient that is not finite, for a spike of the loss and the step before it, and for a
    step that was lost.
    """
    return rows_by_step(reader).get(step, [])


def rows_by_step(reader: RunReader) -> dict[int, list[Row]]:
    """The ids of all steps that `rows_behind` knows any of."""
    run = one_pass(reader)
    return run.remember("rows by step", lambda: _rows_by_step(run))


def _rows_by_step(reader: RunReader) -> dict[int, list[Row]]:
    """From the notes alone: a record for each of a million steps would take a minute. The first of several counts."""
    columns, found = reader.columns(), dict[int, list[Row]]()
    for key, shift in (("rows_before", 1), ("rows", 0)):
        for label in labels_of(reader, Loss):
            found |= {step - shift: list(rows) for step, rows in reversed(columns.notes(label, key)) if rows}
    found |= {lost.step: lost.rows for lost in reversed(lost_steps(reader)) if lost.rows}
    return dict(sorted(found.items()))


def rows_told(reader: RunReader, step: int, most: int = 8) -> str:
    """A sentence that names the examples of a step, with a space before it; empty if they are not known."""
    rows = rows_behind(reader, step)
    if not rows:
        return ""
    shown = ", ".join(map(str, rows[:most]))
    left = f" and {len(rows) - most:,} more (run.rows_of_step({step}))" if len(rows) > most else ""
    return f" The ids of the examples of step {step:,}: {shown}{left}."


def _records(reader: RunReader, probe: type[LostSteps]) -> Iterator[Record]:
    for label in labels_of(reader, probe):
        yield from reader.records(label)


def _lost(record: Record) -> Lost:
    named: dict[str, Any] = {row.name: row for row in record.rows() if row.kind == "model"}
    tensor = next((row.scope for row in record.rows() if row.kind == "tensor"), None)
    labels: Mapping[str, Any] = named[LostSteps.skipped.name].labels
    skipped, loss = named[LostSteps.skipped.name].value, named[LostSteps.loss.name]
    return Lost(
        record.step, int(labels["attempt"]), str(labels["cause"]), str(record.notes.get("why", "")),
        None if skipped is None else bool(skipped), tensor, loss.value, loss.status,
        named[LostSteps.nonfinite_tensors.name].value, list(record.notes.get("rows", ())),
    )  # fmt: skip
