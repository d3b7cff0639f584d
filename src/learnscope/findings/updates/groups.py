"""The optimizer's groups of parameters: their names, what they hold, and their learning rates."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from learnscope.names import in_path
from learnscope.quantities import Quantity
from learnscope.quantities.updates import LearningRate
from learnscope.reading.gather import Series, as_series, rows
from learnscope.reading.words import num
from learnscope.store.reader import RunReader


@dataclass(frozen=True)
class Group:
    name: str
    """As in records."""
    user_name: str | None
    layers: list[str]
    """The layers of the model that it holds parameters of."""
    tensors: int
    rate: float | None
    """The median of its recorded learning rates, else the one at the start."""
    rates_recorded: int

    def rate_text(self) -> str:
        """In brackets after its name; empty if it is not known."""
        if self.rate is None:
            return ""
        n = self.rates_recorded
        return f" (learning rate {num(self.rate)}{f', median of {n:,}' if n else ' at the start'})"

    def misses(self, layers: list[str]) -> bool:
        """Whether the model has a module of the group's name, and the group holds none of its layers."""
        if self.user_name is None or not self.layers:
            return False
        meant = {layer for layer in layers if in_path(self.user_name, layer)}
        return bool(meant) and not meant & set(self.layers)


def groups_of(reader: RunReader) -> list[Group]:
    """The groups that the run began with; empty if it does not say what they hold."""
    entries = [
        group for optimizer in reader.manifest.get("optimizers") or [] for group in optimizer.get("groups") or []
    ]
    groups: dict[str, Group] = {}
    for position, entry in enumerate(entries):
        if "layers" not in entry:
            return []
        user_name = str(entry["name"]) if entry.get("name") else None
        name = user_name or f"group_{position}"
        while name in groups:
            name = f"{name}_{position}"
        recorded = rates_of(reader, "group", name)
        rate = float(np.median(recorded.values)) if len(recorded) else entry.get("lr")
        rate = float(rate) if isinstance(rate, int | float) else None
        tensors = int(entry.get("tensors", 0))
        groups[name] = Group(name, user_name, list(entry["layers"]), tensors, rate, len(recorded))
    return list(groups.values())


def rates_of(reader: RunReader, kind: str, scope: str) -> Series:
    """The recorded learning rates of a group."""
    return over_steps(reader, LearningRate.learning_rate, kind, scope)


def over_steps(reader: RunReader, quantity: Quantity, kind: str, scope: str) -> Series:
    """The finite numbers of one group."""
    frame = rows(reader, quantity, kind=kind)
    return as_series(frame[frame["scope"] == scope]).finite
