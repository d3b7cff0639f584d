"""A few parameters whose gradients are followed: added to, cleared, used by a step."""

from __future__ import annotations

import weakref
from collections.abc import Sequence
from dataclasses import dataclass

from torch import Tensor, nn, strided

from learnscope.session.steps.backwards import Additions

SMALL = 2**16
"""Entries of a gradient on the CPU up to which it may be looked at whenever that is asked for."""


Mark = tuple[weakref.ref[Tensor], int | None]
"""A gradient as it stood: the object and how often it had been written; None where that is not counted."""


def marked(gradient: Tensor, writes: int = 0) -> Mark:
    """The gradient as it will stand after so many writes."""
    try:
        return weakref.ref(gradient), gradient._version + writes
    except RuntimeError:  # an inference tensor counts no writes
        return weakref.ref(gradient), None


def holds(mark: Mark, gradient: Tensor) -> bool:
    """Whether this is the same gradient, and nothing has written it. False where that cannot be known."""
    object_then, version = mark
    return version is not None and object_then() is gradient and gradient._version == version


@dataclass(slots=True)
class Leaf:
    """One parameter, and what happened to its gradient since its optimizer last stepped."""

    parameter: nn.Parameter
    additions: Additions
    reached: int = 0
    """Backward passes that reached it, and that no step has used."""
    stale: bool = False
    """Whether its gradient still contains what an earlier step has used."""
    used: bool = False
    """Whether no backward has reached it since its optimizer stepped."""
    discarded: int = 0
    """Backward passes whose gradient was cleared before any optimizer stepped."""
    steps_then: int = 0
    """Steps of any optimizer when a backward last reached it."""
    mark: Mark | None = None
    """Its gradient as it stood; None if it is not known."""
    written: int | None = None
    """How often the parameter itself had been written when its optimizer had stepped."""
    nonzero: bool = False
    """Whether a backward of this step gave it a gradient that is not all 0, where that was looked at."""

    @property
    def added(self) -> int:
        """Backward passes that added to its gradient, and that no step has used.

        What `torch.autograd.grad` computes is the loop's own affair.
        """
        return self.additions.number if self.reached else 0

    def begin_anew(self) -> None:
        """Its gradient has been used, or cleared."""
        self.reached, self.additions.start = 0, self.additions.left()


def writes(parameter: Tensor) -> int | None:
    """How often a tensor has been written; None of one that does not count it."""
    try:
        return parameter._version
    except RuntimeError:
        return None


def is_zero(gradient: Tensor) -> bool:
    """Whether every entry is 0; a sparse gradient is not looked at."""
    return gradient.layout is strided and not bool(gradient.detach().any())


class Sampled:
    """Answers a question that takes a look at numbers: at its 1st, 2nd, 4th, 8th … and every 64th time.

    In between, the last answer stands, as a loop does the same thing every time. A small gradient on the CPU is
    looked at every time.
    """

    def __init__(self) -> None:
        self._times, self._last = 0, False

    def is_zero(self, gradient: Tensor) -> bool:
        self._times += 1
        if due(self._times) or (gradient.is_cpu and gradient.numel() <= SMALL):
            self._last = is_zero(gradient)
        return self._last


def due(times: int) -> bool:
    """Powers of two, and multiples of 64.

    >>> [n for n in range(1, 200) if due(n)]
    [1, 2, 4, 8, 16, 32, 64, 128, 192]
    """
    return times & (times - 1) == 0 or times % 64 == 0


def marks(gradients: Sequence[Tensor | None]) -> list[Mark | None]:
    return [None if gradient is None else marked(gradient) for gradient in gradients]


def unchanged(before: Sequence[Mark | None], now: Sequence[Tensor | None]) -> bool:
    """Whether the gradients are the same ones as before, and none has been written."""
    return len(before) == len(now) and all(
        gradient is None if mark is None else gradient is not None and holds(mark, gradient)
        for mark, gradient in zip(before, now, strict=True)
    )
