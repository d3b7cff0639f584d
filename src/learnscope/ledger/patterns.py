"""Hard, easy and medium examples, by stated thresholds; no torch."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from learnscope.ledger.table import derived

FENCE = 1.5
"""Difficulty is an outlier above the third quartile plus this many interquartile ranges (Tukey's fence)."""
EARLY = 0.25
"""Share of an example's presentations that counts as early."""


def patterns(arrays: Mapping[str, NDArray[Any]]) -> dict[str, Any]:
    """The ids of hard, easy and medium examples, and how much was forgotten, from a ledger's `arrays()`.

    Difficulty is 1 − mean p(gold). Hard: difficulty above Q3 + 1.5·IQR of all examples (`hard_cut`), or never correct.
    Easy: first correct within the first quarter of its presentations (or at the first), and never forgotten. Medium:
    the rest. Hard examples come hardest first, easy ones easiest first. An example whose probabilities were never
    finite has no difficulty: it is hard if it was never correct, otherwise medium.
    """
    ids, columns = arrays["id"], derived(arrays)
    shown = arrays["presentations"] > 0
    difficulty = 1 - arrays["confidence"]
    measured = np.isfinite(difficulty)
    cut = None
    if measured.any():
        low, high = np.quantile(difficulty[measured], (0.25, 0.75))
        cut = float(high + FENCE * (high - low))
    never, unforgettable = columns["never_learned"] & shown, columns["unforgettable"]
    hard = never | (measured & (difficulty > (np.inf if cut is None else cut)))
    early = arrays["first_correct"] <= np.maximum(1, EARLY * arrays["presentations"])
    easy = ~hard & unforgettable & early
    hardest = np.where(measured, difficulty, np.inf)
    events, learned = arrays["forgetting_events"], columns["never_learned"] ^ shown
    return {
        "hard_examples": _ids(ids, hard, -hardest),
        "easy_examples": _ids(ids, easy, hardest),
        "medium_examples": _ids(ids, ~hard & ~easy & shown, -hardest),
        "never_learned_examples": _ids(ids, never, -hardest),
        "unforgettable_examples": _ids(ids, unforgettable, hardest),
        "hard_cut": cut,
        "total_examples": int(shown.sum()),
        "forgetting_statistics": {
            "examples_with_forgetting": int((events > 0).sum()),
            "total_forgetting_events": int(events.sum(dtype=np.int64)),
            "max_forgetting_events": int(events.max(initial=0)),
            "mean_forgetting_events": float(events[learned].mean()) if learned.any() else None,
            "never_learned": int(never.sum()),
            "unforgettable": int(unforgettable.sum()),
        },
        "mean_difficulty": float(difficulty[measured].mean()) if measured.any() else None,
    }


class NotKnown(list[int]):
    """No examples, since nothing is known of them: empty, with the reason."""

    def __init__(self, reason: str) -> None:
        super().__init__()
        self.reason = reason

    def __repr__(self) -> str:
        return f"<not known: {self.reason}>"


def unknown_patterns(arrays: Mapping[str, NDArray[Any]], reason: str) -> dict[str, Any]:
    """What `patterns` gives of no examples, with None for every number, and the reason under `reason`."""
    told: dict[str, Any] = {"reason": reason}
    for key, value in patterns(arrays).items():
        counts = dict.fromkeys(value) if isinstance(value, dict) else None
        told[key] = NotKnown(reason) if isinstance(value, list) else counts
    return told


def _ids(ids: NDArray[Any], chosen: NDArray[np.bool_], order: NDArray[np.float64]) -> list[int]:
    """The chosen ids, sorted by `order`, ties by id."""
    positions = np.flatnonzero(chosen)
    ordered: list[int] = ids[positions[np.lexsort((ids[positions], order[positions]))]].tolist()
    return ordered
