"""What each part of a model loses when it alone is stored in fewer bits."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from learnscope.core.moment import Moment
from learnscope.model.bits.ledger import ledger
from learnscope.model.bits.mixes import uniform
from learnscope.model.bits.quantised_units import Unit
from learnscope.model.bits.sensitivities import Sensitivities
from learnscope.probes.bits.quantising import BitProbe, Half, checked_widths, judged_by
from learnscope.probes.outputs.columns import REGRESSION, SINGLE
from learnscope.record import Column, Measurement, Table

Scores = Mapping[tuple[str, int], Mapping[str, Any]]
"""Of each unit at each width."""

_NAMES = ("kl", "kl_median", "kl_p99", "top1_agree", "cosine", "mse")


class BitSensitivity(BitProbe):
    """KL(model ‖ model with one unit at so many bits), unit by unit, all others as stored.

    | name | kind | meaning |
    |---|---|---|
    | `kl`, `kl_median`, `kl_p99` | unit | per position that counts, in nats: mean, median, 99th percentile; by `bits` |
    | `top1_agree`, `cosine`, `mse` | unit | share of positions with the same most likely class; of the logits, means |
    | `bytes` | unit | of the unit at these `bits`, scales and zero points included |
    | `weights`, `original_bytes` | unit | entries, and bytes as stored |

    Only what comes after the unit runs again: earlier blocks give back what they gave (`model.outputs.suffix`),
    exactly. That keeps the output of every block for all examples in memory, beside the logits. Where a model cannot be
    cut that way all of it runs; the note `rerun` says "suffix" or "full", and `rerun_reason` why.

    Notes: `units` (layer, index and part of each), `examples`, `positions`, `scheme`, `judged_by`: "kl", or "mse" where
    outputs are numbers and no distributions.
    """

    bits: Sequence[int] = (8, 4, 2)

    def __post_init__(self) -> None:
        super().__post_init__()
        checked_widths("BitSensitivity", self.bits)

    def measure(self, moment: Moment) -> Measurement:
        units, widths = self.units(moment), checked_widths("BitSensitivity", self.bits)
        scores = single_units(self, moment, units, widths, "all")
        found = sensitivities(self, moment, units, widths, scores)
        moment.cache[self.measured_key()] = found.damage
        first = next(iter(scores.values()))
        reasons = dict.fromkeys(_NAMES[:4], REGRESSION) if first["regression"] else {}
        reasons |= {"cosine": SINGLE} if first["single"] else {}
        columns = []
        for width in widths:
            for name in _NAMES:
                status = dict.fromkeys(range(len(units)), reasons[name]) if name in reasons else {}
                values = [scores[unit.name, width][name] for unit in units]
                columns.append(Column(name, values, {"bits": width}, status))
            columns.append(Column("bytes", [found.size[unit.name][width] for unit in units], {"bits": width}))
        columns.append(Column("weights", [unit.numel for unit in units]))
        columns.append(Column("original_bytes", [found.stored[unit.name] for unit in units]))
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
