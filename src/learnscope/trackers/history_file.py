"""A history as plain tensors, lists and names, the way it stands in a tracker's file, and back.

```
{"steps": [100, 200], "costs": [0.02, 0.02], "failed": [None, None], "texts": ["the update is zero"],
 "adapters": {"default": {
     "modules": ["model.layers.0.self_attn.q_proj", …], "families": ["lora", …], "whole_numbers": ["rank"],
     "numbers": {"effective_rank": float64 [modules, steps], …},          NaN where there is none
     "lists": {"singular_values": {module: float64 [steps, longest]}},    NaN beyond the end of a list
     "reasons": {"effective_rank": int32 [modules, steps]}}}}             place in texts, −1 where there is a number
```
"""

from __future__ import annotations

from itertools import chain
from typing import Any

import numpy as np
import torch
from torch import Tensor

from learnscope.reading.gather import Floats
from learnscope.trackers.history import AdapterHistory, Firing, History

NONE = -1


def packed(history: History) -> dict[str, Any]:
    """All of it as what `torch.load(weights_only=True)` reads."""
    texts: dict[str, int] = {}
    steps = history.steps
    adapters = {adapter: _pack(history.adapters[adapter], steps, texts) for adapter in history.modules}
    return {
        "steps": steps,
        "costs": [history.cost(step) for step in steps],
        "failed": [history.failed(step) for step in steps],
        "texts": list(texts),
        "adapters": adapters,
    }


def _pack(held: AdapterHistory, steps: list[int], texts: dict[str, int]) -> dict[str, Any]:
    shape, columns = (len(held.rows), len(steps)), {step: column for column, step in enumerate(steps)}
    numbers: dict[str, Tensor] = {}
    for metric, by_step in held.numbers.items():
        table = np.full(shape, np.nan)
        for step, values in by_step.items():
            table[: len(values), columns[step]] = values
        numbers[metric] = torch.from_numpy(table)
    reasons = {metric: torch.full(shape, NONE, dtype=torch.int32) for metric in held.reasons}
    for step, column in columns.items():
        for metric, by_step_why in held.reasons.items():
            for module, why in by_step_why.get(step, {}).items():
                reasons[metric][held.rows[module], column] = texts.setdefault(why, len(texts))
    return {
        "modules": list(held.rows),
        "families": list(held.families),
        "whole_numbers": [metric for metric in numbers if metric not in held.fractions],
        "numbers": numbers,
        "lists": {metric: _padded(by_step, columns) for metric, by_step in held.lists.items()},
        "reasons": reasons,
    }


def _padded(by_step: dict[int, dict[str, Floats]], columns: dict[int, int]) -> dict[str, Tensor]:
    """By module, a row a step, as long as its longest list."""
    longest: dict[str, int] = {}
    for lists in by_step.values():
        for module, values in lists.items():
            longest[module] = max(longest.get(module, 0), len(values))
    tables = {module: torch.full((len(columns), n), torch.nan, dtype=torch.float64) for module, n in longest.items()}
    for step, lists in by_step.items():
        for module, values in lists.items():
            tables[module][columns[step], : len(values)] = torch.from_numpy(np.ascontiguousarray(values))
    return tables


def unpacked(body: dict[str, Any]) -> History:
    """The history again. What does not fit together raises one of the usual errors, which says that it is damaged."""
    steps, texts = body["steps"], body["texts"]
    if not all(isinstance(step, int) for step in steps) or not all(isinstance(text, str) for text in texts):
        raise TypeError("steps are whole numbers and reasons are texts")
    history = History()
    for step, cost, failed in zip(steps, body["costs"], body["failed"], strict=True):
        history.firings[step] = {"": Firing(float(cost), failed)}
    for adapter, held in body["adapters"].items():
        shape = (len(held["modules"]), len(steps))
        for metric, table in [*held["numbers"].items(), *held["reasons"].items()]:
            if tuple(table.shape) != shape:
                raise ValueError(f"{metric} is {tuple(table.shape)}, not {shape}")
        found = history.adapters[str(adapter)] = _unpack(held, steps, texts)
        for step in {*chain(*found.numbers.values()), *chain(*found.reasons.values())}:
            history.firings[step][""].adapters.append(str(adapter))
    return history


def _unpack(held: dict[str, Any], steps: list[int], texts: list[str]) -> AdapterHistory:
    families = {str(module): str(of) for module, of in zip(held["modules"], held["families"], strict=True)}
    found = AdapterHistory({module: row for row, module in enumerate(families)}, list(families.values()))
    found.fractions = set(held["numbers"]) - set(held["whole_numbers"])
    for metric, table in held["numbers"].items():
        columns = zip(steps, table.double().numpy().T.copy(), strict=True)
        found.numbers[metric] = {step: column for step, column in columns if not np.isnan(column).all()}
    for metric, tables in held["lists"].items():
        by_step = found.lists.setdefault(metric, {})
        for module, table in tables.items():
            for step, row in zip(steps, table.double().numpy(), strict=True):
                if not np.isnan(row).all():
                    by_step.setdefault(step, {})[module] = row[~np.isnan(row)]
    modules = list(families)
    for metric, codes in held["reasons"].items():
        by_step_why = found.reasons.setdefault(metric, {})
        for row, column in (codes != NONE).nonzero().tolist():
            by_step_why.setdefault(steps[column], {})[modules[row]] = texts[codes[row, column].item()]
    return found
