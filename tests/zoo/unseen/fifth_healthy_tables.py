"""Sound trainings of the fifth blind set: tables."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.optim import ASGD, SGD, Adam, AdamW, NAdam
from torch.optim.lr_scheduler import CosineAnnealingWarmRestarts
from torch.utils.data import DataLoader, TensorDataset, WeightedRandomSampler

from zoo.loops import accuracy, explained, fit, squares
from zoo.material import holdout, pairs, table
from zoo.models import mlp
from zoo.registry import Check, Watch, above, below, healthy
from zoo.unseen.fifth_material import SEEDS, clients, flats, generator, kept
from zoo.unseen.fifth_models import Columns


@healthy("progress of diabetes as it was measured, a rate to match", seeds=SEEDS)
def as_measured(watch: Watch, seed: int) -> Check:
    """Answers of 25 to 346, and squares of thousands."""
    x, _, held, _ = table("diabetes")
    _, y, _, later = table("diabetes", scaled=False)
    model = mlp(10, 24, 1)
    nn.init.constant_(model[-1].bias, float(y.mean()))
    fit(watch, model, Adam(model.parameters(), lr=0.05), pairs(x, y, steps=200, size=66, seed=seed), squares,
        holdout=TensorDataset(held, later), loss=F.mse_loss)  # fmt: skip
    return above(explained(model, held, later), 0.3)


@healthy("one client in thirty, drawn as often as the others", seeds=SEEDS)
def as_often(watch: Watch, seed: int) -> Check:
    """Batches are even and the holdout is not: its first loss is no mistake."""
    data, g = clients(seed, 4000), generator(seed)
    keep = [(y > 0) | (torch.rand(len(y), generator=g) < 0.06) for y in (data[1], data[3])]
    x, y, held, kind = data[0][keep[0]], data[1][keep[0]] == 0, data[2][keep[1]], data[3][keep[1]] == 0
    y, kind = y.long(), kind.long()
    weights = 1 / torch.bincount(y)[y].double()
    sampler = WeightedRandomSampler(weights.tolist(), 40 * 250, generator=g)
    model = Columns(9, 2)
    fit(watch, model, AdamW(model.parameters(), lr=2e-3), DataLoader(TensorDataset(x, y), 40, sampler=sampler),
        holdout=TensorDataset(held[:400], kind[:400]))  # fmt: skip
    return above(min(accuracy(model, held[kind == one], kind[kind == one]) for one in (0, 1)), 0.75)


class Sure(nn.Module):
    """Four members that each say a mean and how sure they are."""

    def __init__(self) -> None:
        super().__init__()
        self.members = nn.ModuleList(mlp(10, 32, 2, activation=nn.Tanh) for _ in range(4))

    def forward(self, x: Tensor) -> Tensor:
        return torch.stack([member(x) for member in self.members])


@healthy("rents and how sure, a likelihood that goes below nothing", seeds=SEEDS)
def how_sure(watch: Watch, seed: int) -> Check:
    data, model = flats(seed, noise=0.02), Sure()
    optimizer = NAdam(model.parameters(), lr=8e-3)
    with watch(model, optimizer) as w:
        for x, y in pairs(*data[:2], steps=400, size=60, seed=seed):
            mean, spread = model(x).split(1, 2)
            loss = (0.5 * (y - mean) ** 2 * (-spread).exp() + 0.5 * spread).mean()
            optimizer.zero_grad()
            loss.backward()
            nn.utils.clip_grad_norm_(model.parameters(), 5.0)
            optimizer.step()
            w.log(loss=loss)
    with torch.no_grad():
        return below(float(F.mse_loss(model(data[2])[:, :, :1].mean(0), data[3])), 0.2)


@healthy("clients one at a time, averaged steps", seeds=SEEDS)
def one_at_a_time(watch: Watch, seed: int) -> Check:
    data, model = clients(seed, 600), mlp(9, 24, 3)
    fit(watch, model, ASGD(model.parameters(), lr=0.03), pairs(*data[:2], steps=400, size=1, seed=seed),
        holdout=kept(data, 150))  # fmt: skip
    return above(accuracy(model, *data[2:]), 0.7)


@healthy("tumours, most weights driven to nothing", seeds=SEEDS)
def driven_to_nothing(watch: Watch, seed: int) -> Check:
    """The sum of sizes is most of the loss, and what is left of the network is small on purpose."""
    data, model = table("breast_cancer"), mlp(30, 32, 2)
    optimizer = Adam(model.parameters(), lr=5e-3)
    with watch(model, optimizer, holdout=holdout(data, 140)) as w:
        for x, y in pairs(*data[:2], steps=300, size=40, seed=seed):
            sizes = torch.stack([p.abs().sum() for p in model.parameters()]).sum()
            loss = F.cross_entropy(model(x), y) + 3e-3 * sizes
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            w.log(loss=loss)
    return above(accuracy(model, *data[2:]), 0.9)


@healthy("clients, units that norm themselves", seeds=SEEDS)
def norm_themselves(watch: Watch, seed: int) -> Check:
    data = clients(seed)
    model = nn.Sequential()
    for a, b in ((9, 48), (48, 48), (48, 48), (48, 48)):
        layer = nn.Linear(a, b)
        nn.init.normal_(layer.weight, std=a**-0.5)
        nn.init.zeros_(layer.bias)
        model.extend([layer, nn.SELU(), nn.AlphaDropout(0.1)])
    model.append(nn.Linear(48, 3))
    fit(watch, model, SGD(model.parameters(), lr=0.02, momentum=0.9), pairs(*data[:2], steps=300, size=40, seed=seed),
        holdout=kept(data))  # fmt: skip
    return above(accuracy(model, *data[2:]), 0.9)


@healthy("rents, a rate that begins again three times", seeds=SEEDS)
def begins_again(watch: Watch, seed: int) -> Check:
    """Each time the loss goes up, and comes down further."""
    data, model = flats(seed), Columns(10, 1)
    optimizer = AdamW(model.parameters(), lr=8e-3)
    fit(watch, model, optimizer, pairs(*data[:2], steps=350, size=40, seed=seed), squares,
        schedule=CosineAnnealingWarmRestarts(optimizer, 50, 2), holdout=kept(data), loss=F.mse_loss)  # fmt: skip
    return above(explained(model, *data[2:]), 0.85)
