"""Numbers of every gradient, which the probes add up by scope: norms, and mean and variance of the entries."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from learnscope.core.gradients import Gradients
from learnscope.core.moment import Moment
from learnscope.quantities import Quantity
from learnscope.quantities.gradients import GradientFlow as Q
from learnscope.record import Column, Label
from learnscope.tensor.gradients.gradient import gradient_spread


@dataclass(frozen=True, slots=True)
class GradientRows:
    """One row for each tensor: a scope is a single sum over rows."""

    gradients: Gradients
    numbers: Tensor
    """Columns: Σg² before clipping and as stepped, zeros, nan, inf, entries."""
    labels: dict[str, Label]

    @classmethod
    def of(cls, moment: Moment, gradients: Gradients) -> GradientRows:
        table = gradients.table
        before = table.sum_squares
        if not (isinstance(gradients.scale, float) and gradients.scale == 1.0):
            before = before / torch.as_tensor(gradients.scale, device=before.device).double() ** 2
        factors = gradients.coefficients
        stepped = before if factors is None else before * factors.to(before.device) ** 2
        entries = before.new_tensor([moment.subject.parameters[i].numel() for i in gradients.positions])
        numbers = torch.stack([before, stepped, table.zeros, table.nan, table.inf, entries], 1)
        origin = gradients.origin
        return cls(gradients, numbers, {} if origin == "accumulated" else {"origin": origin})

    def norm_columns(
        self,
        before: Tensor,
        stepped: Tensor,
        labels: Mapping[str, Label] | None = None,
        status: Mapping[int, str] | None = None,
        quantity: Quantity = Q.norm,
    ) -> list[Column]:
        """The norms of scopes from their sums of squares; those before a clip only where one was seen."""
        stages = {"stepped": stepped} | ({} if self.gradients.coefficients is None else {"before_clip": before})
        marked = {**self.labels, **(labels or {})}
        return [quantity.column(sums.sqrt(), {**marked, "stage": s}, status) for s, sums in stages.items()]


def spread(moment: Moment, gradients: Gradients, kind: str) -> Tensor:
    """Mean and unbiased variance of g over the entries of each scope of a kind, `[2, scopes]`.

    A pass of its own over the gradients: before a clip if there is one, which may round small entries to 0. The loss
    scale is divided out again.
    """
    mean, centred = moment.once("gradient_spread", lambda: _unscaled_spread(gradients))
    entries = mean.new_tensor([moment.subject.parameters[i].numel() for i in gradients.positions])
    return torch.stack(moment.subject.segments(kind, gradients.positions).spread(entries, mean, centred))


def _unscaled_spread(gradients: Gradients) -> tuple[Tensor, Tensor]:
    mean, centred = gradient_spread(gradients.tensors) if gradients.spread is None else gradients.spread
    factor = 1 / torch.as_tensor(gradients.scale, dtype=torch.float64, device=mean.device)
    return mean * factor, centred * factor.square()
