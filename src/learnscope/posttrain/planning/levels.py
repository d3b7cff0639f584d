"""What the three efforts of an audit spend besides the examples: seconds of timing, and options of the probes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, cast

from learnscope.model.cost.speed import GRID_WORK
from learnscope.probes.bits.bit_frontier import BitFrontier
from learnscope.probes.bits.trials import Judged
from learnscope.probes.cost.exported_speed import ExportedSpeed


@dataclass(frozen=True, slots=True)
class Level:
    """One effort."""

    share: float
    """Of the work that a default audit may take."""
    bits: float
    """The same of the search over bit widths."""
    read: float
    """The same of reading examples."""
    seconds: float
    """How long each setting of speed is timed."""
    grid_work: float = GRID_WORK
    """Multiply-adds of one pass over the grid of prefill and decode."""
    packed_seconds: float = ExportedSpeed.seconds
    """How long each copy with packed weights may be timed."""
    one_example: bool = False
    """Whether layers are timed on one example, not on the first batch."""
    searched: int = 16
    """Examples to search over bit widths on where tokens of each are given up: all others are to judge on."""
    search: Mapping[str, Any] = field(default_factory=dict)
    """Options of the search over bit widths."""
    robustness: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    """Options of the probes of robustness, by their names: fewer levels, and seeds where intervals are over texts."""

    left_out: Mapping[str, str] = field(default_factory=dict)
    """By part, what these options leave out, in words."""

    @property
    def alone(self) -> int:
        """Examples that single units are measured on."""
        return int(self.search.get("alone_examples", BitFrontier.alone_examples))

    @property
    def judged(self) -> Judged:
        """Which configurations are judged."""
        return cast(Judged, self.search.get("judged", BitFrontier.judged))

    @property
    def methods(self) -> int:
        """Calibrated methods of rounding that are tried."""
        return len(self.search.get("methods", BitFrontier.methods))


LEVELS: Mapping[str, Level] = {
    "quick": Level(
        0.2, 0.42, 0.5, 0.05, 1e10, 0.3, one_example=True, searched=8,
        search={"alone_examples": 4, "methods": ("gptq",), "judged": "frontier"},
        robustness={
            "Attacks": {"seeds": 2}, "NoiseRobustness": {"sigmas": (0.05,), "bits": (4,)},
            "InputPerturbation": {"levels": (0.1,)}, "PromptPerturbation": {"seeds": 1},
        },
        left_out={
            "bit_widths": "of the calibrated methods only gptq, and only the best of the search judged",
            "robustness": "one level of noise and of changed inputs, one seed of changed prompts",
        },
    ),
    "default": Level(1.0, 1.0, 1.0, 0.2, search={"alone_examples": 12}),
    "thorough": Level(1.0, 1.0, 1.0, 0.5),
}  # fmt: skip
