"""The search over bit widths and ways of rounding, from coarse to fine, on one half of the examples."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

from learnscope.model.bits.mixes import Mix, uniform
from learnscope.model.bits.sensitivities import Sensitivities
from learnscope.probes.bits.candidates import (
    Candidate,
    Family,
    Quantiser,
    distinct_groups,
    evenly,
    halves,
    least_ways,
    outside_blocks,
    suffix,
)
from learnscope.probes.bits.trials import Trials
from learnscope.tensor.bits.allocation import NoAllocation
from learnscope.tensor.bits.frontier import at_widths, crossing
from learnscope.tensor.bits.quantize import HALF_BITS

COARSE = (8, 6, 5, 4, 3, 2)
"""Widths that are tried first."""
SHARES = (1.0, 1 / 4)
"""Of the damage up to which the loss is kept, or outputs are the same: the mixes that are tried."""
ACTIVATIONS = 8


class Search(Trials):
    """The search itself: what is tried next follows from what was tried."""

    def run(self, *, max_bytes: int | None, max_kl: float | None) -> None:
        """Try what could be worth recommending: first the widths, then ways to round near the width that is needed,
        then mixes of widths in the best of these ways, last activations."""
        for candidate in halves(self.units, dict(self.ways)) if not self.switchable else ():
            self.attempt(candidate)
        coarse = [width for width in self.whole if width in COARSE] or self.whole
        for width in coarse:
            self.attempt(evenly(self.units, width, self.base))
        needed, same = self._needed(), self._needed(same=True)
        between = [w for w in self.whole if w not in coarse and min(abs(w - needed), abs(w - same)) <= 1]
        for width in between:
            self.attempt(evenly(self.units, width, self.base))
        needed = self._needed()
        self._blocks_alone(needed)
        if self.free:
            self._other_ways(needed)
        if self.methods:
            self._other_methods(needed)
        self._mixes(self._best_ways(needed), max_bytes, max_kl)
        if max_bytes is not None:
            self._smallest(max_bytes)
        if self.base.activation_bits is None and not self.switchable:
            self._activations(needed)

    def far(self, *, max_bytes: int | None, max_kl: float | None) -> list[str]:
        """What need not be judged, for it is far from what may be lost."""
        return self.not_near([limit for limit, _ in self._limits(max_kl)], max_bytes)

    def _needed(self, *, same: bool = False) -> int:
        """The fewest bits for all units within the loss, or with the same outputs; the most there are, if none is."""
        even = {
            candidate.bits[self.units[0].name]: name
            for name, candidate in self.tried.items()
            if candidate.family == "uniform"
        }
        inside = [width for width, name in even.items() if self.is_near(name)]
        if same and self.same_kl is not None:
            inside = [width for width in inside if self.damage(even[width]) <= self.same_kl]
        return min(inside, default=max(even, default=max(self.widths)))

    def _narrower(self, width: int) -> int:
        return max((bits for bits in self.whole if bits < width), default=width)

    def _blocks_alone(self, width: int) -> None:
        outside = outside_blocks(self.units)
        if outside and len(outside) < len(self.units) and width in self.whole:
            bits = {unit.name: width for unit in self.units if unit.name not in outside}
            self.attempt(Candidate(f"blocks_{width}{suffix(self.base)}", "blocks", bits, self.base))

    def _other_ways(self, needed: int) -> None:
        """Other granularities one bit below what a channel's scale needs, and zero points for the best of them."""
        width = self._narrower(needed)
        ways = distinct_groups(self.units, self.ways)
        for way in ways:
            self.attempt(evenly(self.units, width, way, "group"))
        self.attempt(evenly(self.units, max(self.whole), replace(self.base, granularity="tensor"), "tensor"))
        if self.base.symmetric is None:
            for way in (self.base, self._best_way(self.tried)):
                at = needed if way == self.base else width
                other = replace(way, symmetric=not way.scheme().is_symmetric(at))
                self.attempt(evenly(self.units, at, other, "zero point"))
        best = self._best_way(self.tried)
        if best.granularity == "group":
            for at in (needed, self._narrower(width)):
                self.attempt(evenly(self.units, at, best, "group"))

    def _other_methods(self, needed: int) -> None:
        """Other methods in the best way so far, one and two bits below what rounding to the nearest needs."""
        best = self._best_way(self.tried)
        below = self._narrower(needed)
        for width in dict.fromkeys((below, self._narrower(below))):
            if width not in self.whole:
                continue
            self.attempt(evenly(self.units, width, best, "group" if best.granularity == "group" else "uniform"))
            for method in self.methods:
                self.attempt(evenly(self.units, width, replace(best, method=method), "method"))

    def _merit(self, name: str) -> float:
        """Bits a weight at which the damage would be 1, if each bit divided it by four: the lower, the better."""
        ledger = self.tried[name].way.ledger(self.moment, self.tried[name].bits)
        damage = self.damage(name)
        return ledger.model_bits + 0.5 * math.log2(damage) if damage > 0 else math.inf

    def _best_way(self, names: Iterable[str]) -> Quantiser:
        families = ("uniform", "group", "zero point", "method")
        even = [n for n in names if self.tried[n].family in families and math.isfinite(self._merit(n))]
        return self.tried[min(even, key=self._merit)].way if even else self.base

    def _best_ways(self, needed: int) -> list[Quantiser]:
        """The way by which single units were measured, and the best of the others near the width that is needed."""
        near = [
            name
            for name, candidate in self.tried.items()
            if candidate.family != "mixed" and abs(next(iter(candidate.bits.values())) - needed) <= 1
        ]
        return list(dict.fromkeys((self._best_way(near), self.base)))

    def _mixes(self, ways: Sequence[Quantiser], max_bytes: int | None, max_kl: float | None) -> None:
        if len(self.units) < 2:
            self.left_out["mixed"] = "a mix needs two units"
            return
        for number, way in enumerate(ways):
            alone = self._alone(way)
            ratio = self._additivity(alone, way)
            if max_bytes is not None:
                self._solved(alone, way, max_bytes=max_bytes)
            for limit, excess in self._limits(max_kl):
                for share in SHARES if number == 0 else SHARES[:1]:
                    scores = self._solved(alone, way, max_kl=share * limit * ratio)
                    over = 1.0 if share < 1 or scores is None else excess(scores)
                    if math.isfinite(over) and over > 0 and not 0.8 <= over <= 1:
                        self._solved(alone, way, max_kl=0.9 * limit * ratio / min(max(over, 0.25), 8))

    def _limits(self, max_kl: float | None) -> list[tuple[float, Callable[[Mapping[str, Any]], float]]]:
        """Damages up to which mixes are looked for, with how many times what is allowed a mix does: the damage that was
        asked for, else that at which the loss is reached, and that at which outputs count as the same."""

        def times(limit: float) -> Callable[[Mapping[str, Any]], float]:
            return lambda scores: float(scores[self.damage_name]) / limit

        if max_kl is not None:
            return [(max_kl, times(max_kl))]
        even = [name for name, candidate in self.tried.items() if candidate.family in ("uniform", "group")]
        limit = crossing((self.damage(name), self.is_near(name)) for name in even)
        found: list[tuple[float, Callable[[Mapping[str, Any]], float]]] = []
        if limit is not None:
            found.append((limit, partial(self.tolerance.excess, self.original)))
        if self.same_kl is not None and (limit is None or self.same_kl < limit):
            found.append((self.same_kl, times(0.9 * self.same_kl)))
        return found

    def _alone(self, way: Quantiser) -> Sensitivities:
        """The damages of single units at all widths, with the sizes that this way of rounding takes."""
        damage = {unit: at_widths(known, self.widths) for unit, known in self.alone.damage.items()}
        ledgers = {width: way.ledger(self.moment, uniform(self.units, width)).by_unit for width in self.widths}
        size = {unit: {width: ledgers[width][unit] for width in known} for unit, known in damage.items()}
        return replace(self.alone, damage=damage, size=size, scheme=way.described())

    def _additivity(self, alone: Sensitivities, way: Quantiser) -> float:
        """Σ of the damages of single units by the base's way / damage of all together by this way."""
        ratios = []
        for name, candidate in self.tried.items():
            width = next(iter(candidate.bits.values()))
            if candidate.way == way and set(candidate.bits.values()) == {width} and len(candidate.bits) == len(
                self.units
            ):  # fmt: skip
                single = math.fsum(known.get(width, math.nan) for known in alone.damage.values())
                joint = self.damage(name)
                if width in self.whole and joint > 0 and math.isfinite(single / joint):
                    ratios.append(math.log(single / joint))
        return math.exp(math.fsum(ratios) / len(ratios)) if ratios else 1.0

    def _solved(self, alone: Sensitivities, way: Quantiser, **budget: Any) -> Mapping[str, Any] | None:
        try:
            bits: Mix = dict(alone.solve(**budget).choice)
        except NoAllocation as error:
            self.left_out[f"mixed{suffix(way)}"] = str(error)
            return None
        if not bits:
            return None
        per_weight = way.ledger(self.moment, bits).model_bits
        candidate = Candidate(f"mixed_{per_weight:.2f}{suffix(way)}", "mixed", bits, way)
        if candidate.name in self.tried:  # as many bits, otherwise spread
            candidate = replace(candidate, name=f"{candidate.name}_{len(self.tried)}")
        return self.attempt(candidate)

    def _smallest(self, max_bytes: int) -> None:
        """Where nothing that was tried fits, what takes the fewest bytes of all, if that does."""
        if any(candidate.packed_bytes(self.moment) <= max_bytes for candidate in self.tried.values()):
            return
        ways = [self.base, *(least_ways(self.units, self.ways) if self.free else ())]
        least = [evenly(self.units, min(self.widths), way, "tensor") for way in ways]
        self.attempt(min(least, key=lambda candidate: candidate.packed_bytes(self.moment)))

    def _activations(self, needed: int) -> None:
        """The same weights with activations rounded too, token by token."""
        family: Family = "activations"
        for width in dict.fromkeys((max(self.whole), needed)):
            way = replace(self.base, activation_bits=ACTIVATIONS)
            if width in self.whole and width != HALF_BITS:
                name = f"uniform_{width}{suffix(way)}_activations_{ACTIVATIONS}"
                if self.attempt(Candidate(name, family, uniform(self.units, width), way)) is None:
                    return
