"""Sums of a loss function's arguments: small ones by NumPy, large ones by torch, the same numbers."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from learnscope.tensor.features import inputs, small_inputs
from learnscope.tensor.outputs import objective, small_objective


def both_ways(monkeypatch: pytest.MonkeyPatch, module: object, action: object) -> list[dict[str, torch.Tensor]]:
    found = [action()]  # type: ignore[operator]
    monkeypatch.setattr(module, "SMALL", -1)
    return [*found, action()]  # type: ignore[operator]


@pytest.mark.parametrize("seed", range(12))
def test_classes_are_summed_up_alike(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    generator = torch.Generator().manual_seed(seed)
    shape = [(7, 5), (3, 4, 6), (1, 1), (0, 3), (20, 9), (6,)][seed % 6]
    logits = 3 * torch.randn(shape, generator=generator, dtype=torch.float64 if seed % 2 else torch.float32)
    logits = [logits, logits.softmax(-1), logits.log_softmax(-1)][seed % 3] if logits.ndim == 2 else logits
    classes = shape[1] if len(shape) > 1 else shape[0]
    targets = torch.randint(-2, classes + 1, (shape[0], *shape[2:]) if len(shape) > 1 else (), generator=generator)
    if logits.numel() > 10 and seed > 5:
        logits.view(-1)[:3] = torch.tensor([np.nan, np.inf, -np.inf])
    weight = torch.rand(classes, generator=generator) if seed % 4 == 0 else None
    small, large = both_ways(
        monkeypatch, small_objective, lambda: objective.class_sums(logits, targets, [-100, 1, -1][seed % 3], weight)
    )
    assert small.keys() == large.keys()
    for name in small:
        torch.testing.assert_close(small[name].double(), large[name].double(), rtol=1e-6, atol=0, msg=name)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.int64])
def test_inputs_are_summed_up_alike(dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch) -> None:
    x = (100 * torch.randn(6, 3, 4, generator=torch.Generator().manual_seed(0))).to(dtype)
    x[1] = 0
    if dtype.is_floating_point:
        x[2, 0, :2] = torch.tensor([np.nan, -np.inf])
    numbers = [inputs.number_moments, inputs.root_mean_square] if dtype.is_floating_point else []
    small = [*(each(x) for each in numbers), *inputs.row_hashes(x)]
    monkeypatch.setattr(small_inputs, "SMALL", -1)
    large = [*(each(x) for each in numbers), *inputs.row_hashes(x)]
    assert len(small) == len(large)
    for a, b in zip(small, large, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-12, atol=0, equal_nan=True)
