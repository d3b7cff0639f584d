"""GraNd: gradient norms of single examples, without computing the gradients if the layers allow it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from learnscope.model.batches import joined
from learnscope.model.examples.factored import agree, factors
from learnscope.model.examples.per_example import MAX_BYTES, PerExample
from learnscope.task import Task
from learnscope.tensor.examples.products import row_products


def example_gradient_norms(
    model: nn.Module, task: Task, batches: Sequence[Any], *, max_bytes: int = MAX_BYTES
) -> Tensor:
    """‖∇ℓ_i‖ over all trainable parameters for each example i, [N] in float64 on the CPU (arXiv 2107.07075).

    In eval mode; the model's own mode is kept. For linear layers that see one row per example the norm is that of an
    outer product, ‖δ‖·√(‖a‖² + 1); with any other parameters, gradients are computed in chunks that fit `max_bytes`.
    NaN for an example without a target that counts.
    """
    per_example = PerExample(model, task, max_bytes=max_bytes)
    squared_norms: list[Tensor] = []
    factored: bool | None = None  # until it is tested whether factors give the right norms
    for batch in joined(task, batches, per_example.max_bytes):
        for large in per_example.parts(batch, rows=False):
            if factored is None:
                factored = agree(per_example, large)
            chunk_factors = factors(per_example, large) if factored else None
            if chunk_factors is not None:
                squared_norms.append(chunk_factors.dot(chunk_factors))
                continue
            for part in per_example.parts(large):
                rows, losses = per_example(part)
                squared_norms.append(torch.where(losses.isnan(), torch.nan, row_products(rows, rows)))
    return torch.cat([squares.cpu().double() for squares in squared_norms]).sqrt()
