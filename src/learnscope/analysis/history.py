"""The weights between two measurements: one copy, reused unless a computer keeps what it was handed."""

from __future__ import annotations

import weakref
from collections.abc import Mapping
from types import SimpleNamespace
from typing import Any

from torch import Tensor

from learnscope.analysis.primitives import ParameterDelta, ParameterSnapshot
from learnscope.model.weights.snapshot import Snapshot

RESET = "call reset() on the manager after architecture changes"


class History:
    """The weights at the last measurement, and the snapshots and deltas that computers are given of them.

    During a measurement they cost nothing: they read the one copy and the model's own weights. If a computer keeps one
    beyond it, the copy is left to it, and a new one is made.
    """

    def __init__(self, parameters: Mapping[str, Tensor], step: int, *, device: str, dtype: str) -> None:
        self.kept = Snapshot(parameters, step, device=device, dtype=dtype)
        self._holders: list[weakref.ref[Any]] = []
        """What reads the copy."""
        self._live: list[weakref.ref[Any]] = []
        """What reads the model's own weights."""

    def check(self, parameters: Mapping[str, Tensor]) -> None:
        self.kept.check(parameters, RESET)

    def old(self) -> ParameterSnapshot:
        """The weights at the last measurement."""
        snapshot = ParameterSnapshot(self.kept)
        self._holders.append(weakref.ref(snapshot))
        return snapshot

    def current(self, parameters: Mapping[str, Tensor], step: int) -> ParameterSnapshot:
        """The weights now: the model's own, in the form of a snapshot."""
        tensors = {name: p.detach() for name, p in parameters.items() if p.is_floating_point()}
        live = SimpleNamespace(tensors=tensors, step=step, device=self.kept.device, dtype=self.kept.dtype)
        snapshot = ParameterSnapshot(live)  # type: ignore[arg-type]
        self._live.append(weakref.ref(snapshot))
        return snapshot

    def delta(self, parameters: Mapping[str, Tensor], step: int) -> ParameterDelta:
        """What has changed since the last measurement."""
        delta = ParameterDelta(parameters, self.old(), step=step)
        self._live.append(weakref.ref(delta))
        return delta

    def advance(self, parameters: Mapping[str, Tensor], step: int) -> None:
        """Keep the weights of now for the next measurement to compare with."""
        if any(holder() is not None for holder in self._holders):
            self.kept = Snapshot(parameters, step, device=self.kept.device, dtype=self.kept.dtype)
        else:
            self.kept.update(parameters, step)
        self._holders = []
        for reference in self._live:
            if (viewer := reference()) is not None:
                viewer.settle(self.kept)
                self._holders.append(reference)
        self._live = []
