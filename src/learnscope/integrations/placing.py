"""Where the run of a trainer goes: on with that of a checkpoint, or into a folder of its own."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from learnscope.integrations.carrying import Carried
from learnscope.store.backend import FolderBackend
from learnscope.store.files import has_run, numbered

FOLDER = "learnscope"
"""The run's name in a trainer's own output folder."""


@dataclass(frozen=True)
class Place:
    """A run folder, or None for memory, and from which step of it a session goes on."""

    run: Path | None
    step: int = 0
    resume: bool = False
    missing: str = ""
    """What a checkpoint should have brought and did not, for a warning."""

    @property
    def options(self) -> dict[str, Any]:
        """For `watch`."""
        return {"run": self.run, "resume": self.resume, "step": self.step or None}


def place(wanted: Path | None, carried: Carried | None, taken: int = 0, *, asked: bool) -> Place:
    """The run to go on with after a checkpoint, else a new one at `wanted`, or at the next free name.

    Args:
        wanted: the folder for a new run; None keeps it in memory.
        carried: what the checkpoint has of a session; None if training begins without one.
        taken: steps that the checkpoint's training had taken, where only the trainer knows it.
        asked: whether the user named the folder, rather than the trainer.
    """
    carried = carried or Carried()
    step = taken if carried.step is None else carried.step
    if wanted is None or step == 0:
        return Place(_free(wanted, asked), step)
    found = _found(carried, [wanted] if asked else [])
    if found is not None:
        carried.put_back(found, step)
        return Place(found, step, resume=True)
    if carried.run is None:
        why = carried.missing or f"that of {carried.name or 'the checkpoint'} was kept in memory"
        missing = f"training goes on at step {step:,} of a run that is not known: {why}. A new run begins there."
    else:
        its = f"the run of {carried.name}" if carried.name else "its run"
        gone = f"{its}, {carried.run}, is not there any more"
        missing = f"training goes on at step {step:,}, and {gone}: a new run begins at this step"
    return Place(_free(wanted, asked), step, missing=missing)


def _found(carried: Carried, named: list[Path]) -> Path | None:
    """The checkpoint's run: in the folder that the user named, or where it was; else any run in the folder named."""
    known = [*(named if carried.created is not None else []), *carried.places]
    same = [each for each in known if has_run(each) and carried.created in (None, _created(each))]
    return next(iter([*same, *(each for each in named if has_run(each))]), None)


def _created(run: Path) -> Any:
    return FolderBackend(run).manifest().get("created")


def _free(wanted: Path | None, asked: bool) -> Path | None:
    return wanted if wanted is None or asked else next(each for each in numbered(wanted) if not has_run(each))
