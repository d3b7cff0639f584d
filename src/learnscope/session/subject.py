"""From what the user passed to the subject of a session: its data, previous weights, and the needs it meets."""

from __future__ import annotations

import warnings
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import torch
from torch import nn
from torch.optim import Optimizer

from learnscope.core.probe import NEEDS, Probe
from learnscope.core.subject import Subject
from learnscope.model.data import fixed_batches
from learnscope.model.outputs.trial import try_task
from learnscope.model.weights.snapshot import Snapshot, check_placement, check_reachable
from learnscope.task import Task
from learnscope.task.losses import LossCallable

EXAMPLES = 1024
"""Examples of each data set that are kept for probes; a list of batches is kept as it is."""


def make_subject(
    model: nn.Module,
    optimizers: Sequence[Optimizer] = (),
    *,
    task: Task | None = None,
    loss: LossCallable | None = None,
    holdout: Any = None,
    train: Any = None,
    test: Any = None,
    groups: Mapping[str, str | Sequence[str]] | None = None,
) -> Subject:
    """The model with fixed subsets of its data, and the task that reads them, which is tried on the first batch."""
    holdout, train, test = (_fixed(source, task, model) for source in (holdout, train, test))
    first = next((batches[0] for batches in (holdout, train, test) if batches), None)
    if first is not None:
        trial = try_task(task, model, first, loss)
        task = trial.task
        if trial.warning:
            warnings.warn(trial.warning, UserWarning, stacklevel=4)
    elif loss is not None:
        raise ValueError("loss= is for data to evaluate on: pass holdout=, train= or test= too")
    subject = Subject(model, optimizers, task, holdout, train, test)
    subject.name_groups(groups or {})
    return subject


def _fixed(source: Any, task: Task | None, model: nn.Module) -> list[Any] | None:
    if source is None:
        return None
    return fixed_batches(
        source, task, model=model, examples=None if isinstance(source, list | tuple | dict) else EXAMPLES
    )


def provided(subject: Subject) -> set[str]:
    met = {name for name in ("holdout", "train_data", "test_data") if getattr(subject, name) is not None}
    met |= {"features"} if subject.holdout is not None else set()
    return met | ({"optimizer"} if subject.optimizers else set())


def snapshot_key(probe: Probe) -> str | None:
    """Probes with the same schedule and snapshot options share one copy; None for a probe that needs none."""
    if "previous" not in probe.needs:
        return None
    # a schedule is known by its name, so that a resumed run finds its copy again
    every = probe.every if isinstance(probe.every, int) else getattr(probe.every, "__qualname__", "schedule")
    return "-".join(map(str, (probe.at, every, *_placement(probe)))).replace("/", "_")


def take_snapshots(subject: Subject, probes: Iterable[Probe], step: int) -> dict[str, Snapshot]:
    """One copy of the weights for each group of probes that can share it."""
    snapshots: dict[str, Snapshot] = {}
    for probe in probes:
        key = snapshot_key(probe)
        if key is not None and key not in snapshots:
            _check_placement(probe)
            device, dtype = _placement(probe)
            snapshots[key] = Snapshot(subject.by_name(), step, device=device, dtype=dtype)
    return snapshots


def _placement(probe: Probe) -> tuple[str, str]:
    return getattr(probe, "snapshot_device", "cpu"), getattr(probe, "snapshot_dtype", "native")


def check_needs(probe: Probe, source: str, provides: frozenset[str]) -> None:
    """Refuse a probe when the session opens, rather than at step 100."""
    name = type(probe).__name__
    for need in sorted(probe.needs):
        if need not in NEEDS:
            raise ValueError(f"{name} needs {need!r}, which is not a need; these are: {', '.join(NEEDS)}")
        if need not in provides:
            raise ValueError(f"{name} needs {need!r}, which {source} does not have: {CURES[need].get(source, '')}")
    if "grads" in probe.needs and source == "watch" and probe.at != "before_step":
        raise ValueError(
            f"{name}(at={probe.at!r}) needs gradients, which are sure to be there only before the optimizer's step: "
            "use at='before_step'"
        )
    if "previous" in probe.needs and source in ("watch", "replay", "audit"):
        _check_placement(probe)


def check_parameters(probe: Probe, subject: Subject) -> None:
    """Refuse parameters that a probe could not read at any step."""
    for name, p in zip(subject.names, subject.parameters, strict=True):
        reason = None
        if "previous" in probe.needs and p.is_floating_point() and (p.is_meta or p.layout != torch.strided):
            kind = "on the meta device, without numbers" if p.is_meta else f"sparse ({p.layout})"
            reason = f"keeps a copy of the weights, and parameter {name} is {kind}"
        elif "grads" in probe.needs and p.requires_grad and p.is_complex():
            reason = f"reads gradients of real numbers, and parameter {name} is {p.dtype}"
        if reason is not None:
            raise ValueError(
                f"{type(probe).__name__} {reason}: pass probes= without it, or make {name} an ordinary real parameter"
            )


def _check_placement(probe: Probe) -> None:
    """Refuse a place for the previous weights that is none, before anything is written."""
    device, dtype = _placement(probe)
    try:
        check_placement(device, dtype)
        if device != "disk":
            check_reachable(device)
    except ValueError as error:
        options = f"snapshot_device={device!r}, snapshot_dtype={dtype!r}"
        raise ValueError(f"{type(probe).__name__}({options}): {error}") from error


_ONLY_LIVE = {
    "replay": "saved checkpoints do not carry it; use this probe in ls.watch",
    "audit": "a finished model does not carry it; use this probe in ls.watch",
}
_DATA = "and a task= if the batches are not recognised"
CURES: dict[str, dict[str, str]] = {
    "grads": {
        "watch": "pass the optimizer, ls.watch(model, optimizer), or call w.step() yourself",
        "replay": f"pass train= or holdout= for a fixed batch to differentiate, {_DATA}",
        "audit": f"pass labelled data, {_DATA}",
    },
    "previous": {"audit": "pass base=, the weights to compare with"},
    "holdout": dict.fromkeys(("watch", "replay"), f"pass holdout= (a loader, data set or list of batches), {_DATA}")
    | {"audit": f"pass data, {_DATA}"},
    "features": dict.fromkeys(("watch", "replay"), f"pass holdout= to compute them on, {_DATA}")
    | {"audit": f"pass data, {_DATA}"},
    "train_data": dict.fromkeys(("watch", "replay", "audit"), "pass train= (a loader, data set or list of batches)"),
    "test_data": dict.fromkeys(("watch", "replay", "audit"), "pass test= (a loader, data set or list of batches)"),
    "optimizer": {"watch": "pass the optimizer: ls.watch(model, optimizer)", **_ONLY_LIVE},
    "examples": {
        "replay": f"pass train=, the data whose examples are followed, {_DATA}",
        "audit": "one model is one presentation; use this probe in ls.watch or ls.replay",
    },
    "batch": _ONLY_LIVE,
    "logged": _ONLY_LIVE,
    "calls": _ONLY_LIVE,
    "loss_calls": _ONLY_LIVE,
    "forwards": _ONLY_LIVE,
}
