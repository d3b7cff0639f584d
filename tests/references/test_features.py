"""Features and activations against scikit-learn, SciPy and pandas."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from scipy import linalg, special, stats
from scipy.spatial.distance import cdist, pdist
from sklearn.dummy import DummyClassifier
from sklearn.linear_model import RidgeClassifierCV
from sklearn.metrics import calinski_harabasz_score, root_mean_squared_error, silhouette_score
from sklearn.model_selection import StratifiedKFold, cross_val_predict
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from torch import Tensor, nn

import learnscope as ls
from references.holding import Held, holds
from references.table import outputs

Array = np.ndarray[Any, Any]


def net() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(6, 12), nn.ReLU(), nn.Linear(12, 8), nn.Tanh(), nn.Linear(8, 3))


def labelled(n: int, kinds: int, spread: float = 1.0, seed: int = 1) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    y = torch.randint(kinds, (n,), generator=generator)
    return spread * (torch.randn(n, 6, generator=generator) + torch.nn.functional.one_hot(y, 6)), y


def watched(model: nn.Module, batches: list[Any]) -> ls.Run:
    optimizer = torch.optim.SGD(model.parameters(), lr=0.0)
    probes = [ls.FeatureEvolution(layers=["2"], samples=None)]
    with ls.watch(model, optimizer, probes=probes, holdout=batches, strict=True) as w:
        model(batches[0][0]).sum().backward()
        optimizer.step()
        w.end_epoch()
    return w.run


def features(model: nn.Sequential, x: Tensor) -> Array:
    with torch.no_grad():
        found: Array = model[:3](x).double().numpy()
    return found


def twice(x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
    """Every example is there twice: distances of 0, and ranks below the number of examples."""
    return torch.cat([x, x]), torch.cat([y, y])


SETS: dict[str, Any] = {
    "three classes": lambda: labelled(90, 3),
    "a class of one": lambda: (labelled(61, 3)[0], torch.arange(61).clamp(max=60) % 2 + (torch.arange(61) == 60) * 2),
    "tiny": lambda: labelled(70, 3, 1e-4),
    "examples twice": lambda: twice(*labelled(40, 3)),
}


@pytest.mark.parametrize("kind", SETS)
@holds(outputs.CLASSES, outputs.DISTANCES_OF_EXAMPLES, outputs.RANKS_OF_FEATURES)
def test_features(held: Held, kind: str) -> None:
    x, y = SETS[kind]()
    model = net()
    run = watched(model, [(x[:50], y[:50]), (x[50:], y[50:])])
    rows, labels = features(model, x), y.numpy()
    kinds, sizes = np.unique(labels, return_counts=True)
    scatter = calinski_harabasz_score(rows, labels) * (len(kinds) - 1) / (len(rows) - len(kinds))
    used = np.isin(labels, kinds[sizes >= 5])
    folds = StratifiedKFold(5, shuffle=True, random_state=0)
    ridge = make_pipeline(StandardScaler(), RidgeClassifierCV(alphas=(1.0, 10.0, 100.0, 1e3, 1e4)))
    right = cross_val_predict(ridge, rows[used], labels[used], cv=folds) == labels[used]
    chance = DummyClassifier(strategy="most_frequent").fit(rows[used], labels[used]).score(rows[used], labels[used])
    centred, raw = linalg.svdvals(rows - rows.mean(0)), linalg.svdvals(rows)
    within = np.concatenate([pdist(rows[labels == c]) for c in kinds])
    between = [cdist(rows[labels == a], rows[labels == b]).ravel() for a in kinds for b in kinds if a < b]
    theirs = {
        "silhouette": silhouette_score(rows, labels), "separability": scatter, "linear_probe": right.mean(),
        "linear_probe_chance": chance, "within_distance": within.mean(),
        "between_distance": np.concatenate(between).mean(), "effective_rank": np.exp(stats.entropy(centred)),
        "rankme": np.exp(special.entr(raw / raw.sum() + 1e-7).sum()),
    }  # fmt: skip
    for name, value in theirs.items():
        held(run, f"FeatureEvolution.{name}", {"2": float(value)}, "layer")


class Broken(nn.Module):
    """Where an input is large, one unit of the activation is not finite."""

    def forward(self, x: Tensor) -> Tensor:
        return torch.where(x > 2.4, torch.inf, torch.where(x < -2.4, torch.nan, x))


@pytest.mark.parametrize("scale", [1.0, 1e-12, 1e6])
@holds(outputs.ACTIVATION_TAILS, outputs.ACTIVATION_SIZES)
def test_activations(held: Held, scale: float) -> None:
    torch.manual_seed(1)
    model = nn.Sequential(nn.Linear(6, 11), nn.ReLU(), nn.Linear(11, 2))
    x = torch.randn(83, 6) * scale
    model[0].bias.data.mul_(scale)
    run = ls.audit(model, [(x[:50], torch.zeros(50).long()), (x[50:], torch.zeros(33).long())],
                   probes=[ls.Activations(examples=83)], strict=True)  # fmt: skip
    with torch.no_grad():
        seen = {"1": model[:2](x).double().numpy().ravel(), "0": model[0](x).double().numpy().ravel()}
    held(run, "Activations.kurtosis", {"1": stats.kurtosis(seen["1"])}, "layer")
    held(run, "Activations.output_kurtosis", {"0": stats.kurtosis(seen["0"])}, "layer")
    for name, y in (("rms", seen["1"]), ("output_rms", seen["0"])):
        size = root_mean_squared_error(np.zeros(len(y)), y)
        held(run, f"Activations.{name}", {"1" if name == "rms" else "0": size}, "layer")


@holds(outputs.ACTIVATION_COUNTS)
def test_activations_that_are_not_finite(held: Held) -> None:
    torch.manual_seed(2)
    model = nn.Sequential(nn.Linear(6, 10), Broken(), nn.ReLU(), nn.Linear(10, 2))
    with torch.no_grad():
        model[0].weight.mul_(3.0)
        model[0].bias[:3] = -1e30
        model[0].weight[0] = torch.nan
    x = torch.randn(60, 6)
    run = ls.audit(model, [(x, torch.zeros(60).long())], probes=[ls.Activations(examples=60)], strict=True)
    with torch.no_grad():
        site, out = pd.DataFrame(model[:3](x).numpy()), pd.DataFrame(model[0](x).numpy())
    infinite = [np.inf, -np.inf]
    held(run, "Activations.nan", {"2": site.isna().sum().sum()}, "site")
    held(run, "Activations.inf", {"2": site.isin(infinite).sum().sum()}, "site")
    held(run, "Activations.dead_share", {"2": (site == 0).all().mean()}, "site")
    held(run, "Activations.output_nan", {"0": out.isna().sum().sum()}, "layer")
    held(run, "Activations.output_inf", {"0": out.isin(infinite).sum().sum()}, "layer")
