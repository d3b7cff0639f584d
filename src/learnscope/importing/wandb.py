"""wandb: the history of a run from its own file, with its configuration, summary and environment."""

from __future__ import annotations

import fnmatch
import json
import math
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeGuard

from learnscope.importing.foreign import ORDER, Foreign, Gathered, Progress, as_float
from learnscope.importing.packages import with_version
from learnscope.importing.tensorboard import replaced_notes
from learnscope.importing.wandb_file import wandb_records
from learnscope.options import did_you_mean
from learnscope.store.errors import RunError

PATTERN = "run-*.wandb"
STEP, TIME, RUNTIME = "_step", "_timestamp", "_runtime"
STEP_AXES = ("train/global_step", "trainer/global_step", "global_step")
"""What trainers log beside `_step`, which counts calls of `log`, where they do not define it as the step."""


@dataclass
class _Reading:
    """What the records of one run have told so far."""

    rows: list[dict[str, Any]] = field(default_factory=list)
    axes: dict[str, str] = field(default_factory=dict)
    """The name, or the pattern of names, and the name that counts its steps."""
    config: dict[str, Any] = field(default_factory=dict)
    summary: dict[str, Any] = field(default_factory=dict)
    about: dict[str, Any] = field(default_factory=dict)
    environment: dict[str, Any] = field(default_factory=dict)
    started: float | None = None
    exit_code: int | None = None
    system: int = 0
    """Samples of the machine's state, which have times and no steps."""

    def take(self, record: Any) -> None:
        kind = record.WhichOneof("record_type")
        if kind == "history":
            self.rows.append(dict(_items(record.history.item)) | _step_of(record.history))
        elif kind == "run":
            self._run(record.run)
        elif kind == "config":
            _update(self.config, record.config)
        elif kind == "summary":
            _update(self.summary, record.summary)
        elif kind == "metric" and record.metric.step_metric:
            self.axes[record.metric.name or record.metric.glob_name] = record.metric.step_metric
        elif kind == "environment":
            self._environment(record.environment)
        elif kind == "stats":
            self.system += 1
        elif kind == "exit":
            self.exit_code = int(record.exit.exit_code)

    def _run(self, run: Any) -> None:
        _update(self.config, run.config)
        named = {"id": run.run_id, "name": run.display_name, "project": run.project, "group": run.run_group}
        self.about |= {f"wandb_{key}": value for key, value in named.items() if value}
        if run.HasField("start_time") and self.started is None:
            self.started = run.start_time.seconds + run.start_time.nanos / 1e9
        if run.git.commit:
            self.environment["git"] = {"commit": run.git.commit}
        if run.telemetry.python_version:
            self.environment["python"] = run.telemetry.python_version

    def _environment(self, environment: Any) -> None:
        known = {"platform": environment.os, "python": environment.python.removeprefix("CPython ")}
        self.environment |= {key: value for key, value in known.items() if value}
        if environment.git.commit:
            self.environment["git"] = {"commit": environment.git.commit}


def read(files: Sequence[Path], *, name: str, step: str | None = None, progress: Progress = lambda *_: None) -> Foreign:
    """One run from its file, or from the files of all folders in which it was resumed."""
    total, before, problems = sum(file.stat().st_size for file in files), 0, list[str]()
    reading, gathered = _Reading(), Gathered(in_order=step == ORDER)
    left_out: dict[str, Counter[str]] = {}
    notes: list[str] = []
    axis = STEP
    for number, file in enumerate(files):
        reading.rows = []
        for record in wandb_records(file, problems, progress, before, total):
            reading.take(record)
        before += file.stat().st_size
        axis = _axis(reading, step, file)
        if number:
            gathered.restart()
        notes += _gather(reading, axis, gathered, left_out)
    curves, starts = gathered.finished()
    if not curves:
        more = f" ({problems[0]})" if problems else ""
        raise RunError(f"{files[0]} has no history of numbers{more}: nothing was logged, or it was cut off before")
    others = {key: _said(kinds) for key, kinds in left_out.items()}
    others |= {"system metrics": f"{reading.system:,} samples with times and no steps"} if reading.system else {}
    config = {key: value for key, value in reading.config.items() if key != "_wandb"}
    about = reading.about | {"summary": _plain_summary(reading.summary)}
    return Foreign(
        format="wandb", name=name, files=list(files), curves=curves, starts=starts, config=config, about=about,
        step="the order of writing" if step == ORDER else axis, read_with=with_version("wandb"),
        environment=reading.environment, started=reading.started, status=_status(reading.exit_code),
        left_out=others, problems=problems, notes=[*notes, *replaced_notes(gathered)],
    )  # fmt: skip


def _axis(reading: _Reading, asked: str | None, file: Path) -> str:
    """The name that counts steps: as asked, as the run defines it for most of its names, or as trainers call it."""
    names = dict.fromkeys(name for row in reading.rows for name in row)
    if asked is not None and asked != ORDER:
        if asked not in names:
            raise RunError(f"{file} has no {asked!r} to count steps with.{did_you_mean(asked, names)}")
        return asked
    votes: Counter[str] = Counter()
    for name in names:
        if not name.startswith("_"):
            votes[next((axis for of, axis in reading.axes.items() if fnmatch.fnmatchcase(name, of)), "")] += 1
    defined = [axis for axis, _ in votes.most_common(1) if axis in names]
    return next(iter(defined), next((axis for axis in STEP_AXES if axis in names), STEP))


def _gather(reading: _Reading, axis: str, gathered: Gathered, left_out: dict[str, Counter[str]]) -> list[str]:
    """Add the rows of a file; returns what a reader should know of their steps."""
    at, without = 0, 0
    for row in reading.rows:
        said = row.get(axis)
        if _is_number(said) and math.isfinite(as_float(said)):
            at = int(said)
        else:
            without += 1
        time = row.get(TIME)
        for name, value in row.items():
            if name == axis or name in (STEP, TIME):
                continue
            if _is_number(value):
                gathered.add(name, at, as_float(value), as_float(time) if _is_number(time) else math.nan)
            elif value is not None:
                left_out.setdefault(name, Counter())[_kind(value)] += 1
    return [f"{without:,} rows have no {axis}: they have the step of the row before"] if without else []


def _items(items: Any) -> Iterator[tuple[str, Any]]:
    """Names and values; parts of a dictionary are joined by dots, as wandb shows them."""
    nested: dict[str, Any] = {}
    for item in items:
        value = _value(item)
        path = list(item.nested_key) or [item.key]
        if len(path) > 1:
            place = nested.setdefault(path[0], {})
            for key in path[1:-1]:
                place = place.setdefault(key, {}) if isinstance(place, dict) else {}
            if isinstance(place, dict):
                place[path[-1]] = value
        else:
            yield from _flat(path[0], value)
    for name, value in nested.items():
        yield from _flat(name, value)


def _flat(name: str, value: Any) -> Iterator[tuple[str, Any]]:
    """A dictionary of numbers becomes names; one that says its type is a picture, a histogram or the like."""
    if isinstance(value, dict) and "_type" not in value:
        for key, inner in value.items():
            yield from _flat(f"{name}.{key}", inner)
    else:
        yield name, value


def _value(item: Any) -> Any:
    """What was logged: as JSON, or in later files by its type."""
    text = item.value_json
    if not text and "value" in item.DESCRIPTOR.oneofs_by_name:
        kind = item.WhichOneof("value")
        if kind not in (None, "none", "json"):
            return getattr(item, kind)
        text = item.json if kind == "json" else ""
    try:
        return json.loads(text) if text else None
    except (ValueError, RecursionError):
        return text


def _step_of(history: Any) -> dict[str, int]:
    return {STEP: int(history.step.num)} if history.HasField("step") else {}


def _update(values: dict[str, Any], record: Any) -> None:
    for item in record.update:
        path = list(item.nested_key) or [item.key]
        place = values
        for key in path[:-1]:
            if not isinstance(place.get(key), dict):
                place[key] = {}
            place = place[key]
        place[path[-1]] = _value(item)
    for item in record.remove:
        values.pop(item.key or next(iter(item.nested_key), ""), None)


def _plain_summary(summary: dict[str, Any]) -> dict[str, Any]:
    """Numbers and texts; what says its type is a picture or the like."""
    return {name: value for name, value in summary.items() if name != "_wandb" and not isinstance(value, dict | list)}


def _is_number(value: Any) -> TypeGuard[int | float]:
    return isinstance(value, int | float)  # a bool is a number too: flags are drawn as 0 and 1


def _kind(value: Any) -> str:
    if isinstance(value, dict):
        return str(value.get("_type", "dictionary"))
    return {"str": "text", "list": "list"}.get(type(value).__name__, type(value).__name__)


def _said(kinds: Counter[str]) -> str:
    return ", ".join(f"{count:,} × {kind}" for kind, count in kinds.items())


def _status(exit_code: int | None) -> str:
    if exit_code is None:
        return "no end was recorded"
    return "finished" if exit_code == 0 else f"failed with exit code {exit_code}"
