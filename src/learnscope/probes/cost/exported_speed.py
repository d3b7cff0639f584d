"""The real speed of a model whose weights are held in 8 or 4 bits."""

from __future__ import annotations

from collections.abc import Sequence
from importlib.util import find_spec
from typing import Any

from learnscope.core.moment import Moment
from learnscope.model.cost.calls import NO_TOKENS
from learnscope.model.cost.exported import ORIGINAL, exported_speed
from learnscope.model.outputs.reference import reference_outputs
from learnscope.options import is_whole
from learnscope.probes.cost.timing import TimingProbe, first_batch
from learnscope.probes.outputs.columns import undefined_comparisons
from learnscope.quantities import Quantity
from learnscope.quantities.cost import ExportedSpeed as Q
from learnscope.record import Column, Measurement, Table

MISSING = "torchao is not installed: pip install 'learnscope[quant]'"


class ExportedSpeed(TimingProbe):
    """The model and copies of it whose blocks torchao holds in fewer bits, timed in turn on the data's first batch.

    These are times of packed integers: the only ones that say how much faster, or slower, fewer bits are on this
    machine. (Other probes round values and keep them in full-width numbers.)

    Each copy is timed beside the model, pass by pass in turn, until the interval of their ratio is within 5 % or
    clearly on one side (beyond 1.25 times faster or slower): a copy that is many times slower is timed a handful of
    times. Of causal language models, decoding one token after the first example of the batch is timed too.

    Scopes: `original`, and `int8`, `int4` for those of `bits` that torchao has a kernel for; others have the reason.
    """

    bits: Sequence[int] = (8, 4)
    seconds: float = 1.0
    """How long each copy may take, once three passes are timed; half of that again for decoding."""
    threads: int | None = None

    cost = "`seconds` of forward passes for the model and each copy, all of them held in memory"

    def __post_init__(self) -> None:
        super().__post_init__()
        if not self.bits or not all(is_whole(bits, 2) and bits <= 8 for bits in self.bits):
            raise ValueError(f"ExportedSpeed(bits={self.bits!r}): widths from 2 to 8 are needed")

    def measure(self, moment: Moment) -> Measurement:
        scopes = [ORIGINAL, *(f"int{bits}" for bits in self.bits)]
        if find_spec("torchao") is None:
            nothing = [quantity.cells([MISSING] * len(scopes)) for quantity in Q.all()]
            return Measurement([Table("exported", scopes, nothing)])
        options: dict[str, Any] = {"seconds": self.seconds, "repeats": self.repeats, "threads": self.threads}
        batch = first_batch(moment)

        def compute() -> dict[str, Any]:
            reference = reference_outputs(moment.model, moment.task, [batch])
            speed = exported_speed(moment.model, moment.task, batch, reference, widths=self.bits, **options)
            return {**speed, "undefined": undefined_comparisons(reference)}

        key = {"what": "exported speed 2", "bits": list(self.bits), **options}
        speed = moment.remember(key, compute, on_this_machine=True)
        columns = [_column(quantity, scopes, speed) for quantity in Q.all()]
        notes = {"threads": speed["threads"], "device": speed["device"], "real": True}
        return Measurement([Table("exported", scopes, columns)], notes=notes)


def _column(quantity: Quantity, scopes: Sequence[str], speed: dict[str, Any]) -> Column:
    cells = []
    for scope in scopes:
        value = speed["rows"].get(scope, {}).get(quantity.name)
        reason = speed["reasons"].get(scope) or speed["undefined"].get(quantity.name)
        if value is None and reason is None:
            reason = _why_none(quantity.name, speed)
        cells.append(value if reason is None else reason)
    return quantity.cells(cells)


def _why_none(name: str, speed: dict[str, Any]) -> str:
    if name.endswith(("_low", "_high")):
        return "five pairs of passes and fewer have no interval: it is so slow that no more were timed"
    return str(speed["no_decode"]) if name.startswith("decode_") else NO_TOKENS
