"""Kurtosis of weights and updates against SciPy in float64, on awkward weights too."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import pytest
import torch
from scipy import stats
from torch import nn

import learnscope as ls


def model() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(30, 40), nn.LayerNorm(40), nn.Conv1d(1, 3, 5), nn.Linear(40, 7))


def measured(
    net: nn.Module, change: Callable[[nn.Module], None], every: int = 1
) -> tuple[dict[str, float], dict[str, float], ls.Run]:
    """The kurtosis of weights and updates by layer after `change` has been made as a step."""
    optimizer = torch.optim.SGD(net.parameters(), lr=0.0)
    with ls.watch(net, optimizer, probes=[ls.WeightKurtosis(every=every)]) as w:
        for p in net.parameters():
            p.grad = torch.zeros_like(p)
        with torch.no_grad():
            change(net)
        optimizer.step()
    frame = w.run.frame("WeightKurtosis")
    parts = {name: rows.set_index("scope")["value"].to_dict() for name, rows in frame.groupby("name")}
    return parts["weight_kurtosis"], parts["update_kurtosis"], w.run


def shift(net: nn.Module) -> None:
    generator = torch.Generator().manual_seed(1)
    for p in net.parameters():
        p.add_(torch.randn(p.shape, generator=generator).pow(3) * 1e-3)


def test_equal_to_scipy_in_float64() -> None:
    net = model()
    old = {name: p.detach().double().numpy().copy() for name, p in net.named_parameters()}
    weights, updates, run = measured(net, shift)
    assert list(weights) == ["0", "2", "3"]  # a layer norm has no matrix
    for layer in weights:
        new = net.get_submodule(layer).weight.detach().double().numpy()
        assert weights[layer] == pytest.approx(stats.kurtosis(new.ravel()), rel=1e-9)
        assert updates[layer] == pytest.approx(stats.kurtosis((new - old[f"{layer}.weight"]).ravel()), rel=1e-9)
    [record] = run.records("WeightKurtosis")
    assert record.notes["span"] == [0, 1]


def test_one_outlier_is_a_heavy_tail() -> None:
    net = model()
    weights, updates, _ = measured(net, lambda net: net[0].weight[0, 0].add_(100.0))
    spike = np.zeros(net[0].weight.numel())
    spike[0] = 1.0
    assert updates["0"] == pytest.approx(stats.kurtosis(spike), rel=1e-9)
    assert weights["0"] == pytest.approx(stats.kurtosis(spike), rel=0.01)
    assert abs(weights["3"]) < 3


def test_layers_of_several_matrices_are_one_distribution() -> None:
    class Tied(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layers = nn.ModuleList([nn.MultiheadAttention(8, 2)])

    net = Tied()
    weights, _, _ = measured(net, shift)
    matrices = [p.detach().double().numpy().ravel() for p in net.parameters() if p.ndim >= 2]
    assert len(matrices) == 2
    assert list(weights.values()) == [pytest.approx(stats.kurtosis(np.concatenate(matrices)), rel=1e-9)]


def test_what_has_no_kurtosis_says_why() -> None:
    net = model()
    _, updates, run = measured(net, lambda net: net[0].weight.add_(torch.randn(40, 30)))
    assert math.isfinite(updates["0"])
    assert math.isnan(updates["3"])
    frame = run.frame("WeightKurtosis", "update_kurtosis").set_index("scope")
    assert "no spread" in frame.loc["3", "status"]
    small = nn.Sequential(nn.Linear(1, 3))
    _, _, run = measured(small, shift)
    assert set(run.frame("WeightKurtosis")["status"]) == {"3 values: a kurtosis needs 4"}


@pytest.mark.parametrize("bad", [math.nan, math.inf])
def test_entries_that_are_not_finite_are_said(bad: float) -> None:
    net = model()
    _, _, run = measured(net, lambda net: net[3].weight[0, 0].fill_(bad))
    frame = run.frame("WeightKurtosis").set_index(["name", "scope"])
    assert frame.loc[("weight_kurtosis", "3"), "status"] == "nan"
    assert math.isfinite(frame.loc[("weight_kurtosis", "0"), "value"])


def test_half_precision_and_a_model_without_matrices() -> None:
    net = model().to(torch.bfloat16)
    weights, _, _ = measured(net, shift)
    assert weights["0"] == pytest.approx(stats.kurtosis(net[0].weight.detach().double().numpy().ravel()), rel=1e-9)
    optimizer = torch.optim.SGD((bare := nn.LayerNorm(4)).parameters(), lr=0.1)
    with ls.watch(bare, optimizer, probes=[ls.WeightKurtosis(every=1)]) as w:
        bare(torch.randn(3, 4)).sum().backward()
        optimizer.step()
    assert len(w.run.frame("WeightKurtosis")) == 0


def test_it_has_a_heatmap(tmp_path) -> None:
    net = model()
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    with ls.watch(net, optimizer, run=tmp_path / "run", probes=[ls.WeightKurtosis(every=1)]) as w:
        for _ in range(3):
            net[3](net[1](net[0](torch.randn(5, 30)))).square().mean().backward()
            optimizer.step()
    text = w.run.report().read_text()
    assert "layers-WeightKurtosis-weight_kurtosis.png" in text
    assert "layers-WeightKurtosis-update_kurtosis.png" in text
