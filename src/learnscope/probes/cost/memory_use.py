"""How much memory a finished model takes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from learnscope.core.moment import Moment
from learnscope.core.probe import At, Probe
from learnscope.model.cost.calls import token_length
from learnscope.model.cost.memory import peak_memory
from learnscope.model.cost.memory_parts import sizes
from learnscope.model.cost.running import read_bytes, running_memory
from learnscope.options import is_whole
from learnscope.probes.cost.timing import first_batch
from learnscope.quantities.cost import MemoryUse as Q
from learnscope.record import Column, Measurement, Table


class MemoryUse(Probe):
    """The model's size by part; its cache and its activations, for one example and for the data's first batch.

    Activations are counted by the device's allocator (on the CPU by torch's profiler, which sees every allocation):
    these are bytes that the model asks for, the same on every run. `process=True` also measures the high-water mark of
    a process: a "fresh" one that loads the model and runs it once, for models of transformers, so that the caller's
    other memory does not count; otherwise the caller's "own". A fresh mark includes the interpreter and libraries,
    `libraries_bytes` in the notes.
    """

    at: At = "once"
    batches: Sequence[int] = (1,)
    """Examples, besides those of the data's first batch."""
    process: bool = False

    needs = frozenset({"holdout"})
    reads_only = True  # the passes have a guard of their own
    cost = "three forward passes for each batch; with `process=True`, a process that loads the model"

    def __post_init__(self) -> None:
        super().__post_init__()
        if not isinstance(self.batches, Sequence) or not all(is_whole(value, 1) for value in self.batches):
            raise ValueError(f"MemoryUse(batches={self.batches!r}): whole numbers from 1")

    def measure(self, moment: Moment) -> Measurement:
        batches = list(self.batches)
        running = moment.remember(
            {"what": "running memory", "batches": batches},
            lambda: {"rows": running_memory(moment.model, moment.task, first_batch(moment), batches)},
            on_this_machine=True,
        )["rows"]
        parts, tied = sizes(moment.model)
        parameters = [size.parameters for size in parts.values()]
        each_bytes = [size.bytes for size in parts.values()]
        read, read_in_bytes = read_bytes(moment.model)
        model = [
            Q.parameters.column([sum(parameters)]),
            Q.model_bytes.column([sum(each_bytes)]),
            Q.read_parameters.column([read]),
            Q.read_bytes.column([read_in_bytes]),
        ]
        for row in running:
            labels = {name: row[name] for name in ("phase", "batch", "length")}
            status = {} if row["reason"] is None else {0: str(row["reason"])}
            model += [
                Q.cache_bytes.column([row["cache"]], labels, status),
                Q.activation_bytes.column([row["activations"]], labels, status),
            ]
        notes: dict[str, Any] = {"tied": tied}
        if self.process:
            columns, more = self._of_process(moment)
            model, notes = model + columns, notes | more
        tables = [
            Table("model", ["model"], model),
            Table("part", list(parts), [Q.parameters.column(parameters), Q.bytes.column(each_bytes)]),
        ]
        return Measurement(tables, notes=notes)

    def _of_process(self, moment: Moment) -> tuple[list[Column], dict[str, Any]]:
        batch = first_batch(moment)
        memory = moment.remember({"what": "peak memory"}, lambda: _peak(moment), on_this_machine=True)
        labels = {"process": memory["process"], "batch": moment.task.size(batch), "length": token_length(batch)}
        status = {} if memory["why"] is None else {0: str(memory["why"])}
        columns = [
            Q.peak_bytes.column([memory["peak"]], labels, status),
            Q.run_bytes.column([memory["run"]], labels, status),
        ]
        notes = {key: memory[key] for key in ("libraries_bytes", "not_fresh") if memory[key] is not None}
        if not memory["exact"]:
            notes["lower_bound"] = "the high-water mark could not be set back before the pass"
        return columns, notes


def _peak(moment: Moment) -> dict[str, Any]:
    peak = peak_memory(moment.model, moment.task, first_batch(moment))
    return {
        "process": peak.process, "peak": peak.peak, "run": peak.run, "why": peak.reason, "exact": peak.exact,
        "libraries_bytes": peak.libraries, "not_fresh": peak.not_fresh_reason,
    }  # fmt: skip
