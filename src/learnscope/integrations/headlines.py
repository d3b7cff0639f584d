"""A few numbers of each record for the trackers that a trainer already has, and two sinks that take them there.

Everything is in the run folder; a sink of the user's own (`sinks=[…]`) sends more.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, ClassVar

from learnscope.quantities.gradients import GradientFlow
from learnscope.quantities.outputs import Holdout
from learnscope.quantities.updates import ParameterChange
from learnscope.record import Record

SENT = {
    (GradientFlow.norm.name, "before_clip"): "gradient_norm",
    (GradientFlow.norm.name, "stepped"): "gradient_norm_clipped",
    (GradientFlow.noise_scale.name, None): "gradient_noise_scale",
    (ParameterChange.update_to_weight.name, None): "update_to_weight",
    (Holdout.holdout_loss.name, None): "holdout_loss",
    (Holdout.holdout_accuracy.name, None): "holdout_accuracy",
}
"""Names of the whole model, with their stage, and as what a tracker gets them, behind `learnscope/`."""


def headlines(record: Record) -> dict[str, float]:
    """The numbers of `SENT` in a record; one that was not measured or is not finite is left out."""
    found: dict[str, float] = {}
    for row in (row for table in record.tables if table.kind == "model" for row in table.rows()):
        stage = row.labels.get("stage")
        name = SENT.get((row.name, None if stage is None else str(stage)))
        if name is not None and row.value is not None and math.isfinite(row.value):
            found[f"learnscope/{name}"] = row.value
    return found


class SentHeadlines:
    """A sink that hands them to `send(values, step)` at once."""

    direct: ClassVar[bool] = True
    """Called in the loop's own thread: the trainer writes to the same loggers there."""

    def __init__(self, send: Callable[[dict[str, float], int], Any], *, shift: int = 0) -> None:
        self._send, self._shift = send, shift

    def write(self, record: Record) -> None:
        if values := headlines(record):
            self._send(values, record.step + self._shift)

    def close(self) -> None:
        """The trainer closes its loggers itself."""


class HeldHeadlines:
    """A sink that holds them until `take` is called, by step."""

    direct: ClassVar[bool] = True
    """Called in the thread that takes them: none can come in between."""

    def __init__(self) -> None:
        self._held: dict[int, dict[str, float]] = {}

    def write(self, record: Record) -> None:
        if values := headlines(record):
            self._held.setdefault(record.step, {}).update(values)

    def take(self) -> dict[int, dict[str, float]]:
        taken, self._held = self._held, {}
        return dict(sorted(taken.items()))

    def close(self) -> None:
        """Nothing to close."""
