"""What each part of a model loses when it alone is stored in fewer bits."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

from learnscope.core.moment import Moment
from learnscope.model.bits.ledger import ledger
from learnscope.model.bits.mixes import uniform
from learnscope.model.bits.quantised_units import Unit
from learnscope.model.bits.sensitivities import Sensitivities
from learnscope.probes.bits.quantising import BitProbe, Half, checked_widths, judged_by
from learnscope.probes.outputs.columns import REGRESSION, SINGLE
from learnscope.quantities import Quantities
from learnscope.quantities.bits import BitSensitivity as Q
from learnscope.record import Measurement, Table

Scores = Mapping[tuple[str, int], Mapping[str, Any]]
"""Of each unit at each width."""

_COMPARED = (Q.kl, Q.kl_median, Q.kl_p99, Q.top1_agree, Q.cosine, Q.mse)


class BitSensitivity(BitProbe):
    """KL(model ‖ model with one unit at so many bits), unit by unit, all others as stored.

    Only what comes after the unit runs again: earlier blocks give back what they gave (`model.outputs.suffix`),
    exactly. That keeps the output of every block for all examples in memory, beside the logits. Where a model cannot be
    cut that way all of it runs; the note `rerun` says "suffix" or "full", and `rerun_reason` why.

    Notes: `units` (layer, index and part of each), `examples`, `positions`, `scheme`, `judged_by`: "kl", or "mse" where
    outputs are numbers and no distributions.
    """

    bits: Sequence[int] = (8, 4, 2)

    quantities: ClassVar[type[Quantities]] = Q
    cost: ClassVar[str] = "a forward pass over the examples for each unit and width, of what comes after the unit"

    def __post_init__(self) -> None:
        super().__post_init__()
        checked_widths("BitSensitivity", self.bits)

    def measure(self, moment: Moment) -> Measurement:
        units, widths = self.units(moment), checked_widths("BitSensitivity", self.bits)
        scores = single_units(self, moment, units, widths, "all")
        found = sensitivities(self, moment, units, widths, scores)
        moment.cache[self.measured_key()] = found.damage
        first = next(iter(scores.values()))
        reasons = (
            dict.fromkeys([quantity.name for quantity in _COMPARED[:4]], REGRESSION) if first["regression"] else {}
        )
        reasons |= {Q.cosine.name: SINGLE} if first["single"] else {}
        columns = []
        for width in widths:
            for quantity in _COMPARED:
                why = reasons.get(quantity.name)
                status = {} if why is None else dict.fromkeys(range(len(units)), why)
                values = [scores[unit.name, width][quantity.name] for unit in units]
                columns.append(quantity.column(values, {"bits": width}, status))
            columns.append(Q.bytes.column([found.size[unit.name][width] for unit in units], {"bits": width}))
        columns.append(Q.weights.column([unit.numel for unit in units]))
        columns.append(Q.original_bytes.column([found.stored[unit.name] for unit in units]))
        notes = {
            "units": {unit.name: {"layer": unit.layer, "index": unit.index, "part": unit.part} for unit in units},
            "other_bytes": found.other_bytes,
            **described(self, first),
        }
        return Measurement([Table("unit", [unit.name for unit in units], columns)], notes=notes)


def single_units(
    probe: BitProbe, moment: Moment, units: Sequence[Unit], widths: Sequence[int], half: Half
) -> dict[tuple[str, int], dict[str, Any]]:
    """Every unit alone at every width."""
    pairs = [(unit.name, width) for unit in units for width in widths]
    return {
        (unit, width): probe.variant(moment, units, {unit: width}, half)
        for unit, width in moment.track(pairs, "units in fewer bits")
    }


def sensitivities(
    probe: BitProbe, moment: Moment, units: Sequence[Unit], widths: Sequence[int], scores: Scores
) -> Sensitivities:
    """The damages with the bytes, as a file keeps them and an allocation needs them."""
    ledgers = {b: ledger(moment.model, uniform(units, b), probe.scheme(), units) for b in widths}
    stored = ledger(moment.model, {}, probe.scheme(), units)
    first = next(iter(scores.values()))
    damage = judged_by(first)
    return Sensitivities(
        damage={unit.name: {b: float(scores[unit.name, b][damage]) for b in widths} for unit in units},
        size={unit.name: {b: ledgers[b].by_unit[unit.name] for b in widths} for unit in units},
        stored=stored.by_unit,
        weights={unit.name: unit.numel for unit in units},
        other_bytes=stored.packed_bytes - sum(stored.by_unit.values()),
        judged_by=damage,
        scheme=probe.described(),
        examples=len(first["sums"]["positions"]),
    )


def described(probe: BitProbe, scores: Mapping[str, Any]) -> dict[str, Any]:
    """Notes on what was compared and how."""
    found: dict[str, Any] = {
        "examples": len(scores["sums"]["positions"]),
        "positions": scores["positions"],
        "scheme": probe.described(),
        "judged_by": judged_by(scores),
    }
    rerun = scores.get("rerun")
    if rerun is not None:
        found |= {"rerun": "suffix"} if rerun == "suffix" else {"rerun": "full", "rerun_reason": rerun}
    return found
