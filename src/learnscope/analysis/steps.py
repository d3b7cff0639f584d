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

from learnscope.session.engine import Engine
from learnscope.session.steps import StepEnds

Side = Callable[[], None]


class StepSides:
    """Calls `before` and `after` around a model's optimizer step, on the steps that are wanted."""

    def __init__(self, engine: Engine, before: Side, after: Side, wanted: Callable[[], bool]) -> None:
        self.subject = engine.subject
        self.seen = False
        """Whether the last wanted step was."""
        self._before, self._after, self._wanted = before, after, wanted
        # hooks outlive their owner where it is forgotten: they hold it weakly, and go with it
        self.ends = StepEnds(
            engine, _weakly(self._begin), _weakly(self._end), _weakly(self._on_clip), wanted=_weakly(self._wants)
        )
        self._lookout: list[Any] = []
        self.close = weakref.finalize(self, _close, self.ends, self._lookout)
        if self.subject.optimizers:
            self.attach(self.subject.optimizers)
        else:
            announce = torch.compiler.disable(_weakly(self._stepping))
            self._lookout.append(register_optimizer_step_pre_hook(announce))

    def attach(self, optimizers: Sequence[Optimizer]) -> None:
        """These are the model's optimizers."""
        self.subject.optimizers = list(optimizers)
        self.ends.attach(self.subject.optimizers)

    def forget(self) -> None:
        """The step that was seen has been accounted for. Optimizers that have not stepped by now never will."""
        self.seen = False
        if self.subject.optimizers:
            _stop(self._lookout)
        self.ends.forget()

    def _stepping(self, optimizer: Optimizer, _args: Any, _kwargs: Any) -> None:
        """One of the optimizers that hold parameters of the model, of which none was given."""
        ours, known = {id(p) for p in self.subject.parameters}, self.subject.optimizers
        mine = any(id(p) in ours for group in optimizer.param_groups for p in group["params"])
        if mine and not any(optimizer is other for other in known):
            # torch goes on to the optimizer's own hooks, so that this step is seen as well
            self.attach([*known, optimizer])

    def _wants(self) -> bool:
        return not self.seen and self._wanted()

    def _on_clip(self, parameters: Sequence[Tensor], max_norm: float, total_norm: Tensor) -> Any:
        return self.ends.reader.on_clip(parameters, max_norm, total_norm) if self._wanted() else None

    def _begin(self) -> None:
        self.seen = True
        self._before()

    def _end(self) -> None:
        if self.seen and self._wanted():
            self._after()


def _weakly(method: Callable[..., Any]) -> Callable[..., Any]:
    """A bound method that does nothing when its owner is gone."""
    reference = weakref.WeakMethod(method)
    return lambda *given: method(*given) if (method := reference()) is not None else None


def _stop(lookout: list[Any]) -> None:
    while lookout:
        lookout.pop().remove()


def _close(ends: StepEnds, lookout: list[Any]) -> None:
    _stop(lookout)
    ends.close()
