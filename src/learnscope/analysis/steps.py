"""The two sides of the optimizer's step: gradients stand before it, moments are fresh after it.

A trainer's callback comes when gradients are already cleared, and without the optimizer. Both are found here: torch
announces every optimizer's step, and the optimizer of a model is the one that holds its parameters.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.optim import Optimizer
from torch.optim.optimizer import register_optimizer_step_pre_hook

from learnscope.core.moment import Gradients
from learnscope.core.subject import Subject
from learnscope.session import clipping
from learnscope.session.gradients import GradientReader
from learnscope.session.optimizers import StepHooks

Side = Callable[[], None]


class StepSides:
    """Calls `before` and `after` around a model's optimizer step, on the steps that are wanted."""

    def __init__(self, subject: Subject, before: Side, after: Side, wanted: Callable[[], bool]) -> None:
        self.subject = subject
        self.seen = False
        """Whether the last wanted step was."""
        self.skipped = False
        """Whether it did nothing, as a GradScaler had found gradients that are not finite."""
        self._before, self._after, self._wanted = before, after, wanted
        self._reader = GradientReader(subject)
        self._scale: float | Tensor = 1.0
        self._handles = _Handles()
        self.close = weakref.finalize(self, self._handles.close)
        mine = weakref.WeakMethod(self._on_clip)
        self._handles.listener = lambda *clip: method(*clip) if (method := mine()) is not None else None
        clipping.listen(self._handles.listener)
        if subject.optimizers:
            self.attach(subject.optimizers)
        else:
            self._look_out()

    def attach(self, optimizers: Sequence[Optimizer]) -> None:
        """These are the model's optimizers."""
        self._handles.leave_optimizers()
        self.subject.optimizers = list(optimizers)
        begin, end = weakref.WeakMethod(self._begin), weakref.WeakMethod(self._end)
        self._handles.steps = StepHooks(
            self.subject.optimizers,
            lambda optimizer: method(optimizer) if (method := begin()) is not None else None,
            lambda optimizer: method(optimizer) if (method := end()) is not None else None,
        )

    def forget(self) -> None:
        """The step that was seen has been accounted for. Optimizers that have not stepped by now never will."""
        self.seen = self.skipped = False
        if self.subject.optimizers:
            self._handles.stop_looking()
        self._reader.forget()

    def gradients(self) -> Gradients:
        """As the optimizer was given them, with what is known from before a clip."""
        return self._reader.read(self._scale)

    def _look_out(self) -> None:
        """Wait for optimizers that hold parameters of the model to step."""
        mine = weakref.WeakMethod(self._found)
        announce = torch.compiler.disable(
            lambda optimizer, _args, _kwargs: method(optimizer) if (method := mine()) is not None else None
        )
        self._handles.looking = register_optimizer_step_pre_hook(announce)

    def _found(self, optimizer: Optimizer) -> None:
        ours, known = {id(p) for p in self.subject.parameters}, self.subject.optimizers
        mine = any(id(p) in ours for group in optimizer.param_groups for p in group["params"])
        if mine and not any(optimizer is other for other in known):
            # torch goes on to the optimizer's own hooks, so that this step is seen as well
            self.attach([*known, optimizer])

    def _on_clip(self, parameters: Sequence[Tensor], max_norm: float, total_norm: Tensor) -> Any:
        return self._reader.on_clip(parameters, max_norm, total_norm) if self._wanted() else None

    def _begin(self, optimizer: Optimizer) -> None:
        if self.seen or not self._wanted():
            return
        scale, found_inf = getattr(optimizer, "grad_scale", None), getattr(optimizer, "found_inf", None)
        if found_inf is not None and bool(found_inf.item()):
            self.skipped = True  # a fused optimizer under a GradScaler: its hooks fire, its step does nothing
            return
        self._scale = 1.0 if scale is None else scale
        self.seen = True
        self._before()

    def _end(self, _optimizer: Optimizer) -> None:
        if self.seen and self._wanted():
            self._after()


class _Handles:
    """Everything that is hooked somewhere, apart from its owner, so that it can go when the owner does."""

    def __init__(self) -> None:
        self.steps: StepHooks | None = None
        self.looking: Any = None
        self.listener: Any = None

    def stop_looking(self) -> None:
        if self.looking is not None:
            self.looking.remove()
            self.looking = None

    def leave_optimizers(self) -> None:
        if self.steps is not None:
            self.steps.close()
            self.steps = None

    def close(self) -> None:
        self.stop_looking()
        self.leave_optimizers()
        if self.listener is not None:
            clipping.unlisten(self.listener)
            self.listener = None
