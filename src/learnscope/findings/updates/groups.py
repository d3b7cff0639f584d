"""The optimizer's groups of parameters: what they are called, what they hold, and how fast they learn."""

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
    """As records call it."""
    given: str | None
    """The name it was given, if it was."""
    layers: list[str]
    """The layers of the model that it holds parameters of."""
    tensors: int
    rate: float | None
    """Its learning rate: the median of those recorded, else the one that it began with."""
    rates_recorded: int = 0

    def said_rate(self) -> str:
        """In brackets after its name; empty where it is not known."""
        if self.rate is None:
            return ""
        n = self.rates_recorded
        return f" (learning rate {num(self.rate)}{f', median of {n:,}' if n else ' at the start'})"

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
        recorded = rates_of(reader, "group", name)
        rate = float(np.median(recorded.values)) if len(recorded) else group.get("lr")
        found[name] = Group(
            name, str(given) if given else None, list(group["layers"]), int(group.get("tensors", 0)),
            float(rate) if isinstance(rate, int | float) else None, len(recorded),
        )  # fmt: skip
    return list(found.values())


def rates_of(reader: RunReader, kind: str, scope: str) -> Series:
    """The recorded learning rates of a group."""
    return over_steps(reader, LearningRate.learning_rate, kind, scope).finite


def over_steps(reader: RunReader, quantity: Quantity, kind: str, scope: str) -> Series:
    """One number of one group."""
    frame = rows(reader, quantity, kind=kind)
    return as_series(frame[frame["scope"] == scope])
