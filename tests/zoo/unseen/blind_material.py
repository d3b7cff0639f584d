"""Data and models of the blind cases, which no other case has."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import torch
from sklearn.datasets import load_iris
from torch import Tensor, nn
from torch.nn import functional as F

Split = tuple[Tensor, Tensor, Tensor, Tensor]


def split(x: Tensor, y: Tensor, share: float = 0.75) -> Split:
    cut = int(len(x) * share)
    return x[:cut], y[:cut], x[cut:], y[cut:]


def generator(seed: int) -> torch.Generator:
    return torch.Generator().manual_seed(1000 + seed)


def iris(seed: int = 0) -> Split:
    x, y = (torch.tensor(part) for part in load_iris(return_X_y=True))
    order = torch.randperm(len(x), generator=generator(seed))
    x = x.float()[order]
    return split((x - x.mean(0)) / x.std(0), y[order])


def waves(count: int = 1600, length: int = 48, *, seed: int = 0) -> Split:
    """Four kinds of waves with noise: sine, square, saw, and a chirp; (count, 1, length)."""
    g = generator(seed)
    t = torch.linspace(0, 1, length)
    kind = torch.randint(4, (count,), generator=g)
    phase, rate = torch.rand(count, 1, generator=g), 2 + 2 * torch.rand(count, 1, generator=g)
    turn = (rate * t + phase) % 1
    sine, saw = (6.283 * turn).sin(), 2 * turn - 1
    chirp = (6.283 * (rate * t * t * 2 + phase)).sin()
    shapes = torch.stack([sine, sine.sign(), saw, chirp], 1)
    x = shapes[torch.arange(count), kind] + 0.2 * torch.randn(count, length, generator=g)
    return split(x[:, None], kind)


def blocks(nodes: int = 240, groups: int = 4, *, seed: int = 0) -> tuple[Tensor, Tensor, Tensor]:
    """A graph of groups that know each other: adjacency with loops, weak features, groups."""
    g = generator(seed)
    group = torch.arange(nodes) % groups
    same = group[:, None] == group[None]
    drawn = torch.rand(nodes, nodes, generator=g).triu(1)
    edges = (drawn > 0) & (drawn < torch.where(same, 0.15, 0.02))
    adjacency = (edges | edges.T).float() + torch.eye(nodes)
    features = torch.randn(nodes, 8, generator=g)
    features[:, :groups] += 0.7 * F.one_hot(group, groups)
    return adjacency, features, group


def ratings(users: int = 60, items: int = 50, count: int = 3000, *, seed: int = 0) -> Split:
    g = generator(seed)
    p, q = torch.randn(users, 3, generator=g), torch.randn(items, 3, generator=g)
    pair = torch.stack([torch.randint(users, (count,), generator=g), torch.randint(items, (count,), generator=g)], 1)
    score = (p[pair[:, 0]] * q[pair[:, 1]]).sum(1, keepdim=True) + 0.2 * torch.randn(count, 1, generator=g)
    return split(pair, score)


def shapes(count: int = 900, size: int = 12, *, seed: int = 0) -> Split:
    """Bright discs on a noisy ground, and where they are."""
    g = generator(seed)
    place = torch.rand(count, 2, 1, 1, generator=g) * (size - 4) + 2
    radius = 1.5 + 2 * torch.rand(count, 1, 1, generator=g)
    row, column = torch.meshgrid(torch.arange(size), torch.arange(size), indexing="ij")
    inside = ((row - place[:, 0]) ** 2 + (column - place[:, 1]) ** 2 < radius**2).float()[:, None]
    return split(inside + 0.4 * torch.randn(count, 1, size, size, generator=g), inside)


def bags(count: int = 1500, size: int = 8, *, seed: int = 0) -> Split:
    """Sets of numbers and their largest."""
    x = torch.randn(count, size, 1, generator=generator(seed))
    return split(x, x.amax(1))


def sentences(count: int = 1600, length: int = 20, vocabulary: int = 30, *, seed: int = 0) -> tuple[Tensor, Tensor]:
    """Tokens from 1, padded with 0 at the right; whether there are more of the low than of the high ones."""
    g = generator(seed)
    tokens = torch.randint(1, vocabulary, (count, length), generator=g)
    tilt = torch.rand(count, 1, generator=g) < 0.5
    low = torch.rand(count, length, generator=g) < torch.where(tilt, 0.75, 0.25)
    tokens = torch.where(low, 1 + tokens % 14, 15 + tokens % 14)
    lengths = torch.randint(6, length + 1, (count, 1), generator=g)
    kept = torch.arange(length) < lengths
    label = ((tokens <= 14) & kept).sum(1) * 2 > kept.sum(1)
    return tokens * kept, label.long()


class Waves(nn.Module):
    """Convolutions over time."""

    def __init__(self, classes: int = 4, *, norm: bool = False, dropout: float = 0.0) -> None:
        super().__init__()
        norms = [nn.BatchNorm1d(16), nn.BatchNorm1d(16)] if norm else [nn.Identity(), nn.Identity()]
        self.body = nn.Sequential(
            nn.Conv1d(1, 16, 5, padding=2), norms[0], nn.ReLU(), nn.MaxPool1d(2), nn.Conv1d(16, 16, 5, padding=2),
            norms[1], nn.ReLU(),
        )  # fmt: skip
        self.dropout, self.head = nn.Dropout(dropout), nn.Linear(32, classes)

    def forward(self, x: Tensor) -> Tensor:
        h = self.body(x)
        return self.head(self.dropout(torch.cat([h.mean(2), h.amax(2)], 1)))


class Reader(nn.Module):
    """A transformer over tokens; 0 is padding."""

    def __init__(self, classes: int = 2, vocabulary: int = 30, width: int = 32, *, inverted: bool = False) -> None:
        super().__init__()
        self.embedding, self.inverted = nn.Embedding(vocabulary, width, padding_idx=0), inverted
        layer = nn.TransformerEncoderLayer(width, 4, 64, dropout=0.0, batch_first=True)
        self.encoder, self.head = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False), nn.Linear(width, classes)

    def forward(self, tokens: Tensor) -> Tensor:
        padding = tokens == 0
        hidden = padding if not self.inverted else ~padding
        hidden = hidden & ~hidden.all(1, keepdim=True)
        h = self.encoder(self.embedding(tokens), src_key_padding_mask=hidden)
        kept = (~hidden)[..., None]
        return self.head((h * kept).sum(1) / kept.sum(1).clamp(min=1))


class Factors(nn.Module):
    """Ratings from factors of users and items."""

    def __init__(self, users: int = 60, items: int = 50, width: int = 6) -> None:
        super().__init__()
        self.users, self.items, self.bias = (
            nn.Embedding(users, width),
            nn.Embedding(items, width),
            nn.Embedding(items, 1),
        )
        for table in (self.users, self.items):
            nn.init.normal_(table.weight, std=0.3)

    def forward(self, pair: Tensor) -> Tensor:
        return (self.users(pair[:, 0]) * self.items(pair[:, 1])).sum(1, keepdim=True) + self.bias(pair[:, 1])


class Graph(nn.Module):
    """Layers that mix a node with its neighbours, by the mean or by the sum."""

    def __init__(self, adjacency: Tensor, *, mean: bool = True, layers: int = 2, width: int = 24) -> None:
        super().__init__()
        self.register_buffer("mix", adjacency / adjacency.sum(1, keepdim=True) if mean else adjacency)
        sizes = [8, *[width] * (layers - 1), 4]
        self.layers = nn.ModuleList(nn.Linear(a, b) for a, b in pairwise(sizes))

    def forward(self, x: Tensor) -> Tensor:
        mix: Any = self.mix
        for layer in self.layers[:-1]:
            x = torch.relu(mix @ layer(x))
        return self.layers[-1](mix @ x)


class Bags(nn.Module):
    def __init__(self, outputs: int = 1) -> None:
        super().__init__()
        self.each = nn.Sequential(nn.Linear(1, 32), nn.ReLU(), nn.Linear(32, 32), nn.ReLU())
        self.all = nn.Sequential(nn.Linear(64, 32), nn.ReLU(), nn.Linear(32, outputs))

    def forward(self, x: Tensor) -> Tensor:
        h = self.each(x)
        return self.all(torch.cat([h.mean(1), h.amax(1)], 1))


class Forecast(nn.Module):
    """The next value of a series from those before."""

    def __init__(self, width: int = 24) -> None:
        super().__init__()
        self.rnn, self.head = nn.GRU(1, width, batch_first=True), nn.Linear(width, 1)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.rnn(x)[0])


def by_hand(outputs: Tensor, targets: Tensor) -> Tensor:
    """Cross-entropy as people write it out."""
    onehot = torch.eye(outputs.shape[1])[targets]
    return -(outputs.log_softmax(1) * onehot).sum(1).mean()


def squares_by_hand(outputs: Tensor, targets: Tensor) -> Tensor:
    return ((outputs - targets) ** 2).mean()
