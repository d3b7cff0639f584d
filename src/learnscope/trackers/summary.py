"""A tracker's history in a few numbers, as strict JSON holds them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np

from learnscope.model.adapters.parameters import NO_FAMILY
from learnscope.trackers.history import Cell, History

NOTHING = "nothing has been measured: no step has been logged yet"
NO_NUMBER = "nothing could be measured at the steps that were logged"


def summarised(name: str, history: History, adapters: Sequence[str], metrics: Iterable[str]) -> dict[str, Any]:
    """How much was logged, and each metric over the modules at the latest step that measured anything."""
    steps = history.steps
    last = next((step for step in reversed(steps) if any(history.cells(step, a) for a in adapters)), None)
    present = {} if last is None else {adapter: history.present(last, adapter) for adapter in adapters}
    families = {adapter: dict(Counter(modules.values())) for adapter, modules in present.items() if modules}
    kinds = dict.fromkeys(family for counts in families.values() for family in counts if family != NO_FAMILY)
    cost = sum(history.cost(step) for step in steps)
    return {
        "tracker": name,
        "peft_type": ", ".join(kinds) or None,
        "adapters": families,
        "total_steps_logged": len(steps),
        "step_range": [steps[0], steps[-1]] if steps else None,
        "num_layers": None if last is None else sum(sum(counts.values()) for counts in families.values()),
        "latest_step": last,
        "metrics": {metric: _over_modules(history, last, adapters, metric) for metric in metrics},
        "cost_seconds": {"total": cost if steps else None, "per_step": cost / len(steps) if steps else None},
        "failed_steps": {str(step): error for step in steps if (error := history.failed(step)) is not None},
        "note": None if last is not None else NO_NUMBER if steps else NOTHING,
    }


def _over_modules(
    history: History, step: int | None, adapters: Sequence[str], metric: str
) -> dict[str, float | int | None]:
    """Statistics of the modules' numbers; modules without one are left out, and counted as `missing`.

    `std` is the deviation of all modules from their mean (no correction: they are not a sample).
    """
    cells: list[Cell] = []
    for adapter in adapters:
        column = {} if step is None else history.cells(step, adapter).get(metric, {})
        cells += [column[module] for module in history.families[adapter] if module in column]
    values = np.array([cell for cell in cells if isinstance(cell, float | int)], dtype=np.float64)
    n = len(values)
    return {
        "mean": float(values.mean()) if n else None,
        "std": float(values.std()) if n else None,
        "min": float(values.min()) if n else None,
        "max": float(values.max()) if n else None,
        "n": n,
        "missing": len(cells) - n,
    }
