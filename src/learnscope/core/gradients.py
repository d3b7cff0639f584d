"""The gradients of one step, and what is known about them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from torch import Tensor

from learnscope.core.subject import Subject
from learnscope.tensor.gradients.gradient import GradientTable, gradient_statistics


@dataclass(frozen=True, slots=True)
class Gradients:
    """The gradients of one step and what is known about them.

    `table` holds statistics per parameter of `names`, taken before clipping where a clip was seen;
    `coefficients` is what clipping multiplied each by (None: no clip was seen).
    """

    names: Sequence[str]
    positions: Sequence[int]
    tensors: Sequence[Tensor]
    missing: Sequence[str]
    table: GradientTable
    coefficients: Tensor | None = None
    scale: float | Tensor = 1.0
    origin: str = "accumulated"

    def by_name(self) -> dict[str, Tensor]:
        """The gradients by parameter name, unscaled, as the optimizer will use them."""
        named = zip(self.names, self.tensors, strict=True)
        if isinstance(self.scale, float) and self.scale == 1.0:
            return dict(named)
        return {name: gradient / self.scale for name, gradient in named}


def read_gradients(
    subject: Subject,
    found: Mapping[int, Tensor],
    *,
    scale: float | Tensor = 1.0,
    origin: str = "accumulated",
) -> Gradients:
    """Statistics of the gradients `found`, by position among the subject's parameters."""
    positions = sorted(found)
    missing = [
        name
        for position, (name, p) in enumerate(zip(subject.names, subject.parameters, strict=True))
        if p.requires_grad and position not in found
    ]
    tensors = [found[position] for position in positions]
    return Gradients(
        [subject.names[position] for position in positions],
        positions,
        tensors,
        missing,
        gradient_statistics(tensors),
        scale=scale,
        origin=origin,
    )


def standing(subject: Subject) -> dict[int, Tensor]:
    """The gradients that stand beside the weights, by position: after the step as before it, until they are cleared."""
    return {i: p.grad for i, p in enumerate(subject.parameters) if p.grad is not None}


def standing_gradients(subject: Subject) -> Gradients:
    """The same with their statistics."""
    return read_gradients(subject, standing(subject))
