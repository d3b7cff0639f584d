"""Data of the third blind set, which no other case has."""

from __future__ import annotations

import torch
from sklearn import datasets
from torch import Tensor
from torch.utils.data import TensorDataset

Split = tuple[Tensor, Tensor, Tensor, Tensor]
SEEDS = (0, 1)
UNTRAINED = {"frozen", "no_gradient", "not_moving", "not_optimised", "zero_gradients"}


def generator(seed: int) -> torch.Generator:
    return torch.Generator().manual_seed(9100 + seed)


def split(x: Tensor, y: Tensor, share: float = 0.75) -> Split:
    cut = int(len(x) * share)
    return x[:cut], y[:cut], x[cut:], y[cut:]


def kept(data: Split, count: int = 200) -> TensorDataset:
    """What is held out, for the session."""
    return TensorDataset(data[2][:count], data[3][:count])


def visits(seed: int, count: int = 1600, *, flipped: float = 0.0) -> Split:
    """Twelve columns of numbers, eight of which tell; three kinds of visitors."""
    x, y = datasets.make_classification(
        count, 12, n_informative=8, n_redundant=0, n_classes=3, n_clusters_per_class=1, class_sep=1.5, flip_y=flipped,
        random_state=seed,
    )  # fmt: skip
    drawn = torch.tensor(x).float()
    return split((drawn - drawn.mean(0)) / drawn.std(0), torch.tensor(y))


def rides(seed: int, count: int = 1600, *, noise: float = 0.1) -> Split:
    """Hour, warmth, rain, a day's mood and two columns of noise, standardised; how many bicycles were out, likewise."""
    g = generator(seed)
    x = torch.randn(count, 6, generator=g)
    out = (1.5 * x[:, 0]).sin() + x[:, 1] - 0.5 * x[:, 2].relu() * x[:, 3] + 0.3 * x[:, 3].square()
    out = (out - out.mean()) / out.std() + noise * torch.randn(count, generator=g)
    return split(x, out[:, None])


def tones(seed: int, count: int = 1200, length: int = 40, *, rate: float = 1.0, noise: float = 0.3) -> Split:
    """Recordings of four pitches, (count, 1, length), and which pitch; what is held out is taken at `rate`."""
    g = generator(seed)
    pitch = torch.randint(4, (count,), generator=g)
    t = torch.arange(length) / length
    cut = count * 3 // 4
    speed = torch.where(torch.arange(count) < cut, 1.0, 1 / rate)[:, None]
    phase, drift = torch.rand(count, 1, generator=g), 0.2 * torch.randn(count, 1, generator=g)
    wave = (6.28 * ((2.0 * 1.6 ** pitch[:, None] + drift) * speed * t + phase)).sin()
    return split((wave + noise * torch.randn(wave.shape, generator=g))[:, None], pitch)


def reviews(seed: int, count: int = 1200, length: int = 14, words: int = 200, classes: int = 2) -> Split:
    """Texts of words from 1: half of them any, and half of those that belong to the kind of the text."""
    g = generator(seed)
    kind = torch.randint(classes, (count,), generator=g)
    each = (words - 1) // classes
    own = 1 + each * kind[:, None] + torch.randint(each, (count, length), generator=g)
    other = torch.randint(1, words, (count, length), generator=g)
    return split(torch.where(torch.rand(count, length, generator=g) < 0.4, own, other), kind)


def frames(seed: int, count: int = 900, size: int = 12) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Pictures with one rectangle, full or hollow: the picture, the box (middle, width, height in pixels), which of
    both it is, and the mask of its pixels."""
    g = generator(seed)
    sides = torch.randint(3, 7, (count, 2), generator=g)
    corner = (torch.rand(count, 2, generator=g) * (size + 1 - sides)).long()
    place = torch.arange(size)
    rows = (place >= corner[:, :1]) & (place < corner[:, :1] + sides[:, :1])
    columns = (place >= corner[:, 1:]) & (place < corner[:, 1:] + sides[:, 1:])
    mask = (rows[:, :, None] & columns[:, None]).float()[:, None]
    rows = (place > corner[:, :1]) & (place < corner[:, :1] + sides[:, :1] - 1)
    columns = (place > corner[:, 1:]) & (place < corner[:, 1:] + sides[:, 1:] - 1)
    hollow = torch.randint(2, (count,), generator=g)
    picture = mask - hollow[:, None, None, None] * (rows[:, :, None] & columns[:, None]).float()[:, None]
    picture = picture + 0.15 * torch.randn(picture.shape, generator=g)
    return picture, torch.cat([corner + sides / 2, sides.float()], 1), hollow, mask


def chain(seed: int, count: int = 400, length: int = 20, *, tongue: int = 0, tokens: int = 16) -> Tensor:
    """A language in which each token is followed by one of three; `tongue` says which language."""
    rule = torch.randint(tokens, (tokens, 3), generator=torch.Generator().manual_seed(40 + tongue))
    g = generator(seed + 50 * tongue)
    text = torch.randint(tokens, (count, 1), generator=g)
    for _ in range(length - 1):
        text = torch.cat([text, rule[text[:, -1:], torch.randint(3, (count, 1), generator=g)]], 1)
    return text


def communities(seed: int, nodes: int = 150) -> tuple[Tensor, Tensor, Tensor]:
    """Who knows whom in three groups, what is known of each (noisy), and the group."""
    g = generator(seed)
    group = torch.arange(nodes) % 3
    likely = torch.where(group[:, None] == group, 0.12, 0.01)
    edges = (torch.rand(nodes, nodes, generator=g) < likely).float().triu(1)
    known = torch.nn.functional.one_hot(group, 3) + 1.2 * torch.randn(nodes, 3, generator=g)
    return edges + edges.T, known, group
