"""Gradient clipping: noticing it, so that gradients are known as they were before and after it.

Trainers clip before the optimizer's step, so a step hook alone sees only what is left. The clip is wrapped
where every caller passes: the function inside torch that scales the gradients by a total norm.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor
from torch.nn import utils
from torch.nn.utils import clip_grad

from learnscope.core.gradients import Gradients, current_gradients, current_tensors
from learnscope.core.subject import Subject

Listener = Callable[[Sequence[Tensor], float, Tensor], Callable[[], object] | None]

_listeners: list[Listener] = []
_originals: dict[tuple[Any, str], Callable[..., Any]] = {}
# clip_grad_norm_ looks the first one up when it runs; the second is for loops that know the norm already
_PLACES = ((clip_grad, "_clip_grads_with_norm_"), (utils, "clip_grads_with_norm_"))


def listen(listener: Listener) -> None:
    """Call `listener` before gradients are clipped by their norm; if it returns a function, call that afterwards."""
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


class GradientReader:
    """Reads the gradients of a step once: before clipping if there is a clip, before the step otherwise."""

    def __init__(self, subject: Subject) -> None:
        self._subject = subject
        self.forget()

    def forget(self) -> None:
        self._before_clip: Gradients | None = None
        self._coefficients = torch.empty(0)
        self._clipped_versions: dict[int, tuple[int, int]] = {}

    def on_clip(self, parameters: Sequence[Tensor], max_norm: float, total_norm: Tensor) -> Callable[[], None] | None:
        """Called before a clip: afterwards a NaN would be in every gradient."""
        clipped = {id(p) for p in parameters}
        positions = [position for position, p in enumerate(self._subject.parameters) if id(p) in clipped]
        if not positions:
            return None
        if self._written_since_clip():
            self._before_clip = current_gradients(self._subject)
            count = len(self._subject.parameters)
            self._coefficients = torch.ones(count, dtype=torch.float64, device=total_norm.device)
        # what torch multiplies the gradients by
        self._coefficients[positions] *= torch.clamp(max_norm / (total_norm + 1e-6), max=1.0)
        return self._note_versions

    def read(self, scale: float | Tensor) -> Gradients:
        """The gradients as the optimizer is given them, with their statistics from before a clip."""
        before = self._before_clip
        if before is None or self._written_since_clip():
            return replace(current_gradients(self._subject), scale=scale)
        return replace(before, coefficients=self._coefficients[list(before.positions)], scale=scale)

    def _note_versions(self) -> None:
        self._clipped_versions = self._versions()

    def _written_since_clip(self) -> bool:
        """Whether there was no clip, or something wrote the gradients after it, such as a micro-batch's backward."""
        return self._before_clip is None or self._clipped_versions != self._versions()

    def _versions(self) -> dict[int, tuple[int, int]]:
        return {i: (id(g), 0 if g.is_inference() else g._version) for i, g in current_tensors(self._subject).items()}
