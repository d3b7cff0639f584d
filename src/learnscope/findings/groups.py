"""The optimizer's groups of parameters: what they are called, what they hold, and how fast they learn."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from learnscope.findings.gather import Series, as_series, rows
from learnscope.findings.still import in_path
from learnscope.store.reader import RunReader


@dataclass(frozen=True)
class Group:
    name: str
    """As records call it."""
    given: str | None
    """The name it was given, if it was."""
    layers: list[str]
    """The layers of the model that it holds parameters of."""
    tensors: int
    rate: float | None
    """Its learning rate: the median of those recorded, else the one that it began with."""

    def misses(self, layers: list[str]) -> list[str]:
        """The layers of the module that it is called by, if the model has such a one and the group holds none of it."""
        if self.given is None or not self.layers:
            return []
        meant = [layer for layer in layers if in_path(self.given, layer)]
        return [] if set(meant) & set(self.layers) else meant


def groups_of(reader: RunReader) -> list[Group]:
    """Those that the run began with; empty where it does not say what they hold."""
    described = [group for one in reader.manifest.get("optimizers") or [] for group in one.get("groups") or []]
    found: dict[str, Group] = {}
    for position, group in enumerate(described):
        if "layers" not in group:
            return []
        given = group.get("name")
        name = str(given) if given else f"group_{position}"
        while name in found:
            name = f"{name}_{position}"
        recorded = rate_of(reader, "group", name)
        rate = group.get("lr") if recorded is None else recorded
        found[name] = Group(
            name, str(given) if given else None, list(group["layers"]), int(group.get("tensors", 0)),
            float(rate) if isinstance(rate, int | float) else None,
        )  # fmt: skip
    return list(found.values())


def rate_of(reader: RunReader, kind: str, scope: str) -> float | None:
    """The median of the recorded learning rates of a group."""
    found = over_steps(reader, "LearningRate", "learning_rate", kind, scope).finite
    return float(np.median(found.values)) if len(found) else None


def over_steps(reader: RunReader, probe: str, name: str, kind: str, scope: str) -> Series:
    """One number of one group."""
    frame = rows(reader, probe, name, kind)
    return as_series(frame[frame["scope"] == scope])
