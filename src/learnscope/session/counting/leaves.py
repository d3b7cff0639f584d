"""A few parameters whose gradients are followed: added to, cleared, used by a step."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from torch import Tensor, nn, strided

from learnscope import native

SMALL = 2**16
"""Entries of a gradient on the CPU up to which it may be looked at whenever that is asked for."""


class PlainAdditions:
    """A hook that counts how often a backward has come by a parameter, or added to its gradient.

    `autograd.grad` adds to none. It holds nothing, as torch hides such hooks from the garbage collector.
    """

    def __init__(self) -> None:
        self.number = 0

    def __call__(self, _tensor: Tensor) -> None:
        self.number += 1


class PlainOptimizers:
    """Hooks on the steps of any optimizer of the process: it may be one that is not followed."""

    def __init__(self) -> None:
        self.steps, self.inside = 0, False
        """How many there were, and whether one is being taken."""

    def begins(self, _optimizer: Any, _args: Any, _kwargs: Any) -> None:
        self.inside = True

    def stepped(self, _optimizer: Any, _args: Any, _kwargs: Any) -> None:
        self.inside = False
        self.steps += 1


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
class PlainCourse:
    """Where a training step stands, as far as hooks on parameters ask."""

    any: PlainOptimizers
    seen: int = 0
    """Backward passes by any leaf since the last step."""
    begun: bool = False
    """Whether a backward of this training step was seen."""
    looks: bool = False
    """Whether gradients are looked at in it."""
    ordinary: bool = False
    """Whether they are not looked at in the coming step, so that a leaf whose gradient was cleared tells nobody."""
    modules: list[tuple[nn.Module, nn.Module]] | None = None
    """Modules, and what contains each, whose modes are looked at when a step begins."""
    told: bool = False
    """Whether somebody waits for the next backward."""
    paused: bool = False
    """Whether backward passes are not the loop's."""


@dataclass(slots=True)
class PlainLeaf:
    """One parameter, and what happened to its gradient since its optimizer last stepped; a hook on that parameter."""

    parameter: nn.Parameter
    added: PlainAdditions
    of: PlainCourse
    slow: Callable[[PlainLeaf, Tensor], object]
    """Called with a leaf and what a backward is about to add to its gradient, unless that is what nearly all do."""
    count: int = 0
    """Backward passes since the last training step."""
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
    written: int = -1
    """How often the parameter itself had been written when its optimizer had stepped; -1 where that is not counted."""
    nonzero: bool = False
    """Whether a backward of this step gave it a gradient that is not all 0, where that was looked at."""

    def __call__(self, gradient: Tensor) -> None:
        of = self.of
        of.seen += 1
        self.count += 1
        if of.paused:
            return
        if not _is_ordinary(self):
            self.slow(self, gradient)
            return
        if not of.begun:
            of.begun, of.looks = True, False
        self.stale = self.used = False
        self.reached, self.steps_then, self.mark = 1, of.any.steps, None


def _is_ordinary(leaf: PlainLeaf) -> bool:
    """Whether this is the first backward since a step, on a gradient that was cleared, and nobody waits for it."""
    of = leaf.of
    if not of.ordinary or of.told or leaf.reached or leaf.parameter.grad is not None:
        return False
    try:
        return of.begun or all_train(of.modules)
    except Exception:  # noqa: BLE001  (`slow` meets the same error, and does not let the training die of it)
        return False


def all_train(modules: list[tuple[nn.Module, nn.Module]] | None) -> bool:
    """Whether each module, or what contains it, is in training mode."""
    return all(module.training or parent.training for module, parent in modules or ())


# with kernels, the same in C: as hooks of Python's these would be most of what watching an ordinary step costs
_KERNELS: Any = native.kernels
Additions: type[PlainAdditions] = PlainAdditions if _KERNELS is None else _KERNELS.Additions
Optimizers: type[PlainOptimizers] = PlainOptimizers if _KERNELS is None else _KERNELS.Optimizers
Course: type[PlainCourse] = PlainCourse if _KERNELS is None else _KERNELS.Course
Leaf: type[PlainLeaf] = PlainLeaf if _KERNELS is None else _KERNELS.Leaf


def added(leaf: PlainLeaf) -> int:
    """Backward passes that added to its gradient, and that no step has used.

    What `torch.autograd.grad` computes is the loop's own affair.
    """
    return leaf.added.number if leaf.reached else 0


def begin_anew(leaf: PlainLeaf) -> None:
    """Its gradient has been used, or cleared."""
    leaf.reached = leaf.added.number = 0


def plainly_ordinary(leaves: list[PlainLeaf]) -> bool:
    """Whether a backward has given each a gradient of this step alone, which is there, and nothing wrote the weights.

    False where that is not known, and of no leaf.
    """
    return bool(leaves) and all(
        leaf.reached and not leaf.stale and leaf.parameter.grad is not None
        and (leaf.written < 0 or leaf.written == writes(leaf.parameter))
        for leaf in leaves
    )  # fmt: skip


def have_stepped(leaves: list[PlainLeaf]) -> None:
    """Their optimizer has used their gradients, which are marked as they stand."""
    if stepped_at_once(leaves):
        return
    for leaf in leaves:
        gradient = leaf.parameter.grad
        leaf.mark = None if gradient is None else marked(gradient)
        leaf.written, leaf.used = writes(leaf.parameter), gradient is not None
        leaf.stale = leaf.nonzero = False
        begin_anew(leaf)


def never(_leaves: list[PlainLeaf]) -> bool:
    return False


Asked = Callable[[list[PlainLeaf]], bool]
are_ordinary: Asked = plainly_ordinary if _KERNELS is None else _KERNELS.leaves_ordinary
stepped_at_once: Asked = never if _KERNELS is None else _KERNELS.leaves_stepped
"""As `have_stepped`, in one call; False where that cannot be done."""


def taken_passes(leaves: list[PlainLeaf], arrivals: list[PlainAdditions]) -> int:
    """The backward passes of a step that has ended; those of the next are counted from now on."""
    passes = 0
    for leaf in leaves:
        passes, leaf.count = max(passes, leaf.count), 0
    for each in arrivals:
        passes, each.number = max(passes, each.number), 0
    return passes


def writes(parameter: Tensor) -> int:
    """How often a tensor has been written; -1 of one that does not count it."""
    try:
        return parameter._version
    except RuntimeError:  # an inference tensor
        return -1


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
