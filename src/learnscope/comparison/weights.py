"""The distance between the last weights of the runs that kept any. Needs torch only then."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pandas as pd

if TYPE_CHECKING:
    from learnscope.model.weights.distance import LastWeights, WeightDistance

CHECKPOINT = "last_checkpoint.pt"
"""Where telemetry keeps the weights of its last measurement."""
_NONE = (
    "it kept none; w.save_state() at the end of the training keeps those of the last measurement of ls.ParameterChange"
)


@dataclass(frozen=True)
class Weights:
    """The last weights of the runs, each compared with those of the reference, the first run that kept any."""

    reference: str | None = None
    steps: Mapping[str, int] = field(default_factory=dict)
    """The step of each run's weights."""
    distances: Mapping[str, WeightDistance] = field(default_factory=dict)
    """For each of the other runs that kept any."""
    missing: Mapping[str, str] = field(default_factory=dict)
    """The runs whose weights cannot be compared, and why."""

    def frame(self) -> pd.DataFrame:
        """A row for each layer of each run, and one for the whole `model`."""
        rows = [
            {"run": label, **asdict(layer)}
            for label, distance in self.distances.items()
            for layer in (*distance.layers, distance.whole)
        ]
        columns = ["run", "layer", "entries", "distance", "relative", "largest", "different", "status"]
        dtypes = dict.fromkeys(("distance", "relative", "largest"), "float64")
        return pd.DataFrame(rows, columns=columns).astype({**dtypes, "entries": "Int64", "different": "Int64"})

    def to_json(self) -> dict[str, Any]:
        return {
            "reference": self.reference, "steps": dict(self.steps), "missing": dict(self.missing),
            "distances": {label: asdict(distance) for label, distance in self.distances.items()},
        }  # fmt: skip


def compare_weights(folders: Mapping[str, Path | None], manifests: Mapping[str, Mapping[str, Any]]) -> Weights:
    """The weights that the run folders keep, layer by layer."""
    missing = {label: reason for label, folder in folders.items() if (reason := _reason_for_none(folder))}
    if len(folders) - len(missing) < 2:
        alone = "it kept weights, but no other run did"
        return Weights(missing={label: missing.get(label, alone) for label in folders})
    from learnscope.model.weights.checkpoint import CheckpointError
    from learnscope.model.weights.distance import last_weights, weight_distance

    weights: dict[str, LastWeights] = {}
    for label, folder in folders.items():
        if label not in missing and folder is not None:
            try:
                last = last_weights(folder, manifests[label], CHECKPOINT)
            except CheckpointError as error:
                missing[label] = str(error)
                continue
            if last is None:  # states of probes that keep no weights
                missing[label] = _NONE
            else:
                weights[label] = last
    reference = next(iter(weights), None)
    distances = {}
    if reference is not None:
        order = (manifests[reference].get("model") or {}).get("layers") or []
        for label in list(weights)[1:]:
            distances[label] = weight_distance(weights[reference].weights, weights[label].weights, order)
    return Weights(reference, {label: last.step for label, last in weights.items()}, distances, missing)


def _reason_for_none(folder: Path | None) -> str | None:
    """Why a run has no weights to compare, None if it has files of them; without torch."""
    if folder is None:
        return "it is in memory and kept none; ls.watch(..., run='runs/…') with w.save_state() keeps them"
    files = any((folder / "state").glob("step-*.safetensors")) or (folder / CHECKPOINT).exists()
    return None if files else _NONE
