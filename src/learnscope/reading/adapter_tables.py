"""What was recorded of each adapter of a run, as grids and as the last ranks that were tried."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from learnscope.names import in_path
from learnscope.quantities import Quantity
from learnscope.quantities.adapters import AdapterSpectrum, AdapterTruncation
from learnscope.reading.gather import Grid, grid, rows
from learnscope.store.reader import RunReader

MEASURED = (AdapterSpectrum.frobenius_norm, AdapterTruncation.recommended_rank, AdapterSpectrum.intruder_dimensions)
"""Numbers that tell which adapters there are."""


@dataclass(frozen=True)
class Tried:
    """Ranks that the model was run with, and what it lost by them."""

    step: int
    probe: str
    recommended: dict[str, int]
    rank: dict[str, int]
    parameters: float
    """The share of the adapters' parameters that these ranks need."""
    lost: float
    """The mean KL with these ranks as a share of that without any update."""
    examples: int
    judged_by: str


@dataclass(frozen=True)
class Adapted:
    """One adapter by its name in PEFT: numbers over steps and modules."""

    name: str
    norms: Grid
    utilisation: Grid
    ranks: Grid
    several: bool
    tried: Tried | None = field(default=None)

    @property
    def said(self) -> str:
        """What a title adds where a model has several."""
        return f" in adapter {self.name}" if self.several else ""


def adapted(reader: RunReader) -> list[Adapted]:
    """Every adapter that was measured; empty if none was."""
    names = list(dict.fromkeys(name for quantity in MEASURED for name in adapter_names(reader, quantity)))
    return [
        Adapted(
            name,
            norms=grid(reader, AdapterSpectrum.frobenius_norm, kind="module", adapter=name),
            utilisation=grid(reader, AdapterSpectrum.rank_utilisation, kind="module", adapter=name),
            ranks=grid(reader, AdapterSpectrum.rank, kind="module", adapter=name),
            several=len(names) > 1,
            tried=_tried(reader, name),
        )
        for name in names
    ]


def adapter_names(reader: RunReader, quantity: Quantity) -> list[str]:
    """The adapters for whose modules it was recorded."""
    frame = rows(reader, quantity, kind="module")
    return [] if frame.empty else [str(name) for name in frame["adapter"].unique()]


def _tried(reader: RunReader, name: str) -> Tried | None:
    """Of the last record in which ranks were found for this adapter."""
    best = rows(reader, AdapterTruncation.recommended_rank, kind="module", adapter=name)
    best = best[best["value"].notna()]
    if best.empty:
        return None
    step = int(best["step"].max())
    best = best[best["step"] == step]
    record = [one for one in reader.records(str(best["probe"].iloc[-1])) if one.step == step][-1]
    judged = str(record.notes.get("judged_by", AdapterTruncation.kl.name))
    choices = rows(reader, AdapterTruncation.recommended_energy)
    choice = choices[choices["step"] == step].iloc[-1]
    far = rows(reader, AdapterTruncation.named(judged))
    far = far[far["step"] == step]
    scale = float(far[far["energy"] == 0]["value"].iloc[-1])
    here = far[(far["energy"] == choice["value"]) & (far["cut"] == choice["cut"])]["value"].iloc[-1]
    kept = rows(reader, AdapterTruncation.recommended_parameters)
    rank = rows(reader, AdapterTruncation.rank, kind="module", adapter=name)
    rank = rank[(rank["step"] == step) & np.isfinite(rank["value"].to_numpy(np.float64))]
    return Tried(
        step, record.probe,
        {str(scope): int(value) for scope, value in zip(best["scope"], best["value"], strict=True)},
        {str(scope): int(value) for scope, value in zip(rank["scope"], rank["value"], strict=True)},
        float(kept[kept["step"] == step]["value"].iloc[-1]), float(here) / scale,
        int(record.notes.get("examples", 0)), judged,
    )  # fmt: skip


def layer_of_module(scope: str, known: Sequence[str]) -> str:
    """The layer of the model that a module is in: one of those `known`, else all up to its first number.

    >>> layer_of_module("model.layers.3.mlp.up_proj", []), layer_of_module("head", ["head"])
    ('model.layers.3', 'head')
    """
    numbered = re.match(r"(.*?\.\d+)(\.|$)", scope)
    return next((name for name in known if in_path(name, scope)), numbered[1] if numbered else scope)
