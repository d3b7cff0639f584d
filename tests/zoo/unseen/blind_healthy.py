"""Sound trainings of kinds that no other case has: data and models, losses written by hand."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.optim import SGD, Adam, AdamW, RAdam

from zoo.loops import accuracy, explained, fit, last, squares
from zoo.material import digits, holdout, pairs, table, teacher
from zoo.models import mlp
from zoo.registry import Check, Watch, above, below, healthy
from zoo.unseen.blind_faults import held
from zoo.unseen.blind_material import (
    Bags,
    Factors,
    Forecast,
    Graph,
    Reader,
    Waves,
    bags,
    blocks,
    by_hand,
    generator,
    iris,
    ratings,
    sentences,
    shapes,
    split,
    squares_by_hand,
    waves,
)

SEEDS = (0, 1)


@healthy("groups in a graph, graph convolution", seeds=SEEDS)
def graph(watch: Watch, seed: int) -> Check:
    """The whole graph at every step; a third of the nodes are known."""
    adjacency, features, group = blocks(seed=seed)
    model, known = Graph(adjacency), torch.arange(len(group)) % 3 == 0
    optimizer = Adam(model.parameters(), lr=1e-2, weight_decay=5e-4)
    fit(watch, model, optimizer, [(features, group)] * 80, lambda z, y: F.cross_entropy(z[known], y[known]))
    return above(float((model(features).argmax(1) == group)[~known].float().mean()), 0.8)


@healthy("largest of a set, deep sets", seeds=SEEDS)
def sets(watch: Watch, seed: int) -> Check:
    data, model = bags(seed=seed), Bags()
    fit(watch, model, Adam(model.parameters(), lr=5e-3), pairs(*data[:2], steps=300, size=32, seed=seed), squares,
        holdout=held(data), loss=F.mse_loss)  # fmt: skip
    return above(explained(model, *data[2:]), 0.9)


@healthy("next value of a sine, GRU", seeds=SEEDS)
def forecast(watch: Watch, seed: int) -> Check:
    g = generator(seed)
    turn = torch.rand(800, 1, generator=g) * 6 + torch.arange(33) * (0.2 + 0.3 * torch.rand(800, 1, generator=g))
    series = turn.sin()[..., None] + 0.02 * torch.randn(800, 33, 1, generator=g)
    data, model = split(series[:, :-1], series[:, 1:]), Forecast()
    losses = fit(watch, model, Adam(model.parameters(), lr=5e-3), pairs(*data[:2], steps=250, size=32, seed=seed),
                 squares, clip=1.0, holdout=held(data), loss=F.mse_loss)  # fmt: skip
    return below(last(losses), 0.05)


@healthy("kinds of waves, convolutions over time", seeds=SEEDS)
def signals(watch: Watch, seed: int) -> Check:
    data, model = waves(seed=seed), Waves()
    fit(watch, model, RAdam(model.parameters(), lr=5e-3), pairs(*data[:2], steps=300, size=32, seed=seed),
        holdout=held(data))  # fmt: skip
    return above(accuracy(model, *data[2:]), 0.85)


@healthy("ratings, factors of users and items", seeds=SEEDS)
def recommender(watch: Watch, seed: int) -> Check:
    data, model = ratings(count=6000, seed=seed), Factors()
    optimizer = Adam(model.parameters(), lr=2e-2)
    fit(watch, model, optimizer, pairs(*data[:2], steps=400, size=128, seed=seed), squares, holdout=held(data),
        loss=F.mse_loss)  # fmt: skip
    return above(explained(model, *data[2:]), 0.8)


@healthy("sentences with padding, transformer", seeds=SEEDS)
def reader(watch: Watch, seed: int) -> Check:
    tokens, label = sentences(seed=seed)
    data, model = split(tokens, label), Reader()
    fit(watch, model, AdamW(model.parameters(), lr=2e-3), pairs(*data[:2], steps=200, size=32, seed=seed), clip=1.0,
        holdout=held(data))  # fmt: skip
    return above(accuracy(model, *data[2:]), 0.9)


@healthy("cross-entropy by hand, MLP on iris", seeds=SEEDS)
def entropy_by_hand(watch: Watch, seed: int) -> Check:
    data, model = iris(seed), mlp(4, 24, 3)
    fit(watch, model, Adam(model.parameters(), lr=5e-3), pairs(*data[:2], steps=200, size=16, seed=seed), by_hand,
        holdout=held(data))  # fmt: skip
    return above(accuracy(model, *data[2:]), 0.85)


@healthy("squared error by hand, large offset", seeds=SEEDS)
def offset_by_hand(watch: Watch, seed: int) -> Check:
    """Five temperatures in kelvin: they vary by little beside their size."""
    x, y, *rest = teacher(3000, outputs=5, seed=seed)
    model = mlp(16, 64, 5)
    nn.init.constant_(model[-1].bias, 280.0)
    fit(watch, model, Adam(model.parameters(), lr=5e-3), pairs(x, 285 + 4 * y, steps=500, size=64, seed=seed),
        squares_by_hand)  # fmt: skip
    return above(explained(model, rest[0], 285 + 4 * rest[1]), 0.7)


class Focal(nn.Module):
    def forward(self, outputs: Tensor, targets: Tensor) -> Tensor:
        log_p = outputs.log_softmax(1).gather(1, targets[:, None]).squeeze(1)
        return -((1 - log_p.exp()) ** 2 * log_p).mean()


@healthy("focal loss, digits", seeds=SEEDS)
def focal(watch: Watch, seed: int) -> Check:
    data, model = digits(), mlp(64, 64, 10)
    fit(watch, model, Adam(model.parameters(), lr=3e-3), pairs(*data[:2], steps=250, seed=seed), Focal(),
        holdout=holdout(data))  # fmt: skip
    return above(accuracy(model, *data[2:]), 0.88)


@healthy("dice loss, discs", seeds=SEEDS)
def dice(watch: Watch, seed: int) -> Check:
    data = shapes(seed=seed)
    model = nn.Sequential(
        nn.Conv2d(1, 12, 3, padding=1), nn.ReLU(), nn.Conv2d(12, 12, 3, padding=1), nn.ReLU(),
        nn.Conv2d(12, 1, 3, padding=1),
    )  # fmt: skip

    def overlap(outputs: Tensor, targets: Tensor) -> Tensor:
        p = outputs.sigmoid()
        return 1 - (2 * (p * targets).sum() + 1) / (p.sum() + targets.sum() + 1)

    losses = fit(watch, model, Adam(model.parameters(), lr=5e-3), pairs(*data[:2], steps=200, size=24, seed=seed),
                 overlap)  # fmt: skip
    return below(last(losses), 0.3)


@healthy("Gaussian mixture density, two branches", seeds=SEEDS)
def densities(watch: Watch, seed: int) -> Check:
    """The loss is a negative log-likelihood and goes below zero."""
    g = generator(seed)
    x = torch.rand(2000, 1, generator=g) * 2 - 1
    y = x * (torch.randint(2, (2000, 1), generator=g) * 2 - 1) + 0.03 * torch.randn(2000, 1, generator=g)
    model = mlp(1, 48, 6, activation=nn.Tanh)

    def likelihood(outputs: Tensor, target: Tensor) -> Tensor:
        weight, mean, log_std = outputs.split(2, 1)
        each = -0.5 * ((target - mean) / log_std.exp()) ** 2 - log_std - 0.919
        return -(weight.log_softmax(1) + each).logsumexp(1).mean()

    losses = fit(watch, model, Adam(model.parameters(), lr=1e-2), pairs(x, y, steps=400, size=64, seed=seed),
                 likelihood, clip=5.0)  # fmt: skip
    return below(last(losses), 0.5)


@healthy("counts, Poisson regression", seeds=SEEDS)
def counts(watch: Watch, seed: int) -> Check:
    g = generator(seed)
    x = torch.randn(2000, 6, generator=g)
    y = torch.poisson((0.5 + 0.8 * x[:, :2].sum(1, keepdim=True)).clamp(max=3).exp(), generator=g)
    model = mlp(6, 32, 1)
    losses = fit(watch, model, Adam(model.parameters(), lr=3e-3), pairs(x, y, steps=300, size=64, seed=seed),
                 lambda out, t: F.poisson_nll_loss(out, t))  # fmt: skip
    return below(last(losses), losses[0] - 0.5)


@healthy("hinge, linear classifier", seeds=SEEDS)
def hinge(watch: Watch, seed: int) -> Check:
    data, model = table("breast_cancer"), nn.Linear(30, 2)
    optimizer = SGD(model.parameters(), lr=0.05, weight_decay=1e-3)
    fit(watch, model, optimizer, pairs(*data[:2], steps=200, size=32, seed=seed),
        lambda z, y: F.multi_margin_loss(z, y), holdout=holdout(data, 140))  # fmt: skip
    return above(accuracy(model, *data[2:]), 0.92)


@healthy("letters without alignment, CTC", seeds=SEEDS)
def ctc(watch: Watch, seed: int) -> Check:
    g = generator(seed)
    labels = torch.randint(1, 6, (800, 3), generator=g)
    frames = F.one_hot(labels.repeat_interleave(4, 1), 6).float() + 0.3 * torch.randn(800, 12, 6, generator=g)
    model = nn.Sequential(nn.Linear(6, 32), nn.ReLU(), nn.Linear(32, 6))
    lengths = torch.full((32,), 12), torch.full((32,), 3)
    losses = fit(
        watch, model, Adam(model.parameters(), lr=1e-2), pairs(frames, labels, steps=250, size=32, seed=seed),
        lambda z, y: F.ctc_loss(z.log_softmax(2).transpose(0, 1), y, *lengths),
    )  # fmt: skip
    return below(last(losses), 0.7 * losses[0])
