"""Training examples on a page: the hardest, the most forgotten, those whose label is doubted, and a map of all."""

from __future__ import annotations

from typing import Any

import numpy as np

from learnscope.findings.examples.notable import notable
from learnscope.ledger.looks import Look
from learnscope.ledger.shown import shown_of
from learnscope.ledger.stored import stored_frame
from learnscope.reading.lost import rows_by_step
from learnscope.report.page.packing import Columns
from learnscope.store.reader import RunReader

POINTS = 4000
"""Of the map, every k-th of more."""
IDS = 64
"""Ids of one step that a page lists."""


def examples_of(columns: Columns, reader: RunReader) -> dict[str, Any] | None:
    """None if no examples were followed."""
    frame = stored_frame(reader.backend)
    if frame is None or not len(frame):
        return None
    scored = frame[np.isfinite(frame["confidence"].to_numpy(np.float64))]
    first = notable(frame)
    tables = {"hardest": first.hardest, "forgotten": first.forgotten, "doubted": first.doubted}
    looks, problems = shown_of(reader.backend)
    looks = {id: looks[id] for id in first.targets() if id in looks}
    places = {id: place for place, id in enumerate(looks)}
    every = max(1, -(-len(scored) // POINTS))
    dots = scored.iloc[::every]
    return {
        "n": len(frame), "every": every,
        **{name: _rows(rows) for name, rows in tables.items()},
        "n_forgotten": first.n_forgotten, "doubt": dict(first.doubted.attrs), "problems": problems,
        "looks": [_look(columns, look) for look in looks.values()],
        "look_of": {name: [places.get(id) for id in rows["id"].tolist()] for name, rows in tables.items()},
        "map": {
            "ids": [str(each)[:80] for each in dots["id"].tolist()], "confidence": columns.floats(dots["confidence"]),
            "variability": columns.floats(dots["variability"]), "correctness": columns.floats(dots["correctness"]),
        },
    }  # fmt: skip


def _rows(frame: Any) -> list[dict[str, Any]]:
    names = (
        "id",
        "target",
        "suggested",
        "confidence",
        "variability",
        "correctness",
        "forgetting_events",
        "el2n_mean",
        "presentations",
    )
    kept = [name for name in names if name in frame]
    rows = frame[kept].astype(object).where(frame[kept].notna(), None).to_dict("records")
    return [{name: _plain(value) for name, value in row.items()} for row in rows]


def _look(columns: Columns, look: Look) -> dict[str, Any]:
    """How an example looks; a pixel is one number, red · 65536 + green · 256 + blue."""
    shown = {name: text for name in ("text", "reason", "note") if (text := getattr(look, name))}
    if look.image is None:
        return {"text": look.text, **shown} if look.text is not None else shown
    height, width, _ = look.image.shape
    pixels = look.image.astype(np.int64) @ np.array([65536, 256, 1])
    return {**shown, "height": height, "width": width, "pixels": columns.steps(pixels.ravel())}


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
