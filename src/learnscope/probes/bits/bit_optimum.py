"""The mix of bits that loses least within a budget, tried on examples that the search has not seen."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import combinations
from typing import Any, ClassVar

from torch import nn

from learnscope.core.moment import Moment
from learnscope.model.bits.ledger import ledger
from learnscope.model.bits.mixes import Mix, NoMix, progressive, uniform
from learnscope.model.bits.quantised_units import Unit, find_units
from learnscope.model.bits.sensitivities import Sensitivities, SensitivityError, check_budget, load
from learnscope.model.bits.switchable import is_switchable
from learnscope.model.outputs.scores import interval
from learnscope.model.weights.content import model_content
from learnscope.probes.bits.bit_sensitivity import described, sensitivities, single_units
from learnscope.probes.bits.columns import Configuration, configuration_table, frontier
from learnscope.probes.bits.quantising import BitProbe, additivity, checked_widths, judged_by
from learnscope.quantities import Quantities
from learnscope.quantities.bits import BitOptimum as Q
from learnscope.record import Column, Measurement, Table
from learnscope.tensor.bits.allocation import Allocation, NoAllocation

WIDTHS = (16, 8, 7, 6, 5, 4, 3, 2)
"""Of the uniform and progressive configurations that the optimum is compared with."""
DEFAULT = 4
"""Without a budget it is the size of the model at this uniform width."""


class BitOptimum(BitProbe):
    """Bits for every unit: the least damage in `max_bytes`, or the fewest bytes with a damage of `max_kl`.

    Examples are divided, every other one: the damages of single units are measured on one half, and the mix is chosen
    as if they added up (a multiple-choice knapsack, solved exactly). On the other half it is compared with the uniform
    widths between whose sizes its own lies, and with the smallest progressive mix that takes at least as much. It is
    recommended if it is measurably better there than the uniform width that fits into the same bytes; otherwise that
    width is. Configurations are "original", "optimal", "uniform_b" and "progressive_H_L", on the half held out.

    Notes: `verdict` ("mixed" or "uniform"), `recommended` (unit → bits; a unit that is not named stays as stored),
    `recommended_name`, `bits` by configuration, `held_out` (false if there is one example only), `expected` (the sum of
    damages that was made small), `solved`, `sensitivities` ("measured" or "file"), `examples`, `positions`, `scheme`.

    `sensitivities` names a file of `model.bits.sensitivities`, measured before with the same scheme; whether its
    examples were others than those held out here is then not known.
    """

    bits: Sequence[int] = (8, 4, 3, 2)
    max_bytes: int | None = None
    """Of the whole packed model. Without any budget: the bytes of uniform 4 bits."""
    max_kl: float | None = None
    """In nats a position (mean squared error for regression), of the sum over units."""
    sensitivities: str | None = None

    quantities: ClassVar[type[Quantities]] = Q
    cost: ClassVar[str] = (
        "a forward pass over half of the examples for each unit and width, and over the others for a few mixes"
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        checked_widths("BitOptimum", self.bits)
        if self.max_bytes is not None and self.max_kl is not None:
            raise ValueError("BitOptimum: give max_bytes or max_kl, not both; the other is what is made small")
        check_budget("BitOptimum", self.max_bytes, self.max_kl)

    def measure(self, moment: Moment) -> Measurement:
        units = self.units(moment)
        self.check_fits(moment.model)
        budget = self._budget(moment, units)
        alone = self._sensitivities(moment, units)
        solved = alone.solve(**budget)
        optimal = self._optimal(moment, units, alone, solved)
        original = self.variant(moment, units, {}, "held out")
        mixes, left_out = self._rivals(moment, units, budget.get("max_bytes", optimal.ledger.packed_bytes), optimal)
        rivals = [
            self._configuration(moment, units, name, bits)
            for name, bits in moment.track(list(mixes.items()), "mixes on held-out examples")
        ]
        found = [self._configuration(moment, units, "original", {}), optimal, *rivals]
        self.forget(moment, "held out")
        front = frontier(found)
        best = recommended(optimal, [one for one in rivals if one.name.startswith("uniform")], **budget)
        tables = [
            configuration_table(Q, found, original, front),
            _unit_table(units, solved, alone),
            Table("model", ["model"], [_budget_column(budget), Q.mixed_wins.column([int(best is optimal)])]),
        ]
        notes: dict[str, Any] = {
            "verdict": "mixed" if best is optimal else "uniform",
            "recommended": dict(best.bits),
            "recommended_name": best.name,
            "bits": {one.name: dict(one.bits) for one in found},
            "expected": solved.damage,
            "solved": solved.status,
            "sensitivities": "measured" if self.sensitivities is None else "file",
            "merged": {point.name: list(point.merged) for point in front if point.merged},
            "left_out": left_out,
            **self._held_out(moment),
            **described(self, original),
        }
        return Measurement(tables, notes=notes)

    def _budget(self, moment: Moment, units: Sequence[Unit]) -> dict[str, Any]:
        if self.max_kl is not None:
            return {"max_kl": self.max_kl}
        default = ledger(moment.model, uniform(units, DEFAULT), self.scheme(), units).packed_bytes
        return {"max_bytes": default if self.max_bytes is None else self.max_bytes}

    def check_fits(self, model: nn.Module) -> None:
        """Refuse a size that no choice of widths can keep, before anything is run for it."""
        if self.max_bytes is None or self.sensitivities is not None:
            return
        units = find_units(model, embeddings=self.embeddings)
        mixes: list[Mix] = [{}, *(uniform(units, b) for b in checked_widths("BitOptimum", self.bits))]
        ledgers = [ledger(model, mix, self.scheme(), units) for mix in mixes]
        beside = ledgers[0].packed_bytes - sum(ledgers[0].by_unit.values())
        least = beside + sum(min(one.by_unit[unit.name] for one in ledgers) for unit in units)
        if self.max_bytes < least:
            raise NoAllocation(
                f"max_bytes={self.max_bytes} cannot be kept: the smallest mix takes {least} bytes with its embeddings "
                "and norms. Give more room, or fewer bits."
            )

    def _sensitivities(self, moment: Moment, units: Sequence[Unit]) -> Sensitivities:
        """Of every unit alone: measured on the half to search on, or read."""
        if self.sensitivities is None:
            widths = checked_widths("BitOptimum", self.bits)
            return sensitivities(self, moment, units, widths, single_units(self, moment, units, widths, "search"))
        found = load(self.sensitivities)
        if found.model and found.model != model_content(moment.model):
            raise SensitivityError(
                f"{self.sensitivities} is of other weights: sensitivities do not carry over, measure them for these"
            )
        if found.weights != {unit.name: unit.numel for unit in units}:
            other = sorted(found.weights.keys() ^ {unit.name for unit in units})
            raise SensitivityError(
                f"{self.sensitivities} is of another model or of other units "
                f"({other[0] if other else 'their sizes differ'}): measure the sensitivities of this one"
            )
        if found.scheme != self.described():
            raise SensitivityError(
                f"{self.sensitivities} was measured with {found.scheme}, not with {self.described()}: give the same "
                "options, or measure again"
            )
        return found

    def _optimal(
        self, moment: Moment, units: Sequence[Unit], alone: Sensitivities, solved: Allocation
    ) -> Configuration:
        """The chosen mix on both halves; whether damages add up is asked where they were measured."""
        adds_up: tuple[float | None, str | None] = (None, "single units were measured elsewhere")
        if self.sensitivities is None:
            joint = self.variant(moment, units, solved.choice, "search")[alone.judged_by]
            adds_up = additivity([alone.damage[u][b] for u, b in solved.choice.items()], joint)
        self.forget(moment, "search")  # before the other half's outputs are kept
        return replace(self._configuration(moment, units, "optimal", solved.choice), additivity=adds_up)

    def _configuration(
        self, moment: Moment, units: Sequence[Unit], name: str, bits: Mapping[str, int]
    ) -> Configuration:
        taken = ledger(moment.model, bits, self.scheme(), units)
        return Configuration(name, bits, self.variant(moment, units, bits, "held out"), taken)

    def _rivals(
        self, moment: Moment, units: Sequence[Unit], within: int, optimal: Configuration
    ) -> tuple[dict[str, Mix], dict[str, str]]:
        """The uniform widths around a size, and the smallest progressive mix that takes what the optimum takes."""
        # a model that sets its own precision knows the widths that it was asked for, perhaps no others
        widths = checked_widths("BitOptimum", self.bits) if is_switchable(moment.model) else list(WIDTHS)

        def taken(bits: Mapping[str, int]) -> int:
            return ledger(moment.model, bits, self.scheme(), units).packed_bytes

        even = {f"uniform_{b}": uniform(units, b) for b in widths}
        sizes = {name: taken(bits) for name, bits in even.items()}
        below = max((name for name in even if sizes[name] <= within), key=sizes.__getitem__, default=None)
        above = min((name for name in even if sizes[name] >= within), key=sizes.__getitem__, default=None)
        found = {name: even[name] for name in dict.fromkeys((below, above)) if name is not None}
        try:
            ends = {f"progressive_{high}_{low}": progressive(units, high, low) for high, low in combinations(widths, 2)}
        except NoMix as error:
            return found, {"progressive": str(error)}
        sizes = {name: size for name, bits in ends.items() if (size := taken(bits)) >= optimal.ledger.packed_bytes}
        if not sizes:
            return found, {"progressive": "none takes as many bytes as the optimum"}
        smallest = min(sizes, key=sizes.__getitem__)
        return {**found, smallest: ends[smallest]}, {}

    def _held_out(self, moment: Moment) -> dict[str, Any]:
        if self.batches(moment, "held out") is not self.batches(moment, "search"):
            return {"held_out": True}
        return {"held_out": False, "held_out_reason": "only one document counts: it was searched on and compared on"}


def recommended(
    optimal: Configuration, even: Sequence[Configuration], *, max_bytes: int | None = None, max_kl: float | None = None
) -> Configuration:
    """The optimum if it is measurably better than the best uniform width in the same bytes; otherwise that.

    Measurably: the 95 % interval of the paired difference lies above 0; without one (a single example), the means say.
    Within a damage, a uniform width must keep it too, unless the optimum itself is further off.
    """
    damage = judged_by(optimal.scores)
    own = optimal.scores[damage]
    limit = optimal.ledger.packed_bytes if max_bytes is None else max_bytes
    allowed = math.inf if max_kl is None else max(max_kl, own)
    fitting = [one for one in even if one.ledger.packed_bytes <= limit and one.scores[damage] <= allowed]
    if not fitting:
        return optimal
    rival = min(fitting, key=lambda one: one.scores[damage])
    low, _ = interval(rival.scores, damage, optimal.scores)
    better = own < rival.scores[damage] if math.isnan(low) else low > 0
    return optimal if better else rival


def _unit_table(units: Sequence[Unit], solved: Allocation, alone: Sensitivities) -> Table:
    bits = [solved.choice.get(u.name, round(8 * alone.stored[u.name] / max(1, u.numel))) for u in units]
    return Table("unit", [unit.name for unit in units], [Q.chosen_bits.column(bits)])


def _budget_column(budget: Mapping[str, Any]) -> Column:
    ((name, value),) = budget.items()
    return (Q.budget_bytes if name == "max_bytes" else Q.budget_kl).column([value])
