"""The payload of a page about several runs: a table of them, and their losses over each other."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from typing import Any

from learnscope.findings.checks import checks_of
from learnscope.quantities.outputs import Loss
from learnscope.reading.gather import OnePass, Series, one_pass, series
from learnscope.reading.held_out import held_out_loss
from learnscope.record import Finding
from learnscope.report.page.curves import CURVE_POINTS, MAIN_POINTS, spark
from learnscope.report.page.packing import Columns
from learnscope.report.page.training import VERSION, accuracies, packed_series
from learnscope.report.page.verdict import verdict_of
from learnscope.store.backend import FolderBackend
from learnscope.store.reader import RunReader

DRAWN = 24
"""Runs whose curves are drawn; the table has all of them."""


def runs_payload(
    columns: Columns, runs: Mapping[str, tuple[RunReader, Sequence[Finding]]], *, name: str,
    broken: Mapping[str, str],
) -> dict[str, Any]:  # fmt: skip
    """A row for each run, and the curves that most runs have."""
    opened = {label: (one_pass(reader), findings) for label, (reader, findings) in runs.items()}
    rows = [row_of(label, run, findings) for label, (run, findings) in opened.items()]
    return {
        "version": VERSION, "kind": "runs", "name": name, "written": time.time(), "runs": rows,
        "broken": [{"name": label, "why": why} for label, why in broken.items()],
        "panels": overlaid(columns, {label: run for label, (run, _) in opened.items()}),
        "left_out": list(opened)[DRAWN:],
    }  # fmt: skip


def row_of(label: str, run: OnePass, findings: Sequence[Finding]) -> dict[str, Any]:
    """A run in the table: its verdict, and what it is."""
    verdict = verdict_of(run, findings, checks_of(run))
    loss = series(run, Loss.loss)
    return {
        "name": label, **verdict, "model": str((run.manifest.get("model") or {}).get("class") or ""),
        "source": str(run.manifest.get("source") or ""), "created": run.manifest.get("created"),
        "spark": spark(loss.steps, loss.values),
        "path": str(run.backend.path) if isinstance(run.backend, FolderBackend) else None,
        "findings": [{"severity": each.severity, "title": each.title} for each in findings[:8]],
    }  # fmt: skip


def overlaid(columns: Columns, runs: Mapping[str, OnePass]) -> list[dict[str, Any]]:
    """One panel for each of loss, holdout loss and accuracies, with a curve a run."""
    curves: dict[str, dict[str, Series]] = {"Training loss": {}, "Holdout loss": {}}
    shown = dict(list(runs.items())[:DRAWN])
    for label, run in shown.items():
        curves["Training loss"][label] = series(run, Loss.loss)
        curves["Holdout loss"][label] = held_out_loss(run).series
        for name, values in accuracies(run).items():
            curves.setdefault(f"Accuracy: {name}", {})[label] = values
    most = MAIN_POINTS // 4 if len(shown) <= 4 else CURVE_POINTS // 2
    places = {label: place for place, label in enumerate(shown)}
    return [
        {
            "id": f"runs/{title}", "title": title, "scale": "share" if title.startswith("Accuracy") else "auto",
            "meaning": "", "prominent": True, "family": "outputs",
            "curves": [
                {"name": label, "place": places[label], **packed_series(columns, values, most)}
                for label, values in by_run.items() if len(values)
            ],
        }
        for title, by_run in curves.items() if any(len(values) for values in by_run.values())
    ]  # fmt: skip
