"""From a history to what figures are drawn of: grids of steps and layers."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import numpy as np
from matplotlib.figure import Figure

from learnscope.core.moment import NotAvailable
from learnscope.model.adapters.parameters import OUTSIDE_ADAPTERS
from learnscope.names import resolve
from learnscope.options import known_name
from learnscope.reading.gather import Floats, Grid
from learnscope.record import nonfinite
from learnscope.report.adapters.heatmaps import Panel
from learnscope.report.adapters.lines import Lines
from learnscope.report.layout import save
from learnscope.trackers.history import History
from learnscope.trackers.naming import find_layer, layer_of, type_of

OUTSIDE = "outside the blocks"
Modules = Sequence[tuple[str, str]]
"""Adapter and name of each."""
Combine = Callable[[Floats], float]


def root_of_squares(values: Floats) -> float:
    """The norm of a whole from the norms of its parts."""
    return float(np.linalg.norm(values))


def combined(
    history: History, step: int, modules: Modules, metric: str, combine: Combine = root_of_squares
) -> tuple[float | None, str | None]:
    """One number from those of several modules, or None and the reason.

    A module without a number is left out, as an optimizer leaves out a part without gradient; one that was measured
    and is not finite makes the result so.
    """
    cells = [history.read(step, adapter, metric, module) for adapter, module in modules]
    numbers = [value for value, _ in cells if isinstance(value, float | int)]
    reasons = dict.fromkeys(reason for _, reason in cells if reason is not None)
    broken = [reason for reason in reasons if nonfinite(reason)]
    if broken or not numbers:
        return None, broken[0] if broken else "; ".join(reasons)
    return combine(np.array(numbers, dtype=np.float64)), None


def grid(history: History, groups: Mapping[str, Modules], metric: str, combine: Combine = root_of_squares) -> Grid:
    """One number for each logged step and group of modules."""
    steps, rows = history.steps, groups.values()
    cells = [[combined(history, step, modules, metric, combine) for modules in rows] for step in steps]
    shape = (len(steps), len(groups))
    values = np.array([np.nan if value is None else value for row in cells for value, _ in row]).reshape(shape)
    broken = np.array([nonfinite(reason) is not None for row in cells for _, reason in row], dtype=bool).reshape(shape)
    return Grid(np.array(steps, dtype=np.int64), list(groups), values, broken)


def by_layer(modules: Modules) -> dict[str, list[tuple[str, str]]]:
    layers: dict[str, list[tuple[str, str]]] = {}
    for adapter, module in modules:
        layers.setdefault(layer_of(module), []).append((adapter, module))
    return layers


def heatmap_panels(
    history: History, modules: Modules, metric: str, what: str, combine: Combine = root_of_squares
) -> list[Panel]:
    """A panel for each type of module in the blocks, all with the same rows; other modules share a panel.

    Several modules of one type in one layer, such as experts, share a row: `combine` makes one number of theirs.
    """
    types: dict[str, list[tuple[str, str]]] = {}
    outside: dict[str, list[tuple[str, str]]] = {}
    for adapter, module in modules:
        in_block = resolve(f"{module}.weight").recognised
        group, name = (types, type_of(module)) if in_block else (outside, module)
        group.setdefault(name, []).append((adapter, module))
    layers = {name: by_layer(members) for name, members in types.items()}
    rows = dict.fromkeys(layer for members in layers.values() for layer in members)
    panels = [
        Panel(name, grid(history, {row: members.get(row, []) for row in rows}, metric, combine))
        for name, members in layers.items()
    ]
    if outside:
        panels.append(Panel(OUTSIDE, grid(history, outside, metric, combine), in_blocks=False))
    if not any(np.isfinite(panel.grid.values).any() or panel.grid.broken.any() for panel in panels):
        adapter, module = modules[-1]
        reason = history.read(history.steps[-1], adapter, metric, module)[1]
        raise NotAvailable(f"there is no {what} to draw; {module}: {reason}")
    return panels


def comparison_panels(
    history: History, modules: Mapping[str, Modules], layers: Sequence[str | int] | None
) -> list[Lines]:
    """A panel for each component, with the layers that were asked for, or the first, the middle and the last."""
    panels = []
    for component, members in modules.items():
        norms = grid(history, by_layer(members), component)
        names = norms.scopes
        ends = [names[place] for place in sorted({0, len(names) // 2, len(names) - 1})]
        chosen = ends if layers is None else [find_layer(layer, names) or str(layer) for layer in layers]
        for name in chosen:
            known_name("layer", name, names)
        panels.append(Lines(component, norms, list(dict.fromkeys(chosen))))
    return panels


def final_spectra(history: History, modules: Modules) -> tuple[int, dict[str, dict[str, Floats]]]:
    """The singular values of the last step that has some: by type of module and by layer."""
    for step in reversed(history.steps):
        panels: dict[str, dict[str, Floats]] = {}
        for adapter, module in modules:
            values = history.cells(step, adapter).get("singular_values", {}).get(module)
            if isinstance(values, np.ndarray):
                in_block = resolve(f"{module}.weight").recognised
                panel = panels.setdefault(type_of(module) if in_block else OUTSIDE, {})
                row = layer_of(module) if in_block else module
                panel[row if row not in panel else module] = values
        if panels:
            return step, panels
    raise NotAvailable("there are no singular values to draw: nothing is logged, or no module adds a matrix")


def matrix_words(modules: Modules) -> tuple[str, str]:
    """What a figure of these modules shows, and the symbol of the matrix whose spectrum it is."""
    return ("weights", "W") if {adapter for adapter, _ in modules} == {OUTSIDE_ADAPTERS} else ("adapters", "ΔW")


def saved(figure: Figure, path: str | Path | None) -> Figure:
    """The figure, also written to `path` if there is one."""
    if path is not None and Path(path).is_dir():
        raise IsADirectoryError(f"{path} is a folder: name the picture in it, such as {Path(path) / 'figure.png'}")
    if path is not None:
        save(figure, Path(path))
    return figure
