"""Opening and closing a session: its run, its attempt, and the state from which it resumes."""

from __future__ import annotations

import json
import time
import warnings
from pathlib import Path
from typing import Any, Literal

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor, nn

from learnscope.characters import visible
from learnscope.core.probe import ProbeWarning
from learnscope.model.guard import preserve_rng
from learnscope.model.sharded import refuse_shards
from learnscope.model.weights.snapshot import Snapshot
from learnscope.session import ending
from learnscope.session.engine import Engine
from learnscope.session.manifest import new_manifest
from learnscope.session.ranks import is_silent
from learnscope.store.backend import Backend, FolderBackend, MemoryBackend, RunError
from learnscope.store.files import has_run, numbered, write_atomically
from learnscope.store.reader import RunReader

Exist = Literal["next", "refuse"]
"""What to do with a folder that holds a run already."""
KEPT_STATES = 3
"""Session states kept in a run folder. Each may hold a copy of the weights, so older ones are removed."""


def open_backend(run: str | Path | None, *, resume: bool, exist: Exist = "refuse") -> Backend:
    """Where the records go: a new folder, one to be continued, or memory.

    If the folder holds a run already and is not to be continued, it is refused, or the `next` free name is taken.
    """
    if run is None:
        if resume:
            raise ValueError("resume=True needs the run to continue: run='runs/…'")
        return MemoryBackend()
    if is_silent(run):  # rank 0 writes it
        return MemoryBackend()
    path = Path(run)
    if resume and (path / "run.json").exists():
        return FolderBackend.existing(path)
    if exist == "refuse":
        return FolderBackend.create(path)
    return FolderBackend.create(next_free(path), elsewhere=lambda: next_free(path))


def next_free(path: Path) -> Path:
    """The folder itself, or the first of `name-2`, `name-3`, … that holds no run; another than asked for is told."""
    free = next(each for each in numbered(path) if not has_run(each))
    if free != path:
        warnings.warn(
            f"{path} already holds a run: this one goes to {free}. To go on with the earlier one: resume=True",
            ProbeWarning,
            stacklevel=4,
        )
    return free


@preserve_rng()
def begin(engine: Engine, *, resume: bool, step: int | None) -> tuple[int, int | None]:
    """Write the manifest with a new attempt; returns the step and epoch from which it goes on."""
    backend = engine.backend
    manifest = backend.manifest() if resume and is_there(backend) else {}
    epoch = None
    if manifest:
        reader = RunReader(backend)
        step = reader.last_step if step is None else step
        epoch = _epoch_at(reader, step)
    else:
        probes = [(bound.label, bound.probe) for bound in engine.bound]
        # a run in memory is gone before the code can be another
        asked = {"git": isinstance(backend, FolderBackend), "command": engine.record_command}
        manifest = new_manifest(engine.source, engine.subject, probes, **asked)
    step = step or 0
    engine.attempt = len(manifest["attempts"])
    manifest["attempts"].append({"attempt": engine.attempt, "start_step": step, "started": time.time()})
    manifest["status"] = "running"
    open_sinks(engine, manifest)
    backend.put_manifest(manifest)
    engine.last_step = step
    ending.opened(engine)
    return step, epoch


def open_sinks(engine: Engine, manifest: dict[str, Any]) -> None:
    """Open the sinks, each with what it kept in the last attempt that had it; what they keep now is for the next."""
    kept = {
        name: account.get("kept") or {}
        for entry in manifest["attempts"]
        for name, account in (entry.get("sinks") or {}).items()
    }
    backend = engine.backend
    engine.passing.open(backend.path if isinstance(backend, FolderBackend) else None, manifest, kept)
    if accounts := engine.passing.accounts():
        manifest["attempts"][-1]["sinks"] = accounts


@preserve_rng()
def save_state(engine: Engine, snapshots: dict[str, Snapshot], step: int, passes: int) -> Path | None:
    """Save the states of the probes and their previous weights as safetensors. None for a run in memory."""
    path = engine.backend.state_path(step)
    if path is None or engine.inherited or not engine.backend.may_write():
        return None
    tensors: dict[str, Tensor] = {}
    numbers: dict[str, dict[str, Any]] = {}
    for bound in engine.bound:
        state = bound.saved_state()
        numbers[bound.label] = {key: value for key, value in state.items() if not isinstance(value, Tensor)}
        for key in state.keys() - numbers[bound.label].keys():
            # a copy: two probes may keep the same tensor, and the format refuses shared memory
            copy = state[key].detach().cpu().clone(memory_format=torch.contiguous_format)
            tensors[f"state/{bound.label}/{key}"] = copy
    steps = {key: snapshot.step for key, snapshot in snapshots.items()}
    for key, snapshot in snapshots.items():
        tensors |= {f"previous/{key}/{visible(name)}": t.detach().cpu() for name, t in snapshot.tensors.items()}
    about = {"step": step, "attempt": engine.attempt, "states": numbers, "snapshots": steps, "passes": passes}
    metadata = {"learnscope": json.dumps(about)}
    write_atomically(path, lambda temporary: save_file(tensors, temporary, metadata=metadata))
    # after a resume from an older checkpoint, those of later steps are of an attempt that is superseded: they go first
    states = sorted(path.parent.glob("step-*.safetensors"), key=lambda state: (state.name <= path.name, state.name))
    for old in states[:-KEPT_STATES]:
        old.unlink()
    return path


def load_state(engine: Engine, snapshots: dict[str, Snapshot], step: int) -> int | None:
    """Restore the state saved at `step`, if there is one; returns the backward passes of its last step, else None."""
    path = engine.backend.state_path(step)
    if path is None or not path.exists():
        return None
    try:
        return _restore(path, engine, snapshots)
    except (SafetensorError, OSError, ValueError, KeyError, TypeError, RuntimeError) as error:
        raise RunError(
            f"the state of step {step}, {path}, is damaged ({type(error).__name__}: {error}): remove it to go on "
            "without the probes' memories, or continue from the step of an earlier one, step=…"
        ) from error


def _restore(path: Path, engine: Engine, snapshots: dict[str, Snapshot]) -> int:
    written = {key: {visible(name): t for name, t in held.tensors.items()} for key, held in snapshots.items()}
    with safe_open(path, framework="pt") as file:
        meta = json.loads(file.metadata()["learnscope"])
        states = {bound.label: bound.state for bound in engine.bound}
        for label, state in states.items():
            state.update(meta["states"].get(label, {}))
        for key in file.keys():  # noqa: SIM118  (safe_open is not a dictionary)
            kind, owner, name = key.split("/", 2)
            if kind == "state" and owner in states:
                states[owner][name] = file.get_tensor(key)
            elif kind == "previous" and owner in snapshots and name in written[owner]:
                with torch.no_grad():
                    written[owner][name].copy_(file.get_tensor(key))
        for key, at in meta["snapshots"].items():
            if key in snapshots:
                snapshots[key].step = at
    return int(meta["passes"])


def state_missing(engine: Engine, step: int) -> list[str]:
    """The probes whose memory is lost because a run goes on at a step for which no state was saved; with a warning."""
    attempts = engine.backend.manifest()["attempts"][:-1]
    remembering = {label for entry in attempts for label in entry.get("memories") or ()}
    remembering |= {bound.label for bound in engine.bound if "previous" in bound.probe.needs}
    lost = [bound.label for bound in engine.bound if bound.label in remembering] if step > 0 else []
    path = engine.backend.state_path(step)
    if lost and path is not None:
        saved = [str(int(state.stem.removeprefix("step-"))) for state in sorted(path.parent.glob("step-*.safetensors"))]
        engine.warn(
            "state",
            f"no state was saved at step {step:,}, so what {', '.join(lost)} remembered is lost, and changes are "
            f"measured from this step on; states are there of {'steps ' + ', '.join(saved) if saved else 'no step'}. "
            "w.save_checkpoint(path, {...}) saves the state and your checkpoint in the right order.",
        )
    return lost


def check_model(model: Any) -> None:
    if not isinstance(model, nn.Module):
        several = isinstance(model, list | tuple | dict) and "; join several: torch.nn.ModuleDict({'D': D, 'G': G})"
        raise TypeError(f"the model is a {type(model).__name__}, not a torch.nn.Module{several or ''}")
    refuse_shards(model)
    if next(iter(model.parameters()), None) is None:
        raise ValueError(
            f"{type(model).__name__} has no parameters: pass the module that holds the weights, "
            "after lazy modules have seen a first batch and layers have been created"
        )
    lazy = [name for name, p in model.named_parameters() if isinstance(p, nn.UninitializedParameter)]
    if lazy:
        raise ValueError(f"parameter {lazy[0]} is not initialised yet: run one batch through the model first")


def is_there(backend: Backend) -> bool:
    """Whether the backend holds a run that can be continued."""
    return isinstance(backend, FolderBackend) and (backend.path / "run.json").exists()


def _epoch_at(reader: RunReader, step: int) -> int | None:
    epoch = None
    for record in reader.records():
        if record.step <= step and record.epoch is not None:
            epoch = record.epoch + (record.phase == "epoch")
    return epoch
