"""A comparison as one HTML file: what differs, curves over each other, and differences of heatmaps."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from learnscope.comparison import words
from learnscope.comparison.audits import audit_rows
from learnscope.comparison.best_metric import BestMetric, best_metrics
from learnscope.comparison.ranking_words import ranking_body
from learnscope.comparison.series import Key
from learnscope.comparison.settings import ABSENT
from learnscope.quantities import Quantity, quantity_of
from learnscope.reading.gather import Series, class_of
from learnscope.reading.words import capital
from learnscope.record import nonfinite
from learnscope.report.page.catalogue import BROKEN, Matrix
from learnscope.report.page.curves import Cells, curve
from learnscope.report.page.html import write_page
from learnscope.report.page.packing import Columns
from learnscope.report.page.panels import family_of
from learnscope.report.page.training import VERSION

if TYPE_CHECKING:
    from learnscope.comparison.compared import Comparison

FILE = "compare.html"
POINTS, COLUMNS, GRIDS, CELL = 1500, 256, 12, 120
"""Points of a curve, columns of a heatmap, heatmaps of each pair of runs, characters of a setting."""


def write_comparison_page(comparison: Comparison, folder: Path) -> Path:
    """Write `compare.html` into `folder`."""
    columns = Columns()
    body = comparison_payload(columns, comparison)
    return write_page(folder / FILE, columns.pack(body), body)


def comparison_payload(columns: Columns, comparison: Comparison) -> dict[str, Any]:
    labels = comparison.labels
    bests = best_metrics(comparison.opened)
    return {
        "version": VERSION, "kind": "comparison", "name": " and ".join(labels), "written": time.time(),
        "labels": labels,
        "runs": [_run(facts, bests[facts.label]) for facts in comparison.runs], "notes": comparison.notes,
        "partings": [
            {"first": p.first, "other": p.other, "step": p.step, "state": p.state,
             "text": words.parting_text(p, comparison.tolerance)}
            for p in comparison.partings
        ],
        "settings": [
            {"key": change.key, "values": words.setting_cells(list(change.values.values()), CELL),
             "absent": [value is ABSENT for value in change.values.values()]}
            for change in comparison.differences
        ],
        "panels": _panels(columns, comparison), "grids": _grids(columns, comparison),
        "audits": [list(row) for row in audit_rows(comparison.audits)] if comparison.audits else [],
        **ranking_body(comparison), "findings": [], "flat": [], "once": [],
    }  # fmt: skip


def _run(facts: Any, best: BestMetric) -> dict[str, Any]:
    found = best.best
    return {
        "name": facts.label, "path": facts.path, "status": facts.status, "source": facts.source,
        "first_step": facts.first_step, "last_step": facts.last_step,
        "best": None if found is None else {
            "step": found.step, "value": found.value, "name": found.quantity.name.replace("_", " "),
            "better": found.quantity.better,
        },
        "interval": best.interval, "n": best.n, "reason": best.reason,
    }  # fmt: skip


def _quantity(key: Key) -> Quantity:
    return quantity_of(class_of(key.probe), key.name) or Quantity("", name=key.name)


def _described(key: Key) -> dict[str, Any]:
    quantity = _quantity(key)
    return {
        "probe": key.probe, "name": key.name, "kind": key.kind, "title": capital(key.name.replace("_", " ")),
        "condition": key.conditions, "meaning": quantity.meaning, "unit": quantity.unit,
        "scale": "auto" if quantity.scale == "linear" and "loss" in key.name else quantity.scale,
        "family": family_of(key.probe), "prominent": not quantity.meaning or quantity.drawn != "not",
    }  # fmt: skip


def _panels(columns: Columns, comparison: Comparison) -> list[dict[str, Any]]:
    """A panel for each number of the model that two runs have, with the steps at which runs part from the first."""
    shown = []
    for line in comparison.lines:
        key, of = line.key, comparison.of(line.key)
        if key.kind != "model" or len(of) < 2 or all(len(series) < 2 for series in of.values()):
            continue
        if all(_constant(series) for series in of.values()) and len({float(s.values[0]) for s in of.values()}) == 1:
            continue
        places = {label: place for place, label in enumerate(comparison.labels)}
        curves = [
            {"name": label, "place": places[label], **curve(columns, s.steps, _numbers(s), POINTS)}
            for label, s in of.items()
        ]
        partings = [{"step": step, "run": run} for run, step in line.parts_at.items() if step is not None]
        shown.append({"id": f"compare/{key}", **_described(key), "curves": curves, "partings": partings})
    return sorted(
        shown,
        key=lambda body: (not body["prominent"], body["name"] not in ("loss", "holdout_loss", "holdout_accuracy")),
    )


def _constant(series: Series) -> bool:
    return bool(np.isfinite(series.values).all() and series.values.min() == series.values.max())


def _numbers(series: Series) -> NDArray[np.float64]:
    return np.where(np.isin(series.steps, series.broken), BROKEN, series.values)


def _grids(columns: Columns, comparison: Comparison) -> list[dict[str, Any]]:
    """The heatmaps of the first run and of another, and their difference, at the steps and layers that both have."""
    groups: dict[Key, list[Key]] = {}
    for key in comparison.keys:
        if key.kind in ("layer", "module"):
            groups.setdefault(key._replace(scope=""), []).append(key)
    first, *others = comparison.labels
    chosen = sorted(groups.items(), key=lambda group: not _described(group[0])["prominent"])[:GRIDS]
    found = []
    for head, keys in chosen:
        for other in others:
            pair = [{k.scope: of[label] for k in keys if label in (of := comparison.of(k))} for label in (first, other)]
            matrices = _aligned(pair)
            if matrices is not None:
                found.append(_pair(columns, head, first, other, matrices))
    return found


def _aligned(pair: Sequence[Mapping[str, Series]]) -> tuple[Matrix, Matrix] | None:
    scopes = [scope for scope in pair[0] if scope in pair[1]]
    if not scopes:
        return None
    first, second = (np.concatenate([run[scope].steps for scope in scopes]) for run in pair)
    steps = np.intersect1d(first, second)
    if len(steps) < 2:
        return None
    left, right = (Matrix(steps, scopes, np.stack([_at(run[scope], steps) for scope in scopes], 1)) for run in pair)
    return left, right


def _at(series: Series, steps: NDArray[np.int64]) -> NDArray[np.float64]:
    """The values at some steps: NaN where there is none, infinity where it is not finite."""
    values = np.full(len(steps), np.nan)
    _, here, there = np.intersect1d(steps, series.steps, return_indices=True)
    values[here] = _numbers(series)[there] if any(map(nonfinite, series.status)) else series.values[there]
    return values


def _pair(columns: Columns, head: Key, first: str, other: str, matrices: tuple[Matrix, Matrix]) -> dict[str, Any]:
    left, right = matrices
    body = _described(head)
    ratio = body["scale"] == "log"
    with np.errstate(divide="ignore", invalid="ignore"):
        raw = np.log10(right.values) - np.log10(left.values) if ratio else right.values - left.values
    both_zero = (left.values == 0) & (right.values == 0)
    broken = np.isinf(left.values) | np.isinf(right.values)
    difference = np.where(broken, BROKEN, np.where(both_zero, 0.0, np.where(np.isinf(raw), np.nan, raw)))
    grids = {"left": left, "right": right, "difference": Matrix(left.steps, left.scopes, difference)}
    parts = {name: Cells.of(matrix, COLUMNS).packed(columns) for name, matrix in grids.items()}
    return {
        "id": f"compare-grid/{head}/{other}", **body, "scopes": left.scopes, "against": first, "other": other,
        "ratio": ratio, **parts["difference"], "parts": parts,
    }  # fmt: skip
