"""Formulas of papers whose authors' code is not installed by pip, written down once more in float64 NumPy.

The papers, and where their authors' code is: example forgetting (mtoneva/example_forgetting), area under the margin
(asappresearch/aum), EL2N (mansheej/data_diet), data maps (allenai/cartography), the noise scale (EleutherAI/gpt-neox
has one), unbiased CKA (google-research), the edge of stability (locuslab/edge-of-stability), intruder dimensions. The
formulas come from the papers; none of that code is here. Such names are counted apart in docs/numbers.md.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd
import peft
import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

import learnscope as ls
from references.holding import Held, holds
from references.table import papers, parameters

Array = np.ndarray[Any, Any]
N, KINDS, EPOCHS = 60, 4, 7


class Given(nn.Module):
    """Gives out its input as logits."""

    def __init__(self) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.ones(()))

    def forward(self, x: Tensor) -> Tensor:
        return x * self.scale


def presented(logits: Tensor, y: Tensor) -> ls.Run:
    """Every example in every epoch, in another order each time, with logits [epochs, n, classes] made beforehand."""
    model = Given()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.0)
    with ls.watch(model, optimizer, probes=[ls.ExampleLedger()], strict=True) as w:
        for epoch, rows in enumerate(logits):
            for part in torch.randperm(len(y), generator=torch.Generator().manual_seed(epoch)).split(16):
                optimizer.zero_grad()
                out = model(rows[part])
                F.cross_entropy(out, y[part]).backward()
                w.examples(part, out, y[part])
                optimizer.step()
            w.end_epoch()
    return w.run


@pytest.fixture(scope="module")
def histories() -> tuple[ls.Run, Array, Array]:
    """Examples always right, never right, right and wrong in turns, and with two equal largest logits."""
    generator = torch.Generator().manual_seed(4)
    y = torch.randint(KINDS, (N,), generator=generator)
    logits = torch.randn(EPOCHS, N, KINDS, generator=generator)
    gold = F.one_hot(y, KINDS).float()
    logits[:, :12] += 20 * gold[:12]
    logits[:, 12:24] -= 20 * gold[12:24]
    logits[1::2, 24:36] += 20 * gold[24:36]
    logits[:, 36:40] = 0.0  # all alike: the first class is predicted
    return presented(logits, y), logits.double().numpy(), y.numpy()


def softmax(logits: Array) -> Array:
    powers = np.exp(logits - logits.max(-1, keepdims=True))
    found: Array = powers / powers.sum(-1, keepdims=True)
    return found


@holds(papers.FORGETTING)
def test_forgetting(held: Held, histories: tuple[ls.Run, Array, Array]) -> None:
    run, logits, y = histories
    right = logits.argmax(-1) == y
    events = (right[:-1] & ~right[1:]).sum(0)
    assert 0 < (events > 1).sum() < N
    held(run, "ExampleLedger.forgetting_events", events.sum())
    held(run, "ExampleLedger.never_learned", (~right.any(0)).mean())
    held(run, "ExampleLedger.unforgettable", (right.any(0) & (events == 0)).mean())
    held(run, "ExampleLedger.learned", right[-1].mean())


def check(held: Held, run: ls.Run, name: str, each: Array) -> None:
    held(run, f"ExampleLedger.mean_{name}", each.mean())
    quantiles = {str(q): float(np.quantile(each, q)) for q in (0.1, 0.5, 0.9)}
    held(run, f"ExampleLedger.{name}", quantiles, "quantile")


@holds(papers.MARGINS, papers.ERROR_NORMS, papers.CARTOGRAPHY)
def test_scores_of_examples(held: Held, histories: tuple[ls.Run, Array, Array]) -> None:
    run, logits, y = histories
    gold, p, at = np.eye(KINDS)[y], softmax(logits), np.arange(N)
    others = np.where(gold.astype(bool), -np.inf, logits)
    check(held, run, "aum", (logits[:, at, y] - others.max(-1)).mean(0))
    check(held, run, "el2n", np.sqrt(((p - gold) ** 2).sum(-1)).mean(0))
    check(held, run, "confidence", p[:, at, y].mean(0))
    check(held, run, "variability", p[:, at, y].std(0))


def noisy(steps: int = 6, parts: int = 4, smoothing: float = 0.8) -> tuple[ls.Run, list[Array]]:
    """Steps of several equal micro-batches whose gradients are given; [parts, parameters] for each step."""
    model = nn.Linear(7, 1, bias=False).double()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.0)
    seen = []
    with ls.watch(model, optimizer, probes=[ls.GradientFlow(every=1, smoothing=smoothing)], strict=True) as w:
        for step in range(steps):
            optimizer.zero_grad()
            generator = torch.Generator().manual_seed(step)
            given = 2 + torch.randn(parts, 7, generator=generator, dtype=torch.float64)
            for row in given:
                (model.weight[0] @ row / parts).backward()
            optimizer.step()
            seen.append(given.numpy())
    return w.run, seen


@holds(papers.NOISE_SCALE)
def test_the_noise_scale(held: Held) -> None:
    """Without sizes the unit is a micro-batch: b = 1, B = how many there are."""
    run, seen = noisy()
    small, big, n = (seen[-1] ** 2).sum(1).mean(), (seen[-1].mean(0) ** 2).sum(), len(seen[-1])
    held(run, "GradientFlow.signal", (n * big - small) / (n - 1))
    held(run, "GradientFlow.noise", (small - big) / (1 - 1 / n))


@holds(parameters.SCATTER)
def test_the_noise_is_the_scatter_of_gradients(held: Held) -> None:
    run, seen = noisy()
    noise = pd.Series([pd.DataFrame(rows).var().sum() for rows in seen])
    signal = pd.Series([(rows.mean(0) ** 2).sum() for rows in seen]) - noise / len(seen[0])
    held(run, "GradientFlow.noise", noise.iloc[-1])
    held(run, "GradientFlow.signal", signal.iloc[-1])
    # the first step cannot know that the loop accumulates
    smooth = [values[1:].ewm(alpha=0.2, adjust=False).mean().iloc[-1] for values in (noise, signal)]
    held(run, "GradientFlow.noise_scale", smooth[0] / smooth[1])


def hsic(k: Array, other: Array) -> float:
    """The unbiased estimator, from Gram matrices whose diagonals are set to 0."""
    k, other, n = k.copy(), other.copy(), len(k)
    np.fill_diagonal(k, 0)
    np.fill_diagonal(other, 0)
    ones = np.ones(n)
    middle = (ones @ k @ ones) * (ones @ other @ ones) / ((n - 1) * (n - 2))
    return float((np.trace(k @ other) + middle - 2 / (n - 2) * ones @ k @ other @ ones) / (n * (n - 3)))


def cka(x: Array, y: Array) -> float:
    k, other = x @ x.T, y @ y.T
    return hsic(k, other) / np.sqrt(hsic(k, k) * hsic(other, other))


@holds(papers.CKA)
def test_unbiased_cka(held: Held) -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(5, 9), nn.Tanh(), nn.Linear(9, 3))
    x, y = torch.randn(40, 5), torch.arange(40) % 3
    optimizer = torch.optim.SGD(model.parameters(), lr=3.0)
    features = []
    with ls.watch(model, optimizer, probes=[ls.FeatureEvolution(layers=["0"])], holdout=[(x, y)], strict=True) as w:
        for _ in range(3):
            optimizer.zero_grad()
            F.cross_entropy(model(x), y).backward()
            optimizer.step()
            with torch.no_grad():
                features.append(model[0](x).double().numpy())
            w.end_epoch()
    held(w.run, "FeatureEvolution.cka_first", {"0": cka(features[2], features[0])}, "layer")
    held(w.run, "FeatureEvolution.cka_previous", {"0": cka(features[2], features[1])}, "layer")


@holds(papers.INTRUDER_COSINES)
def test_intruders(held: Held) -> None:
    torch.manual_seed(5)
    plain = nn.Sequential(nn.Linear(14, 24)).double()
    model = peft.get_peft_model(plain, peft.LoraConfig(r=3, lora_alpha=6, target_modules=["0"]))
    layer = model.get_submodule("base_model.model.0")
    layer.lora_B["default"].weight.data.normal_()
    run = ls.audit(model, probes=[ls.AdapterSpectrum(intruders=True)], strict=True)
    base = layer.get_base_layer().weight.detach().numpy()
    factors = [layer.lora_B["default"].weight, layer.lora_A["default"].weight]
    update = 2 * factors[0].detach().numpy() @ factors[1].detach().numpy()
    before, after = (np.linalg.svd(matrix, full_matrices=False)[0] for matrix in (base, base + update))
    best = np.abs(before.T @ after[:, :10]).max(0)
    held(run, "AdapterSpectrum.intruder_similarity", {"0": best.min()}, "module")
