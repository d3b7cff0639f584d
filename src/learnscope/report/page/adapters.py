"""What only the page of an adapter training has: the recommended ranks, what cuts cost, and maps of the modules."""

from __future__ import annotations

from typing import Any

import numpy as np

from learnscope.quantities.adapters import AdapterGradients, AdapterSpectrum, AdapterTruncation
from learnscope.reading.adapter_tables import AdapterTables, adapter_tables, layers_of_modules
from learnscope.reading.gather import labels_of, rows
from learnscope.reading.words import count, percent
from learnscope.store.reader import RunReader

ADAPTERS = (AdapterSpectrum, AdapterGradients, AdapterTruncation)


def has_adapters(reader: RunReader) -> bool:
    return any(labels_of(reader, probe) for probe in ADAPTERS)


def adapters_body(reader: RunReader) -> dict[str, Any]:
    """The adapters with their recommended ranks, and what the model loses with lower ones."""
    tables = adapter_tables(reader)
    scopes = list(dict.fromkeys(scope for each in tables for scope in each.norms.scopes))
    return {
        "adapters": [_adapter(each) for each in tables], "cuts": cut_points(reader),
        "module_layers": layers_of_modules(scopes, reader),
    }  # fmt: skip


def _adapter(each: AdapterTables) -> dict[str, Any]:
    tried = each.tried
    body: dict[str, Any] = {
        "name": each.name,
        "rank_pattern": None,
        "sentence": "Lower ranks were not tried: ls.AdapterTruncation() does.",
    }
    if tried is None:
        return body
    lower = {module: rank for module, rank in tried.recommended.items() if rank != tried.rank.get(module)}
    sentence = (
        f"With these ranks the model keeps {percent(1 - tried.lost)} of what the adapter does, measured by "
        f"{'KL' if tried.judged_by == 'kl' else tried.judged_by} on {count(tried.examples, 'example')} at step "
        f"{tried.step:,}, in {percent(tried.parameters)} of the parameters."
    )
    return body | {
        "rank_pattern": tried.recommended, "rank": tried.rank, "lower": len(lower), "step": tried.step,
        "parameters": tried.parameters, "lost": tried.lost, "sentence": sentence,
    }  # fmt: skip


def cut_points(reader: RunReader) -> list[dict[str, Any]]:
    """What the outputs lose with each cut that was tried last, against the parameters that it keeps."""
    kept = rows(reader, AdapterTruncation.parameters_kept)
    if kept.empty:
        return []
    step = int(kept["step"].max())
    kept = kept[kept["step"] == step]
    chosen = rows(reader, AdapterTruncation.recommended_energy)
    chosen = chosen[(chosen["step"] == step) & chosen["value"].notna()]
    best = {(str(cut), float(value)) for cut, value in zip(chosen["cut"], chosen["value"], strict=True)}
    judge = next(
        (q for q in (AdapterTruncation.kl, AdapterTruncation.mse) if rows(reader, q)["value"].notna().any()), None
    )
    if judge is None:
        return []
    lost = rows(reader, judge)
    lost = lost[lost["step"] == step]
    losses = {(str(c), float(e)): float(v) for c, e, v in zip(lost["cut"], lost["energy"], lost["value"], strict=True)}
    points = []
    for cut, energy, share in zip(kept["cut"], kept["energy"], kept["value"], strict=True):
        damage = losses.get((str(cut), float(energy)))
        if damage is not None and np.isfinite(damage) and np.isfinite(share):
            points.append({
                "cut": str(cut), "energy": float(energy), "kept": float(share), "damage": damage, "step": step,
                "measure": judge.name, "recommended": (str(cut), float(energy)) in best,
            })  # fmt: skip
    return points
