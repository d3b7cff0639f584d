"""Sound trainings that look like the faults of `faults/pipelines.py`."""

from __future__ import annotations

import torch
from torch import nn
from torch.nn import functional as F
from torch.optim import SGD, Adam, AdamW

from zoo.loops import accuracy, explained
from zoo.material import digits, pairs, table
from zoo.models import mlp
from zoo.registry import Check, Watch, above, healthy


def drawn(seed: int) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


@healthy("contrast that grows from epoch to epoch, MLP", seeds=(0, 1))
def growing(watch: Watch, seed: int) -> Check:
    """Pictures of a twentieth of their contrast at first, as an augmentation that comes in slowly."""
    data, model = digits(), mlp(64, 64, 10)
    optimizer = Adam(model.parameters(), lr=3e-3)
    with watch(model, optimizer, holdout=[(data[2], data[3])]) as w:
        for step, (x, y) in enumerate(pairs(*data[:2], steps=300, size=48, seed=seed)):
            loss = F.cross_entropy(model(x * min(1.0, 0.05 + step / 200)), y)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            w.log(loss=loss)
    return above(accuracy(model, data[2], data[3]), 0.85)


@healthy("rainfall, most of it none and some of it much", seeds=(0, 1))
def rainfall(watch: Watch, seed: int) -> Check:
    """Targets with heavy tails that are learned all the same, by a loss that grows more slowly."""
    g = drawn(seed)
    x = torch.randn(1400, 6, generator=g)
    y = (1.2 * x[:, :1] + 0.5 * x[:, 1:2]).exp() * (x[:, 2:3] > -0.3)
    model = mlp(6, 64, 64, 1)
    optimizer = Adam(model.parameters(), lr=4e-3)
    with watch(model, optimizer, holdout=[(x[1200:], y[1200:])], loss=F.smooth_l1_loss) as w:
        for a, b in pairs(x[:1200], y[:1200], steps=350, size=40, seed=seed):
            loss = F.smooth_l1_loss(model(a), b)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            w.log(loss=loss)
    return above(explained(model, x[1200:], y[1200:]), 0.6)


@healthy("hinge that all examples keep in the end, wine", seeds=(0, 1))
def kept_margin(watch: Watch, seed: int) -> Check:
    """Every gradient is exactly 0 once the loss is."""
    data = table("wine")
    model = nn.Sequential(mlp(13, 32, 1), nn.Flatten(0))
    optimizer = Adam(model.parameters(), lr=1e-2)
    with watch(model, optimizer) as w:
        for x, y in pairs(*data[:2], steps=250, size=32, seed=seed):
            loss = (1 - (2.0 * (y == 1) - 1) * model(x)).clamp(min=0).mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            w.log(loss=loss)
    with torch.no_grad():
        return above(float(((model(data[2]) > 0) == (data[3] == 1)).double().mean()), 0.85)


@healthy("labels that are rare and known, MLP", seeds=(0, 1))
def rare_labels(watch: Watch, seed: int) -> Check:
    """Each of twelve is on in one example of twelve; at first the answer is no to all."""
    g = drawn(seed)
    x = torch.randn(1400, 20, generator=g)
    score = x @ torch.randn(20, 12, generator=g)
    y = (score > score.quantile(0.92, dim=0)).float()
    model = mlp(20, 96, 12)
    optimizer = Adam(model.parameters(), lr=5e-3)
    with watch(model, optimizer, holdout=[(x[1200:], y[1200:])], loss=F.binary_cross_entropy_with_logits) as w:
        for a, b in pairs(x[:1200], y[:1200], steps=300, size=60, seed=seed):
            loss = F.binary_cross_entropy_with_logits(model(a), b)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            w.log(loss=loss)
    with torch.no_grad():
        return above(float(((model(x[1200:]) > 0) * y[1200:]).sum() / y[1200:].sum()), 0.5)


@healthy("a fixed last layer of equal angles, MLP", seeds=(0, 1))
def fixed_head(watch: Watch, seed: int) -> Check:
    """The output layer is an orthogonal matrix that is never trained, and all before it learns to fit."""
    data, model = digits(), mlp(64, 64, 32, 10)
    nn.init.orthogonal_(model[-1].weight, gain=4.0)
    model[-1].requires_grad_(False)
    optimizer = AdamW([p for p in model.parameters() if p.requires_grad], lr=3e-3)
    with watch(model, optimizer, holdout=[(data[2], data[3])]) as w:
        for x, y in pairs(*data[:2], steps=300, size=48, seed=seed):
            loss = F.cross_entropy(model(x), y)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            w.log(loss=loss)
    return above(accuracy(model, data[2], data[3]), 0.85)


@healthy("a head at a thousandth of the rate that was learned before, MLP", seeds=(0, 1))
def slow_head(watch: Watch, seed: int) -> Check:
    """New inputs for an old head: the first layers are drawn anew, and the head keeps what it knows."""
    data, model = digits(), mlp(64, 48, 48, 10)
    first = Adam(model.parameters(), lr=3e-3)
    for x, y in pairs(*data[:2], steps=200, size=50, seed=seed):
        first.zero_grad()
        F.cross_entropy(model(x), y).backward()
        first.step()
    model[0].reset_parameters()
    groups = [{"params": model[:-1].parameters(), "lr": 0.1}, {"params": model[-1].parameters(), "lr": 1e-5}]
    optimizer = SGD(groups, momentum=0.9)
    with watch(model, optimizer, holdout=[(data[2], data[3])]) as w:
        for x, y in pairs(*data[:2], steps=250, size=48, seed=seed + 1):
            loss = F.cross_entropy(model(x), y)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            w.log(loss=loss)
    return above(accuracy(model, data[2], data[3]), 0.85)
