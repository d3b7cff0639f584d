"""The payload of a page about one run: verdict, findings, checks, curves, grids, examples, cost, environment."""

from __future__ import annotations

import math
import time
from collections.abc import Sequence
from typing import Any

import numpy as np

from learnscope.findings.checks import checks_of
from learnscope.quantities.outputs import Holdout, Loss
from learnscope.quantities.updates import LearningRate
from learnscope.reading.gather import OnePass, Series, grid, labels_of, one_pass, series
from learnscope.reading.held_out import held_out_loss
from learnscope.reading.other_numbers import is_accuracy
from learnscope.record import Finding
from learnscope.report.facts import costs, not_recorded, watched
from learnscope.report.page.adapters import adapters_body, has_adapters
from learnscope.report.page.audit import audit_body
from learnscope.report.page.catalogue import BROKEN, catalogue
from learnscope.report.page.curves import MAIN_POINTS, curve
from learnscope.report.page.examples import examples_of, step_examples
from learnscope.report.page.findings import check_entries, finding_entries
from learnscope.report.page.packing import Columns
from learnscope.report.page.panels import panels_of
from learnscope.report.page.verdict import verdict_of
from learnscope.report.spans import not_finite
from learnscope.store.backend import FolderBackend
from learnscope.store.reader import RunReader

VERSION = 1


def run_payload(columns: Columns, reader: RunReader, findings: Sequence[Finding], *, name: str) -> dict[str, Any]:
    """Everything that a page shows of one run; its numbers go into `columns`."""
    run = one_pass(reader)
    checks, recorded = checks_of(run), catalogue(run)
    panels = panels_of(columns, recorded)
    spans, broken = not_finite(run)
    examples = examples_of(columns, run)
    body: dict[str, Any] = {
        "version": VERSION, "kind": "training", "name": name, "written": time.time(),
        "verdict": verdict_of(run, findings, checks), "findings": finding_entries(findings, recorded),
        "checks": check_entries(checks), "main": main_panels(columns, run),
        "breaks": {"spans": [[a, None if math.isinf(b) else b] for a, b in spans], "what": broken},
        "panels": panels.curves, "grids": panels.grids, "flat": panels.flat, "once": panels.once,
        "left_out": panels.left_out, "layer_types": (run.manifest.get("model") or {}).get("layer_types") or {},
        "examples": examples, "step_examples": step_examples(run),
        "facts": watched(run), "costs": costs(run), "not_recorded": not_recorded(run), "open": _open_line(run),
        "problems": [*run.last_problems, *(examples or {}).get("problems", ())][:20],
    }  # fmt: skip
    if run.manifest.get("source") == "audit":
        return body | {"kind": "audit", "audit": audit_body(run)}
    if has_adapters(run):
        return body | {"kind": "adapters", "adapter": adapters_body(run)}
    return body


def main_panels(columns: Columns, run: OnePass) -> list[dict[str, Any]]:
    """Losses, accuracies and learning rates: the curves at the top of the page."""
    held_out, loss = held_out_loss(run), series(run, Loss.loss)
    apart = held_out.stand_in is not None and len(loss) > 0
    losses = {"training": loss} | ({} if apart else {held_out.name: held_out.series})
    note = {"note": held_out.note} if held_out.note and not apart else {}
    shown = [_panel(columns, "loss", "Loss", losses, scale="auto", **note)]
    if apart:
        shown.append(
            _panel(columns, "holdout", f"Holdout {held_out.stand_in}", {"holdout": held_out.series}, note=held_out.note)
        )
    shown.append(_panel(columns, "accuracy", "Accuracy", accuracies(run), scale="share"))
    rates = grid(run, LearningRate.learning_rate, kind="group")
    strip = {scope: rates.of(scope) for scope in rates.scopes[:12]}
    shown.append(_panel(columns, "rate", "Learning rate", strip, strip=True))
    return [panel for panel in shown if panel["curves"]]


def accuracies(run: OnePass) -> dict[str, Series]:
    """The accuracies that the loop logged, then the holdout's."""
    names = [
        name for label in labels_of(run, Loss) for name in run.columns().names(label, "model") if is_accuracy(name)
    ]
    shares = {name.replace("_", " "): series(run, Loss.named(name)) for name in dict.fromkeys(names)}
    shares["holdout"] = series(run, Holdout.holdout_accuracy)
    return {name: values for name, values in shares.items() if len(values.finite)}


def _panel(
    columns: Columns, name: str, title: str, curves: dict[str, Series], *, scale: str = "linear", **more: Any
) -> dict[str, Any]:
    shown = {label: values for label, values in curves.items() if len(values)}
    return {
        "id": f"main/{name}", "title": title, "scale": scale, "meaning": "", "prominent": True, **more,
        "curves": [{"name": label, **packed_series(columns, values, MAIN_POINTS)} for label, values in shown.items()],
    }  # fmt: skip


def packed_series(columns: Columns, values: Series, most: int) -> dict[str, Any]:
    """A series as a curve of the page."""
    numbers = np.where(np.isin(values.steps, values.broken), BROKEN, values.values)
    return curve(columns, values.steps, numbers, most)


def _open_line(run: RunReader) -> str:
    if isinstance(run.backend, FolderBackend):
        return f"import learnscope as ls; run = ls.open_run({str(run.backend.path)!r})"
    return "run = w.run  # of the `w` that ls.watch gave: this run was kept in memory"
