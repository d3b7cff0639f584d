"""A history as plain tensors, lists and names, as a tracker's file holds it, and back.

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

from typing import Any

import numpy as np
import torch
from torch.nn.utils.rnn import pad_sequence

from learnscope.trackers.history import LISTS, Cell, History, Measurement

NONE = -1


def packed(history: History) -> dict[str, Any]:
    """All of it as what `torch.load(weights_only=True)` reads."""
    texts: dict[str, int] = {}
    steps = history.steps
    adapters = {adapter: _pack(history, adapter, texts) for adapter in history.families}
    return {
        "steps": steps,
        "costs": [history.cost(step) for step in steps],
        "failed": [history.failed(step) for step in steps],
        "texts": list(texts),
        "adapters": adapters,
    }


def _pack(history: History, adapter: str, texts: dict[str, int]) -> dict[str, Any]:
    families, whole, numbers, lists, reasons = history.families[adapter], list[str](), {}, {}, {}
    for metric in history.metrics(adapter):
        columns = [history.cells(step, adapter).get(metric, {}) for step in history.steps]
        rows = {module: [column.get(module) for column in columns] for module in families}
        cells = [cell for row in rows.values() for cell in row]
        if metric in LISTS:
            arrays = {module: [_array(cell) for cell in row] for module, row in rows.items()}
            lists[metric] = {
                module: pad_sequence([torch.from_numpy(array) for array in row], True, torch.nan)
                for module, row in arrays.items()
                if any(map(len, row))
            }
        else:
            values = [cell if isinstance(cell, float | int) else np.nan for cell in cells]
            numbers[metric] = torch.tensor(values, dtype=torch.float64).reshape(len(rows), -1)
            whole += [] if any(isinstance(cell, float) for cell in cells) else [metric]
        if any(isinstance(cell, str) for cell in cells):
            codes = [texts.setdefault(cell, len(texts)) if isinstance(cell, str) else NONE for cell in cells]
            reasons[metric] = torch.tensor(codes, dtype=torch.int32).reshape(len(rows), -1)
    return {
        "modules": list(families),
        "families": list(families.values()),
        "whole_numbers": whole,
        "numbers": numbers,
        "lists": lists,
        "reasons": reasons,
    }


def _array(cell: Cell | None) -> Any:
    return np.ascontiguousarray(cell) if isinstance(cell, np.ndarray) else np.zeros(0)


def unpacked(body: dict[str, Any]) -> History:
    """The history again. What does not fit together raises one of the usual errors."""
    steps, texts = body["steps"], body["texts"]
    if not all(isinstance(step, int) for step in steps) or not all(isinstance(text, str) for text in texts):
        raise TypeError("steps are whole numbers and reasons are texts")
    history = History()
    for step, cost, failed in zip(steps, body["costs"], body["failed"], strict=True):
        history.measured[step] = {"": Measurement(float(cost), failed)}
    for adapter, tables in body["adapters"].items():
        modules = [str(module) for module in tables["modules"]]
        history.families[adapter] = dict(zip(modules, map(str, tables["families"]), strict=True))
        for metric, table in [*tables["numbers"].items(), *tables["reasons"].items()]:
            if tuple(table.shape) != (len(modules), len(steps)):
                raise ValueError(f"{metric} is {tuple(table.shape)}, not {(len(modules), len(steps))}")
        for metric in [*tables["numbers"], *tables["lists"]]:
            rows = _list_rows(tables, metric, steps) if metric in tables["lists"] else _number_rows(tables, metric)
            codes = (
                tables["reasons"][metric].tolist() if metric in tables["reasons"] else [[NONE] * len(steps)] * len(rows)
            )
            for module, row, row_codes in zip(modules, rows, codes, strict=True):
                for step, value, code in zip(steps, row, row_codes, strict=True):
                    cell = value if code == NONE else texts[code]
                    if cell is not None:
                        metrics = history.measured[step][""].cells.setdefault(adapter, {})
                        metrics.setdefault(metric, {})[module] = cell
    return history


def _number_rows(tables: dict[str, Any], metric: str) -> list[list[Cell | None]]:
    """By module and step."""
    number = int if metric in tables["whole_numbers"] else float
    return [[None if value != value else number(value) for value in row] for row in tables["numbers"][metric].tolist()]


def _list_rows(tables: dict[str, Any], metric: str, steps: list[int]) -> list[list[Cell | None]]:
    nothing = torch.zeros(len(steps), 0)
    arrays = [tables["lists"][metric].get(module, nothing).double().numpy() for module in tables["modules"]]
    rows = [[row[~np.isnan(row)] for row in array] for array in arrays]
    return [[values if len(values) else None for values in row] for row in rows]
