"""Panels from the declared quantities: curves for numbers of the model, grids for those of layers."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from itertools import groupby
from typing import Any

import numpy as np

from learnscope.quantities import Quantity, declared
from learnscope.reading.gather import class_of
from learnscope.reading.other_numbers import exact
from learnscope.reading.words import capital, count
from learnscope.report.page.catalogue import Matrix, Recorded
from learnscope.report.page.curves import Cells, curve
from learnscope.report.page.packing import Columns

GRID_KINDS = ("layer", "module", "component", "tensor", "site", "unit")
"""Kinds that are drawn as grids, the most telling first. Others are too if they have many scopes."""
MOST_CURVES = 12
"""Scopes up to which each gets a curve."""
MOST_COLUMNS, FEWEST_COLUMNS, GRID_NUMBERS = 1024, 64, 560_000
"""Columns of a grid, and how many numbers all grids of a page may have: about two megabytes when compressed."""
FAMILIES = (
    "outputs", "gradients", "updates", "weights", "examples", "features", "adapters", "landscape", "bits",
    "robustness", "cost", "own",
)  # fmt: skip


@dataclass
class Panels:
    """What a page can draw."""

    curves: list[dict[str, Any]] = field(default_factory=list)
    grids: list[dict[str, Any]] = field(default_factory=list)
    flat: list[dict[str, Any]] = field(default_factory=list)
    """Numbers that never changed."""
    once: list[dict[str, Any]] = field(default_factory=list)
    """Numbers of the model that were measured once."""
    left_out: list[str] = field(default_factory=list)
    """What did not fit into the page."""


def panels_of(columns: Columns, recorded: Sequence[Recorded]) -> Panels:
    """All panels: those that quantities declare to be drawn first, then the others, by family."""
    panels = Panels()
    waiting: list[tuple[dict[str, Any], Cells]] = []
    named = groupby(sorted(recorded, key=_place), key=lambda each: (each.probe, each.kind, each.name))
    for _, entries in named:
        group = list(entries)
        if group[0].kind in GRID_KINDS or len(group[0].scopes) > MOST_CURVES:
            for entry in group:
                _grid(entry, panels, waiting)
        else:
            _curves(columns, group, panels)
    panels.grids = _fitted(columns, waiting, panels.left_out)
    return panels


def family_of(probe: str) -> str:
    """The module that declares a probe's quantities; `own` for a user's probe."""
    quantities = declared().get(class_of(probe))
    family = quantities.__module__.rsplit(".", 1)[-1] if quantities else "own"
    return family if family in FAMILIES else "own"


def prominent(recorded: Recorded) -> bool:
    """Whether its quantity is declared to be drawn; what nobody declared is drawn too."""
    return recorded.quantity is None or recorded.quantity.drawn != "not"


def described(recorded: Recorded, *, with_labels: bool = True) -> dict[str, Any]:
    """What a panel says about its numbers, and the line of Python that gets them."""
    quantity = recorded.quantity or Quantity("", name=recorded.name)
    condition = recorded.condition if with_labels else ""
    return {
        "id": panel_id(recorded, with_labels=with_labels), "probe": recorded.probe, "name": recorded.name,
        "kind": recorded.kind, "title": capital(recorded.name.replace("_", " ")), "condition": condition,
        "meaning": quantity.meaning, "unit": quantity.unit, "scale": quantity.scale,
        "family": family_of(recorded.probe), "prominent": prominent(recorded), "better": quantity.better,
        "pandas": frame_line(recorded, with_labels=with_labels),
    }  # fmt: skip


def panel_id(recorded: Recorded, *, with_labels: bool = True) -> str:
    labels = "&".join(f"{label}={value}" for label, value in recorded.labels) if with_labels else ""
    return "/".join((recorded.probe, recorded.name, recorded.kind)) + (f"?{labels}" if labels else "")


def frame_line(
    recorded: Recorded, steps: tuple[int, int] | None = None, scopes: Sequence[str] = (), *, with_labels: bool = True
) -> str:
    """The line of Python that gets the numbers as a table."""
    arguments = ", ".join(repr(part) for part in (recorded.probe, recorded.name, recorded.kind))
    chosen = [f"{label} == {value!r}" for label, value in recorded.labels] if with_labels else []
    chosen += [f"{steps[0]} <= step <= {steps[1]}"] if steps else []
    chosen += [f"scope in {list(scopes)!r}"] if scopes else []
    return f"run.frame({arguments})" + (f".query({' and '.join(chosen)!r})" if chosen else "")


def _place(recorded: Recorded) -> tuple[Any, ...]:
    kind = GRID_KINDS.index(recorded.kind) if recorded.kind in GRID_KINDS else len(GRID_KINDS)
    family = FAMILIES.index(family_of(recorded.probe))
    return not prominent(recorded), family, recorded.probe, recorded.name, kind, recorded.kind


def _curves(columns: Columns, group: Sequence[Recorded], panels: Panels) -> None:
    """One panel for all labels and scopes of a name."""
    lines: list[tuple[str, Matrix, str]] = []
    for entry in group:
        matrix = entry.matrix()
        for scope in matrix.scopes:
            own = "" if entry.kind == "model" and scope == "model" else scope
            name = ", ".join(part for part in (own, entry.condition) if part)
            lines.append((name, matrix, scope))
    body = described(group[0], with_labels=False)
    if all(len(matrix.steps) <= 1 for _, matrix, _ in lines):
        for name, matrix, scope in lines:
            panels.once += [body | {"of": name, **_only(matrix, scope)}] if len(matrix.steps) else []
        return
    constant = [_constant(matrix.of(scope)) for _, matrix, scope in lines]
    if None not in constant:
        values = sorted({exact(value) for value in constant if value is not None})
        panels.flat.append(body | {"value": ", ".join(values[:4]), "steps": max(len(m.steps) for _, m, _ in lines)})
        return
    shown = lines[:24]
    if len(lines) > len(shown):
        panels.left_out.append(f"{count(len(lines) - len(shown), 'curve')} of {body['id']}")
    body["curves"] = [{"name": name, **curve(columns, m.steps, m.of(scope))} for name, m, scope in shown]
    panels.curves.append(body)


def _constant(values: Any) -> float | None:
    return float(values[0]) if len(values) and np.isfinite(values).all() and values.min() == values.max() else None


def _only(matrix: Matrix, scope: str) -> dict[str, Any]:
    value = float(matrix.of(scope)[0])
    text = exact(value) if np.isfinite(value) else "not measured" if np.isnan(value) else "not finite"
    return {"value": text, "step": int(matrix.steps[0])}


def _grid(entry: Recorded, panels: Panels, waiting: list[tuple[dict[str, Any], Cells]]) -> None:
    matrix, body = entry.matrix(), described(entry)
    if not matrix.values.size:
        return
    if matrix.constant is not None and len(matrix.steps) > 1:
        panels.flat.append(
            body | {"value": exact(matrix.constant), "steps": len(matrix.steps), "scopes": len(matrix.scopes)}
        )
        return
    waiting.append((body | {"scopes": matrix.scopes}, Cells.of(matrix, MOST_COLUMNS)))


def _fitted(columns: Columns, waiting: list[tuple[dict[str, Any], Cells]], left_out: list[str]) -> list[dict[str, Any]]:
    """The grids with as many columns as fit; if even few do not, the last ones are left out, and that is said."""
    while waiting and _numbers(waiting) > GRID_NUMBERS:
        widest = max(len(cells.starts) for _, cells in waiting)
        if widest <= FEWEST_COLUMNS:
            body, _ = waiting.pop()
            left_out.append(f"grid {body['id']}")
            continue
        waiting = [(body, cells.halved() if len(cells.starts) > widest / 2 else cells) for body, cells in waiting]
    return [body | cells.packed(columns) for body, cells in waiting]


def _numbers(waiting: Iterable[tuple[Any, Cells]]) -> int:
    return sum(cells.numbers for _, cells in waiting)
