"""The call that a task makes to a model for a batch, to be repeated without the task."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from torch import Tensor, nn

from learnscope.task import Task


@dataclass(frozen=True, slots=True)
class Call:
    """One call of a model, and its logits. `kwargs` is None if the task calls the model several times or not at all."""

    run: Callable[[], Any]
    logits: Tensor
    args: tuple[Any, ...] = ()
    kwargs: dict[str, Any] | None = None


def call_of(model: nn.Module, task: Task, batch: Any) -> Call:
    """How `task` calls `model` for `batch`, observed in one pass; for use under the guard."""
    seen: list[tuple[tuple[Any, ...], dict[str, Any]]] = []

    def keep(_module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        seen.append((args, kwargs))

    handle = model.register_forward_pre_hook(keep, with_kwargs=True, prepend=True)
    try:
        logits = task.logits(model, batch)
    finally:
        handle.remove()
    if len(seen) != 1:
        return Call(lambda: task.logits(model, batch), logits)
    [(args, kwargs)] = seen
    return Call(lambda: model(*args, **kwargs), logits, args, kwargs)
