"""Hooks on backward passes: how many there were, in which order, and the gradient norm of each micro-batch."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from itertools import repeat

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from learnscope.core.handed import MicroBatches
from learnscope.core.subject import Subject
from learnscope.tensor.gradients.gradient import sum_squares

WATCHED = 4
"""At most so many parameters have a hook: a few, spread over the model, so that an unused one does not matter."""


class Additions:
    """Counts how often a backward has come by a parameter, or added to its gradient; `autograd.grad` adds to none.

    Its hook is called at every step: it is one call in C, `next` of an iterator of None, and holds nothing, as torch
    hides such hooks from the garbage collector.
    """

    def __init__(self) -> None:
        nones = repeat(None, 2**60)
        self.hook: Callable[[Tensor], None] = partial(next, nones)
        self.left: Callable[[], int] = nones.__length_hint__
        self.start = self.left()
        """What was left where counting begins."""

    @property
    def number(self) -> int:
        return self.start - self.left()

    def forget(self, number: int) -> None:
        """Go back to an earlier number: what came since does not count."""
        self.start = number + self.left()


class Backwards:
    """Counts the backward passes since the last step, and records the order in which the first reaches parameters.

    Without `follow` nobody asks what they bring: they are counted alone, without a function of Python's.
    """

    def __init__(self, subject: Subject, failed: Callable[[str], object], *, follow: bool = True) -> None:
        trainable = [(name, p) for name, p in zip(subject.names, subject.parameters, strict=True) if p.requires_grad]
        spread = [p for _, p in trainable[:: max(1, -(-len(trainable) // WATCHED))]]
        # with one of every optimizer: a backward may be for one of them alone
        chosen = list(dict.fromkeys([*spread, *_one_of_each(subject.optimizers, [p for _, p in trainable])]))
        self.leaves: Sequence[nn.Parameter] = chosen
        """The parameters that have a hook."""
        self.on_reach: Callable[[int, Tensor], object] | None = None
        """Called with the place of a leaf and what a backward is about to add to its gradient."""
        self._failed = failed
        self._seen = 0
        self._counts = [0] * len(chosen)
        self._arrivals = [] if follow else [Additions() for _ in chosen]
        """Of each leaf, in place of what `_count` counts."""
        hooks = [each.hook for each in self._arrivals] or [partial(self._count, i) for i in range(len(chosen))]
        self._handles = [p.register_hook(hook) for p, hook in zip(chosen, hooks, strict=True)]
        self.additions = [Additions() for _ in chosen]
        """Of each leaf."""
        added = zip(chosen, self.additions, strict=True) if follow else ()
        self._handles += [p.register_post_accumulate_grad_hook(additions.hook) for p, additions in added]
        self._order: list[str] = []
        # a compiled backward hands over all gradients at once: its order says nothing
        ordered = [] if hasattr(subject.model, "_orig_mod") else trainable
        self._order_handles = [p.register_hook(partial(self._note, name)) for name, p in ordered]
        self.has_order = bool(ordered)
        """Whether parameters still note when a backward reaches them."""

    @property
    def seen(self) -> int:
        """Grows with every backward since the last step, also with one that reaches a part of the model only."""
        seen = self._seen
        for each in self._arrivals:
            seen += each.number
        return seen

    @property
    def passes(self) -> int:
        return max([*self._counts, *(each.number for each in self._arrivals)], default=0)

    def take_passes(self) -> int:
        """The passes of a step that has ended; those of the next are counted from now on."""
        if self._arrivals:
            passes = 0
            for each in self._arrivals:  # as `passes`, with fewer calls at every step
                left = each.left()
                passes, each.start = max(passes, each.start - left), left
            return passes
        passes = max(self._counts) if self._counts else 0
        self._counts, self._seen = [0] * len(self._counts), 0
        return passes

    @contextmanager
    def paused(self) -> Iterator[None]:
        """Backward passes of probes are not the loop's."""
        counts, seen, listener = list(self._counts), self._seen, self.on_reach
        counted = [*self.additions, *self._arrivals]
        added = [each.number for each in counted]
        self.on_reach = None
        try:
            yield
        finally:
            self._counts, self._seen, self.on_reach = counts, seen, listener
            for each, number in zip(counted, added, strict=True):
                each.forget(number)

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

    def _count(self, index: int, gradient: Tensor) -> None:
        self._counts[index] += 1
        self._seen += 1
        if self.on_reach is not None:
            try:
                self.on_reach(index, gradient)
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
