"""Attaching to optimizers: which can be watched, and when a step of several has begun and ended."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

import torch
from torch import nn
from torch.optim import LBFGS, Optimizer

Event = Callable[[Optimizer], None]


def as_optimizers(given: Any, model: nn.Module) -> list[Optimizer]:
    """The torch optimizers behind what the user passed, or a refusal that says what to do."""
    if given is None:
        return []
    items = list(given.values()) if isinstance(given, dict) else given
    items = list(items) if isinstance(items, Iterable) else [items]
    optimizers = [unwrap_optimizer(item) for item in items]
    for optimizer in optimizers:
        if isinstance(optimizer, LBFGS):
            raise ValueError(  # noqa: TRY004  (the type is right, this kind of it is not)
                "LBFGS evaluates the model several times within one step, so there is no single gradient or update "
                "to record. Use a first-order optimizer, or call w.step() after each of its steps: "
                "ls.watch(model) without the optimizer."
            )
    if _steps_in_backward(model, optimizers):
        raise ValueError(
            "this optimizer steps inside backward, parameter by parameter, so there is no moment at which all "
            "gradients exist. Open ls.watch(model) without the optimizer and call w.step() after each backward."
        )
    return optimizers


def unwrap_optimizer(given: Any) -> Optimizer:
    """Accelerate's and Lightning's wrappers never fire hooks: go to the optimizer inside."""
    while isinstance(inner := getattr(given, "optimizer", None), Optimizer):
        given = inner
    if not isinstance(given, Optimizer):
        raise TypeError(
            f"{type(given).__name__} is not a torch optimizer. Pass the torch.optim optimizer, or open "
            "ls.watch(model) without one and call w.step() after each step."
        )
    return given


def _steps_in_backward(model: nn.Module, optimizers: Sequence[Optimizer]) -> bool:
    if any(getattr(p, "_in_backward_optimizers", None) for p in model.parameters()):
        return True
    # the recipe of torch's tutorial: one optimizer a parameter, stepped by a post-accumulate hook
    single = [o for o in optimizers if sum(len(group["params"]) for group in o.param_groups) == 1]
    hooked = any(getattr(p, "_post_accumulate_grad_hooks", None) for p in model.parameters())
    return hooked and len(single) > 1 and len(single) == len(optimizers)


class StepHooks:
    """Turns the steps of one or several optimizers into one `begin` and one `end` a training step.

    With several, the step begins with the first of them and ends when all have stepped, unless `clock` names
    the one that counts. An optimizer that steps again before the others have (a GradScaler skipped one, or
    they do not go in turn) ends the step that was open.
    """

    def __init__(
        self,
        optimizers: Sequence[Optimizer],
        begin: Event,
        end: Event,
        *,
        clock: Optimizer | None = None,
        out_of_turn: Callable[[], None] = lambda: None,
    ) -> None:
        self._begin, self._end, self._out_of_turn = begin, end, out_of_turn
        counted = [clock] if clock is not None else list(optimizers)
        self._all = {id(optimizer) for optimizer in counted}
        self._open = False
        self._stepped: set[int] = set()
        self._handles = []
        # a compiled optimizer.step must not trace into the probes
        before, after = torch.compiler.disable(self._before), torch.compiler.disable(self._after)
        for optimizer in counted:
            self._handles.append(optimizer.register_step_pre_hook(before))
            self._handles.append(optimizer.register_step_post_hook(after))

    def close(self) -> None:
        for handle in self._handles:
            handle.remove()

    def _before(self, optimizer: Optimizer, args: Any, kwargs: Any) -> tuple[Any, Any] | None:
        if id(optimizer) in self._stepped:
            self._out_of_turn()
            self._finish(optimizer)
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

    def _after(self, optimizer: Optimizer, _args: Any, _kwargs: Any) -> None:
        self._stepped.add(id(optimizer))
        if self._stepped == self._all:
            self._finish(optimizer)

    def _start(self, optimizer: Optimizer) -> None:
        if not self._open:
            self._open = True
            self._begin(optimizer)

    def _finish(self, optimizer: Optimizer) -> None:
        self._stepped = set()
        if self._open:
            self._open = False
            self._end(optimizer)
