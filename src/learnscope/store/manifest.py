"""run.json as readers may rely on it: parts of another shape than a session writes are left out, and said."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

from learnscope.characters import visible_json

_NUMBER = (int, float)
_TEXTS = [str]
_ATTEMPT = {
    "attempt": int, "start_step": int, "started": _NUMBER, "ended": _NUMBER, "last_step": int, "cost": {},
    "records": {"written": int, "lost": int}, "files_lost": int, "memories": _TEXTS, "state_lost": _TEXTS,
    "skipped_steps": int, "state_restored": bool,
    "sinks": {"*": {"taken": int, "dropped": int, "errors": int, "kept": {}}},
}  # fmt: skip
_SHAPE: dict[str, Any] = {
    "source": str, "created": _NUMBER, "status": str, "id": str, "probes": {"*": {"probe": str, "names": [{}]}},
    "labels": {"*": _TEXTS},
    "model": {
        "class": str, "parameters": int, "tensors": int, "frozen": _TEXTS, "frozen_parameters": int,
        "trainable_outside_optimizer": _TEXTS, "dtypes": {"*": int}, "layers": _TEXTS, "layer_parameters": {"*": int},
        "layer_types": {"*": str}, "outside_known_stacks": _TEXTS, "dropout": {"*": _NUMBER},
        "alike": _TEXTS,
    },
    "optimizers": [{"class": str, "groups": [{"tensors": int, "layers": _TEXTS}]}],
    "environment": {
        "command": _TEXTS, "learnscope": str, "python": str, "torch": str, "platform": str, "threads": int,
        "accelerator": str, "git": {"commit": str, "changed": bool},
    },
    "attempts": [_ATTEMPT], "imported": {"format": str, "files": _TEXTS, "names": [{}], "problems": _TEXTS},
}  # fmt: skip
"""Types by key: `[x]` is a list of x, `*` any other key, `{}` any object. What is not named may be anything."""
_REQUIRED = {"attempts": ("attempt", "start_step"), "probes": ("probe",)}
"""Without these, an entry of the part is left out."""
_DROP = object()


class NotAManifest(ValueError):
    """The file does not hold a JSON object."""


def read_manifest(path: Path) -> tuple[dict[str, Any], list[str]]:
    """What run.json holds without parts of a wrong shape, and a sentence about each of those."""
    try:
        body = json.loads(visible_json(path.read_text(encoding="utf-8")), parse_constant=_finite, parse_float=_finite)
    except (ValueError, RecursionError, OSError) as error:
        raise NotAManifest(f"{path} is not readable JSON ({error})") from error
    if not isinstance(body, dict):
        raise NotAManifest(f"{path} does not hold a JSON object")
    wrong: list[str] = []
    sound = _sound(body, _SHAPE, (), wrong)
    for part, required in _REQUIRED.items():
        sound[part] = _complete(sound.get(part), required, part, wrong)
    return sound, [f"{place} in {path.name} is damaged and was left out" for place in dict.fromkeys(wrong)]


def _sound(value: Any, shape: Any, place: tuple[str, ...], wrong: list[str]) -> Any:
    """The value without what is of another shape; `_DROP` if it is itself. Null stands for "not recorded"."""
    if isinstance(shape, dict) and isinstance(value, dict):
        others, kept = shape.get("*"), {}
        for key, item in value.items():
            below = shape.get(key, others)
            if item is None and others is not None and key not in shape:  # of a probe or a layer there is something
                wrong.append(".".join((*place, key)))
                continue
            sound = item if below is None or item is None else _sound(item, below, (*place, key), wrong)
            if sound is not _DROP:
                kept[key] = sound
        return kept
    if isinstance(shape, list) and isinstance(value, list):
        items = [_sound(item, shape[0], place, wrong) for item in value if item is not None]
        wrong += [".".join(place)] if len(items) < len(value) else []
        return [item for item in items if item is not _DROP]
    types = shape if isinstance(shape, tuple) else (shape,)
    if type(value) in types and (isinstance(value, str) or abs(value) < 2**63):
        return value
    wrong.append(".".join(place))
    return _DROP


def _complete(entries: Any, required: tuple[str, ...], place: str, wrong: list[str]) -> Any:
    """Entries of a list or an object that have what each of them must have; none where nothing is recorded."""
    if not entries:
        return {} if isinstance(_SHAPE[place], dict) else []
    kept = {
        key: entry
        for key, entry in (entries.items() if isinstance(entries, dict) else enumerate(entries))
        if entry is not None and all(entry.get(name) is not None for name in required)
    }
    wrong += [place] if len(kept) < len(entries) else []
    return kept if isinstance(entries, dict) else list(kept.values())


def _finite(text: str) -> float:
    """A number that is not finite is no JSON, also if it is written as 1e999."""
    number = float(text)
    if not math.isfinite(number):
        raise ValueError(f"{text} is not a JSON number")
    return number
