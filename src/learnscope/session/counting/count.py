"""How many training steps there were, of which most are counted by the optimizer's hooks alone."""

from __future__ import annotations

import time
from collections.abc import Callable

from learnscope.session.counting.leaves import have_stepped
from learnscope.session.counting.quiet import PlainQuiet, Quiet
from learnscope.session.engine import Engine
from learnscope.session.steps.backwards import Backwards
from learnscope.session.steps.feed import Feed

REFRESH = 50
"""Every so many steps the model's parameters are read anew: they may be other objects by then."""
LOOKS_APART = 1.0
"""The most seconds between two looks at what waits to be written, at quiet steps."""


class StepCount:
    """Counts the steps, and looks after what waits while they are quiet."""

    def __init__(self, engine: Engine, feed: Feed, backwards: Backwards, steps: int, *, follows: bool) -> None:
        self._engine, self._feed, self._backwards = engine, feed, backwards
        self.first = self.counted = steps
        """Steps when the session began; those that were counted when somebody last asked."""
        self.passes = 1
        """Backward passes of the last step."""
        self.quiet: PlainQuiet = Quiet(backwards.course, backwards.leaves, backwards.arrivals, follows, have_stepped)
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
