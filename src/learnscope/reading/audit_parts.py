"""The parts of an audit, each with its numbers by name."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from typing import ClassVar

from learnscope.quantities import Quantities, bits, robustness
from learnscope.reading.audit_numbers import CountOf, Entry, Label, Number, NumberOf, Part


@dataclass(frozen=True)
class Unit:
    """Weights that are quantised together, and the damage by bits when only they are quantised."""

    name: str
    layer: str
    part: str
    cost: Mapping[int, Number]


class Sensitivity(Part):
    quantities = bits.BitSensitivity

    @cached_property
    def units(self) -> list[Unit]:
        costs: dict[str, dict[int, Number]] = {}
        for entry in self.of("unit", Entry):
            by_bits = costs.setdefault(entry.scope, {})
            if "bits" in entry.labels:
                by_bits[int(entry.labels["bits"])] = entry[self.judged_by]
        facts = {name: self.notes.get("units", {}).get(name, {}) for name in costs}
        return [
            Unit(name, facts[name].get("layer", name), facts[name].get("part", "other"), by_bits)
            for name, by_bits in costs.items()
        ]

    @property
    def judged_by(self) -> str:
        return str(self.notes.get("judged_by", "kl"))

    @property
    def bits(self) -> list[int]:
        return sorted({b for unit in self.units for b in unit.cost}, reverse=True)


@dataclass(frozen=True)
class Configuration(Entry):
    family: str = ""


class Tried(Part):
    """Configurations of bits that were measured."""

    @cached_property
    def items(self) -> list[Configuration]:
        families = self.notes.get("family") or {}
        return [
            replace(item, family=str(families.get(item.name) or item.name.split("_")[0]))
            for item in self.of("configuration", Configuration)
        ]

    @property
    def judged_by(self) -> str:
        """What all were compared by: KL, or the squared error where outputs are not distributions."""
        kl = [entry["kl"].value for entry in self.of("configuration", Entry)]
        return "mse" if all(value is None for value in kl) else "kl"

    def named(self, name: str | None) -> Configuration | None:
        return next((item for item in self.items if item.name == name), None)


class Configurations(Tried):
    quantities = bits.BitWidths

    @cached_property
    def items(self) -> list[Configuration]:
        """Each record compared only its own; off the frontier is also what another record's configuration dominates."""
        tried = super().items
        return [
            replace(item, cells={**item.cells, "on_frontier": (0.0, None)})
            if item["on_frontier"].value == 1 and any(_dominates(other, item, self.judged_by) for other in tried)
            else item
            for item in tried
        ]


def _dominates(other: Configuration, item: Configuration, measure: str) -> bool:
    size, damage = other["packed_bytes"].value, other[measure].value
    own_size, own_damage = item["packed_bytes"].value, item[measure].value
    if size is None or damage is None or own_size is None or own_damage is None:
        return False
    return size <= own_size and damage <= own_damage and (size, damage) != (own_size, own_damage)


class Optimum(Tried):
    quantities: ClassVar[type[Quantities]] = bits.BitOptimum
    mixed_wins = NumberOf(bits.BitOptimum.mixed_wins)

    @property
    def chosen(self) -> dict[str, int]:
        """Bits of every unit in the best mix."""
        chosen = {entry.scope: entry["chosen_bits"].integer for entry in self.of("unit", Entry)}
        return {unit: width for unit, width in chosen.items() if width is not None}

    @property
    def recommended(self) -> dict[str, int]:
        return self.notes.get("recommended") or {}

    @property
    def recommended_name(self) -> str | None:
        return self.notes.get("recommended_name")


class Attack(Entry):
    """One attack of one strength; epsilon is in `unit`."""

    accuracy = NumberOf(robustness.Attacks.accuracy)
    loss = NumberOf(robustness.Attacks.loss)
    accuracy_change = NumberOf(robustness.BitRobustness.accuracy_change)
    zero_gradient_share = NumberOf(robustness.Attacks.zero_gradient_share)
    norm, epsilon = Label("norm", ""), Label("epsilon", 0.0)
    unit, steps = Label("unit", "absolute"), Label("steps", 0)


class Attacks(Part):
    quantities = robustness.Attacks
    gap = NumberOf(robustness.Attacks.robustness_gap)

    @property
    def clean(self) -> Attack | None:
        return next((attack for attack in self.of("attack", Attack) if attack.name == "clean"), None)

    @property
    def attacks(self) -> list[Attack]:
        return [attack for attack in self.of("attack", Attack) if attack.name != "clean"]


class AutoAttacks(Part):
    """AutoAttack beside PGD, on images."""

    quantities = robustness.AutoAttack
    gap, pgd_gap = NumberOf(robustness.AutoAttack.robustness_gap), NumberOf(robustness.AutoAttack.pgd_gap)

    @property
    def clean(self) -> Attack | None:
        return next((attack for attack in self.of("attack", Attack) if attack.name == "clean"), None)

    @property
    def attacks(self) -> list[Attack]:
        measured = [attack for attack in self.of("attack", Attack) if attack.accuracy.value is not None]
        return [attack for attack in measured if attack.name != "clean"]


class Level(Entry):
    """Noise on the weights or on the inputs of one level, over several seeds."""

    accuracy, loss = NumberOf(robustness.NoiseRobustness.accuracy_mean), NumberOf(robustness.NoiseRobustness.loss_mean)
    kl, changed = NumberOf(robustness.NoiseRobustness.kl_mean), NumberOf(robustness.InputPerturbation.changed_share)
    level, seeds = Label("level", 0.0), CountOf(robustness.NoiseRobustness.seeds)


class Levels(Part):
    @property
    def levels(self) -> list[Level]:
        return [*self.of("noise", Level), *self.of("perturbation", Level)]

    @property
    def clean(self) -> Level | None:
        return next((level for level in self.levels if level.name == "clean"), None)

    def by_name(self) -> dict[str, list[Level]]:
        """The levels of each kind of noise, weakest first: fewer bits are more noise."""
        kinds: dict[str, list[Level]] = {}
        for level in sorted(self.levels, key=lambda level: level.level):
            if level.name != "clean":
                kinds.setdefault(level.name, []).append(level)
        return {name: levels[::-1] if name == "quantisation_noise" else levels for name, levels in kinds.items()}


class Noise(Levels):
    quantities = robustness.NoiseRobustness


class Perturbations(Levels):
    quantities = robustness.InputPerturbation


class Transfer(Part):
    quantities = robustness.BitRobustness

    @property
    def accuracy(self) -> dict[tuple[int, int], Number]:
        """By the bits that the attack was made at and those it was tested at; 0 is the model as stored."""
        entries = self.of("transfer", Attack)
        return {(int(entry.labels["attack_bits"]), int(entry.labels["test_bits"])): entry.accuracy for entry in entries}

    @property
    def changes(self) -> dict[int, Number]:
        """By bits: the accuracy under attacks on these weights, less that of the model as stored, paired by example."""
        entries = [entry for entry in self.of("transfer", Attack) if entry.accuracy_change.value is not None]
        return {int(entry.labels["test_bits"]): entry.accuracy_change for entry in entries}

    @property
    def clean(self) -> dict[int, Number]:
        """Accuracy without an attack, by bits."""
        return {int(entry.labels["bits"]): entry.accuracy for entry in self.of("bits", Attack)}
