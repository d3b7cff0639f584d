"""The examples to look at first: the hardest, the most forgotten, and those whose label is doubted."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd

from learnscope.findings.examples.noise_estimate import suspicious
from learnscope.ledger.looks import Look
from learnscope.ledger.show import ShowExamples
from learnscope.ledger.shown import put_shown
from learnscope.ledger.stored import stored_frame
from learnscope.store.backend import Backend

LISTED = 25
"""Examples of each kind that a page lists, and that are kept to be seen."""


@dataclass(frozen=True)
class Notable:
    """Rows of the ledger's table, the first `LISTED` of each kind."""

    hardest: pd.DataFrame
    forgotten: pd.DataFrame
    n_forgotten: int
    doubted: pd.DataFrame
    """With the estimate of how many labels are wrong in its `attrs`; empty if there is no sign of any."""

    def targets(self) -> dict[int, int | None]:
        """The ids of all of them, with the label that each was trained with."""
        found: dict[int, int | None] = {}
        for frame in (self.hardest, self.forgotten, self.doubted):
            labels = frame["target"].tolist() if "target" in frame else [None] * len(frame)
            for id, label in zip(frame["id"].tolist(), labels, strict=True):
                found[int(id)] = None if label is None or pd.isna(label) else int(label)
        return found


def notable(frame: pd.DataFrame) -> Notable:
    """Of the table of all examples."""
    scored = frame[np.isfinite(frame["confidence"].to_numpy(np.float64))]
    forgotten = most_forgotten(frame)
    doubted = suspicious(frame) if "target" in frame else frame[:0]
    return Notable(
        scored.sort_values("confidence", kind="stable").head(LISTED), forgotten.head(LISTED), len(forgotten),
        doubted.head(LISTED if doubted.attrs else 0),
    )  # fmt: skip


def most_forgotten(frame: pd.DataFrame) -> pd.DataFrame:
    """Examples that were right at one presentation and wrong at the next, the most often forgotten first."""
    return frame[frame["forgetting_events"] > 0].sort_values("forgetting_events", ascending=False, kind="stable")


def show_notable(
    backend: Backend, show: ShowExamples, view: Callable[[Any], Any] | None = None
) -> dict[int, Look] | None:
    """Read the notable examples of a run and keep how they look; None if it follows no examples.

    The caller holds the random generators: a data set that augments draws.
    """
    frame = stored_frame(backend)
    if frame is None or not len(frame):
        return None
    looks = dict(show.looks(notable(frame).targets(), view))
    put_shown(backend, looks)
    return looks
