"""Sound trainings of the fourth blind set: tables, and how they are fitted."""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.optim import SGD, Adam, RMSprop, Rprop
from torch.optim.lr_scheduler import LambdaLR

from zoo.loops import accuracy, fit
from zoo.material import pairs, rows_of, table
from zoo.models import mlp
from zoo.registry import Check, Watch, above, below, healthy
from zoo.unseen.fourth_material import SEEDS, generator, houses, kept, split, trades


@healthy("ratings from two factors that begin near nothing, steps of the loss", seeds=SEEDS)
def factors(watch: Watch, seed: int) -> Check:
    """The loss waits on plateaus and falls when the next direction has grown."""
    g = generator(seed)
    known = torch.randn(40, 3, generator=g) @ (torch.tensor([4.0, 2.0, 1.0])[:, None] * torch.randn(3, 30, generator=g))
    known = known / known.std()
    seen = torch.rand(known.shape, generator=g) < 0.7

    class Factors(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.users, self.films = nn.Linear(30, 10, bias=False), nn.Linear(10, 40, bias=False)
            for layer in (self.users, self.films):
                nn.init.normal_(layer.weight, std=1e-3)

        def forward(self) -> Tensor:
            return self.films.weight @ self.users.weight

    model = Factors()
    optimizer = SGD(model.parameters(), lr=0.02, momentum=0.8)
    with watch(model, optimizer) as w:
        for _ in range(400):
            loss = (model() - known)[seen].square().sum() / 40
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            w.log(loss=loss)
    with torch.no_grad():
        return below(float((model() - known)[~seen].square().mean()), 0.2)


@healthy("amounts of a gamma law, likelihood below zero", seeds=SEEDS)
def gamma(watch: Watch, seed: int) -> Check:
    """Small positive amounts with a long tail: the loss is negative, and noisy."""
    g = generator(seed)
    x = torch.randn(2000, 6, generator=g)
    mean = (0.8 * x[:, 0] - 0.6 * x[:, 1].abs() - 3).exp()
    torch.manual_seed(seed)
    y = torch.distributions.Gamma(0.8, 0.8 / mean).sample()
    data, model = split(x, y), mlp(6, 48, 1)
    optimizer = RMSprop(model.parameters(), lr=2e-3)
    with watch(model, optimizer) as w:
        for a, b in pairs(*data[:2], steps=350, size=50, seed=seed):
            log_mean = model(a).squeeze(1)
            loss = (log_mean + b.clamp(min=1e-4) * (-log_mean).exp()).mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            w.log(loss=loss)
    with torch.no_grad():
        said = model(data[2]).squeeze(1)
    return above(float(torch.corrcoef(torch.stack([said, mean[len(data[0]) :].log()]))[0, 1]), 0.85)


class Members(nn.Module):
    """Five networks side by side, as one tensor a layer."""

    def __init__(self, members: int = 5, width: int = 32) -> None:
        super().__init__()
        self.first = nn.Parameter(torch.randn(members, 8, width) * 0.4)
        self.shift = nn.Parameter(torch.zeros(members, 1, width))
        self.second = nn.Parameter(torch.randn(members, width, 1) * 0.2)

    def forward(self, x: Tensor) -> Tensor:
        return ((x @ self.first + self.shift).relu() @ self.second).squeeze(-1)


@healthy("houses, five members in one and their losses added", seeds=SEEDS)
def members(watch: Watch, seed: int) -> Check:
    """Each member sees the examples that its own coin gave it."""
    data, model = houses(seed), Members()
    counted = (torch.rand(5, len(data[0]), generator=generator(seed)) < 0.7).float()
    optimizer = Adam(model.parameters(), lr=5e-3)
    with watch(model, optimizer) as w:
        for rows in rows_of(len(data[0]), steps=300, size=50, seed=seed):
            error = (model(data[0][rows]) - data[1][rows].T).square()
            loss = (error * counted[:, rows]).sum(1).div(counted[:, rows].sum(1)).sum()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            w.log(loss=loss)
    with torch.no_grad():
        left = F.mse_loss(model(data[2]).mean(0), data[3].squeeze(1)) / data[3].var()
    return below(float(left), 0.2)


@healthy("wine, Rprop on the whole table", seeds=SEEDS)
def resilient(watch: Watch, seed: int) -> Check:
    """Each weight has a step of its own that grows while its slope keeps its sign."""
    data, model = table("wine"), mlp(13, 16, 3, activation=nn.Tanh)
    optimizer = Rprop(model.parameters(), lr=1e-3)
    with watch(model, optimizer, holdout=kept(data, 40)) as w:
        for _ in range(120):
            loss = F.cross_entropy(model(data[0]), data[1]) + 0.01 * sum(p.square().sum() for p in model.parameters())
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            w.log(loss=loss)
    return above(accuracy(model, *data[2:]), 0.9)


@healthy("trades, every step of the same length", seeds=SEEDS)
def same_length(watch: Watch, seed: int) -> Check:
    """The gradient is brought to length one at each step, and the schedule says how far to go."""
    data, model = trades(seed), mlp(10, 48, 48, 4)
    optimizer = SGD(model.parameters(), lr=0.15)
    schedule = LambdaLR(optimizer, lambda step: 1 - step / 300)
    with watch(model, optimizer, holdout=kept(data)) as w:
        for x, y in pairs(*data[:2], steps=300, size=50, seed=seed):
            loss = F.cross_entropy(model(x), y)
            optimizer.zero_grad()
            loss.backward()
            norm = torch.stack([p.grad.norm() for p in model.parameters() if p.grad is not None]).norm()
            for p in model.parameters():
                if p.grad is not None:
                    p.grad.div_(norm + 1e-8)
            optimizer.step()
            schedule.step()
            w.log(loss=loss)
    return above(accuracy(model, *data[2:]), 0.9)


class Uncertain(nn.Module):
    """A layer whose weights are drawn anew at every call while it trains."""

    def __init__(self, a: int, b: int) -> None:
        super().__init__()
        self.mean, self.spread = nn.Parameter(torch.randn(b, a) / a**0.5), nn.Parameter(torch.full((b, a), -4.0))
        self.bias = nn.Parameter(torch.zeros(b))

    def forward(self, x: Tensor) -> Tensor:
        weight = self.mean + self.training * F.softplus(self.spread) * torch.randn_like(self.mean)
        return F.linear(x, weight, self.bias)

    def divergence(self) -> Tensor:
        s = F.softplus(self.spread)
        return (s.square() + self.mean.square() - 1 - 2 * s.log()).sum() / 2


@healthy("tumours, weights with a spread and their divergence", seeds=SEEDS)
def bayes(watch: Watch, seed: int) -> Check:
    data, model = table("breast_cancer"), nn.Sequential(Uncertain(30, 24), nn.ReLU(), Uncertain(24, 2))
    optimizer = Adam(model.parameters(), lr=3e-3)
    with watch(model, optimizer, holdout=kept(data, 100)) as w:
        for x, y in pairs(*data[:2], steps=300, size=32, seed=seed):
            wide = sum(layer.divergence() for layer in model if isinstance(layer, Uncertain))
            loss = F.cross_entropy(model(x), y) + 0.1 * wide / len(data[0])
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            w.log(loss=loss)
    return above(accuracy(model, *data[2:]), 0.92)


@healthy("wards of which only shares are known, proportions", seeds=SEEDS)
def proportions(watch: Watch, seed: int) -> Check:
    """No example has a label: each bag of 20 has the shares of the four trades."""
    data, model = trades(seed, 2400), mlp(10, 48, 4)
    g = generator(seed)
    order = (data[1] + 3 * torch.rand(len(data[1]), generator=g)).argsort()  # bags of unequal shares
    bags = order[: len(order) // 20 * 20].view(-1, 20)
    shares = F.one_hot(data[1][bags], 4).float().mean(1)
    optimizer = Adam(model.parameters(), lr=3e-3)
    with watch(model, optimizer, holdout=kept(data)) as w:
        for rows in rows_of(len(bags), steps=350, size=8, seed=seed):
            said = model(data[0][bags[rows]]).softmax(-1).mean(1)
            loss = -(shares[rows] * (said + 1e-6).log()).sum(1).mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            w.log(loss=loss)
    return above(accuracy(model, *data[2:]), 0.8)


@healthy("trades, a rate of two after a warm-up", seeds=SEEDS)
def rate_of_two(watch: Watch, seed: int) -> Check:
    """Batch norm and a cosine make a rate that nobody would begin with a sound one."""
    data, model = trades(seed), mlp(10, 64, 64, 4, norm=True)
    optimizer = SGD(model.parameters(), lr=2.0)
    schedule = LambdaLR(optimizer, lambda s: min((s + 1) / 60, 0.5 + 0.5 * math.cos(math.pi * max(0, s - 60) / 240)))
    fit(watch, model, optimizer, pairs(*data[:2], steps=300, size=100, seed=seed), schedule=schedule,
        holdout=kept(data))  # fmt: skip
    return above(accuracy(model, *data[2:]), 0.9)
