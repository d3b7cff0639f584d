"""Numbers of every gradient, which the probes add up by scope."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from learnscope.core.gradients import Gradients
from learnscope.core.moment import Moment
from learnscope.quantities import Quantity
from learnscope.quantities.gradients import GradientFlow
from learnscope.record import Column, Label


@dataclass(frozen=True, slots=True)
class Flow:
    """One row for each tensor: a scope is a single sum over rows."""

    gradients: Gradients
    numbers: Tensor
    """Columns: Σg² before clipping and as stepped, zeros, nan, inf, entries."""
    labels: dict[str, Label]

    @classmethod
    def of(cls, moment: Moment, gradients: Gradients) -> Flow:
        table = gradients.table
        before = table.sum_squares / torch.as_tensor(gradients.scale, device=table.sum_squares.device).double() ** 2
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
        quantity: Quantity = GradientFlow.norm,
    ) -> list[Column]:
        """The norms of scopes from their sums of squares; those before a clip only where one was seen."""
        stages = {"stepped": stepped} | ({} if self.gradients.coefficients is None else {"before_clip": before})
        marked = {**self.labels, **(labels or {})}
        return [quantity.column(sums.sqrt(), {**marked, "stage": s}, status) for s, sums in stages.items()]
