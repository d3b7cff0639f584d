"""What the loop hands over, and the step that it belongs to."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from math import isfinite
from typing import Any

from torch import Tensor, strided

from learnscope.core.handed import Examples, HandedOver
from learnscope.session.steps.loss_watch import LossWatch
from learnscope.session.steps.rows import MOST, RecentRows, ids_in, own_ids


class Feed:
    """Collects what the loop hands over until the step it belongs to is complete.

    Loops log before the backward, before the step or after it. A backward since the last step means that
    the value belongs to the step to come; if not, the loop's first call tells: one that comes before any
    backward and any step shows a loop that logs ahead.

    Between the steps of two optimizers, a backward may be for either: what is handed over after it waits for the
    optimizer that steps next, which may belong to the same training step or begin another.
    """

    def __init__(
        self,
        complete: Callable[[int, HandedOver], object],
        note: Callable[[int, dict[str, list[Any]], float], object] = lambda _step, _logged, _time: False,
        *,
        lag: int = 0,
    ) -> None:
        self._complete, self._note = complete, note
        self.step: int | None = None
        """The step that something was handed over for."""
        self.lag = self._lag = lag
        """For how many steps more numbers may wait: the next ones complete them anyway. Tensors do not."""
        self._ahead: bool | None = None
        self._logged: dict[str, list[Any]] = {}
        self._time: float | None = 0.0
        """When `_logged` came, if it may join the queue; None if not, and 0 if there is nothing."""
        self._queue: list[tuple[int, dict[str, list[Any]], float]] = []
        """Finite numbers of earlier steps, which are noted together."""
        self.queues_until = -1
        """The last step whose numbers may join the queue."""
        self._batch: Any = None
        self._examples: list[Examples] = []
        self._waiting: list[tuple[int, dict[str, Any]]] = []
        self.rows = RecentRows()
        self._losses = LossWatch()

    def add(self, step: int, first_step: int, backward_seen: bool, **content: Any) -> None:
        """Take what the loop handed over, `logged`, `batch` or `examples`, after `step` training steps."""
        self._put(self._step_of(step, first_step, backward_seen), _copied(content))

    def add_logged(self, step: int, first_step: int, backward_seen: bool, numbers: Mapping[str, Any]) -> None:
        """The same of what was logged, as `own_numbers` gives it."""
        if self._ahead is None or backward_seen or self._ahead:
            step = self._step_of(step, first_step, backward_seen)
        if self.step is not None and self.step != step:
            self.flush()
        self.step, self._time = step, None
        if self._logged:
            self._take(numbers)
        else:  # as `_take`, without a call at every step
            self._logged = {name: [value] for name, value in numbers.items()}

    def queue(self, step: int, backward_seen: bool, logged: Mapping[str, Any]) -> bool:
        """Take what was logged after `step` steps if it is finite numbers that come alone, as at most steps."""
        if backward_seen or self._ahead:
            step += 1
        if self._ahead is None or step > self.queues_until or step == self.step or self.rows.kept:
            return False
        if self._time is None:
            self.flush()
        own = {}
        for name, value in logged.items():
            is_number = type(value) is Tensor and value.is_cpu and value.layout is strided and value.numel() == 1
            number = value.item() if is_number else value
            if not (isfinite(number) if type(number) is float else type(number) is int):
                return False
            own[name] = [number]
        if self.step is not None and self._time is not None:
            self._queue.append((self.step, self._logged, self._time))
        self.step, self._logged, self._time, self.lag = step, own, time.time(), self._lag
        return True

    def drain(self) -> None:
        """Note what is in the queue."""
        queue, self._queue = self._queue, []
        for step, logged, at in queue:
            if not self._note(step, logged, at):
                self._complete(step, HandedOver(logged, examples=[]))

    def follow_steps(self) -> None:
        """The loop logs after its steps, whatever its first call looks like."""
        self._ahead = False

    def add_rows(self, step: int, first_step: int, backward_seen: bool, ids: Any) -> None:
        """Keep the ids of examples that somebody else was given."""
        self.rows.add(self._step_of(step, first_step, backward_seen), own_ids(ids))

    def _step_of(self, step: int, first_step: int, backward_seen: bool) -> int:
        if self._ahead is None:
            self._ahead = step == first_step and not backward_seen
        return step + 1 if backward_seen or self._ahead else step

    def add_between(self, step: int, backwards: int, **content: Any) -> None:
        """Take it while training step `step` is open, with what was seen of `backwards` since an optimizer stepped."""
        self._ahead = bool(self._ahead)
        if backwards or self._ahead:
            self._waiting.append((backwards, _copied(content)))
        else:
            self._put(step, _copied(content))

    def settle(self, step: int, backwards: int, *, begins_anew: bool) -> None:
        """An optimizer is about to step, in the open training step `step` or in the next.

        What came after the last backward is of this optimizer's step. If there was another backward since, it is of an
        optimizer whose step was skipped.
        """
        waiting, self._waiting = self._waiting, []
        for seen, content in waiting:
            is_of_next = begins_anew and (seen == backwards or (bool(self._ahead) and seen == 0))
            self._put(step + is_of_next, content)

    @property
    def holds_examples(self) -> bool:
        """Whether examples, or what may be examples, were handed over that nobody has been given yet."""
        return bool(self._examples or self._waiting)

    @property
    def ahead(self) -> bool:
        """Whether the loop logs before the backward."""
        return bool(self._ahead)

    def logged_for(self, step: int) -> dict[str, list[Any]]:
        """What was logged for a step that has not been taken."""
        return self._logged if self.step == step else {}

    def drop(self, step: int, first: Mapping[str, int] | None) -> None:
        """The step never came: what was logged for it, all or the first few of each name, is not of the next one."""
        for name, values in list(self.logged_for(step).items()):
            del values[: len(values) if first is None else first.get(name, 0)]
            if not values:
                del self._logged[name]

    def stepped(self, step: int) -> None:
        """A step has ended: what was handed over for an earlier one is complete."""
        if self.step is not None and self.step < step:
            self.flush()

    def flush(self) -> None:
        if self._queue:
            self.drain()
        if self.step is None:
            return
        at, self._time = self._time or time.time(), 0.0
        step, self.lag = self.step, self._lag
        if not self.rows.kept and not self._examples and self._batch is None:  # numbers alone, as in most loops
            self.step, logged, self._logged = None, self._logged, {}
            if not self._note(step, logged, at):
                self._complete(step, HandedOver(logged, examples=[]))
            return
        rows = self._rows_behind(step)
        handed = HandedOver(self._logged, self._batch, self._examples, rows=rows)
        self.step, self._logged, self._batch, self._examples = None, {}, None, []
        self._complete(step, handed)

    def _rows_behind(self, step: int) -> dict[str, list[int | str]]:
        """The ids of the examples, if the loss of the step is a number here and stands out."""
        if not self.rows.kept:
            return {}
        losses = [as_number(value) for value in self._logged.get("loss", ())]
        known = [loss for loss in losses if loss is not None]
        if not known or not self._losses.stands_out(sum(known) / len(known)):
            return {}
        found = {"rows": self.rows.of(step), "rows_before": self.rows.of(step - 1)}
        return {name: rows[:MOST] for name, rows in found.items() if rows}

    def _put(self, step: int, content: dict[str, Any]) -> None:
        if self.step is not None and self.step != step:
            self.flush()
        self.step, self._time = step, None
        if "logged" in content:
            self._take(content["logged"])
        if len(content) > 1 or "logged" not in content:
            self.lag = 0
        if "batch" in content:
            self._batch = content["batch"]
            self.rows.add(step, ids_in(content["batch"]))
        if "examples" in content:
            self._examples.append(content["examples"])  # one for each micro-batch
            self.rows.add(step, content["examples"].ids)

    def _take(self, numbers: Mapping[str, Any]) -> None:
        for name, value in numbers.items():
            if name in self._logged:
                self._logged[name].append(value)
            else:
                self._logged[name] = [value]


def own_numbers(logged: Mapping[str, Any]) -> dict[str, Any]:
    """What a loop logs as numbers and tensors of its own: it may go on adding to its own before they are read."""
    own = {}
    for name, value in logged.items():  # no comprehension: that is a call more, at every step
        if not isinstance(value, Tensor):
            own[name] = value
        elif value.is_cpu and value.numel() == 1 and value.layout is strided:
            number = value.item()
            own[name] = int(number) if number is True or number is False else number
        else:  # on an accelerator: it is read later, so that nothing waits for it
            own[name] = value.detach().clone()
    return own


def _copied(content: dict[str, Any]) -> dict[str, Any]:
    """With copies of logged tensors: the loop may go on adding to its own before the value is read."""
    if "logged" not in content:
        return content
    return {**content, "logged": own_numbers(content["logged"])}


def as_number(value: Any) -> float | None:
    """A number that is there already; None of anything else, such as a tensor on an accelerator.

    >>> as_number(2), as_number("text")
    (2.0, None)
    """
    if type(value) is float:
        return value
    if isinstance(value, Tensor):
        return float(value.detach()) if value.is_cpu and value.numel() == 1 and value.layout is strided else None
    return float(value) if isinstance(value, int | float) else None
