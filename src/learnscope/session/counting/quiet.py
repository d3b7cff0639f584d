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
    have_stepped,
    stepped_at_once,
    taken_passes,
)
from learnscope.session.engine import Engine
from learnscope.session.steps.backwards import Backwards
from learnscope.session.steps.feed import Feed

REFRESH = 50
"""Every so many steps the model's parameters are read anew: they may be other objects by then."""
LOOKS_APART = 1.0
"""The most seconds between two looks at what waits to be written, at quiet steps."""
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


_KERNELS: Any = native.kernels
Quiet: type[PlainQuiet] = PlainQuiet if _KERNELS is None else _KERNELS.Quiet


class StepCount:
    """Counts the steps, and looks after what waits while they are quiet."""

    def __init__(self, engine: Engine, feed: Feed, backwards: Backwards, steps: int, *, follows: bool) -> None:
        self._engine, self._feed, self._backwards = engine, feed, backwards
        self.first = self.counted = steps
        """Steps when the session began; those that were counted when somebody last asked."""
        self.passes = 1
        """Backward passes of the last step."""
        unmarked = engine.safely(have_stepped)
        self.quiet: PlainQuiet = Quiet(backwards.course, backwards.leaves, backwards.arrivals, follows, unmarked)
        self.quiet.look = engine.safely(self.look)
        self.ended: Callable[[int, int], object] = lambda _steps, _passes: None
        """Called with a number of quiet steps that have ended, and their backward passes."""
        self.plan: Callable[[int], object] = lambda _passes: None
        """Called where the coming step may not be a quiet one, with the backward passes of the last."""
        engine.gather = feed.drain

    @property
    def steps(self) -> int:
        """Training steps that have ended."""
        if self.quiet.pending:
            self.catch_up()
        return self.counted

    @steps.setter
    def steps(self, steps: int) -> None:
        self.counted = steps

    @property
    def reads_anew(self) -> bool:
        """Whether the parameters are to be read anew at the coming step."""
        return (self.counted - self.first) % REFRESH == REFRESH - 1

    def catch_up(self) -> None:
        """Count the quiet steps that have ended meanwhile."""
        quiet, feed = self.quiet, self._feed
        steps, passes, quiet.pending, quiet.passes = quiet.pending, quiet.passes, 0, 0
        self.counted += steps
        self.passes = quiet.last
        self.ended(steps, passes)
        if feed.step is not None and feed.step < self.counted - feed.lag:
            feed.flush()

    def look(self) -> None:
        """Write what waits: time has passed, or another kind of step comes."""
        if self.quiet.pending:
            self.catch_up()
        self._feed.stepped(self.counted)
        self._feed.drain()
        self.quiet.looked = now = time.time()
        self._engine.write_in_time(now)
        self.quiet.apart = min(self._engine.look_at(now) - now, LOOKS_APART)
        if self.quiet.room <= 0:
            self.plan(self.passes)

    def may_be_quiet(self, next_due: int, *, now: bool) -> None:
        """The coming steps are quiet until one is due, or reads the parameters anew, if the next one is (`now`)."""
        quiet, steps = self.quiet, self.counted
        quiet.room = min(next_due, steps + REFRESH - (steps - self.first) % REFRESH) - 1 - steps
        quiet.quiet = now and quiet.room > 0

    def queues_until(self, *, notes: bool) -> int:
        """The last step whose numbers may wait to be noted with others; `notes`: whether they are noted at all."""
        waits = notes and self._feed.lag and not self._engine.inherited
        return self._engine.full_at(self.steps + 1) - 1 if waits else -1
