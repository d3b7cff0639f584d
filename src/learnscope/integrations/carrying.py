"""What a trainer's checkpoint carries of a session, so that both are kept, moved and removed together.

A checkpoint that is a folder has two files of ours (`carry_into`, `carried_in`); one that is a file has what `carry`
gives among its own values (`carried_as`).
"""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from learnscope.session.watch import Watch
from learnscope.store.backend import FolderBackend
from learnscope.store.files import write_atomically

STATE, ABOUT = "learnscope_state.safetensors", "learnscope.json"
"""Files in a checkpoint that is a folder."""
MOST_BYTES = 2**28
"""A state up to this size is kept inside a checkpoint that is a file; of larger ones, the run keeps the last three."""


@dataclass(frozen=True)
class Carried:
    """What a checkpoint has of a session; or in `missing`, why it has nothing."""

    name: str = ""
    """Of the checkpoint, where it has one to show."""
    missing: str = ""
    step: int | None = None
    run: Path | None = None
    """Where the run was; None for one in memory."""
    places: tuple[Path, ...] = ()
    """Where it may be, the likeliest first."""
    created: float | None = None
    """When it was: another run may have its name."""
    state: Path | Tensor | None = None

    def put_back(self, run: Path, step: int) -> None:
        """Give the run the state of the checkpoint: it keeps only its own last three, perhaps of a later attempt."""
        path, state = FolderBackend(run).state_path(step), self.state
        if state is not None and path is not None:
            content = state.read_bytes() if isinstance(state, Path) else state.cpu().numpy().tobytes()
            write_atomically(path, lambda temporary: temporary.write_bytes(content))


def carry_into(checkpoint: Path, w: Watch, saved: Path | None) -> None:
    """Put a saved state into a checkpoint that is a folder, with where its run is: seen from there, and absolute."""
    if saved is None or w.folder is None or not checkpoint.is_dir():
        return
    where = {"run": os.path.relpath(w.folder, checkpoint), "absolute": str(w.folder.resolve())}
    about = json.dumps({"step": w.steps, **where, "created": _created(w)})
    for name, write in (
        (STATE, lambda temporary: shutil.copyfile(saved, temporary)),
        (ABOUT, lambda temporary: temporary.write_text(about)),
    ):
        w.store_file(f"{name} of {checkpoint}", partial(write_atomically, checkpoint / name, write))


def carried_in(checkpoint: Path) -> Carried:
    """What `carry_into` put there."""
    try:
        about = json.loads((checkpoint / ABOUT).read_text())
        beside, run = (checkpoint / about["run"]).resolve(), Path(about["absolute"])
        step, created = about.get("step"), about.get("created")
    except FileNotFoundError:
        return Carried(str(checkpoint), f"{checkpoint} was saved without learnscope")
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        return Carried(str(checkpoint), f"{checkpoint / ABOUT} cannot be read ({error})")
    state = checkpoint / STATE if (checkpoint / STATE).is_file() else None
    return Carried(str(checkpoint), "", step, run, (beside, run), created, state)


def carry(w: Watch) -> dict[str, Any]:
    """What a checkpoint that is a file keeps: the run, the step, and what probes remember if that is small.

    Numbers, texts and a tensor of bytes: it can be read with `weights_only=True`.
    """
    saved = w.save_state()
    run = None if w.folder is None else str(w.folder.resolve())
    carried: dict[str, Any] = {"step": w.steps, "run": run, "created": _created(w)}
    if saved is not None and saved.stat().st_size <= MOST_BYTES:
        carried["state"] = torch.frombuffer(bytearray(saved.read_bytes()), dtype=torch.uint8)
    return carried


def carried_as(values: Mapping[str, Any] | None, beside: Path | None) -> Carried:
    """What `carry` gave, found again in a checkpoint; `beside` is where the run would be if all was moved together."""
    if not values:
        return Carried(missing="the checkpoint was saved without learnscope")
    run = Path(values["run"]) if values.get("run") else None
    places = () if run is None else (run, *([beside / run.name] if beside is not None else []))
    return Carried("", "", int(values["step"]), run, places, values.get("created"), values.get("state"))


def _created(w: Watch) -> float | None:
    created = w.run.manifest.get("created")
    return None if created is None else float(created)
