"""Adapters in a run's report: size and effective rank of their updates, and the cost of lower ranks."""

from __future__ import annotations

import re

import numpy as np
import pandas as pd
from matplotlib.figure import Figure

from learnscope.quantities import Quantity
from learnscope.quantities.adapters import AdapterGradients, AdapterSpectrum, AdapterTruncation
from learnscope.reading.adapter_tables import adapter_names, layers_of_modules
from learnscope.reading.gather import Grid, grid, rows
from learnscope.reading.words import percent
from learnscope.report.adapters.heatmaps import Panel, Scale, draw_heatmap
from learnscope.report.layout import INK, head, new_figure
from learnscope.report.style import COLOURS, finish, legend, lined
from learnscope.store.reader import RunReader

CUTS = {"each": "the same share of every update", "all": "the largest directions of all updates"}


def update_figure(reader: RunReader) -> Figure | None:
    scale = Scale("‖ΔW‖", "‖ΔW‖_F, norm of what the adapter adds to the weight")
    return _modules(reader, AdapterSpectrum.frobenius_norm, scale, "Size of the adapters' updates")


def rank_figure(reader: RunReader) -> Figure | None:
    scale = Scale("rank", "effective rank of the update", log=False)
    return _modules(reader, AdapterSpectrum.effective_rank, scale, "Directions that the adapters use")


def gradient_figure(reader: RunReader) -> Figure | None:
    """A panel for each part of the adapters that has a gradient."""
    norm = AdapterGradients.norm
    frame = rows(reader, norm, kind="layer", stage="stepped")
    if frame.empty:
        return None
    adapter = str(frame["adapter"].iloc[0])
    panels = [
        Panel(part, grid(reader, norm, kind="layer", stage="stepped", component=part, adapter=adapter))
        for part in frame[frame["adapter"] == adapter]["component"].unique()
    ]
    panels = [panel for panel in panels if np.isfinite(panel.grid.values).any()]
    scale = Scale("‖g‖", "‖g‖, as given to the optimizer, √Σ over a layer's modules", of="layer")
    which = _first_of([str(name) for name in frame["adapter"].unique()])
    return draw_heatmap(panels, scale, f"Gradient norm of the adapters' parts{which}") if panels else None


def _modules(reader: RunReader, quantity: Quantity, scale: Scale, title: str) -> Figure | None:
    """A heatmap for each type of module; of several adapters that of the first."""
    adapters = adapter_names(reader, quantity)
    if not adapters:
        return None
    modules = grid(reader, quantity, kind="module", adapter=adapters[0])
    if not np.isfinite(modules.values).any():  # vectors have no spectrum
        return None
    return draw_heatmap(_by_type(modules, reader), scale, title + _first_of(adapters))


def _first_of(adapters: list[str]) -> str:
    return f" ({adapters[0]}, the first of {len(adapters)})" if len(adapters) > 1 else ""


def _by_type(modules: Grid, reader: RunReader) -> list[Panel]:
    """A panel for the modules of each name in all layers, and one for modules that are in no layer."""
    types: dict[str, dict[str, int]] = {}
    outside: dict[str, int] = {}
    layers_of = layers_of_modules(modules.scopes, reader)
    kinds = _kinds({scope: scope.removeprefix(f"{layer}.") for scope, layer in layers_of.items()})
    for column, (scope, layer) in enumerate(layers_of.items()):
        in_block = layer != scope and not re.fullmatch(r"\d+", kinds[scope])
        columns = types.setdefault(kinds[scope], {}) if in_block else outside
        columns[layer if in_block and layer not in columns else scope] = column
    layers = list(dict.fromkeys(layer for columns in types.values() for layer in columns))
    panels = [Panel(kind, _chosen(modules, layers, columns)) for kind, columns in types.items()]
    return [*panels, *([Panel("", _chosen(modules, list(outside), outside), in_blocks=False)] if outside else [])]


def _kinds(paths_in_layer: dict[str, str]) -> dict[str, str]:
    """The kind of each module: its own name, or its path within the layer where several paths end in that name.

    >>> _kinds({"h.0.attn.c_proj": "attn.c_proj", "h.0.mlp.c_proj": "mlp.c_proj", "h.0.attn.c_attn": "attn.c_attn"})
    {'h.0.attn.c_proj': 'attn.c_proj', 'h.0.mlp.c_proj': 'mlp.c_proj', 'h.0.attn.c_attn': 'c_attn'}
    """
    # experts, which differ only in their numbers, are of one kind
    paths = {scope: re.sub(r"\.\d+(?=\.)", "", path) for scope, path in paths_in_layer.items()}
    several: dict[str, set[str]] = {}
    for path in paths.values():
        several.setdefault(path.rsplit(".", 1)[-1], set()).add(path)
    return {scope: path if len(several[last := path.rsplit(".", 1)[-1]]) > 1 else last for scope, path in paths.items()}


def _chosen(modules: Grid, scopes: list[str], columns: dict[str, int]) -> Grid:
    """The grid with these rows; those without a column are empty."""
    places, present = [columns.get(scope, 0) for scope in scopes], [scope in columns for scope in scopes]
    values = np.where(present, modules.values[:, places], np.nan)
    return Grid(modules.steps, scopes, values, modules.broken[:, places] & present, modules.probe)


def cut_figure(reader: RunReader) -> Figure | None:
    """How much the outputs lose against how many parameters are left, at the last step that tried lower ranks."""
    shares = rows(reader, AdapterTruncation.parameters_kept)
    if shares.empty:
        return None
    step = int(shares["step"].max())
    by_kl = bool(rows(reader, AdapterTruncation.kl)["value"].notna().any())
    lost = rows(reader, AdapterTruncation.kl if by_kl else AdapterTruncation.mse)
    keys = ["cut", "energy"]
    both = pd.merge(
        shares[shares["step"] == step][[*keys, "value"]], lost[lost["step"] == step][[*keys, "value"]], on=keys,
        suffixes=("_kept", "_lost"),
    )  # fmt: skip
    scale = float(both.loc[both["energy"] == 0, "value_lost"].iloc[0])
    if not scale > 0:
        return None
    figure = new_figure(4.2)
    axes = figure.subplots()
    for (cut, name), colour in zip(CUTS.items(), COLOURS, strict=False):
        part = both[(both["cut"] == cut) & (both["energy"] > 0)].sort_values("value_kept")
        axes.plot(100 * part["value_kept"], 100 * part["value_lost"] / scale, "o-", color=colour, label=name, ms=4)
    best = rows(reader, AdapterTruncation.recommended_energy)
    best = best[(best["step"] == step) & best["value"].notna()]
    if not best.empty:
        row = both[(both["cut"] == best["cut"].iloc[-1]) & (both["energy"] == best["value"].iloc[-1])]
        kept, kept_loss = float(row["value_kept"].iloc[0]), float(row["value_lost"].iloc[0])
        axes.plot([100 * kept], [100 * kept_loss / scale], "o", ms=11, mfc="none", mec=INK,
                  label=f"recommended: {percent(kept)}")  # fmt: skip
    axes.set_yscale("symlog", linthresh=0.1)
    axes.yaxis.set_major_formatter(lambda value, _: f"{value:g}")
    axes.set_xlim(left=0)
    axes.set_ylim(bottom=0)
    finish(axes, "parameters that are left, %", "lost of what the adapters do, %")
    lined(axes)
    legend(axes)
    unit = "KL" if by_kl else "squared error"
    head(figure, "Adapters with lower ranks", f"mean {unit} on the holdout beside that without adapters, step {step:,}")
    return figure
