"""Sound trainings of kinds that no other case has."""

from __future__ import annotations

import copy
import math

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn.utils.parametrizations import weight_norm
from torch.optim import SGD, Adagrad, Adam, AdamW, NAdam

from zoo.loops import accuracy, fit, last
from zoo.material import digits, holdout, pairs, table, teacher
from zoo.models import RowReader, mlp
from zoo.registry import Check, Watch, above, below, healthy

SEEDS = (0, 1)


@healthy("gated recurrent network, digits by rows", seeds=SEEDS)
def gru(watch: Watch, seed: int) -> Check:
    data, model = digits(), RowReader(nn.GRU)
    batches = pairs(*data[:2], steps=250, seed=seed)
    fit(watch, model, NAdam(model.parameters(), lr=5e-3), batches, clip=1.0, holdout=holdout(data))
    return above(accuracy(model, *data[2:]), 0.85)


class Residual(nn.Module):
    def __init__(self, width: int = 16) -> None:
        super().__init__()
        self.stem, self.head = nn.Conv2d(1, width, 3, padding=1), nn.Linear(width, 10)
        self.blocks = nn.ModuleList(
            nn.Sequential(nn.GroupNorm(4, width), nn.SiLU(), nn.Conv2d(width, width, 3, padding=1)) for _ in range(4)
        )

    def forward(self, x: Tensor) -> Tensor:
        x = self.stem(x)
        for block in self.blocks:
            x = x + block(x)
        return self.head(x.amax((2, 3)))


@healthy("residual network with group norm, digits", seeds=SEEDS)
def residual(watch: Watch, seed: int) -> Check:
    data, model = digits(images=True), Residual()
    optimizer = AdamW(model.parameters(), lr=3e-3, weight_decay=0.05)
    fit(watch, model, optimizer, pairs(*data[:2], steps=150, seed=seed), holdout=holdout(data))
    return above(accuracy(model, *data[2:]), 0.9)


@healthy("triplets, MLP", seeds=SEEDS)
def triplets(watch: Watch, seed: int) -> Check:
    data, model = digits(), mlp(64, 64, 16)
    optimizer, losses = Adam(model.parameters(), lr=3e-3), []
    with watch(model, optimizer) as w:
        for x, y in pairs(*data[:2], steps=200, size=64, seed=seed):
            code = F.normalize(model(x), dim=1)
            apart = torch.cdist(code, code)
            same = y[:, None] == y[None]
            far, near = apart.masked_fill(~same, 0).amax(1), apart.masked_fill(same, 9).amin(1)
            loss = F.softplus(5 * (far - near)).mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            w.log(loss=loss)
            losses.append(loss.item())
    return below(last(losses), 0.75 * losses[0])


@healthy("Q-learning with a target network, corridor", seeds=SEEDS)
def q_learning(watch: Watch, seed: int) -> Check:
    """Ten cells, the goal at the right end; transitions come from a store of random walks."""
    g = torch.Generator().manual_seed(seed)
    state, action = torch.randint(9, (4000,), generator=g), torch.randint(2, (4000,), generator=g)
    after = (state + 2 * action - 1).clamp(0, 9)
    reward = (after == 9).float()
    model = mlp(10, 32, 2)
    slow = copy.deepcopy(model).requires_grad_(False)
    optimizer = Adam(model.parameters(), lr=5e-3)
    with watch(model, optimizer) as w:
        for number in range(400):
            rows = torch.randint(4000, (64,), generator=g)
            value = model(F.one_hot(state[rows], 10).float()).gather(1, action[rows, None]).squeeze(1)
            then = slow(F.one_hot(after[rows], 10).float()).amax(1)
            loss = F.smooth_l1_loss(value, reward[rows] + 0.9 * then * (1 - reward[rows]))
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            w.log(loss=loss)
            if number % 20 == 19:
                slow.load_state_dict(model.state_dict())
    chosen = model(torch.eye(10)[:9]).argmax(1)
    return above(float(chosen.float().mean()), 0.9)


class Coupling(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.nets = nn.ModuleList(mlp(1, 32, 2, activation=nn.Tanh) for _ in range(4))

    def forward(self, x: Tensor) -> Tensor:
        """Minus the logarithm of the density."""
        volume = x.new_zeros(len(x))
        for net in self.nets:
            first, second = x.flip(1).split(1, 1)
            scale, shift = net(first).split(1, 1)
            x = torch.cat([first, second * scale.tanh().exp() + shift], 1)
            volume = volume + scale.tanh().squeeze(1)
        return (x.square().sum(1) / 2 + math.log(2 * math.pi) - volume).mean()


@healthy("density of points, normalising flow", seeds=SEEDS)
def flow(watch: Watch, seed: int) -> Check:
    g = torch.Generator().manual_seed(seed)
    angle = 3.14 * torch.rand(2000, 1, generator=g)
    points = torch.cat([angle.cos(), angle.sin()], 1) * 2 + 0.1 * torch.randn(2000, 2, generator=g)
    model = Coupling()
    optimizer, losses = Adam(model.parameters(), lr=5e-3), []
    with watch(model, optimizer) as w:
        for x, _ in pairs(points, points, steps=300, size=128, seed=seed):
            loss = model(x)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            w.log(loss=loss)
            losses.append(loss.item())
    return below(last(losses), losses[0] - 1)


@healthy("an equation in the loss, physics", seeds=SEEDS)
def equation(watch: Watch, seed: int) -> Check:
    """y'' = −y with y(0) = 0 and y'(0) = 1: the sine."""
    model = mlp(1, 32, 32, 1, activation=nn.Tanh)
    optimizer = Adam(model.parameters(), lr=5e-3)

    def derivative(y: Tensor, t: Tensor) -> Tensor:
        return torch.autograd.grad(y.sum(), t, create_graph=True)[0]

    with watch(model, optimizer) as w:
        for _ in range(500):
            t = (3 * torch.rand(64, 1)).requires_grad_()
            y = model(t)
            start = torch.zeros(1, 1, requires_grad=True)
            at_start = model(start)
            first = derivative(at_start, start)
            loss = (derivative(derivative(y, t), t) + y).square().mean()
            loss = loss + at_start.square().sum() + (first - 1).square().sum()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            w.log(loss=loss)
    t = torch.linspace(0, 3, 50)[:, None]
    return below(float((model(t) - t.sin()).abs().max()), 0.3)


@healthy("Adagrad on sparse columns, logistic regression", seeds=SEEDS)
def adagrad(watch: Watch, seed: int) -> Check:
    g = torch.Generator().manual_seed(seed)
    x = (torch.rand(2000, 100, generator=g) < 0.05).float()
    y = (x[:, :10].sum(1) > x[:, 10:20].sum(1)).long()
    model = nn.Linear(100, 2)
    watching = {"holdout": [(x[1500:], y[1500:])]}
    batches = pairs(x[:1500], y[:1500], steps=200, seed=seed)
    fit(watch, model, Adagrad(model.parameters(), lr=0.3), batches, **watching)
    return above(accuracy(model, x[1500:], y[1500:]), 0.85)


@healthy("rates that fall with depth, MLP", seeds=SEEDS)
def by_depth(watch: Watch, seed: int) -> Check:
    data, model = digits(), mlp(64, 64, 64, 10)
    rates = zip(model[::2], (5e-4, 1e-3, 3e-3), strict=True)
    groups = [{"params": layer.parameters(), "lr": rate} for layer, rate in rates]
    fit(watch, model, AdamW(groups), pairs(*data[:2], steps=250, seed=seed), holdout=holdout(data))
    return above(accuracy(model, *data[2:]), 0.88)


@healthy("weight normalisation, regression", seeds=SEEDS)
def normalised(watch: Watch, seed: int) -> Check:
    data, model = teacher(4000, seed=seed), mlp(16, 64, 1)
    weight_norm(model[0])
    weight_norm(model[2])
    watching = {"holdout": holdout(data), "loss": F.l1_loss}
    optimizer = Adam(model.parameters(), lr=5e-3)
    batches = pairs(*data[:2], steps=300, size=64, seed=seed)
    losses = fit(watch, model, optimizer, batches, lambda out, y: F.l1_loss(out, y), **watching)
    return below(last(losses), 0.5)


@healthy("quantiles, diabetes", seeds=SEEDS)
def quantiles(watch: Watch, seed: int) -> Check:
    """The tenth, the half and the ninetieth percentile of what may come."""
    data, model = table("diabetes"), mlp(10, 24, 3)
    levels = torch.tensor([0.1, 0.5, 0.9])
    optimizer, losses = SGD(model.parameters(), lr=0.05, momentum=0.9), []
    with watch(model, optimizer) as w:
        for x, y in pairs(*data[:2], steps=200, size=32, seed=seed):
            off = y - model(x)
            loss = torch.maximum(levels * off, (levels - 1) * off).mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            w.log(loss=loss)
            losses.append(loss.item())
    return below(last(losses), 0.25)
