"""Optimizers that can be followed, and where a training step begins and ends: hooks, clips, a GradScaler."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import LBFGS, Optimizer
from torch.optim.optimizer import register_optimizer_step_pre_hook

from learnscope.core.gradients import Gradients
from learnscope.session import clipping
from learnscope.session.engine import Bound, Engine


class StepEnds:
    """Calls `begin` when the gradients of a step are complete, and `end` when the step has been taken.

    With several optimizers, the step begins with the first of them and ends when all have stepped, unless `clock` names
    the one that counts. An optimizer that steps again before the others have (a GradScaler skipped one, or they do not
    take turns) ends the step that was open.

    Args:
        readers: the probes that read the gradients of this step, and are charged for reading them before a clip.
        wanted: False for a step that nobody asks about: nothing is read, so that nothing waits for the device.
        out_of_turn: called when the optimizers do not take turns.
    """

    def __init__(
        self, engine: Engine, begin: Callable[[], object], end: Callable[[], object],
        readers: Callable[[], Sequence[Bound]], *, wanted: Callable[[], bool] = lambda: True,
        out_of_turn: Callable[[], object] = lambda: None,
    ) -> None:  # fmt: skip
        self.skipped = False
        """Whether the step does nothing, as a GradScaler has found gradients that are not finite."""
        self._engine, self._subject = engine, engine.subject
        self._begin, self._end, self._start = begin, engine.safely(end), engine.safely(self._on_start)
        self._readers, self._wanted, self._out_of_turn = readers, wanted, out_of_turn
        self._reader = clipping.GradientReader(engine.subject)
        self._scale: float | Tensor = 1.0
        self._handles: list[Any] = []
        self._search: Any = None
        self._clip = engine.safely(self._on_clip)
        clipping.listen(self._clip)

    def attach(self, optimizers: Sequence[Optimizer], clock: Optimizer | None = None) -> None:
        """Follow the steps of these optimizers, in place of earlier ones."""
        self._detach()
        counted = [clock] if clock is not None else list(optimizers)
        self._counted = {id(optimizer) for optimizer in counted}
        self._open = False
        self._stepped: set[int] = set()
        # a compiled optimizer.step must not trace into the probes
        before, after = torch.compiler.disable(self._before), torch.compiler.disable(self._after)
        for optimizer in counted:
            self._handles.append(optimizer.register_step_pre_hook(before))
            self._handles.append(optimizer.register_step_post_hook(after))

    def find_optimizers(self) -> None:
        """Follow the optimizers that step parameters of the model. Those that have not by the first step never will."""
        self._search = register_optimizer_step_pre_hook(torch.compiler.disable(self._on_any_step))

    def gradients(self) -> Gradients:
        """The gradients as the optimizer was given them, with their statistics from before a clip."""
        return self._reader.read(self._scale)

    def forget(self) -> None:
        self._reader.forget()
        self._scale, self.skipped = 1.0, False
        if self._subject.optimizers:
            self._stop_search()

    def close(self) -> None:
        self._detach()
        self._stop_search()
        clipping.unlisten(self._clip)

    # hooks, in the order of a step

    def _on_any_step(self, optimizer: Optimizer, _args: Any, _kwargs: Any) -> None:
        parameters, known = {id(p) for p in self._subject.parameters}, self._subject.optimizers
        steps_model = any(id(p) in parameters for group in optimizer.param_groups for p in group["params"])
        if steps_model and not any(optimizer is other for other in known):
            # torch goes on to the optimizer's own hooks, so that this step is seen as well
            self._subject.optimizers = [*known, optimizer]
            self.attach(self._subject.optimizers)

    def _on_clip(
        self, parameters: Sequence[Tensor], max_norm: float, total_norm: Tensor
    ) -> Callable[[], object] | None:
        readers = self._readers()
        if not readers:
            return None
        with self._engine.charged(readers):
            clipped = self._reader.on_clip(parameters, max_norm, total_norm)
        return None if clipped is None else self._engine.safely(clipped)

    def _before(self, optimizer: Optimizer, args: Any, kwargs: Any) -> tuple[Any, Any] | None:
        if id(optimizer) in self._stepped:
            self._out_of_turn()
            self._finish()
        closure = kwargs.get("closure", args[1] if len(args) > 1 else None)
        if closure is None:
            self._start(optimizer)
            return None

        # forward, backward and clipping happen inside the closure: gradients exist only when it returns
        def watched_closure() -> Any:
            result = closure()
            self._start(optimizer)
            return result

        if "closure" in kwargs:
            return args, {**kwargs, "closure": watched_closure}
        return (args[0], watched_closure, *args[2:]), kwargs

    def _on_start(self, optimizer: Optimizer) -> None:
        if self._open:
            return
        self._open = True
        if not self._wanted():
            return
        scale, found_inf = getattr(optimizer, "grad_scale", None), getattr(optimizer, "found_inf", None)
        if found_inf is not None and bool(found_inf.item()):
            self.skipped = True  # a fused optimizer under a GradScaler: its hooks fire, its step does nothing
            return
        self._scale = 1.0 if scale is None else scale
        self._begin()

    def _after(self, optimizer: Optimizer, _args: Any, _kwargs: Any) -> None:
        self._stepped.add(id(optimizer))
        if self._stepped == self._counted:
            self._finish()

    def _finish(self) -> None:
        self._stepped = set()
        if self._open:
            self._open = False
            self._end()

    def _detach(self) -> None:
        while self._handles:
            self._handles.pop().remove()

    def _stop_search(self) -> None:
        if self._search is not None:
            self._search.remove()
            self._search = None


def as_optimizers(optimizer: Any, model: nn.Module) -> list[Optimizer]:
    """The torch optimizers in what the user passed; an error says what to do instead."""
    if optimizer is None:
        return []
    items = list(optimizer.values()) if isinstance(optimizer, dict) else optimizer
    optimizers = [unwrap_optimizer(item) for item in (items if isinstance(items, Iterable) else [items])]
    if any(isinstance(each, LBFGS) for each in optimizers):
        raise ValueError(
            "LBFGS evaluates the model several times within one step, so there is no single gradient or update to "
            "record. Use a first-order optimizer, or call w.step() after each of its steps: ls.watch(model) without "
            "the optimizer."
        )
    if _steps_in_backward(model, optimizers):
        raise ValueError(
            "this optimizer steps inside backward, parameter by parameter, so there is no moment at which all "
            "gradients exist. Open ls.watch(model) without the optimizer and call w.step() after each backward."
        )
    return optimizers


def unwrap_optimizer(optimizer: Any) -> Optimizer:
    """The torch optimizer; wrappers of Accelerate and Lightning contain one, and never fire hooks themselves."""
    while isinstance(inner := getattr(optimizer, "optimizer", None), Optimizer):
        optimizer = inner
    if not isinstance(optimizer, Optimizer):
        raise TypeError(
            f"{type(optimizer).__name__} is not a torch optimizer. Pass the torch.optim optimizer, or open "
            "ls.watch(model) without one and call w.step() after each step."
        )
    return optimizer


def _steps_in_backward(model: nn.Module, optimizers: Sequence[Optimizer]) -> bool:
    if any(getattr(p, "_in_backward_optimizers", None) for p in model.parameters()):
        return True
    # the recipe of torch's tutorial: one optimizer a parameter, stepped by a post-accumulate hook
    single = [o for o in optimizers if sum(len(group["params"]) for group in o.param_groups) == 1]
    hooked = any(getattr(p, "_post_accumulate_grad_hooks", None) for p in model.parameters())
    return hooked and len(single) > 1 and len(single) == len(optimizers)
