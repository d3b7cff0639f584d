"""From a history to what figures are drawn of: grids of layers and steps."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import numpy as np
from matplotlib.figure import Figure

from learnscope.core.moment import NotAvailable
from learnscope.model.adapters.parameters import NO_FAMILY
from learnscope.names import resolve
from learnscope.options import known_name
from learnscope.reading.gather import Floats, Grid
from learnscope.report.adapters.heatmaps import Panel
from learnscope.report.adapters.lines import Lines
from learnscope.report.layout import save
from learnscope.trackers.history import History
from learnscope.trackers.layers import Gathered, Modules, by_layer, gathered, root_of_squares
from learnscope.trackers.naming import layer_called, layer_of, type_of

OUTSIDE = "outside the blocks"


def heatmap_panels(
    history: History, modules: Modules, metric: str, combine: Callable[[Floats], float] = root_of_squares
) -> list[Panel]:
    """A panel for each type of module that stands in blocks, with the same rows; the others in one of their own.

    Several modules of one type in one layer, as experts are, share a row: `combine` makes one number of theirs.
    """
    types: dict[str, dict[str, list[tuple[str, str]]]] = {}
    outside: dict[str, list[tuple[str, str]]] = {}
    for one in modules:
        name = resolve(f"{one[1]}.weight")
        held = types.setdefault(name.component, {}).setdefault(name.layer, []) if name.recognised else None
        (outside.setdefault(one[1], []) if held is None else held).append(one)
    layers = list(dict.fromkeys(layer for held in types.values() for layer in held))
    panels = [Panel(name, grid(gathered(history, held, metric, combine), layers)) for name, held in types.items()]
    if outside:
        rest = gathered(history, outside, metric, combine)
        panels.append(Panel(OUTSIDE, grid(rest, list(outside)), in_blocks=False))
    return panels


def refuse_empty(panels: Sequence[Panel], what: str, history: History, modules: Modules, metric: str) -> None:
    """Refuse to draw where no module ever had a number, with the reason of the last one."""
    if not any(np.isfinite(panel.grid.values).any() or panel.grid.broken.any() for panel in panels):
        owner, module = modules[-1]
        reason = history.read(history.steps[-1], owner, metric, module)[1]
        raise NotAvailable(f"there is no {what} to draw; {module}: {reason}")


def comparison_panels(
    history: History, modules: Mapping[str, Modules], layers: Sequence[str | int] | None
) -> list[Lines]:
    """A panel for each component, with the layers that were asked for, or the first, the middle and the last."""
    panels = []
    for component, held in modules.items():
        norms = by_layer(history, held, component)
        chosen = _ends(norms.groups) if layers is None else [_layer(one, norms.groups) for one in layers]
        panels.append(Lines(component, grid(norms, norms.groups), list(dict.fromkeys(chosen))))
    return panels


def grid(found: Gathered, rows: list[str]) -> Grid:
    """The numbers of these rows, steps down; rows of which there is nothing stay empty."""
    values = np.full((len(found.steps), len(rows)), np.nan)
    broken = np.zeros(values.shape, dtype=bool)
    places = [rows.index(group) for group in found.groups]
    values[:, places], broken[:, places] = found.values.T, found.broken.T
    return Grid(np.array(found.steps, dtype=np.int64), rows, values, broken)


def final_spectra(history: History, modules: Modules) -> tuple[int, dict[str, dict[str, Floats]]] | None:
    """The singular values of the last step that has some: by type of module and by layer."""
    for step in reversed(history.steps):
        found: dict[str, dict[str, Floats]] = {}
        for adapter, module in modules:
            values = history.adapters[adapter].lists.get("singular_values", {}).get(step, {}).get(module)
            if values is not None:
                inside = resolve(f"{module}.weight").recognised
                row = layer_of(module) if inside else module
                held = found.setdefault(type_of(module) if inside else OUTSIDE, {})
                held[row if row not in held else module] = values
        if found:
            return step, found
    return None


def drawn_of(modules: Modules) -> tuple[str, str]:
    """What a figure of these modules is of, and whose spectrum that is."""
    return ("weights", "W") if {owner for owner, _ in modules} == {NO_FAMILY} else ("adapters", "ΔW")


def saved(figure: Figure, path: str | Path | None) -> Figure:
    """The figure, written as well if there is a place for it."""
    if path is not None and Path(path).is_dir():
        raise IsADirectoryError(f"{path} is a folder: name the picture in it, such as {Path(path) / 'figure.png'}")
    if path is not None:
        save(figure, Path(path))
    return figure


def _ends(layers: list[str]) -> list[str]:
    return [layers[place] for place in sorted({0, len(layers) // 2, len(layers) - 1})]


def _layer(given: str | int, layers: list[str]) -> str:
    found = layer_called(given, layers)
    if found is None:
        known_name("layer", given, layers)  # refuses
    assert found is not None
    return found
