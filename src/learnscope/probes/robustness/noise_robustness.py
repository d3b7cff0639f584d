"""How much noise on the weights changes a model."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

from learnscope.core.moment import Moment
from learnscope.model.bits.quantised_units import Unit, find_units
from learnscope.model.guard import guard
from learnscope.model.outputs.example_sums import example_sums_of_pass, outputs_of_batches
from learnscope.model.robustness.weight_noise import NoiseKind, noised
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
        for kind, level in moment.track(plan, "noise on weights"):
            key = {"what": kind, "level": level, "seeds": self.seeds, "seed": self.seed, "examples": sizes}
            results = moment.remember(key, partial(self._noised, moment, batches, kind, level))
            labels = {"level": level}
            columns = [*over_seeds(Q, results["runs"], labels), column(Q.seeds, self.seeds, labels)]
            tables.append(Table("noise", [kind], columns))
        weights = {kind: sum(unit.numel for unit in _units(moment, kind)) for kind in dict(plan)}
        notes = {"examples": sum(sizes), "positions": results["positions"], "weights": weights}
        return Measurement(tables, notes=notes)

    def _noised(self, moment: Moment, batches: Sequence[Any], kind: NoiseKind, level: float) -> dict[str, Any]:
        model, task, units = moment.model, moment.task, _units(moment, kind)
        examples = sum(task.size(batch) for batch in batches)
        reference = moment.once(("kept outputs", examples), lambda: outputs_of_batches(model, task, batches))
        runs: list[dict[str, float | None]] = []
        positions = 0
        for place in range(self.seeds):
            # the same draws at every level, so that levels differ in size only
            with guard(model), noised(model, units, kind, level, self.seed + place), moment.sealing():
                sums = check_counted(example_sums_of_pass(model, task, batches, reference)).plain()
            positions = sum(sums["positions"])
            runs.append(means(sums))
        return {"runs": runs, "positions": positions}


def _units(moment: Moment, kind: NoiseKind) -> list[Unit]:
    everywhere = kind == "weight_noise"
    return moment.once(("units", everywhere), lambda: find_units(moment.model, embeddings=everywhere))
