"""What was recorded of each adapter of a run, as grids and as the last ranks that were tried."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
import pandas as pd

from learnscope.names import in_path
from learnscope.quantities import Quantity
from learnscope.quantities.adapters import AdapterSpectrum, AdapterTruncation
from learnscope.reading.gather import Grid, grid, layers, rows
from learnscope.store.reader import RunReader

MEASURED = (AdapterSpectrum.frobenius_norm, AdapterTruncation.recommended_rank, AdapterSpectrum.intruder_dimensions)
"""Numbers that tell which adapters there are."""


@dataclass(frozen=True)
class TriedRanks:
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
class AdapterTables:
    """The numbers of one adapter over steps and modules."""

    name: str
    norms: Grid
    utilisation: Grid
    ranks: Grid
    several: bool
    """Whether the model has other adapters too."""
    tried: TriedRanks | None

    @property
    def title_ending(self) -> str:
        return f" in adapter {self.name}" if self.several else ""


def adapter_tables(reader: RunReader) -> list[AdapterTables]:
    """Every adapter that was measured; empty if none was."""
    names = list(dict.fromkeys(name for quantity in MEASURED for name in adapter_names(reader, quantity)))
    tables = []
    for name in names:
        quantities = (AdapterSpectrum.frobenius_norm, AdapterSpectrum.rank_utilisation, AdapterSpectrum.rank)
        norms, use, ranks = (grid(reader, quantity, kind="module", adapter=name) for quantity in quantities)
        tables.append(AdapterTables(name, norms, use, ranks, len(names) > 1, _tried(reader, name)))
    return tables


def adapter_names(reader: RunReader, quantity: Quantity) -> list[str]:
    """The adapters for whose modules it was recorded."""
    frame = rows(reader, quantity, kind="module")
    return [] if frame.empty else [str(name) for name in frame["adapter"].unique()]


def _tried(reader: RunReader, name: str) -> TriedRanks | None:
    """From the last record in which ranks were found for this adapter."""
    best = rows(reader, AdapterTruncation.recommended_rank, kind="module", adapter=name)
    best = best[best["value"].notna()]
    if best.empty:
        return None
    step = int(best["step"].max())

    def at_step(quantity: Quantity, kind: str = "model", **labels: str) -> pd.DataFrame:
        frame = rows(reader, quantity, kind, None, **labels)
        return frame[frame["step"] == step]

    best = best[best["step"] == step]
    record = [record for record in reader.records(str(best["probe"].iloc[-1])) if record.step == step][-1]
    judge = str(record.notes.get("judged_by", AdapterTruncation.kl.name))
    choice = at_step(AdapterTruncation.recommended_energy).iloc[-1]
    losses = at_step(AdapterTruncation.named(judge))
    scale = float(losses[losses["energy"] == 0]["value"].iloc[-1])
    chosen = losses[(losses["energy"] == choice["value"]) & (losses["cut"] == choice["cut"])]["value"].iloc[-1]
    rank = at_step(AdapterTruncation.rank, kind="module", adapter=name)
    rank = rank[np.isfinite(rank["value"].to_numpy(np.float64))]
    recommended, ranks = (
        {str(scope): int(value) for scope, value in zip(frame["scope"], frame["value"], strict=True)}
        for frame in (best, rank)
    )
    parameters = float(at_step(AdapterTruncation.recommended_parameters)["value"].iloc[-1])
    examples = int(record.notes.get("examples", 0))
    return TriedRanks(step, record.probe, recommended, ranks, parameters, float(chosen) / scale, examples, judge)


def layers_of_modules(scopes: Iterable[str], reader: RunReader) -> dict[str, str]:
    """The layer that each module is in: one that the manifest names, else all up to its first number."""
    by_scope = {}
    for scope in scopes:
        numbered = re.match(r"(.*?\.\d+)(\.|$)", scope)
        declared = (name for name in layers(reader) if in_path(name, scope))
        by_scope[scope] = next(declared, numbered[1] if numbered else scope)
    return by_scope
