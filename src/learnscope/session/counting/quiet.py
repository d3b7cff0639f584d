"""Training steps at which nothing is measured, as nearly all are: they are counted by the optimizer's hooks alone."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

from learnscope import native
from learnscope.session.counting.leaves import (
    PlainAdditions,
    PlainCourse,
    PlainLeaf,
    are_ordinary,
    due,
    stepped_at_once,
)

Hook = Callable[..., Any]


class PlainQuiet:
    """Hooks on the only optimizer that is followed. A step that is not as most is passed on to others.

    What was counted waits in `pending` until somebody asks; `look` is called where that should not take longer.
    """

    def __init__(
        self,
        course: PlainCourse,
        leaves: list[PlainLeaf],
        arrivals: list[PlainAdditions],
        counts: bool,
        unmarked: Callable[[list[PlainLeaf]], object],
    ) -> None:
        self._course, self._leaves, self._arrivals = course, leaves, arrivals
        self._counts, self._unmarked = counts, unmarked
        """Whether what happens to the leaves' gradients is counted; and what marks these as used."""
        self.slow_before: Hook | None = None
        self.slow_after: Hook | None = None
        self.look: Callable[[], object] | None = None
        self.quiet = False
        """Whether nothing is due at the coming steps, as many as there is `room` for."""
        self.room = 0
        self.eventful = False
        """Whether something has happened that is not as at most steps, until a step ends that counts."""
        self.pending = self.passes = self.last = 0
        """Quiet steps that nobody has asked for yet, the backward passes of all of them, and of the last."""
        self.number = 0
        """Steps that ended in this session."""
        self.looked, self.apart = 0.0, 0.0
        """When `look` was last called, in seconds since 1970, and after how many it is called again."""
        self._taken = False

    def before(self, optimizer: Any, args: Any, kwargs: Any) -> Any:
        """Before a step of the optimizer."""
        try:
            self._taken = self._is_quiet(optimizer, args, kwargs)
        except Exception:  # noqa: BLE001  (what follows meets the same error, and does not let the training die of it)
            self._taken = False
        if self._taken or self.slow_before is None:
            return None
        return self.slow_before(optimizer, args, kwargs)

    def after(self, optimizer: Any, args: Any, kwargs: Any) -> None:
        """After a step of the optimizer."""
        if not self._taken:
            if self.slow_after is not None:
                self.slow_after(optimizer, args, kwargs)
            return
        self._taken = False
        if self._counts and not stepped_at_once(self._leaves):
            self._unmarked(self._leaves)
        self.last = taken_passes(self._leaves, self._arrivals)
        self.passes += self.last
        self.pending += 1
        self.number += 1
        self.room -= 1
        course = self._course
        course.seen, course.begun, course.ordinary = 0, False, not due(self.number + 1)
        if self.look is not None and not (self.room > 0 and 0 <= time.time() - self.looked < self.apart):
            self.look()

    def _is_quiet(self, optimizer: Any, args: Any, kwargs: Any) -> bool:
        if not self.quiet or self.eventful or self.room <= 0 or len(args) != 1 or kwargs:
            return False  # with more arguments there is a closure
        if self._counts and (self._course.looks or not are_ordinary(self._leaves)):
            return False
        return "found_inf" not in vars(optimizer)  # a fused GradScaler may let the step do nothing


def taken_passes(leaves: list[PlainLeaf], arrivals: list[PlainAdditions]) -> int:
    """The backward passes of a step that has ended; those of the next are counted from now on."""
    passes = 0
    for leaf in leaves:
        passes, leaf.count = max(passes, leaf.count), 0
    for each in arrivals:
        passes, each.number = max(passes, each.number), 0
    return passes


_KERNELS: Any = native.kernels
Quiet: type[PlainQuiet] = PlainQuiet if _KERNELS is None else _KERNELS.Quiet
