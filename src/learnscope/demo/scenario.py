"""What the demo's runs share: their description, and the probe that marks them in run.json."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

from torch import Tensor

import learnscope as ls

Show = Callable[[int, int, Tensor], None]
"""Called after every step with the steps done, the number of steps, and the loss."""
Train = Callable[[Path, bool, Show], None]
"""Trains into a run folder; the second argument asks for fewer steps."""


@dataclass(frozen=True, slots=True)
class Scenario:
    """One run of the demo."""

    name: str
    look_for: str
    train: Train
    outcome: Callable[[ls.Run], str] | None = None
    """Another line about the finished run, where the usual numbers do not suffice."""


class DemoRun(ls.Probe):
    """A probe for its fields only: they are kept in run.json and mark the demo's runs."""

    at = "once"
    scenario: str
    training_examples: int
    reads_only: ClassVar[bool] = True

    def measure(self, moment: ls.Moment) -> dict[str, float]:  # noqa: ARG002  (its fields say it all)
        return {"training_examples": self.training_examples}
