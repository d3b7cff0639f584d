"""Data and small parts of the fourth blind set, which no other case has."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from zoo.unseen.third_material import UNTRAINED, kept, split

__all__ = ["SEEDS", "TOO_HIGH", "UNTRAINED", "Split", "generator", "kept", "split"]

Split = tuple[Tensor, Tensor, Tensor, Tensor]
SEEDS = (0, 1)
TOO_HIGH = {"diverging", "exploding", "learning_rate_too_high", "nonfinite"}


def generator(seed: int) -> torch.Generator:
    return torch.Generator().manual_seed(41_000 + seed)


def houses(seed: int, count: int = 1600, *, noise: float = 0.1) -> Split:
    """Eight columns of a house, standardised, and its price, likewise."""
    g = generator(seed)
    x = torch.randn(count, 8, generator=g)
    price = 1.2 * x[:, 0] + x[:, 1].sin() * x[:, 2] + 0.8 * x[:, 3].abs() - 0.5 * x[:, 4] * (x[:, 5] > 0)
    price = (price - price.mean()) / price.std() + noise * torch.randn(count, generator=g)
    return split(x, price[:, None])


def trades(seed: int, count: int = 1600) -> Split:
    """Ten columns and which of four trades: each has two centres, so that no line parts them."""
    g = generator(seed)
    centres = 2.2 * torch.randn(8, 10, generator=g)
    which = torch.randint(8, (count,), generator=g)
    x = centres[which] + 1.2 * torch.randn(count, 10, generator=g)
    return split((x - x.mean(0)) / x.std(0), which % 4)


def told_first(seed: int, count: int = 1200, length: int = 12) -> Split:
    """Tokens of which the first, one of four, is the answer; the others are any of eight."""
    g = generator(seed)
    answer = torch.randint(4, (count,), generator=g)
    rest = torch.randint(4, 12, (count, length - 1), generator=g)
    return split(torch.cat([answer[:, None], rest], 1), answer)


def which_first(seed: int, count: int = 1600, length: int = 8, words: int = 12) -> Split:
    """Texts in which the words 0 and 1 each stand once: whether 0 is before 1."""
    g = generator(seed)
    text = torch.randint(2, words, (count, length), generator=g)
    places = torch.rand(count, length, generator=g).argsort(1)[:, :2]
    rows = torch.arange(count)
    text[rows, places[:, 0]], text[rows, places[:, 1]] = 0, 1
    return split(text, (places[:, 0] < places[:, 1]).long())


def tides(seed: int, count: int = 1400, length: int = 16) -> Split:
    """Two waves of their own pace and the level that comes next, one number for each."""
    g = generator(seed)
    pace, phase = 0.3 + 0.5 * torch.rand(count, 2, generator=g), 6.28 * torch.rand(count, 2, generator=g)
    t = torch.arange(length + 1)
    level = (pace[:, :1] * t + phase[:, :1]).sin() + 0.5 * (2 * pace[:, 1:] * t + phase[:, 1:]).sin()
    level = level + 0.05 * torch.randn(level.shape, generator=g)
    return split(level[:, :-1, None], level[:, -1])


def crescents(seed: int, count: int = 1500) -> Tensor:
    """Points on two crescents, of about unit spread."""
    g = generator(seed)
    angle, lower = 3.14159 * torch.rand(count, generator=g), torch.rand(count, generator=g) < 0.5
    points = torch.stack([angle.cos(), angle.sin()], 1)
    points = torch.where(lower[:, None], torch.tensor([1.0, 0.5]) - points, points) - torch.tensor([0.5, 0.25])
    return 1.4 * (points + 0.05 * torch.randn(count, 2, generator=g))


def apart(points: Tensor, data: Tensor) -> float:
    """The median distance from a point to the nearest of the data."""
    return float(torch.cdist(points, data).min(1).values.median())


def offers(seed: int, count: int) -> tuple[Tensor, Tensor]:
    """Customers by six numbers, and which of three offers each would take."""
    x = torch.randn(count, 6, generator=torch.Generator().manual_seed(7_000 + seed))
    rule = torch.randn(6, 3, generator=torch.Generator().manual_seed(7))
    return x, (x @ rule).argmax(1)


class Forecaster(nn.Module):
    """A GRU over a series; one number from its last state, as a column."""

    def __init__(self, width: int = 32) -> None:
        super().__init__()
        self.rnn, self.head = nn.GRU(1, width, batch_first=True), nn.Linear(width, 1)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.rnn(x)[1][0])


class Towers(nn.Module):
    """How near each picture is to each caption of a batch, at a fixed temperature."""

    def __init__(self, words: int, width: int = 24) -> None:
        super().__init__()
        self.picture = nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, width))
        self.words, self.caption = nn.Embedding(words, width), nn.Linear(width, width)

    def forward(self, pictures: Tensor, captions: Tensor) -> Tensor:
        seen = F.normalize(self.picture(pictures), dim=1)
        return 10 * seen @ F.normalize(self.caption(self.words(captions).mean(1)), dim=1).T
