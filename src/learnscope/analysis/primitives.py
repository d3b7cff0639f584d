"""Weights at one time, the difference between two times, and the weights that measurements are compared with."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor, nn

from learnscope.analysis.naming import parameter_change_keys
from learnscope.model.sharded import refuse_sharded
from learnscope.model.weights.rounded import as_they_were
from learnscope.model.weights.snapshot import Snapshot
from learnscope.names import group_parameters
from learnscope.probes.updates.parameter_change import Changes, change_tables
from learnscope.record import Table
from learnscope.session.materialise import read_tables
from learnscope.tensor.context import arithmetic_dtype
from learnscope.tensor.segments import JointSegments, Segments

THRESHOLDS = (1e-8, 1e-6, 1e-4)


@dataclass(frozen=True, eq=False, repr=False, init=False)
class ParameterSnapshot(Mapping[str, Tensor]):
    """The floating-point weights of a model at one step, by name. Every tensor it hands out is a copy.

    >>> layer = nn.Linear(2, 1)
    >>> before = ParameterSnapshot.from_model(layer)
    >>> _ = before["weight"].zero_()
    >>> bool((before["weight"] == layer.weight).all())
    True
    """

    _kept: Snapshot

    def __init__(self, kept: Snapshot) -> None:
        self.settle(kept)

    @classmethod
    def from_model(
        cls, model: nn.Module, device: str = "cpu", dtype: str = "float32", step: int = 0
    ) -> ParameterSnapshot:
        """Take the weights as they are now, onto any torch device or "disk", in any float dtype or "native"."""
        refuse_sharded(model)
        return cls(Snapshot(dict(model.named_parameters()), step, device=device, dtype=dtype))

    @property
    def step(self) -> int:
        return self._kept.step

    @property
    def device(self) -> str:
        return self._kept.device

    @property
    def dtype(self) -> str:
        return self._kept.dtype

    @property
    def nbytes(self) -> int:
        return sum(tensor.nbytes for tensor in self._kept.tensors.values())

    def __getitem__(self, name: str) -> Tensor:
        kept = self._kept.tensors[name].detach()
        return kept.clone() if self.dtype == "native" else kept.to(getattr(torch, self.dtype), copy=True)

    def __iter__(self) -> Iterator[str]:
        return iter(self._kept.tensors)

    def __len__(self) -> int:
        return len(self._kept.tensors)

    def settle(self, kept: Snapshot) -> None:
        """Read this copy of the weights instead of the model's own, which are about to be trained further."""
        object.__setattr__(self, "_kept", kept)

    def __sub__(self, older: ParameterSnapshot) -> ParameterDelta:
        return ParameterDelta(as_they_were(self._kept, older._kept.tensors), older, step=self.step)

    def __repr__(self) -> str:
        return f"ParameterSnapshot(step={self.step}, {len(self)} tensors, {self.dtype} on {self.device})"


@dataclass(frozen=True, eq=False, repr=False, init=False)
class ParameterDelta(Mapping[str, Tensor]):
    """Δ = W_new − W_old, computed when asked for: one tensor at a time, or as statistics in one pass.

    `delta["name"]` is a new tensor in float32 (float64 for float64 weights). Sums are float64 throughout.
    """

    _new: Mapping[str, Tensor]
    _old: ParameterSnapshot
    _taken: list[Changes]
    step: int

    def __init__(self, new: Mapping[str, Tensor], old: ParameterSnapshot, *, step: int) -> None:
        floats = {name: tensor for name, tensor in new.items() if tensor.is_floating_point()}
        old._kept.check(floats, "call reset() after architecture changes, and compare snapshots of one architecture")
        for name, value in (("_new", floats), ("_old", old), ("_taken", []), ("step", step)):
            object.__setattr__(self, name, value)

    def settle(self, kept: Snapshot) -> None:
        """Read this copy of the new weights instead of the model's own, which are about to be trained further."""
        object.__setattr__(self, "_new", kept.tensors)

    @torch.no_grad()
    def __getitem__(self, name: str) -> Tensor:
        new, old = self._new[name].detach(), self._before[name]
        kind = arithmetic_dtype(new, old)
        return new.to(kind) - old.to(new.device, kind)

    @property
    def _before(self) -> Mapping[str, Tensor]:
        return as_they_were(self._old._kept, self._new)

    def __iter__(self) -> Iterator[str]:
        return iter(self._new)

    def __len__(self) -> int:
        return len(self._new)

    def changes(self, thresholds: Sequence[float] = THRESHOLDS) -> Changes:
        """All statistics per tensor, computed once for the same thresholds."""
        for taken in self._taken:
            if set(thresholds) <= set(taken.thresholds):
                return taken
        changes = Changes.between(self._new, self._before, thresholds, range(len(self._new)))
        self._taken.append(changes)
        return changes

    def table(self, kind: str = "model", thresholds: Sequence[float] = THRESHOLDS) -> Table:
        """The statistics over the whole model, or per layer, component or tensor; see `ls.ParameterChange`."""
        changes = self.changes(thresholds)
        if kind == "model":
            members = {"model": list(range(len(self)))}
        elif kind == "tensor":
            members = {name: [number] for number, name in enumerate(changes.names)}
        else:
            members = group_parameters(changes.names, kind)  # type: ignore[arg-type]  # it refuses other kinds itself
        return read_tables(
            change_tables(JointSegments({kind: Segments(members)}, ()), changes, thresholds, self._old.dtype)
        )[0]

    def statistics(self, thresholds: Sequence[float] = THRESHOLDS) -> dict[str, float]:
        """`norm_l2`, `norm_l1`, `norm_max`, `mean`, `std` and sparsity at each threshold, over the whole model."""
        return parameter_change_keys([self.table("model", thresholds)], thresholds)

    @property
    def norm_l2(self) -> float:
        return self.statistics()["norm_l2"]

    @property
    def norm_l1(self) -> float:
        return self.statistics()["norm_l1"]

    @property
    def norm_max(self) -> float:
        return self.statistics()["norm_max"]

    def sparsity(self, threshold: float) -> float:
        """Share of entries with |Δ| ≤ threshold."""
        changes = self.changes([threshold])
        return float(changes.within([threshold]).sum() / changes.table.entries.sum())

    def __repr__(self) -> str:
        return f"ParameterDelta(steps {self._old.step} to {self.step}, {len(self)} tensors)"


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

    def offers(self, parameters: Mapping[str, Tensor], step: int) -> dict[str, Callable[[], Any]]:
        """What a computer may ask for, by the name of its argument."""
        return {
            "delta": lambda: self.delta(parameters, step),
            "snapshot": self.old,
            "old_snapshot": self.old,
            "current_snapshot": lambda: self.current(parameters, step),
        }

    def is_free(self) -> bool:
        """Whether nobody holds a snapshot that reads the copy."""
        return all(holder() is None for holder in self._holders)

    def advance(self, parameters: Mapping[str, Tensor], step: int) -> None:
        """Copy the current weights, for the next measurement to compare with."""
        if self.is_free():
            self.kept.update(parameters, step)
        else:
            self.kept = Snapshot(parameters, step, device=self.kept.device, dtype=self.kept.dtype)
        self._holders = []
        for reference in self._live:
            if (viewer := reference()) is not None:
                viewer.settle(self.kept)
                self._holders.append(reference)
        self._live = []
