"""Records as scalars in TensorBoard's event files, written without torch or TensorFlow."""

from __future__ import annotations

import math
import os
import time
from collections.abc import Iterable, Mapping
from importlib import import_module
from pathlib import Path
from typing import Any

from learnscope.record import Label, Record

KINDS = ("model", "group", "named", "layer")
FLUSH_SECONDS = 10.0
"""How long a number may wait before TensorBoard sees it; the default of two minutes is long for a live run."""
LATE = 32
"""Steps by which records may be out of order, since some numbers are read later than others."""


class TensorBoardSink:
    """Writes every number of a record at its step and time, under a tag.

    | number | tag |
    |---|---|
    | model-wide | `GradientFlow/norm` |
    | of a layer, group, … | `GradientFlow/norm/encoder.0` |
    | with labels | `GradientFlow/norm (stage=stepped)`, labels in alphabetical order |
    | of a scope with the name of an earlier one of another kind | `GradientFlow/norm/head (kind=named)` |

    A number that was not measured or is not finite is left out. TensorBoard keeps float32.

    Args:
        log_dir: the folder for the event files; `tensorboard --logdir` shows it, or the folder above it.
        kinds: which tables to write. Those of single tensors are many and left out by default.
    """

    def __init__(self, log_dir: str | os.PathLike[str], *, kinds: Iterable[str] = KINDS) -> None:
        self.log_dir, self.kinds = os.fspath(log_dir), frozenset([kinds] if isinstance(kinds, str) else kinds)
        self._events = _load("tensorboard.compat.proto.event_pb2")
        writing = _load("tensorboard.summary.writer.event_file_writer")
        _wait_for_a_name_of_its_own(Path(self.log_dir))
        self._writer = writing.EventFileWriter(self.log_dir, max_queue_size=100, flush_secs=FLUSH_SECONDS)
        self._tags: dict[tuple[Any, ...], str] = {}
        self._kind_of: dict[str, str] = {}
        self._attempt = 0
        self._held: list[Any] = []
        self._closed = False

    def write(self, record: Record) -> None:
        if self._closed:
            raise ValueError(f"the TensorBoardSink of {self.log_dir} is closed: give every session its own sink")
        event = self._events.Event(wall_time=record.time, step=record.step)
        wanted = (table for table in record.tables if table.kind in self.kinds)
        for row in (row for table in wanted for row in table.rows()):
            if row.value is not None and math.isfinite(row.value):
                tag = self._tag(record.probe, row.name, row.kind, row.scope, row.labels)
                event.summary.value.add(tag=tag, simple_value=row.value)
        if not event.summary.value:
            return
        if record.attempt > self._attempt:
            self._release()
            self._attempt = record.attempt
            self._held = [event]
        elif self._held:
            self._held.append(event)
            if event.step > self._held[0].step + LATE:
                self._release()
        else:
            self._writer.add_event(event)

    def close(self) -> None:
        """Write what is still pending. Closing twice does nothing."""
        if not self._closed:
            self._closed = True
            self._release()
            self._writer.close()

    def _release(self) -> None:
        """Write the first events after a resume: TensorBoard drops what earlier attempts wrote from their step on."""
        if not self._held:
            return
        first = min(self._held, key=lambda event: int(event.step))
        began = self._events.SessionLog(status=self._events.SessionLog.START)
        self._writer.add_event(self._events.Event(wall_time=first.wall_time, step=first.step, session_log=began))
        for event in self._held:
            self._writer.add_event(event)
        self._held = []

    def _tag(self, probe: str, name: str, kind: str, scope: str, labels: Mapping[str, Label]) -> str:
        key = (probe, name, kind, scope, *labels.items())
        tag = self._tags.get(key)
        if tag is None:
            tag = tag_of(probe, name, kind, scope, labels)
            if self._kind_of.setdefault(tag, kind) != kind:
                tag = tag_of(probe, name, kind, scope, {"kind": kind, **labels})
            self._tags[key] = tag
        return tag


def tag_of(probe: str, name: str, kind: str, scope: str, labels: Mapping[str, Label]) -> str:
    """
    >>> tag_of("GradientFlow", "norm", "layer", "encoder.0", {"stage": "stepped"})
    'GradientFlow/norm/encoder.0 (stage=stepped)'
    >>> tag_of("ParameterChange", "sparsity", "model", "model", {"threshold": 1.5e-06, "dtype": "bfloat16"})
    'ParameterChange/sparsity (dtype=bfloat16, threshold=1.5e-06)'
    """
    parts = [probe, name] if kind == "model" else [probe, name, scope]
    conditions = ", ".join(f"{label}={labels[label]}" for label in sorted(labels))
    return "/".join(parts) + (f" ({conditions})" if conditions else "")


def _wait_for_a_name_of_its_own(folder: Path) -> None:
    """Until the next second, if there is a file of this one: TensorBoard reads files in the order of their names."""
    while list(folder.glob(f"events.out.tfevents.{int(time.time()):010d}.*")):
        time.sleep(1 - time.time() % 1)


def _load(module: str) -> Any:
    try:
        return import_module(module)
    except ImportError as error:
        raise ImportError(
            f"TensorBoardSink needs TensorBoard: pip install learnscope[tensorboard] ({error})"
        ) from error
