"""What a new user is told with default probes and a holdout: a net that overfits, and one that stays at chance."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from sklearn.datasets import load_digits
from torch import Tensor, nn
from torch.nn import functional as F

import learnscope as ls


def trained(folder: Path, x: Tensor, y: Tensor, holdout: list[tuple[Tensor, Tensor]], steps: int) -> ls.Run:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(64, 256), nn.ReLU(), nn.Linear(256, 10))
    optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
    order = torch.Generator().manual_seed(0)
    with ls.watch(model, optimizer, run=folder, holdout=holdout) as w:
        for _ in range(steps):
            rows = torch.randint(len(x), (32,), generator=order)
            loss = F.cross_entropy(model(x[rows]), y[rows])
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            w.log(loss=loss)
    return ls.open_run(folder)


def digits() -> tuple[Tensor, Tensor]:
    x, y = load_digits(return_X_y=True)
    return torch.tensor(x, dtype=torch.float32) / 16, torch.tensor(y)


def test_a_net_at_chance_is_told_first_that_it_does_not_learn(tmp_path: Path) -> None:
    x, _ = digits()
    y = torch.randint(10, (1797,), generator=torch.Generator().manual_seed(2))
    noise = torch.zeros_like(x)  # nothing to tell the targets apart by
    first = trained(tmp_path / "run", noise[:1000], y[:1000], [(noise[1000:1400], y[1000:1400])], 200).findings()[0]
    assert first.severity != "info"
    assert first.kind in ("labels_unrelated", "not_learning", "majority_guess")


@pytest.mark.parametrize("steps", [150, 300])
def test_a_net_that_overfits_is_told_so(steps: int, tmp_path: Path) -> None:
    """60 digits, of which two in five have another label: learned by heart, and of little use elsewhere."""
    x, y = digits()
    wrong = y[:60].clone()
    wrong[::5], wrong[1::5] = (wrong[::5] + 3) % 10, (wrong[1::5] + 7) % 10
    run = trained(tmp_path / "run", x[:60], wrong, [(x[1000:1400], y[1000:1400])], steps)
    train, held = run.frame("Loss", "loss").value.iloc[-1], run.frame("Holdout", "holdout_loss").value.iloc[-1]
    assert train < 0.3 < 1.0 < held
    first = run.findings()[0]
    assert first.severity != "info"
    assert first.kind == "overfitting"
