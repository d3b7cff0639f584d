"""What the demo's runs share: a description, a probe that marks them in run.json, and folders that may be replaced."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Iterable
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


def check_free(folders: Iterable[Path]) -> None:
    """Raise a `RunError`, before anything is trained or removed, if a folder was not made by the demo."""
    for folder in folders:
        empty = folder.is_dir() and not any(folder.iterdir())
        is_free = not folder.is_symlink() and (empty or not folder.exists())
        if not is_free and not is_demo_run(folder):
            raise ls.RunError(
                f"{folder} is there already and is not a run of this demo; it is left as it is. "
                "Name another folder with --out, or move that one away."
            )


def clear(folder: Path) -> None:
    """Remove the earlier demo's run, if there is one."""
    if is_demo_run(folder):
        shutil.rmtree(folder)


def is_demo_run(folder: Path) -> bool:
    """Whether its run.json lists the probe DemoRun, as every run of the demo does, finished or interrupted."""
    try:
        manifest = json.loads((folder / "run.json").read_text(encoding="utf-8"))
        scenario = manifest["probes"][DemoRun.__name__]["scenario"]
    except (OSError, ValueError, KeyError, TypeError):
        return False
    return bool(scenario == folder.name) and not folder.is_symlink()  # a link's target may belong to something else
