"""Gradient clipping: noticing it, so that gradients are known as they were before and after it.

Trainers clip before the optimizer's step, so a step hook alone sees only what is left. The clip is wrapped
where every caller passes: the function inside torch that scales the gradients by a total norm.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.nn import utils
from torch.nn.utils import clip_grad

from learnscope.core.gradients import (
    Gradients,
    current_tensors,
    joined,
    missing_names,
    read_gradients,
    rows_of,
)
from learnscope.core.subject import Subject
from learnscope.session.telling.listeners import Listeners
from learnscope.tensor.gradients.gradient import GradientTable, gradient_statistics
from learnscope.tensor.gradients.spread import gradient_spread

Listener = Callable[[Sequence[Tensor], float, Tensor], Callable[[], object] | None]

_originals: dict[tuple[Any, str], Callable[..., Any]] = {}
# clip_grad_norm_ looks the first one up when it runs; the second is for loops that know the norm already
_PLACES = ((clip_grad, "_clip_grads_with_norm_"), (utils, "clip_grads_with_norm_"))


def _replace() -> None:
    for place, name in _PLACES:
        if hasattr(place, name):
            _originals[place, name] = getattr(place, name)
            setattr(place, name, _announcing(_originals[place, name]))


def _restore() -> None:
    for (place, name), original in _originals.items():
        setattr(place, name, original)
    _originals.clear()


listeners: Listeners[Listener] = Listeners(_replace, _restore)
"""Called before gradients are clipped by their norm; if one returns a function, that is called afterwards. torch's own
function is back in its place when nobody listens any more."""


def _announcing(original: Callable[..., Any]) -> Callable[..., Any]:
    def clip(parameters: Any, max_norm: float, total_norm: Tensor, *args: Any, **kwargs: Any) -> Any:
        chosen = [parameters] if isinstance(parameters, Tensor) else list(parameters)
        announced = [listener(chosen, float(max_norm), total_norm) for listener in listeners]
        result = original(chosen, max_norm, total_norm, *args, **kwargs)
        for done in announced:
            if done is not None:
                done()
        return result

    return clip


class GradientReader:
    """Reads each gradient once: before clipping if there is a clip, before the step otherwise."""

    def __init__(self, subject: Subject) -> None:
        self._subject = subject
        self.rows: dict[int, tuple[GradientTable, int, Tensor | None]] = {}
        """Where the statistics from before the clip stand, by position, and the spread of the entries if wanted."""
        self._versions: dict[int, tuple[int, int]] = {}
        """Of the gradients after the clip."""
        self._coefficients = torch.empty(0)
        self._new: set[int] = set()
        """Positions that were clipped since an optimizer last stepped."""

    def forget(self) -> None:
        """Drop what was read for steps that have been taken; a clip for the coming one may have been seen already."""
        for position in self.rows.keys() - self._new:
            del self.rows[position]

    def stepped(self) -> None:
        """An optimizer has stepped: what was clipped before is not for the coming step."""
        self._new.clear()

    def on_clip(
        self, parameters: Sequence[Tensor], max_norm: float, total_norm: Tensor, *, spread: bool = False
    ) -> Callable[[], None] | None:
        """Called before a clip: afterwards a NaN would be in every gradient. `spread`: also read the entries'."""
        clipped, held = {id(p) for p in parameters}, self._subject.parameters
        gradients = {i: p.grad for i, p in enumerate(held) if id(p) in clipped and p.grad is not None}
        if not gradients:
            return None
        if self._coefficients.shape != (len(held),):
            self._coefficients, self.rows = torch.ones(len(held), dtype=torch.float64, device=total_norm.device), {}
        written = [i for i, gradient in gradients.items() if not self._is_clipped(i, gradient)]
        if written:
            tensors = [gradients[i] for i in written]
            table = gradient_statistics(tensors)
            spreads = torch.stack(gradient_spread(tensors), 1) if spread else [None] * len(written)
            self.rows |= {
                place: (table, row, own) for row, (place, own) in enumerate(zip(written, spreads, strict=True))
            }
            self._coefficients[written] = 1.0
        # what torch multiplies the gradients by
        factor = torch.clamp(max_norm / (total_norm + 1e-6), max=1.0)
        self._coefficients[list(gradients)] *= factor.to(self._coefficients.device)
        self._new |= gradients.keys()
        return partial(self._note_versions, list(gradients))

    def read(self, scale: float | Tensor, among: Collection[int] | None = None) -> Gradients:
        """The gradients (of `among`) as the optimizer is given them, with their statistics from before a clip."""
        gradients = current_tensors(self._subject, among)
        if not self.rows:  # no clip was seen
            return read_gradients(self._subject, gradients, among=among, scale=scale)
        clipped = {i: gradient for i, gradient in gradients.items() if self._is_clipped(i, gradient)}
        others = {i: gradient for i, gradient in gradients.items() if i not in clipped}
        tables = {id(table): table for table, *_ in (self.rows[i] for i in clipped)}
        parts = [self._from_clip({i: g for i, g in clipped.items() if self.rows[i][0] is t}) for t in tables.values()]
        if others or not parts:
            parts.append(replace(read_gradients(self._subject, others, among=()), missing=()))
        missing = missing_names(self._subject, gradients, among)
        return replace(joined(parts), missing=missing, scale=scale)

    def _from_clip(self, gradients: Mapping[int, Tensor]) -> Gradients:
        """Gradients whose statistics were taken together, before a clip."""
        positions = list(gradients)
        table, rows = self.rows[positions[0]][0], [self.rows[i][1] for i in positions]
        if rows != list(range(len(table.zeros))):
            table = rows_of(table, rows)
        names = [self._subject.names[i] for i in positions]
        spreads = [own for _, _, own in (self.rows[i] for i in positions) if own is not None]
        mean, centred = torch.stack(spreads, 1) if len(spreads) == len(positions) else (None, None)
        spread = None if mean is None or centred is None else (mean, centred)
        coefficients = self._coefficients[positions]
        return Gradients(names, positions, list(gradients.values()), (), table, coefficients, spread)

    def _note_versions(self, positions: Sequence[int]) -> None:
        for position in positions:
            gradient = self._subject.parameters[position].grad
            if gradient is not None:
                self._versions[position] = _version(gradient)

    def _is_clipped(self, position: int, gradient: Tensor) -> bool:
        """Whether it was clipped, and nothing wrote it after that, such as a micro-batch's backward."""
        return position in self.rows and self._versions.get(position) == _version(gradient)


def _version(gradient: Tensor) -> tuple[int, int]:
    return id(gradient), 0 if gradient.is_inference() else gradient._version
