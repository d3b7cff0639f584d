"""The mix of bits that loses least within a budget, tried on examples that the search has not seen."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import combinations
from typing import Any

import torch
from torch import nn

from learnscope.core.moment import Moment
from learnscope.model.bits.ledger import ledger
from learnscope.model.bits.mixes import Mix, NoMix, progressive, uniform
from learnscope.model.bits.quantise import is_switchable
from learnscope.model.bits.quantised_units import find_units
from learnscope.model.bits.sensitivities import Sensitivities, SensitivityError, check_budget, load
from learnscope.model.outputs.scores import interval
from learnscope.model.weights.content import model_content
from learnscope.probes.bits.columns import Configuration, configuration_table, frontier
from learnscope.probes.bits.damage import additivity, judged_by
from learnscope.probes.bits.quantising import BitProbe
from learnscope.probes.outputs.columns import with_cosine_reasons
from learnscope.quantities.bits import BitOptimum as Q
from learnscope.record import Measurement, Table
from learnscope.tensor.bits.allocation import Allocation, NoAllocation

WIDTHS = (16, 8, 7, 6, 5, 4, 3, 2)
"""Of the uniform and progressive configurations that the optimum is compared with."""
DEFAULT = 4
"""Without a budget it is the size of the model at this uniform width."""


class BitOptimum(BitProbe):
    """Bits for every unit: the least damage in `max_bytes`, or the fewest bytes with a damage of `max_kl`.

    Examples are split, every other one: the damages of single units are measured on one half, and the mix is chosen
    as if they added up (a multiple-choice knapsack, solved exactly). On the other half it is compared with the next
    smaller and larger uniform widths, and with the smallest progressive mix of at least its size. It is recommended if
    it is measurably better there than the uniform width that fits into the same bytes; otherwise that width is.
    Configurations are "original", "optimal", "uniform_b" and "progressive_H_L", on the held-out half.

    Notes: `verdict` ("mixed" or "uniform"), `recommended` (unit → bits; a unit that is not named stays as stored),
    `recommended_name`, `bits` by configuration, `held_out` (false if there is one example only), `expected` (the sum of
    damages that was minimised), `solved`, `sensitivities` ("measured" or "file"), `verdict_reason` (why it could not be
    told whether the mix is better), `no_intervals` (the same for the frontier), `examples`, `positions`, `scheme`.

    `sensitivities` names a file of `model.bits.sensitivities`, measured before with the same scheme; it is then
    not known whether its examples are others than those held out here.
    """

    bits: Sequence[int] = (8, 4, 3, 2)
    max_bytes: int | None = None
    """Of the whole packed model. Without any budget: the bytes of uniform 4 bits."""
    max_kl: float | None = None
    """In nats a position (mean squared error for regression), of the sum over units."""
    sensitivities: str | None = None

    cost = "a forward pass over the examples for each unit and width, unless it was measured, and a few over each half"

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.max_bytes is not None and self.max_kl is not None:
            raise ValueError("BitOptimum: give max_bytes or max_kl, not both; the other is what is made small")
        check_budget("BitOptimum", self.max_bytes, self.max_kl)

    def open(self, moment: Moment) -> None:
        self.check_fits(moment.model)
        if self.sensitivities is not None:
            self._check_file(load(self.sensitivities), moment)

    def measure(self, moment: Moment) -> Measurement:
        self.check_fits(moment.model)
        budget = self._budget(moment)
        alone = self._sensitivities(moment)
        solved = alone.solve(**budget)
        optimal = self._optimal(moment, alone, solved)
        original = self.variant(moment, {}, "held out")
        mixes, left_out = self._rivals(moment, budget.get("max_bytes", optimal.ledger.packed_bytes), optimal)
        rivals = [
            self._configuration(moment, name, bits)
            for name, bits in moment.track(list(mixes.items()), "mixes on held-out examples")
        ]
        tried = [self._configuration(moment, "original", {}), optimal, *rivals]
        self.forget(moment, "held out")
        front, judged = frontier(tried)
        best, unsure = recommended(optimal, [item for item in rivals if item.name.startswith("uniform")], **budget)
        units = self.units(moment)
        chosen = [solved.choice.get(u.name, round(8 * alone.stored[u.name] / max(1, u.numel))) for u in units]
        limit = (
            Q.budget_bytes.column([budget["max_bytes"]]) if self.max_kl is None else Q.budget_kl.column([self.max_kl])
        )
        tables = [
            configuration_table(Q, tried, original, front, sampled=moment.subject.sampled),
            Table("unit", [unit.name for unit in units], [Q.chosen_bits.column(chosen)]),
            Table("model", ["model"], [limit, Q.mixed_wins.column([int(best is optimal)])]),
        ]
        notes: dict[str, Any] = {
            "verdict": "mixed" if best is optimal else "uniform",
            "recommended": dict(best.bits),
            "recommended_name": best.name,
            "bits": {item.name: dict(item.bits) for item in tried},
            "expected": solved.damage,
            "solved": solved.status,
            "sensitivities": "measured" if self.sensitivities is None else "file",
            "merged": {point.name: list(point.merged) for point in front if point.merged},
            "left_out": left_out,
            **judged,
            **({} if unsure is None else {"verdict_reason": unsure}),
            "held_out": self.batches(moment, "held out") is not self.batches(moment, "search"),
            **self.notes(original),
        }
        if not notes["held_out"]:
            notes["held_out_reason"] = "only one document counts: it was searched on and compared on"
        return Measurement(tables, notes=notes, finish=with_cosine_reasons)

    def _budget(self, moment: Moment) -> dict[str, Any]:
        if self.max_kl is not None:
            return {"max_kl": self.max_kl}
        default = self.ledger(moment, uniform(self.units(moment), DEFAULT)).packed_bytes
        return {"max_bytes": default if self.max_bytes is None else self.max_bytes}

    def check_fits(self, model: nn.Module) -> None:
        """Refuse a budget that no choice of widths can meet, before anything is measured."""
        if self.max_bytes is None or self.sensitivities is not None:
            return
        units = find_units(model, embeddings=self.embeddings)
        mixes: list[Mix] = [{}, *(uniform(units, width) for width in self.widths())]
        ledgers = [ledger(model, mix, self.scheme(), units) for mix in mixes]
        outside = ledgers[0].packed_bytes - sum(ledgers[0].by_unit.values())
        least = outside + sum(min(mix.by_unit[unit.name] for mix in ledgers) for unit in units)
        if self.max_bytes < least:
            raise NoAllocation(
                f"max_bytes={self.max_bytes} cannot be kept: the smallest mix takes {least} bytes with its embeddings "
                "and norms. Give more room, or fewer bits."
            )

    def _sensitivities(self, moment: Moment) -> Sensitivities:
        """Of every unit alone: measured on the half to search on, or read from the file."""
        path = self.sensitivities
        if path is None:
            return self.measured_sensitivities(moment, self.single_units(moment, "search"))
        loaded = load(path)
        if loaded.model and loaded.model != model_content(moment.model):
            raise SensitivityError(
                f"{path} is of other weights: sensitivities do not carry over, measure them for these"
            )
        self._check_file(loaded, moment)
        return loaded

    def _check_file(self, loaded: Sensitivities, moment: Moment) -> None:
        """Refuse sensitivities of other units, or of another scheme."""
        path = self.sensitivities
        sizes = {unit.name: unit.numel for unit in self.units(moment)}
        if loaded.weights != sizes:
            other = sorted(loaded.weights.keys() ^ sizes.keys())
            raise SensitivityError(
                f"{path} is of another model or of other units ({other[0] if other else 'their sizes differ'}): "
                "measure the sensitivities of this one"
            )
        if loaded.scheme != self.described():
            raise SensitivityError(
                f"{path} was measured with {loaded.scheme}, not with {self.described()}: give the same options, or "
                "measure again"
            )

    def _optimal(self, moment: Moment, alone: Sensitivities, solved: Allocation) -> Configuration:
        """The chosen mix on both halves; whether damages add up is checked where they were measured."""
        adds_up: float | str = "single units were measured elsewhere"
        if self.sensitivities is None:
            joint = self.variant(moment, solved.choice, "search")[alone.judged_by]
            adds_up = additivity([alone.damage[u][b] for u, b in solved.choice.items()], joint)
        self.forget(moment, "search")  # before the other half's outputs are kept
        return replace(self._configuration(moment, "optimal", solved.choice), additivity=adds_up)

    def _configuration(self, moment: Moment, name: str, bits: Mapping[str, int]) -> Configuration:
        return Configuration(name, bits, self.variant(moment, bits, "held out"), self.ledger(moment, bits))

    def _rivals(self, moment: Moment, within: int, optimal: Configuration) -> tuple[dict[str, Mix], dict[str, str]]:
        """The uniform widths around a size, and the smallest progressive mix of at least the optimum's size."""
        units = self.units(moment)
        # a model that sets its own precision may know only the widths that were asked for
        widths = self.widths() if is_switchable(moment.model) else list(WIDTHS)

        def size(bits: Mapping[str, int]) -> int:
            return self.ledger(moment, bits).packed_bytes

        even = {f"uniform_{b}": uniform(units, b) for b in widths}
        sizes = {name: size(bits) for name, bits in even.items()}
        below = max((name for name in even if sizes[name] <= within), key=sizes.__getitem__, default=None)
        above = min((name for name in even if sizes[name] >= within), key=sizes.__getitem__, default=None)
        rivals = {name: even[name] for name in dict.fromkeys((below, above)) if name is not None}
        try:
            mixes = {
                f"progressive_{high}_{low}": progressive(units, high, low) for high, low in combinations(widths, 2)
            }
        except NoMix as error:
            return rivals, {"progressive": str(error)}
        sizes = {name: n for name, bits in mixes.items() if (n := size(bits)) >= optimal.ledger.packed_bytes}
        if not sizes:
            return rivals, {"progressive": "none takes as many bytes as the optimum"}
        smallest = min(sizes, key=sizes.__getitem__)
        return {**rivals, smallest: mixes[smallest]}, {}


def recommended(
    optimal: Configuration, even: Sequence[Configuration], *, max_bytes: int | None = None, max_kl: float | None = None
) -> tuple[Configuration, str | None]:
    """The optimum if it is measurably better than the best uniform width in the same bytes; otherwise that.

    Measurably: the 95 % interval of the paired difference lies above 0, and the difference is more than float32's
    rounding of the loss, which other processors round otherwise. Where there is no interval, it is not known whether
    the mix is better, and the second result says why.
    Within a damage, a uniform width must keep it too, unless the optimum itself is further off.
    """
    damage = judged_by(optimal.scores)
    own = optimal.scores[damage]
    limit = optimal.ledger.packed_bytes if max_bytes is None else max_bytes
    allowed = math.inf if max_kl is None else max(max_kl, own)
    fitting = [item for item in even if item.ledger.packed_bytes <= limit and item.scores[damage] <= allowed]
    if not fitting:
        return optimal, None
    rival = min(fitting, key=lambda item: item.scores[damage])
    rounding = torch.finfo(torch.float32).eps * abs(optimal.scores.get("loss") or 0.0)  # of the same unit as the damage
    if not own + rounding < rival.scores[damage]:
        return rival, None
    low, _, reason = interval(rival.scores, damage, optimal.scores)
    return (optimal if low > 0 else rival), reason  # false for NaN
