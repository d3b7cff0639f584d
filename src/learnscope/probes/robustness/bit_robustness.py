"""Whether fewer bits make a model easier to attack, and whether attacks on one width work on another."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, ClassVar

from learnscope.core.moment import Moment
from learnscope.core.probe import At, Probe
from learnscope.model.bits.quantise import quantised
from learnscope.model.bits.quantised_units import Unit as WeightUnit
from learnscope.model.bits.quantised_units import find_units
from learnscope.model.guard import guard
from learnscope.model.outputs.example_sums import joined_sums
from learnscope.model.robustness.attack import judged
from learnscope.model.robustness.ball import Per, Unit
from learnscope.model.robustness.token_units import vocabulary_digest
from learnscope.options import check_whole
from learnscope.probes.robustness.attacking import Attacking, threat_for
from learnscope.probes.robustness.attacks import EPSILONS
from learnscope.probes.robustness.rows import (
    batches_for,
    check_counted,
    check_numbers,
    check_threat,
    outcome_columns,
)
from learnscope.quantities import Quantities
from learnscope.quantities.robustness import BitRobustness as Q
from learnscope.record import Measurement, Table
from learnscope.tensor.bits.quantize import QuantiseError, checked_bits
from learnscope.tensor.robustness.perturbation import Norm

AS_STORED = 0


class BitRobustness(Probe):
    """PGD against the model with its blocks in fewer bits, and each attack tried on every other width.

    An attack is made with the gradients of the model at `attack_bits`, and judged at `test_bits`; 0 is the model as it
    is stored. Weights are rounded per output channel, attention and MLP of every block (every weight module of a model
    without blocks); embeddings stay, so that an attack means the same at every width.

    Notes: `epsilon`, `norm`, `unit`, `per`, `target`, `steps`, `restarts`, `examples`, `positions`.
    """

    at: At = "once"
    examples: int | None = None
    """How many are attacked; by default 8 sequences of tokens, or 32 inputs."""
    bits: Sequence[int] = (8, 4)
    """Besides the model as it is stored."""
    epsilon: float | None = None
    """By default the middle one of `Attacks`."""
    norm: Norm | None = None
    per: Per | None = None
    unit: Unit | None = None
    steps: int = 5
    restarts: int = 1
    clip: tuple[float, float] | None = None
    seed: int = 0

    needs: ClassVar[frozenset[str]] = frozenset({"holdout"})
    reads_only: ClassVar[bool] = True  # whatever runs the model has a guard of its own
    quantities: ClassVar[type[Quantities]] = Q
    cost: ClassVar[str] = "`steps` forward and backward passes for each width, and one pass for each pair of widths"

    def __post_init__(self) -> None:
        super().__post_init__()
        check_whole(self, examples=1, steps=1, restarts=1, seed=0)
        check_numbers("BitRobustness", "bits", self.bits, low=2, whole=True)
        try:
            for bits in self.bits:
                checked_bits(bits)
        except QuantiseError as error:
            raise ValueError(f"BitRobustness(bits={self.bits!r}): {error}") from error
        check_threat(self)
        if self.epsilon is not None:
            check_numbers("BitRobustness", "epsilon", [self.epsilon], low=0)

    def measure(self, moment: Moment) -> Measurement:
        batches, what = batches_for(moment, self.examples)
        threat = threat_for(moment, batches, self.norm, self.per, self.unit)
        epsilon = float(EPSILONS[what][len(EPSILONS[what]) // 2] if self.epsilon is None else self.epsilon)
        attacking = Attacking(moment, batches, threat, self.clip, self.seed)
        widths = [AS_STORED, *sorted(set(self.bits), reverse=True)]
        part = {
            "what": "attack at one width, tested at others", "norm": threat.norm, "per": threat.per,
            "unit": threat.unit, "epsilon": epsilon, "steps": self.steps, "restarts": self.restarts, "seed": self.seed,
            "clip": None if self.clip is None else [float(end) for end in self.clip], "test_bits": widths,
            "examples": [moment.task.size(batch) for batch in batches],
            "vocabulary": vocabulary_digest(moment.subject.tokenizer),
        }  # fmt: skip
        columns, positions = [], []
        for attack_bits in moment.track(widths, "attacks at fewer bits"):

            def run(attack_bits: int = attack_bits) -> dict[str, Any]:
                return self._attacked(moment, attacking, epsilon, attack_bits, widths)

            told = moment.remember({**part, "attack_bits": attack_bits}, run)
            for test_bits, sums in zip(widths, told["at"], strict=True):
                columns += outcome_columns(Q, sums, {"attack_bits": attack_bits, "test_bits": test_bits})
                positions = sums["positions"]
        clean = moment.remember({**part, "attack_bits": None}, lambda: self._clean(moment, attacking, widths))
        pairs = zip(widths, clean["at"], strict=True)
        beside = [one for bits, sums in pairs for one in outcome_columns(Q, sums, {"bits": bits})]
        notes = {
            "epsilon": epsilon, "norm": threat.norm, "unit": threat.unit, "per": threat.per, "target": what,
            "steps": self.steps, "restarts": self.restarts, "examples": len(positions), "positions": sum(positions),
        }  # fmt: skip
        return Measurement([Table("transfer", ["pgd"], columns), Table("bits", ["clean"], beside)], notes=notes)

    def _attacked(
        self, moment: Moment, attacking: Attacking, epsilon: float, attack_bits: int, widths: Sequence[int]
    ) -> dict[str, Any]:
        attacking.balls(epsilon)  # found from the model as it is stored
        with _at_width(moment, attack_bits):
            found = [one.delta for one in attacking.found_by_pgd(epsilon, self.steps, self.restarts)]
        return {"at": [self._judged(moment, attacking, found, bits) for bits in widths]}

    def _clean(self, moment: Moment, attacking: Attacking, widths: Sequence[int]) -> dict[str, Any]:
        nothing = [None] * len(attacking.batches)
        return {"at": [self._judged(moment, attacking, nothing, bits) for bits in widths]}

    def _judged(self, moment: Moment, attacking: Attacking, deltas: Sequence[Any], bits: int) -> dict[str, Any]:
        targets = attacking.targets
        with _at_width(moment, bits):
            pairs = zip(targets, deltas, strict=True)
            sums = joined_sums([judged(moment.model, moment.task, target, d) for target, d in pairs])
        return check_counted(sums).plain()


@contextmanager
def _at_width(moment: Moment, bits: int) -> Iterator[None]:
    """The model with its units in these bits; its own weights are back afterwards."""
    if bits == AS_STORED:
        yield
        return
    units: list[WeightUnit] = moment.once(("units", False), lambda: find_units(moment.model))
    with (
        guard(moment.model),
        quantised(moment.model, {unit.name: bits for unit in units}, units=units),
        moment.sealing(),
    ):
        yield
