"""A tracker's file: a torch archive of plain names, numbers and tensors, read without running anything from it.

The history in it:
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

import os
import pickle
import zipfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from learnscope.store.files import write_atomically
from learnscope.trackers.history import LISTS, Cell, Column, History, Measurement

FORMAT = "learnscope.trackers"
VERSION = 1
NONE = -1
"""Where there is no reason."""


class TrackerFileError(ValueError):
    """A file that a tracker cannot be loaded from, or a tracker that cannot be saved; the message says why."""


def write_tracker(
    path: Path, kind: str, options: Mapping[str, Any], history: History, states: Mapping[str, Mapping[str, Any]] | None
) -> None:
    """Write all of it, or leave an earlier file as it was."""
    body = {
        "format": FORMAT,
        "version": VERSION,
        "kind": kind,
        "options": dict(options),
        "history": packed(history),
        "states": None if states is None else {probe: _plain(dict(state), probe) for probe, state in states.items()},
    }

    def write(temporary: Path) -> None:
        with temporary.open("wb") as file:  # given a path, torch would write its name into the file
            torch.save(body, file)

    write_atomically(path, write)


def read_tracker(
    path: str | os.PathLike[str], kind: str
) -> tuple[dict[str, Any], History, dict[str, dict[str, Any]] | None]:
    """The options, the history and the probes' states of a tracker of this kind. Anything else is refused."""
    path = Path(path)
    body = _read(path)
    if not isinstance(body, dict) or body.get("format") != FORMAT:
        raise TrackerFileError(f"{path} was not written by a tracker's save: it does not say {FORMAT!r} of itself")
    version = body.get("version")
    if not isinstance(version, int) or version > VERSION:
        raise TrackerFileError(
            f"{path} was saved with version {version} of this format; this learnscope reads up to {VERSION}. "
            "Upgrade learnscope to load it."
        )
    if body.get("kind") != kind:
        raise TrackerFileError(f"{path} was saved by {body.get('kind')}, not by {kind}: use {body.get('kind')}.load")
    try:
        states = body["states"]
        states = None if states is None else {str(probe): dict(state) for probe, state in states.items()}
        return dict(body["options"]), unpacked(body["history"]), states
    except (KeyError, IndexError, TypeError, ValueError, AttributeError, RuntimeError) as error:
        raise TrackerFileError(f"{path} is damaged ({type(error).__name__}: {error}): save the tracker anew") from error


def _read(path: Path) -> Any:
    if not path.is_file():
        raise FileNotFoundError(f"there is no tracker's file {path}: name one that a tracker's save has written")
    try:
        body = torch.load(path, map_location="cpu", weights_only=True)
        with zipfile.ZipFile(path) as archive:  # torch reads numbers that were changed on disk without a word
            changed = archive.testzip()
    except pickle.UnpicklingError as error:  # torch's own words advise to run the file's code
        raise TrackerFileError(
            f"{path} is a pickle, or holds objects beside plain names, numbers and tensors: reading them can run code, "
            "so they are never read here. Save the tracker anew with its save method."
        ) from error
    except Exception as error:  # bytes that are no archive fail in whatever way they are misread
        reason = (str(error).splitlines() or [type(error).__name__])[0]
        raise TrackerFileError(
            f"{path} is not a tracker's file, or only a part of one ({reason}): save the tracker anew"
        ) from error
    if changed is not None:
        raise TrackerFileError(
            f"{path} is damaged ({changed} is not what was written): save the tracker anew, or take an earlier file"
        )
    return body


def _plain(value: Any, what: str) -> Any:
    """A copy of what a file may hold."""
    if isinstance(value, Tensor):
        return value.detach().cpu().clone(memory_format=torch.contiguous_format)
    if value is None or isinstance(value, str | bool | int | float):
        return value
    if isinstance(value, list | tuple):
        return [_plain(item, what) for item in value]
    if isinstance(value, dict) and all(isinstance(key, str) for key in value):
        return {key: _plain(item, what) for key, item in value.items()}
    raise TrackerFileError(f"the memory of {what} holds a {type(value).__name__}, which cannot be saved")


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
        if metric in LISTS or any(isinstance(cell, np.ndarray) for cell in cells):
            arrays = {
                module: [
                    torch.tensor(cell if isinstance(cell, np.ndarray) else [], dtype=torch.float64) for cell in row
                ]
                for module, row in rows.items()
            }
            lists[metric] = {
                module: pad_sequence(row, True, torch.nan) for module, row in arrays.items() if any(map(len, row))
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
            number = int if metric in tables["whole_numbers"] else float
            rows: list[list[Cell | None]] = (
                _list_rows(tables, metric, steps)
                if metric in tables["lists"]
                else [[None if x != x else number(x) for x in row] for row in tables["numbers"][metric].tolist()]
            )
            codes = (
                tables["reasons"][metric].tolist() if metric in tables["reasons"] else [[NONE] * len(steps)] * len(rows)
            )
            for step, values, reasons in zip(steps, zip(*rows, strict=True), zip(*codes, strict=True), strict=True):
                cells = {
                    module: value if code == NONE else texts[code]
                    for module, value, code in zip(modules, values, reasons, strict=True)
                    if value is not None or code != NONE
                }
                if cells:
                    history.measured[step][""].cells.setdefault(adapter, {})[metric] = Column(cells)
    return history


def _list_rows(tables: dict[str, Any], metric: str, steps: list[int]) -> list[list[Cell | None]]:
    nothing = torch.zeros(len(steps), 0)
    arrays = [tables["lists"][metric].get(module, nothing).double().numpy() for module in tables["modules"]]
    rows = [[row[~np.isnan(row)] for row in array] for array in arrays]
    return [[values if len(values) else None for values in row] for row in rows]
