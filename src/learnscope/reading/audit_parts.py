"""The parts of an audit, each with its numbers by name."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from typing import ClassVar

from learnscope.quantities import Quantities, bits, cost, robustness
from learnscope.reading.audit_numbers import CountOf, Entry, Label, Number, NumberOf, Part


class Setting(Entry):
    """One shape of input that was timed: seconds, and throughput."""

    mean, p50 = NumberOf(cost.InferenceSpeed.latency_mean), NumberOf(cost.InferenceSpeed.latency_p50)
    p95, p99 = NumberOf(cost.InferenceSpeed.latency_p95), NumberOf(cost.InferenceSpeed.latency_p99)
    n = CountOf(cost.InferenceSpeed.latency_n)
    phase, batch, length, main = Label("phase", ""), Label("batch", 1), Label("length", 0), Label("main", False)
    tokens_per_second = NumberOf(cost.InferenceSpeed.tokens_per_second)
    examples_per_second = NumberOf(cost.InferenceSpeed.examples_per_second)

    @property
    def description(self) -> str:
        """
        >>> Setting(labels={"phase": "decode", "batch": 1, "length": 64}).description
        'decode, batch 1, length 64'
        """
        return f"{self.phase}, {self.at}"

    @property
    def at(self) -> str:
        return f"batch {self.batch}" + (f", length {self.length}" if self.length else "")

    @property
    def rate(self) -> tuple[Number, str]:
        """Tokens per second, or examples where inputs have no tokens."""
        if self.tokens_per_second.value is None and self.examples_per_second.value is not None:
            return self.examples_per_second, "examples/s"
        return self.tokens_per_second, "tokens/s"


class Speed(Part):
    quantities = cost.InferenceSpeed

    @cached_property
    def settings(self) -> list[Setting]:
        return [setting for setting in self.of("model", Setting) if "phase" in setting.labels]

    @property
    def main(self) -> Setting:
        return next((setting for setting in self.settings if setting.main), self.settings[0])

    def of_phase(self, phase: str) -> list[Setting]:
        return [setting for setting in self.settings if setting.phase == phase]

    @property
    def alone(self) -> Setting | None:
        """What one user waits for: decoding at batch 1 after the longest text; a pass over one example for models that
        do not decode. None if that was not tried."""
        phase = "decode" if self.of_phase("decode") else "forward"
        single = [setting for setting in self.of_phase(phase) if setting.batch == 1]
        timed = [setting for setting in single if setting.rate[0].value is not None]
        return max(timed or single, key=lambda setting: setting.length, default=None)


class Running(Entry):
    """What running takes beside the weights, for one batch."""

    cache, activations = NumberOf(cost.MemoryUse.cache_bytes), NumberOf(cost.MemoryUse.activation_bytes)
    phase, batch, length = Label("phase", ""), Label("batch", 1), Label("length", 0)

    @property
    def where(self) -> str:
        """
        >>> Running(labels={"batch": 1, "length": 128}).where, Running(labels={"batch": 8}).where
        ('batch 1, 128 tokens', 'batch 8')
        """
        return f"batch {self.batch}" + (f", {self.length} tokens" if self.length else "")


class Memory(Part):
    quantities = cost.MemoryUse
    parameters, model_bytes = NumberOf(cost.MemoryUse.parameters), NumberOf(cost.MemoryUse.model_bytes)
    peak_bytes, run_bytes = NumberOf(cost.MemoryUse.peak_bytes), NumberOf(cost.MemoryUse.run_bytes)
    read_parameters, read_bytes = NumberOf(cost.MemoryUse.read_parameters), NumberOf(cost.MemoryUse.read_bytes)

    @property
    def running(self) -> list[Running]:
        return [one for one in self.of("model", Running) if cost.MemoryUse.activation_bytes.name in one.cells]

    @property
    def alone(self) -> Running | None:
        """For one example."""
        return next((one for one in self.running if one.batch == 1), None)

    @property
    def process(self) -> str | None:
        return next((entry.labels["process"] for entry in self.entries if "process" in entry.labels), None)

    @property
    def parts(self) -> dict[str, Number]:
        """Bytes of the weights by purpose, largest first."""
        sizes = {entry.scope: entry["bytes"] for entry in self.of("part", Entry)}
        return dict(sorted(sizes.items(), key=lambda item: -(item[1].value or 0)))


class Layers(Part):
    quantities = cost.LayerTimes
    total = NumberOf(cost.LayerTimes.total_seconds)

    @property
    def modules(self) -> dict[str, Number]:
        """Seconds spent in each module, without its submodules."""
        return {entry.scope: entry["self_seconds"] for entry in self.of("module", Entry)}

    @property
    def layers(self) -> dict[str, Number]:
        return {entry.scope: entry["total_seconds"] for entry in self.of("layer", Entry)}

    @property
    def n(self) -> int | None:
        """Number of passes."""
        return self.notes.get("passes")


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


class Copy(Entry):
    """A copy of the model with packed weights, and its measured latency."""

    latency, speed_up = NumberOf(cost.ExportedSpeed.latency_p50), NumberOf(cost.ExportedSpeed.speed_up)
    held, kl = NumberOf(cost.ExportedSpeed.weight_bytes), NumberOf(cost.ExportedSpeed.kl)
    n = CountOf(cost.ExportedSpeed.latency_n)
    decode_latency = NumberOf(cost.ExportedSpeed.decode_latency_p50)
    decode_speed_up = NumberOf(cost.ExportedSpeed.decode_speed_up)


class Exported(Part):
    quantities = cost.ExportedSpeed

    @property
    def copies(self) -> dict[str, Copy]:
        """The original, and packed copies by format, such as int8."""
        return {copy.name: copy for copy in self.of("exported", Copy)}


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
