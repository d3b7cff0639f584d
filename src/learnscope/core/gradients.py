"""The gradients of one step with their statistics."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from torch import Tensor

from learnscope.core.subject import Subject
from learnscope.tensor.gradients.gradient import GradientTable, gradient_statistics


@dataclass(frozen=True, slots=True)
class Gradients:
    """The gradients of one step."""

    names: Sequence[str]
    positions: Sequence[int]
    tensors: Sequence[Tensor]
    missing: Sequence[str]
    table: GradientTable
    """Statistics per parameter of `names`, from before clipping where a clip was seen."""
    coefficients: Tensor | None = None
    """What clipping multiplied each gradient by; None if no clip was seen."""
    scale: float | Tensor = 1.0
    origin: str = "accumulated"

    def by_name(self) -> dict[str, Tensor]:
        """The gradients by parameter name, unscaled, as the optimizer will use them."""
        named = zip(self.names, self.tensors, strict=True)
        if isinstance(self.scale, float) and self.scale == 1.0:
            return dict(named)
        return {name: gradient / self.scale for name, gradient in named}


def read_gradients(subject: Subject, gradients: Mapping[int, Tensor], origin: str = "accumulated") -> Gradients:
    """Gradients, given by position among the subject's parameters, with their statistics."""
    positions = sorted(gradients)
    missing = [
        name
        for position, (name, p) in enumerate(zip(subject.names, subject.parameters, strict=True))
        if p.requires_grad and position not in gradients
    ]
    names, tensors = [subject.names[i] for i in positions], [gradients[i] for i in positions]
    return Gradients(names, positions, tensors, missing, gradient_statistics(tensors), origin=origin)


def current_tensors(subject: Subject) -> dict[int, Tensor]:
    """The gradients of the parameters (`p.grad`), by position: after the step as before it, until they are cleared."""
    return {i: p.grad for i, p in enumerate(subject.parameters) if p.grad is not None}


def current_gradients(subject: Subject) -> Gradients:
    return read_gradients(subject, current_tensors(subject))
