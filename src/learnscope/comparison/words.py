"""A comparison in words and cells, for a page and for a terminal alike."""

from __future__ import annotations

import json
from collections.abc import Sequence
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
    return [(one.key, *setting_cells(list(one.values.values()), limit)) for one in comparison.differences]


def setting_cells(values: Sequence[Any], limit: int) -> list[str]:
    """Long ones from where they differ.

    >>> setting_cells([0.1, None, ABSENT, "text"], 20)
    ['0.1', 'null', 'absent', 'text']
    >>> setting_cells([["layer.one", "layer.two", "a"], ["layer.one", "layer.two", "b"]], 20)
    ['…ne, layer.two, a', '…ne, layer.two, b']
    """
    texts = [_setting(value) for value in values]
    if max(map(len, texts)) <= limit:
        return texts
    told = [text for text, value in zip(texts, values, strict=True) if value is not ABSENT]
    shared = next(
        (n for n, letters in enumerate(zip(*told, strict=False)) if len(set(letters)) > 1), min(map(len, told))
    )
    start = max(0, shared - limit * 3 // 4) if len(told) > 1 else 0
    return [
        text if value is ABSENT or (len(text) <= limit and not start) else _cut(text, start, limit)
        for text, value in zip(texts, values, strict=True)
    ]


def _cut(text: str, start: int, limit: int) -> str:
    shown = text[start : start + limit]
    return f"{'…' if start else ''}{shown}{'…' if start + limit < len(text) else ''}"


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
    if parting.state == "no common step":
        return f"{pair} have no step in common, in {_of_both(parting)}: whether they part cannot be told."
    alike = f"within a relative {tolerance:g}" if tolerance else "bit for bit"
    if parting.state == "never":
        return (
            f"{pair} never part: {_of_both(parting)} is the same {alike} at all of their "
            f"{count(parting.common_steps, 'common step')}.{_aside(parting)}"
        )
    told = [f"{key} ({_values(parting.series[key])})" for key in parting.parted[:3]]
    more = len(parting.parted) - len(told)
    also = f" and {more:,} more" if more else ""
    before = "which is the first that they have in common"
    if parting.steps_before:
        n = parting.steps_before
        before = f"the same {alike} at {'the one common step' if n == 1 else f'the {n:,} common steps'} before"
    return f"{pair} part at step {parting.step:,}, {before}: in {', '.join(told)}{also}.{_aside(parting)}"


def _of_both(parting: Parting) -> str:
    n = len(parting.series)
    return f"what both recorded ({count(n, 'series', 'series')})"


def _aside(parting: Parting) -> str:
    left_out = sorted({key.name for key in parting.left_out})
    return f" Times and memory were not asked: {listed(left_out, 6)}." if left_out else ""


def _values(one: SeriesParting) -> str:
    first, other = (
        exact(value) if value is not None else status or "missing"
        for value, status in zip(one.values, one.status, strict=True)
    )
    if first == other and one.values[0] is not None and one.values[1] is not None:
        return f"{first}, {one.values[1] - one.values[0]:+.2g}"
    return f"{first}, {other}"


def exact(value: float) -> str:
    """
    >>> exact(0.123456789), exact(12.0), exact(1437.0)
    ('0.123457', '12', '1,437')
    """
    return f"{value:,.0f}" if value == round(value) and abs(value) < 1e9 else f"{value:.6g}"


def main_lines(comparison: Comparison) -> list[Line]:
    """The model's own series, those first whose better direction is known."""
    found = [line for line in comparison.lines if line.key.kind == "model"]
    return sorted(found, key=lambda line: direction(line.key.name) is None)


def last_head(comparison: Comparison) -> Cells:
    first, *others = comparison.labels
    return ("series", *comparison.labels, *(f"{label} − {first}" for label in others), "part at step")


def last_rows(comparison: Comparison, found: Sequence[Line]) -> list[Cells]:
    """The last value of each series in each run, with its step where the runs' steps differ."""
    rows: list[Cells] = []
    for line in found:
        ends = {one.last_step for one in line.of.values()}
        cells = [_last(line.of.get(label), len(ends) > 1) for label in comparison.labels]
        gaps = ["–" if gap is None else "0" if gap == 0 else f"{gap:+.3g}" for gap in line.differences.values()]
        rows.append((str(line.key), *cells, *gaps, _parts_at(line)))
    return rows


def _last(one: Summary | None, with_step: bool) -> str:
    if one is None:
        return "absent"
    value = exact(one.last) if one.last is not None else one.status or "missing"
    return f"{value} (step {one.last_step:,})" if with_step else value


def _parts_at(line: Line) -> str:
    told = []
    for label in line.differences:
        if label not in line.parts_at:
            told.append("no common step")
        else:
            step = line.parts_at[label]
            told.append("never" if step is None else f"{step:,}")
    return ", ".join(told)


def best_rows(comparison: Comparison) -> list[Cells]:
    """The best value of each series whose name tells which is better, and its step."""
    rows: list[Cells] = []
    for line in main_lines(comparison):
        wanted = direction(line.key.name)
        if wanted is None or len(line.of) < 2:
            continue
        found = [line.of.get(label) for label in comparison.labels]
        cells = [
            f"{exact(one.best)} (step {one.best_step:,})" if one is not None and one.best is not None else "–"
            for one in found
        ]
        rows.append((f"{line.key}, {wanted}", *cells))
    return rows


def weight_table(weights: Weights, label: str) -> tuple[Cells, list[Cells]]:
    """Head and rows: one for each layer, and one for the model. A last column says what could not be told and why."""
    found = weights.distances[label]
    noted = any(one.status for one in (*found.layers, found.whole))
    rows: list[Cells] = []
    for one in (*found.layers, found.whole):
        numbers = [num(v) if v is not None else "–" for v in (one.distance, one.largest)]
        relative = percent(one.relative) if one.relative is not None else "–"
        changed = "–" if one.different is None or not one.entries else percent(one.different / one.entries)
        note = (one.status or "",) if noted else ()
        rows.append((one.layer, f"{one.entries:,}", numbers[0], relative, numbers[1], changed, *note))
    head = ("layer", "entries", "‖ΔW‖", "‖ΔW‖/‖W‖", "max|ΔW|", "entries that differ")
    return (*head, "note") if noted else head, rows


def weight_notes(weights: Weights) -> list[str]:
    """Of which steps the weights are, which of them could not be compared, and which runs kept none."""
    notes = []
    if weights.distances:
        told = [f"{label} at step {step:,}" for label, step in weights.steps.items()]
        moved = "" if len(set(weights.steps.values())) < 2 else ", which are not the same"
        notes.append(f"Weights of {listed(told, 8)}{moved}; ΔW is a run's weights minus those of {weights.reference}.")
    for label, found in weights.distances.items():
        sides = ((weights.reference, found.only_reference), (label, found.only_other))
        for owner, names in sides:
            if names:
                notes.append(f"{count(len(names), 'parameter')} only in {owner}: {listed(names, 4)}.")
        if found.other_shape:
            shapes = [f"{name} {list(old)} and {list(new)}" for name, old, new in found.other_shape]
            notes.append(f"Other shapes in {label}: {listed(shapes, 4)}.")
        if found.not_floating:
            notes.append(f"Not floating-point, so not compared: {listed(found.not_floating, 4)}.")
    notes += [f"The weights of {label} are not compared: {why}." for label, why in weights.missing.items()]
    return notes
