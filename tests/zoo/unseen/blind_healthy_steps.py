"""Sound trainings of kinds that no other case has: samplers, steps and schedules, answers and pairs."""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.optim import LBFGS, SGD, Adam
from torch.optim.lr_scheduler import ReduceLROnPlateau
from torch.utils.data import TensorDataset

from zoo.loops import accuracy, classes, explained, fit, last, squares
from zoo.material import digits, holdout, pairs, table, teacher
from zoo.models import mlp
from zoo.registry import Check, Watch, above, below, healthy
from zoo.unseen.blind_faults import held
from zoo.unseen.blind_material import (
    Waves,
    generator,
    split,
    waves,
)

SEEDS = (0, 1)


@healthy("examples drawn with replacement, wine", seeds=SEEDS)
def bootstrapped(watch: Watch, seed: int) -> Check:
    """A small data set, sampled with replacement, as weighted samplers do."""
    data, model, g = table("wine"), mlp(13, 16, 3), generator(seed)
    draws = (torch.randint(len(data[0]), (64,), generator=g) for _ in range(150))
    optimizer = Adam(model.parameters(), lr=5e-3, weight_decay=1e-2)
    fit(watch, model, optimizer, ((data[0][rows], data[1][rows]) for rows in draws), holdout=holdout(data))
    return above(accuracy(model, *data[2:]), 0.9)


@healthy("second-order steps with a closure, LBFGS", seeds=SEEDS)
def lbfgs(watch: Watch, seed: int) -> Check:
    data, model = teacher(1500, seed=seed), mlp(16, 16, 1, activation=nn.Tanh)
    optimizer = LBFGS(model.parameters(), lr=0.5, max_iter=5)
    with watch(model, None, holdout=held(data), loss=F.mse_loss) as w:  # w.step() counts its steps
        for _ in range(60):

            def closure() -> Tensor:
                optimizer.zero_grad()
                value = squares(model(data[0]), data[1])
                value.backward()
                return value

            w.log(loss=optimizer.step(closure))
            w.step()
    return above(explained(model, *data[2:]), 0.8)


@healthy("rate cut on a plateau, residuals", seeds=SEEDS)
def plateau(watch: Watch, seed: int) -> Check:
    data, model = teacher(4000, seed=seed), mlp(16, 64, 64, 1)
    optimizer = Adam(model.parameters(), lr=1e-2, amsgrad=True)
    schedule = ReduceLROnPlateau(optimizer, factor=0.3, patience=2)
    with watch(model, optimizer, holdout=held(data, 400), loss=F.mse_loss) as w:
        for number, (x, y) in enumerate(pairs(*data[:2], steps=400, size=64, seed=seed)):
            loss = squares(model(x), y)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            w.log(loss=loss)
            if number % 40 == 39:
                with torch.no_grad():
                    model.eval()
                    schedule.step(squares(model(data[2]), data[3]))
                    model.train()
    return above(explained(model, *data[2:]), 0.85)


@healthy("binary answers by hand, circles", seeds=SEEDS)
def circles(watch: Watch, seed: int) -> Check:
    g = generator(seed)
    x = torch.randn(1600, 2, generator=g)
    y = (x.norm(dim=1, keepdim=True) < 1.18).float()
    model = mlp(2, 32, 1)

    def answers(z: Tensor, t: Tensor) -> Tensor:
        p = z.sigmoid().clamp(1e-6, 1 - 1e-6)
        return -(t * p.log() + (1 - t) * (1 - p).log()).mean()

    losses = fit(watch, model, Adam(model.parameters(), lr=1e-2), pairs(x, y, steps=250, size=64, seed=seed), answers)
    return below(last(losses), 0.3)


@healthy("wide dropout, waves", seeds=SEEDS)
def dropped(watch: Watch, seed: int) -> Check:
    data, model = waves(seed=seed), Waves(dropout=0.5, norm=True)
    fit(watch, model, Adam(model.parameters(), lr=5e-3), pairs(*data[:2], steps=300, size=32, seed=seed),
        holdout=held(data))  # fmt: skip
    return above(accuracy(model, *data[2:]), 0.85)


@healthy("uncertainty weighs two tasks, table", seeds=SEEDS)
def weighed(watch: Watch, seed: int) -> Check:
    """Each task's weight is learned; the loss goes below zero."""
    data = teacher(3000, outputs=2, seed=seed)

    class Two(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.body, self.log_variance = mlp(16, 64, 2), nn.Parameter(torch.zeros(2))

        def forward(self, x: Tensor) -> Tensor:
            return self.body(x)

    model = Two()

    def together(out: Tensor, y: Tensor) -> Tensor:
        each = (out - y).square().mean(0)
        return (each * (-model.log_variance).exp() + model.log_variance).sum() / 2

    fit(watch, model, Adam(model.parameters(), lr=1e-2), pairs(*data[:2], steps=400, size=64, seed=seed), together)
    return above(explained(model, *data[2:]), 0.75)


@healthy("attention over a bag of pictures, several instances", seeds=SEEDS)
def instances(watch: Watch, seed: int) -> Check:
    """Does any of five digits show a 3?"""
    x, y = digits()[:2]
    g = generator(seed)
    rows = torch.randint(len(x), (1200, 5), generator=g)
    target = (y[rows] == 3).any(1).long()

    class Pool(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.each, self.weigh, self.head = mlp(64, 48, 24), nn.Linear(24, 1), nn.Linear(24, 2)

        def forward(self, given: Tensor) -> Tensor:
            h = torch.relu(self.each(given))
            return self.head((self.weigh(h).softmax(1) * h).sum(1))

    data, model = split(x[rows], target), Pool()
    fit(watch, model, Adam(model.parameters(), lr=3e-3), pairs(*data[:2], steps=250, size=32, seed=seed),
        holdout=TensorDataset(data[2][:200], data[3][:200]))  # fmt: skip
    return above(accuracy(model, *data[2:]), 0.8)


@healthy("pairs of which one is better, ranking", seeds=SEEDS)
def ranked(watch: Watch, seed: int) -> Check:
    """A reward model: −log σ(better − worse)."""
    g = generator(seed)
    first, second = torch.randn(2, 2000, 8, generator=g)
    worth = torch.randn(8, generator=g)
    swap = ((first @ worth) < (second @ worth))[:, None]
    better, worse = torch.where(swap, second, first), torch.where(swap, first, second)
    model, losses = mlp(8, 32, 1), []
    optimizer = Adam(model.parameters(), lr=3e-3)
    with watch(model, optimizer) as w:
        for a, b in pairs(better, worse, steps=200, size=64, seed=seed):
            loss = -F.logsigmoid(model(a) - model(b)).mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            w.log(loss=loss)
            losses.append(loss.item())
    return below(last(losses), 0.6 * math.log(2))


@healthy("sharpness-aware steps, digits", seeds=SEEDS)
def sharpness_aware(watch: Watch, seed: int) -> Check:
    """Two backward passes a step: at the weights, and where they are worst nearby."""
    data, model = digits(), mlp(64, 48, 10)
    optimizer = SGD(model.parameters(), lr=0.1, momentum=0.9)
    with watch(model, optimizer, holdout=holdout(data)) as w:
        for x, y in pairs(*data[:2], steps=200, seed=seed):
            loss = classes(model(x), y)
            optimizer.zero_grad()
            loss.backward()
            with torch.no_grad():
                size = torch.stack([p.grad.norm() for p in model.parameters()]).norm()
                moves = [0.05 * p.grad / (size + 1e-12) for p in model.parameters()]
                for p, move in zip(model.parameters(), moves, strict=True):
                    p.add_(move)
            optimizer.zero_grad()
            classes(model(x), y).backward()
            with torch.no_grad():
                for p, move in zip(model.parameters(), moves, strict=True):
                    p.sub_(move)
            optimizer.step()
            w.log(loss=loss)
    return above(accuracy(model, *data[2:]), 0.88)
