"""Sentences and table cells of a comparison, for the page and the terminal."""

from __future__ import annotations

import json
from collections.abc import Sequence
from itertools import takewhile
from typing import TYPE_CHECKING, Any

from learnscope.comparison.parting import Parting, SeriesParting
from learnscope.comparison.series import direction
from learnscope.comparison.settings import ABSENT, strict
from learnscope.comparison.table import Line, Summary
from learnscope.reading.words import count, listed, num, percent

if TYPE_CHECKING:
    from learnscope.comparison.compared import Comparison
    from learnscope.comparison.weights import Weights

Cells = tuple[str, ...]


def run_rows(comparison: Comparison) -> list[Cells]:
    rows: list[Cells] = []
    for run in comparison.runs:
        steps = "none" if run.last_step is None else f"{run.first_step:,} to {run.last_step:,}"
        if run.resumed_at:
            steps += f", resumed at {listed([f'{step:,}' for step in run.resumed_at], 5)}"
        rows.append((run.label, steps, run.source or "not said", run.status or "not said", run.path or "in memory"))
    return rows


def setting_rows(comparison: Comparison, limit: int) -> list[Cells]:
    """Every setting that differs, with a cell of up to `limit` characters for each run."""
    return [(change.key, *setting_cells(list(change.values.values()), limit)) for change in comparison.differences]


def setting_cells(values: Sequence[Any], limit: int) -> list[str]:
    """The values as text; long ones start shortly before they differ.

    >>> setting_cells([0.1, None, ABSENT, "text"], 20)
    ['0.1', 'null', 'absent', 'text']
    >>> setting_cells([["layer.one", "layer.two", "a"], ["layer.one", "layer.two", "b"]], 20)
    ['…ne, layer.two, a', '…ne, layer.two, b']
    """
    texts = [_setting(value) for value in values]
    if max(map(len, texts)) <= limit:
        return texts
    present = [text for text, value in zip(texts, values, strict=True) if value is not ABSENT]
    shared = len(list(takewhile(lambda letters: len(set(letters)) == 1, zip(*present, strict=False))))
    start = max(0, shared - limit * 3 // 4) if len(present) > 1 else 0
    return [
        text
        if value is ABSENT or (len(text) <= limit and not start)
        else f"{'…' if start else ''}{text[start : start + limit]}{'…' if start + limit < len(text) else ''}"
        for text, value in zip(texts, values, strict=True)
    ]


def _setting(value: Any) -> str:
    if isinstance(value, str):
        return value or '""'
    if isinstance(value, list) and value and all(isinstance(v, str | int | float) for v in value):
        return ", ".join(v if isinstance(v, str) else json.dumps(strict(v)) for v in value)
    if isinstance(value, dict) and value:
        return ", ".join(f"{key}={_setting(inner)}" for key, inner in value.items())
    return "absent" if value is ABSENT else json.dumps(strict(value), ensure_ascii=False)


def parting_text(parting: Parting, tolerance: float) -> str:
    """Whether and where two runs part, in a sentence or two."""
    pair = f"{parting.first} and {parting.other}"
    shared = f"what both recorded ({count(len(parting.series), 'series', 'series')})"
    if parting.state == "no common step":
        return f"{pair} have no step in common, in {shared}: whether they part cannot be told."
    alike = f"within a relative {tolerance:g}" if tolerance else "bit for bit"
    left_out = sorted({key.name for key in parting.left_out})
    not_compared = f" Times and memory were not compared: {listed(left_out, 6)}." if left_out else ""
    if parting.state == "never":
        steps = count(parting.common_steps, "common step")
        return f"{pair} never part: {shared} is the same {alike} at all of their {steps}.{not_compared}"
    shown = [f"{key} ({_values(parting.series[key])})" for key in parting.parted[:3]]
    also = f" and {len(parting.parted) - 3:,} more" if len(parting.parted) > 3 else ""
    before = "which is the first that they have in common"
    if parting.steps_before:
        n = parting.steps_before
        before = f"the same {alike} at {'the one common step' if n == 1 else f'the {n:,} common steps'} before"
    return f"{pair} diverge at step {parting.step:,}, {before}: in {', '.join(shown)}{also}.{not_compared}"


def _values(parting: SeriesParting) -> str:
    first, other = (
        exact(value) if value is not None else status or "missing"
        for value, status in zip(parting.values, parting.status, strict=True)
    )
    if first == other and parting.values[0] is not None and parting.values[1] is not None:
        return f"{first}, {parting.values[1] - parting.values[0]:+.2g}"
    return f"{first}, {other}"


def exact(value: float) -> str:
    """
    >>> exact(0.123456789), exact(12.0), exact(1437.0)
    ('0.123457', '12', '1,437')
    """
    return f"{value:,.0f}" if value == round(value) and abs(value) < 1e9 else f"{value:.6g}"


def main_lines(comparison: Comparison) -> list[Line]:
    """The model's own series, losses and accuracies first."""
    own = [line for line in comparison.lines if line.key.kind == "model"]
    return sorted(own, key=lambda line: direction(line.key) is None)


def last_head(comparison: Comparison) -> Cells:
    first, *others = comparison.labels
    return ("series", *comparison.labels, *(f"{label} − {first}" for label in others), "diverge at step")


def last_rows(comparison: Comparison, lines: Sequence[Line]) -> list[Cells]:
    """The last value of each series in each run, with its step where the runs' steps differ."""
    rows: list[Cells] = []
    for line in lines:
        with_step = len({summary.last_step for summary in line.of.values()}) > 1
        cells = [_last(line.of.get(label), with_step) for label in comparison.labels]
        gaps = ["–" if gap is None else "0" if gap == 0 else f"{gap:+.3g}" for gap in line.differences.values()]
        steps = [line.parts_at.get(label, "no common step") for label in line.differences]
        parts = ["never" if step is None else f"{step:,}" if isinstance(step, int) else step for step in steps]
        rows.append((str(line.key), *cells, *gaps, ", ".join(parts)))
    return rows


def _last(summary: Summary | None, with_step: bool) -> str:
    if summary is None:
        return "absent"
    value = exact(summary.last) if summary.last is not None else summary.status or "missing"
    return f"{value} (step {summary.last_step:,})" if with_step else value


def best_rows(comparison: Comparison) -> list[Cells]:
    """The best value of each loss and accuracy, and its step."""
    rows: list[Cells] = []
    for line in main_lines(comparison):
        best_is = direction(line.key)
        if best_is is not None and len(line.of) > 1:
            runs = [line.of.get(label) for label in comparison.labels]
            cells = [f"{exact(r.best)} (step {r.best_step:,})" if r and r.best is not None else "–" for r in runs]
            rows.append((f"{line.key}, {best_is}", *cells))
    return rows


def weight_table(weights: Weights, label: str) -> tuple[Cells, list[Cells]]:
    """Head and rows: one for each layer, and one for the model. Where values are missing, a last column says why."""
    distance = weights.distances[label]
    parts = (*distance.layers, distance.whole)
    with_notes = any(part.status for part in parts)
    rows: list[Cells] = []
    for part in parts:
        numbers = [num(v) if v is not None else "–" for v in (part.distance, part.largest)]
        relative = percent(part.relative) if part.relative is not None else "–"
        changed = "–" if part.different is None or not part.entries else percent(part.different / part.entries)
        note = (part.status or "",) if with_notes else ()
        rows.append((part.layer, f"{part.entries:,}", numbers[0], relative, numbers[1], changed, *note))
    head = ("layer", "entries", "‖ΔW‖", "‖ΔW‖/‖W‖", "max|ΔW|", "entries that differ")
    return (*head, "note") if with_notes else head, rows


def weight_notes(weights: Weights) -> list[str]:
    """The steps of the weights, which parameters could not be compared, and which runs kept none."""
    notes = []
    if weights.distances:
        runs = [f"{label} at step {step:,}" for label, step in weights.steps.items()]
        differ = "" if len(set(weights.steps.values())) < 2 else ", which are not the same"
        notes.append(f"Weights of {listed(runs, 8)}{differ}; ΔW is a run's weights minus those of {weights.reference}.")
    for label, distance in weights.distances.items():
        for owner, names in ((weights.reference, distance.only_reference), (label, distance.only_other)):
            if names:
                notes.append(f"{count(len(names), 'parameter')} only in {owner}: {listed(names, 4)}.")
        if distance.other_shape:
            shapes = [f"{name} {list(old)} and {list(new)}" for name, old, new in distance.other_shape]
            notes.append(f"Other shapes in {label}: {listed(shapes, 4)}.")
        if distance.not_floating:
            notes.append(f"Not floating-point, so not compared: {listed(distance.not_floating, 4)}.")
    return notes + [f"The weights of {label} are not compared: {reason}." for label, reason in weights.missing.items()]
