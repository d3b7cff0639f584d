"""Records as scalars in TensorBoard's event files, written without torch or TensorFlow."""

from __future__ import annotations

import os
import time
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from learnscope.record import Finding, Label, Record
from learnscope.sinks.base import load
from learnscope.sinks.selection import KINDS, Number, Selection

FLUSH_SECONDS = 10.0
"""How long a number may wait before TensorBoard sees it; the default of two minutes is long for a live run."""
LATE = 32
"""Steps by which records may be out of order, since some numbers are read later than others."""
_DT_STRING = 7
"""A text, as tensorboard.compat.proto.types_pb2 numbers it."""


class TensorBoardSink:
    """Writes the numbers of a record at its step and time, under a tag.

    | number | tag |
    |---|---|
    | model-wide | `GradientFlow/norm` |
    | of a layer, group, … | `GradientFlow/norm/encoder.0` |
    | of more than four layers, summed up | `GradientFlow/norm/layers-min`, `layers-median`, `layers-max` |
    | with labels | `GradientFlow/norm (stage=stepped)`, labels in alphabetical order |
    | of a scope with the name of an earlier one of another kind | `GradientFlow/norm/head (kind=named)` |

    Of more than four layers the largest few are written beside the summary, as [docs/sinks.md](../../../docs/sinks.md)
    says. A number that was not measured or is not finite is left out. TensorBoard keeps float32. Alerts are texts,
    `learnscope/alerts/nonfinite`.

    Args:
        log_dir: the folder for the event files; `tensorboard --logdir` shows it, or the folder above it.
        writer: in place of a folder, a `SummaryWriter` that is open already; it is not closed by the sink.
        kinds: which tables to write. Those of single tensors are many and left out by default.
        everything: write every number of the tables, not only summaries and the largest of many layers.
    """

    def __init__(
        self, log_dir: str | os.PathLike[str] | None = None, *, writer: Any = None, kinds: Iterable[str] = KINDS,
        everything: bool = False,
    ) -> None:  # fmt: skip
        if (log_dir is None) == (writer is None):
            raise ValueError("TensorBoardSink writes to a folder, log_dir, or to a SummaryWriter, writer=: pass one")
        self._selection = Selection(kinds, everything)
        self._tags: dict[tuple[Any, ...], str] = {}
        self._kind_of: dict[str, str] = {}
        self._events: EventFiles | OpenWriter = OpenWriter(writer) if log_dir is None else EventFiles(log_dir)
        self._step = 0

    def write(self, record: Record) -> None:
        self._step = max(self._step, record.step)
        numbers = (number for number in self._selection.numbers(record) if number.value is not None)
        self._events.write({self._tag(number): number.value for number in numbers}, record)  # type: ignore[misc]

    def alert(self, finding: Finding) -> None:
        text = f"**{finding.severity}: {finding.title}**\n\n{finding.detail}\n\n{finding.advice}"
        self._events.tell(f"learnscope/alerts/{finding.kind}", text, self._step)

    def close(self) -> None:
        """Write what is still pending. Closing twice does nothing."""
        self._events.close()

    def _tag(self, number: Number) -> str:
        key = number.identity
        tag = self._tags.get(key)
        if tag is None:
            scope = number.scope if number.summary is None else f"{number.kind}s-{number.summary}"
            tag = tag_of(number.probe, number.name, number.kind, scope, number.labels)
            if self._kind_of.setdefault(tag, number.kind) != number.kind:
                tag = tag_of(number.probe, number.name, number.kind, scope, {"kind": number.kind, **number.labels})
            self._tags[key] = tag
        return tag


class OpenWriter:
    """A `SummaryWriter` of somebody else."""

    def __init__(self, writer: Any) -> None:
        self._writer = writer

    def write(self, values: Mapping[str, float], record: Record) -> None:
        for tag, value in values.items():
            self._writer.add_scalar(tag, value, global_step=record.step, walltime=record.time)

    def tell(self, tag: str, text: str, step: int) -> None:
        self._writer.add_text(tag, text, global_step=step)

    def close(self) -> None:
        """What was written is there; the writer stays open."""
        self._writer.flush()


class EventFiles:
    """An event file of our own. After a resume, TensorBoard drops what the earlier attempt wrote from there on."""

    def __init__(self, log_dir: str | os.PathLike[str]) -> None:
        self.log_dir = os.fspath(log_dir)
        self._protos = _load("tensorboard.compat.proto.event_pb2")
        self._writing = _load("tensorboard.summary.writer.event_file_writer")
        _wait_for_a_name_of_its_own(Path(self.log_dir))
        self._writer = self._writing.EventFileWriter(self.log_dir, max_queue_size=100, flush_secs=FLUSH_SECONDS)
        self._attempt = 0
        self._held: list[Any] = []
        self._closed = False

    def write(self, values: Mapping[str, float], record: Record) -> None:
        if self._closed:
            raise ValueError(f"the TensorBoardSink of {self.log_dir} is closed: give every session its own sink")
        if not values:
            return
        event = self._protos.Event(wall_time=record.time, step=record.step)
        for tag, value in values.items():
            event.summary.value.add(tag=tag, simple_value=value)
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

    def tell(self, tag: str, text: str, step: int) -> None:
        event = self._protos.Event(wall_time=time.time(), step=step)
        value = event.summary.value.add(tag=f"{tag}/text_summary")
        value.metadata.plugin_data.plugin_name = "text"
        value.tensor.dtype = _DT_STRING
        value.tensor.string_val.append(text.encode())
        value.tensor.tensor_shape.dim.add(size=1)
        self._writer.add_event(event)

    def close(self) -> None:
        if not self._closed:
            self._closed = True
            self._release()
            self._writer.close()

    def _release(self) -> None:
        """Write the first events after a resume: TensorBoard drops what earlier attempts wrote from their step on."""
        if not self._held:
            return
        first = min(self._held, key=lambda event: int(event.step))
        began = self._protos.SessionLog(status=self._protos.SessionLog.START)
        self._writer.add_event(self._protos.Event(wall_time=first.wall_time, step=first.step, session_log=began))
        for event in self._held:
            self._writer.add_event(event)
        self._held = []


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
    return load(module, "TensorBoardSink", "TensorBoard", "tensorboard")
