"""The gradients of one step with their statistics."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, fields, replace

import torch
from torch import Tensor

from learnscope.core.subject import Subject
from learnscope.tensor.gradients.gradient import GradientTable, gradient_statistics
from learnscope.tensor.gradients.spread import gradient_spread


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
    spread: tuple[Tensor, Tensor] | None = None
    """`gradient_spread` from before clipping, where a probe wants it: a clip may round small entries to 0."""
    scale: float | Tensor = 1.0
    """Of the loss, for all gradients or for each of them."""
    origin: str = "accumulated"
    unstepped: Collection[int] = ()
    """Positions of the parameters that have no gradient here because their optimizer did not step."""

    def by_name(self) -> dict[str, Tensor]:
        """The gradients by parameter name, unscaled, as the optimizer will use them."""
        return dict(zip(self.names, self.unscaled(), strict=True))

    def unscaled(self) -> list[Tensor]:
        if isinstance(self.scale, float) and self.scale == 1.0:
            return list(self.tensors)
        scales = torch.as_tensor(self.scale).expand(len(self.tensors))
        return [gradient / scale.to(gradient) for gradient, scale in zip(self.tensors, scales, strict=True)]


def read_gradients(
    subject: Subject, gradients: Mapping[int, Tensor], origin: str = "accumulated",
    among: Collection[int] | None = None, scale: float | Tensor = 1.0,
) -> Gradients:  # fmt: skip
    """Gradients, given by position among the subject's parameters, with their statistics.

    Missing are those of the other trainable parameters, or of those `among` them.
    """
    positions = sorted(gradients)
    names, tensors = [subject.names[i] for i in positions], [gradients[i] for i in positions]
    missing = missing_names(subject, gradients, among)
    return Gradients(names, positions, tensors, missing, gradient_statistics(tensors), scale=scale, origin=origin)


def missing_names(subject: Subject, present: Collection[int], among: Collection[int] | None = None) -> list[str]:
    """Names of the trainable parameters without a gradient."""
    return [
        name
        for position, (name, p) in enumerate(zip(subject.names, subject.parameters, strict=True))
        if p.requires_grad and position not in present and (among is None or position in among)
    ]


def current_tensors(subject: Subject, among: Collection[int] | None = None) -> dict[int, Tensor]:
    """The gradients of the parameters (`p.grad`), by position: after the step as before it, until they are cleared."""
    places = range(len(subject.parameters)) if among is None else sorted(among)
    return {i: grad for i in places if (grad := subject.parameters[i].grad) is not None}


def current_gradients(subject: Subject) -> Gradients:
    return read_gradients(subject, current_tensors(subject))


def rows_of(table: GradientTable, rows: Sequence[int]) -> GradientTable:
    """The statistics of some of the gradients, in this order."""
    at = torch.tensor(rows, dtype=torch.int64, device=table.sum_squares.device)
    return GradientTable(**{field.name: getattr(table, field.name)[at] for field in fields(table)})


def joined(parts: Sequence[Gradients], unstepped: Collection[int] = ()) -> Gradients:
    """Gradients that were read at different times, of different parameters, in the order of the model."""
    if len(parts) == 1:
        return replace(parts[0], unstepped=unstepped)
    positions = [position for part in parts for position in part.positions]
    order = sorted(range(len(positions)), key=positions.__getitem__)
    device = next((part.table.sum_squares.device for part in parts if part.names), torch.device("cpu"))
    at = torch.tensor(order, dtype=torch.int64, device=device)
    columns = {
        field.name: torch.cat([getattr(part.table, field.name).to(device) for part in parts])[at]
        for field in fields(GradientTable)
    }
    names, tensors = ([value for part in parts for value in getattr(part, key)] for key in ("names", "tensors"))
    clipped = any(part.coefficients is not None for part in parts)
    return Gradients(
        [names[i] for i in order],
        [positions[i] for i in order],
        [tensors[i] for i in order],
        [name for part in parts for name in part.missing],
        GradientTable(**columns),
        _of_each(parts, "coefficients", device)[at] if clipped else None,
        _spread(parts, at),
        parts[0].scale if _same_scale(parts) else _of_each(parts, "scale", device)[at],
        parts[0].origin,
        unstepped,
    )


def _spread(parts: Sequence[Gradients], at: Tensor) -> tuple[Tensor, Tensor] | None:
    """`gradient_spread` of all, where some were read before a clip."""
    if all(part.spread is None for part in parts):
        return None
    own = [gradient_spread(part.tensors) if part.spread is None else part.spread for part in parts]
    mean, centred = (torch.cat([spread[i].to(at.device) for spread in own])[at] for i in (0, 1))
    return mean, centred


def _same_scale(parts: Sequence[Gradients]) -> bool:
    return all(isinstance(part.scale, float) and part.scale == parts[0].scale for part in parts)


def _of_each(parts: Sequence[Gradients], name: str, device: torch.device) -> Tensor:
    """A factor for each gradient, 1 where a part has none."""
    factors = [getattr(part, name) for part in parts]
    filled = [torch.as_tensor(1.0 if factor is None else factor) for factor in factors]
    each = [f.to(device, torch.float64).expand(len(p.names)) for f, p in zip(filled, parts, strict=True)]
    return torch.cat(each)
