"""The numbers of the analysis against NumPy in float64."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from torch import nn

from analysis.loops import Net, nudge
from learnscope.analysis import AnalysisConfig, ModelAnalysisManager, ParameterSnapshot

THRESHOLDS = [1e-8, 1e-6, 1e-4, 1e-2]


def create() -> ModelAnalysisManager:
    config = AnalysisConfig(
        interval=1, sparse_quality_enabled=False, param_change_thresholds=THRESHOLDS, param_change_per_layer=True,
        param_change_track_components=True,
    )  # fmt: skip
    return ModelAnalysisManager.create(config, strict=True)


def expected(new: np.ndarray, old: np.ndarray) -> dict[str, float]:
    """Δ as float32 numbers, everything else in float64."""
    delta = (new - old).astype(np.float64)
    size = np.abs(delta)
    found = {
        "norm_l1": size.sum(),
        "norm_l2": math.sqrt((delta**2).sum()),
        "norm_max": size.max(),
        "mean": delta.mean(),
        "std": delta.std(ddof=1),
        "mean_abs_delta": size.mean(),
        "update_to_weight": math.sqrt((delta**2).sum() / (old.astype(np.float64) ** 2).sum()),
    }
    return found | {f"sparsity_at_{t:.0e}": (size <= t).mean() for t in THRESHOLDS}


@pytest.mark.parametrize("size", [1e-9, 1e-5, 1e-2, 1e8])
def test_a_small_model(size: float) -> None:
    model, analyzer = Net(), create()
    before = {n: p.detach().numpy().copy() for n, p in model.named_parameters()}
    analyzer.on_optimizer_step(model)
    nudge(model, size)
    metrics = analyzer.on_optimizer_step(model)
    after = {n: p.detach().numpy() for n, p in model.named_parameters()}
    whole = expected(*(np.concatenate([w[n].ravel() for n in before]) for w in (after, before)))
    for name, value in whole.items():
        assert metrics[f"param_change/{name}"] == pytest.approx(value, rel=1e-6, abs=1e-6 * whole["std"]), name
    for layer in ("first", "norm", "last"):
        names = [n for n in before if n.startswith(layer)]
        part = expected(*(np.concatenate([w[n].ravel() for n in names]) for w in (after, before)))
        for key in (f"layer_{layer}", f"component/{layer}"):
            assert metrics[f"param_change/{key}/mean_abs_delta"] == pytest.approx(part["mean_abs_delta"], rel=1e-6)
            assert metrics[f"param_change/{key}/sparsity"] == pytest.approx(part["sparsity_at_1e-08"], rel=1e-6)


@pytest.mark.parametrize("entries", [10_000_000, pytest.param(100_000_000, marks=pytest.mark.soak)])
def test_millions_of_entries(entries: int) -> None:
    """Where a running float32 sum is off in the L1 norm: by 0.6 % at ten million, by 20 % at a hundred million."""
    model, analyzer = nn.Module(), create()
    model.register_parameter("weight", nn.Parameter(torch.zeros(entries)))
    for start in range(0, entries, 10_000_000):
        draw = torch.Generator().manual_seed(start)
        model.weight.data[start : start + 10_000_000] = torch.randn(10_000_000, generator=draw)
    analyzer.on_optimizer_step(model)
    old = model.weight.detach().numpy().copy()
    model.weight.data.mul_(1.001).add_(3e-4)
    metrics = analyzer.on_optimizer_step(model)
    sums = np.zeros(4)
    new = model.weight.detach().numpy()
    for start in range(0, entries, 10_000_000):
        delta = (new[start : start + 10_000_000] - old[start : start + 10_000_000]).astype(np.float64)
        sums += [np.abs(delta).sum(), (delta**2).sum(), delta.sum(), (np.abs(delta) <= 1e-4).sum()]
    assert metrics["param_change/norm_l1"] == pytest.approx(sums[0], rel=1e-6)
    assert metrics["param_change/norm_l2"] == pytest.approx(math.sqrt(sums[1]), rel=1e-6)
    assert metrics["param_change/mean"] == pytest.approx(sums[2] / entries, rel=1e-6)
    assert metrics["param_change/sparsity_at_1e-04"] == sums[3] / entries


def test_the_statistics_of_a_delta_are_the_same_numbers() -> None:
    model, analyzer = Net(), create()
    before = ParameterSnapshot.from_model(model)
    analyzer.on_optimizer_step(model)
    nudge(model)
    delta = ParameterSnapshot.from_model(model) - before
    metrics = analyzer.on_optimizer_step(model)
    for name, value in delta.statistics(THRESHOLDS).items():
        assert metrics[f"param_change/{name}"] == value, name
    assert delta.sparsity(5e-4) == pytest.approx(
        np.mean(np.concatenate([np.abs(d.numpy()).ravel() for d in delta.values()]) <= 5e-4)
    )


def test_one_entry_has_no_spread() -> None:
    model, analyzer = nn.Linear(1, 1, bias=False), create()
    analyzer.on_optimizer_step(model)
    model.weight.data += 1
    metrics = analyzer.on_optimizer_step(model)
    assert metrics["param_change/norm_l1"] == pytest.approx(1)
    assert math.isnan(metrics["param_change/std"])
