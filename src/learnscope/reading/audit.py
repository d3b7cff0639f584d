"""What an audit measured, part by part, read from its records. A part that did not run is None; `missing` says why."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from learnscope.reading.audit_numbers import PROBES, Part, read_parts
from learnscope.reading.audit_parts import (
    Attacks,
    Configurations,
    Exported,
    Layers,
    Levels,
    Memory,
    Optimum,
    Quality,
    Sensitivity,
    Speed,
    Transfer,
)
from learnscope.reading.gather import one_pass
from learnscope.store.reader import RunReader


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


VIEWS: dict[str, type[Part]] = {
    "quality": Quality, "speed": Speed, "memory": Memory, "layers": Layers, "sensitivity": Sensitivity,
    "configurations": Configurations, "optimum": Optimum, "exported": Exported, "attacks": Attacks, "noise": Levels,
    "perturbations": Levels, "transfer": Transfer,
}  # fmt: skip


def read_audit(reader: RunReader) -> Audit:
    """All that an audit measured."""
    run = one_pass(reader)

    def read() -> Audit:
        found, missing = read_parts(run, VIEWS)
        parts: dict[str, Any] = {**found}
        return Audit(**parts, missing=missing)

    return run.remember("audit", read)
