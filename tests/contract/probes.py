"""Every probe of the package, built to be cheap. One that is added takes part by itself, with `every=1`."""

from __future__ import annotations

from typing import Any

import learnscope as ls
from learnscope.model.outputs.questions import Questions
from learnscope.probes import probe_modules

NOW: dict[str, Any] = {"every": 5, "at": "after_step"}
"""What audits ask of finished models, asked in the middle of a training."""
TWICE: dict[str, Any] = {"every": 3}
"""For probes that evaluate the model many times: often enough that steps follow, and another measurement."""
CHEAP: dict[str, dict[str, Any]] = {
    "AdapterTruncation": {**NOW, "examples": 4},
    "Attacks": {**NOW, "epsilons": (0.1,), "steps": 2, "restarts": 1, "examples": 4},
    "AutoAttack": {**NOW, "queries": 5, "steps": 2, "examples": 4},
    "BitFrontier": {**NOW, "bits": (4, 2), "examples": 4},
    "BitOptimum": {**NOW, "bits": (4, 2), "examples": 4},
    "BitRobustness": {**NOW, "bits": (4,), "steps": 2, "examples": 4},
    "BitSensitivity": {**NOW, "bits": (4,), "examples": 4},
    "BitWidths": {**NOW, "bits": (4, 2), "examples": 4},
    "ExportedSpeed": {**NOW, "seconds": 0.01, "repeats": 3},
    "InferenceSpeed": {**NOW, "batches": (2,), "seconds": 0.01, "repeats": 3},
    "InputPerturbation": {**NOW, "levels": (0.2,), "examples": 4},
    "LayerRewind": {**TWICE, "examples": 4},
    "LayerTimes": {**NOW, "repeats": 2, "seconds": 0.01},
    "LossLandscape": {**TWICE, "examples": 4, "krylov": 6, "restarts": 2, "trace_samples": 2, "points": (-1.0, 1.0)},
    "LowRankQuality": {**TWICE, "ranks": (1, 2), "examples": 4},
    "MemoryUse": {**NOW, "process": True},
    "NoiseRobustness": {**NOW, "sigmas": (0.1,), "bits": (4,), "examples": 4},
    "Performance": {**NOW, "resamples": 50},
    "PromptPerturbation": {**NOW, "levels": (0.2,), "seeds": 1, "examples": 4},
    "SharedTexts": {**NOW, "examples": 4},
    "SparseQuality": {**TWICE, "thresholds": (1e-6, 1e-4), "examples": 4},
    "TaskAccuracy": {**NOW, "tasks": [Questions("two", [{"context": "a", "choices": ["b", "c"], "answer": 0}])]},
    "WeightDelta": {"path": "weights.pt", "run": "contract"},  # in the folder that a test is in
    "WeightSpectrum": {"trained_only": False},
}
MORE: list[tuple[str, dict[str, Any]]] = [
    ("GradientFlow", {"stability": True, "per_tensor": True}),
    ("Holdout", {"at": "epoch"}),
    ("ParameterChange", {"every": 2, "snapshot_device": "disk"}),
]
"""Options that let a probe do something else altogether."""


def packaged(*, adapters: bool = True) -> list[str]:
    """Their names; those of adapters refuse a model that has none."""
    return [name for name, module in probe_modules().items() if adapters or ".adapters." not in module]


def build(name: str, **options: Any) -> ls.Probe:
    probe: ls.Probe = getattr(ls, name)(**{"every": 1, **CHEAP.get(name, {}), **options})
    return probe
