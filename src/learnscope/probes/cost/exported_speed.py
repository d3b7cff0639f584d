"""The real speed of a model whose weights are held in 8 or 4 bits."""

from __future__ import annotations

import math
from collections.abc import Sequence
from importlib.util import find_spec
from typing import Any, ClassVar

from learnscope.core.moment import Moment
from learnscope.core.probe import At, Probe
from learnscope.model.cost.exported_speed import ORIGINAL, exported_speed
from learnscope.model.outputs.reference import reference_outputs
from learnscope.probes.outputs.columns import undefined
from learnscope.quantities import Quantities, Quantity
from learnscope.quantities.cost import ExportedSpeed as Q
from learnscope.record import Column, Measurement, Table

MISSING = "torchao is not installed: pip install 'learnscope[quant]'"


class ExportedSpeed(Probe):
    """The model and copies of it whose blocks torchao holds in fewer bits, timed in turn on the data's first batch.

    These are times of integers that are really packed: the only ones here that say how much faster, or slower, fewer
    bits are on this machine. (What other probes look at has the values of fewer bits in full-width numbers.)

    Scopes: `original`, and `int8`, `int4` for those of `bits` that torchao has a kernel for; others have the reason.
    """

    at: At = "once"
    bits: Sequence[int] = (8, 4)
    seconds: float = 1.0
    """How long each may take, the model itself included."""
    repeats: int = 100
    threads: int | None = None

    needs: ClassVar[frozenset[str]] = frozenset({"holdout"})
    quantities: ClassVar[type[Quantities]] = Q
    cost: ClassVar[str] = "`seconds` of forward passes for the model and each copy, all of them held in memory"

    def __post_init__(self) -> None:
        super().__post_init__()
        if not self.bits or not all(isinstance(b, int) and not isinstance(b, bool) and 2 <= b <= 8 for b in self.bits):
            raise ValueError(f"ExportedSpeed(bits={self.bits!r}): widths from 2 to 8 are needed")
        if not (isinstance(self.seconds, int | float) and 0 < self.seconds < math.inf):
            raise ValueError(f"ExportedSpeed(seconds={self.seconds!r}): a number above 0 is needed")

    def measure(self, moment: Moment) -> Measurement:
        scopes = [ORIGINAL, *(f"int{bits}" for bits in self.bits)]
        if find_spec("torchao") is None:
            reasons = dict.fromkeys(range(len(scopes)), MISSING)
            nothing = [quantity.column([None] * len(scopes), {}, reasons) for quantity in Q.all()]
            return Measurement([Table("exported", scopes, nothing)])
        options: dict[str, Any] = {"seconds": self.seconds, "repeats": self.repeats, "threads": self.threads}
        first = next(iter(moment.subject.holdout or ()))

        def compute() -> dict[str, Any]:
            reference = reference_outputs(moment.model, moment.task, [first])
            found = exported_speed(moment.model, moment.task, first, reference, widths=self.bits, **options)
            return {**found, "undefined": undefined(reference)}

        found = moment.remember(
            {"what": "exported speed", "bits": list(self.bits), **options}, compute, on_this_machine=True
        )
        columns = [_column(quantity, scopes, found) for quantity in Q.all()]
        notes = {"threads": found["threads"], "device": found["device"], "real": True}
        return Measurement([Table("exported", scopes, columns)], notes=notes)


def _column(quantity: Quantity, scopes: Sequence[str], found: dict[str, Any]) -> Column:
    name, values, status = quantity.name, [], {}
    for place, scope in enumerate(scopes):
        value = found["rows"].get(scope, {}).get(name)
        if scope in found["reasons"]:
            status[place] = found["reasons"][scope]
        elif name in found["undefined"]:
            value, status[place] = None, found["undefined"][name]
        elif value is None:
            status[place] = "the inputs are no token ids"
        values.append(value)
    return quantity.column(values, {}, status)
