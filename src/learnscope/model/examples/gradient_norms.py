"""GraNd: norms of the gradients of single examples, without making those gradients where layers allow it."""

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
    model: nn.Module, task: Task, batches: Sequence[Any], *, parameters: str | None = None, max_bytes: int = MAX_BYTES
) -> Tensor:
    """‖∇ℓ_i‖ over all trainable parameters for each example i, [N] in float64 on the CPU (arXiv 2107.07075).

    In eval mode, whatever mode the model is in, which it keeps. Of linear layers that see one row an example the norm
    is that of an outer product, ‖δ‖·√(‖a‖² + 1); where there is anything else, gradients are written out in chunks that
    `max_bytes` allows. NaN for an example without a target that counts.
    """
    differ = PerExample(model, task, parameters=parameters, max_bytes=max_bytes)
    found: list[Tensor] = []
    factored: bool | None = None  # until examples have shown whether factors are right
    for batch in joined(task, batches, differ.max_bytes):
        for large in differ.parts(batch, rows=False):
            if factored is None:
                factored = agree(differ, large)
            made = factors(differ, large) if factored else None
            if made is not None:
                found.append(made.dot(made))
                continue
            for part in differ.parts(large):
                rows, losses = differ(part)
                found.append(torch.where(losses.isnan(), torch.nan, row_products(rows, rows)))
    return torch.cat([squares.cpu().double() for squares in found]).sqrt()
