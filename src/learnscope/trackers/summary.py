"""A tracker's state in a few numbers, as strict JSON holds them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np

from learnscope.model.adapters.parameters import NO_FAMILY
from learnscope.trackers.history import Floats, Look, Looks

NOTHING = "nothing has been measured: no step has been logged yet"
NO_NUMBER = "nothing could be measured at the steps that were logged"


def summarised(name: str, looks: Looks, adapters: Sequence[str], metrics: Iterable[str]) -> dict[str, Any]:
    """How much was logged, and each metric over the modules at the latest step that measured anything.

    `std` is the deviation of all modules from their mean (no correction: they are not a sample). Modules without a
    number are left out, and counted as `missing`.
    """
    measured = [look for look in looks.values() if any(adapter in look.blocks for adapter in adapters)]
    last = measured[-1] if measured else None
    families = {} if last is None else _families(last, adapters)
    kinds = list(dict.fromkeys(family for held in families.values() for family in held if family != NO_FAMILY))
    steps, cost = list(looks), sum(look.cost for look in looks.values())
    return {
        "tracker": name,
        "peft_type": ", ".join(kinds) or None,
        "adapters": families,
        "total_steps_logged": len(steps),
        "step_range": [steps[0], steps[-1]] if steps else None,
        "num_layers": sum(len(last.blocks[one].modules) for one in adapters if one in last.blocks) if last else None,
        "latest_step": last.step if last else None,
        "metrics": {metric: _over_modules(last, adapters, metric) for metric in metrics},
        "cost_seconds": {"total": cost if steps else None, "per_step": cost / len(steps) if steps else None},
        "failed_steps": {str(step): look.failed for step, look in looks.items() if look.failed},
        "note": None if measured else NO_NUMBER if looks else NOTHING,
    }


def _families(look: Look, adapters: Sequence[str]) -> dict[str, dict[str, int]]:
    """By adapter, how many modules are of each family."""
    found: dict[str, dict[str, int]] = {}
    for adapter in adapters:
        for family in look.blocks[adapter].families if adapter in look.blocks else ():
            held = found.setdefault(adapter, {})
            held[family] = held.get(family, 0) + 1
    return found


def _over_modules(look: Look | None, adapters: Sequence[str], metric: str) -> dict[str, float | int | None]:
    blocks = [] if look is None else [look.blocks[one] for one in adapters if one in look.blocks]
    rows = [block.numbers[metric] for block in blocks if metric in block.numbers]
    values: Floats = np.concatenate(rows) if rows else np.zeros(0)
    known = values[np.isfinite(values)]
    n = len(known)
    return {
        "mean": float(known.mean()) if n else None,
        "std": float(known.std()) if n else None,
        "min": float(known.min()) if n else None,
        "max": float(known.max()) if n else None,
        "n": n,
        "missing": sum(len(block.reasons.get(metric, {})) for block in blocks),
    }
