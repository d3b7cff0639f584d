"""Which examples to track, if not all."""

from __future__ import annotations

from typing import Literal

import numpy as np
from numpy.typing import NDArray

from learnscope.options import is_whole

Sample = Literal["first", "even", "random"]
SAMPLES: tuple[Sample, ...] = ("first", "even", "random")


def chosen_ids(track: int | None, sample: Sample, examples: int | None, seed: int) -> NDArray[np.int64] | None:
    """The ids to track, in ascending order; None if that is decided as they come."""
    if sample not in SAMPLES:
        raise ValueError(f"sample={sample!r}: one of {', '.join(SAMPLES)}")
    if track is not None and not is_whole(track, 1):
        raise ValueError(f"track={track!r}: how many examples to follow, a whole number from 1, or None for all")
    if sample == "first":
        return None
    if track is None or examples is None:
        raise ValueError(
            f"sample={sample!r} chooses track= of the ids 0..examples−1: give track= and examples=, the data set's size"
        )
    for name, value, least in (("examples", examples, 1), ("seed", seed, 0)):
        if not is_whole(value, least):
            raise ValueError(f"{name}={value!r}: a whole number from {least}")
    count = min(track, examples)
    if sample == "even":
        return np.arange(count, dtype=np.int64) * examples // count
    drawn = np.random.default_rng(seed).choice(examples, size=count, replace=False)
    return np.sort(drawn).astype(np.int64)


def among(ids: NDArray[np.int64], chosen: NDArray[np.int64]) -> NDArray[np.bool_]:
    """Which of the ids are among the chosen ones, which are sorted."""
    at = np.minimum(np.searchsorted(chosen, ids), len(chosen) - 1)
    is_chosen: NDArray[np.bool_] = chosen[at] == ids
    return is_chosen
