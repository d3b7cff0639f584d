"""Candidates that were tried on the half to search on, what they do there, and which of them are worth judging."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from learnscope.core.moment import Moment
from learnscope.model.bits.quantise import is_switchable
from learnscope.model.bits.sensitivities import Sensitivities
from learnscope.probes.bits.candidates import Candidate, Family, Quantiser
from learnscope.probes.bits.columns import Configuration
from learnscope.probes.bits.damage import judged_by
from learnscope.probes.bits.quantising import Half
from learnscope.probes.bits.tolerance import Tolerance
from learnscope.tensor.bits.allocation import Point
from learnscope.tensor.bits.frontier import undominated
from learnscope.tensor.bits.quantize import WHOLE_BITS, QuantiseError

HOPELESS = 1.5
"""Not tried on held-out examples: what another candidate of at most its bytes does this much less damage than."""
NEAREST = 5
"""Candidates of the search's frontier that are judged if not all are: those whose damage is nearest to what may be
lost."""
PLAIN: tuple[Family, ...] = ("half", "uniform", "activations", "blocks", "method")
"""What is measured on held-out examples whatever the search says of it."""
LEAST = 1e-12
"""Damages below this are alike."""
BESIDE = ("float16", "uniform_8", "uniform_4")
"""What is measured there even if only the frontier is."""
ORIGINAL = "original"
"""The model as it is, among the configurations."""
Judged = Literal["all", "frontier"]


@dataclass
class Trials:
    """Candidates that were tried on the half to search on, with their scores there."""

    moment: Moment
    base: Quantiser
    """The way in which single units were measured."""
    ways: Mapping[str, Any]
    """Options that all ways share."""
    widths: Sequence[int]
    free: bool
    """Whether granularity and zero points are searched too."""
    tolerance: Tolerance
    alone: Sensitivities
    methods: Sequence[str] = ()
    """Other methods of rounding that are tried near the width that is needed."""
    judged: Judged = "all"
    tried: dict[str, Candidate] = field(default_factory=dict)
    scores: dict[str, Mapping[str, Any]] = field(default_factory=dict)
    left_out: dict[str, str] = field(default_factory=dict)
    same: dict[str, str] = field(default_factory=dict)
    """Names of mixes that turned out to be another candidate."""

    def __post_init__(self) -> None:
        self.units = self.base.units(self.moment)
        self.original = self.base.variant(self.moment, {}, "search")
        self.damage_name = judged_by(self.original)
        self.switchable = is_switchable(self.moment.model)  # it rounds by rules of its own
        self.whole = [width for width in self.widths if width in WHOLE_BITS]
        judged = self.tolerance.loss(self.original, self.original).measure
        self.same_kl = self.tolerance.same_kl if judged in ("perplexity", "kl") else None
        """The damage up to which outputs count as the same; None where it does not decide."""

    def attempt(self, candidate: Candidate) -> Mapping[str, Any] | None:
        """The scores of a candidate; None, with the reason in `left_out`, for one that cannot be made."""
        for other in self.tried.values():
            if other.key() == candidate.key():
                if other.name != candidate.name:
                    self.same[candidate.name] = other.name
                return self.scores[other.name]
        try:
            then: Half | None = "held out" if self._in_any_case(candidate) else None
            scores = candidate.way.variant(self.moment, candidate.bits, "search", then=then)
        except QuantiseError as error:
            self.left_out[candidate.name] = str(error)
            return None
        finally:
            if candidate.way.measured_key() != self.base.measured_key():
                candidate.way.release(self.moment, needed_later=True)
        self.tried[candidate.name], self.scores[candidate.name] = candidate, scores
        return scores

    def damage(self, name: str) -> float:
        return float(self.scores[name][self.damage_name])

    def _in_any_case(self, candidate: Candidate) -> bool:
        """Whether it is judged whatever the search says of it."""
        return candidate.family in PLAIN if self.judged == "all" else candidate.name in BESIDE

    def hopeless(self) -> dict[str, str]:
        """Refinements that another candidate is far better than, on these examples, in no more bytes."""
        if self.judged != "all":
            return {}
        sizes = {name: candidate.packed_bytes(self.moment) for name, candidate in self.tried.items()}
        found: dict[str, str] = {}
        for name, candidate in self.tried.items():
            better = [
                other
                for other in self.tried
                if sizes[other] <= sizes[name] and HOPELESS * self.damage(other) < self.damage(name)
            ]
            if better and not self._in_any_case(candidate):
                found[name] = min(better, key=self.damage)
        return found

    def not_near(self, limits: Sequence[float], max_bytes: int | None) -> list[str]:
        """Of the search's frontier, what does much more or less damage than what may be lost, or takes more bytes.

        What is better than another that is judged in any case is judged too, so that the other is not recommended
        instead of it.
        """
        if self.judged == "all" or not limits:
            return []
        sizes = {name: candidate.packed_bytes(self.moment) for name, candidate in self.tried.items()}
        front = undominated(Point(name, sizes[name], self.damage(name)) for name in self.tried)
        beside = [name for name in BESIDE if name in self.tried]
        kept = {*beside, *(self._better(name, sizes) for name in beside)}
        for limit in limits:
            kept |= set(sorted(front, key=lambda name: self._distance(name, limit))[: NEAREST // len(limits) + 1])
        if max_bytes is not None:
            fitting = [name for name in front if sizes[name] <= max_bytes]
            kept |= set(sorted(fitting, key=self.damage)[:NEAREST])
        return [name for name in self.tried if name not in kept]

    def _distance(self, name: str, limit: float) -> float:
        """Of a damage from what may be lost, in powers; last is what is not finite."""
        damage = self.damage(name)
        return abs(math.log(max(damage, LEAST) / max(limit, LEAST))) if math.isfinite(damage) else math.inf

    def _better(self, name: str, sizes: Mapping[str, int]) -> str:
        """The smallest that does no more damage; itself, if its outputs are not finite, as of a cast that overflows."""
        at_least = [other for other in self.tried if self.damage(other) <= self.damage(name)]
        return min(at_least, key=lambda other: (sizes[other], self.damage(other)), default=name)

    def notes(
        self, tried: Sequence[Configuration], best: Configuration, dropped: Mapping[str, str], far: Sequence[str]
    ) -> dict[str, Any]:
        """On the configurations that were `tried` on held-out examples, and on the best, which is recommended."""
        families: dict[str, str] = {name: candidate.family for name, candidate in self.tried.items()}
        ways = {name: candidate.way.described() for name, candidate in self.tried.items()}
        return {
            "verdict": "mixed" if families.get(best.name) == "mixed" else "uniform",
            "recommended": dict(best.bits), "recommended_name": best.name,
            "recommended_scheme": ways.get(best.name, self.base.described()),
            "bits": {item.name: dict(item.bits) for item in tried},
            "schemes": {name: way for name, way in ways.items() if name not in {*dropped, *far}},
            "family": {ORIGINAL: ORIGINAL, **families}, "dropped": dict(dropped), "far": list(far),
            "same": self.same,
            "left_out": self.left_out, "search_examples": len(self.original["sums"]["positions"]),
            "held_out_examples": len(best.scores["sums"]["positions"]), "alone_examples": self.alone.examples,
            "embeddings": self.base.embeddings,
        }  # fmt: skip

    def is_near(self, name: str) -> bool:
        return self.tolerance.is_near(self.original, self.scores[name])
