"""Hooks on backward passes: how many there were, in which order, and the gradient norm of each micro-batch."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from learnscope.core.handed import MicroBatches
from learnscope.core.subject import Subject
from learnscope.session.counting.leaves import (
    Additions,
    Course,
    Leaf,
    Optimizers,
    PlainAdditions,
    PlainLeaf,
    taken_passes,
)
from learnscope.tensor.gradients.gradient import sum_squares

WATCHED = 4
"""At most so many parameters have a hook: a few, spread over the model, so that an unused one does not matter."""


class Backwards:
    """Counts the backward passes since the last step, and records the order in which the first reaches parameters.

    Without `follow` nobody asks what they bring: they are counted alone, without a function of Python's, at the ends of
    the model as long as every step comes after a backward that was seen there.
    """

    def __init__(self, subject: Subject, failed: Callable[[str], object], *, follow: bool = True) -> None:
        trainable = [(name, p) for name, p in zip(subject.names, subject.parameters, strict=True) if p.requires_grad]
        spread = [p for _, p in trainable[:: max(1, -(-len(trainable) // WATCHED))]]
        # with one of every optimizer: a backward may be for one of them alone
        needed = list(_one_of_each(subject.optimizers, [p for _, p in trainable]))
        chosen = list(dict.fromkeys([*spread, *needed]))
        self.on_reach: Callable[[PlainLeaf, Tensor], object] | None = None
        """Called with a leaf and what a backward is about to add to its gradient, unless that is as at most steps."""
        self.course, self._failed = Course(Optimizers()), failed
        self.leaves = [Leaf(p, Additions(), self.course, self._reach) for p in chosen if follow]
        """The parameters that have a hook, where it is asked what backward passes bring."""
        self._handles: list[Any] = []
        for leaf in self.leaves:
            hook: Any = leaf
            self._handles += [leaf.parameter.register_hook(hook)]
            self._handles += [leaf.parameter.register_post_accumulate_grad_hook(leaf.added)]
        self.arrivals: list[PlainAdditions] = []
        """Of parameters where backward passes are counted alone."""
        self._spare: Sequence[nn.Parameter] = ()
        """Those that are counted too once a step comes without a backward that was seen."""
        if not follow:  # what all parts of a model share stands at its beginning, or at its end
            ends = {id(p) for p in [*spread[:1], *spread[-1:], *needed]}
            self._spare = [p for p in chosen if id(p) not in ends]
            self._count_at([p for p in chosen if id(p) in ends])
        self._order: list[str] = []
        # a compiled backward hands over all gradients at once: its order says nothing
        ordered = [] if hasattr(subject.model, "_orig_mod") else trainable
        self._order_handles = [p.register_hook(partial(self._note, name)) for name, p in ordered]
        self.has_order = bool(ordered)
        """Whether parameters still note when a backward reaches them."""

    @property
    def seen(self) -> int:
        """Grows with every backward since the last step, also with one that reaches a part of the model only."""
        seen = self.course.seen
        for each in self.arrivals:
            seen += each.number
        return seen

    @property
    def passes(self) -> int:
        return max([*(leaf.count for leaf in self.leaves), *(each.number for each in self.arrivals)], default=0)

    def take_passes(self) -> int:
        """The passes of a step that has ended; those of the next are counted from now on."""
        self.course.seen = 0
        passes = taken_passes(self.leaves, self.arrivals)
        self.quiet_steps_ended(1, passes)
        return passes

    def quiet_steps_ended(self, _steps: int, passes: int) -> None:
        """Steps of so many passes have ended."""
        if not passes and self._spare:
            self._count_at([p for p in self._spare if p.requires_grad])
            self._spare = ()

    @contextmanager
    def paused(self) -> Iterator[None]:
        """Backward passes of probes are not the loop's."""
        course, counted = self.course, [*(leaf.added for leaf in self.leaves), *self.arrivals]
        counts, seen = [leaf.count for leaf in self.leaves], course.seen
        added, before = [each.number for each in counted], course.paused
        course.paused = True
        try:
            yield
        finally:
            course.paused, course.seen = before, seen
            for leaf, count in zip(self.leaves, counts, strict=True):
                leaf.count = count
            for each, number in zip(counted, added, strict=True):
                each.number = number

    def take_order(self) -> list[str]:
        """The names in the order of the backward, the first time; after that an empty list."""
        while self._order_handles:
            self._order_handles.pop().remove()
        self.has_order = False
        order, self._order = self._order, []
        return list(dict.fromkeys(order))

    def close(self) -> None:
        self.take_order()
        for handle in self._handles:
            handle.remove()

    def _count_at(self, parameters: Sequence[nn.Parameter]) -> None:
        for parameter in parameters:
            self.arrivals.append(arrivals := Additions())
            hook: Any = arrivals
            self._handles.append(parameter.register_hook(hook))

    def _reach(self, leaf: PlainLeaf, gradient: Tensor) -> None:
        if self.on_reach is not None:
            try:
                self.on_reach(leaf, gradient)
            except Exception:  # noqa: BLE001  (ours, and not the training's)
                self._failed("reached")

    def _note(self, name: str, _gradient: Tensor) -> None:
        self._order.append(name)


def _one_of_each(optimizers: Sequence[Optimizer], trainable: Sequence[nn.Parameter]) -> Iterator[nn.Parameter]:
    for optimizer in optimizers if len(optimizers) > 1 else ():
        held = {id(p) for group in optimizer.param_groups for p in group["params"]}
        yield from [p for p in trainable if id(p) in held][-1:]


class MicroBatchMeter:
    """Squared gradient norm of each micro-batch of one step.

    A leaf's hook is given the micro-batch's own gradient before it is added, so no copy is needed; the sum is measured
    there too, so that both have the same loss scale. A failure is kept: raising would end the user's backward.

    Of several ranks, these are this rank's micro-batches. If the sum is averaged over the ranks between them (no
    `no_sync()`), it is no longer theirs, and nothing is returned.
    """

    def __init__(self, parameters: Sequence[nn.Parameter], *, of_one_rank: bool = False) -> None:
        self._of_one_rank, self._averaged = of_one_rank, False
        self._versions: dict[int, int] = {}
        self.failure: Exception | None = None
        self.seconds = 0.0
        self._parameters = parameters
        self._passes = [0] * len(parameters)
        self._sums: list[Tensor] = []
        self._accumulated: dict[int, Tensor] = {}
        self._discarded = 0
        self._handles = []
        for position, p in enumerate(parameters):
            if p.requires_grad:
                self._handles.append(p.register_hook(partial(self._incoming, position)))
                self._handles.append(p.register_post_accumulate_grad_hook(partial(self._added, position)))

    def close(self, sizes: Sequence[float] = ()) -> MicroBatches | None:
        """What was measured; None unless there were at least two micro-batches."""
        for handle in self._handles:
            handle.remove()
        if self.failure is not None or self._averaged or len(self._sums) < 2 or not self._accumulated:
            return None
        total = torch.stack(list(self._accumulated.values())).sum()
        sizes = sizes[self._discarded :]
        known = list(sizes) if len(sizes) == len(self._sums) else None
        return MicroBatches(self._sums, total, known, self._of_one_rank)

    def _incoming(self, position: int, gradient: Tensor) -> None:
        before = self._parameters[position].grad
        if self._passes[position] and before is None:
            self._restart()
        elif self._of_one_rank and self._passes[position] and before is not None:
            self._averaged |= before._version != self._versions.get(position)
        number = self._passes[position]
        self._passes[position] += 1
        value = self._measure(gradient.detach())
        if value is None:
            return
        if number == len(self._sums):
            self._sums.append(value)
        else:
            self._sums[number] = self._sums[number] + value

    def _restart(self) -> None:
        """Gradients were cleared without a step (a GradScaler or the loop skipped it): they are no part of this one."""
        self._discarded += len(self._sums)
        self._passes = [0] * len(self._passes)
        self._sums, self._accumulated, self._averaged = [], {}, False

    def _added(self, position: int, parameter: Tensor) -> None:
        if parameter.grad is not None and (value := self._measure(parameter.grad)) is not None:
            self._accumulated[position] = value
            self._versions[position] = parameter.grad._version

    def _measure(self, gradient: Tensor) -> Tensor | None:
        started = time.perf_counter()
        try:
            return sum_squares([gradient])[0]
        except Exception as error:  # noqa: BLE001  (kept in `failure`)
            self.failure = error
            return None
        finally:
            self.seconds += time.perf_counter() - started


def is_one_of_several() -> bool:
    """Whether gradients may be averaged over several processes."""
    distributed = torch.distributed
    return distributed.is_available() and distributed.is_initialized() and distributed.get_world_size() > 1
