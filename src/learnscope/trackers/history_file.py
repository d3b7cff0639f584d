"""Looks as plain tensors, lists and names, the way they stand in a tracker's file, and back.

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
from numpy.typing import NDArray
from torch import Tensor

from learnscope.trackers.history import NOT_RECORDED, Block, Floats, Look, Looks, adapters_of, ordered

NONE = -1


def packed(looks: Looks) -> dict[str, Any]:
    """All of it as what `torch.load(weights_only=True)` reads."""
    texts: dict[str, int] = {}
    adapters = {adapter: _pack(looks, adapter, modules, texts) for adapter, modules in adapters_of(looks).items()}
    return {
        "steps": list(looks),
        "costs": [look.cost for look in looks.values()],
        "failed": [look.failed for look in looks.values()],
        "texts": list(texts),
        "adapters": adapters,
    }


def _pack(looks: Looks, adapter: str, modules: list[str], texts: dict[str, int]) -> dict[str, Any]:
    shape = (len(modules), len(looks))
    place = {module: row for row, module in enumerate(modules)}
    numbers: dict[str, Floats] = {}
    lists: dict[str, dict[str, list[Floats | None]]] = {}
    reasons: dict[str, NDArray[np.int32]] = {}
    families, whole = dict.fromkeys(modules, "none"), dict[str, bool]()
    for at, look in enumerate(looks.values()):
        block = look.blocks.get(adapter)
        if block is None:
            continue
        rows = [place[module] for module in block.modules]
        families |= dict(zip(block.modules, block.families, strict=True))
        for metric, values in block.numbers.items():
            numbers.setdefault(metric, np.full(shape, np.nan))[rows, at] = values
            whole[metric] = whole.get(metric, True) and metric in block.whole
        for metric, held in block.lists.items():
            rows_of = lists.setdefault(metric, {})
            for module, one in held.items():
                rows_of.setdefault(module, [None] * len(looks))[at] = one
        for metric, why in block.reasons.items():
            codes = reasons.setdefault(metric, np.full(shape, NONE, np.int32))
            for module, reason in why.items():
                codes[place[module], at] = texts.setdefault(reason, len(texts))
    return {
        "modules": list(modules),
        "families": list(families.values()),
        "whole_numbers": [metric for metric, counts in whole.items() if counts],
        "numbers": {metric: torch.from_numpy(values) for metric, values in numbers.items()},
        "lists": {metric: {module: _padded(rows) for module, rows in held.items()} for metric, held in lists.items()},
        "reasons": {metric: torch.from_numpy(codes) for metric, codes in reasons.items()},
    }


def _padded(rows: list[Floats | None]) -> Tensor:
    longest = max(len(row) for row in rows if row is not None)
    table = torch.full((len(rows), longest), torch.nan, dtype=torch.float64)
    for place, row in enumerate(rows):
        if row is not None:
            table[place, : len(row)] = torch.from_numpy(np.ascontiguousarray(row))
    return table


def unpacked(body: dict[str, Any]) -> dict[int, Look]:
    """The looks again. What does not fit together raises one of the usual errors, which says that it is damaged."""
    steps, texts = body["steps"], body["texts"]
    if not all(isinstance(step, int) for step in steps) or not all(isinstance(text, str) for text in texts):
        raise TypeError("steps are whole numbers and reasons are texts")
    looks = [
        Look(step, float(cost), failed=failed)
        for step, cost, failed in zip(steps, body["costs"], body["failed"], strict=True)
    ]
    for adapter, held in body["adapters"].items():
        shape = (len(held["modules"]), len(steps))
        for metric, table in [*held["numbers"].items(), *held["reasons"].items()]:
            if tuple(table.shape) != shape:
                raise ValueError(f"{metric} is {tuple(table.shape)}, not {shape}")
        there = _there(held, shape)
        for at, look in enumerate(looks):
            block = _block(held, texts, at, there[:, at].nonzero().flatten().tolist())
            if block.modules:
                look.blocks[str(adapter)] = block
    return ordered(looks)


def _block(held: dict[str, Any], texts: list[str], at: int, there: list[int]) -> Block:
    every, families = [str(module) for module in held["modules"]], [str(family) for family in held["families"]]
    block = Block(
        [every[row] for row in there], [families[row] for row in there], whole=set(held["whole_numbers"])
    )  # fmt: skip
    for metric, table in held["numbers"].items():
        block.numbers[metric] = table[there, at].double().numpy().copy()
    for metric, rows in held["lists"].items():
        found = {module: table[at].double().numpy() for module, table in rows.items()}
        block.lists[metric] = {module: row[~np.isnan(row)] for module, row in found.items() if not np.isnan(row).all()}
    for metric, codes in held["reasons"].items():
        known = [(module, code) for module, code in zip(every, codes[:, at].tolist(), strict=True) if code != NONE]
        why = {module: texts[code] for module, code in known if texts[code] != NOT_RECORDED}
        if why:
            block.reasons[metric] = why
    return block


def _there(held: dict[str, Any], shape: tuple[int, int]) -> Tensor:
    """Which modules were there at which steps, as adapters come and go: those with a number, or a reason for none."""
    found = torch.zeros(shape, dtype=torch.bool)
    for table in held["numbers"].values():
        found |= ~table.isnan()
    for codes in held["reasons"].values():
        found |= codes != NONE
    return found
