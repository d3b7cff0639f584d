"""What run.json says about a run: the model, the probes, the environment, the code's state."""

from __future__ import annotations

import platform
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterable
from importlib.metadata import PackageNotFoundError, version
from typing import Any

import torch
from torch.nn.modules.dropout import _DropoutNd

from learnscope.core.probe import Probe, describe, labels_of
from learnscope.core.subject import Subject
from learnscope.names import optimizer_groups, resolve
from learnscope.record import SCHEMA_VERSION
from learnscope.redaction import redacted
from learnscope.task import unwrap
from learnscope.tensor.weights.alike import units_alike


def new_manifest(
    source: str, subject: Subject, probes: Iterable[tuple[str, Probe]], *, git: bool = True, command: bool = True
) -> dict[str, Any]:
    """The manifest of a run that begins; asking git takes two processes."""
    probes = list(probes)
    return {
        "schema": SCHEMA_VERSION,
        "source": source,
        "created": time.time(),
        "status": "running",
        "probes": {label: describe(probe) for label, probe in probes},
        "labels": {label: labels_of(probe) for label, probe in probes},
        "model": describe_model(subject),
        "optimizers": [_describe_optimizer(optimizer, subject) for optimizer in subject.optimizers],
        "environment": environment(git=git, command=command),
        "attempts": [],
    }


def describe_model(subject: Subject) -> dict[str, Any]:
    """Sizes, dtypes and layers, and which trainable parameters no optimizer holds."""
    named = list(zip(subject.names, subject.parameters, strict=True))
    dtypes: Counter[str] = Counter()
    for _, p in named:
        dtypes[str(p.dtype).removeprefix("torch.")] += p.numel()
    groups = [group for optimizer in subject.optimizers for group in optimizer.param_groups]
    unheld = {subject.names[i] for i in optimizer_groups(groups, named).unassigned} if groups else set()
    layers, modules = subject.scopes("layer"), dict(unwrap(subject.model).named_modules())
    module_of = {resolve(name).layer: resolve(name).module for name in subject.names}
    return {
        "class": type(unwrap(subject.model)).__name__,
        "parameters": sum(p.numel() for _, p in named),
        "tensors": len(named),
        "frozen": [name for name, p in named if not p.requires_grad],
        "frozen_parameters": sum(p.numel() for _, p in named if not p.requires_grad),
        "trainable_outside_optimizer": [name for name, p in named if p.requires_grad and name in unheld],
        "dtypes": dict(dtypes),
        "layers": list(layers),
        "layer_parameters": {name: sum(subject.parameters[i].numel() for i in layers[name]) for name in layers},
        # for layers whose names are only numbers
        "layer_types": {name: type(modules[module_of[name]]).__name__ for name in layers if module_of[name] in modules},
        "alike": [name for name, p in named if units_alike(p)],
        "dropout": {name: m.p for name, m in modules.items() if isinstance(m, _DropoutNd) and m.p > 0},
        "outside_known_stacks": sorted({resolve(name).layer for name, _ in named if not resolve(name).recognised}),
    }


def environment(*, git: bool = True, command: bool = True) -> dict[str, Any]:
    """Versions and the state of the code, enough to tell two runs apart."""
    return {
        "learnscope": _version("learnscope"),
        "python": platform.python_version(),
        "torch": torch.__version__,
        "platform": platform.platform(),
        "threads": torch.get_num_threads(),
        "accelerator": torch.accelerator.current_accelerator().type  # type: ignore[union-attr]
        if torch.accelerator.is_available()
        else None,
        "command": redacted(sys.argv) if command else None,
        "git": _git() if git else None,
    }


def _describe_optimizer(optimizer: torch.optim.Optimizer, subject: Subject) -> dict[str, Any]:
    """The options of every group of parameters, how many it has, and of which layers."""
    held = optimizer_groups(optimizer.param_groups, zip(subject.names, subject.parameters, strict=True)).groups
    groups = []
    for group, inside in zip(optimizer.param_groups, held.values(), strict=True):
        plain = {
            key: value
            for key, value in group.items()
            if key != "params" and (value is None or isinstance(value, str | bool | int | float | list | tuple))
        }
        layers = dict.fromkeys(resolve(subject.names[i]).layer for i in inside)
        groups.append({**plain, "tensors": len(group["params"]), "layers": list(layers)})
    return {"class": type(optimizer).__name__, "groups": groups}


def _version(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        return None


def _git() -> dict[str, Any] | None:
    """Commit and whether the tree was changed; None outside a checkout or without git."""
    try:
        commit = subprocess.run(["git", "rev-parse", "HEAD"], capture_output=True, text=True, timeout=5, check=True)
        changes = subprocess.run(
            ["git", "status", "--porcelain", "--untracked-files=no"],
            capture_output=True, text=True, timeout=5, check=True,
        )  # fmt: skip
    except (OSError, subprocess.SubprocessError):
        return None
    return {"commit": commit.stdout.strip(), "changed": bool(changes.stdout.strip())}
