"""How much memory a finished model takes."""

from __future__ import annotations

from typing import Any

from learnscope.core.moment import Moment
from learnscope.core.probe import At, Probe
from learnscope.model.cost.memory import peak_memory
from learnscope.model.cost.memory_parts import sizes
from learnscope.probes.cost.timing import first_batch
from learnscope.quantities.cost import MemoryUse as Q
from learnscope.record import Measurement, Table


class MemoryUse(Probe):
    """The model's size by part, and the most memory that one forward pass over the data's first batch takes.

    On an accelerator the peak is its allocator's, process "own". On the CPU it is the high-water mark of a process: a
    "fresh" one that loads the model and runs it once, for models of transformers, so that the caller's other memory
    does not count; otherwise the caller's "own", whose other memory is part of `peak_bytes`. A fresh peak
    includes the interpreter and libraries, `libraries_bytes` in the notes.
    """

    at: At = "once"
    needs = frozenset({"holdout"})
    reads_only = True  # the pass has a guard of its own
    cost = "one forward pass, on the CPU in a process of its own where that is possible"

    def measure(self, moment: Moment) -> Measurement:
        memory = moment.remember({"what": "peak memory"}, lambda: _peak(moment), on_this_machine=True)
        parts, tied = sizes(moment.model)
        parameters = [size.parameters for size in parts.values()]
        each_bytes = [size.bytes for size in parts.values()]
        labels = {"process": memory["process"]}
        status = {} if memory["why"] is None else {0: str(memory["why"])}
        model = [
            Q.parameters.column([sum(parameters)]),
            Q.model_bytes.column([sum(each_bytes)]),
            Q.peak_bytes.column([memory["peak"]], labels, status),
            Q.run_bytes.column([memory["run"]], labels, status),
        ]
        tables = [
            Table("model", ["model"], model),
            Table("part", list(parts), [Q.parameters.column(parameters), Q.bytes.column(each_bytes)]),
        ]
        optional = {key: memory[key] for key in ("libraries_bytes", "not_fresh") if memory[key] is not None}
        notes = {"tied": tied, **optional}
        if not memory["exact"]:
            notes["lower_bound"] = "the high-water mark could not be set back before the pass"
        return Measurement(tables, notes=notes)


def _peak(moment: Moment) -> dict[str, Any]:
    peak = peak_memory(moment.model, moment.task, first_batch(moment))
    return {
        "process": peak.process, "peak": peak.peak, "run": peak.run, "why": peak.reason, "exact": peak.exact,
        "libraries_bytes": peak.libraries, "not_fresh": peak.not_fresh_reason,
    }  # fmt: skip
