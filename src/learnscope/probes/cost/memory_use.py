"""How much memory a finished model takes."""

from __future__ import annotations

from typing import Any, ClassVar

from learnscope.core.moment import Moment
from learnscope.core.probe import At, Probe
from learnscope.model.cost.memory import peak_memory
from learnscope.model.cost.memory_parts import sizes
from learnscope.quantities import Quantities
from learnscope.quantities.cost import MemoryUse as Q
from learnscope.record import Measurement, Table


class MemoryUse(Probe):
    """The model's size by part, and the most memory that one forward pass over the data's first batch takes.

    On an accelerator the peak is its allocator's, process "own". On the CPU it is the high-water mark of a process: a
    "fresh" one that loads the model and runs it once, for models of transformers, so that what the caller's process has
    besides does not count; otherwise the caller's "own", whose other memory is part of `peak_bytes`. A fresh peak
    includes the interpreter and libraries, `libraries_bytes` in the notes.
    """

    at: At = "once"
    needs: ClassVar[frozenset[str]] = frozenset({"holdout"})
    reads_only: ClassVar[bool] = True  # the pass has a guard of its own
    quantities: ClassVar[type[Quantities]] = Q
    cost: ClassVar[str] = "one forward pass, on the CPU in a process of its own where that is possible"

    def measure(self, moment: Moment) -> Measurement:
        first = next(iter(moment.subject.holdout or ()))
        found = moment.remember({"what": "peak memory"}, lambda: _peak(moment, first), on_this_machine=True)
        parts, tied = sizes(moment.model)
        labels = {"process": found["process"]}
        status = {} if found["why"] is None else {0: str(found["why"])}
        whole = Table(
            "model",
            ["model"],
            [
                Q.parameters.column([sum(size.parameters for size in parts.values())]),
                Q.model_bytes.column([sum(size.bytes for size in parts.values())]),
                Q.peak_bytes.column([found["peak"]], labels, status),
                Q.run_bytes.column([found["run"]], labels, status),
            ],
        )
        each = Table(
            "part",
            list(parts),
            [
                Q.parameters.column([size.parameters for size in parts.values()]),
                Q.bytes.column([size.bytes for size in parts.values()]),
            ],
        )
        notes = {
            "tied": tied,
            **{key: found[key] for key in ("libraries_bytes", "not_fresh") if found[key] is not None},
        }
        if not found["exact"]:
            notes["lower_bound"] = "the high-water mark could not be set back before the pass"
        return Measurement([whole, each], notes=notes)


def _peak(moment: Moment, batch: Any) -> dict[str, Any]:
    found = peak_memory(moment.model, moment.task, batch)
    return {
        "process": found.process, "peak": found.peak, "run": found.run, "why": found.why, "exact": found.exact,
        "libraries_bytes": found.libraries, "not_fresh": found.why_not_fresh,
    }  # fmt: skip
