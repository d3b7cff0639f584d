"""The weights that a run folder holds: the copies that `w.save_state()` keeps for the probes."""

from __future__ import annotations

import json
from pathlib import Path

from learnscope.model.checkpoint import CheckpointError
from learnscope.model.lazy import SafetensorsFile

_COMPILED = "_orig_mod."
"""In front of every name of a compiled model."""


def weights_at(folder: Path, step: int) -> SafetensorsFile:
    """The floating-point parameters as they were at `step`, from the states of a run folder.

    A state holds the weights at the last measurement of the probes that compare with them, which may be earlier than
    the step it was saved at. Copies in another dtype than the model's are not what the weights were and do not count.
    """
    kept: dict[int, tuple[Path, str]] = {}
    rounded: set[int] = set()
    for path in sorted((folder / "state").glob("step-*.safetensors")):
        with SafetensorsFile(path) as file:
            snapshots: dict[str, int] = json.loads(file.metadata["learnscope"])["snapshots"]
        for key, at in snapshots.items():
            if key.endswith("-native"):
                kept[at] = path, key
            else:
                rounded.add(at)
    if step in kept:
        path, key = kept[step]
        prefix = f"previous/{key}/"
        compiled = next(iter(SafetensorsFile(path, prefix)), "").startswith(_COMPILED)
        return SafetensorsFile(path, prefix + _COMPILED if compiled else prefix, parameters_only=True)
    there = f"there are steps {', '.join(map(str, sorted(kept)))}" if kept else "there are none of any step"
    only_rounded = " (of this step a copy in another dtype, which is not exact)" if step in rounded else ""
    raise CheckpointError(
        f"{folder} holds no weights of step {step}{only_rounded}: {there}. w.save_state() keeps those of the last "
        "measurement of ls.ParameterChange, the last three times it was called; or pass a checkpoint instead of a step."
    )
