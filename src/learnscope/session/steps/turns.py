"""Which steps of several optimizers make one training step."""

from __future__ import annotations

from collections.abc import Sequence

from torch.optim import Optimizer


class Turns:
    """Joins the steps of optimizers to training steps.

    The order in which the optimizers first step is their order in every training step. Without a clock a training step
    ends when the last in this order has stepped, and before one that is not further on in it than the one before: so an
    optimizer whose step is skipped is missing from one training step, and the others stay together.

    With a clock, a training step has exactly one step of it, and any number of the others': those before it in the
    order since the last training step, and those after it until the next one begins. When that is cannot be known
    beforehand, unless the clock is the last in the order, or all have stepped just as in the training step before.
    """

    def __init__(self, optimizers: Sequence[Optimizer], clock: Optimizer | None, order: Sequence[int] = ()) -> None:
        self._count = len(optimizers)
        self._clock = None if clock is None else id(clock)
        self.order = [number for number in order if number in map(id, optimizers)]
        """The ids of the optimizers in the order of their first steps."""
        self.done: list[int] = []
        """The steps of the training step that is open."""
        self._last: list[int] = []
        """Those of the one before."""

    @property
    def has_clock(self) -> bool:
        return self._clock is not None

    @property
    def counts(self) -> bool:
        """Whether the training step that is open counts, even if it ended now."""
        return bool(self.done) and (self._clock is None or self._clock in self.done)

    def is_clock(self, optimizer: Optimizer) -> bool:
        return self._count == 1 or id(optimizer) == self._clock

    def begins_anew(self, optimizer: Optimizer) -> bool:
        """Whether a training step is open, and this optimizer's coming step belongs to the next."""
        place = self._place(id(optimizer))
        if not self.done:
            return False
        if self._clock is None:
            return place <= self._place(self.done[-1])
        return self._clock in self.done and place <= self._place(self._clock)

    def completes(self, optimizer: Optimizer) -> bool:
        """Whether the training step ends with this optimizer's coming step."""
        last = len(self.order) == self._count and self._place(id(optimizer)) == self._count - 1
        if last and self._clock in (None, id(optimizer)):
            return True
        if self._clock is None or len(self._last) != len(self.done) + 1 or len(set(self._last)) < self._count:
            return False
        return [*self.done, id(optimizer)] == self._last

    def stepped(self, optimizer: Optimizer) -> None:
        self.done.append(id(optimizer))

    def ended(self) -> None:
        self._last, self.done = self.done or self._last, []

    def _place(self, number: int) -> int:
        if number not in self.order:
            self.order.append(number)
        return self.order.index(number)
