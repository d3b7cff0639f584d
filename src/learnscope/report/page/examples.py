"""Training examples on a page: the hardest, the most forgotten, those whose label is doubted, and a map of all."""

from __future__ import annotations

from typing import Any

import numpy as np

from learnscope.findings.examples.noise_estimate import suspicious
from learnscope.ledger.ledger import ledger_of
from learnscope.reading.lost import rows_by_step
from learnscope.report.page.packing import Columns
from learnscope.store.reader import RunReader

SHOWN, POINTS = 25, 4000
"""Rows of each table; points of the map, every k-th of more."""
IDS = 64
"""Ids of one step that a page lists."""


def examples_of(columns: Columns, reader: RunReader) -> dict[str, Any] | None:
    """None if no examples were followed."""
    ledger = ledger_of(reader.backend)
    frame = None if ledger is None else ledger.frame()
    if frame is None or not len(frame):
        return None
    scored = frame[np.isfinite(frame["confidence"].to_numpy(np.float64))]
    forgotten = frame[frame["forgetting_events"] > 0].sort_values("forgetting_events", ascending=False, kind="stable")
    doubted = suspicious(frame) if "target" in frame else frame[:0]
    every = max(1, -(-len(scored) // POINTS))
    dots = scored.iloc[::every]
    return {
        "n": len(frame), "every": every,
        "hardest": _rows(scored.sort_values("confidence", kind="stable")),
        "forgotten": _rows(forgotten), "n_forgotten": len(forgotten),
        "doubted": _rows(doubted) if doubted.attrs else [], "doubt": dict(doubted.attrs),
        "map": {
            "ids": [str(each)[:80] for each in dots["id"].tolist()], "confidence": columns.floats(dots["confidence"]),
            "variability": columns.floats(dots["variability"]), "correctness": columns.floats(dots["correctness"]),
        },
    }  # fmt: skip


def _rows(frame: Any) -> list[dict[str, Any]]:
    names = (
        "id",
        "target",
        "confidence",
        "variability",
        "correctness",
        "forgetting_events",
        "el2n_mean",
        "presentations",
    )
    kept = [name for name in names if name in frame]
    rows = frame[kept].head(SHOWN).astype(object).where(frame[kept].head(SHOWN).notna(), None).to_dict("records")
    return [{name: _plain(value) for name, value in row.items()} for row in rows]


def _plain(value: Any) -> Any:
    if isinstance(value, float | np.floating):
        return float(f"{float(value):.5g}") if np.isfinite(value) else None
    return int(value) if isinstance(value, np.integer) else value


def step_examples(reader: RunReader) -> dict[str, Any]:
    """The ids behind the steps at which something happened, as far as the loop gave them."""
    return {
        str(step): {"ids": [str(each)[:80] for each in rows[:IDS]], "more": max(0, len(rows) - IDS)}
        for step, rows in list(rows_by_step(reader).items())[:500]
    }
