"""What the demo's runs have in common: their description, their mark in run.json, and the probes they use."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

from torch import Tensor

import learnscope as ls

Show = Callable[[int, int, Tensor], None]
"""Told after every step: how many steps are done, of how many, and the loss."""
Train = Callable[[Path, bool, Show], None]
"""Trains into a run folder; the second argument asks for fewer steps."""


@dataclass(frozen=True, slots=True)
class Scenario:
    """One run of the demo."""

    name: str
    look_for: str
    train: Train
    outcome: Callable[[ls.Run], str] | None = None
    """One more line about the finished run, where the usual numbers do not say it."""


class DemoRun(ls.Probe):
    """A probe for its fields alone: they are kept in run.json, which so tells the demo's runs from others."""

    at = "once"
    scenario: str
    training_examples: int
    reads_only: ClassVar[bool] = True

    def measure(self, moment: ls.Moment) -> dict[str, float]:  # noqa: ARG002  (its fields say it all)
        return {"training_examples": self.training_examples}
