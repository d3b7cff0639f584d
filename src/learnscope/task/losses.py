"""The usual losses of single positions, and which of them a training loop uses."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any, Literal

import torch
import torch.nn.functional as F
from torch import Tensor

from learnscope.task.shapes import is_single, like_logits

Certainty = Literal["known", "usual", "guessed"]
LossCallable = Callable[[Any, Any], Any]
AGREES = 1e-4
"""How near a loss must be to the loop's own number, relative to it, to be taken for the same."""


@dataclass(frozen=True, slots=True)
class LossFunction:
    """A loss, its name, and how sure it is that the training loop uses it.

    certainty: `known` if it was given, is the task's or the model's, or agrees with what the loop logs; `usual` for
        classes, where nearly all loops use cross entropy; `guessed` otherwise.
    by_position: whether it may be given any selection of positions. If not, it gets what the task aligned, whole.
    why: where this is known from, or what speaks against it.
    """

    name: str
    function: LossCallable
    certainty: Certainty
    why: str = ""
    by_position: bool = True

    @property
    def label(self) -> str | None:
        """What a record must say of it: its name, unless it is the loop's own as far as anybody can tell."""
        return self.name if self.certainty == "guessed" else None


def cross_entropy(logits: Tensor, targets: Tensor) -> Tensor:
    """Of classes, or of probabilities of them in the logits' shape."""
    if targets.is_floating_point():
        return F.cross_entropy(logits, like_logits(targets, logits).to(logits.dtype), reduction="none")
    return F.cross_entropy(logits, targets.long(), reduction="none")


def _by_entry(function: Callable[..., Tensor], logits: Tensor, targets: Tensor) -> Tensor:
    return mean_of_each(function(logits, like_logits(targets, logits).to(logits.dtype), reduction="none"))


def mean_of_each(entries: Tensor) -> Tensor:
    """The mean over the dimensions after the first."""
    return entries.flatten(1).mean(1) if entries.ndim > 1 else entries


CROSS_ENTROPY = "cross entropy"
BINARY = "binary cross entropy"
BINARY_OF_PROBABILITIES = "binary cross entropy of probabilities"
SQUARED = "squared error"
ABSOLUTE = "absolute error"
SMOOTH = "smooth L1 error"
LOSSES: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    CROSS_ENTROPY: cross_entropy,
    BINARY: partial(_by_entry, F.binary_cross_entropy_with_logits),
    BINARY_OF_PROBABILITIES: partial(_by_entry, F.binary_cross_entropy),
    SQUARED: partial(_by_entry, F.mse_loss),
    ABSOLUTE: partial(_by_entry, F.l1_loss),
    SMOOTH: partial(_by_entry, F.smooth_l1_loss),
}
"""By name: the loss of each of N positions. Those of entries are means over the entries of a position."""


def in_float32(logits: Tensor) -> Tensor:
    """In float32 or better."""
    return logits if logits.dtype == torch.float64 else logits.float()


def usual_name(logits: Tensor, targets: Tensor) -> str:
    """The loss of targets of this kind, if nothing else is known."""
    if targets.is_floating_point():
        return SQUARED
    return BINARY if is_single(logits) else CROSS_ENTROPY


def usual_loss(logits: Tensor, targets: Tensor) -> Tensor:
    """The usual loss for such targets, of each position."""
    each: Tensor = LOSSES[usual_name(logits, targets)](logits, targets)
    return each


def named(name: str, certainty: Certainty, why: str) -> LossFunction:
    return LossFunction(name, LOSSES[name], certainty, why)


def first_guess(logits: Tensor, targets: Tensor) -> LossFunction:
    """The loss of these outputs and targets before anything is known of the loop."""
    if not targets.is_floating_point():
        name = usual_name(logits, targets)
        return named(name, "usual", f"{name}, the usual loss for classes")
    unsure = "the targets are numbers, and which loss the loop uses is not known: pass loss="
    if not bool(((targets == 0) | (targets == 1)).all()):
        return named(SQUARED, "guessed", unsure)
    name = BINARY_OF_PROBABILITIES if _within_0_and_1(logits) else BINARY
    return named(name, "guessed", f"{unsure}. They are all 0 or 1")


def candidates(logits: Tensor, targets: Tensor) -> list[str]:
    """The losses that are defined for these outputs and targets."""
    if not targets.is_floating_point():
        if not is_single(logits):
            return [CROSS_ENTROPY]
        return [BINARY, BINARY_OF_PROBABILITIES] if _within_0_and_1(logits) else [BINARY]
    names = [name for name in LOSSES if name not in (CROSS_ENTROPY, BINARY, BINARY_OF_PROBABILITIES)]
    if _within_0_and_1(targets):
        names += [BINARY, BINARY_OF_PROBABILITIES] if _within_0_and_1(logits) else [BINARY]
        if logits.ndim == 2 and logits.shape[1] > 1:
            names.append(CROSS_ENTROPY)
    return names


def agreeing(logits: Tensor, targets: Tensor, value: float) -> tuple[str | None, dict[str, float]]:
    """The one loss whose mean is `value`, None if it is none or more than one; and the means of all candidates."""
    means = {
        name: float(LOSSES[name](in_float32(logits), targets).double().mean()) for name in candidates(logits, targets)
    }
    found = [name for name, mean in means.items() if agrees(mean, value)]
    return found[0] if len(found) == 1 else None, means


def agrees(mean: float, value: float) -> bool:
    return abs(mean - value) <= AGREES * abs(value)


def _within_0_and_1(values: Tensor) -> bool:
    return bool(((values >= 0) & (values <= 1)).all())
