"""The parts of an audit, each with its numbers by name."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cached_property

from learnscope.quantities import bits, cost, robustness
from learnscope.quantities.outputs import Performance
from learnscope.reading.audit_numbers import Entry, Label, Number, Of, Part, Whole


class Quality(Part):
    loss, perplexity, accuracy = Of(Performance.loss), Of(Performance.perplexity), Of(Performance.accuracy)
    n_examples, positions = Whole(Performance.examples), Whole(Performance.positions)

    @property
    def top_k(self) -> dict[int, Number]:
        by_k = {one.labels["k"]: one["top_k_accuracy"] for one in self.entries if one.labels.get("k")}
        return {int(k): by_k[k] for k in sorted(by_k)}


class Setting(Entry):
    """One shape of input that was timed: seconds, and what is done in a second."""

    mean, p50 = Of(cost.InferenceSpeed.latency_mean), Of(cost.InferenceSpeed.latency_p50)
    p95, p99 = Of(cost.InferenceSpeed.latency_p95), Of(cost.InferenceSpeed.latency_p99)
    n = Whole(cost.InferenceSpeed.latency_n)
    phase, batch, length, main = Label("phase", ""), Label("batch", 1), Label("length", 0), Label("main", False)
    tokens_per_second = Of(cost.InferenceSpeed.tokens_per_second)
    examples_per_second = Of(cost.InferenceSpeed.examples_per_second)

    @property
    def said(self) -> str:
        """
        >>> Setting(labels={"phase": "decode", "batch": 1, "length": 64}).said
        'decode, batch 1, length 64'
        """
        return f"{self.phase}, batch {self.batch}" + (f", length {self.length}" if self.length else "")

    @property
    def rate(self) -> tuple[Number, str]:
        """Tokens a second, or examples where inputs have no tokens."""
        if self.tokens_per_second.value is None and self.examples_per_second.value is not None:
            return self.examples_per_second, "examples/s"
        return self.tokens_per_second, "tokens/s"


class Speed(Part):
    @cached_property
    def settings(self) -> list[Setting]:
        return [one for one in self.of("model", Setting) if "phase" in one.labels]

    @property
    def main(self) -> Setting:
        return next((one for one in self.settings if one.main), self.settings[0])


class Memory(Part):
    parameters, model_bytes = Of(cost.MemoryUse.parameters), Of(cost.MemoryUse.model_bytes)
    peak_bytes, run_bytes = Of(cost.MemoryUse.peak_bytes), Of(cost.MemoryUse.run_bytes)

    @property
    def process(self) -> str | None:
        return next((one.labels["process"] for one in self.entries if "process" in one.labels), None)

    @property
    def parts(self) -> dict[str, Number]:
        """Bytes of the weights by what they are for, the largest first."""
        sizes = {one.scope: one["bytes"] for one in self.of("part", Entry)}
        return dict(sorted(sizes.items(), key=lambda item: -(item[1].value or 0)))


class Layers(Part):
    total = Of(cost.LayerTimes.total_seconds)

    @property
    def modules(self) -> dict[str, Number]:
        """Seconds spent in a module itself, without those inside it."""
        return {one.scope: one["self_seconds"] for one in self.of("module", Entry)}

    @property
    def layers(self) -> dict[str, Number]:
        return {one.scope: one["total_seconds"] for one in self.of("layer", Entry)}

    @property
    def n(self) -> int | None:
        """Passes."""
        return None if self.notes.get("passes") is None else int(self.notes["passes"])


@dataclass(frozen=True)
class Unit:
    """Weights that are quantised together, and what that costs when they alone are, by bits."""

    name: str
    layer: str
    part: str
    cost: Mapping[int, Number]


class Sensitivity(Part):
    @cached_property
    def units(self) -> list[Unit]:
        costs: dict[str, dict[int, Number]] = {}
        for one in self.of("unit", Entry):
            by_bits = costs.setdefault(one.scope, {})
            if "bits" in one.labels:
                by_bits[int(one.labels["bits"])] = one[self.judged_by]
        facts = {name: (self.notes.get("units") or {}).get(name) or {} for name in costs}
        return [
            Unit(name, str(facts[name].get("layer", name)), str(facts[name].get("part", "other")), by_bits)
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
    """Configurations of bits that were tried."""

    @cached_property
    def items(self) -> list[Configuration]:
        families = self.notes.get("family") or {}
        return [
            replace(one, family=str(families.get(one.name) or one.name.split("_")[0]))
            for one in self.of("configuration", Configuration)
        ]

    @property
    def judged_by(self) -> str:
        """What all were compared by: KL, or the squared error where nothing has classes."""
        return "kl" if any(one["kl"].value is not None for one in self.items) else "mse"

    def named(self, name: str | None) -> Configuration | None:
        return next((one for one in self.items if one.name == name), None)


class Configurations(Tried):
    @cached_property
    def items(self) -> list[Configuration]:
        """Off the frontier if another record's configuration is smaller and better: each record saw only its own."""
        tried = Tried(self.probe, self.notes, self.entries)
        judged = tried.judged_by
        return [
            replace(one, cells={**one.cells, "on_frontier": (0.0, None)})
            if one["on_frontier"].value == 1 and any(_dominates(other, one, judged) for other in tried.items)
            else one
            for one in tried.items
        ]


def _dominates(other: Configuration, one: Configuration, judged: str) -> bool:
    size, damage = other["packed_bytes"].value, other[judged].value
    own_size, own_damage = one["packed_bytes"].value, one[judged].value
    if size is None or damage is None or own_size is None or own_damage is None:
        return False
    return size <= own_size and damage <= own_damage and (size, damage) != (own_size, own_damage)


class Optimum(Tried):
    mixed_wins = Of(bits.BitOptimum.mixed_wins)

    @property
    def chosen(self) -> dict[str, int]:
        """Bits of every unit in the best mix."""
        chosen = {one.scope: one["chosen_bits"].whole for one in self.of("unit", Entry)}
        return {unit: width for unit, width in chosen.items() if width is not None}

    @property
    def recommended(self) -> dict[str, int]:
        return {str(unit): int(width) for unit, width in (self.notes.get("recommended") or {}).items()}

    @property
    def recommended_name(self) -> str | None:
        name = self.notes.get("recommended_name")
        return None if name is None else str(name)


class Copy(Entry):
    """A model as it is held, and how long a pass of it really takes."""

    latency, speed_up = Of(cost.ExportedSpeed.latency_p50), Of(cost.ExportedSpeed.speed_up)
    held, kl = Of(cost.ExportedSpeed.weight_bytes), Of(cost.ExportedSpeed.kl)
    n = Whole(cost.ExportedSpeed.latency_n)


class Exported(Part):
    @property
    def copies(self) -> dict[str, Copy]:
        """By what they hold, such as int8."""
        return {one.name: one for one in self.of("exported", Copy) if one.name != "original"}

    @property
    def original(self) -> Copy | None:
        return next((one for one in self.of("exported", Copy) if one.name == "original"), None)


class Attack(Entry):
    """One attack of one strength; epsilon is given in `unit`."""

    accuracy = Of(robustness.Attacks.accuracy)
    zero_gradient_share = Of(robustness.Attacks.zero_gradient_share)
    norm, epsilon = Label("norm", ""), Label("epsilon", 0.0)
    unit, steps = Label("unit", "absolute"), Label("steps", 0)


class Attacks(Part):
    gap = Of(robustness.Attacks.robustness_gap)

    @property
    def clean(self) -> Attack | None:
        return next((one for one in self.of("attack", Attack) if one.name == "clean"), None)

    @property
    def attacks(self) -> list[Attack]:
        return [one for one in self.of("attack", Attack) if one.name != "clean"]


class Level(Entry):
    """A model or its inputs disturbed to some level, over several seeds."""

    accuracy, loss = Of(robustness.NoiseRobustness.accuracy_mean), Of(robustness.NoiseRobustness.loss_mean)
    kl, changed = Of(robustness.NoiseRobustness.kl_mean), Of(robustness.InputPerturbation.changed_share)
    level, seeds = Label("level", 0.0), Whole(robustness.NoiseRobustness.seeds)


class Levels(Part):
    @property
    def levels(self) -> list[Level]:
        return [*self.of("noise", Level), *self.of("perturbation", Level)]

    @property
    def clean(self) -> Level | None:
        return next((one for one in self.levels if one.name == "clean"), None)

    def by_name(self) -> dict[str, list[Level]]:
        """Disturbances apart, each from its lowest level to its highest."""
        out: dict[str, list[Level]] = {}
        for one in sorted(self.levels, key=lambda one: one.level):
            if one.name != "clean":
                out.setdefault(one.name, []).append(one)
        return out


class Transfer(Part):
    @property
    def accuracy(self) -> dict[tuple[int, int], Number]:
        """By the bits that the attack was made with and those that it was tried on; 0 is the model as it is stored."""
        entries = self.of("transfer", Attack)
        return {(int(one.labels["attack_bits"]), int(one.labels["test_bits"])): one.accuracy for one in entries}

    @property
    def clean(self) -> dict[int, Number]:
        """Accuracy without an attack, by bits."""
        return {int(one.labels["bits"]): one.accuracy for one in self.of("bits", Attack)}
