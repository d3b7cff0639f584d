"""Seeing gradient clipping, so that gradients before and after it are both known.

Trainers clip before the optimizer's step, so a step hook alone sees only what is left. The clip is wrapped
where every caller passes: the function inside torch that scales the gradients by a total norm.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.nn import utils
from torch.nn.utils import clip_grad

Listener = Callable[[Sequence[Tensor], float, Tensor], Callable[[], object] | None]

_listeners: list[Listener] = []
_originals: dict[tuple[Any, str], Callable[..., Any]] = {}
# clip_grad_norm_ looks the first one up when it runs; the second is for loops that know the norm already
_PLACES = ((clip_grad, "_clip_grads_with_norm_"), (utils, "clip_grads_with_norm_"))


def listen(listener: Listener) -> None:
    """Call `listener(parameters, max_norm, total_norm)` just before gradients are clipped by their norm.

    What it returns, if anything, is called when they have been.
    """
    _listeners.append(listener)
    if not _originals:
        for place, name in _PLACES:
            if hasattr(place, name):
                _originals[place, name] = getattr(place, name)
                setattr(place, name, _announcing(_originals[place, name]))


def unlisten(listener: Listener) -> None:
    """Stop; torch's own function is back in its place when nobody listens any more."""
    if listener in _listeners:
        _listeners.remove(listener)
    if not _listeners:
        for (place, name), original in _originals.items():
            setattr(place, name, original)
        _originals.clear()


def coefficient(max_norm: float, total_norm: Tensor) -> Tensor:
    """What torch multiplies the gradients by: min(max_norm / (total_norm + 1e-6), 1)."""
    return torch.clamp(max_norm / (total_norm + 1e-6), max=1.0)


def _announcing(original: Callable[..., Any]) -> Callable[..., Any]:
    def clip(parameters: Any, max_norm: float, total_norm: Tensor, *args: Any, **kwargs: Any) -> Any:
        chosen = [parameters] if isinstance(parameters, Tensor) else list(parameters)
        announced = [listener(chosen, float(max_norm), total_norm) for listener in _listeners]
        result = original(chosen, max_norm, total_norm, *args, **kwargs)
        for done in announced:
            if done is not None:
                done()
        return result

    return clip
