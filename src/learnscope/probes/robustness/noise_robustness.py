"""How much noise on the weights changes a model."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

from learnscope.core.moment import Moment
from learnscope.core.remembered import is_remembered
from learnscope.model.bits.quantised_units import Unit, find_units
from learnscope.model.guard import guard
from learnscope.model.outputs.example_sums import example_sums_of_pass, outputs_of_batches
from learnscope.model.robustness.weight_noise import Draws, NoiseKind, noised
from learnscope.probes.robustness.shared import SeededProbe, check_counted, check_numbers, column, means, over_seeds
from learnscope.quantities.robustness import NoiseRobustness as Q
from learnscope.record import Measurement, Table
from learnscope.tensor.bits.quantize import WHOLE_BITS


class NoiseRobustness(SeededProbe):
    """The model with noise on its weights, for several seeds; its own weights are restored bit for bit.

    Noise is added to the weights that could be quantised: Linear, Conv, Conv1D, attention and recurrent weights, for
    "weight_noise" embeddings and heads too. Norms, biases and position embeddings stay. Scopes:

    - "weight_noise": N(0, (σ·rms of the weight's output channel)²), `level` is σ.
    - "quantisation_noise": U(−s/2, s/2) with the scale s of the channel at `level` bits: what rounding does if its
      errors are independent of the weights and of each other.

    Notes: `examples`, `positions`, `weights` (how many of the model's are given noise, by scope).
    """

    sigmas: Sequence[float] = (0.01, 0.05, 0.1)
    bits: Sequence[int] = (8, 6, 4)

    cost = "a forward pass over the examples for each level and seed"

    def __post_init__(self) -> None:
        super().__post_init__()
        check_numbers(self, "sigmas", self.sigmas, low=0)
        check_numbers(self, "bits", self.bits, low=WHOLE_BITS.start, whole=True)
        if max(self.bits) not in WHOLE_BITS:
            raise ValueError(f"NoiseRobustness(bits={self.bits!r}): from {WHOLE_BITS.start} to {WHOLE_BITS.stop - 1}")

    def measure(self, moment: Moment) -> Measurement:
        batches, _ = self.batches(moment)
        plan: list[tuple[NoiseKind, float]] = [("weight_noise", float(sigma)) for sigma in sorted(set(self.sigmas))]
        plan += [("quantisation_noise", bits) for bits in sorted(set(self.bits), reverse=True)]
        sizes = [moment.task.size(batch) for batch in batches]
        tables, results = [], {}
        missing: dict[NoiseKind, list[float]] = {}
        for kind, level in plan:
            if not is_remembered(moment, self._key(kind, level, sizes)):
                missing.setdefault(kind, []).append(level)
        found: dict[tuple[NoiseKind, float], dict[str, Any]] = {}
        for kind, level in moment.track(plan, "noise on weights"):
            run = partial(self._noised, moment, batches, kind, level, missing.get(kind, []), found)
            results = moment.remember(self._key(kind, level, sizes), run)
            labels = {"level": level}
            columns = [*over_seeds(Q, results["runs"], labels), column(Q.seeds, self.seeds, labels)]
            tables.append(Table("noise", [kind], columns))
        weights = {kind: sum(unit.numel for unit in _units(moment, kind)) for kind in dict(plan)}
        notes = {"examples": sum(sizes), "positions": results["positions"], "weights": weights}
        return Measurement(tables, notes=notes)

    def _key(self, kind: NoiseKind, level: float, sizes: Sequence[int]) -> dict[str, Any]:
        return {"what": kind, "level": level, "seeds": self.seeds, "seed": self.seed, "examples": sizes}

    def _noised(
        self, moment: Moment, batches: Sequence[Any], kind: NoiseKind, level: float, levels: Sequence[float],
        found: dict[tuple[NoiseKind, float], dict[str, Any]],
    ) -> dict[str, Any]:  # fmt: skip
        """The runs at this level, and in `found` those at the other `levels`: all have the same draws, so that levels
        differ in size only, and these are made once."""
        if (kind, level) in found:
            return found[kind, level]
        model, task, units = moment.model, moment.task, _units(moment, kind)
        examples = sum(task.size(batch) for batch in batches)
        reference = moment.once(("kept outputs", examples), lambda: outputs_of_batches(model, task, batches))
        for each in (levels := levels or [level]):
            found[kind, each] = {"runs": [], "positions": 0}
        for place in range(self.seeds):
            draws = Draws(kind, self.seed + place)
            for each in levels:
                with guard(model), noised(model, units, kind, each, draws), moment.sealing():
                    sums = check_counted(example_sums_of_pass(model, task, batches, reference)).plain()
                found[kind, each]["runs"].append(means(sums))
                found[kind, each]["positions"] = sum(sums["positions"])
        return found[kind, level]


def _units(moment: Moment, kind: NoiseKind) -> list[Unit]:
    everywhere = kind == "weight_noise"
    return moment.once(("units", everywhere), lambda: find_units(moment.model, embeddings=everywhere))
