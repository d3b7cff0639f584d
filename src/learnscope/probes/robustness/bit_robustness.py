"""Whether fewer bits make a model easier to attack, and whether attacks on one width work on another."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any

from learnscope.core.moment import Moment
from learnscope.model.bits.copies import QuantisedCopies
from learnscope.model.bits.quantise import quantised
from learnscope.model.bits.quantised_units import Unit, find_units
from learnscope.model.guard import guard
from learnscope.probes.robustness.attack_runner import AttackProbe, AttackRunner
from learnscope.probes.robustness.attacks import EPSILONS
from learnscope.probes.robustness.shared import check_numbers, difference_columns, outcome_columns
from learnscope.quantities.robustness import BitRobustness as Q
from learnscope.record import Measurement, Table
from learnscope.tensor.bits.quantize import QuantiseError, Scheme, checked_bits

AS_STORED = 0


class BitRobustness(AttackProbe):
    """PGD against the model with its blocks in fewer bits, and each attack tested at every other width.

    An attack is made with the gradients of the model at `attack_bits`, and tested at `test_bits`; 0 is the model as it
    is stored. Weights are rounded per output channel, attention and MLP of every block (every weight module of a model
    without blocks); embeddings stay, so that an attack means the same at every width.

    Notes: `epsilon`, `norm`, `unit`, `per`, `target`, `steps`, `restarts`, `examples`, `positions`.
    """

    bits: Sequence[int] = (8, 4)
    """Besides the model as it is stored."""
    epsilon: float | None = None
    """By default the middle one of `Attacks`."""
    steps: int = 5

    cost = "`steps` forward and backward passes for each width, and one pass for each pair of widths"

    def __post_init__(self) -> None:
        super().__post_init__()
        check_numbers(self, "bits", self.bits, low=2, whole=True)
        try:
            for bits in self.bits:
                checked_bits(bits)
        except QuantiseError as error:
            raise ValueError(f"BitRobustness(bits={self.bits!r}): {error}") from error
        if self.epsilon is not None:
            check_numbers(self, "epsilon", [self.epsilon], low=0)

    def measure(self, moment: Moment) -> Measurement:
        runner, what = self.runner(moment)
        threat = runner.threat
        epsilon = float(EPSILONS[what][len(EPSILONS[what]) // 2] if self.epsilon is None else self.epsilon)
        widths = [AS_STORED, *sorted(set(self.bits), reverse=True)]
        key = {
            **runner.key("attack at one width, tested at others"), "epsilon": epsilon, "steps": self.steps,
            "restarts": self.restarts, "test_bits": widths,
        }  # fmt: skip
        transfer, positions, stored = [], [], {}
        for attack_bits in moment.track(widths, "attacks at fewer bits"):
            run = partial(self._attacked, runner, epsilon, attack_bits, widths)
            results = moment.remember({**key, "attack_bits": attack_bits}, run)
            for test_bits, sums in zip(widths, results["at"], strict=True):
                labels = {"attack_bits": attack_bits, "test_bits": test_bits}
                transfer += outcome_columns(Q, sums, labels)
                positions = sums["positions"]
                if attack_bits == test_bits == AS_STORED:
                    stored = sums
                elif attack_bits == test_bits:
                    change = (Q.accuracy_change, Q.accuracy_change_low, Q.accuracy_change_high)
                    transfer += difference_columns(change, sums, stored, labels)
        unattacked = moment.remember({**key, "attack_bits": None}, partial(_unattacked, runner, widths))
        pairs = zip(widths, unattacked["at"], strict=True)
        clean = [column for bits, sums in pairs for column in outcome_columns(Q, sums, {"bits": bits})]
        notes = {
            "epsilon": epsilon, "norm": threat.norm, "unit": threat.unit, "per": threat.per, "target": what,
            "steps": self.steps, "restarts": self.restarts, "examples": len(positions), "positions": sum(positions),
        }  # fmt: skip
        return Measurement([Table("transfer", ["pgd"], transfer), Table("bits", ["clean"], clean)], notes=notes)

    def _attacked(
        self, runner: AttackRunner, epsilon: float, attack_bits: int, widths: Sequence[int]
    ) -> dict[str, Any]:
        runner.balls(epsilon)  # computed from the model as it is stored
        with _at_width(runner.moment, attack_bits):
            attacked = runner.perturbations(epsilon, self.steps, self.restarts)
            own = runner.evaluate_attacked(attacked, compared=False)
        return _tested(runner, [attack.delta for attack in attacked], widths, {attack_bits: own})


def _tested(
    runner: AttackRunner, deltas: Sequence[Any] | None, widths: Sequence[int], known: Mapping[int, dict[str, Any]]
) -> dict[str, Any]:
    """The results at every width, those that are known as they are."""
    results = []
    for bits in widths:
        if bits in known:
            results.append(known[bits])
            continue
        with _at_width(runner.moment, bits):
            results.append(runner.evaluate(deltas, compared=False))
    return {"at": results}


def _unattacked(runner: AttackRunner, widths: Sequence[int]) -> dict[str, Any]:
    return _tested(runner, None, widths, {AS_STORED: runner.clean(compared=False)})


@contextmanager
def _at_width(moment: Moment, bits: int) -> Iterator[None]:
    """The model with its units in these bits; afterwards it has its own weights again."""
    if bits == AS_STORED:
        yield
        return
    model = moment.model
    units: list[Unit] = moment.once(("units", False), lambda: find_units(model))
    copies = moment.once("quantised copies", lambda: QuantisedCopies(model, Scheme()))
    chosen = {unit.name: bits for unit in units}
    with guard(model), quantised(model, chosen, units=units, copies=copies), moment.sealing():
        yield
