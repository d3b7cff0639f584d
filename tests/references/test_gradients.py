"""Gradients against Lightning, Accelerate, SciPy and pandas."""

from __future__ import annotations

from typing import Any

import accelerate
import numpy as np
import pandas as pd
import pytest
import torch
from lightning.pytorch.utilities import grad_norm
from scipy import linalg, sparse, stats
from torch import Tensor, nn
from torch.nn import functional as F

import learnscope as ls
from references.holding import Held, holds
from references.table import parameters

Array = np.ndarray[Any, Any]


class Net(nn.Module):
    """Rows of an embedding that no token reaches, and units that a ReLU switches off, have gradients of 0."""

    def __init__(self) -> None:
        super().__init__()
        self.tokens = nn.Embedding(50, 7)
        self.up, self.down = nn.Linear(7, 33), nn.Linear(33, 3)

    def forward(self, ids: Tensor) -> Tensor:
        out: Tensor = self.down(torch.relu(self.up(self.tokens(ids).mean(1))))
        return out


def gradients(model: nn.Module) -> dict[str, Array]:
    return {n: p.grad.double().contiguous().numpy().copy() for n, p in model.named_parameters() if p.grad is not None}


def loss(model: nn.Module, scale: float = 1.0) -> Tensor:
    generator = torch.Generator().manual_seed(0)
    ids = torch.randint(0, 20, (8, 5), generator=generator)
    return scale * F.cross_entropy(model(ids), torch.arange(8) % 3)


def layers(names: Any) -> dict[str, list[str]]:
    found: dict[str, list[str]] = {}
    for name in names:
        found.setdefault(name.rsplit(".", 1)[0], []).append(name)
    return found


def stepped(model: nn.Module, scale: float = 1.0, **options: Any) -> tuple[ls.Run, dict[str, Array], dict[str, float]]:
    """A watched step: the run, the gradients, and Lightning's norms of them."""
    optimizer = torch.optim.SGD(model.parameters(), lr=0.0)
    with ls.watch(model, optimizer, probes=[ls.GradientFlow(every=1, **options)], strict=True) as w:
        loss(model, scale).backward()
        theirs, seen = grad_norm(model, 2), gradients(model)
        optimizer.step()
    return w.run, seen, theirs


@pytest.mark.parametrize("scale", [1.0, 1e-12, 1e12])
@holds(parameters.NORMS, parameters.GRADIENT_SIZES)
def test_norms_and_ratios(held: Held, scale: float) -> None:
    model = Net()
    run, seen, theirs = stepped(model, scale, per_tensor=True)
    held(run, "GradientFlow.norm", theirs["grad_2.0_norm_total"], stage="stepped")
    held(run, "GradientFlow.norm", {n: theirs[f"grad_2.0_norm/{n}"] for n in seen}, "tensor", stage="stepped")
    weights = {n: p.detach().double().numpy() for n, p in model.named_parameters()}
    for layer, names in layers(seen).items():
        g = np.concatenate([seen[n].ravel() for n in names])
        ratio = linalg.norm(g) / linalg.norm(np.concatenate([weights[n].ravel() for n in names]))
        held(run, "GradientFlow.gradient_to_weight", {layer: ratio}, "layer")
        zeros = 1 - sparse.coo_array(g[None]).count_nonzero() / len(g)
        held(run, "GradientFlow.zero_share", {layer: zeros}, "layer")


@holds(parameters.GRADIENT_MOMENTS)
def test_mean_and_variance(held: Held) -> None:
    run, seen, _ = stepped(Net(), variance=True)
    for layer, names in layers(seen).items():
        described = stats.describe(np.concatenate([seen[n].ravel() for n in names]), ddof=1)
        held(run, "GradientFlow.mean", {layer: described.mean}, "layer")
        held(run, "GradientFlow.variance", {layer: described.variance}, "layer")


@holds(parameters.NOT_FINITE)
def test_what_is_not_finite_is_counted(held: Held) -> None:
    model = Net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.0)
    with ls.watch(model, optimizer, probes=[ls.GradientFlow(every=1)], strict=True) as w:
        loss(model).backward()
        assert model.up.weight.grad is not None
        assert model.tokens.weight.grad is not None
        model.up.weight.grad.view(-1)[[3, 50]] = torch.tensor([torch.inf, -torch.inf])
        model.up.weight.grad[0, 0] = torch.nan
        model.tokens.weight.grad[4] = torch.nan
        seen = gradients(model)
        optimizer.step()
    flat = pd.Series(np.concatenate([g.ravel() for g in seen.values()]))
    held(w.run, "GradientFlow.nan", flat.isna().sum())
    held(w.run, "GradientFlow.inf", flat.replace([np.inf, -np.inf], np.nan).isna().sum() - flat.isna().sum())
    bad = [pd.Series(g.ravel()).replace([np.inf, -np.inf], np.nan).hasnans for g in seen.values()]
    held(w.run, "GradientFlow.nonfinite_tensors", sum(bad))


@pytest.mark.parametrize("most", [0.01, 1.0, 1e6])
@holds(parameters.CLIPPED)
def test_clipping(held: Held, most: float) -> None:
    model = Net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.0)
    accelerator = accelerate.Accelerator(cpu=True)
    with ls.watch(model, optimizer, probes=[ls.GradientFlow(every=1)], strict=True) as w:
        loss(model, 50.0).backward()
        before = gradients(model)["down.weight"]
        accelerator.clip_grad_norm_(model.parameters(), most)
        after = gradients(model)["down.weight"]
        optimizer.step()
    held(w.run, "GradientFlow.clip_coefficient", linalg.norm(after) / linalg.norm(before))
