"""A tracker's state in a few numbers, as strict JSON holds them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np

from learnscope.model.adapters.parameters import NO_FAMILY
from learnscope.reading.gather import Floats
from learnscope.trackers.history import History

NOTHING = "nothing has been measured: no step has been logged yet"
NO_NUMBER = "nothing could be measured at the steps that were logged"


def summarised(name: str, history: History, adapters: Sequence[str], metrics: Iterable[str]) -> dict[str, Any]:
    """How much was logged, and each metric over the modules at the latest step that measured anything.

    `std` is the deviation of all modules from their mean (no correction: they are not a sample). Modules without a
    number are left out, and counted as `missing`.
    """
    steps = history.steps
    last = next((s for s in reversed(steps) if any(history.measured(s, adapter) for adapter in adapters)), None)
    families = {} if last is None else _families(history, last, adapters)
    kinds = list(dict.fromkeys(family for held in families.values() for family in held if family != NO_FAMILY))
    cost = sum(history.cost(step) for step in steps)
    return {
        "tracker": name,
        "peft_type": ", ".join(kinds) or None,
        "adapters": families,
        "total_steps_logged": len(steps),
        "step_range": [steps[0], steps[-1]] if steps else None,
        "num_layers": None if last is None else sum(sum(held.values()) for held in families.values()),
        "latest_step": last,
        "metrics": {metric: _over_modules(history, last, adapters, metric) for metric in metrics},
        "cost_seconds": {"total": cost if steps else None, "per_step": cost / len(steps) if steps else None},
        "failed_steps": {str(step): why for step in steps if (why := history.failed(step)) is not None},
        "note": None if last is not None else NO_NUMBER if steps else NOTHING,
    }


def _families(history: History, step: int, adapters: Sequence[str]) -> dict[str, dict[str, int]]:
    """By adapter, how many modules are of each family."""
    counts: dict[str, dict[str, int]] = {}
    for adapter in adapters:
        held = history.adapters[adapter]
        for module in held.there(step):
            of, family = counts.setdefault(adapter, {}), held.families[held.rows[module]]
            of[family] = of.get(family, 0) + 1
    return counts


def _over_modules(
    history: History, step: int | None, adapters: Sequence[str], metric: str
) -> dict[str, float | int | None]:
    held, at = [history.adapters[adapter] for adapter in adapters], -1 if step is None else step
    rows = [one.numbers[metric][at] for one in held if at in one.numbers.get(metric, ())]
    values: Floats = np.concatenate(rows) if rows else np.zeros(0)
    known = values[np.isfinite(values)]
    n = len(known)
    return {
        "mean": float(known.mean()) if n else None,
        "std": float(known.std()) if n else None,
        "min": float(known.min()) if n else None,
        "max": float(known.max()) if n else None,
        "n": n,
        "missing": sum(len(one.reasons.get(metric, {}).get(at, {})) for one in held),
    }
