"""Spectra and tails of weights against NumPy, SciPy, scikit-learn; powerlaw, weightwatcher in `make soak`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from scipy import linalg, stats
from sklearn.decomposition import TruncatedSVD
from torch import Tensor, nn

import learnscope as ls
from references.holding import Held, holds, package
from references.table import parameters

Matrix = np.ndarray[Any, Any]


def noise(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def deficient(rows: int, columns: int, rank: int) -> Tensor:
    """Whole numbers, so that the product is exact and its rank too."""
    generator = torch.Generator().manual_seed(1)
    left, right = (torch.randint(-3, 4, shape, generator=generator) for shape in ((rows, rank), (rank, columns)))
    return (left @ right).float()


WEIGHTS: dict[str, Callable[[], Tensor]] = {
    "wide": lambda: noise(30, 41),
    "tall": lambda: noise(41, 30),
    "bfloat16": lambda: noise(23, 17).bfloat16(),
    "float16": lambda: noise(23, 17).half(),
    "tiny": lambda: noise(20, 25) * 1e-30,
    "huge": lambda: noise(20, 25) * 1e30,
    "not contiguous": lambda: noise(31, 20).T,
    "negative zeros": lambda: torch.where(noise(20, 26).abs() < 0.8, -0.0, noise(20, 26)),
}


def layer(weight: Tensor) -> nn.Module:
    made = nn.Linear(weight.shape[1], weight.shape[0], bias=False)
    made.weight = nn.Parameter(weight)
    return nn.Sequential(made)


def audited(weight: Tensor, **options: Any) -> ls.Run:
    return ls.audit(layer(weight), probes=[ls.WeightSpectrum(**options)], strict=True)


def wide(weight: Tensor) -> Matrix:
    found: Matrix = weight.detach().double().numpy()
    return found


def scaled(weight: Tensor) -> tuple[Matrix, float]:
    """The matrix with a largest entry of 1, and that entry: the references square, which 1e-30 would not survive."""
    matrix = wide(weight)
    top = float(np.abs(matrix).max())
    return matrix / top, top


@pytest.mark.parametrize("kind", WEIGHTS)
@holds(parameters.SINGULAR_VALUES)
def test_norms_and_ranks(held: Held, kind: str) -> None:
    run = audited(WEIGHTS[kind]())
    w, size = scaled(WEIGHTS[kind]())
    norms = {order: float(np.linalg.norm(w, order)) for order in (2, -2, "nuc", "fro")}
    expected = {
        "largest_sv": size * norms[2], "smallest_sv": size * norms[-2], "spectral_gap": size * (norms[2] - norms[-2]),
        "condition_number": np.linalg.cond(w), "numerical_rank": np.linalg.matrix_rank(w, rtol=1e-6),
        "nuclear_norm": size * norms["nuc"], "frobenius_norm": size * norms["fro"],
        "stable_rank": (norms["fro"] / norms[2]) ** 2, "participation_ratio": (norms["nuc"] / norms["fro"]) ** 2,
    }  # fmt: skip
    for name, value in expected.items():
        held(run, f"WeightSpectrum.{name}", float(value), "tensor")


@pytest.mark.parametrize("shape", [(20, 30, 4), (30, 20, 19), (12, 12, 1)])
def test_lower_ranks_are_found_as_by_numpy(shape: tuple[int, int, int]) -> None:
    weight = deficient(*shape)
    frame = audited(weight).frame("WeightSpectrum").set_index("name")
    assert np.linalg.matrix_rank(wide(weight), rtol=1e-6) == frame.value["numerical_rank"] == shape[2]
    assert np.isnan(frame.value["condition_number"])  # NumPy's is 1e16: a ratio with rounding error
    assert "infinite" in frame.status["condition_number"]
    assert frame.value["smallest_sv"] == pytest.approx(np.linalg.norm(wide(weight), -2), abs=1e-13)


@pytest.mark.parametrize("kind", WEIGHTS)
@holds(parameters.ENTROPY_OF_VALUES)
def test_effective_ranks(held: Held, kind: str) -> None:
    run = audited(WEIGHTS[kind]())
    values = linalg.svdvals(scaled(WEIGHTS[kind]())[0])
    rank = float(np.exp(stats.entropy(values)))
    held(run, "WeightSpectrum.effective_rank", rank, "tensor")
    held(run, "WeightSpectrum.rank_utilisation", rank / len(values), "tensor")


@pytest.mark.parametrize("kind", ["wide", "tall", "bfloat16", "tiny", "huge"])
@holds(parameters.LEADING_VALUES)
def test_leading_values(held: Held, kind: str) -> None:
    run = audited(WEIGHTS[kind]())
    w, size = scaled(WEIGHTS[kind]())
    leading = TruncatedSVD(10, algorithm="arpack", random_state=0).fit(w).singular_values_
    held(run, "WeightSpectrum.leading_gap", size * (leading[0] - leading[1]), "tensor")
    for k in (1, 5, 10):
        held(run, f"WeightSpectrum.top{k}_sv_ratio", (leading[:k] ** 2).sum() / np.linalg.norm(w) ** 2, "tensor")
        held(run, f"WeightSpectrum.top{k}_nuclear_share", leading[:k].sum() / np.linalg.norm(w, "nuc"), "tensor")


def heavy(rows: int = 90, columns: int = 120, seed: int = 2) -> Tensor:
    """A matrix whose singular values have a heavy tail."""
    u, _ = np.linalg.qr(np.random.default_rng(seed).normal(size=(rows, rows)))
    v, _ = np.linalg.qr(np.random.default_rng(seed + 1).normal(size=(columns, rows)))
    values = stats.pareto(2.5).rvs(rows, random_state=seed)
    return torch.from_numpy((u * np.sqrt(values)) @ v.T)


def best_tail(eigenvalues: Matrix) -> tuple[float, float, int, float]:
    """SciPy's fit of every tail: α, Kolmogorov–Smirnov distance, size and start of the closest."""
    found = []
    for start in np.unique(eigenvalues)[:-1]:
        tail = eigenvalues[eigenvalues >= start]
        shape, _, _ = stats.pareto.fit(tail, floc=0, fscale=start)
        found.append((stats.kstest(tail, stats.pareto(shape, scale=start).cdf).statistic, shape + 1, len(tail), start))
    distance, alpha, size, start = min(found)
    return float(alpha), float(distance), int(size), float(start)


@pytest.mark.parametrize(("seed", "scale"), [(2, 1.0), (5, 1e-12), (8, 1e12)])
@holds(parameters.PARETO)
def test_power_laws(held: Held, seed: int, scale: float) -> None:
    weight = heavy(seed=seed) * scale
    run = audited(weight)
    alpha, distance, size, start = best_tail(linalg.svdvals(wide(weight)) ** 2)
    held(run, "WeightSpectrum.power_law_alpha", alpha, "tensor")
    held(run, "WeightSpectrum.power_law_distance", distance, "tensor")
    held(run, "WeightSpectrum.power_law_tail", size, "tensor")
    held(run, "WeightSpectrum.power_law_smallest", start, "tensor")


def kurtosis_model(dtype: torch.dtype) -> nn.Sequential:
    model = nn.Sequential(nn.Linear(30, 40), nn.LayerNorm(40), nn.Conv1d(1, 3, 5), nn.Linear(40, 7)).to(dtype)
    with torch.no_grad():
        model[2].weight.mul_(1e-8)
        model[3].weight.view(-1)[::2].copy_(-torch.zeros(140))  # half of them are -0.0
    return model


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16, torch.float64])
@holds(parameters.KURTOSIS)
def test_kurtosis(held: Held, dtype: torch.dtype) -> None:
    model = kurtosis_model(dtype)
    old = {name: wide(p).copy() for name, p in model.named_parameters()}
    optimizer = torch.optim.SGD(model.parameters(), lr=0.0)
    with ls.watch(model, optimizer, probes=[ls.WeightKurtosis(every=1)], strict=True) as w:
        for p in model.parameters():
            p.grad = torch.zeros_like(p)
            p.data.add_(noise(*p.shape).pow(3).to(dtype) * 0.01)
        optimizer.step()
    weights = {layer: wide(model.get_submodule(layer).weight).ravel() for layer in ("0", "2", "3")}
    moved = {layer: new - old[f"{layer}.weight"].ravel() for layer, new in weights.items()}
    held(w.run, "WeightKurtosis.weight_kurtosis", {k: stats.kurtosis(x) for k, x in weights.items()}, "layer")
    held(w.run, "WeightKurtosis.update_kurtosis", {k: stats.kurtosis(x) for k, x in moved.items()}, "layer")


@pytest.mark.soak
@pytest.mark.parametrize("seed", [2, 5, 8])
@holds(parameters.POWERLAW)
def test_power_laws_of_the_powerlaw_project(held: Held, seed: int) -> None:
    run = audited(heavy(seed=seed))
    start = run.frame("WeightSpectrum", "power_law_smallest").value.iloc[0]
    eigenvalues = linalg.svdvals(wide(heavy(seed=seed))) ** 2
    at = start * (1 - 1e-12)  # SciPy's σ² is not ours to the last bit
    fit = package("powerlaw").Fit(eigenvalues, xmin=at, parameter_ranges={"alpha": (1.0, 20.0)}, verbose=False)
    held(run, "WeightSpectrum.power_law_alpha", float(fit.power_law.alpha), "tensor")
    held(run, "WeightSpectrum.power_law_tail", int(fit.n_tail), "tensor")


@pytest.mark.soak
@holds(parameters.WEIGHTWATCHER)
def test_spectra_of_weightwatcher(held: Held) -> None:
    weight = heavy(120, 150).float()
    details = package("weightwatcher").WeightWatcher(model=layer(weight)).analyze(min_evals=10, plot=False).iloc[0]
    run = audited(weight)
    theirs = {
        "stable_rank": details["stable_rank"], "frobenius_norm": details["norm"] ** 0.5,
        "largest_sv": details["spectral_norm"] ** 0.5, "numerical_rank": details["matrix_rank"],
    }  # fmt: skip
    for name, value in theirs.items():
        held(run, f"WeightSpectrum.{name}", float(value), "tensor")
