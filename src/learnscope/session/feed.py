"""What the loop hands over: logged numbers, batches, examples, and the step each belongs to."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from torch import Tensor

from learnscope.core.handed import Examples, HandedOver

FED = frozenset({"logged", "batch", "examples"})
"""Needs that the loop meets by calling the session, so that whether they are met is known only while it runs."""


class Feed:
    """Collects what the loop hands over until the step it belongs to is complete.

    Loops log before the backward, before the step or after it. A backward since the last step means that
    the value belongs to the step to come; if not, the loop's first call tells: one that comes before any
    backward and any step shows a loop that logs ahead.
    """

    def __init__(self, complete: Callable[[int, HandedOver], object]) -> None:
        self._complete = complete
        self._step: int | None = None
        self._ahead: bool | None = None
        self._logged: dict[str, list[Any]] = {}
        self._batch: Any = None
        self._examples: list[Examples] = []

    def add(
        self, step: int, first_step: int, backward_seen: bool, *, logged: Mapping[str, Any] | None = None,
        batch: Any = None, examples: Examples | None = None,
    ) -> None:  # fmt: skip
        if self._ahead is None:
            self._ahead = step == first_step and not backward_seen
        target = step + 1 if backward_seen or self._ahead else step
        if self._step != target:
            self.flush()
        self._step = target
        for name, value in (logged or {}).items():
            # a copy: the loop may go on adding to its own tensor before the value is read
            copy = value.detach().clone() if isinstance(value, Tensor) else value
            self._logged.setdefault(name, []).append(copy)
        self._batch = self._batch if batch is None else batch
        self._examples += [] if examples is None else [examples]  # every micro-batch of the step, not only the last

    def stepped(self, step: int) -> None:
        """A step has ended: what was handed over for an earlier one is complete."""
        if self._step is not None and self._step < step:
            self.flush()

    def flush(self) -> None:
        if self._step is None:
            return
        step, handed = self._step, HandedOver(self._logged, self._batch, self._examples)
        self._step, self._logged, self._batch, self._examples = None, {}, None, []
        self._complete(step, handed)
