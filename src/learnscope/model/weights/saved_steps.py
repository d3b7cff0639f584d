"""The weights that `w.save_state()` has saved in a run folder."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

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


def saved_weights(folder: Path, damaged: list[str] | None = None) -> Iterator[SavedWeights]:
    """All copies in the state files of a run folder, the earliest saved first.

    A state holds the weights at the last measurement of the probes that compare with them, which may be earlier.
    What is wrong with a file that cannot be read goes to `damaged`; it is raised where none is given.
    """
    for path in sorted((folder / "state").glob("step-*.safetensors")):
        try:
            yield from _saved_in(path)
        except CheckpointError as error:
            if damaged is None:
                raise
            damaged.append(str(error))


def _saved_in(path: Path) -> list[SavedWeights]:
    with SafetensorsFile(path) as file:
        text = file.metadata.get("learnscope", "")
    try:
        about = json.loads(text)
        saved, attempt, steps = about["step"], about.get("attempt", 0), dict(about["snapshots"])
        if not {int}.issuperset(map(type, (saved, attempt, *steps.values()))):
            raise TypeError("a step is no whole number")
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise CheckpointError(f"{path} is not a state of a run ({type(error).__name__}: {error})") from error
    return [SavedWeights(path, key, step, saved, attempt) for key, step in steps.items()]


def weights_at(folder: Path, step: int) -> SafetensorsFile:
    """The floating-point parameters as they were at `step`, from the states of a run folder."""
    damaged: list[str] = []
    saved = list(saved_weights(folder, damaged))
    exact = {copy.step: copy for copy in saved if copy.exact}
    if step in exact:
        return exact[step].weights()
    available = f"there are steps {', '.join(map(str, sorted(exact)))}" if exact else "there are none of any step"
    rounded = any(copy.step == step for copy in saved)
    only_rounded = " (of this step a copy in another dtype, which is not exact)" if rounded else ""
    raise CheckpointError(
        f"{folder} holds no weights of step {step}{only_rounded}: {available}. w.save_state() keeps those of the last "
        "measurement of ls.ParameterChange, the last three times it was called; or pass a checkpoint instead of a step."
        + "".join(f" {sentence}." for sentence in damaged)
    )
