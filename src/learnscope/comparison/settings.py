"""The settings that differ between runs, from their manifests."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from learnscope.record import plain_json

_PLACES = {"config": 0, "optimizers": 1, "model": 2, "probes": 3, "budget": 4, "environment": 6}
"""The order of the sections; others come before the environment."""
_LEFT_OUT = frozenset({"created", "started", "ended", "updated", "timestamp", "pid", "run_id"})
"""Entries that differ in every run, at any depth."""
_NOT_SETTINGS = frozenset({"status", "attempts", "id", "run", "labels", "imported"})
"""Top-level entries of a manifest that are not settings."""


class Absent:
    """Marks an entry that a run does not have, as opposed to one that is null."""

    def __repr__(self) -> str:
        return "absent"


ABSENT: Final = Absent()


@dataclass(frozen=True)
class Difference:
    """An entry that is not the same in all runs, by the runs' labels; `ABSENT` where a run does not have it."""

    key: str
    values: Mapping[str, Any]

    def to_json(self) -> dict[str, Any]:
        """Runs without the entry are listed under `absent`: a null among the values was set."""
        return {
            "key": self.key,
            "values": {label: strict(value) for label, value in self.values.items() if value is not ABSENT},
            "absent": [label for label, value in self.values.items() if value is ABSENT],
        }


def differences(manifests: Mapping[str, Mapping[str, Any]], folders: Mapping[str, Path | None]) -> list[Difference]:
    """The entries that differ: options of probes, the model, optimizers, configuration, versions, git state.

    Times, costs and the runs' status are not settings. A path in a run's own folder becomes `<run>/…`, its id `<run>`.
    """
    labels = list(manifests)
    settings = [_settings(manifests[label], folders[label]) for label in labels]
    changes = [Difference(".".join(path), dict(zip(labels, each, strict=True))) for path, each in _walk((), settings)]
    # stable: otherwise in the manifest's order
    return sorted(changes, key=lambda change: _PLACES.get(change.key.split(".")[0], 5))


def _settings(manifest: Mapping[str, Any], folder: Path | None) -> dict[str, Any]:
    settings = {key: value for key, value in manifest.items() if key not in _NOT_SETTINGS}
    attempts = manifest.get("attempts") or []
    cost = attempts[-1].get("cost") if attempts else None
    if isinstance(cost, Mapping) and cost.get("budget") is not None:
        settings["budget"] = cost["budget"]  # an option of the run, although it is recorded with the cost
    parts = folder.resolve().parts if folder is not None else ()
    cleaned: dict[str, Any] = _cleaned(settings, parts, manifest.get("id"))
    return cleaned


def _cleaned(value: Any, folder: tuple[str, ...], run_id: Any, least: int = 2) -> Any:
    """`value` without what differs in every run and is not a setting: times, its folder's path, and its id."""
    if isinstance(value, Mapping):
        return {
            str(key): _cleaned(inner, folder, run_id, 1 if str(key).endswith(("dir", "folder", "path")) else 2)
            for key, inner in value.items()
            if key not in _LEFT_OUT
        }
    if isinstance(value, list | tuple):
        return [_cleaned(inner, folder, run_id) for inner in value]
    if not isinstance(value, str):
        return value
    return "<run>" if value == run_id else own_path(value, folder, least)


def own_path(text: str, folder: tuple[str, ...], least: int = 2) -> str:
    """`text` with the run's own folder replaced by `<run>`, where it is a path to it or into it, also after `option=`.

    Only text of at least `least` parts is taken for a path: an optimizer may have the same name as the folder.

    >>> folder = ("/", "home", "runs", "adam")
    >>> [own_path(text, folder) for text in ("runs/adam/x.pt", "--out=/home/runs/adam", "adam", "runs/sgd")]
    ['<run>/x.pt', '--out=<run>', 'adam', 'runs/sgd']
    """
    option, equals, path = text.rpartition("=")
    parts = Path(path).parts
    for n in range(len(parts), least - 1, -1):
        if parts[:n] == folder[-n:] and (parts[0] != "/" or n == len(folder)):
            return f"{option}{equals}{'/'.join(['<run>', *parts[n:]])}"
    return text


def _walk(path: tuple[str, ...], values: Sequence[Any]) -> Iterator[tuple[tuple[str, ...], Sequence[Any]]]:
    """The entries that differ. A mapping that a run lacks is one entry, unless it is a section of the manifest."""
    present = [value for value in values if value is not ABSENT]
    if len(present) == len(values) or len(path) < 2:
        if all(isinstance(value, Mapping) for value in present):
            for key in dict.fromkeys(key for value in present for key in value):
                yield from _walk((*path, key), [_child(value, key) for value in values])
            if any(present) or len(present) == len(values):
                return
        elif all(isinstance(value, list) and value and all(isinstance(v, Mapping) for v in value) for value in present):
            for n in range(max(len(value) for value in present)):
                yield from _walk((*path, str(n)), [_child(value, n) for value in values])
            return
    if len({_canonical(value) for value in values}) > 1:
        yield path, values


def _child(value: Any, key: str | int) -> Any:
    if isinstance(value, Mapping):
        return value.get(key, ABSENT)
    return value[key] if value is not ABSENT and int(key) < len(value) else ABSENT


def _canonical(value: Any) -> str:
    """The same text for equal settings: 1 equals 1.0, but not true."""
    if value is ABSENT:
        return repr(value)
    plain = json.loads(json.dumps(value, default=repr), parse_int=_as_float)
    return json.dumps(plain, sort_keys=True)


def _as_float(digits: str) -> float | int:
    return float(digits) if abs(int(digits)) < 1 << 53 else int(digits)


def strict(value: Any) -> Any:
    """`value` for strict JSON: numbers that are not finite, and other objects, become text."""
    return plain_json(value, nonfinite=repr, other=repr)
