"""The two ends of a training step as the optimizers' hooks show them, and the gradients in between."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from torch import Tensor
from torch.optim import Optimizer

from learnscope.core.gradients import Gradients
from learnscope.session import clipping
from learnscope.session.engine import Engine
from learnscope.session.gradients import GradientReader
from learnscope.session.optimizers import StepHooks


class StepEnds:
    """Calls `begin` when the gradients of a step are complete, and `end` when the step has been taken.

    On the way it hears of clips and of what a GradScaler does. `wanted` says whether anybody asks about this step:
    if not, nothing is read, so that nothing waits for the device.
    """

    def __init__(
        self, engine: Engine, begin: Callable[[], object], end: Callable[[], object], clip: clipping.Listener, *,
        wanted: Callable[[], bool] = lambda: True,
    ) -> None:  # fmt: skip
        self.reader = GradientReader(engine.subject)
        self.skipped = False
        """Whether the step does nothing, as a GradScaler has found gradients that are not finite."""
        self._begin, self._end, self._wanted = begin, end, wanted
        self._scale: float | Tensor = 1.0
        self._hooks: StepHooks | None = None
        self._safely, self._clip = engine.safely, engine.safely(clip)
        clipping.listen(self._clip)

    def attach(self, optimizers: Sequence[Optimizer], **options: Any) -> None:
        """These are the optimizers that step; options are those of `StepHooks`."""
        self._leave()
        self._hooks = StepHooks(optimizers, self._safely(self._on_begin), self._safely(self._on_end), **options)

    def gradients(self) -> Gradients:
        """As the optimizer was given them, with what is known from before a clip."""
        return self.reader.read(self._scale)

    def forget(self) -> None:
        """A new step begins."""
        self.reader.forget()
        self._scale, self.skipped = 1.0, False

    def close(self) -> None:
        """Take every hook away."""
        self._leave()
        clipping.unlisten(self._clip)

    def _on_begin(self, optimizer: Optimizer) -> None:
        if not self._wanted():
            return
        scale, found_inf = getattr(optimizer, "grad_scale", None), getattr(optimizer, "found_inf", None)
        if found_inf is not None and bool(found_inf.item()):
            self.skipped = True  # a fused optimizer under a GradScaler: its hooks fire, its step does nothing
            return
        self._scale = 1.0 if scale is None else scale
        self._begin()

    def _on_end(self, _optimizer: Optimizer) -> None:
        self._end()

    def _leave(self) -> None:
        if self._hooks is not None:
            self._hooks.close()
            self._hooks = None
