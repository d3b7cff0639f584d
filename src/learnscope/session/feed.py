"""What the loop hands over: logged numbers, batches, examples, and the step each belongs to."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch import Tensor

from learnscope.core.handed import Examples

FED = frozenset({"logged", "batch", "examples"})
"""Needs that the loop meets by calling the session, so that whether they are met shows only in running."""


class Feed:
    """Collects what the loop hands over until the step it belongs to is complete.

    Loops log before the backward, before the step or after it. A backward since the last step means that
    the value belongs to the step to come; if not, the loop's first call tells: one that comes before any
    backward and any step shows a loop that logs ahead.
    """

    def __init__(self, complete: Callable[[int, dict[str, list[Any]], dict[str, Any]], None]) -> None:
        self._complete = complete
        self._step: int | None = None
        self._ahead: bool | None = None
        self._logged: dict[str, list[Any]] = {}
        self._given: dict[str, Any] = {}

    def log(self, step: int, first_step: int, backward_seen: bool, values: dict[str, Any]) -> None:
        self._turn_to(step, first_step, backward_seen)
        for name, value in values.items():
            # a copy: the loop may go on adding to its own tensor before the value is read
            kept = value.detach().clone() if isinstance(value, Tensor) else value
            self._logged.setdefault(name, []).append(kept)

    def give(self, step: int, first_step: int, backward_seen: bool, what: str, value: Any) -> None:
        self._turn_to(step, first_step, backward_seen)
        if isinstance(value, Examples):  # every micro-batch of the step, not only the last
            self._given.setdefault("all_examples", []).append(value)
            value = (value.ids, value.logits, value.targets)
        self._given[what] = value

    def stepped(self, step: int) -> None:
        """A step has ended: what was handed over for an earlier one is complete."""
        if self._step is not None and self._step < step:
            self.flush()

    def flush(self) -> None:
        if self._step is None:
            return
        step, logged, given = self._step, self._logged, self._given
        self._step, self._logged, self._given = None, {}, {}
        self._complete(step, logged, given)

    def _turn_to(self, step: int, first_step: int, backward_seen: bool) -> None:
        if self._ahead is None:
            self._ahead = step == first_step and not backward_seen
        target = step + 1 if backward_seen or self._ahead else step
        if self._step is not None and self._step != target:
            self.flush()
        self._step = target
