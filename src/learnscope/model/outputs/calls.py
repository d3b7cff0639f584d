"""What a task gives a model for a batch: the call itself, without the task around it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from torch import Tensor, nn

from learnscope.task import Task


@dataclass(frozen=True, slots=True)
class Call:
    """One call of a model, and its logits; `alone` is False where the task calls it several times, or not itself."""

    run: Callable[[], Any]
    logits: Tensor
    args: tuple[Any, ...] = ()
    kwargs: dict[str, Any] | None = None

    @property
    def alone(self) -> bool:
        return self.kwargs is not None


def call_of(model: nn.Module, task: Task, batch: Any) -> Call:
    """How `task` calls `model` for `batch`, found by running it once; to be called under the guard."""
    seen: list[tuple[tuple[Any, ...], dict[str, Any]]] = []

    def note(_module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        seen.append((args, kwargs))

    handle = model.register_forward_pre_hook(note, with_kwargs=True, prepend=True)
    try:
        logits = task.logits(model, batch)
    finally:
        handle.remove()
    if len(seen) != 1:
        return Call(lambda: task.logits(model, batch), logits)
    [(args, kwargs)] = seen
    return Call(lambda: model(*args, **kwargs), logits, args, kwargs)
