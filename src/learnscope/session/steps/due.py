"""Which probes are due at a step, without asking each of them at every step."""

from __future__ import annotations

from collections.abc import Sequence

from learnscope.core.schedules import next_due
from learnscope.session.bound import Bound
from learnscope.session.engine import FED, Engine

Due = tuple[Sequence[Bound], Sequence[Bound]]
NOTHING: Due = ((), ())
NEVER = 2**62
"""A step that no training takes."""


class DueSteps:
    """Asks the schedules where one of them is due next, and nothing until then."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._asked, self.next, self._known = 0, 0, -1
        """`next`: the first step after the one asked for at which a probe may be due, of those there are."""

    def at(self, step: int) -> Due:
        """The probes that are due before this step and after it, and granted by the budget."""
        bound = self._engine.bound
        if self._asked < step < self.next and len(bound) == self._known:  # a step that was skipped comes again
            return NOTHING
        # those that are fed are due when the loop hands something over
        schedules = [
            each.probe.every for each in bound
            if each.probe.at in ("before_step", "after_step") and not each.probe.needs & FED
        ]  # fmt: skip
        self._asked, self._known = step, len(bound)
        self.next = min((next_due(every, step) for every in schedules), default=NEVER)
        return self._engine.due("before_step", step), self._engine.due("after_step", step)
