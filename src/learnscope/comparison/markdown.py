"""A comparison as a folder: compare.md, compare.json and the figures."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from learnscope.comparison import words
from learnscope.comparison.audit_page import audit_text, ranking_text
from learnscope.comparison.figures import AUDITS, RANKING, write_figures
from learnscope.reading.words import count
from learnscope.report.markdown import escape, table
from learnscope.store.files import write_json, write_text

if TYPE_CHECKING:
    from learnscope.comparison.compared import Comparison

CELL = 80
"""Most characters of a setting on the page; compare.json has all of them."""


def write_comparison(comparison: Comparison, folder: Path) -> Path:
    """Write everything and remove figures of an earlier comparison that are not made now; the path of compare.md."""
    try:  # only figures that an earlier comparison lists are removed
        before = json.loads((folder / "compare.json").read_text(encoding="utf-8")).get("figures", [])
    except (OSError, ValueError, AttributeError):
        before = []
    figures = write_figures(comparison, folder)
    path = folder / "compare.md"
    write_text(path, _text(comparison, figures))
    names = [figure.name for figure in figures]
    write_json(folder / "compare.json", {**comparison.to_json(), "figures": names})
    for name in before:
        if isinstance(name, str) and name == Path(name).name and name.endswith(".png") and name not in names:
            (folder / name).unlink(missing_ok=True)
    return path


def _text(comparison: Comparison, figures: Sequence[Path]) -> str:
    labels = [escape(label) for label in comparison.labels]
    parts = [f"# {', '.join(labels[:-1])} and {labels[-1]} compared"]
    parts += [escape(words.parting_text(parting, comparison.tolerance)) for parting in comparison.partings]
    if comparison.notes:
        parts += ["\n".join(f"- {escape(note)}" for note in comparison.notes)]
    parts += ["## Runs", table(("run", "steps", "source", "status", "folder"), words.run_rows(comparison))]
    settings = words.setting_rows(comparison, CELL)
    same = "None: probes, model, optimizers, configuration, versions and code are the same."
    parts += ["## Settings that differ", table(("setting", *labels), settings) if settings else same]
    parts += ["## Last values", *_values(comparison, labels)]
    if comparison.audits:
        parts += ["## Models side by side", *ranking_text(comparison), *audit_text(comparison.audits)]
        parts += [_image(figure) for figure in figures if figure.name == RANKING]
        parts += [_image(figure) for figure in figures if figure.name == AUDITS]
    curves = [figure for figure in figures if figure.name not in ("weights.png", AUDITS, RANKING)]
    if curves:
        parts += [
            "## Curves",
            "Of the model as a whole. The first run lies broad below the others; a dotted line is where a run parts "
            "from it.",
            *(_image(figure) for figure in curves),
        ]
    parts += ["## Weights", *(escape(note) for note in words.weight_notes(comparison.weights))]
    parts += [_image(figure) for figure in figures if figure.name == "weights.png"]
    for label in comparison.weights.distances:
        head, rows = words.weight_table(comparison.weights, label)
        title = f"### {escape(label)} from {escape(str(comparison.weights.reference))}"
        parts += [title, table([escape(cell) for cell in head], rows)]
    return "\n\n".join(parts) + "\n"


def _values(comparison: Comparison, labels: Sequence[str]) -> list[str]:
    rows = words.last_rows(comparison, words.main_lines(comparison))
    if not rows:
        return ["No run recorded a number of the model as a whole."]
    parts = [table([escape(cell) for cell in words.last_head(comparison)], rows)]
    others = sum(line.key.kind != "model" for line in comparison.lines)
    if others:
        parts += [f"And {count(others, 'series', 'series')} of layers, groups and tensors, in compare.json."]
    best = words.best_rows(comparison)
    if best:
        parts += ["### Best values", table(("series", *labels), best)]
    return parts


def _image(figure: Path) -> str:
    return f"![{figure.stem.removeprefix('curves-')}]({figure.name})"
