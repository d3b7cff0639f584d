"""A GradScaler that leaves out a step: noticed where it decides, since the optimizer's hooks are not called."""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import Any

from torch.amp import grad_scaler

from learnscope.session.telling.listeners import Listeners

Listener = Callable[[Any], Callable[[], object]]
_originals: list[Callable[..., Any]] = []
_NAME = "_maybe_opt_step"


def _replace() -> None:
    if hasattr(grad_scaler.GradScaler, _NAME):
        _originals.append(grad_scaler.GradScaler._maybe_opt_step)
        setattr(grad_scaler.GradScaler, _NAME, _announcing(_originals[0]))


def _restore() -> None:
    if _originals:
        setattr(grad_scaler.GradScaler, _NAME, _originals.pop())


listeners: Listeners[Listener] = Listeners(_replace, _restore)
"""Called with the optimizer that a scaler may step; what they return is called afterwards. torch's own method is back
in its place when nobody listens any more."""


def _announcing(original: Callable[..., Any]) -> Callable[..., Any]:
    @wraps(original)
    def announced(scaler: Any, optimizer: Any, *args: Any, **kwargs: Any) -> Any:
        done = [listener(optimizer) for listener in listeners]
        result = original(scaler, optimizer, *args, **kwargs)
        for each in done:
            each()
        return result

    return announced
