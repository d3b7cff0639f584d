"""Changes of weights, Adam's moments and learning rates against SciPy's distances, pandas' averages and schedules."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from scipy import linalg, stats
from scipy.spatial import distance
from torch import Tensor, nn
from transformers import get_scheduler

import learnscope as ls
from references.holding import Held, holds
from references.table import parameters

Array = np.ndarray[Any, Any]
BITS = {torch.float64: torch.int64, torch.float32: torch.int32, torch.bfloat16: torch.int16, torch.float16: torch.int16}


class Awkward(nn.Module):
    """A matrix whose size is no multiple of 512, one that is not contiguous, a tiny one, a huge one."""

    def __init__(self, dtype: torch.dtype) -> None:
        super().__init__()
        generator = torch.Generator().manual_seed(0)
        made = {"odd": (37, 29), "turned": (40, 25), "small": (30, 31), "large": (31, 17)}
        tensors = {name: torch.randn(*shape, generator=generator) for name, shape in made.items()}
        tensors["turned"] = tensors["turned"].T
        # at 1e-6 float16 rounds to 0, which has no sign
        tensors["small"] = tensors["small"] * (1e-3 if dtype == torch.float16 else 1e-6)
        tensors["large"] = tensors["large"] * (1e2 if dtype == torch.float16 else 1e4)
        for name, tensor in tensors.items():
            setattr(self, name, nn.Parameter(tensor.to(dtype)))

    def forward(self, x: Tensor) -> Tensor:
        return x


def moved(model: nn.Module, probes: list[ls.Probe], seed: int = 1) -> tuple[ls.Run, dict[str, Tensor]]:
    """One watched step of SGD: some entries move, by amounts of very different sizes, and some change sign."""
    old = {name: p.detach().clone() for name, p in model.named_parameters()}
    optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
    generator = torch.Generator().manual_seed(seed)
    with ls.watch(model, optimizer, probes=probes, strict=True) as w:
        for p in model.parameters():
            step = torch.randn(p.shape, generator=generator).pow(5) * p.detach().abs().mean().float()
            still = torch.rand(p.shape, generator=generator) < 0.4
            p.grad = step.masked_fill(still, 0.0).to(p.dtype)
        optimizer.step()
    return w.run, old


def flat(tensor: Tensor) -> Array:
    found: Array = tensor.detach().double().contiguous().view(-1).numpy()
    return found


def bits(tensor: Tensor) -> Array:
    found: Array = tensor.detach().contiguous().view(-1).view(BITS[tensor.dtype]).numpy()
    return found


DTYPES = [torch.float32, torch.bfloat16, torch.float16, torch.float64]


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@holds(parameters.DISTANCES, parameters.CHANGE_STATISTICS, parameters.THRESHOLDS)
def test_how_far_and_how_densely_weights_move(held: Held, dtype: torch.dtype) -> None:
    model = Awkward(dtype)
    thresholds = (0.0, 1e-6, 0.3)
    run, old = moved(model, [ls.ParameterChange(every=1, per_tensor=True, thresholds=thresholds)])
    for name, p in model.named_parameters():
        before, after = flat(old[name]), flat(p)
        delta = pd.Series(after - before)
        theirs = {
            "l1": distance.cityblock(before, after), "l2": distance.euclidean(before, after),
            "max": distance.chebyshev(before, after), "visible_share": distance.hamming(bits(old[name]), bits(p)),
            "sign_flip_share": distance.hamming(np.signbit(before), np.signbit(after)),
            "update_to_weight": distance.euclidean(before, after) / linalg.norm(before),
            "mean": delta.mean(), "mean_abs": delta.abs().mean(), "std": delta.std(), "nan": delta.isna().sum(),
            "inf": delta.isin([np.inf, -np.inf]).sum(),
        }  # fmt: skip
        for key, value in theirs.items():
            held(run, f"ParameterChange.{key}", {name: float(value)}, "tensor")
        for t in thresholds:
            share = stats.percentileofscore(delta.abs(), t, kind="weak") / 100
            held(run, "ParameterChange.sparsity", {name: share}, "tensor", threshold=t)


def test_zeros_that_change_their_sign_are_seen_in_the_bits_alone() -> None:
    model = nn.Linear(10, 3, bias=False)
    model.weight.data.zero_()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.0)
    with ls.watch(model, optimizer, probes=[ls.ParameterChange(every=1)], strict=True) as w:
        model.weight.grad = torch.zeros_like(model.weight)
        model.weight.data.copy_(-torch.zeros(3, 10))
        optimizer.step()
    row = w.run.frame("ParameterChange", kind="model").drop_duplicates("name").set_index("name").value
    assert (row["l1"], row["sign_flip_share"], row["sparsity"]) == (0, 0, 1)
    assert row["visible_share"] == distance.hamming(np.zeros(30).view(np.int64), (-np.zeros(30)).view(np.int64)) == 1


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@holds(parameters.DELTAS_ON_DISK)
def test_deltas_against_a_file(held: Held, dtype: torch.dtype, tmp_path: Path) -> None:
    model = Awkward(dtype)
    run, old = moved(model, [ls.WeightDelta(every=1, path=str(tmp_path / "w.pt"), run="a")])
    before = np.concatenate([flat(p) for p in old.values()])
    after = np.concatenate([flat(p) for p in model.parameters()])
    held(run, "WeightDelta.l2", distance.euclidean(before, after))
    held(run, "WeightDelta.update_to_weight", distance.euclidean(before, after) / linalg.norm(before))


def averaged(gradients: list[Array], beta: float) -> Array:
    """pandas' exponentially weighted mean after the last row: the weights are divided by their sum."""
    found: Array = pd.DataFrame(gradients).ewm(alpha=1 - beta, adjust=True).mean().iloc[-1].to_numpy()
    return found


@pytest.mark.parametrize(("betas", "eps"), [((0.9, 0.999), 1e-8), ((0.5, 0.8), 1e-2)])
@holds(parameters.BIAS_CORRECTED, parameters.STALENESS)
def test_adams_moments(held: Held, betas: tuple[float, float], eps: float) -> None:
    weight = nn.Parameter(torch.linspace(-1, 1, 120, dtype=torch.float64).view(10, 12))
    model = nn.ParameterDict({"weight": weight})
    optimizer = torch.optim.AdamW([weight], lr=3e-3, betas=betas, eps=eps, weight_decay=0.1)
    gradients: list[Array] = []
    with ls.watch(model, optimizer, probes=[ls.Momentum(every=1)], strict=True) as w:
        for step in range(15):
            generator = torch.Generator().manual_seed(step)
            weight.grad = torch.randn(10, 12, generator=generator, dtype=torch.float64) + weight.detach()
            gradients.append(flat(weight.grad))
            optimizer.step()
    m, v = averaged(gradients, betas[0]), averaged([g**2 for g in gradients], betas[1])
    step_made = 3e-3 * m / (np.sqrt(v) + eps)
    noise = np.maximum(v - m**2, 0)
    theirs = {
        "first_moment_norm": linalg.norm(m), "second_moment_mean": v.mean(),
        "effective_step_norm": linalg.norm(step_made), "effective_step_max": linalg.norm(step_made, np.inf),
        "step_to_weight": linalg.norm(step_made) / linalg.norm(flat(weight)),
        "staleness": 1 - distance.cosine(m, gradients[-1]),
    }  # fmt: skip
    for name, value in theirs.items():
        held(w.run, f"Momentum.{name}", float(value))
    held(w.run, "Momentum.snr", np.sqrt((m**2).sum() / noise.sum()), summary="norm_ratio")
    with np.errstate(divide="ignore"):
        held(w.run, "Momentum.snr", pd.Series(np.abs(m) / np.sqrt(noise)).median(), summary="median")


@pytest.mark.parametrize("name", ["linear", "cosine", "polynomial"])
@holds(parameters.SCHEDULE)
def test_scheduled_rates(held: Held, name: str) -> None:
    """With no gradient, AdamW multiplies a weight by 1 − ηλ: the rate that was used is read off the weight."""
    model = nn.Linear(1, 1, bias=False, dtype=torch.float64)
    model.weight.data.fill_(1.0)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.5, weight_decay=0.4)
    schedule = get_scheduler(name, optimizer, num_warmup_steps=3, num_training_steps=10)
    used = []
    with ls.watch(model, optimizer, probes=[ls.LearningRate(every=1)], strict=True) as w:
        for _ in range(7):
            before = model.weight.item()
            model.weight.grad = torch.zeros_like(model.weight)
            optimizer.step()
            used.append((1 - model.weight.item() / before) / 0.4)
            schedule.step()
    held(w.run, "LearningRate.learning_rate", used[-1], "group")
    held(w.run, "LearningRate.weight_decay", 0.4, "group")
    assert list(w.run.frame("LearningRate", "learning_rate", "group").value) == pytest.approx(used, rel=1e-9, abs=1e-15)
