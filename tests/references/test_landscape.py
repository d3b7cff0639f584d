"""Curvature against SciPy's finite differences of the loss's values: nothing is differentiated by torch."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from scipy import differentiate, linalg, special
from sklearn.metrics import log_loss
from torch import Tensor, nn
from torch.nn import functional as F

import learnscope as ls
from references.holding import Held, holds
from references.table import models, papers

Array = np.ndarray[Any, Any]
FEATURES, HIDDEN, KINDS, N = 4, 3, 3, 24


def data() -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(1)
    x = torch.randn(N, FEATURES, generator=generator, dtype=torch.float64)
    return x, torch.randint(0, KINDS, (N,), generator=generator)


def network() -> nn.Module:
    torch.manual_seed(2)
    layers = nn.Linear(FEATURES, HIDDEN, bias=False), nn.Tanh(), nn.Linear(HIDDEN, KINDS, bias=False)
    return nn.Sequential(*layers).double()


def loss_of(flat: Array) -> Array:
    """The mean cross entropy of the network for weights [parameters, …], by NumPy and SciPy."""
    x, y = (part.numpy() for part in data())
    first, second = np.split(flat, [HIDDEN * FEATURES])
    hidden = np.tanh(np.einsum("nf,hf...->nh...", x, first.reshape(HIDDEN, FEATURES, *flat.shape[1:])))
    logits = np.einsum("nh...,kh...->nk...", hidden, second.reshape(KINDS, HIDDEN, *flat.shape[1:]))
    found: Array = (special.logsumexp(logits, axis=1) - logits[np.arange(N), y]).mean(0)
    return found


def stepped(model: nn.Module, optimizer: torch.optim.Optimizer, steps: int = 1, **options: Any) -> tuple[ls.Run, Any]:
    """A watched loop with the probe after every step, and the gradients of its steps."""
    x, y = data()
    gradients = []
    settings = {"every": 1, "tolerance": 1e-9, "restarts": 100, "eigenvalues": 2, "smallest": True, "trace_samples": 0}
    probe = ls.LossLandscape(**{**settings, **options})
    with ls.watch(model, optimizer, probes=[probe], holdout=[(x[:10], y[:10]), (x[10:], y[10:])], strict=True) as w:
        for _ in range(steps):
            optimizer.zero_grad()
            F.cross_entropy(model(x), y).backward()
            gradients.append(np.concatenate([p.grad.numpy().ravel() for p in model.parameters()]))
            optimizer.step()
    return w.run, gradients


def weights(model: nn.Module) -> Array:
    return np.concatenate([p.detach().numpy().ravel() for p in model.parameters()])


@holds(models.NUMERIC_HESSIAN, models.LOSS_AT_THE_WEIGHTS, papers.ADAPTIVE_EDGE)
def test_eigenvalues(held: Held) -> None:
    model = network()
    optimizer = torch.optim.Adam(model.parameters(), lr=0.03, betas=(0.8, 0.9), eps=1e-3)
    run, gradients = stepped(model, optimizer, steps=3)
    matrix = differentiate.hessian(loss_of, weights(model)).ddf
    values = linalg.eigvalsh(matrix)
    held(run, "LossLandscape.sharpness", values[-1])
    for rank in (1, 2):
        held(run, "LossLandscape.eigenvalue", values[-rank], rank=rank)
    assert values[0] < -1e-3  # it curves down somewhere
    held(run, "LossLandscape.smallest_eigenvalue", values[0])
    held(run, "LossLandscape.gradient_norm", linalg.norm(differentiate.jacobian(loss_of, weights(model)).df))
    squares = pd.DataFrame([g**2 for g in gradients]).ewm(alpha=0.1).mean().iloc[-1].to_numpy()
    scale = 1 / np.sqrt(np.sqrt(squares) + 1e-3)
    held(run, "LossLandscape.preconditioned_sharpness", linalg.eigvalsh(scale[:, None] * matrix * scale)[-1])
    held(run, "LossLandscape.preconditioned_threshold", (2 + 2 * 0.8) / ((1 - 0.8) * 0.03))
    x, y = data()
    p = special.softmax(model(x).detach().numpy(), 1)
    frame = run.frame("LossLandscape", "loss")
    assert frame["at"].isna().any()
    held(run, "LossLandscape.loss", log_loss(y, p, labels=np.arange(KINDS)), at=0.0)


@pytest.mark.soak
@holds(models.TRACES)
def test_traces(held: Held) -> None:
    samples = 4000
    model = network()
    run, _ = stepped(model, torch.optim.SGD(model.parameters(), lr=0.1), trace_samples=samples, direction=None)
    matrix = differentiate.hessian(loss_of, weights(model)).ddf
    held(run, "LossLandscape.trace", np.trace(matrix))
    off = matrix - np.diag(np.diag(matrix))
    held(run, "LossLandscape.trace_error", np.sqrt(2 * (off**2).sum() / samples))


@holds(papers.EDGE_OF_STABILITY)
def test_thresholds(held: Held) -> None:
    model = network()
    run, _ = stepped(model, torch.optim.SGD(model.parameters(), lr=0.04, momentum=0.7))
    held(run, "LossLandscape.sharpness_threshold", 2 / 0.04)
    held(run, "LossLandscape.momentum_threshold", (2 + 2 * 0.7) / 0.04)
