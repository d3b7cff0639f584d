"""What an audit found, part by part, as plain tables. A part that did not run is None, and `missing` says why."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

PROBES = {
    "quality": "Performance",
    "speed": "InferenceSpeed",
    "memory": "MemoryUse",
    "layers": "LayerTimes",
    "sensitivity": "BitSensitivity",
    "configurations": "BitWidths",
    "optimum": "BitOptimum",
    "exported": "ExportedSpeed",
    "attacks": "Attacks",
    "noise": "NoiseRobustness",
    "perturbations": "InputPerturbation",
    "transfer": "BitRobustness",
}
"""The parts of an audit and the probes that measure them."""


@dataclass(frozen=True, slots=True)
class Number:
    """A number with its 95 % interval where it has one; a value that is None has its reason in `why`."""

    value: float | None
    low: float | None = None
    high: float | None = None
    why: str | None = None

    @property
    def interval(self) -> tuple[float, float] | None:
        return None if self.low is None or self.high is None else (self.low, self.high)


NONE = Number(None, why="not recorded")


@dataclass(frozen=True, kw_only=True)
class Part:
    """Where a part comes from: the probe's label, and the notes of its last record."""

    probe: str
    notes: Mapping[str, Any] = field(default_factory=dict)

    @property
    def examples(self) -> int | None:
        found = self.notes.get("examples")
        return int(found) if isinstance(found, int | float) and not isinstance(found, bool) else None


@dataclass(frozen=True, slots=True)
class Copy:
    """A model as it is held, and how long a pass of it really takes."""

    latency: Number
    n: int | None
    speed_up: Number
    held: Number
    kl: Number


@dataclass(frozen=True, kw_only=True)
class Exported(Part):
    original: Copy | None
    copies: Mapping[str, Copy]
    """By what they hold, such as int8."""


@dataclass(frozen=True, kw_only=True)
class Quality(Part):
    loss: Number
    perplexity: Number
    accuracy: Number
    top_k: Mapping[int, Number]
    n_examples: int | None
    positions: int | None


@dataclass(frozen=True)
class Setting:
    """One shape of input that was timed: seconds, and what is done in a second."""

    phase: str
    batch: int
    length: int
    main: bool
    mean: Number
    p50: Number
    p95: Number
    p99: Number
    n: int | None
    tokens_per_second: Number
    examples_per_second: Number
    batches_per_second: Number
    flops_per_second: Number

    @property
    def said(self) -> str:
        """
        >>> Setting("decode", 1, 64, False, *[NONE] * 4, 9, *[NONE] * 4).said
        'decode, batch 1, length 64'
        """
        return f"{self.phase}, batch {self.batch}" + (f", length {self.length}" if self.length else "")

    @property
    def rate(self) -> tuple[Number, str]:
        """Tokens a second, or examples where inputs have no tokens."""
        if self.tokens_per_second.value is None and self.examples_per_second.value is not None:
            return self.examples_per_second, "examples/s"
        return self.tokens_per_second, "tokens/s"


@dataclass(frozen=True, kw_only=True)
class Speed(Part):
    settings: Sequence[Setting]

    @property
    def main(self) -> Setting:
        return next((one for one in self.settings if one.main), self.settings[0])


@dataclass(frozen=True, kw_only=True)
class Memory(Part):
    parameters: Number
    model_bytes: Number
    peak_bytes: Number
    run_bytes: Number
    process: str | None
    parts: Mapping[str, Number]
    """Bytes of the weights by what they are for, the largest first."""


@dataclass(frozen=True, kw_only=True)
class Layers(Part):
    modules: Mapping[str, Number]
    """Seconds spent in a module itself, without those inside it."""
    layers: Mapping[str, Number]
    total: Number
    n: int | None


@dataclass(frozen=True)
class Unit:
    """Weights that are quantised together, and what that costs when they alone are, by bits."""

    name: str
    layer: str
    part: str
    weights: Number
    cost: Mapping[int, Number]
    size: Mapping[int, Number]


@dataclass(frozen=True, kw_only=True)
class Sensitivity(Part):
    units: Sequence[Unit]

    @property
    def judged_by(self) -> str:
        return str(self.notes.get("judged_by", "kl"))

    @property
    def bits(self) -> list[int]:
        return sorted({b for unit in self.units for b in unit.cost}, reverse=True)


@dataclass(frozen=True)
class Configuration:
    name: str
    family: str
    numbers: Mapping[str, Number]

    def __getitem__(self, name: str) -> Number:
        return self.numbers.get(name, NONE)


@dataclass(frozen=True, kw_only=True)
class Configurations(Part):
    items: Sequence[Configuration]

    @property
    def judged_by(self) -> str:
        """What all were compared by: KL, or the squared error where nothing has classes."""
        return "kl" if any(one["kl"].value is not None for one in self.items) else "mse"

    def named(self, name: str) -> Configuration | None:
        return next((one for one in self.items if one.name == name), None)


@dataclass(frozen=True, kw_only=True)
class Optimum(Configurations):
    chosen: Mapping[str, int]
    """Bits of every unit in the best mix."""
    recommended: Mapping[str, int]
    recommended_name: str | None
    mixed_wins: Number
    budget: tuple[str, Number]


@dataclass(frozen=True)
class Attack:
    """One attack of one strength; epsilon is given in `unit`."""

    name: str
    norm: str
    epsilon: float
    unit: str
    steps: int | None
    accuracy: Number
    loss: Number
    kl: Number
    zero_gradient_share: Number
    sizes: Mapping[str, Number]
    """Epsilon in every unit: absolute, relative, token."""


@dataclass(frozen=True, kw_only=True)
class Attacks(Part):
    clean: Attack | None
    attacks: Sequence[Attack]
    gap: Number
    flags: Mapping[str, Number]


@dataclass(frozen=True)
class Level:
    """A model or its inputs disturbed to some level, over several seeds."""

    name: str
    level: float
    accuracy: Number
    loss: Number
    kl: Number
    seeds: int | None
    changed: Number = NONE


@dataclass(frozen=True, kw_only=True)
class Levels(Part):
    levels: Sequence[Level]

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


@dataclass(frozen=True, kw_only=True)
class Transfer(Part):
    accuracy: Mapping[tuple[int, int], Number]
    """By the bits that the attack was made with and those that it was tried on; 0 is the model as it is stored."""
    clean: Mapping[int, Number]
    """Accuracy without an attack, by bits."""


@dataclass(frozen=True, kw_only=True)
class Audit:
    """All parts of an audit; `missing` has the reason for each that is None."""

    quality: Quality | None = None
    speed: Speed | None = None
    memory: Memory | None = None
    layers: Layers | None = None
    sensitivity: Sensitivity | None = None
    configurations: Configurations | None = None
    optimum: Optimum | None = None
    exported: Exported | None = None
    attacks: Attacks | None = None
    noise: Levels | None = None
    perturbations: Levels | None = None
    transfer: Transfer | None = None
    missing: Mapping[str, str] = field(default_factory=dict)

    def __bool__(self) -> bool:
        """Whether anything was audited at all."""
        return len(self.missing) < len(PROBES)
