"""A GradScaler that leaves out a step: noticed where it decides, since the optimizer's hooks are not called."""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import Any

from torch.amp import grad_scaler

Listener = Callable[[Any], Callable[[], object]]
_listeners: list[Listener] = []
_originals: list[Callable[..., Any]] = []
_NAME = "_maybe_opt_step"


def listen(listener: Listener) -> None:
    """Call `listener` with the optimizer that a scaler may step, and what it returns afterwards."""
    _listeners.append(listener)
    if not _originals and hasattr(grad_scaler.GradScaler, _NAME):
        _originals.append(grad_scaler.GradScaler._maybe_opt_step)
        setattr(grad_scaler.GradScaler, _NAME, _announcing(_originals[0]))


def unlisten(listener: Listener) -> None:
    """Stop; torch's own method is back in its place when nobody listens any more."""
    if listener in _listeners:
        _listeners.remove(listener)
    if not _listeners and _originals:
        setattr(grad_scaler.GradScaler, _NAME, _originals.pop())


def _announcing(original: Callable[..., Any]) -> Callable[..., Any]:
    @wraps(original)
    def announced(scaler: Any, optimizer: Any, *args: Any, **kwargs: Any) -> Any:
        done = [listener(optimizer) for listener in _listeners]
        result = original(scaler, optimizer, *args, **kwargs)
        for each in done:
            each()
        return result

    return announced
