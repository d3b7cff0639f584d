"""A few of the session's numbers, for the trackers that the trainer itself reports to (`report_to`).

They go through the trainer's own callbacks for these trackers: no second writer, run or configuration.
"""

from __future__ import annotations

import copy
import warnings
from typing import Any

from transformers.integrations import integration_utils

from learnscope.core.probe import ProbeWarning
from learnscope.integrations.headlines import HeldHeadlines


class Trackers:
    """The trainer's callbacks for the trackers that it reports to."""

    def __init__(self, trainer: Any) -> None:
        known = tuple(set(integration_utils.INTEGRATION_TO_CALLBACK.values()))
        callbacks = trainer.callback_handler.callbacks if trainer.is_world_process_zero() else []
        self._callbacks: list[Any] = [callback for callback in callbacks if isinstance(callback, known)]
        self._model = trainer.model
        self.headlines = HeldHeadlines() if self._callbacks else None

    def send(self, args: Any, state: Any, control: Any) -> None:
        """Hand over what was recorded since the last time, each number at its own step."""
        for step, numbers in (self.headlines.take() if self.headlines is not None else {}).items():
            then = copy.copy(state)
            then.global_step = step
            for callback in list(self._callbacks):
                try:
                    callback.on_log(args, then, control, logs=dict(numbers), model=self._model)
                except Exception as error:  # noqa: BLE001  (whatever a tracker raises: training goes on without it)
                    self._callbacks.remove(callback)
                    name, cause = type(callback).__name__, f"{type(error).__name__}: {error}"
                    text = f"{name} could not take learnscope's numbers ({cause}), and gets no more; the run has them"
                    warnings.warn(text, ProbeWarning, stacklevel=2)
