"""The gradients of a live step, read once: before clipping if there is a clip, before the step otherwise."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

import torch
from torch import Tensor

from learnscope.core.gradients import Gradients, read_gradients, standing
from learnscope.core.subject import Subject
from learnscope.session.clipping import coefficient


class GradientReader:
    """Holds what was read before a clip until the step asks for it, if the gradients are still those."""

    def __init__(self, subject: Subject) -> None:
        self._subject = subject
        self.forget()

    def forget(self) -> None:
        """A new step begins."""
        self._before_clip: Gradients | None = None
        self._coefficients: Tensor | None = None
        self._as_clipped: dict[int, tuple[int, int]] = {}

    def on_clip(self, parameters: Sequence[Tensor], max_norm: float, total_norm: Tensor) -> Callable[[], None] | None:
        """Clipping is about to scale the gradients: the last moment at which a bad one can be told from the rest."""
        clipped = {id(p) for p in parameters}
        mine = [position for position, p in enumerate(self._subject.parameters) if id(p) in clipped]
        if not mine:
            return None
        if self._before_clip is None or not self._still_as_clipped():
            self._before_clip = read_gradients(self._subject, standing(self._subject))
            count = len(self._subject.parameters)
            self._coefficients = torch.ones(count, dtype=torch.float64, device=total_norm.device)
        if self._coefficients is not None:
            self._coefficients[mine] *= coefficient(max_norm, total_norm)
        return self._note_clipped

    def read(self, scale: float | Tensor) -> Gradients:
        """The gradients as the optimizer is given them, with what is known from before a clip."""
        if self._before_clip is None or not self._still_as_clipped():
            return read_gradients(self._subject, standing(self._subject), scale=scale)
        kept = self._before_clip
        factors = None if self._coefficients is None else self._coefficients[list(kept.positions)]
        return replace(kept, coefficients=factors, scale=scale)

    def _note_clipped(self) -> None:
        self._as_clipped = self._versions()

    def _still_as_clipped(self) -> bool:
        """Whether nothing has written the gradients since the last clip, such as another micro-batch's backward."""
        return self._as_clipped == self._versions()

    def _versions(self) -> dict[int, tuple[int, int]]:
        return {i: (id(g), 0 if g.is_inference() else g._version) for i, g in standing(self._subject).items()}
