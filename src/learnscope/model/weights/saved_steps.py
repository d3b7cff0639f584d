"""The weights that `w.save_state()` has saved in a run folder."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

from learnscope.model.weights.checkpoint import CheckpointError
from learnscope.model.weights.lazy import SafetensorsFile

_COMPILED = "_orig_mod."
"""Prefix of every name of a compiled model."""


class SavedWeights(NamedTuple):
    """A copy of the weights at `step`, in a state file that `attempt` saved at step `saved`."""

    path: Path
    key: str
    step: int
    saved: int
    attempt: int

    @property
    def exact(self) -> bool:
        """Whether the copy has the model's own dtype; in another one it is rounded."""
        return self.key.endswith("-native")

    def weights(self) -> SafetensorsFile:
        prefix = f"previous/{self.key}/"
        compiled = next(iter(SafetensorsFile(self.path, prefix)), "").startswith(_COMPILED)
        return SafetensorsFile(self.path, prefix + _COMPILED if compiled else prefix, parameters_only=True)


def saved_weights(folder: Path) -> Iterator[SavedWeights]:
    """All copies in the state files of a run folder, the earliest saved first.

    A state holds the weights at the last measurement of the probes that compare with them, which may be earlier.
    """
    for path in sorted((folder / "state").glob("step-*.safetensors")):
        with SafetensorsFile(path) as file:
            meta: dict[str, Any] = json.loads(file.metadata["learnscope"])
        for key, step in meta["snapshots"].items():
            yield SavedWeights(path, key, step, meta["step"], meta.get("attempt", 0))


def weights_at(folder: Path, step: int) -> SafetensorsFile:
    """The floating-point parameters as they were at `step`, from the states of a run folder."""
    saved = list(saved_weights(folder))
    exact = {copy.step: copy for copy in saved if copy.exact}
    if step in exact:
        return exact[step].weights()
    available = f"there are steps {', '.join(map(str, sorted(exact)))}" if exact else "there are none of any step"
    rounded = any(copy.step == step for copy in saved)
    only_rounded = " (of this step a copy in another dtype, which is not exact)" if rounded else ""
    raise CheckpointError(
        f"{folder} holds no weights of step {step}{only_rounded}: {available}. w.save_state() keeps those of the last "
        "measurement of ls.ParameterChange, the last three times it was called; or pass a checkpoint instead of a step."
    )
