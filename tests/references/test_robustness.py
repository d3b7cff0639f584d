"""Intervals over seeds against SciPy, and attacks against foolbox in `make soak`."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from scipy import special, stats
from sklearn.metrics import accuracy_score, log_loss
from torch import Tensor, nn

import learnscope as ls
from learnscope.model.bits.quantised_units import find_units
from learnscope.model.guard import guard
from learnscope.model.robustness.weight_noise import NoiseKind, noised
from model.robustness.attacked import digits_classifier
from references.holding import Held, holds, package
from references.table import models


def predicted(model: nn.Module, x: Tensor) -> np.ndarray[Any, Any]:
    with torch.no_grad():
        found: np.ndarray[Any, Any] = special.softmax(model.eval()(x).numpy(), 1)
    return found


@pytest.fixture(scope="module")
def digits() -> tuple[nn.Module, Tensor, Tensor]:
    return digits_classifier()


@holds(models.STUDENT)
def test_means_over_seeds(held: Held, digits: tuple[nn.Module, Tensor, Tensor]) -> None:
    """The noise is ours, its draws too; the losses of every draw, their mean and its interval are not."""
    model, x, y = digits
    probe = ls.NoiseRobustness(sigmas=(0.3,), bits=(3,), seeds=5, seed=10, examples=len(x))
    run = ls.audit(model, [(x, y)], probes=[probe], strict=True)
    own = predicted(model, x)
    levels: list[tuple[NoiseKind, float]] = [("weight_noise", 0.3), ("quantisation_noise", 3)]
    for kind, level in levels:
        units = find_units(model, embeddings=kind == "weight_noise")
        each = []
        for seed in range(10, 15):
            with guard(model), noised(model, units, kind, level, seed):
                p = predicted(model, x)
            each.append(
                {"loss_mean": log_loss(y, p, labels=np.arange(10)), "kl_mean": stats.entropy(own, p, axis=1).mean()}
            )
        for name in ("loss_mean", "kl_mean"):
            drawn = [one[name] for one in each]
            ends = stats.ttest_1samp(drawn, 0.0).confidence_interval(0.95)
            for end, value in {"": np.mean(drawn), "_low": ends.low, "_high": ends.high}.items():
                held(run, f"NoiseRobustness.{name}{end}", {kind: float(value)}, "noise", level=level)


@pytest.mark.soak
@pytest.mark.parametrize("norm", ["linf", "l2"])
@holds(models.FOOLBOX)
def test_attacks_of_foolbox(held: Held, digits: tuple[nn.Module, Tensor, Tensor], norm: str) -> None:
    foolbox: Any = package("foolbox")
    model, x, y = digits
    epsilon = {"linf": 0.1, "l2": 0.7}[norm]
    options: dict[str, Any] = {"epsilons": (epsilon,), "unit": "absolute", "norm": norm, "per": "example"}
    probe = ls.Attacks(**options, steps=4, restarts=1, clip=(0, 1), examples=len(x))
    run = ls.audit(model, [(x, y)], probes=[probe], strict=True)
    attack = {"linf": foolbox.attacks.LinfFastGradientAttack, "l2": foolbox.attacks.L2FastGradientAttack}[norm]()
    attacked, _, _ = attack(foolbox.PyTorchModel(model.eval(), bounds=(0, 1)), x, y, epsilons=epsilon)
    own, other = predicted(model, x), predicted(model, attacked)
    theirs = {
        "loss": log_loss(y, other, labels=np.arange(10)), "accuracy": accuracy_score(y, other.argmax(1)),
        "kl": stats.entropy(own, other, axis=1).mean(),
    }  # fmt: skip
    for name, value in theirs.items():
        held(run, f"Attacks.{name}", {"fgsm": float(value)}, "attack", epsilon=epsilon, steps=1)
