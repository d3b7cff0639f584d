"""Seeing gradient clipping, so that gradients before and after it are both known.

Trainers clip before the optimizer's step, so a step hook alone sees only what is left. The clip is wrapped
where every caller passes: the function inside torch that scales the gradients by a total norm.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.nn.utils import clip_grad

Listener = Callable[[Sequence[Tensor], float, Tensor], None]

_listeners: list[Listener] = []
_original: Callable[..., Any] | None = None
_NAME = "_clip_grads_with_norm_"


def listen(listener: Listener) -> None:
    """Call `listener(parameters, max_norm, total_norm)` just before gradients are clipped by their norm."""
    global _original
    _listeners.append(listener)
    if _original is None and hasattr(clip_grad, _NAME):
        _original = getattr(clip_grad, _NAME)
        setattr(clip_grad, _NAME, _announcing(_original))


def unlisten(listener: Listener) -> None:
    """Stop; torch's own function is back in its place when nobody listens any more."""
    global _original
    if listener in _listeners:
        _listeners.remove(listener)
    if not _listeners and _original is not None:
        setattr(clip_grad, _NAME, _original)
        _original = None


def coefficient(max_norm: float, total_norm: Tensor) -> Tensor:
    """What torch multiplies the gradients by: min(max_norm / (total_norm + 1e-6), 1)."""
    return torch.clamp(max_norm / (total_norm + 1e-6), max=1.0)


def _announcing(original: Callable[..., Any]) -> Callable[..., Any]:
    def clip(parameters: Any, max_norm: float, total_norm: Tensor, *args: Any, **kwargs: Any) -> Any:
        chosen = [parameters] if isinstance(parameters, Tensor) else list(parameters)
        for listener in _listeners:
            listener(chosen, float(max_norm), total_norm)
        return original(chosen, max_norm, total_norm, *args, **kwargs)

    return clip
