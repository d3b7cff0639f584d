"""What a training loop hands over, on its way to the step that it belongs to."""

from __future__ import annotations

import time
from collections.abc import Mapping
from math import isfinite
from typing import Any

from learnscope.session.counting.quiet import StepCount
from learnscope.session.engine import Engine
from learnscope.session.steps.attempts import Attempts
from learnscope.session.steps.backwards import Backwards
from learnscope.session.steps.ends import StepEnds
from learnscope.session.steps.fed import FedProbes
from learnscope.session.steps.feed import Feed, own_numbers


class Handing:
    """The part of a followed loop that takes numbers, batches and examples."""

    engine: Engine
    epoch: int
    feed: Feed
    _fed: FedProbes
    _ends: StepEnds
    _count: StepCount
    _backwards: Backwards
    _attempts: Attempts
    _names_rows: bool
    """Whether somebody may ask for the ids of the last steps' examples: where no loss is known, nobody does."""
    _counts: bool
    """Whether the loop's calls are counted."""
    _seen_at_last_step: int
    """What was seen of backward passes, since the last training step, before an optimizer last stepped."""

    def hand_over(self, **content: Any) -> None:
        if self._ends.half_taken:
            self.feed.add_between(self._count.steps + 1, self._seen_since_a_step(), **content)
        else:
            self.feed.add(self._count.steps, self._count.first, self._backwards.seen > 0, **content)

    def log(self, logged: Mapping[str, Any]) -> None:
        """What the loop logs, as most do at every step."""
        self._names_rows = True
        if self._attempts.late is not None and self._attempts.takes(logged):
            return
        if self._ends.single:
            count, seen = self._count, self._backwards.course.seen if self._counts else self._backwards.seen
            if self.feed.queue(count.counted + count.quiet.pending, seen > 0, logged):
                return
            self.feed.queues_until = count.queues_until(notes=self._fed.notes)
        elif self._ends.half_taken:
            self.hand_over(logged=logged)
            return
        numbers = own_numbers(logged)
        if any(type(number) is float and not isfinite(number) for number in numbers.values()):
            self._count.quiet.quiet = False  # the coming step completes and writes it
        self.feed.add_logged(self._count.steps, self._count.first, self._backwards.seen > 0, numbers)
        self._attempts.logged(numbers)

    def take_examples(self, *batch: Any) -> bool:
        """Give a batch to the one probe that collects examples, in one copy; False if it has to be handed over."""
        bound = self._fed.collector
        if bound is None or self.feed.holds_examples or self.engine.inherited:
            return False
        started = time.perf_counter()
        taken = bound.probe.take_at_once(bound.state, self.epoch, *batch)
        if taken:
            if self._names_rows:
                self.feed.add_rows(self._count.steps, self._count.first, self._backwards.seen > 0, batch[0])
            bound.waiting += 1
            self.engine.budget.add(bound.label, time.perf_counter() - started)
        return taken

    def name_rows(self, ids: Any) -> None:
        """Keep the ids of a batch's examples."""
        self.feed.add_rows(self._count.steps, self._count.first, self._backwards.seen > 0, ids)

    def _seen_since_a_step(self) -> int:
        return self._backwards.seen - self._seen_at_last_step
