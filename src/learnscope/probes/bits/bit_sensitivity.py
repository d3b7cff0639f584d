"""What each part of a model loses when only that part is stored in fewer bits."""

from __future__ import annotations

import math
from collections.abc import Sequence

from learnscope.core.moment import Moment
from learnscope.model.bits.mixes import uniform
from learnscope.model.bits.sensitivities import Sensitivities
from learnscope.probes.bits.columns import undefined
from learnscope.probes.bits.quantising import BitProbe
from learnscope.probes.outputs.columns import with_cosine_reasons
from learnscope.quantities.bits import BitSensitivity as Q
from learnscope.record import Measurement, Table
from learnscope.tensor.bits.frontier import at_widths

_COMPARED = (Q.kl, Q.kl_median, Q.kl_p99, Q.top1_agree, Q.cosine, Q.mse)


class BitSensitivity(BitProbe):
    """KL(model ‖ model with one unit at so many bits), unit by unit, all others as stored.

    Only what comes after the unit runs again; the outputs of earlier blocks are kept (`model.outputs.suffix`), which is
    exact. That takes memory for the output of every block for all examples, beside the logits. Where passes are small,
    several variants of one block run as one batch of up to 2048 positions and 256 MB of logits, which is exact but for
    the rounding of larger matrix products. Quantised copies take as much memory as the model, at most. A model that
    cannot be cut that way runs as a whole; the note `rerun` says "suffix" or "full", and `rerun_reason` why.

    Notes: `units` (layer, index and part of each), `examples`, `positions`, `scheme`, `judged_by`: "kl", or "mse" where
    outputs are numbers and not distributions; `between`: by width of `read_off` and unit, `damage` and `bytes`.
    """

    read_off: Sequence[int] = ()
    """Further widths, whose damage is not measured but read off a line of logarithms between those that are."""

    cost = "a forward pass over the examples for each unit and width, of what comes after the unit"

    def measure(self, moment: Moment) -> Measurement:
        units = self.units(moment)
        scores = self.single_units(moment, "all")
        measured = self.measured_sensitivities(moment, scores)
        moment.cache[self.measured_key()] = measured.damage
        first = next(iter(scores.values()))
        reasons = undefined(first)
        columns = []
        for width in self.widths():
            for quantity in _COMPARED:
                name = quantity.name
                cells = [reasons.get(name, scores[unit.name, width][name]) for unit in units]
                columns.append(quantity.cells(cells, bits=width))
            columns.append(Q.bytes.column([measured.size[unit.name][width] for unit in units], {"bits": width}))
        columns.append(Q.weights.column([unit.numel for unit in units]))
        columns.append(Q.original_bytes.column([measured.stored[unit.name] for unit in units]))
        notes = {
            "units": {unit.name: {"layer": unit.layer, "index": unit.index, "part": unit.part} for unit in units},
            "other_bytes": measured.other_bytes,
            **({"between": self._between(moment, measured)} if self.read_off else {}),
            **self.notes(first),
        }
        table = Table("unit", [unit.name for unit in units], columns)
        return Measurement([table], notes=notes, finish=with_cosine_reasons)

    def _between(self, moment: Moment, measured: Sensitivities) -> dict[str, dict[str, dict[str, float]]]:
        found: dict[str, dict[str, dict[str, float]]] = {}
        for width in self.read_off:
            sizes = self.ledger(moment, uniform(self.units(moment), width)).by_unit
            for unit, known in measured.damage.items():
                damage = at_widths(known, [width]).get(width, math.nan)
                if width not in known and math.isfinite(damage):
                    found.setdefault(str(width), {})[unit] = {"damage": damage, "bytes": sizes[unit]}
        return found
